//! The owner's lock: one process at a time writes to a pool.
//!
//! It is `flock(2)`, which belongs to the open file description: the kernel lets go of it when the owner dies, however
//! that happens, and never on closing some other descriptor of the same file (as POSIX record locks do).

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::At;
use crate::{Result, StoreError};

/// How often a lock is tried before it is taken as held: udev holds a shared lock on a block device for a moment
/// whenever it looks at it.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the exclusive lock on `file`, which `path` names in the error. It is held as long as the file is open.
///
/// # Errors
/// `Locked` when another process has it; `Io` where the file system knows no locks.
pub(crate) fn exclusive(file: &File, path: &Path) -> Result<()> {
    // Unit tests start losetup and mkfs beside each other: until its exec such a child holds every lock of ours.
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
