//! Finds the live blocks in some segments: a walk over everything that is reachable.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use snowmelt_store::SegmentId;

use crate::check::Roots;
use crate::error::{PoolError, Result};
use crate::format::prefix;
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::tree_record::TreeRecord;
use crate::ids::TreeId;
use crate::pool::Pool;
use crate::tree::{Bounds, Link, Node, View};

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    /// Its current place.
    pub(crate) place: (SegmentId, u32),
    /// The place that it was first written to, as in pointers.
    pub(crate) origin: (SegmentId, u32),
    pub(crate) asize: u64,
}

pub(super) struct Marks<'a> {
    pool: &'a Pool,
    segments: &'a BTreeSet<SegmentId>,
    /// Nodes that were visited.
    seen: HashSet<(SegmentId, u32)>,
    found: BTreeMap<(SegmentId, u32), Live>,
}

/// Passes the data pointers of a leaf's entry on.
type Pointers<'p> = dyn FnMut(&[u8], &[u8], &mut dyn FnMut(&BlockPtr)) -> Result<()> + 'p;

impl<'a> Marks<'a> {
    /// All live blocks in `segments` except the meta tree's own nodes, according to `meta`.
    pub(super) fn collect(
        pool: &'a Pool,
        meta: &View,
        roots: &dyn Roots,
        segments: &'a BTreeSet<SegmentId>,
    ) -> Result<Self> {
        let mut marks = Marks { pool, segments, seen: HashSet::new(), found: BTreeMap::new() };
        let mut records = BTreeMap::new();
        for item in meta.range(&[prefix::TREE], Some(&[prefix::TREE + 1])) {
            let (key, entry) = item?;
            let id = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            let id = id.ok_or_else(|| PoolError::record("tree record", "key of a wrong length"))?;
            records.insert(TreeId(id), TreeRecord::decode(&entry.value)?);
        }
        let deadlists: BTreeSet<TreeId> = records.values().filter_map(|record| record.deadlist).collect();
        for (id, record) in &records {
            let root = record.root.as_ref();
            if deadlists.contains(id) || roots.is_deadlist(meta, *id)? {
                // The blocks in a deadlist are reachable from snapshots.
                marks.walk(root, &mut |_, _, _| Ok(()))?;
            } else {
                marks.walk(root, &mut |key, value, each| roots.pointers(Some(*id), key, value, each))?;
            }
        }
        roots.frozen(meta, &mut |_, root| {
            marks.walk(root.as_ref(), &mut |key, value, each| roots.pointers(None, key, value, each))
        })?;
        Ok(marks)
    }

    fn walk(&mut self, root: Option<&StoredPtr>, pointers: &mut Pointers<'_>) -> Result<()> {
        let mut pending: Vec<(StoredPtr, Option<u8>)> =
            root.map(|root| (root.clone(), None)).into_iter().collect();
        while let Some((ptr, level)) = pending.pop() {
            if !self.seen.insert((ptr.segment, ptr.offset)) {
                continue;
            }
            self.mark(&ptr)?;
            let node = self.pool.io().node(&ptr, Bounds::of_level(level), false)?;
            match &*node {
                Node::Inner(inner) => {
                    for child in &inner.entries {
                        if let Link::Disk(below) = &child.link {
                            pending.push((below.clone(), inner.level.checked_sub(1)));
                        }
                    }
                }
                Node::Leaf(leaf) => {
                    for entry in &leaf.entries {
                        let mut marked = Ok(());
                        pointers(entry.key.as_slice(), &entry.value, &mut |ptr| {
                            if let (BlockPtr::Stored(ptr), true) = (ptr, marked.is_ok()) {
                                marked = self.mark(ptr);
                            }
                        })?;
                        marked?;
                    }
                }
            }
        }
        Ok(())
    }

    fn mark(&mut self, ptr: &StoredPtr) -> Result<()> {
        let place = self.pool.io().locate_at(ptr.segment, ptr.offset)?;
        if self.segments.contains(&place.0) {
            let live = Live { place, origin: (ptr.segment, ptr.offset), asize: ptr.asize() };
            self.found.insert(place, live);
        }
        Ok(())
    }

    /// The live blocks in the order of their places.
    pub(super) fn into_iter(self) -> impl Iterator<Item = Live> {
        self.found.into_values()
    }
}
