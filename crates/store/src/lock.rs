//! The owner's lock: only one process at a time writes to a pool.
//!
//! The lock is `flock(2)`. It belongs to the open file description, so the kernel releases it however the owner ends.
//! Unlike a POSIX record lock, it is kept when another descriptor of the same file is closed.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::At;
use crate::{Result, StoreError};

/// How often to try a lock on a block device. udev holds a shared lock for a moment whenever it examines a device.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the exclusive lock on `file`. `path` names the file in errors. The lock is held as long as the file is open.
///
/// # Errors
/// `Locked` when another process holds it; `Io` where the file system does not support locks.
pub(crate) fn exclusive(file: &File, path: &Path) -> Result<()> {
    // Unit tests start losetup and mkfs in parallel. Until its exec, such a child process holds all locks of this
    // one.
    let unhurried = if cfg!(test) { 10 * ATTEMPTS } else { 1 };
    let mut attempts = if is_block_device(file) { ATTEMPTS.max(unhurried) } else { unhurried };
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if attempts > 1 => {
                attempts -= 1;
                std::thread::sleep(PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked { path: path.to_owned() }),
            Err(error) => return Err(io::Error::from(error)).at("lock", path),
        }
    }
}

fn is_block_device(file: &File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.metadata().is_ok_and(|m| m.file_type().is_block_device())
}
