//! Changing a fat ZAP, as `module/zfs/zap_fat.c` does.
//!
//! Changes are made to copies of the blocks. The copies are written after the last change.

use super::leaf::{self, Found, Leaf, Named, Stored};
use super::{DEFAULT_BLOCK_SHIFT, EditEntry, Refused};
use crate::bytes::{Endian, put_u64};
use crate::error::ZplError;
use crate::source::{Objects, ObjectsMut};
use crate::zap::ZBT_HEADER;
use crate::zap::fat::{
    MAGIC, OFF_ENTRIES, OFF_FLAGS, OFF_FREE_BLOCK, OFF_MAGIC, OFF_NORMFLAGS, OFF_SALT, OFF_TABLE_BLOCK,
    OFF_TABLE_BLOCKS, OFF_TABLE_SHIFT, top_bits,
};
use crate::zap::hash::{Hashing, Wanted};
use std::collections::BTreeMap;

/// `zt_nextblk`: first block of the next pointer table, which is twice as large and is being filled; 0 if there is
/// none.
const OFF_NEXT_BLOCK: usize = 40;
/// `zt_blks_copied`.
const OFF_COPIED: usize = 48;
/// `zap_num_leafs`.
const OFF_LEAVES: usize = 64;
/// `ZAP_LEAF_LOW_WATER`: with fewer free chunks than this, the pointer table begins to grow.
const LOW_WATER: u16 = 20;
/// The pointer table may always grow to this size (as a shift; 2^21 pointers are 16 MiB). A larger table is allowed
/// only with many leaves, because otherwise only names chosen for their hashes lead to it.
const TABLE_SHIFT_FREE: u32 = 21;
/// Number of pointers for each leaf, as a shift, that a larger table may have.
const TABLE_SHIFT_PER_LEAF: u32 = 8;

struct Block {
    data: Vec<u8>,
    /// The range of bytes that was changed.
    dirty: Option<(usize, usize)>,
}

/// A fat ZAP being changed.
pub(super) struct Fat {
    object: u64,
    block_shift: u32,
    pub(super) hashing: Hashing,
    /// Block 0, and the other blocks that were loaded.
    blocks: BTreeMap<u64, Block>,
    /// Blocks that were freed: the old pointer table.
    freed: Vec<(u64, u64)>,
}

impl Fat {
    /// `header` and `hashing` have passed the checks of the reader.
    pub(super) fn new(object: u64, header: Vec<u8>, hashing: Hashing) -> Self {
        let block_shift = header.len().trailing_zeros();
        let blocks = BTreeMap::from([(0, Block { data: header, dirty: None })]);
        Self { object, block_shift, hashing, blocks, freed: Vec::new() }
    }

    /// An empty fat ZAP: `fzap_upgrade`.
    pub(super) fn empty(object: u64, hashing: Hashing) -> Self {
        let size = 1 << DEFAULT_BLOCK_SHIFT;
        let mut header = vec![0; size];
        put_u64(&mut header, 0, ZBT_HEADER);
        put_u64(&mut header, OFF_MAGIC, MAGIC);
        put_u64(&mut header, OFF_TABLE_SHIFT, u64::from(DEFAULT_BLOCK_SHIFT) - 4);
        put_u64(&mut header, OFF_FREE_BLOCK, 2);
        put_u64(&mut header, OFF_LEAVES, 1);
        put_u64(&mut header, OFF_SALT, hashing.salt);
        put_u64(&mut header, OFF_NORMFLAGS, hashing.norm.bits().into());
        put_u64(&mut header, OFF_FLAGS, hashing.flags);
        for at in (size / 2..size).step_by(8) {
            put_u64(&mut header, at, 1);
        }
        let mut first = vec![0; size];
        leaf::init(&mut first, !hashing.norm.is_none());
        let whole = |data| Block { data, dirty: Some((0, size)) };
        let blocks = BTreeMap::from([(0, whole(header)), (1, whole(first))]);
        Self { object, block_shift: DEFAULT_BLOCK_SHIFT, hashing, blocks, freed: Vec::new() }
    }

