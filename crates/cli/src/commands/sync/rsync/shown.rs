//! The progress of a sync with an rsync server.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Mutex;

use snowmelt_rsync::client::Observer;

use crate::app::App;
use crate::args::SyncArgs;
use crate::error::{CliError, Result};
use crate::progress::Progress;

/// Shows messages on standard error, and with `-v` or `-n` changes on standard output.
pub(super) struct Shown {
    messages: Mutex<File>,
    changes: Option<Mutex<File>>,
}

impl Shown {
    /// As these arguments want it.
    pub(super) fn new(app: &mut App<'_>, args: &SyncArgs) -> Result<Self> {
        app.context.out.flush().map_err(CliError::Output)?;
        let messages = Mutex::new(app.context.err.try_clone().map_err(CliError::Output)?);
        let shows = (args.verbose || args.dry_run) && !args.json;
        let out = shows.then(|| app.context.out.get_ref().try_clone().map(Mutex::new));
        Ok(Self { messages, changes: out.transpose().map_err(CliError::Output)? })
    }
}

impl Observer for Shown {
    // If the output is closed, the sync continues.
    fn message(&self, line: &str) {
        if let Ok(mut file) = self.messages.lock() {
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn change(&self, item: &str, name: &str) {
        if let Some(Ok(mut file)) = self.changes.as_ref().map(Mutex::lock) {
            let _ = file.write_all(format!("{item} {name}\n").as_bytes());
        }
    }
}

/// Counts the bytes that pass through it.
pub(super) struct Counted<'a, F> {
    pub(super) inner: F,
    pub(super) progress: &'a Progress,
}

impl<F: Read> Read for Counted<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.progress.advance(len as u64);
        Ok(len)
    }
}

impl<F: Write> Write for Counted<'_, F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = self.inner.write(data)?;
        self.progress.advance(len as u64);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
