//! The snapshots that are open below `.zfs/snapshot`.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use snowmelt_dataset::{DatasetError, Snapshot, SnapshotId};

use super::error::VfsError;
use super::view::View;
use super::{Source, Vfs, ino};

/// Number of snapshots that stay open although none of their inodes is in use.
const IDLE_MAX: usize = 32;
/// Number of values for snapshots in inode numbers.
const SLOTS_MAX: usize = u16::MAX as usize;
/// Interval at which it is checked whether a snapshot was destroyed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Open snapshots, by slot.
#[derive(Default)]
pub(super) struct Snapshots {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    slots: HashMap<u16, Arc<OpenSnapshot>>,
    /// By identity and guid, because a snapshot that was destroyed and taken again is another one.
    by_id: HashMap<(SnapshotId, u64), u16>,
    last: u16,
}

/// An open snapshot.
pub(super) struct OpenSnapshot {
    id: SnapshotId,
    guid: u64,
    pub(super) slot: u16,
    pub(super) view: View,
    /// Number of its inodes that are in use.
    inodes: AtomicU64,
    checked: Mutex<Instant>,
    /// Whether it was destroyed. Then its blocks may have been reused.
    destroyed: AtomicBool,
}

impl Snapshots {
    /// Counts another inode of the snapshot that is in use.
    pub(super) fn used(&self, slot: u16) {
        if let Some(snapshot) = self.open.lock().slots.get(&slot) {
            snapshot.inodes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an inode of the snapshot that is no longer in use.
    pub(super) fn unused(&self, slot: u16) {
        let mut open = self.open.lock();
        if let Some(snapshot) = open.slots.get(&slot) {
            snapshot.inodes.fetch_sub(1, Ordering::Relaxed);
        }
        open.shrink(IDLE_MAX);
    }

    pub(super) fn clear(&self) {
        *self.open.lock() = Open::default();
    }
}

impl Open {
    /// Closes unused snapshots until at most this number is open.
    fn shrink(&mut self, idle_max: usize) {
        if self.slots.len() <= idle_max {
            return;
        }
        let by_id = &mut self.by_id;
        let mut excess = self.slots.len() - idle_max;
        self.slots.retain(|_, snapshot| {
            // A thread that has just looked it up holds a reference, and will use one of its inodes.
            let idle = snapshot.inodes.load(Ordering::Relaxed) == 0 && Arc::strong_count(snapshot) == 1;
            let goes = idle && excess > 0;
            if goes {
                excess -= 1;
                by_id.remove(&(snapshot.id, snapshot.guid));
            }
            !goes
        });
    }

    fn free_slot(&mut self) -> Option<u16> {
        // A slot is not reused immediately, so that a remembered inode number becomes invalid instead of meaning
        // another file.
        for _ in 0..SLOTS_MAX {
            self.last = if self.last == u16::MAX { 1 } else { self.last + 1 };
            if !self.slots.contains_key(&self.last) {
                return Some(self.last);
            }
        }
        None
    }
}

impl Vfs {
    /// Opens a snapshot.
    pub(super) fn look_into(&self, snapshot: &Snapshot) -> Result<Arc<OpenSnapshot>, VfsError> {
        if let Some(open) = self.snapshots.open.lock().known(snapshot) {
            return Ok(open);
        }
        let view = View::of_snapshot(&self.datasets, snapshot)?;
        let mut open = self.snapshots.open.lock();
        if let Some(open) = open.known(snapshot) {
            return Ok(open);
        }
        let slot = open.free_slot().ok_or(VfsError::TooManySnapshots { max: SLOTS_MAX })?;
        let looked_into = Arc::new(OpenSnapshot {
            id: snapshot.id,
            guid: snapshot.record.guid,
            slot,
            view,
            inodes: AtomicU64::new(0),
            checked: Mutex::new(Instant::now()),
            destroyed: AtomicBool::new(false),
        });
        open.slots.insert(slot, looked_into.clone());
        open.by_id.insert((snapshot.id, snapshot.record.guid), slot);
        open.shrink(IDLE_MAX);
        Ok(looked_into)
    }

    /// The snapshot that an inode belongs to.
    pub(super) fn snapshot_of(&self, slot: u16, number: u64) -> Result<Arc<OpenSnapshot>, VfsError> {
        let found = self.snapshots.open.lock().slots.get(&slot).cloned();
        let snapshot = found.ok_or(VfsError::Stale { ino: number })?;
        let now = Instant::now();
        let due = {
            let mut checked = snapshot.checked.lock();
            let due = now.duration_since(*checked) >= CHECK_INTERVAL;
            if due {
                *checked = now;
            }
            due
        };
        if due {
            self.check_exists(&snapshot)?;
        }
        if snapshot.destroyed.load(Ordering::Acquire) {
            return Err(VfsError::Stale { ino: number });
        }
        Ok(snapshot)
    }

    /// Checks whether a snapshot was destroyed. If so, it is no longer found by its ID, and its inodes are stale until
    /// they are forgotten. Returns whether the destruction was detected now.
    fn check_exists(&self, snapshot: &OpenSnapshot) -> Result<bool, VfsError> {
        let catalog = self.datasets.catalog();
        let newer = match catalog.dataset_by_id(snapshot.id.dataset) {
            Ok(dataset) => {
                catalog.snapshots_after(&dataset, snapshot.id.txg.saturating_sub(1)).next().transpose()?
            }
            Err(DatasetError::NotFound { .. }) => None,
            Err(other) => return Err(other.into()),
        };
        if newer.is_some_and(|found| (found.id, found.record.guid) == (snapshot.id, snapshot.guid)) {
            return Ok(false);
        }
        self.snapshots.open.lock().by_id.remove(&(snapshot.id, snapshot.guid));
        Ok(!snapshot.destroyed.swap(true, Ordering::AcqRel))
    }

    /// Closes destroyed snapshots. Returns their inodes that were in use, which are stale from now on.
    ///
    /// # Errors
    /// If the pool cannot be read.
    pub fn close_destroyed(&self) -> Result<Vec<u64>, VfsError> {
        let open: Vec<_> = self.snapshots.open.lock().slots.values().cloned().collect();
        let mut gone = HashSet::new();
        for snapshot in open {
            if self.check_exists(&snapshot)? {
                gone.insert(snapshot.slot);
            }
        }
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.inodes.all().into_iter().filter(|ino| gone.contains(&ino::slot(*ino))).collect())
    }

    /// The inode numbers of a snapshot below `.zfs`, if any of them is known to somebody.
    pub fn inodes_of_snapshot(&self, snapshot: &Snapshot) -> Option<RangeInclusive<u64>> {
        let known = self.snapshots.open.lock().known(snapshot)?;
        (known.inodes.load(Ordering::Relaxed) > 0).then(|| ino::all_of(known.slot))
    }

    /// The snapshots of the mounted dataset from a txg on, the oldest first.
    pub(super) fn snapshots_from(&self, txg: u64, count: usize) -> Result<Vec<Snapshot>, VfsError> {
        let Source::Head(id) = self.source else { return Ok(Vec::new()) };
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(id)?;
        let after = txg.saturating_sub(1);
        Ok(catalog.snapshots_after(&dataset, after).take(count).collect::<Result<_, _>>()?)
    }

    /// The snapshot of the mounted dataset with this name.
    pub(super) fn snapshot_named(&self, name: &[u8]) -> Result<Option<Snapshot>, VfsError> {
        let (Source::Head(id), Ok(name)) = (self.source, std::str::from_utf8(name)) else { return Ok(None) };
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(id)?;
        let Ok(full) = snowmelt_dataset::Name::parse(&format!("{}@{name}", dataset.name)) else {
            return Ok(None);
        };
        match catalog.snapshot(&full) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(DatasetError::NotFound { .. }) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }
}

impl Open {
    fn known(&self, snapshot: &Snapshot) -> Option<Arc<OpenSnapshot>> {
        let slot = self.by_id.get(&(snapshot.id, snapshot.record.guid));
        slot.and_then(|slot| self.slots.get(slot)).cloned()
    }
}
