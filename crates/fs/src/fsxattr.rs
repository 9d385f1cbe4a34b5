//! Inode flags and project ids, which the kernel tells and takes by ioctl (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` of
//! `include/uapi/linux/fs.h`).
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// `struct fsxattr`
#[repr(C)]
#[derive(Clone, Copy)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

const _: () = assert!(size_of::<FsXattr>() == 28);

const GET: Opcode = opcode::read::<FsXattr>(b'X', 31);
const SET: Opcode = opcode::write::<FsXattr>(b'X', 32);

/// `FS_XFLAG_PROJINHERIT`: what is made in the directory gets its project.
const INHERIT: u32 = 0x200;

/// Flags as `FS_IOC_SETFLAGS` has them, and as `struct fsxattr` has them: immutable, append-only, no dump, project
/// inheritance.
const FLAGS: [(u32, u32); 4] = [(0x10, 0x8), (0x20, 0x10), (0x40, 0x80), (0x2000_0000, INHERIT)];

/// What a file or directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeFlags {
    /// As `FS_IOC_GETFLAGS` tells them, those that ZFS knows.
    pub(crate) flags: u32,
    pub(crate) project_id: u32,
}

impl InodeFlags {
    /// Those of `file`; `None` where its filesystem has none.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn of(file: impl AsFd) -> std::io::Result<Option<Self>> {
        // SAFETY: as in `Project::set`.
        match unsafe { ioctl(file.as_fd(), Getter::<GET, FsXattr>::new()) } {
            Ok(found) => {
                let known = FLAGS.iter().filter(|(_, extended)| found.xflags & extended != 0);
                let flags = known.fold(0, |all, (flag, _)| all | flag);
                Ok(Some(Self { flags, project_id: found.projid }))
            }
            Err(errno) if is_unsupported(&errno.into()) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// What a file or directory is to belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) id: u32,
    /// Children inherit it.
    pub(crate) inherits: bool,
}

impl Project {
    /// Gives `file` this project.
    ///
    /// # Errors
    /// What the kernel says; see [`is_unsupported`].
    pub(crate) fn set(self, file: impl AsFd) -> rustix::io::Result<()> {
        // SAFETY: `GET` is defined to fill in a `struct fsxattr`, which `FsXattr` is laid out as, and any bytes are one.
        let mut attributes = unsafe { ioctl(file.as_fd(), Getter::<GET, FsXattr>::new()) }?;
        attributes.projid = self.id;
        attributes.xflags =
            if self.inherits { attributes.xflags | INHERIT } else { attributes.xflags & !INHERIT };
        // SAFETY: `SET` is defined to read a `struct fsxattr`, which `FsXattr` is laid out as.
        unsafe { ioctl(file.as_fd(), Setter::<SET, FsXattr>::new(attributes)) }
    }
}

/// Whether the filesystem has no projects at all, so that there is no use in trying again.
pub(crate) fn is_unsupported(error: &std::io::Error) -> bool {
    [Errno::NOTTY, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Calls with a larger buffer until it is large enough.
pub(crate) fn grown(
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 256];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() < 1 << 20 => buf.resize(buf.len() * 8, 0),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctls_are_the_kernels() {
        // As `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` expand on most machines.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!((GET, SET), (0x801c_581f, 0x401c_5820));
    }

    #[test]
    fn projects_are_set_where_there_are_any() {
        let file = tempfile::tempfile().unwrap();
        match (Project { id: 4711, inherits: false }).set(&file) {
            Ok(()) => {
                // SAFETY: as in `Project::set`.
                let found = unsafe { ioctl(file.as_fd(), Getter::<GET, FsXattr>::new()) }.unwrap();
                assert_eq!(found.projid, 4711);
            }
            Err(error) => assert!(is_unsupported(&error.into()), "{error}"),
        }
    }
}
