//! Inode flags and project IDs, which the kernel reads and sets by ioctl (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` of
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

/// `FS_XFLAG_PROJINHERIT`: new files in the directory inherit its project.
const INHERIT: u32 = 0x200;

/// Pairs of flags in the form of `FS_IOC_SETFLAGS` and in the form of `struct fsxattr`: immutable, append-only, no
/// dump, project inheritance.
const FLAGS: [(u32, u32); 4] = [(0x10, 0x8), (0x20, 0x10), (0x40, 0x80), (0x2000_0000, INHERIT)];

/// The flags and project of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeFlags {
    /// Flags in the form of `FS_IOC_GETFLAGS`. Only those that ZFS knows are included.
    pub(crate) flags: u32,
    pub(crate) project_id: u32,
}

impl InodeFlags {
    /// Reads the flags of `file`. `None` if its filesystem has none.
    ///
    /// # Errors
    /// The kernel's error.
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

/// The project to set on a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) id: u32,
    /// Whether children inherit the project.
    pub(crate) inherits: bool,
}

impl Project {
    /// Sets the project of `file`.
    ///
    /// # Errors
    /// The kernel's error; see [`is_unsupported`].
    pub(crate) fn set(self, file: impl AsFd) -> rustix::io::Result<()> {
        // SAFETY: `GET` fills in a `struct fsxattr`. `FsXattr` has its layout, and all byte values are valid for it.
        let mut attributes = unsafe { ioctl(file.as_fd(), Getter::<GET, FsXattr>::new()) }?;
        attributes.projid = self.id;
        attributes.xflags =
            if self.inherits { attributes.xflags | INHERIT } else { attributes.xflags & !INHERIT };
        // SAFETY: `SET` reads a `struct fsxattr`. `FsXattr` has its layout.
        unsafe { ioctl(file.as_fd(), Setter::<SET, FsXattr>::new(attributes)) }
    }
}

/// Whether the error means that the filesystem has no projects, so that another attempt is useless.
pub(crate) fn is_unsupported(error: &std::io::Error) -> bool {
    [Errno::NOTTY, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Repeats a call with larger buffers until the result fits.
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
        // The values of `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` on most machines.
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
