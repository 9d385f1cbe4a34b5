//! The used and available space of a mounted filesystem: `zfs_statvfs`.

use std::time::{Duration, Instant};

use snowmelt_dataset::catalog::SpaceReader;

use super::error::VfsError;
use super::{Source, Vfs};

/// How long a result is cached. Computing it takes time proportional to the number of datasets below a quota.
const HOLDS_FOR: Duration = Duration::from_millis(500);

/// Space for `statfs`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceInfo {
    /// Space that the dataset refers to.
    pub referenced: u64,
    /// Space that can still be written.
    pub available: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Cached {
    at: Instant,
    space: SpaceInfo,
}

impl Vfs {
    /// The used and available space of the dataset.
    ///
    /// # Errors
    /// If the pool cannot be read.
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
