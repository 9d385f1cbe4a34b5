//! Space accounting with ZFS's definitions (zfsprops(7)). Everything is computed from the size of each root and from
//! the deadlists.
//!
//! A block that a snapshot uses and the head does not is in exactly one deadlist: that of the first later snapshot (or
//! head) that no longer uses it.

use std::collections::HashSet;

use snowmelt_pool::{Deadlist, TreeId, TreeStats, Txg};

use super::{Catalog, Dataset, Snapshot};
use crate::error::DatasetError;

/// Space of a filesystem or volume, without its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatasetSpace {
    /// Everything that the head refers to.
    pub referenced: TreeStats,
    /// The part of it that would be freed with the head.
    pub used_by_dataset: u64,
    /// Space that only snapshots use.
    pub used_by_snapshots: u64,
    /// Referenced space written since the newest snapshot: what only the head uses.
    pub written: u64,
    /// The logical sizes of `used_by_dataset` and `used_by_snapshots` together.
    pub logical_used: u64,
}

/// Space of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotSpace {
    /// Everything that its root refers to.
    pub referenced: TreeStats,
    /// Space that only this snapshot uses.
    pub used: u64,
    /// Referenced space written since the previous snapshot.
    pub written: u64,
}

/// A point in a dataset's history: a snapshot, or the head.
struct Point {
    stats: TreeStats,
    deadlist: Option<TreeId>,
}

