//! Space: `used`, `usedby*`, `available`, `written@…`, ratios.

use snowmelt_dataset::catalog::{SnapshotSpace, Totals};
use snowmelt_dataset::{Dataset, DatasetError, Snapshot, SnapshotId};

use super::{Entity, Reader};

impl Reader<'_> {
    /// Space of a dataset with everything below it.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn totals(&self, dataset: &Dataset) -> Result<Totals, DatasetError> {
        self.space.totals(dataset)
    }

    /// Space of a snapshot. After a request for a second one of the same dataset, probably all of them follow.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub(super) fn snapshot_space(&self, snapshot: &Snapshot) -> Result<SnapshotSpace, DatasetError> {
        let SnapshotId { dataset, txg } = snapshot.id;
        let mut known = self.snapshot_spaces.borrow_mut();
        let spaces = known.entry(dataset).or_default();
        if let Some(space) = spaces.get(&txg) {
            return Ok(*space);
        }
        if spaces.is_empty() {
            spaces.insert(txg, self.catalog.snapshot_space(snapshot)?);
        } else {
            spaces.extend(self.catalog.snapshot_spaces(&self.dataset(dataset)?)?);
        }
        spaces.get(&txg).copied().ok_or_else(|| DatasetError::NotFound { name: snapshot.full_name() })
    }

    /// `written@…`: the space written since a snapshot, or since the snapshot of a bookmark.
    pub(super) fn written_since(&self, entity: &Entity, since: &str) -> Result<Option<u64>, DatasetError> {
        let (dataset, until) = match entity {
            Entity::Dataset(dataset) => (dataset.clone(), None),
            Entity::Snapshot(snapshot, _) => (self.dataset(snapshot.id.dataset)?, Some(snapshot)),
            Entity::Bookmark(..) => return Ok(None),
        };
        let full =
            if since.starts_with(['@', '#']) { format!("{}{since}", dataset.name) } else { since.to_owned() };
        let found = match Entity::find(self.catalog, &full) {
            Ok(found) => found,
            Err(DatasetError::NotFound { .. } | DatasetError::NoBookmark { .. } | DatasetError::Name(_)) => {
                return Ok(None);
            }
            Err(other) => return Err(other),
        };
        let snapshot = match found {
            Entity::Snapshot(snapshot, _) => Some(snapshot),
            Entity::Bookmark(bookmark, _) => {
                let copies = self.catalog.snapshots_by_guid(bookmark.record.guid)?;
                copies.into_iter().find(|copy| copy.id.dataset == dataset.id)
            }
            Entity::Dataset(_) => None,
        };
        let Some(snapshot) = snapshot.filter(|snapshot| snapshot.id.dataset == dataset.id) else {
            return Ok(None);
        };
        if until.is_some_and(|until| until.id.txg < snapshot.id.txg) {
            return Ok(None);
        }
        self.catalog.written_since(&dataset, &snapshot, until).map(Some)
    }
}

/// Logical over physical size in hundredths, 100 at the least.
pub fn ratio(logical: u64, physical: u64) -> u64 {
    if physical == 0 || logical <= physical {
        return 100;
    }
    let hundredths = u128::from(logical) * 100 / u128::from(physical);
    u64::try_from(hundredths).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_one_or_more() {
        assert_eq!(ratio(0, 0), 100);
        assert_eq!(ratio(10, 0), 100);
        assert_eq!(ratio(10, 20), 100);
        assert_eq!(ratio(219, 100), 219);
        assert_eq!(ratio(u64::MAX, 1), u64::MAX);
    }
}
