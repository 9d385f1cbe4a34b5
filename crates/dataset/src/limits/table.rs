//! The table: space of datasets in memory, with its sums up the tree of datasets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use snowmelt_pool::{Tree, Txg};

use crate::catalog::{DatasetId, ROOT, Settings};

/// A tree whose growth counts for a dataset.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    pub(super) tree: Arc<Tree>,
    /// Its growth when the table was last updated.
    pub(super) seen: i64,
    /// Whether it is the head, as opposed to the tree of a receive.
    pub(super) head: bool,
}

/// Space of a dataset, bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub(super) parent: Option<DatasetId>,
    pub(super) limits: Settings,
    /// Space used by this dataset's head and snapshots and by a receive into it (`dd_used_bytes` without children and
    /// reservations).
    pub(super) own: u64,
    /// Space that only the head uses (`ds_unique_bytes`).
    pub(super) unique: u64,
    /// Sum over the children: what each uses or has reserved.
    pub(super) children: u64,
    /// Space stored for children.
    pub(super) stored_below: u64,
    /// Trees that may grow; empty if no limit concerns the dataset.
    pub(super) growing: Vec<Growing>,
}

impl Node {
    /// Space that `refreservation` keeps free.
    pub(super) fn kept(&self) -> u64 {
        self.limits.refreservation.saturating_sub(self.unique)
    }

    pub(super) fn used(&self) -> u64 {
        self.own.saturating_add(self.kept()).saturating_add(self.children)
    }

    /// The space that it counts for in its parent.
    pub(super) fn charge(&self) -> u64 {
        self.used().max(self.limits.reservation)
    }

    pub(super) fn stored(&self) -> u64 {
        self.own.saturating_add(self.stored_below)
    }

    /// The space that the head refers to, for `refquota`.
    pub(super) fn referenced(&self) -> u64 {
        self.growing.iter().find(|growing| growing.head).map_or(0, |growing| growing.tree.stats().physical)
    }
}

/// The datasets that limits concern, with all their parents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(super) nodes: HashMap<DatasetId, Node>,
    /// Limits of the datasets that have any.
    pub(super) settings: BTreeMap<DatasetId, Settings>,
    /// Datasets that may be growing, with the txg in which they were last written.
    active: BTreeMap<DatasetId, Txg>,
}

impl Table {
    pub(crate) fn has_limits(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Notes that a dataset is being written.
    pub(super) fn touch(&mut self, id: DatasetId, txg: Txg) {
        self.active.insert(id, txg);
    }

    /// Adds everything written so far. Trees that were last written in a committed txg do not grow any more.
    pub(super) fn settle(&mut self, committed: Txg) {
        let active: Vec<DatasetId> = self.active.keys().copied().collect();
        for id in active {
            self.settle_one(id);
        }
        self.active.retain(|_, txg| *txg > committed);
    }

    fn settle_one(&mut self, id: DatasetId) {
        self.alter(id, |node| {
            let (mut own, mut unique) = (0i64, 0i64);
            for growing in &mut node.growing {
                let growth = growing.tree.growth();
                let since = growth.saturating_sub(growing.seen);
                growing.seen = growth;
                own = own.saturating_add(since);
                unique = unique.saturating_add(if growing.head { since } else { 0 });
            }
            node.own = node.own.saturating_add_signed(own);
            node.unique = node.unique.saturating_add_signed(unique);
        });
    }

    pub(super) fn snapshot_taken(&mut self, id: DatasetId) {
        self.settle_one(id);
        self.alter(id, |node| node.unique = 0);
    }

    /// Changes a node, and updates the sums of all its parents.
    pub(super) fn alter(&mut self, id: DatasetId, alter: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut before = (node.charge(), node.stored());
        alter(node);
        let mut after = (node.charge(), node.stored());
        let mut above = node.parent;
        while before != after
            && let Some(parent) = above.and_then(|parent| self.nodes.get_mut(&parent))
        {
            let was = (parent.charge(), parent.stored());
            parent.children = parent.children.saturating_sub(before.0).saturating_add(after.0);
            parent.stored_below = parent.stored_below.saturating_sub(before.1).saturating_add(after.1);
            before = was;
            after = (parent.charge(), parent.stored());
            above = parent.parent;
        }
    }

    /// A dataset and its parents.
    pub(super) fn path(&self, id: DatasetId) -> impl Iterator<Item = (DatasetId, &Node)> {
        let mut next = Some(id);
        std::iter::from_fn(move || {
            let at = next?;
            let node = self.nodes.get(&at)?;
            next = node.parent;
            Some((at, node))
        })
    }

    pub(super) fn active(&self) -> impl Iterator<Item = DatasetId> {
        self.active.keys().copied()
    }

    /// Space that reservations keep free in the pool in addition to the stored bytes.
    fn reserved(&self) -> u64 {
        self.nodes.get(&ROOT).map_or(0, |root| root.used().saturating_sub(root.stored()))
    }

    /// Space that reservations keep free for datasets other than `id`.
    pub(super) fn reserved_for_others(&self, id: DatasetId) -> u64 {
        let mut share = self.nodes.get(&id).map_or(0, Node::kept);
        for (at, node) in self.path(id) {
            if at != ROOT {
                share = share.saturating_add(node.limits.reservation.saturating_sub(node.used()));
            }
        }
        self.reserved().saturating_sub(share)
    }

    /// Space that can be added to a dataset when the pool has `free` bytes free (`dsl_dir_space_available`), without
    /// what its own `refreservation` keeps free.
    pub(crate) fn available(&self, id: DatasetId, free: u64) -> u64 {
        let path: Vec<_> = self.path(id).collect();
        let mut space = free.saturating_sub(self.reserved());
        for (at, node) in path.into_iter().rev() {
            if at != ROOT {
                space = space.saturating_add(node.limits.reservation.saturating_sub(node.used()));
            }
            if node.limits.quota != 0 {
                space = space.min(node.limits.quota.saturating_sub(node.used()));
            }
        }
        space
    }
}
