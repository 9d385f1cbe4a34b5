//! What `serve rsync` has to say: on standard error, or in the log files of its configuration.

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use snowmelt_rsync::daemon::Config;

use crate::context::Context;

/// Where lines go.
pub struct RsyncLog {
    err: Mutex<File>,
    files: HashMap<PathBuf, Mutex<LogFile>>,
    zone: TimeZone,
}

struct LogFile {
    path: PathBuf,
    file: File,
}

impl RsyncLog {
    /// Opens the files that the configuration names. One that cannot be opened is told, and its lines go to standard
    /// error, as rsync's daemon goes on with syslog.
    ///
    /// # Errors
    /// When standard error cannot be had.
    pub fn open(context: &mut Context, config: &Config) -> io::Result<Self> {
        let named = config.modules.iter().filter_map(|module| module.log_file.as_ref());
        let mut files = HashMap::new();
        for name in named.chain(&config.log_file) {
            if files.contains_key(name) {
                continue;
            }
            let path = context.path(name);
            match append(&path) {
                Ok(file) => drop(files.insert(name.clone(), Mutex::new(LogFile { path, file }))),
                Err(error) => context.complain(format!(
                    "warning: cannot open the log file {}: {error}: what is said goes here",
                    path.display()
                )),
            }
        }
        Ok(Self { err: Mutex::new(context.err.try_clone()?), files, zone: context.time_zone() })
    }

    /// Writes a line, to the log file `name` if there is one.
    pub fn line(&self, name: Option<&Path>, text: &str) {
        let written = match name.and_then(|name| self.files.get(name)) {
            Some(file) => file.lock().write(&format!("{} {text}\n", self.stamp())),
            None => writeln!(self.err.lock(), "{text}"),
        };
        // There is nowhere to complain.
        drop(written);
    }

    /// When and who, as rsync has it.
    fn stamp(&self) -> String {
        let now = Timestamp::now().to_zoned(self.zone.clone());
        format!("{} [{}]", now.strftime("%Y/%m/%d %H:%M:%S"), std::process::id())
    }
}

impl LogFile {
    /// What was rotated away is written to no more, once another file can be had in its place.
    fn write(&mut self, line: &str) -> io::Result<()> {
        let of = |metadata: Metadata| (metadata.dev(), metadata.ino());
        if self.path.metadata().map(of).ok() != self.file.metadata().map(of).ok()
            && let Ok(file) = append(&self.path)
        {
            self.file = file;
        }
        self.file.write_all(line.as_bytes())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}
