//! Creating, opening and naming the store of a pool, which is a single store or a mirror.

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

/// The control socket on which the owner of the pool at `location` listens, for callers that find the pool locked.
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

/// Creates a pool at `location` and opens it for writing.
///
/// # Errors
/// `Foreign` when other data is there and `force` is not set; `Locked` when it is a pool in use; `Invalid` for an
/// invalid size or name; `Io`, `Full`.
pub fn create(location: &Location, options: &CreateOptions) -> Result<Box<dyn Store>> {
    Ok(Box::new(DeadmanStore::new(create_single(location, options)?)))
}

/// Creates a mirrored pool, with a member at each of `locations`, and opens it for writing. New files get the size of
/// the options.
///
/// # Errors
/// The same as [`create`] for any of them; `Invalid` for too few or too many members, or for a duplicate.
pub fn create_mirror(locations: &[Location], options: &CreateOptions) -> Result<Box<dyn Store>> {
    if let Some(Location::Object(object)) = locations.iter().find(|at| matches!(at, Location::Object(_))) {
        return Err(no_member(object));
    }
    mirror::create(locations, options)
}

/// Opens the pool at `location`. If that is a member of a mirror, the other members are opened too.
///
/// # Errors
/// `NotAPool`; `Locked` when another process owns it and `access` is `ReadWrite`; `Io`. For a mirror also
/// `Incomplete`, `SplitBrain`.
pub fn open(location: &Location, access: Access) -> Result<Box<dyn Store>> {
    if let Location::ReadOnly(location) = location {
        return open(location, Access::ReadOnly);
    }
    match whole_label(location) {
        Ok(label) if label.mirror.is_some() => mirror::open(location, &label, access),
        _ => open_member(location, access),
    }
}

/// Reads the label of the pool at `location`, without opening the pool or taking a lock.
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

/// Renames the pool at `location`. The pool must have no owner at this moment.
///
/// # Errors
/// `Invalid` when the guid is not that of the pool; also the errors of [`open`].
pub fn set_label(location: &Location, label: &PoolLabel) -> Result<()> {
    match whole_label(location) {
        Ok(old) if old.mirror.is_some() => mirror::set_label(location, &old, label),
        _ => set_label_single(location, label),
    }
}

/// The paths, or last known paths, of the members of the mirrored pool at `location`. Empty if it is not mirrored.
#[must_use]
pub fn mirror_paths(location: &Location) -> Vec<PathBuf> {
    let mirror = whole_label(location).ok().and_then(|label| label.mirror);
    mirror.into_iter().flat_map(|mirror| mirror.members).map(|(_, path)| path).collect()
}
