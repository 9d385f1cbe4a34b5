//! [`Location`]: the place of a pool, and how to open or create a pool there.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{At, Result, StoreError};
use crate::label::PoolLabel;

/// Schemes of object store addresses.
const URL_SCHEMES: [&str; 6] = ["s3", "gs", "az", "azure", "abfs", "abfss"];

/// The place of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// A directory, with one file for each segment.
    Directory(PathBuf),
    /// A regular file or a block device.
    File(PathBuf),
    /// A prefix in a bucket of an object store, named by an address: see [`is_url`](crate::is_url).
    Object(ObjectLocation),
    /// A directory, file or device that this process only reads, whatever [`Access`] is asked for.
    ReadOnly(Box<Self>),
}

/// The place of a pool in an object store, and how this machine uses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectLocation {
    /// The address.
    pub url: PathBuf,
    /// Whether this machine only reads the pool. It follows the changes of the owner on another machine.
    pub read_only: bool,
    /// The cache on this machine. Without one, the cache that the environment names is used, if any.
    pub cache: Option<CacheLocation>,
}

/// A directory on a local disk that caches data of an object store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheLocation {
    /// An existing directory. Each pool has a directory of its own in it.
    pub directory: PathBuf,
    /// The maximum size of the pool's cache, in bytes.
    pub max_bytes: u64,
}

/// How a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading: takes no lock, and sees the store as it was when it was opened.
    ReadOnly,
    /// For writing, as the owner: takes the lock.
    ReadWrite,
}

/// Options of [`create`](crate::create).
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The name and guid of the new pool.
    pub label: PoolLabel,
    /// The size in bytes for a new or existing file. Devices and existing files need no size; directories accept
    /// none.
    pub size: Option<u64>,
    /// Whether to overwrite other recognised data or another pool.
    pub force: bool,
}

impl Location {
    /// Determines the kind of place that `path` names: an address, a directory, or a file or block device. If nothing
    /// exists there, a path with the extension of a disk image (`.img`, `.raw`, `.pool`) means a file, and any other
    /// path a directory.
    ///
    /// # Errors
    /// `Io` when the path cannot be examined; `Foreign` when it names something else.
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

    /// The path or address.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::File(path) => path,
            Self::Object(object) => &object.url,
            Self::ReadOnly(location) => location.path(),
        }
    }

    /// Whether the pool is only read, whatever [`Access`] is asked for.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Object(object) => object.read_only,
            Self::ReadOnly(_) => true,
            Self::Directory(_) | Self::File(_) => false,
        }
    }

    /// Returns the same place, marked as read-only or not.
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

/// Whether `place` is the address of an object store, not a path.
#[must_use]
pub fn is_url(place: impl AsRef<Path>) -> bool {
    let text = place.as_ref().to_str().unwrap_or_default();
    text.split_once("://").is_some_and(|(scheme, _)| URL_SCHEMES.contains(&scheme))
}
