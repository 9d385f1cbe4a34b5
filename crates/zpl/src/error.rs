//! The errors of this crate.

use crate::source::SourceError;

/// Why a filesystem, or one object of it, cannot be read or changed. Most variants contain the object number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZplError {
    /// The layer below failed.
    #[error("object {object}: {source}")]
    Source {
        /// Object that was being read.
        object: u64,
        /// The failure.
        source: SourceError,
    },
    /// The bytes are invalid.
    #[error("object {object}: {what}")]
    Corrupt {
        /// Object that holds the bytes.
        object: u64,
        /// What was expected and what was found.
        what: String,
    },
    /// There is no such object.
    #[error("object {object} does not exist")]
    NoObject {
        /// The object number.
        object: u64,
    },
    /// The object is not a directory.
    #[error("object {object} is not a directory")]
    NotADirectory {
        /// The object number.
        object: u64,
    },
    /// The object is not a symbolic link.
    #[error("object {object} is not a symbolic link")]
    NotASymlink {
        /// The object number.
        object: u64,
    },
    /// The objset is well formed but needs something that this crate does not support.
    #[error("object {object}: {what} is not supported")]
    Unsupported {
        /// Object that needs it.
        object: u64,
        /// The unsupported feature.
        what: String,
    },
    /// The directory has no such name.
    #[error("directory {directory} has no entry {:?}", String::from_utf8_lossy(.name))]
    NotFound {
        /// Object number of the directory.
        directory: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The name already exists, or one that is equal by the rules of the filesystem.
    #[error("directory {directory} has an entry {:?} already", String::from_utf8_lossy(.name))]
    Exists {
        /// Object number of the directory.
        directory: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The object is a directory, which the operation does not accept.
    #[error("object {object} is a directory")]
    IsADirectory {
        /// The object number.
        object: u64,
    },
    /// The operation needs a regular file.
    #[error("object {object} is not a regular file")]
    NotAFile {
        /// The object number.
        object: u64,
    },
    /// The directory cannot be removed or replaced because it has entries.
    #[error("directory {object} is not empty")]
    NotEmpty {
        /// The object number.
        object: u64,
    },
    /// A name, a link's target or an attribute's name is too long.
    #[error("a name of {len} bytes")]
    NameTooLong {
        /// Its length.
        len: usize,
    },
    /// The name is empty, ".", "..", or contains a slash or NUL.
    #[error("{:?} cannot be a name", String::from_utf8_lossy(.name))]
    InvalidName {
        /// The name.
        name: Vec<u8>,
    },
    /// The name is not UTF-8, and the filesystem has `utf8only` set.
    #[error("{:?} is not UTF-8, as names here must be", String::from_utf8_lossy(.name))]
    NotUtf8 {
        /// The name.
        name: Vec<u8>,
    },
    /// A directory cannot be moved into itself.
    #[error("directory {object} lies above directory {directory}")]
    IntoItself {
        /// The directory to be moved.
        object: u64,
        /// The directory into which it should be moved.
        directory: u64,
    },
    /// The directory has another project ID, which its files must inherit.
    #[error("object {object} is of project {project}, directory {directory} of another")]
    OtherProject {
        /// The object that should be moved or linked.
        object: u64,
        /// Its project ID.
        project: u64,
        /// The directory into which it should be moved or linked.
        directory: u64,
    },
    /// The object has the largest possible number of names.
    #[error("object {object} has {links} links")]
    TooManyLinks {
        /// The object number.
        object: u64,
        /// Number of names.
        links: u64,
    },
    /// The offset is beyond the largest one, 2^63 - 1.
    #[error("object {object} cannot reach offset {offset}")]
    TooLarge {
        /// The object number.
        object: u64,
        /// The offset.
        offset: u64,
    },
    /// The arguments are invalid.
    #[error("object {object}: {what}")]
    Invalid {
        /// The object number.
        object: u64,
        /// What is wrong with them.
        what: String,
    },
    /// The extended attribute does not exist.
    #[error("object {object} has no attribute {:?}", String::from_utf8_lossy(.name))]
    NoAttribute {
        /// The object number.
        object: u64,
        /// Name of the attribute.
        name: Vec<u8>,
    },
    /// The extended attribute already exists.
    #[error("object {object} has an attribute {:?} already", String::from_utf8_lossy(.name))]
    AttributeExists {
        /// The object number.
        object: u64,
        /// Name of the attribute.
        name: Vec<u8>,
    },
    /// The value of an extended attribute is larger than Linux allows.
    #[error("object {object}: an attribute of {len} bytes")]
    AttributeTooLarge {
        /// The object number.
        object: u64,
        /// Length of the value in bytes.
        len: usize,
    },
    /// The name of an extended attribute is longer than 255 bytes.
    #[error("object {object}: an attribute whose name has {len} bytes")]
    AttributeName {
        /// The object number.
        object: u64,
        /// Length of the name in bytes.
        len: usize,
    },
    /// The file is immutable or append-only.
    #[error("object {object} is {}", if *.append { "append-only" } else { "immutable" })]
    NotPermitted {
        /// The object number.
        object: u64,
        /// Whether the file is append-only.
        append: bool,
    },
    /// A hard link to a directory, or another link that is never allowed.
    #[error("object {object} cannot be linked to")]
    NoLinks {
        /// The object number.
        object: u64,
    },
    /// The ZAP has too many names with nearly the same hash.
    #[error("ZAP {object} is full")]
    ZapFull {
        /// The object number.
        object: u64,
    },
    /// The attributes of a file do not fit in the bonus buffer and a spill block.
    #[error("object {object}: {len} bytes of system attributes")]
    AttributesFull {
        /// The object number.
        object: u64,
        /// The size that they would have.
        len: usize,
    },
}

impl ZplError {
    pub(crate) fn corrupt(object: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { object, what: what.into() }
    }

    pub(crate) fn source(object: u64) -> impl FnOnce(SourceError) -> Self {
        move |source| Self::Source { object, source }
    }

    /// The corresponding error number of Linux.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Source { source, .. } => match source {
                SourceError::NoSpace => errno::ENOSPC,
                SourceError::QuotaExceeded => errno::EDQUOT,
                SourceError::ReadOnly => errno::EROFS,
                SourceError::Encrypted { .. } => errno::EACCES,
                SourceError::Unreadable { .. } | SourceError::Other(_) => errno::EIO,
            },
            Self::Corrupt { .. } => errno::EIO,
            Self::NoObject { .. } | Self::NotFound { .. } => errno::ENOENT,
            Self::NotADirectory { .. } => errno::ENOTDIR,
            Self::Unsupported { .. } => errno::EOPNOTSUPP,
            Self::Exists { .. } | Self::AttributeExists { .. } => errno::EEXIST,
            Self::IsADirectory { .. } => errno::EISDIR,
            Self::NotEmpty { .. } => errno::ENOTEMPTY,
            Self::NameTooLong { .. } => errno::ENAMETOOLONG,
            Self::NotASymlink { .. }
            | Self::NotAFile { .. }
            | Self::InvalidName { .. }
            | Self::IntoItself { .. }
            | Self::Invalid { .. } => errno::EINVAL,
            Self::NotUtf8 { .. } => errno::EILSEQ,
            Self::OtherProject { .. } => errno::EXDEV,
            Self::TooManyLinks { .. } => errno::EMLINK,
            Self::TooLarge { .. } => errno::EFBIG,
            Self::NoAttribute { .. } => errno::ENODATA,
            Self::AttributeTooLarge { .. } => errno::E2BIG,
            Self::AttributeName { .. } => errno::ERANGE,
            Self::NotPermitted { .. } | Self::NoLinks { .. } => errno::EPERM,
            Self::ZapFull { .. } | Self::AttributesFull { .. } => errno::ENOSPC,
        }
    }

    /// Whether the failure is one unreadable block. A kernel would return `EIO`, and the rest of the filesystem can be
    /// read.
    pub fn is_unreadable_block(&self) -> bool {
        matches!(self, Self::Source { source: SourceError::Unreadable { .. }, .. })
    }

    /// Whether the failure is an encryption key that is not loaded.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Source { source: SourceError::Encrypted { .. }, .. })
    }
}

/// `include/uapi/asm-generic/errno*.h` of Linux.
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EIO: i32 = 5;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const ERANGE: i32 = 34;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EILSEQ: i32 = 84;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const EDQUOT: i32 = 122;
}
