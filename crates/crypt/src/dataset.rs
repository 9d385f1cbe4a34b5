//! The trees of MACs of one snapshot, built from the records of a raw stream (`receive_object`, `receive_free`,
//! `receive_freeobjects` in `module/zfs/dmu_recv.c`).

use std::collections::BTreeMap;
use std::sync::Arc;

use snowmelt_stream::{Free, FreeObjects, Object, Write};

use crate::auth::{BlockAuth, OT_DNODE};
use crate::dnode::SLOTS;
use crate::error::TreeError;
use crate::keydata::Metadnode;
use crate::tree::{Keep, MacTree, Shape};

/// One object: its newest OBJECT record, its blocks and its spill block.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub record: Object,
    pub macs: MacTree,
    pub spill: Option<BlockAuth>,
}

/// The known objects of a snapshot, and the tree of its dnode blocks.
///
/// Snapshots of one dataset share the trees of objects that are the same in both.
#[derive(Clone, Debug)]
pub(crate) struct Dataset {
    pub objects: BTreeMap<u64, Arc<Tree>>,
    pub metadnode: MacTree,
}

impl Dataset {
    /// Without objects.
    pub fn new(metadnode: Metadnode) -> Result<Self, TreeError> {
        Ok(Self { objects: BTreeMap::new(), metadnode: MacTree::new(shape_of_metadnode(metadnode))? })
    }

    /// Adds levels to the tree of dnode blocks if the metadnode has more levels now.
    pub fn grow(&mut self, metadnode: Metadnode) -> Result<(), TreeError> {
        self.metadnode.grow(shape_of_metadnode(metadnode))
    }

    /// Handles an OBJECT: a new object, or a new dnode for an existing one.
    pub fn object(&mut self, record: &Object) -> Result<(), TreeError> {
        let shape = shape_of(record);
        let old = self.objects.get_mut(&record.object).filter(|old| is_same(&old.record, record));
        let Some(old) = old else {
            let macs = MacTree::new(shape)?;
            self.objects.insert(record.object, Arc::new(Tree { record: *record, macs, spill: None }));
            return Ok(());
        };
        let tree = Arc::make_mut(old);
        tree.macs.grow(shape)?;
        // A receiver frees these before it takes the dnode. The sender also sends a FREE for them.
        tree.macs.free(record.max_blkid.saturating_add(1)..u64::MAX)?;
        if record.flags & Object::SPILL == 0 {
            tree.spill = None;
        }
        tree.record = *record;
        Ok(())
    }

    /// Handles a WRITE. Returns false if there is no such object.
    pub fn write(&mut self, write: &Write, auth: BlockAuth, keep: Keep) -> Result<bool, TreeError> {
        let Some(tree) = self.objects.get_mut(&write.object) else { return Ok(false) };
        let block_size = u64::from(tree.record.block_size).max(1);
        if write.logical_size != block_size || !write.offset.is_multiple_of(block_size) {
            let (offset, length) = (write.offset, write.logical_size);
            return Err(TreeError::NotABlock { offset, length, block_size });
        }
        let blkid = write.offset / block_size;
        if blkid > tree.record.max_blkid {
            return Err(TreeError::Beyond { blkid });
        }
        Arc::make_mut(tree).macs.insert(blkid, auth, keep)?;
        Ok(true)
    }

    /// Handles a FREE. Returns false if there is no such object.
    pub fn free(&mut self, free: &Free) -> Result<bool, TreeError> {
        let Some(tree) = self.objects.get_mut(&free.object) else { return Ok(false) };
        let block_size = u64::from(tree.record.block_size).max(1);
        let end = match free.length {
            Free::TO_END => u64::MAX,
            length => free.offset.saturating_add(length) / block_size,
        };
        Arc::make_mut(tree).macs.free(free.offset.div_ceil(block_size)..end)?;
        Ok(true)
    }

    /// Handles a SPILL. Returns false if there is no such object.
    pub fn spill(&mut self, object: u64, auth: BlockAuth) -> bool {
        let Some(tree) = self.objects.get_mut(&object) else { return false };
        Arc::make_mut(tree).spill = Some(auth);
        true
    }

    /// Handles a FREEOBJECTS. `open` is the first object of the dnode block being received. Which of its slots are free
    /// is known only at its end. Returns the first object that is freed although its dnode block stays unchanged.
    pub fn free_objects(&mut self, freed: &FreeObjects, open: Option<u64>) -> Result<Option<u64>, TreeError> {
        let end = freed.first.saturating_add(freed.count);
        let first_whole = freed.first.div_ceil(SLOTS);
        let is_open = |object: u64| open.is_some_and(|open| object.wrapping_sub(open) < SLOTS);
        let is_whole = |object: u64| (first_whole..end / SLOTS).contains(&(object / SLOTS));
        let kept = self
            .objects
            .range(freed.first..end)
            .find(|(object, _)| !is_open(**object) && !is_whole(**object));
        if let Some((object, _)) = kept {
            return Ok(Some(*object));
        }
        // Whole blocks without an OBJECT_RANGE are holes now.
        let mut from = first_whole;
        for until in open.map(|open| open / SLOTS).into_iter().chain([end / SLOTS]) {
            let until = until.clamp(from, (end / SLOTS).max(from));
            if !self.metadnode.is_empty() {
                self.metadnode.free(from..until)?;
            }
            let gone: Vec<u64> = self
                .objects
                .range(from.saturating_mul(SLOTS)..until.saturating_mul(SLOTS))
                .map(|(object, _)| *object)
                .collect();
            for object in gone {
                self.objects.remove(&object);
            }
            from = if open.is_some_and(|open| open / SLOTS == until) { until + 1 } else { until };
        }
        Ok(None)
    }
}

fn shape_of(record: &Object) -> Shape {
    Shape {
        object_type: record.object_type,
        nlevels: record.nlevels,
        nblkptr: record.nblkptr,
        indirect_shift: record.indirect_block_shift,
    }
}

fn shape_of_metadnode(metadnode: Metadnode) -> Shape {
    Shape {
        object_type: OT_DNODE,
        nlevels: metadnode.nlevels,
        nblkptr: metadnode.nblkptr,
        indirect_shift: metadnode.indirect_shift,
    }
}

/// Whether a dnode keeps the blocks of the previous one. If a receiver frees all of them, it does not.
fn is_same(old: &Object, new: &Object) -> bool {
    old.block_size == new.block_size
        && old.slots() == new.slots()
        && old.indirect_block_shift == new.indirect_block_shift
        && old.nblkptr <= new.nblkptr
        && old.nlevels <= new.nlevels
}
