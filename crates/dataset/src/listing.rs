//! What the directories of an imported source looked like when a dataset held just that: how a later import knows, by one
//! comparison, that nothing in a directory has changed.
//!
//! A digest is kept for each directory object, and one record says of which content they tell: the root of the snapshot's
//! tree, which is the same only if every byte is. Any other change of the dataset, or a rollback, makes another root, and
//! the digests count for nothing until the next import has made them anew. While they are being changed there is no such
//! record; it is written in the txg that makes the import's snapshot visible.

use std::collections::BTreeMap;

use snowmelt_pool::BlockPtr;

use crate::catalog::{DatasetId, Snapshot, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::staging::Staging;

const VERSION: u8 = 1;
/// Under this number, which no object has, lies of what the digests tell.
const OF_WHAT: u64 = 0;
/// Digests written at a time.
const BATCH: usize = 4096;

/// A digest of all that a directory of a source said.
pub type ListingDigest = [u8; 32];

/// Digests of a dataset that is being staged.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// Those in the pool tell of the snapshot that the staging starts from.
    are_valid: bool,
    /// Not written yet; without a digest, to be removed.
    changed: BTreeMap<u64, Option<ListingDigest>>,
    /// They are to tell of what is staged.
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

/// The digest in a record; `None` where it is none that this build knows.
fn decode(bytes: &[u8]) -> Option<ListingDigest> {
    match bytes.split_first() {
        Some((&VERSION, digest)) => digest.try_into().ok(),
        _ => None,
    }
}

/// Whether a record is one of this module's: for the check.
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

    /// What the source's directory looked like that became this object, if the object is in the snapshot that the staging
    /// starts from, and that snapshot holds just what the source said then.
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

    /// Notes what the source's directory looks like that the object holds, or that this cannot be said.
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

    /// From now on, [`Staging::finish`] makes what was noted count for the snapshot that it takes.
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
        // They are neither of the old content nor of the new until all are there.
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

    /// In the txg that makes the snapshot visible.
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
