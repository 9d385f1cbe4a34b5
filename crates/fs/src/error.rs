//! The errors of file operations.

use snowmelt_zpl::ZplError;

/// A failure and the path where it happened. Paths are relative to the dataset's root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The filesystem cannot be read at this path.
    #[error("{}: {source}", show(path))]
    Zpl {
        /// The path.
        path: Vec<u8>,
        /// The error.
        source: ZplError,
    },
    /// The path does not exist.
    #[error("{}: no such file or directory", show(path))]
    NotFound {
        /// The path up to and including the missing name.
        path: Vec<u8>,
    },
    /// A part of the path is not a directory. Symbolic links are not followed.
    #[error("{}: not a directory", show(path))]
    NotADirectory {
        /// The path that is not a directory.
        path: Vec<u8>,
    },
    /// The path is not a regular file.
    #[error("{}: not a regular file", show(path))]
    NotAFile {
        /// The path that is not a file.
        path: Vec<u8>,
    },
    /// A name that no operating system allows: "", ".", "..", or one with "/" or NUL in it.
    #[error("{}: the directory holds the impossible name {:?}", show(path), show(name))]
    BadName {
        /// The directory.
        path: Vec<u8>,
        /// The name in it.
        name: Vec<u8>,
    },
    /// A directory has a second path, perhaps below itself.
    #[error("{}: directory {object} is also at another place", show(path))]
    DirectoryTwice {
        /// The second path.
        path: Vec<u8>,
        /// Object number.
        object: u64,
    },
    /// Output cannot be written.
    #[error(transparent)]
    Output(#[from] std::io::Error),
}

/// Formats a path for messages.
pub(crate) fn show(path: &[u8]) -> String {
    snowmelt_dataset::text::visible_name(path)
}

impl FsError {
    pub(crate) fn zpl(path: &[u8]) -> impl FnOnce(ZplError) -> Self {
        let path = path.to_vec();
        move |source| Self::Zpl { path, source }
    }
}
