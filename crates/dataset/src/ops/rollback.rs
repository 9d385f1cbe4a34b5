//! `rollback`: resets the head to a snapshot.

use crate::catalog::{Dataset, Snapshot, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;
use crate::ops::destroy::DestroyPlan;
use crate::ops::free::free_tree;

/// Options of a rollback.
#[derive(Debug, Clone, Copy, Default)]
pub struct RollbackOptions {
    /// Destroy newer snapshots and bookmarks (`-r`).
    pub newer: bool,
    /// Destroy clones of newer snapshots too (`-R`).
    pub clones: bool,
}

impl Datasets {
    /// Rolls a dataset back to one of its snapshots.
    ///
    /// # Errors
    /// [`DatasetError::QuotaExceeded`] when the snapshot refers to more than the dataset's `refquota`;
    /// [`DatasetError::NotNewest`] without [`RollbackOptions::newer`]; as the destruction of the newer snapshots.
    pub fn rollback(&self, name: &Name, options: RollbackOptions) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let snapshot = catalog.snapshot(name)?;
        let dataset = catalog.dataset_by_id(snapshot.id.dataset)?;
        if self.is_receiving(dataset.id) {
            return Err(DatasetError::Busy { name: dataset.name });
        }
        catalog.check_refquota(&dataset, snapshot.record.stats.physical, 0)?;
        let newer = catalog.snapshots_after(&dataset, snapshot.id.txg).collect::<Result<Vec<_>, _>>()?;
        let bookmarks: Vec<_> = catalog
            .bookmarks(&dataset)?
            .into_iter()
            .filter(|bookmark| bookmark.record.createtxg > snapshot.id.txg)
            .collect();
        let any_newer = !newer.is_empty() || !bookmarks.is_empty();
        if any_newer && !options.newer && !options.clones {
            let names = newer.iter().map(Snapshot::full_name);
            let newer = names.chain(bookmarks.iter().map(|bookmark| bookmark.full_name())).collect();
            return Err(DatasetError::NotNewest { name: name.to_string(), newer });
        }
        if !newer.is_empty() {
            self.destroy(&DestroyPlan::snapshots(&catalog, newer, options.clones)?)?;
        }
        // A sync task: open heads have no running transaction meanwhile.
        self.sync_change(|change| {
            for bookmark in &bookmarks {
                change.delete(&keys::bookmark(bookmark.dataset_id, &bookmark.name))?;
            }
            change.rollback_head(&change.catalog().dataset_by_id(dataset.id)?, &snapshot)
        })
    }
}

impl Change<'_> {
    /// Resets the head to `snapshot`, the dataset's newest one.
    pub(crate) fn rollback_head(&self, dataset: &Dataset, snapshot: &Snapshot) -> Result<(), DatasetError> {
        let mut dataset = dataset.clone();
        free_tree(self.pool(), &self.hold, dataset.record.head, snapshot.id.txg)?;
        dataset.record.head = self.pool().create_tree(&self.hold)?.id();
        dataset.record.content = snapshot.record.content;
        self.put_dataset(dataset.id, &dataset.record)?;
        self.reset_head(&dataset, snapshot)?;
        self.datasets.replace_head(dataset.id, self.pool().tree(dataset.record.head)?)
    }

    /// Sets a new head to a snapshot's root.
    pub(crate) fn reset_head(&self, dataset: &Dataset, snapshot: &Snapshot) -> Result<(), DatasetError> {
        let head = self.pool().tree(dataset.record.head)?;
        head.reset(&self.hold, snapshot.record.root.clone(), snapshot.record.stats)?;
        let deadlist = self.pool().create_tree(&self.hold)?.id();
        head.set_sharing(&self.hold, snapshot.id.txg, Some(deadlist))?;
        Ok(())
    }
}
