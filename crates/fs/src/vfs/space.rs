//! How full it is: `zfs_statvfs`.

use std::time::{Duration, Instant};

use snowmelt_dataset::catalog::ROOT;
use snowmelt_dataset::{Catalog, Dataset, DatasetError};

use super::error::VfsError;
use super::{Source, Vfs};

/// How long an answer holds: what it takes to find it out grows with the datasets below a quota.
const HOLDS_FOR: Duration = Duration::from_millis(500);

/// Space as `statfs` tells it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceInfo {
    /// What the dataset refers to.
    pub referenced: u64,
    /// What can still be written to it.
    pub available: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Cached {
    at: Instant,
    space: SpaceInfo,
}

impl Vfs {
    /// How full the dataset is.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn space(&self) -> Result<SpaceInfo, VfsError> {
        let now = Instant::now();
        if let Some(cached) = *self.space.lock()
            && now.duration_since(cached.at) < HOLDS_FOR
        {
            return Ok(cached.space);
        }
        let catalog = self.datasets.catalog();
        let space = match self.source {
            Source::Snapshot(id) => SpaceInfo {
                referenced: catalog.snapshot_space(&catalog.snapshot_by_id(id)?)?.referenced.physical,
                available: 0,
            },
            Source::Head(id) => {
                let dataset = catalog.dataset_by_id(id)?;
                let referenced = catalog.dataset_space(&dataset)?.referenced.physical;
                SpaceInfo { referenced, available: available(&catalog, &dataset, referenced)? }
            }
        };
        *self.space.lock() = Some(Cached { at: now, space });
        Ok(space)
    }
}

/// What is free in the pool, or what the strictest quota leaves.
fn available(catalog: &Catalog, dataset: &Dataset, referenced: u64) -> Result<u64, DatasetError> {
    let quota = |dataset: &Dataset, name: &str| -> Result<Option<u64>, DatasetError> {
        let own = catalog.own_property(dataset.id, 0, name)?;
        Ok(own.and_then(|(text, _)| text.parse().ok()).filter(|quota| *quota > 0))
    };
    let mut available = catalog.pool().space()?.free;
    if let Some(quota) = quota(dataset, "refquota")? {
        available = available.min(quota.saturating_sub(referenced));
    }
    let mut at = dataset.clone();
    loop {
        if let Some(quota) = quota(&at, "quota")? {
            let mut used: u64 = 0;
            for below in catalog.descendants(at.clone())? {
                let space = catalog.dataset_space(&below)?;
                used = used.saturating_add(space.used_by_dataset).saturating_add(space.used_by_snapshots);
            }
            available = available.min(quota.saturating_sub(used));
        }
        if at.id == ROOT {
            return Ok(available);
        }
        at = catalog.dataset_by_id(at.record.parent)?;
    }
}
