//! Where a pool is.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{At, Result, StoreError};
use crate::label::PoolLabel;

/// Schemes of the addresses of object stores.
const URL_SCHEMES: [&str; 6] = ["s3", "gs", "az", "azure", "abfs", "abfss"];

/// Where a pool is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a directory, one file for each segment.
    Directory(PathBuf),
    /// In a regular file or on a block device.
    File(PathBuf),
    /// Below a prefix of a bucket of an object store; its address, as [`is_url`](crate::is_url) knows them.
    Object(ObjectLocation),
    /// In a directory, a file or on a device, and only read here, whatever it is opened for.
    ReadOnly(Box<Self>),
}

/// Where in an object store a pool is, and how this machine uses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectLocation {
    /// Its address.
    pub url: PathBuf,
    /// Whether it is only read here, and followed while another machine writes to it.
    pub read_only: bool,
    /// The cache it has here; without one, that of the environment, if that says any.
    pub cache: Option<CacheLocation>,
}

/// Where on a local disk is kept what was read from an object store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheLocation {
    /// A directory that is there; pools have one of their own in it.
    pub directory: PathBuf,
    /// How much of it the pool may take, bytes.
    pub max_bytes: u64,
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
        if let Some(url) = path.to_str().filter(|_| is_url(path)) {
            let url = PathBuf::from(url.trim_end_matches('/'));
            return Ok(Self::Object(ObjectLocation { url, read_only: false, cache: None }));
        }
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
            Self::Object(object) => &object.url,
            Self::ReadOnly(location) => location.path(),
        }
    }

    /// Whether the pool is only read here, whatever it would be opened for.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Object(object) => object.read_only,
            Self::ReadOnly(_) => true,
            Self::Directory(_) | Self::File(_) => false,
        }
    }

    /// The same place, only read here or not.
    #[must_use]
    pub fn with_read_only(self, read_only: bool) -> Self {
        match self {
            Self::Object(object) => Self::Object(ObjectLocation { read_only, ..object }),
            Self::ReadOnly(location) => location.with_read_only(read_only),
            location if read_only => Self::ReadOnly(Box::new(location)),
            location => location,
        }
    }
}

/// Whether `place` is the address of an object store rather than a path.
#[must_use]
pub fn is_url(place: impl AsRef<Path>) -> bool {
    let text = place.as_ref().to_str().unwrap_or_default();
    text.split_once("://").is_some_and(|(scheme, _)| URL_SCHEMES.contains(&scheme))
}
