//! Where a pool is, and the ways to make, open and name it.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::deadman::DeadmanStore;
use crate::error::At;
use crate::label::{Label, PoolLabel};
use crate::{
    DirectoryStore, FileStore, ObjectStore, Result, Store, StoreError, is_url, mirror, object, runtime,
};

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

    /// Where the owner of a pool at this location listens, for those who find it locked.
    #[must_use]
    pub fn control_socket(&self) -> Option<PathBuf> {
        if let Self::Object(object) = self {
            return object::control_socket(&object.url);
        }
        let path = std::fs::canonicalize(self.path()).ok()?;
        match whole_label(self) {
            Ok(Label { pool, mirror: Some(_), .. }) => runtime::mirror_socket(pool.guid),
            _ => runtime::control_socket(&path),
        }
    }
}

/// Makes a pool at `location` and opens it for writing.
///
/// # Errors
/// `Foreign` when something else is there and `force` is not set; `Locked` when it is a pool in use; `Invalid` for a
/// size or name that cannot be; `Io`, `Full`.
pub fn create(location: &Location, options: &CreateOptions) -> Result<Box<dyn Store>> {
    Ok(Box::new(DeadmanStore::new(create_single(location, options)?)))
}

/// Makes a mirrored pool, with a member at each of `locations`, and opens it for writing. Files that are made get the size
/// that the options say.
///
/// # Errors
/// As [`create`], of any of them; `Invalid` for too few, too many, or one twice.
pub fn create_mirror(locations: &[Location], options: &CreateOptions) -> Result<Box<dyn Store>> {
    if let Some(Location::Object(object)) = locations.iter().find(|at| matches!(at, Location::Object(_))) {
        return Err(no_member(object));
    }
    mirror::create(locations, options)
}

/// As [`create`], with segments of the length that the other members of a mirror have.
pub(crate) fn create_member(
    location: &Location,
    options: &CreateOptions,
    segment_len: u64,
) -> Result<Box<dyn Store>> {
    let store: Box<dyn Store> = match location {
        Location::File(path) => Box::new(FileStore::create_with(path, options, segment_len)?),
        Location::Directory(_) | Location::Object(_) | Location::ReadOnly(_) => {
            create_single(location, options)?
        }
    };
    Ok(Box::new(DeadmanStore::new(store)))
}

pub(crate) fn create_single(location: &Location, options: &CreateOptions) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory(path) => Box::new(DirectoryStore::create(path, options)?),
        Location::File(path) => Box::new(FileStore::create(path, options)?),
        Location::Object(object) => Box::new(ObjectStore::create(object, options)?),
        Location::ReadOnly(location) => return Err(only_read(location)),
    })
}

/// Opens the pool at `location`; if that is a member of a mirror, together with the others.
///
/// # Errors
/// `NotAPool`; `Locked` when another process owns it and `access` is `ReadWrite`; `Io`. Of a mirror `Incomplete`,
/// `SplitBrain`.
pub fn open(location: &Location, access: Access) -> Result<Box<dyn Store>> {
    if let Location::ReadOnly(location) = location {
        return open(location, Access::ReadOnly);
    }
    match whole_label(location) {
        Ok(label) if label.mirror.is_some() => mirror::open(location, &label, access),
        _ => open_member(location, access),
    }
}

/// Opens a store that is known to hang when it does.
pub(crate) fn open_member(location: &Location, access: Access) -> Result<Box<dyn Store>> {
    Ok(Box::new(DeadmanStore::new(open_single(location, access)?)))
}

pub(crate) fn open_single(location: &Location, access: Access) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory(path) => Box::new(DirectoryStore::open(path, access)?),
        Location::File(path) => Box::new(FileStore::open(path, access)?),
        Location::Object(object) => Box::new(ObjectStore::open(object, access)?),
        Location::ReadOnly(location) => open_single(location, Access::ReadOnly)?,
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
        Location::Object(object) => ObjectStore::label(&object.url),
        Location::ReadOnly(location) => label(location),
    }
}

/// Gives the pool at `location`, which nobody may own at this moment, another name.
///
/// # Errors
/// `Invalid` when the guid is not that of the pool; else as [`open`].
pub fn set_label(location: &Location, label: &PoolLabel) -> Result<()> {
    match whole_label(location) {
        Ok(old) if old.mirror.is_some() => mirror::set_label(location, &old, label),
        _ => set_label_single(location, label),
    }
}

/// Where the members of the mirrored pool at `location` are, or were last seen; nothing if it is not mirrored.
#[must_use]
pub fn mirror_paths(location: &Location) -> Vec<PathBuf> {
    let mirror = whole_label(location).ok().and_then(|label| label.mirror);
    mirror.into_iter().flat_map(|mirror| mirror.members).map(|(_, path)| path).collect()
}

fn no_member(object: &ObjectLocation) -> StoreError {
    let why = "an object store cannot be a member of a mirror".to_owned();
    StoreError::Invalid { path: object.url.clone(), why }
}

fn only_read(location: &Location) -> StoreError {
    let why = "it was imported with readonly=on".to_owned();
    StoreError::Invalid { path: location.path().to_owned(), why }
}

pub(crate) fn whole_label(location: &Location) -> Result<Label> {
    match location {
        Location::Directory(path) => DirectoryStore::whole_label(path),
        Location::File(path) => FileStore::whole_label(path),
        Location::Object(object) => Err(no_member(object)),
        Location::ReadOnly(location) => whole_label(location),
    }
}

pub(crate) fn set_label_single(location: &Location, label: &PoolLabel) -> Result<()> {
    match location {
        Location::Directory(path) => DirectoryStore::open(path, Access::ReadWrite)?.set_label(label),
        Location::File(path) => FileStore::open(path, Access::ReadWrite)?.set_label(label),
        Location::Object(object) => ObjectStore::open(object, Access::ReadWrite)?.set_label(label),
        Location::ReadOnly(location) => Err(only_read(location)),
    }
}
