//! Unmounting.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::error::MountError;

/// A mount that is in use for longer than this is busy. Each `statfs(2)` of it by any program (`df`, a monitoring
/// agent) is a use until its request is answered, and the kernel reports no end of a use.
const BUSY_MAX: Duration = Duration::from_millis(500);
const BUSY_STEP: Duration = Duration::from_millis(10);

/// Unmounts the mount at `dir`.
///
/// # Errors
/// [`MountError::Busy`] while it is in use. With force, it is removed as soon as it is not.
pub(crate) fn unmount_at(dir: &Path, force: bool) -> Result<(), MountError> {
    let begun = Instant::now();
    loop {
        match unmount_once(dir, force) {
            Err(MountError::Busy { .. }) if begun.elapsed() < BUSY_MAX => thread::sleep(BUSY_STEP),
            done => return done,
        }
    }
}

fn unmount_once(dir: &Path, force: bool) -> Result<(), MountError> {
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_with_helper(dir, force),
        Err(Errno::BUSY) => Err(MountError::Busy { dir: dir.to_owned() }),
        // Somebody was faster.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(MountError::Unmount { dir: dir.to_owned(), source: error.into() }),
    }
}

/// Only root may unmount, and those for whom `fusermount3` does it.
fn unmount_with_helper(dir: &Path, force: bool) -> Result<(), MountError> {
    let failed = |source| MountError::Unmount { dir: dir.to_owned(), source };
    let mut command = Command::new("fusermount3");
    command.arg(if force { "-uz" } else { "-u" }).arg("--").arg(dir).stdin(Stdio::null());
    let output = command.output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match said.contains("busy") {
        true => Err(MountError::Busy { dir: dir.to_owned() }),
        false => Err(failed(io::Error::other(said))),
    }
}
