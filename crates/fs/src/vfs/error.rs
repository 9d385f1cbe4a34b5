//! What can go wrong with a mounted filesystem, and the error numbers for it.

use rustix::io::Errno;
use snowmelt_dataset::DatasetError;
use snowmelt_zpl::ZplError;

/// A failure of an operation on a mounted filesystem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfsError {
    /// The filesystem says so.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// The pool says so.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The file is gone: its dataset was rolled back, or its snapshot destroyed.
    #[error("inode {ino:#x} is stale")]
    Stale {
        /// Inode number.
        ino: u64,
    },
    /// The content was replaced again and again while an operation was tried.
    #[error("the content was replaced {tries} times during one operation")]
    Replaced {
        /// How often it was tried.
        tries: usize,
    },
    /// It is mounted for reading only, or is a snapshot.
    #[error("read-only filesystem")]
    ReadOnly,
    /// There is no such name.
    #[error("directory {parent:#x} has no entry {:?}", String::from_utf8_lossy(.name))]
    NotFound {
        /// Inode number of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A directory was needed.
    #[error("inode {ino:#x} is not a directory")]
    NotADirectory {
        /// Inode number.
        ino: u64,
    },
    /// Something else than a directory was needed.
    #[error("inode {ino:#x} is a directory")]
    IsADirectory {
        /// Inode number.
        ino: u64,
    },
    /// A name leads to what no name can lead to.
    #[error("directory {parent:#x}: the entry {:?} leads to object {object}", String::from_utf8_lossy(.name))]
    BadEntry {
        /// Inode number of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// Where it leads.
        object: u64,
    },
    /// Files cannot be linked or moved between a dataset and its snapshots.
    #[error("inodes {a:#x} and {b:#x} are of different filesystems")]
    OtherFilesystem {
        /// One inode number.
        a: u64,
        /// The other.
        b: u64,
    },
    /// Nothing follows: `SEEK_DATA` or `SEEK_HOLE` past the end.
    #[error("inode {ino:#x} has nothing to seek at offset {offset}")]
    PastEnd {
        /// Inode number.
        ino: u64,
        /// Where it was looked for.
        offset: u64,
    },
    /// There is no such extended attribute.
    #[error("inode {ino:#x} has no attribute {:?}", String::from_utf8_lossy(.name))]
    NoAttribute {
        /// Inode number.
        ino: u64,
        /// The attribute's name.
        name: Vec<u8>,
    },
    /// The dataset does not have what was asked for, as POSIX ACLs with `acltype=off`.
    #[error("{what} is not supported here")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// An immutable file cannot be opened for writing, nor an append-only one but for appending.
    #[error("inode {ino:#x} cannot be opened so: it is immutable or append-only")]
    NotPermitted {
        /// Inode number.
        ino: u64,
    },
    /// So many snapshots are looked into at once that there is no number for another.
    #[error("more than {max} snapshots are in use at once")]
    TooManySnapshots {
        /// How many there can be.
        max: usize,
    },
}

impl VfsError {
    /// The error number that Linux has for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Zpl(error) => error.errno(),
            Self::Dataset(_) | Self::BadEntry { .. } | Self::Replaced { .. } => Errno::IO.raw_os_error(),
            Self::Stale { .. } => Errno::STALE.raw_os_error(),
            Self::ReadOnly => Errno::ROFS.raw_os_error(),
            Self::NotFound { .. } => Errno::NOENT.raw_os_error(),
            Self::NotADirectory { .. } => Errno::NOTDIR.raw_os_error(),
            Self::IsADirectory { .. } => Errno::ISDIR.raw_os_error(),
            Self::OtherFilesystem { .. } => Errno::XDEV.raw_os_error(),
            Self::PastEnd { .. } => Errno::NXIO.raw_os_error(),
            Self::NoAttribute { .. } => Errno::NODATA.raw_os_error(),
            Self::Unsupported { .. } => Errno::OPNOTSUPP.raw_os_error(),
            Self::NotPermitted { .. } => Errno::PERM.raw_os_error(),
            Self::TooManySnapshots { .. } => Errno::MFILE.raw_os_error(),
        }
    }
}
