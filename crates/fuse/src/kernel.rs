//! What all filesystems here tell the kernel, and understand of what it says.

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
/// Largest read of a file that the kernel is to ask for at once, bytes: what was verified is in the processor's cache
/// still when it is copied out.
pub(crate) const READ_MAX: u32 = 128 << 10;
/// How far the kernel is to read ahead of who reads in order, bytes: with its own 128 KiB there is one request at a
/// time, and hashing keeps the reader waiting.
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

/// What is told of failures that nobody but the operator can do something about.
pub(crate) type Complain<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// What a request is answered with.
pub(crate) type Answer<T> = Result<T, Errno>;

/// An error number for an error. Its cause is lost from here on, so what is nobody's fault is told the operator.
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

/// What `lseek` looks for: the kernel does by itself what is not about holes.
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

/// Makes the kernel read ahead of who reads in order from what was just mounted on `dir`. Only root may say so: for others
/// it stays as it is.
pub(crate) fn read_ahead(dir: &Path) {
    // Nobody answers requests yet.
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
        // A hole that changes the size; COLLAPSE_RANGE; what is no mode.
        for mode in [2, 8, 64, -1] {
            assert_eq!(Allocate::of(mode), Err(Errno::EOPNOTSUPP));
        }
        assert!(matches!((seek(3), seek(4)), (Ok(Seek::Data), Ok(Seek::Hole))));
        assert_eq!(seek(0).err(), Some(Errno::EINVAL));
    }
}
