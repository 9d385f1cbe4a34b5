//! A layer of changes to an objset that are not in its tree yet. It hides what is below it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::holes::Holes;
use crate::objset::Dnode;

/// Maximal bytes of a block in addition to its data: its frame's header and its entry in the tree.
const BLOCK_OVERHEAD: u64 = 256;

/// Maximal bytes that a block takes in the pool.
pub(super) fn cost(data: &[u8]) -> u64 {
    data.len() as u64 + BLOCK_OVERHEAD
}

/// The state of a block in a layer.
#[derive(Debug, Clone)]
pub(super) enum BlockState {
    /// It holds these bytes.
    Data(Arc<Vec<u8>>),
    /// It is a hole.
    Hole,
    /// Not in this layer; see the layer below.
    Below,
}

/// The changes of one object.
#[derive(Debug, Default)]
pub(super) struct ObjectChange {
    /// Nothing below this layer is valid: the object is new or removed.
    pub(super) cleared: bool,
    /// The dnode, if it changed. `None` in a cleared object means that the object is removed.
    pub(super) dnode: Option<Arc<Dnode>>,
    /// Blocks of the layer below that were removed.
    pub(super) holes: Holes,
    /// Blocks that were written, each of the object's block size.
    pub(super) blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    /// The spill block, if it changed: its bytes, or `None` if it was removed.
    pub(super) spill: Option<Option<Arc<Vec<u8>>>>,
}

impl ObjectChange {
    pub(super) fn block(&self, blkid: u64) -> BlockState {
        match self.blocks.get(&blkid) {
            Some(data) => BlockState::Data(data.clone()),
            None if self.hides(blkid) => BlockState::Hole,
            None => BlockState::Below,
        }
    }

    /// Whether the block in the layer below is hidden.
    pub(super) fn hides(&self, blkid: u64) -> bool {
        self.cleared || self.holes.contains(blkid)
    }

    /// Makes it a removed object, and returns the bytes that are no longer kept.
    pub(super) fn clear(&mut self) -> u64 {
        let bytes = self.bytes();
        *self = Self { cleared: true, ..Self::default() };
        bytes
    }

    fn bytes(&self) -> u64 {
        let spill = self.spill.iter().flatten().map(|data| cost(data)).sum::<u64>();
        spill + self.blocks.values().map(|data| cost(data)).sum::<u64>()
    }
}

/// A layer of changes.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    pub(super) objects: HashMap<u64, ObjectChange>,
    /// Maximal bytes that the kept blocks will take in the pool.
    pub(super) bytes: u64,
}

/// The layers above the tree. Changes go to `active`. Readers still see `below` while it is being written to the tree.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) active: Overlay,
    pub(super) below: Option<Arc<Overlay>>,
}

impl Layers {
    /// The changes of an object, newest layer first.
    pub(super) fn changes(&self, object: u64) -> impl Iterator<Item = &ObjectChange> {
        let below = self.below.as_deref().and_then(|below| below.objects.get(&object));
        self.active.objects.get(&object).into_iter().chain(below)
    }

    /// The state of a block; `Below` means that the tree has it.
    pub(super) fn block(&self, object: u64, blkid: u64) -> BlockState {
        let known = self.changes(object).map(|change| change.block(blkid));
        known.into_iter().find(|state| !matches!(state, BlockState::Below)).unwrap_or(BlockState::Below)
    }

    /// The dnode: `Some(None)` if it does not exist, `None` if the tree has it.
    pub(super) fn dnode(&self, object: u64) -> Option<Option<Arc<Dnode>>> {
        self.changes(object).find_map(|change| match &change.dnode {
            Some(dnode) => Some(Some(dnode.clone())),
            None if change.cleared => Some(None),
            None => None,
        })
    }

    /// The spill block: `Some(None)` if it does not exist, `None` if the tree has it.
    pub(super) fn spill(&self, object: u64) -> Option<Option<Arc<Vec<u8>>>> {
        self.changes(object).find_map(|change| match &change.spill {
            Some(spill) => Some(spill.clone()),
            None if change.cleared => Some(None),
            None => None,
        })
    }

    /// Whether a block of the tree is hidden.
    pub(super) fn hides(&self, object: u64, blkid: u64) -> bool {
        self.changes(object).any(|change| change.hides(blkid))
    }

    /// Numbers of the blocks from `from` on that are in a layer.
    pub(super) fn blocks_from(&self, object: u64, from: u64) -> std::collections::BTreeSet<u64> {
        let mut found = std::collections::BTreeSet::new();
        let newest = self.active.objects.get(&object);
        if let Some(below) = self.below.as_deref().and_then(|below| below.objects.get(&object)) {
            let shown = below.blocks.range(from..).map(|(blkid, _)| *blkid);
            found.extend(shown.filter(|blkid| !newest.is_some_and(|change| change.hides(*blkid))));
        }
        if let Some(change) = newest {
            found.extend(change.blocks.range(from..).map(|(blkid, _)| *blkid));
        }
        found
    }
}
