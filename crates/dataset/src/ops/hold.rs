//! `hold` and `release`: user references that keep snapshots from being destroyed.

use crate::catalog::{Snapshot, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;
use crate::random;

/// Maximal length of a tag in bytes (`MAX_TAG_LEN`).
const TAG_MAX: usize = 256;

impl Datasets {
    /// Adds a hold with the tag `tag` to all of the snapshots, or to none.
    ///
    /// # Errors
    /// [`DatasetError::TagExists`]; when a snapshot does not exist.
    pub fn hold(&self, tag: &str, snapshots: &[Name]) -> Result<(), DatasetError> {
        if tag.is_empty() || tag.len() >= TAG_MAX {
            return Err(DatasetError::refused(tag, format!("tag must be 1 to {} bytes", TAG_MAX - 1)));
        }
        let change = self.change()?;
        let now = random::now();
        for name in snapshots {
            let catalog = change.catalog();
            let snapshot = catalog.snapshot(name)?;
            if catalog.holds(snapshot.id)?.iter().any(|(held, _)| held == tag) {
                return Err(DatasetError::TagExists { name: name.to_string() });
            }
        }
        for name in snapshots {
            let snapshot = change.catalog().snapshot(name)?;
            change.put_hold(&snapshot, tag, now)?;
        }
        change.commit()
    }

    /// Removes the hold with the tag `tag` from all of the snapshots, or from none. Snapshots that only this hold kept
    /// after `destroy -d` are destroyed.
    ///
    /// # Errors
    /// [`DatasetError::NoTag`]; when a snapshot does not exist.
    pub fn release(&self, tag: &str, snapshots: &[Name]) -> Result<(), DatasetError> {
        let change = self.freeing_change()?;
        for name in snapshots {
            let catalog = change.catalog();
            let snapshot = catalog.snapshot(name)?;
            if !catalog.holds(snapshot.id)?.iter().any(|(held, _)| held == tag) {
                return Err(DatasetError::NoTag { name: name.to_string() });
            }
        }
        for name in snapshots {
            let snapshot = change.catalog().snapshot(name)?;
            change.delete(&keys::hold(snapshot.id.dataset, snapshot.id.txg, tag))?;
            change.destroy_if_deferred(snapshot.id)?;
        }
        change.commit()
    }
}

impl Change<'_> {
    pub(crate) fn put_hold(&self, snapshot: &Snapshot, tag: &str, when: u64) -> Result<(), DatasetError> {
        self.put(&keys::hold(snapshot.id.dataset, snapshot.id.txg, tag), &when.to_be_bytes())
    }
}
