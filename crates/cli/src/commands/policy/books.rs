//! The state of jobs, and locks that prevent concurrent runs.
//!
//! The directory is `$XDG_STATE_HOME/snowmelt/policy` (`~/.local/state/…`; for root `/var/lib/snowmelt/policy`). It
//! has a JSON file for each job, and lock files, which are kept and locked by flock(2). The state may be lost: then
//! jobs run again, and find nothing to do.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::error::{CliError, Result};

/// How often a lock is tried, and how long between.
const LOOKERS: usize = 3;
const LOOK: Duration = Duration::from_millis(10);
/// How long between, where it is waited for.
const WAIT: Duration = Duration::from_millis(200);
/// Larger files are not ours.
const LENGTH_MAX: u64 = 1 << 20;

/// The directory.
#[derive(Debug, Clone)]
pub(super) struct Books {
    directory: PathBuf,
}

/// The stored state of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Page {
    /// Identifies the settings of the job: with other settings, a job of the same name is a different job.
    pub(super) source: String,
    pub(super) target: String,
    /// When it last began: seconds since 1970.
    pub(super) began: Option<i64>,
    /// When it last began among the times it succeeded.
    pub(super) succeeded: Option<i64>,
    /// Why it failed last time.
    pub(super) failure: Option<String>,
}

/// Held as long as it lives.
pub(super) struct Lock(#[allow(dead_code)] File);

impl Books {
    pub(super) fn new(context: &Context) -> Self {
        let home = || Path::new(context.env("HOME").unwrap_or(OsStr::new("/"))).join(".local/state");
        let base = match context.env("XDG_STATE_HOME") {
            Some(path) if Path::new(path).is_absolute() => PathBuf::from(path),
            None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib"),
            _ => home(),
        };
        Self { directory: base.join("snowmelt/policy") }
    }

    /// The lock of this name, or nothing if another run has it.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub(super) fn lock(&self, name: &str) -> Result<Option<Lock>> {
        let path = self.directory.join(format!("{name}.lock"));
        let failed = |error: &io::Error| CliError::failed(format!("cannot lock {}", path.display()), error);
        fs::create_dir_all(&self.directory).map_err(|error| failed(&error))?;
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| failed(&error))?;
        // A process that only checks the lock holds it for a moment.
        for _ in 0..LOOKERS {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Lock(file))),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOOK),
                Err(error) => return Err(failed(&error.into())),
            }
        }
        Ok(None)
    }

    /// The same, when no other run has it any more; nothing if that is not waited for any longer.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub(super) fn lock_when_free(&self, name: &str, cancelled: &AtomicBool) -> Result<Option<Lock>> {
        while !cancelled.load(Ordering::Relaxed) {
            if let Some(lock) = self.lock(name)? {
                return Ok(Some(lock));
            }
            std::thread::sleep(WAIT);
        }
        Ok(None)
    }

    /// Whether another run has this lock.
    pub(super) fn is_locked(&self, name: &str) -> bool {
        let path = self.directory.join(format!("{name}.lock"));
        let Ok(file) = File::open(path) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    }

    /// The state of a job; empty if it cannot be read.
    pub(super) fn page(&self, job: &str) -> Page {
        let Ok(file) = File::open(self.directory.join(format!("{job}.json"))) else { return Page::default() };
        let mut content = String::new();
        match file.take(LENGTH_MAX).read_to_string(&mut content) {
            Ok(_) => serde_json::from_str(&content).unwrap_or_default(),
            Err(_) => Page::default(),
        }
    }

    /// Stores it. The caller must hold the job's lock.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub(super) fn write(&self, job: &str, page: &Page) -> Result<()> {
        let path = self.directory.join(format!("{job}.json"));
        let write = || -> io::Result<()> {
            fs::create_dir_all(&self.directory)?;
            let temporary = path.with_extension("json.new");
            let mut file = File::create(&temporary)?;
            serde_json::to_writer(&mut file, page)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| CliError::failed(format!("cannot write {}", path.display()), &error))
    }
}
