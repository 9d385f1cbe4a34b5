//! Making, opening and naming a pool's store: one store, or a mirror of several.

use std::path::PathBuf;

use crate::deadman::DeadmanStore;
use crate::directory::DirectoryStore;
use crate::error::Result;
use crate::file::FileStore;
use crate::label::{Label, PoolLabel};
use crate::location::{Access, CreateOptions, Location};
use crate::object::{self, ObjectStore};
use crate::single::{create_single, no_member, open_member, set_label_single, whole_label};
use crate::store::Store;
use crate::{mirror, runtime};

/// Where the owner of the pool at `location` listens, for those who find it locked.
#[must_use]
pub fn control_socket(location: &Location) -> Option<PathBuf> {
    if let Location::Object(object) = location {
        return object::control_socket(&object.url);
    }
    let path = std::fs::canonicalize(location.path()).ok()?;
    match whole_label(location) {
        Ok(Label { pool, mirror: Some(_), .. }) => runtime::mirror_socket(pool.guid),
        _ => runtime::control_socket(&path),
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