    fn corrupt(&self, what: impl Into<String>) -> ZplError {
        ZplError::corrupt(self.object, what)
    }

    fn block_len(&self) -> usize {
        1 << self.block_shift
    }

    fn word(&self, at: usize) -> u64 {
        self.blocks.get(&0).and_then(|header| Endian::Little.u64(&header.data, at)).unwrap_or(0)
    }

    fn set_word(&mut self, at: usize, value: u64) {
        self.put_word(0, at, value);
    }

    fn put_word(&mut self, block: u64, at: usize, value: u64) {
        if let Some(block) = self.blocks.get_mut(&block) {
            put_u64(&mut block.data, at, value);
            block.touch(at, at + 8);
        }
    }

    pub(super) fn entries(&self) -> u64 {
        self.word(OFF_ENTRIES)
    }

    fn shift(&self) -> u32 {
        self.word(OFF_TABLE_SHIFT).min(64) as u32
    }

    fn is_sorted(&self) -> bool {
        !self.hashing.norm.is_none()
    }

    /// Upper bound of the bytes that writing all changes needs.
    pub(super) fn room(&self) -> u64 {
        (self.blocks.values().filter(|block| block.dirty.is_some()).count() as u64) << self.block_shift
    }

    fn load<O: Objects + ?Sized>(&mut self, objects: &O, number: u64) -> Result<(), ZplError> {
        if self.blocks.contains_key(&number) {
            return Ok(());
        }
        if number >= self.word(OFF_FREE_BLOCK) {
            return Err(self.corrupt(format!("block {number} of {}", self.word(OFF_FREE_BLOCK))));
        }
        let at = number
            .checked_mul(1 << self.block_shift)
            .ok_or_else(|| self.corrupt(format!("block {number} is out of reach")))?;
        let mut data = vec![0; self.block_len()];
        objects.read(self.object, at, &mut data).map_err(ZplError::source(self.object))?;
        self.blocks.insert(number, Block { data, dirty: None });
        Ok(())
    }

    /// `zap_allocate_blocks`: allocates blocks that are written in full.
    fn allocate(&mut self, count: u64) -> Result<u64, ZplError> {
        let first = self.word(OFF_FREE_BLOCK);
        let past = first.checked_add(count).filter(|past| *past < 1 << (63 - self.block_shift));
        let past = past.ok_or_else(|| self.corrupt(format!("{first} blocks in use")))?;
        self.set_word(OFF_FREE_BLOCK, past);
        Ok(first)
    }

    fn insert_empty(&mut self, number: u64) {
        let data = vec![0; self.block_len()];
        let len = data.len();
        self.blocks.insert(number, Block { data, dirty: Some((0, len)) });
    }

    /// Block number, and offset in the block, of pointer `index` of the table that begins in block `table`.
    fn pointer_at(&self, table: u64, index: u64) -> Result<(u64, usize), ZplError> {
        let shift = self.block_shift - 3;
        let block = table.checked_add(index >> shift);
        let block = block.ok_or_else(|| self.corrupt(format!("a pointer table at block {table}")))?;
        Ok((block, (index & ((1 << shift) - 1)) as usize * 8))
    }

    /// `zap_idx_to_blk`.
    fn leaf_number<O: Objects + ?Sized>(&mut self, objects: &O, index: u64) -> Result<u64, ZplError> {
        let (block, at) = match self.word(OFF_TABLE_BLOCKS) {
            0 => (0, self.block_len() / 2 + index as usize * 8),
            _ => self.pointer_at(self.word(OFF_TABLE_BLOCK), index)?,
        };
        self.load(objects, block)?;
        let number = self.blocks.get(&block).and_then(|block| Endian::Little.u64(&block.data, at));
        let number = number.unwrap_or(0);
        if number == 0 || number >= self.word(OFF_FREE_BLOCK) {
            return Err(self.corrupt(format!("entry {index} of the pointer table names block {number}")));
        }
        Ok(number)
    }

