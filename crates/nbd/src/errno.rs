//! The error numbers of the protocol, and how an [`io::Error`] of an export is converted (proto.md, "Error values").

use std::io;

/// An error value of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// The storage failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// Invalid request.
    Inval = 22,
    /// No space, or beyond the end of the export.
    NoSpc = 28,
    /// Longer than this server supports.
    Overflow = 75,
    /// A fast zeroing that would not be fast.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// Converts an error of any operation except a fast zeroing. The protocol reserves ENOTSUP for that.
    pub(crate) fn of(error: &io::Error) -> Self {
        if error.raw_os_error() == Some(rustix::io::Errno::SHUTDOWN.raw_os_error()) {
            return Self::Shutdown;
        }
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::Perm,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::NoSpc
            }
            io::ErrorKind::OutOfMemory => Self::NoMem,
            io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => Self::Inval,
            _ => Self::Io,
        }
    }

    /// The number on the wire.
    pub(crate) fn code(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno as Os;

    use super::*;

    #[test]
    fn maps_operating_system_errors() {
        let cases = [
            (Os::PERM, Errno::Perm),
            (Os::ACCESS, Errno::Perm),
            (Os::ROFS, Errno::Perm),
            (Os::IO, Errno::Io),
            (Os::BADF, Errno::Io),
            (Os::NOMEM, Errno::NoMem),
            (Os::INVAL, Errno::Inval),
            (Os::OPNOTSUPP, Errno::Inval),
            (Os::NOSPC, Errno::NoSpc),
            (Os::DQUOT, Errno::NoSpc),
            (Os::FBIG, Errno::NoSpc),
            (Os::SHUTDOWN, Errno::Shutdown),
        ];
        for (os, expected) in cases {
            assert_eq!(Errno::of(&io::Error::from_raw_os_error(os.raw_os_error())), expected, "{os:?}");
        }
    }

    #[test]
    fn maps_kinds_of_errors_that_have_no_number() {
        assert_eq!(Errno::of(&io::Error::new(io::ErrorKind::StorageFull, "quota of tank/vm1")), Errno::NoSpc);
        assert_eq!(Errno::of(&io::Error::other("checksum mismatch")), Errno::Io);
    }
}
