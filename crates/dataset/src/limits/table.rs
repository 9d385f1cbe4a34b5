//! Space of datasets in memory, with its sums up the tree of datasets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use snowmelt_pool::{Tree, Txg};

use crate::catalog::{DatasetId, ROOT, Settings};

/// A tree whose growth counts for a dataset.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    pub(super) tree: Arc<Tree>,
    /// Its growth when it was last looked at.
    pub(super) seen: i64,
    /// What is in it is used by the head, as opposed to a receive beside it.
    pub(super) head: bool,
}

/// Space of a dataset, bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    pub(super) parent: Option<DatasetId>,
    pub(super) limits: Settings,
    /// What only this dataset's head and snapshots use, and a receive into it (`dd_used_bytes` but for children and
    /// reservations).
    pub(super) own: u64,
    /// What only the head holds (`ds_unique_bytes`).
    pub(super) unique: u64,
    /// What children count with: what they use or have reserved.
    pub(super) children: u64,
    /// What is stored for children.
    pub(super) stored_below: u64,
    /// Trees being written; empty where no limit is concerned.
    pub(super) growing: Vec<Growing>,
}

impl Node {
    /// What `refreservation` keeps free.
    pub(super) fn kept(&self) -> u64 {
        self.limits.refreservation.saturating_sub(self.unique)
    }

    pub(super) fn used(&self) -> u64 {
        self.own.saturating_add(self.kept()).saturating_add(self.children)
    }

    /// What it counts with in its parent.
    pub(super) fn charge(&self) -> u64 {
        self.used().max(self.limits.reservation)
    }

    pub(super) fn stored(&self) -> u64 {
        self.own.saturating_add(self.stored_below)
    }

    /// What the head refers to, for `refquota`.
    pub(super) fn referenced(&self) -> u64 {
        self.growing.iter().find(|growing| growing.head).map_or(0, |growing| growing.tree.stats().physical)
    }
}

/// The datasets that limits concern, with all above them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(super) nodes: HashMap<DatasetId, Node>,
    /// Limits of the datasets that have any.
    pub(super) settings: BTreeMap<DatasetId, Settings>,
    /// Datasets that may be growing, and the txg they were last written in.
    active: BTreeMap<DatasetId, Txg>,
}

impl Table {
    pub(crate) fn has_limits(&self) -> bool {
        !self.settings.is_empty()
    }

    /// A dataset is being written to.
    pub(super) fn touch(&mut self, id: DatasetId, txg: Txg) {
        self.active.insert(id, txg);
    }

    /// Takes in what has been written. What was written in a txg that is committed can grow no more.
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

    /// Changes a node, and with it what everything above uses.
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

    /// A dataset and those above it.
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

    /// What reservations keep free in the pool beyond what is stored.
    fn reserved(&self) -> u64 {
        self.nodes.get(&ROOT).map_or(0, |root| root.used().saturating_sub(root.stored()))
    }

    /// What reservations keep free for others than `id`.
    pub(super) fn reserved_for_others(&self, id: DatasetId) -> u64 {
        let mut share = self.nodes.get(&id).map_or(0, Node::kept);
        for (at, node) in self.path(id) {
            if at != ROOT {
                share = share.saturating_add(node.limits.reservation.saturating_sub(node.used()));
            }
        }
        self.reserved().saturating_sub(share)
    }

    /// What can be added to a dataset with `free` bytes free in the pool (`dsl_dir_space_available`): what its own
    /// `refreservation` keeps free not counted.
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