    /// `zap_set_idx_to_blk`; also sets the pointers in the larger table that is being filled.
    fn set_leaf_number<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        index: u64,
        leaf: u64,
    ) -> Result<(), ZplError> {
        if self.word(OFF_TABLE_BLOCKS) == 0 {
            let at = self.block_len() / 2 + index as usize * 8;
            self.put_word(0, at, leaf);
            return Ok(());
        }
        let (block, at) = self.pointer_at(self.word(OFF_TABLE_BLOCK), index)?;
        self.load(objects, block)?;
        let next = self.word(OFF_NEXT_BLOCK);
        if next != 0 {
            for index in [2 * index, 2 * index + 1] {
                let (block, at) = self.pointer_at(next, index)?;
                self.load(objects, block)?;
                self.put_word(block, at, leaf);
            }
        }
        self.put_word(block, at, leaf);
        Ok(())
    }

    /// Largest shift that the pointer table may reach.
    fn shift_max(&self) -> u32 {
        let leaves = self.word(OFF_LEAVES).max(1).ilog2();
        let sensible = TABLE_SHIFT_FREE.max(leaves + TABLE_SHIFT_PER_LEAF);
        // Two bits of the hash are kept in reserve, as in ZFS.
        sensible.min(self.hashing.hash_bits() - 2)
    }

    /// Does one step of growing the pointer table: `zap_grow_ptrtbl`.
    fn grow_table<O: Objects + ?Sized>(&mut self, objects: &O) -> Result<Result<(), Refused>, ZplError> {
        if self.shift() >= self.shift_max() {
            return Ok(Err(Refused::Full));
        }
        if self.word(OFF_TABLE_BLOCKS) > 0 {
            return self.grow_external(objects).map(Ok);
        }
        let table = self.allocate(1)?;
        self.insert_empty(table);
        let half = self.block_len() / 2;
        let pointers = self.blocks.get(&0).map(|header| header.data[half..].to_vec()).unwrap_or_default();
        self.spread(&pointers, table);
        self.set_word(OFF_TABLE_BLOCK, table);
        self.set_word(OFF_TABLE_BLOCKS, 1);
        self.set_word(OFF_TABLE_SHIFT, u64::from(self.shift()) + 1);
        Ok(Ok(()))
    }

    /// Writes each pointer twice into a block.
    fn spread(&mut self, pointers: &[u8], block: u64) {
        for (index, pointer) in pointers.chunks_exact(8).enumerate() {
            let leaf = Endian::Little.u64(pointer, 0).unwrap_or(0);
            self.put_word(block, index * 16, leaf);
            self.put_word(block, index * 16 + 8, leaf);
        }
    }

    /// Copies one more block of the table into the table that is twice as large: `zap_table_grow`.
    fn grow_external<O: Objects + ?Sized>(&mut self, objects: &O) -> Result<(), ZplError> {
        let (table, count) = (self.word(OFF_TABLE_BLOCK), self.word(OFF_TABLE_BLOCKS));
        let copied = self.word(OFF_COPIED);
        if copied >= count {
            return Err(self.corrupt(format!("{copied} of {count} table blocks copied")));
        }
        let next = match self.word(OFF_NEXT_BLOCK) {
            0 => {
                let next = self.allocate(2 * count)?;
                self.set_word(OFF_NEXT_BLOCK, next);
                next
            }
            next => next,
        };
        let source = table
            .checked_add(copied)
            .ok_or_else(|| self.corrupt(format!("a pointer table at block {table}")))?;
        self.load(objects, source)?;
        let pointers = self.blocks.get(&source).map(|block| block.data.clone()).unwrap_or_default();
        let (first, second) = pointers.split_at(pointers.len() / 2);
        for (half, number) in [(first, 2 * copied), (second, 2 * copied + 1)] {
            let number = next
                .checked_add(number)
                .filter(|number| *number < self.word(OFF_FREE_BLOCK))
                .ok_or_else(|| self.corrupt(format!("the next pointer table at block {next}")))?;
            self.insert_empty(number);
            self.spread(half, number);
        }
        self.set_word(OFF_COPIED, copied + 1);
        if copied + 1 == count {
            for number in table..table + count {
                self.blocks.remove(&number);
            }
            self.freed.push((table, count));
            self.set_word(OFF_TABLE_BLOCK, next);
            self.set_word(OFF_TABLE_BLOCKS, 2 * count);
            self.set_word(OFF_TABLE_SHIFT, u64::from(self.shift()) + 1);
            self.set_word(OFF_NEXT_BLOCK, 0);
            self.set_word(OFF_COPIED, 0);
        }
        Ok(())
    }

    /// Loads the leaf for `hash`, checks its prefix, and returns its block number: `zap_deref_leaf`.
    fn deref<O: Objects + ?Sized>(&mut self, objects: &O, hash: u64) -> Result<u64, ZplError> {
        let shift = self.shift();
        let number = self.leaf_number(objects, top_bits(hash, shift))?;
        self.load(objects, number)?;
        let leaf = self.leaf(number)?;
        let (prefix, prefix_len) = (leaf.prefix(), leaf.prefix_len());
        if prefix_len > shift || top_bits(hash, prefix_len) != prefix {
            return Err(self.corrupt(format!(
                "the leaf in block {number} is for prefix {prefix:#x} of {prefix_len} bits, not for hash {hash:#x}"
            )));
        }
        Ok(number)
    }

    /// A leaf for reading.
    fn leaf(&mut self, number: u64) -> Result<Leaf<'_>, ZplError> {
        match self.blocks.get_mut(&number) {
            Some(block) => Leaf::new(self.object, number, &mut block.data),
            None => Err(ZplError::corrupt(self.object, format!("no leaf in block {number}"))),
        }
    }

    /// A leaf for changing. Its whole block counts as changed.
    fn leaf_mut(&mut self, number: u64) -> Result<Leaf<'_>, ZplError> {
        if let Some(block) = self.blocks.get_mut(&number) {
            block.touch(0, block.data.len());
        }
        self.leaf(number)
    }

    /// Splits a leaf into two: `zap_expand_leaf`.
    fn expand<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        hash: u64,
        number: u64,
    ) -> Result<Result<(), Refused>, ZplError> {
        let bits = self.leaf(number)?.prefix_len();
        while bits == self.shift() {
            if let Err(refused) = self.grow_table(objects)? {
                return Ok(Err(refused));
            }
        }
        let pointers = 1u64 << (self.shift() - bits - 1);
        let first = (top_bits(hash, bits + 1) | 1) << (self.shift() - bits - 1);
        for index in first..first + pointers {
            if self.leaf_number(objects, index)? != number {
                return Err(self.corrupt(format!("the pointers to leaf {number} are not in a row")));
            }
        }
        let sibling = self.allocate(1)?;
        let sorted = self.is_sorted();
        let mut new = vec![0; self.block_len()];
        leaf::init(&mut new, sorted);
        let mut upper = Leaf::new(self.object, sibling, &mut new)?;
        self.leaf_mut(number)?.split(&mut upper, sorted)?;
        let len = new.len();
        self.blocks.insert(sibling, Block { data: new, dirty: Some((0, len)) });
        self.set_word(OFF_LEAVES, self.word(OFF_LEAVES).saturating_add(1));
        for index in first..first + pointers {
            self.set_leaf_number(objects, index, sibling)?;
        }
        Ok(Ok(()))
    }

    /// Grows the table by one step if it is already growing or will soon be too small:
    /// `zap_put_leaf_maybe_grow_ptrtbl`.
    fn maybe_grow<O: Objects + ?Sized>(&mut self, objects: &O, number: u64) -> Result<(), ZplError> {
        let shift = self.shift();
        let leaf = self.leaf(number)?;
        let full = leaf.prefix_len() == shift && leaf.free() < LOW_WATER;
        if full || self.word(OFF_NEXT_BLOCK) != 0 {
            // A refusal is harmless here, because the leaf is not full yet.
            let _ = self.grow_table(objects)?;
        }
        Ok(())
    }

    /// The entry's name as stored, and its value if that is one 64-bit integer.
    pub(super) fn lookup<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        wanted: &Wanted<'_>,
    ) -> Result<Option<EditEntry>, ZplError> {
        let number = self.deref(objects, wanted.hash)?;
        let leaf = self.leaf(number)?;
        leaf.lookup(wanted)?.map(|found| leaf.read(found)).transpose()
    }

    /// Whether splitting leaves can make room for `needed` more chunks at `hash`.
    fn can_make_room(&mut self, number: u64, hash: u64, needed: usize) -> Result<bool, ZplError> {
        let (bits, chunks) = (self.shift_max(), leaf::chunks_in(self.block_len()));
        let leaf = self.leaf(number)?;
        if usize::from(leaf.free()) >= needed {
            return Ok(true);
        }
        Ok(bits > leaf.prefix_len() && leaf.chunks_of(hash, bits)? + needed <= chunks)
    }

    /// Adds an entry that does not exist yet.
    pub(super) fn add<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        named: Named<'_>,
        value: &Stored,
    ) -> Result<Result<(), Refused>, ZplError> {
        let needed = 1 + leaf::array_chunks(named.name.len() + 1) + leaf::array_chunks(value.bytes.len());
        let number = self.deref(objects, named.hash)?;
        if !self.can_make_room(number, named.hash, needed)? {
            return Ok(Err(Refused::Full));
        }
        let added = self.until_fits(objects, named.hash, |leaf| leaf.add(named, value))?;
        if added.is_ok() {
            self.set_word(OFF_ENTRIES, self.entries().saturating_add(1));
        }
        Ok(added)
    }

    /// Calls `change` with the leaf for `hash`, and splits leaves until the change fits.
    fn until_fits<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        hash: u64,
        mut change: impl FnMut(&mut Leaf<'_>) -> Result<leaf::Fit, ZplError>,
    ) -> Result<Result<(), Refused>, ZplError> {
        loop {
            let number = self.deref(objects, hash)?;
            if change(&mut self.leaf_mut(number)?)? == leaf::Fit::Done {
                self.maybe_grow(objects, number)?;
                return Ok(Ok(()));
            }
            if let Err(refused) = self.expand(objects, hash, number)? {
                return Ok(Err(refused));
            }
        }
    }

    /// Replaces the value of an existing entry.
    pub(super) fn update<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        wanted: &Wanted<'_>,
        value: &Stored,
    ) -> Result<Result<(), Refused>, ZplError> {
        let number = self.deref(objects, wanted.hash)?;
        if !self.can_make_room(number, wanted.hash, leaf::array_chunks(value.bytes.len()))? {
            return Ok(Err(Refused::Full));
        }
        let object = self.object;
        self.until_fits(objects, wanted.hash, |leaf| match leaf.lookup(wanted)? {
            Some(found) => leaf.update(found, value),
            None => Err(ZplError::corrupt(object, "an entry is in no leaf")),
        })
    }

    /// Removes an entry. Returns whether it existed.
    pub(super) fn remove<O: Objects + ?Sized>(
        &mut self,
        objects: &O,
        wanted: &Wanted<'_>,
    ) -> Result<bool, ZplError> {
        let number = self.deref(objects, wanted.hash)?;
        let found: Option<Found> = self.leaf(number)?.lookup(wanted)?;
        let Some(found) = found else { return Ok(false) };
        self.leaf_mut(number)?.remove(found)?;
        self.set_word(OFF_ENTRIES, self.entries().saturating_sub(1));
        Ok(true)
    }

    /// Writes the changes.
    pub(super) fn write<O: ObjectsMut>(&self, objects: &O, tx: &O::Tx<'_>) -> Result<(), ZplError> {
        let failed = |source| ZplError::Source { object: self.object, source };
        for (first, count) in &self.freed {
            let (at, len) = (first << self.block_shift, count << self.block_shift);
            objects.free(tx, self.object, at, len).map_err(failed)?;
        }
        for (number, block) in &self.blocks {
            if let Some((from, to)) = block.dirty {
                let at = (number << self.block_shift) + from as u64;
                objects.write(tx, self.object, at, &block.data[from..to]).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Block {
    fn touch(&mut self, from: usize, to: usize) {
        self.dirty = Some(match self.dirty {
            None => (from, to),
            Some((first, last)) => (first.min(from), last.max(to)),
        });
    }
}
