//! Deadlists: blocks that a dataset no longer uses but a snapshot still does, ordered by birth txg.
//!
//! Like `dsl_deadlist.c` of OpenZFS, but with a tree instead of a list of lists. Destroying a snapshot takes the
//! entries born after the previous snapshot; the cost is proportional to their number. Sums by birth txg are stored
//! beside the entries, so that `used` of a snapshot is a sum over the txgs between two snapshots, not over blocks.
//! Blocks embedded in their pointers take no space and have no entry, but their logical size is in the sums. Bytes:
//! `docs/format/pool.md`, "Deadlists".

use snowmelt_store::SegmentId;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;
use crate::format::compression::{BLOCK_MAX, STORED_MAX};
use crate::format::ptr::StoredPtr;
use crate::format::segment;
use crate::ids::{TXG_MAX, TreeId, Txg};
use crate::pool::Pool;
use crate::tree::{Tree, View};
use crate::txg::Hold;

const SUM: u8 = 0;
const BLOCK: u8 = 1;
const END: u8 = 2;
const VERSION: u8 = 1;

/// A block in a deadlist, with all that is needed to free it and to account for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Txg in which it was written.
    pub birth: Txg,
    /// Its segment.
    pub segment: SegmentId,
    /// Offset of its frame.
    pub offset: u32,
    /// Bytes that it takes in the segment.
    pub asize: u64,
    /// Stored length, bytes.
    pub psize: u32,
    /// Logical length, bytes.
    pub lsize: u32,
}

impl From<&StoredPtr> for Dead {
    fn from(ptr: &StoredPtr) -> Self {
        Dead {
            birth: ptr.birth,
            segment: ptr.segment,
            offset: ptr.offset,
            asize: ptr.asize(),
            psize: ptr.psize,
            lsize: ptr.lsize,
        }
    }
}

impl Dead {
    /// The entry's key.
    pub fn encode_key(&self) -> Vec<u8> {
        let mut out = block_key(self.birth);
        out.extend_from_slice(&self.segment.0.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out
    }

    /// The entry's value.
    pub fn encode_value(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.asize.to_le_bytes());
        out.extend_from_slice(&self.psize.to_le_bytes());
        out.extend_from_slice(&self.lsize.to_le_bytes());
        out
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// `Record` when key or value are not those of a deadlist.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("deadlist key", key);
        if fields.u8()? != BLOCK {
            return fields.fail("not of a block");
        }
        let birth = u64::from_be_bytes(fields.array()?);
        let segment = SegmentId(u64::from_be_bytes(fields.array()?));
        let offset = u32::from_be_bytes(fields.array()?);
        fields.end()?;
        let mut fields = Fields::new("deadlist entry", value);
        let version = fields.u8()?;
        if version != VERSION {
            return fields.fail(format!("unknown version {version}"));
        }
        let dead =
            Dead { birth, segment, offset, asize: fields.u64()?, psize: fields.u32()?, lsize: fields.u32()? };
        let Dead { asize, psize, lsize, .. } = dead;
        // The same limits as for the pointer that the entry was made from.
        if psize == 0 || psize > STORED_MAX || lsize == 0 || lsize > BLOCK_MAX {
            return fields.fail(format!("sizes out of range: psize {psize}, lsize {lsize}"));
        }
        if asize != segment::frame_len(psize) {
            return fields.fail(format!("{asize} bytes in its segment do not fit psize {psize}"));
        }
        if !offset.is_multiple_of(8) || birth == 0 || birth > TXG_MAX {
            return fields.fail(format!("offset {offset} or birth {birth} is illegal"));
        }
        fields.end()?;
        Ok(dead)
    }
}

fn block_key(birth: Txg) -> Vec<u8> {
    let mut out = vec![BLOCK];
    out.extend_from_slice(&birth.to_be_bytes());
    out
}

fn sum_key(birth: Txg) -> [u8; 9] {
    let mut out = [SUM; 9];
    out[1..].copy_from_slice(&birth.to_be_bytes());
    out
}

/// The space of a set of dead blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadSpace {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes in segments.
    pub physical: u64,
    /// Logical bytes, including those of embedded blocks.
    pub logical: u64,
}

impl DeadSpace {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for word in [self.blocks, self.physical, self.logical] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn decode(value: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("deadlist sum", value);
        let version = fields.u8()?;
        if version != VERSION {
            return fields.fail(format!("unknown version {version}"));
        }
        let sum = DeadSpace { blocks: fields.u64()?, physical: fields.u64()?, logical: fields.u64()? };
        fields.end()?;
        Ok(sum)
    }

    fn add(&mut self, other: &DeadSpace) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.physical = self.physical.saturating_add(other.physical);
        self.logical = self.logical.saturating_add(other.logical);
    }

    pub(crate) fn add_dead(&mut self, dead: &Dead) {
        let (physical, logical) = (dead.asize, u64::from(dead.lsize));
        self.add(&DeadSpace { blocks: 1, physical, logical });
    }
}

/// A deadlist. It is a tree of its own.
#[derive(Clone, Debug)]
pub struct Deadlist {
    tree: Arc<Tree>,
}

impl Deadlist {
    /// Creates an empty deadlist.
    ///
    /// # Errors
    /// As [`Pool::create_tree`].
    pub fn create(hold: &Hold<'_>) -> Result<Self> {
        Ok(Deadlist { tree: hold.pool().create_tree(hold)? })
    }

    /// Opens the deadlist in tree `id`.
    ///
    /// # Errors
    /// `NoTree`; `Record` when it is the meta tree, or has a deadlist of its own: nodes that the deadlist releases
    /// would go to that deadlist, without end.
    pub fn open(pool: &Pool, id: TreeId) -> Result<Self> {
        let tree = pool.tree(id)?;
        if id == TreeId::META || tree.sharing().1.is_some() {
            let what = format!("tree {} is named as a deadlist, and is none", id.0);
            return Err(PoolError::record("tree record", what));
        }
        Ok(Deadlist { tree })
    }

