//! What can go wrong with file operations.

use snowmelt_zpl::ZplError;

/// A failure, with the path it happened at. Paths are relative to the dataset's root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The filesystem cannot be read here.
    #[error("{}: {source}", show(path))]
    Zpl {
        /// Where.
        path: Vec<u8>,
        /// What is wrong with it.
        source: ZplError,
    },
    /// There is nothing at the path.
    #[error("{}: no such file or directory", show(path))]
    NotFound {
        /// As far as the path leads, with the name that is missing.
        path: Vec<u8>,
    },
    /// The path goes through something that is no directory; symbolic links are not followed.
    #[error("{}: not a directory", show(path))]
    NotADirectory {
        /// What is none.
        path: Vec<u8>,
    },
    /// A regular file was needed.
    #[error("{}: not a regular file", show(path))]
    NotAFile {
        /// What is none.
        path: Vec<u8>,
    },
    /// A name that no operating system would let be: "", ".", "..", or one with "/" or NUL in it.
    #[error("{}: the directory holds the impossible name {:?}", show(path), show(name))]
    BadName {
        /// The directory.
        path: Vec<u8>,
        /// The name in it.
        name: Vec<u8>,
    },
    /// A directory is found at a second place, perhaps below itself.
    #[error("{}: directory {object} is also at another place", show(path))]
    DirectoryTwice {
        /// The second place.
        path: Vec<u8>,
        /// Object number.
        object: u64,
    },
    /// Output cannot be written.
    #[error(transparent)]
    Output(#[from] std::io::Error),
}

/// A path for people.
pub(crate) fn show(path: &[u8]) -> String {
    snowmelt_dataset::text::visible_name(path)
}

impl FsError {
    pub(crate) fn zpl(path: &[u8]) -> impl FnOnce(ZplError) -> Self {
        let path = path.to_vec();
        move |source| Self::Zpl { path, source }
    }
}
