//! The errors of an index.

use std::io;
use std::path::PathBuf;

/// Why an index cannot be used, made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// A file or the tree cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file does not begin like an index.
    #[error("this is no index of a directory")]
    NotAnIndex,
    /// The index has a later format version, or unknown features.
    #[error("an index of version {version} with features {features:#x} is not known here")]
    Unsupported {
        /// The format version.
        version: u32,
        /// The feature bits of the header.
        features: u32,
    },
    /// The length differs from the one in the header.
    #[error("the index is to have {expected} bytes and has {found}")]
    Length {
        /// The length in the header.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// The file is too long to be read, because it would be kept in memory.
    #[error("an index of {found} bytes is not read: it may take {most} bytes, a quarter of the memory")]
    TooLong {
        /// The length of the file, in bytes.
        found: u64,
        /// The greatest length, in bytes.
        most: u64,
    },
    /// The digest does not match.
    #[error("the index is damaged: its digest does not match")]
    Digest,
    /// The digest matches, but the content is invalid.
    #[error("the index is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The offset in the file.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The kernel cannot report changes of a tree.
    #[error("{} cannot be watched, which takes root, Linux 5.9 and a filesystem with handles: {source}", path.display())]
    Watch {
        /// The tree, or a mount in it.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The mounts in a watched tree changed.
    #[error("other filesystems are mounted at {} than when watching it began", path.display())]
    Mounts {
        /// The tree.
        path: PathBuf,
    },
    /// There is too much to index.
    #[error("too many {what} for an index")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
    },
}

impl IndexError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
