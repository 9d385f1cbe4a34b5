//! Space with everything below a dataset, reservations and quotas: `used`, `usedby*`, `available`.
//!
//! As in ZFS (`module/zfs/dsl_dir.c`, `dsl_dir_space_available` and `parent_delta`) a dataset counts in its parent with what
//! it uses or has reserved, whichever is more.

use snowmelt_dataset::catalog::{DatasetSpace, ROOT};
use snowmelt_dataset::{Dataset, DatasetError};

use super::{Entity, Reader};

/// Space of a dataset, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Of the dataset alone.
    pub own: DatasetSpace,
    /// With everything below, and reservations.
    pub used: u64,
    /// Of `used`, what is below.
    pub children: u64,
    /// Of `used`, what `refreservation` keeps free.
    pub refreservation: u64,
    /// Of `used`, what is really stored.
    pub stored: u64,
    /// Logical size of what is really stored.
    pub logical: u64,
}

impl Reader<'_> {
    /// Space of a dataset with everything below it.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn totals(&self, dataset: &Dataset) -> Result<Totals, DatasetError> {
        if let Some(known) = self.totals.borrow().get(&dataset.id) {
            return Ok(*known);
        }
        // Deepest first, so that the depth of the tree costs no stack.
        let all = self.catalog.descendants(dataset.clone())?;
        for below in all.iter().rev() {
            if self.totals.borrow().contains_key(&below.id) {
                continue;
            }
            let totals = self.totals_given_children(below)?;
            self.totals.borrow_mut().insert(below.id, totals);
        }
        Ok(self.totals.borrow().get(&dataset.id).copied().unwrap_or_default())
    }

    fn totals_given_children(&self, dataset: &Dataset) -> Result<Totals, DatasetError> {
        let own = self.catalog.dataset_space(dataset)?;
        let mut totals = Totals { own, logical: own.logical_used, ..Totals::default() };
        let mut stored_below = 0;
        for child in self.catalog.children(dataset)? {
            let below = self.totals.borrow().get(&child.id).copied().unwrap_or_default();
            let reserved = self.setting(&child, "reservation")?;
            totals.children += below.used.max(reserved);
            totals.logical += below.logical;
            stored_below += below.stored;
        }
        let reserved = self.setting(dataset, "refreservation")?;
        totals.refreservation = reserved.saturating_sub(own.used_by_dataset);
        let stored = own.used_by_dataset + own.used_by_snapshots;
        totals.used = stored + totals.refreservation + totals.children;
        totals.stored = stored + stored_below;
        Ok(totals)
    }

    /// What can still be written to a dataset.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn available(&self, dataset: &Dataset) -> Result<u64, DatasetError> {
        let mut path = vec![dataset.clone()];
        while let Some(last) = path.last().filter(|last| last.id != ROOT) {
            path.push(self.dataset(last.record.parent)?);
        }
        let mut space = u64::MAX;
        for at in path.iter().rev() {
            let totals = self.totals(at)?;
            let mut limit = no_limit_if_zero(self.setting(at, "quota")?);
            if at.id == ROOT {
                let free = self.catalog.pool().space()?.free;
                limit = limit.min(totals.stored.saturating_add(free));
            } else {
                let reserved = self.setting(at, "reservation")?;
                space = space.saturating_add(reserved.saturating_sub(totals.used));
            }
            space = space.min(limit.saturating_sub(totals.used));
        }
        let totals = self.totals(dataset)?;
        let refquota = no_limit_if_zero(self.setting(dataset, "refquota")?);
        let space = space.saturating_add(totals.refreservation);
        Ok(space.min(refquota.saturating_sub(totals.own.referenced.physical)))
    }

    /// A numeric property of a dataset that is set, or 0.
    fn setting(&self, dataset: &Dataset, name: &str) -> Result<u64, DatasetError> {
        let own = self.catalog.own_property(dataset.id, 0, name)?;
        Ok(own.and_then(|(text, _)| text.parse().ok()).unwrap_or(0))
    }

    /// `written@…`: what was written since a snapshot, or the snapshot that a bookmark remembers.
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

fn no_limit_if_zero(quota: u64) -> u64 {
    if quota == 0 { u64::MAX } else { quota }
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
