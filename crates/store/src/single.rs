//! Creating, opening and naming a single store of any kind.

use crate::deadman::DeadmanStore;
use crate::directory::DirectoryStore;
use crate::error::{Result, StoreError};
use crate::file::FileStore;
use crate::label::{Label, PoolLabel};
use crate::location::{Access, CreateOptions, Location, ObjectLocation};
use crate::object::ObjectStore;
use crate::store::Store;

pub(crate) fn create_single(location: &Location, options: &CreateOptions) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory(path) => Box::new(DirectoryStore::create(path, options)?),
        Location::File(path) => Box::new(FileStore::create(path, options)?),
        Location::Object(object) => Box::new(ObjectStore::create(object, options)?),
        Location::ReadOnly(location) => return Err(only_read(location)),
    })
}

/// Creates a store as a member of a mirror, with the segment length of the other members.
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

/// Opens a store with a record of its unanswered requests.
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

pub(crate) fn no_member(object: &ObjectLocation) -> StoreError {
    let why = "an object store cannot be a member of a mirror".to_owned();
    StoreError::Invalid { path: object.url.clone(), why }
}

pub(crate) fn only_read(location: &Location) -> StoreError {
    let why = "it was imported with readonly=on".to_owned();
    StoreError::Invalid { path: location.path().to_owned(), why }
}
