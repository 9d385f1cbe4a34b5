//! Conversions between the types of the kernel and those of the filesystems here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::Errno;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use snowmelt_fs::vfs::Seek;

use crate::error::MountError;
use crate::wire::ReplyEmpty;

/// Largest read or write, bytes.
pub(crate) const TRANSFER_MAX: u32 = 1 << 20;
/// Maximum size of a read request of the kernel in bytes. With this size, verified data is still in the processor's
/// cache when it is copied.
pub(crate) const READ_MAX: u32 = 128 << 10;
/// Size of the kernel's read-ahead for sequential reads, in bytes. With the kernel's own 128 KiB there is one request
/// at a time, and the reader waits for the hashing.
const READ_AHEAD: u32 = 2 << 20;
/// Units of `statfs` and of `st_blocks`, bytes (`SPA_MINBLOCKSIZE`, as in ZFS).
pub(crate) const FRAGMENT: u64 = 512;
/// Longest name (`MAXNAMELEN - 1`).
pub(crate) const NAME_MAX: u32 = 255;

/// `fallocate` modes (`include/uapi/linux/falloc.h`).
const KEEP_SIZE: i32 = 0x1;
const PUNCH_HOLE: i32 = 0x2;
const ZERO_RANGE: i32 = 0x10;
/// `lseek` (`include/uapi/linux/fs.h`).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The output for failures that only the operator can fix.
pub(crate) type Complain<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// The result of a request.
pub(crate) type Answer<T> = Result<T, Errno>;

/// The error number for an error. The cause is lost from here on, so internal failures are reported to the operator.
pub(crate) fn told<T, E>(
    result: Result<T, E>,
    errno: impl Fn(&E) -> Errno,
    complain: &Complain<E>,
) -> Answer<T> {
    result.map_err(|error| {
        let errno = errno(&error);
        if errno == Errno::EIO {
            complain(&error);
        }
        errno
    })
}

/// Answers a request that asks for nothing back.
pub(crate) fn empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// What `fallocate` may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocate {
    /// Room for a range.
    Room { keep_size: bool },
    /// A hole.
    Hole,
    /// Zeros.
    Zeros { keep_size: bool },
}

impl Allocate {
    /// From its `mode`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`.
    pub(crate) fn of(mode: i32) -> Answer<Self> {
        let keep_size = mode & KEEP_SIZE != 0;
        match mode & !KEEP_SIZE {
            0 => Ok(Self::Room { keep_size }),
            PUNCH_HOLE if keep_size => Ok(Self::Hole),
            ZERO_RANGE => Ok(Self::Zeros { keep_size }),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// The target of `lseek`. The kernel handles everything except data and holes by itself.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn seek(whence: i32) -> Answer<Seek> {
    match whence {
        SEEK_DATA => Ok(Seek::Data),
        SEEK_HOLE => Ok(Seek::Hole),
        _ => Err(Errno::EINVAL),
    }
}

/// The directory to mount on, by its full name.
///
/// # Errors
/// [`MountError::Directory`], [`MountError::NoFuse`].
pub(crate) fn mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let refused = |source| MountError::Directory { dir: dir.to_owned(), source };
    let dir = dir.canonicalize().map_err(refused)?;
    // The kernel would mount on a file, too, and show a root directory as a file.
    if !dir.is_dir() {
        return Err(MountError::Directory { dir, source: rustix::io::Errno::NOTDIR.into() });
    }
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(dir),
        Err(source) => Err(MountError::NoFuse { source }),
    }
}

/// Sets the kernel's read-ahead for sequential reads of the new mount on `dir`. Only root may set it. For other users
/// it does not change.
pub(crate) fn read_ahead(dir: &Path) {
    // Requests are not answered yet.
    let Ok(stat) = statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) else { return };
    let knob = format!("/sys/class/bdi/{}:{}/read_ahead_kb", stat.stx_dev_major, stat.stx_dev_minor);
    let _ = std::fs::write(knob, (READ_AHEAD >> 10).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_whences_of_linux() {
        assert_eq!(Allocate::of(0), Ok(Allocate::Room { keep_size: false }));
        assert_eq!(Allocate::of(1), Ok(Allocate::Room { keep_size: true }));
        assert_eq!(Allocate::of(3), Ok(Allocate::Hole));
        assert_eq!(Allocate::of(16), Ok(Allocate::Zeros { keep_size: false }));
        assert_eq!(Allocate::of(17), Ok(Allocate::Zeros { keep_size: true }));
        // A hole that changes the size; COLLAPSE_RANGE; an invalid mode.
        for mode in [2, 8, 64, -1] {
            assert_eq!(Allocate::of(mode), Err(Errno::EOPNOTSUPP));
        }
        assert!(matches!((seek(3), seek(4)), (Ok(Seek::Data), Ok(Seek::Hole))));
        assert_eq!(seek(0).err(), Some(Errno::EINVAL));
    }
}
