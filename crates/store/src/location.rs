//! Where a pool is, and the ways to make, open and name it.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::At;
use crate::label::PoolLabel;
use crate::{DirectoryStore, FileStore, Result, Store, StoreError, runtime};

/// Where a pool is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a directory, one file for each segment.
    Directory(PathBuf),
    /// In a regular file or on a block device.
    File(PathBuf),
}

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To look: takes no lock, and sees the store as it was when it was opened.
    ReadOnly,
    /// To own: takes the lock.
    ReadWrite,
}

/// How [`create`] is to make a pool.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The new pool's name and guid.
    pub label: PoolLabel,
    /// Size in bytes of a file that is made for the pool, or that an existing file gets. Devices and existing files
    /// need none; directories take none.
    pub size: Option<u64>,
    /// Whether to overwrite what is recognised as something else, or as another pool.
    pub force: bool,
}

impl Location {
    /// Takes `path` for what it is: a directory, or a file or block device. What does not exist is taken for a file
    /// if its name ends in an extension that disk images have (`.img`, `.raw`, `.pool`), else for a directory.
    ///
    /// # Errors
    /// `Io` when it cannot be looked at; `Foreign` when it is neither.
    pub fn detect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file_type = match std::fs::metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let image = path.extension().is_some_and(|e| e == "img" || e == "raw" || e == "pool");
                return Ok(if image {
                    Self::File(path.to_owned())
                } else {
                    Self::Directory(path.to_owned())
                });
            }
            Err(error) => return Err(error).at("look at", path),
        };
        if file_type.is_dir() {
            Ok(Self::Directory(path.to_owned()))
        } else if file_type.is_file() || file_type.is_block_device() {
            Ok(Self::File(path.to_owned()))
        } else {
            let what = "neither a directory nor a file nor a block device".to_owned();
            Err(StoreError::Invalid { path: path.to_owned(), why: what })
        }
    }

    /// The path, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::File(path) => path,
        }
    }

    /// Where the owner of a pool at this location listens, for those who find it locked.
    #[must_use]
    pub fn control_socket(&self) -> Option<PathBuf> {
        let path = std::fs::canonicalize(self.path()).ok()?;
        runtime::control_socket(&path)
    }
}

/// Makes a pool at `location` and opens it for writing.
///
/// # Errors
/// `Foreign` when something else is there and `force` is not set; `Locked` when it is a pool in use; `Invalid` for a
/// size or name that cannot be; `Io`, `Full`.
pub fn create(location: &Location, options: &CreateOptions) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory(path) => Box::new(DirectoryStore::create(path, options)?),
        Location::File(path) => Box::new(FileStore::create(path, options)?),
    })
}

/// Opens the pool at `location`.
///
/// # Errors
/// `NotAPool`; `Locked` when another process owns it and `access` is `ReadWrite`; `Io`.
pub fn open(location: &Location, access: Access) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory(path) => Box::new(DirectoryStore::open(path, access)?),
        Location::File(path) => Box::new(FileStore::open(path, access)?),
    })
}

/// The label of the pool at `location`, without opening it or taking a lock.
///
/// # Errors
/// `NotAPool`, `Io`.
pub fn label(location: &Location) -> Result<PoolLabel> {
    match location {
        Location::Directory(path) => DirectoryStore::label(path),
        Location::File(path) => FileStore::label(path),
    }
}

/// Gives the pool at `location`, which nobody may own at this moment, another name.
///
/// # Errors
/// `Invalid` when the guid is not that of the pool; else as [`open`].
pub fn set_label(location: &Location, label: &PoolLabel) -> Result<()> {
    match location {
        Location::Directory(path) => DirectoryStore::open(path, Access::ReadWrite)?.set_label(label),
        Location::File(path) => FileStore::open(path, Access::ReadWrite)?.set_label(label),
    }
}
