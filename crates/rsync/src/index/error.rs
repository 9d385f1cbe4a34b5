//! What can be wrong with an index.

use std::io;
use std::path::PathBuf;

/// Why an index cannot be used, made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file, or the tree, cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It begins with something else.
    #[error("this is no index of a directory")]
    NotAnIndex,
    /// A later format, or something in this one that is not known.
    #[error("an index of version {version} with features {features:#x} is not known here")]
    Unsupported {
        /// Of the format.
        version: u32,
        /// Bits of the header.
        features: u32,
    },
    /// It is not as long as it says.
    #[error("the index is to have {expected} bytes and has {found}")]
    Length {
        /// By its header.
        expected: u64,
        /// There are.
        found: u64,
    },
    /// It is not read, for it would be kept in memory.
    #[error("an index of {found} bytes is not read: it may take {most} bytes, a quarter of the memory")]
    TooLong {
        /// There are.
        found: u64,
        /// May be.
        most: u64,
    },
    /// Its digest is another one.
    #[error("the index is damaged: its digest does not match")]
    Digest,
    /// Its digest is right, and what it says is not.
    #[error("the index is damaged at byte {offset}: {what}")]
    Corrupt {
        /// In the file.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The kernel tells nothing of a tree.
    #[error("{} cannot be watched, which takes root, Linux 5.9 and a filesystem with handles: {source}", path.display())]
    Watch {
        /// Which, or what is mounted in it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something was mounted or unmounted where a tree is watched.
    #[error("other filesystems are mounted at {} than when watching it began", path.display())]
    Mounts {
        /// The tree.
        path: PathBuf,
    },
    /// There is too much to be indexed.
    #[error("too many {what} for an index")]
    TooMany {
        /// Of what.
        what: &'static str,
    },
}

impl IndexError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
