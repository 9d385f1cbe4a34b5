//! What can be wrong with a filesystem.

use crate::source::SourceError;

/// Everything that keeps a filesystem, or one object of it, from being read. Each names the object.
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
    /// The bytes are not what they must be.
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
    /// A directory was needed.
    #[error("object {object} is not a directory")]
    NotADirectory {
        /// The object number.
        object: u64,
    },
    /// A symbolic link was needed.
    #[error("object {object} is not a symbolic link")]
    NotASymlink {
        /// The object number.
        object: u64,
    },
    /// The objset is well formed but needs something this crate does not have.
    #[error("object {object}: {what} is not supported")]
    Unsupported {
        /// Object that asks for it.
        object: u64,
        /// What is asked for.
        what: String,
    },
}

impl ZplError {
    pub(crate) fn corrupt(object: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { object, what: what.into() }
    }

    pub(crate) fn source(object: u64) -> impl FnOnce(SourceError) -> Self {
        move |source| Self::Source { object, source }
    }

    /// The failure is one unreadable block: what a kernel tells as `EIO`, the rest being fine.
    pub fn is_unreadable_block(&self) -> bool {
        matches!(self, Self::Source { source: SourceError::Unreadable { .. }, .. })
    }

    /// The failure is a key that is not loaded.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Source { source: SourceError::Encrypted { .. }, .. })
    }
}