impl Catalog {
    /// Space of a dataset.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn dataset_space(&self, dataset: &Dataset) -> Result<DatasetSpace, DatasetError> {
        let head = self.head_point(dataset)?;
        let (origin_txg, origin_stats) = self.origin_point(dataset)?;
        let (mut held, mut dead_of_origin) = (TreeStats::default(), TreeStats::default());
        let mut newest = origin_stats;
        let mut points = Vec::new();
        for snapshot in self.snapshots(dataset) {
            let record = snapshot?.record;
            newest = record.stats;
            points.push(record.deadlist);
        }
        points.push(head.deadlist);
        for deadlist in points {
            let young = self.dead(deadlist, origin_txg)?;
            let all = self.dead(deadlist, 0)?;
            held = add(held, young);
            dead_of_origin = add(dead_of_origin, sub(all, young));
        }
        let own = sub(head.stats, sub(origin_stats, dead_of_origin));
        let since = sub(head.stats, sub(newest, self.dead(head.deadlist, 0)?));
        Ok(DatasetSpace {
            referenced: head.stats,
            used_by_dataset: own.physical,
            used_by_snapshots: held.physical,
            written: since.physical,
            logical_used: own.logical.saturating_add(held.logical),
        })
    }

    /// Space of a snapshot.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn snapshot_space(&self, snapshot: &Snapshot) -> Result<SnapshotSpace, DatasetError> {
        let dataset = self.dataset_by_id(snapshot.id.dataset)?;
        let previous = self.snapshot_before(&dataset, snapshot.id.txg)?;
        let (previous_txg, previous_stats) = match &previous {
            Some(previous) => (previous.id.txg, previous.record.stats),
            None => self.origin_point(&dataset)?,
        };
        let next = self.snapshots_after(&dataset, snapshot.id.txg).next().transpose()?;
        let next_deadlist = match next {
            Some(next) => next.record.deadlist,
            None => self.head_point(&dataset)?.deadlist,
        };
        self.space_between(snapshot, (previous_txg, previous_stats), next_deadlist)
    }

    /// Space of every snapshot of a dataset, oldest first, by txg. The result is that of [`Self::snapshot_space`] for
    /// each, with far fewer reads.
    ///
    /// # Errors
    /// When the pool cannot be read, or two snapshots have the same deadlist: adding it up again for each of them
    /// would take long.
    pub fn snapshot_spaces(&self, dataset: &Dataset) -> Result<Vec<(Txg, SnapshotSpace)>, DatasetError> {
        let mut previous = self.origin_point(dataset)?;
        let mut spaces = Vec::new();
        let mut snapshots = self.snapshots(dataset).peekable();
        let mut deadlists = HashSet::new();
        while let Some(snapshot) = snapshots.next().transpose()? {
            if let Some(deadlist) = snapshot.record.deadlist
                && !deadlists.insert(deadlist)
            {
                let what = format!("snapshot '{}'", snapshot.full_name());
                return Err(DatasetError::corrupt(
                    what,
                    format!("tree {} is the deadlist of two", deadlist.0),
                ));
            }
            let next_deadlist = match snapshots.peek() {
                Some(Ok(next)) => next.record.deadlist,
                // The error is returned by the next iteration.
                Some(Err(_)) => None,
                None => self.head_point(dataset)?.deadlist,
            };
            spaces.push((snapshot.id.txg, self.space_between(&snapshot, previous, next_deadlist)?));
            previous = (snapshot.id.txg, snapshot.record.stats);
        }
        Ok(spaces)
    }

    /// Space of a snapshot, from the point before it and the deadlist of the point after it.
    fn space_between(
        &self,
        snapshot: &Snapshot,
        (previous_txg, previous): (Txg, TreeStats),
        next_deadlist: Option<TreeId>,
    ) -> Result<SnapshotSpace, DatasetError> {
        let dead = self.dead(snapshot.record.deadlist, 0)?;
        Ok(SnapshotSpace {
            referenced: snapshot.record.stats,
            used: self.dead(next_deadlist, previous_txg)?.physical,
            written: sub(snapshot.record.stats, sub(previous, dead)).physical,
        })
    }

    /// Space of `dataset` (or of its snapshot `until`) written since its snapshot `since`: the property
    /// `written@snapshot`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn written_since(
        &self,
        dataset: &Dataset,
        since: &Snapshot,
        until: Option<&Snapshot>,
    ) -> Result<u64, DatasetError> {
        let end = match until {
            Some(snapshot) => snapshot.record.stats,
            None => self.head_point(dataset)?.stats,
        };
        let mut dead = TreeStats::default();
        let until_txg = until.map_or(Txg::MAX, |snapshot| snapshot.id.txg);
        for later in self.snapshots_after(dataset, since.id.txg) {
            let later = later?;
            if later.id.txg <= until_txg {
                dead = add(dead, self.dead_until(later.record.deadlist, since.id.txg)?);
            }
        }
        if until.is_none() {
            dead = add(dead, self.dead_until(self.head_point(dataset)?.deadlist, since.id.txg)?);
        }
        Ok(sub(end, sub(since.record.stats, dead)).physical)
    }

    /// Space of a receive into a dataset, or of a staging writer, in addition to the dataset's head.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn receiving_space(&self, dataset: &Dataset) -> Result<TreeStats, DatasetError> {
        let Some(state) = self.receive_state(dataset.id)?.filter(|state| state.tree != dataset.record.head)
        else {
            return Ok(TreeStats::default());
        };
        let tree = self.pool().tree(state.tree)?;
        let base = match state.base {
            Some(base) => self.snapshot_by_id(base)?.record.stats,
            None => TreeStats::default(),
        };
        Ok(sub(tree.stats(), sub(base, self.dead(tree.sharing().1, 0)?)))
    }

    /// Space of a dataset's history up to the snapshot `last`. It would move to a clone that is promoted.
    pub(crate) fn space_until(&self, dataset: &Dataset, last: &Snapshot) -> Result<u64, DatasetError> {
        let (_, origin_stats) = self.origin_point(dataset)?;
        let mut dead = TreeStats::default();
        for snapshot in self.snapshots(dataset) {
            let snapshot = snapshot?;
            if snapshot.id.txg > last.id.txg {
                break;
            }
            dead = add(dead, self.dead(snapshot.record.deadlist, 0)?);
        }
        Ok(sub(add(last.record.stats, dead), origin_stats).physical)
    }

    fn head_point(&self, dataset: &Dataset) -> Result<Point, DatasetError> {
        let tree = self.pool().tree(dataset.record.head)?;
        Ok(Point { stats: tree.stats(), deadlist: tree.sharing().1 })
    }

    fn origin_point(&self, dataset: &Dataset) -> Result<(Txg, TreeStats), DatasetError> {
        match dataset.record.origin {
            None => Ok((0, TreeStats::default())),
            Some(origin) => Ok((origin.txg, self.snapshot_by_id(origin)?.record.stats)),
        }
    }

    /// Sum of a deadlist's blocks born after `txg`.
    fn dead(&self, deadlist: Option<TreeId>, txg: Txg) -> Result<TreeStats, DatasetError> {
        match deadlist {
            None => Ok(TreeStats::default()),
            Some(id) => {
                let sum = Deadlist::open(self.pool(), id)?.sum(txg)?;
                Ok(TreeStats { physical: sum.physical, logical: sum.logical })
            }
        }
    }

    /// Sum of a deadlist's blocks born up to `txg`.
    fn dead_until(&self, deadlist: Option<TreeId>, txg: Txg) -> Result<TreeStats, DatasetError> {
        Ok(sub(self.dead(deadlist, 0)?, self.dead(deadlist, txg)?))
    }
}

fn add(a: TreeStats, b: TreeStats) -> TreeStats {
    TreeStats {
        physical: a.physical.saturating_add(b.physical),
        logical: a.logical.saturating_add(b.logical),
    }
}

fn sub(a: TreeStats, b: TreeStats) -> TreeStats {
    TreeStats {
        physical: a.physical.saturating_sub(b.physical),
        logical: a.logical.saturating_sub(b.logical),
    }
}
