//! How full it is: `zfs_statvfs`.

use std::time::{Duration, Instant};

use snowmelt_dataset::catalog::SpaceReader;

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
        let space = self.datasets.read(|catalog| match self.source {
            Source::Snapshot(id) => Ok(SpaceInfo {
                referenced: catalog.snapshot_space(&catalog.snapshot_by_id(id)?)?.referenced.physical,
                available: 0,
            }),
            Source::Head(id) => {
                let dataset = catalog.dataset_by_id(id)?;
                let reader = SpaceReader::new(catalog);
                Ok(SpaceInfo {
                    referenced: catalog.dataset_space(&dataset)?.referenced.physical,
                    available: reader.available(&dataset)?,
                })
            }
        })?;
        *self.space.lock() = Some(Cached { at: now, space });
        Ok(space)
    }
}