    /// The tree's id.
    pub fn id(&self) -> TreeId {
        self.tree.id()
    }

    /// Records a block.
    ///
    /// # Errors
    /// `Accounting` when it is already recorded; as [`Tree::insert`], but a deadlist may always use the reserve.
    pub fn add(&self, hold: &Hold<'_>, dead: &Dead) -> Result<()> {
        let hold = &hold.for_frees();
        let old = self.tree.insert(hold, &dead.encode_key(), &dead.encode_value())?;
        if old.is_some() {
            return Err(PoolError::Accounting { segment: dead.segment, asize: dead.asize, live: 0 });
        }
        let mut space = DeadSpace::default();
        space.add_dead(dead);
        self.add_sum(hold, dead.birth, &space)
    }

    /// Records a block of `lsize` logical bytes that was embedded in its pointer.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_embedded(&self, hold: &Hold<'_>, birth: Txg, lsize: u64) -> Result<()> {
        let space = DeadSpace { logical: lsize, ..DeadSpace::default() };
        self.add_sum(&hold.for_frees(), birth, &space)
    }

    fn add_sum(&self, hold: &Hold<'_>, birth: Txg, space: &DeadSpace) -> Result<()> {
        // Other threads may add to the same sum in the same txg.
        self.tree.update(hold, &sum_key(birth), |entry| {
            let mut sum = match entry {
                Some(entry) => DeadSpace::decode(&entry.value)?,
                None => DeadSpace::default(),
            };
            sum.add(space);
            Ok(sum.encode())
        })
    }

    /// The space of the blocks born after `birth`.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn sum(&self, birth: Txg) -> Result<DeadSpace> {
        self.sum_between(birth, Txg::MAX)
    }

    /// The space of the blocks born after `after`, up to and including `until`.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn sum_between(&self, after: Txg, until: Txg) -> Result<DeadSpace> {
        let mut total = DeadSpace::default();
        if until <= after {
            return Ok(total);
        }
        let end = until.checked_add(1).map(sum_key);
        let end = end.as_ref().map_or(&[BLOCK][..], |key| key);
        for item in self.tree.view().range(&sum_key(after + 1), Some(end)) {
            total.add(&DeadSpace::decode(&item?.1.value)?);
        }
        Ok(total)
    }

    /// Removes the entries born after `birth` and passes each to `each`. Returns the logical bytes of embedded blocks,
    /// which have no entries, by birth txg.
    ///
    /// # Errors
    /// As [`Tree::remove_range`].
    pub fn take_after(
        &self,
        hold: &Hold<'_>,
        birth: Txg,
        each: &mut dyn FnMut(Dead) -> Result<()>,
    ) -> Result<BTreeMap<Txg, u64>> {
        let mut embedded = BTreeMap::new();
        let Some(first) = birth.checked_add(1) else { return Ok(embedded) };
        self.tree.remove_range(hold, &sum_key(first), &[BLOCK], &mut |key, entry| {
            embedded.insert(sum_birth(key)?, DeadSpace::decode(&entry.value)?.logical);
            Ok(())
        })?;
        self.tree.remove_range(hold, &block_key(first), &[END], &mut |key, entry| {
            let dead = Dead::decode(key, &entry.value)?;
            if let Some(rest) = embedded.get_mut(&dead.birth) {
                *rest = rest.saturating_sub(u64::from(dead.lsize));
            }
            each(dead)
        })?;
        embedded.retain(|_, logical| *logical > 0);
        Ok(embedded)
    }

    /// Moves all entries of `other` into this deadlist. The cost is that of the smaller of the two.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn merge(&self, hold: &Hold<'_>, other: &Deadlist) -> Result<()> {
        if self.id() == other.id() {
            let what = format!("tree {} is named as the deadlist of two", self.id().0);
            return Err(PoolError::record("tree record", what));
        }
        if self.sum(0)?.blocks < other.sum(0)?.blocks {
            self.tree.swap(hold, &other.tree)?;
        }
        let embedded = other.take_after(hold, 0, &mut |dead| self.add(hold, &dead))?;
        embedded.into_iter().try_for_each(|(birth, logical)| self.add_embedded(hold, birth, logical))
    }

    /// The nodes of its current tree on disk. No other deadlist has any of them.
    pub fn nodes(&self) -> impl Iterator<Item = Result<StoredPtr>> + use<> {
        self.tree.view().nodes_since(0)
    }

    /// The current entries, in order of birth.
    pub fn entries(&self) -> impl Iterator<Item = Result<Dead>> + use<> {
        entries(&self.tree.view())
    }
}

/// The entries of a deadlist in a view.
pub(crate) fn entries(view: &View) -> impl Iterator<Item = Result<Dead>> + use<> {
    view.range(&[BLOCK], Some(&[END])).map(|item| {
        let (key, entry) = item?;
        Dead::decode(&key, &entry.value)
    })
}

/// The sums by birth of a deadlist in a view.
pub(crate) fn sums(view: &View) -> impl Iterator<Item = Result<(Txg, DeadSpace)>> + use<> {
    view.range(&[SUM], Some(&[BLOCK])).map(|item| {
        let (key, entry) = item?;
        Ok((sum_birth(&key)?, DeadSpace::decode(&entry.value)?))
    })
}

fn sum_birth(key: &[u8]) -> Result<Txg> {
    let mut fields = Fields::new("deadlist key", key);
    fields.u8()?;
    let birth = u64::from_be_bytes(fields.array()?);
    fields.end()?;
    Ok(birth)
}
