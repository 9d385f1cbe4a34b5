//! The errors of a mounted filesystem, and their error numbers.

use rustix::io::Errno;
use snowmelt_dataset::DatasetError;
use snowmelt_zpl::ZplError;

/// The error of an operation on a mounted filesystem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfsError {
    /// An error of the filesystem.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// An error of the dataset or pool.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The file no longer exists: its dataset was rolled back, or its snapshot destroyed.
    #[error("inode {ino:#x} is stale")]
    Stale {
        /// Inode number.
        ino: u64,
    },
    /// The content was replaced during every attempt of an operation.
    #[error("the content was replaced {tries} times during one operation")]
    Replaced {
        /// Number of attempts.
        tries: usize,
    },
    /// The mount is read-only, or is a snapshot.
    #[error("read-only filesystem")]
    ReadOnly,
    /// The name does not exist.
    #[error("directory {parent:#x} has no entry {:?}", String::from_utf8_lossy(.name))]
    NotFound {
        /// Inode number of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The inode is not a directory.
    #[error("inode {ino:#x} is not a directory")]
    NotADirectory {
        /// Inode number.
        ino: u64,
    },
    /// The inode is a directory, which the operation does not accept.
    #[error("inode {ino:#x} is a directory")]
    IsADirectory {
        /// Inode number.
        ino: u64,
    },
    /// An entry refers to an object that no entry may refer to.
    #[error("directory {parent:#x}: the entry {:?} leads to object {object}", String::from_utf8_lossy(.name))]
    BadEntry {
        /// Inode number of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// The object.
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
    /// There is nothing at this offset: `SEEK_DATA` or `SEEK_HOLE` past the end.
    #[error("inode {ino:#x} has nothing to seek at offset {offset}")]
    PastEnd {
        /// Inode number.
        ino: u64,
        /// The offset.
        offset: u64,
    },
    /// The extended attribute does not exist.
    #[error("inode {ino:#x} has no attribute {:?}", String::from_utf8_lossy(.name))]
    NoAttribute {
        /// Inode number.
        ino: u64,
        /// The attribute's name.
        name: Vec<u8>,
    },
    /// The dataset does not support a feature, for example POSIX ACLs with `acltype=off`.
    #[error("{what} is not supported here")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// An immutable file cannot be opened for writing. An append-only file can be opened only for appending.
    #[error("inode {ino:#x} cannot be opened so: it is immutable or append-only")]
    NotPermitted {
        /// Inode number.
        ino: u64,
    },
    /// Too many snapshots are open below `.zfs`.
    #[error("more than {max} snapshots are in use at once")]
    TooManySnapshots {
        /// The maximum number.
        max: usize,
    },
}

impl VfsError {
    /// The corresponding error number of Linux.
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
