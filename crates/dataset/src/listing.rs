//! Digests of the directories of an imported source. With them a later import knows, by one comparison, that nothing in
//! a directory has changed.
//!
//! There is a digest for each directory object. One more record says which content the digests describe: the root of
//! the snapshot's tree, which is the same only if every byte is the same. Any other change of the dataset, or a
//! rollback, makes another root. The digests are then not used until the next import writes them again. While they are
//! being changed, that record does not exist. It is written in the txg that makes the import's snapshot visible.

use std::collections::BTreeMap;

use snowmelt_pool::BlockPtr;

use crate::catalog::{DatasetId, Snapshot, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::staging::Staging;

const VERSION: u8 = 1;
/// The number of the record that says which content the digests describe. No object has this number.
const OF_WHAT: u64 = 0;
/// Number of digests that are written at once.
const BATCH: usize = 4096;

/// A digest of everything that the source returned for a directory.
pub type ListingDigest = [u8; 32];

/// The digests of a dataset with a staging writer.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// Whether the digests in the pool describe the base snapshot.
    are_valid: bool,
    /// Digests that were not written yet; `None` means to be removed.
    changed: BTreeMap<u64, Option<ListingDigest>>,
    /// Whether the digests will describe the staged content.
    kept: bool,
}

fn root_record(snapshot: &Snapshot) -> Option<Vec<u8>> {
    let root = snapshot.record.root.clone()?;
    let mut out = vec![VERSION];
    BlockPtr::Stored(root).encode(&mut out);
    Some(out)
}

fn encode(digest: &ListingDigest) -> Vec<u8> {
    [&[VERSION][..], digest].concat()
}

/// Decodes a digest; `None` if it is of a version that this build does not know.
fn decode(bytes: &[u8]) -> Option<ListingDigest> {
    match bytes.split_first() {
        Some((&VERSION, digest)) => digest.try_into().ok(),
        _ => None,
    }
}

/// Whether a record belongs to this module; for the check.
pub(crate) fn is_record(key: &[u8], value: &[u8]) -> bool {
    match keys::number(key, 9) {
        Ok(OF_WHAT) => value.first() == Some(&VERSION) && value.len() > 1,
        Ok(_) => decode(value).is_some(),
        Err(_) => false,
    }
}

impl Datasets {
    pub(crate) fn listings_of(
        &self,
        id: DatasetId,
        base: Option<&Snapshot>,
    ) -> Result<Listings, DatasetError> {
        let stored = self.pool().meta().get(&keys::listing(id, OF_WHAT))?;
        let expected = base.and_then(root_record);
        let are_valid = expected.is_some() && stored.map(|entry| entry.value.to_vec()) == expected;
        Ok(Listings { are_valid, ..Listings::default() })
    }
}

impl Staging<'_> {
    fn stored_listing(&self, directory: u64) -> Result<Option<ListingDigest>, DatasetError> {
        let entry = self.datasets().pool().meta().get(&keys::listing(self.id(), directory))?;
        Ok(entry.and_then(|entry| decode(&entry.value)))
    }

    /// The digest of the source's directory that became this object. `None` unless the object is in the base snapshot
    /// and that snapshot was exactly the source at that time.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn listing(&self, directory: u64) -> Result<Option<ListingDigest>, DatasetError> {
        let are_valid = self.listings().lock().are_valid;
        if !are_valid || directory == OF_WHAT {
            return Ok(None);
        }
        self.stored_listing(directory)
    }

    /// Notes the digest of the directory in the source that the object holds, or that there is none.
    ///
    /// # Errors
    /// When the pool cannot be read or written.
    pub fn note_listing(&self, directory: u64, digest: Option<ListingDigest>) -> Result<(), DatasetError> {
        if directory == OF_WHAT {
            return Ok(());
        }
        let mut listings = self.listings().lock();
        if !listings.changed.contains_key(&directory) && self.stored_listing(directory)? == digest {
            return Ok(());
        }
        listings.changed.insert(directory, digest);
        if listings.changed.len() < BATCH {
            return Ok(());
        }
        drop(listings);
        self.write_listings()
    }

    /// Makes [`Staging::finish`] validate the noted digests for the snapshot that it takes.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn keep_listings(&self) -> Result<(), DatasetError> {
        self.write_listings()?;
        self.listings().lock().kept = true;
        Ok(())
    }

    fn write_listings(&self) -> Result<(), DatasetError> {
        let changed = std::mem::take(&mut self.listings().lock().changed);
        if changed.is_empty() {
            return Ok(());
        }
        let change = self.datasets().change()?;
        // Until all are written, the digests describe neither the old content nor the new.
        change.delete(&keys::listing(self.id(), OF_WHAT))?;
        for (directory, digest) in changed {
            let key = keys::listing(self.id(), directory);
            match digest {
                Some(digest) => change.put(&key, &encode(&digest))?,
                None => change.delete(&key)?,
            }
        }
        Ok(())
    }

    /// Must be called in the txg that makes the snapshot visible.
    pub(crate) fn listings_tell_of(
        &self,
        change: &Change<'_>,
        snapshot: &Snapshot,
    ) -> Result<(), DatasetError> {
        let key = keys::listing(self.id(), OF_WHAT);
        match root_record(snapshot).filter(|_| self.listings().lock().kept) {
            Some(record) if change.get(&key)?.as_deref() == Some(record.as_slice()) => Ok(()),
            Some(record) => change.put(&key, &record),
            None => Ok(()),
        }
    }
}
