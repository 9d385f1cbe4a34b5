//! Changing a micro ZAP, as `module/zfs/zap_micro.c` does.

use super::leaf::{Named, Stored};
use super::{BLOCK_STEP, EditEntry, MICRO_MAX, Refused, fat};
use crate::bytes::{Endian, put_u32, put_u64};
use crate::error::ZplError;
use crate::source::{Objects, ObjectsMut};
use crate::zap::ZBT_MICRO;
use crate::zap::hash::{Hashing, Wanted};
use crate::zap::leaf::{ARRAY_LEN, CHUNK_LEN};
use crate::zap::micro::{OFF_NORMFLAGS, OFF_SALT, SLOT_CD, SLOT_LEN, SLOT_NAME};
use crate::zap::{Cursor, Entry, Key, Value};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// `MZAP_NAME_LEN`, including the NUL.
const NAME_LEN: usize = SLOT_LEN - SLOT_NAME;
/// Largest number of chunks that an entry takes in a leaf: `MZAP_ENT_CHUNKS`.
const ENTRY_CHUNKS: usize = 1 + NAME_LEN.div_ceil(ARRAY_LEN) + 1;

/// A micro ZAP being changed.
pub(super) struct Micro {
    block: Vec<u8>,
    pub(super) hashing: Hashing,
    entries: u64,
    /// Length of the block as stored.
    stored_len: usize,
    dirty: Option<(usize, usize)>,
    /// Hash, differentiator and offset of each entry (`mzap_ent_t`). Built when it is first useful.
    index: Option<BTreeSet<(u64, u32, usize)>>,
    /// All slots before this offset are in use.
    free_from: usize,
}

impl Micro {
    pub(super) fn new(block: Vec<u8>, hashing: Hashing) -> Self {
        let stored_len = block.len();
        let mut micro =
            Self { block, hashing, entries: 0, stored_len, dirty: None, index: None, free_from: SLOT_LEN };
        micro.entries = micro.names().filter(|(_, name)| name[0] != 0).count() as u64;
        micro
    }

    /// The first bytes of an empty micro ZAP.
    pub(super) fn header(hashing: &Hashing) -> Vec<u8> {
        let mut header = vec![0; SLOT_LEN];
        put_u64(&mut header, 0, ZBT_MICRO);
        put_u64(&mut header, OFF_SALT, hashing.salt);
        put_u64(&mut header, OFF_NORMFLAGS, hashing.norm.bits().into());
        header
    }

    /// The offset of each slot, and the name in it padded with NULs. A free slot has only NULs.
    fn names(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let slots = self.block.chunks_exact(SLOT_LEN).enumerate().skip(1);
        slots.map(|(index, slot)| (index * SLOT_LEN, &slot[SLOT_NAME..]))
    }

    /// Like [`Micro::names`], without the padding and without free slots.
    fn entries_in_use(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.names().filter(|(_, name)| name[0] != 0).map(|(at, name)| (at, trimmed(name)))
    }

    fn cd(&self, at: usize) -> u32 {
        Endian::Little.u32(&self.block, at + SLOT_CD).unwrap_or(0)
    }

    fn value(&self, at: usize) -> u64 {
        Endian::Little.u64(&self.block, at).unwrap_or(0)
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn room(&self) -> u64 {
        if self.dirty.is_some() { self.block.len() as u64 } else { 0 }
    }

    /// Builds the index. It pays if more than one name is looked up.
    pub(super) fn index(&mut self) -> &mut BTreeSet<(u64, u32, usize)> {
        let index = self.index.take().unwrap_or_else(|| {
            let entries = self.entries_in_use();
            entries.map(|(at, name)| (self.hashing.hash_name(name), self.cd(at), at)).collect()
        });
        self.index.insert(index)
    }

    fn find(&self, wanted: &Wanted<'_>) -> Option<usize> {
        let name = |at: usize| &self.block[at + SLOT_NAME..at + SLOT_LEN];
        match &self.index {
            Some(index) => {
                let mut same = index.range(of_hash(wanted.hash)).map(|(_, _, at)| *at);
                same.find(|at| wanted.matches_padded(name(*at)))
            }
            None => {
                let matching = self.names().filter(|(_, name)| wanted.matches_padded(name));
                matching.map(|(at, _)| at).min_by_key(|at| self.cd(*at))
            }
        }
    }

    /// Like [`Micro::lookup`], with the entry's place in the order of entries.
    pub(super) fn entry(&self, wanted: &Wanted<'_>) -> Option<Entry> {
        let at = self.find(wanted)?;
        let name = trimmed(&self.block[at + SLOT_NAME..at + SLOT_LEN]).to_vec();
        let place = Cursor { hash: wanted.hash, cd: self.cd(at).into() };
        Some(Entry { key: Key::Name(name), value: Value::One(self.value(at)), at: place })
    }

    /// Approximate size in memory, in bytes.
    pub(super) fn weight(&self) -> usize {
        size_of::<Self>() + self.block.capacity() + self.index.as_ref().map_or(0, BTreeSet::len) * 32
    }

    pub(super) fn lookup(&self, wanted: &Wanted<'_>) -> Option<EditEntry> {
        let at = self.find(wanted)?;
        let name = trimmed(&self.block[at + SLOT_NAME..at + SLOT_LEN]).to_vec();
        Some(EditEntry { name, value: Some(self.value(at)) })
    }

    fn touch(&mut self, from: usize, to: usize) {
        self.dirty = Some(match self.dirty {
            None => (from, to),
            Some((first, last)) => (first.min(from), last.max(to)),
        });
    }

    /// Differentiators of the entries with this hash, in ascending order.
    fn cds(&mut self, hash: u64) -> Vec<u32> {
        let mut cds: Vec<u32> = self.index().range(of_hash(hash)).map(|(_, cd, _)| *cd).collect();
        cds.dedup();
        cds
    }

    /// The offset of the first free slot.
    fn free_slot(&mut self) -> Option<usize> {
        let slots = self.names().skip(self.free_from / SLOT_LEN - 1);
        let free = slots.filter(|(_, name)| name[0] == 0).map(|(at, _)| at).next();
        self.free_from = free.unwrap_or(self.block.len());
        free
    }

    /// Adds an entry that does not exist yet. Returns [`Refused::TooSmall`] if only a fat ZAP can hold it.
    pub(super) fn add(&mut self, name: &[u8], hash: u64, value: u64) -> Result<(), Refused> {
        if name.len() >= NAME_LEN {
            return Err(Refused::TooSmall);
        }
        let cds = self.cds(hash);
        // Too many entries with one hash would not fit in a leaf after an upgrade (`mze_canfit_fzap_leaf`).
        if super::leaf::chunks_in(1 << super::DEFAULT_BLOCK_SHIFT) <= (cds.len() + 1) * ENTRY_CHUNKS {
            return Err(Refused::TooSmall);
        }
        let at = match self.free_slot() {
            Some(at) => at,
            None if self.block.len() + BLOCK_STEP > MICRO_MAX => return Err(Refused::TooSmall),
            None => {
                let at = self.block.len();
                self.block.resize(at + BLOCK_STEP, 0);
                at
            }
        };
        let cd = (0u32..).zip(&cds).take_while(|(wanted, used)| wanted == *used).count() as u32;
        self.block[at..at + SLOT_LEN].fill(0);
        put_u64(&mut self.block, at, value);
        put_u32(&mut self.block, at + SLOT_CD, cd);
        self.block[at + SLOT_NAME..at + SLOT_NAME + name.len()].copy_from_slice(name);
        self.touch(at, at + SLOT_LEN);
        self.entries += 1;
        self.index().insert((hash, cd, at));
        Ok(())
    }

    pub(super) fn update(&mut self, wanted: &Wanted<'_>, value: u64) -> bool {
        let Some(at) = self.find(wanted) else { return false };
        put_u64(&mut self.block, at, value);
        self.touch(at, at + 8);
        true
    }

    pub(super) fn remove(&mut self, wanted: &Wanted<'_>) -> bool {
        let Some(at) = self.find(wanted) else { return false };
        let cd = self.cd(at);
        if let Some(index) = &mut self.index {
            index.remove(&(wanted.hash, cd, at));
        }
        self.free_from = self.free_from.min(at);
        self.block[at..at + SLOT_LEN].fill(0);
        self.touch(at, at + SLOT_LEN);
        self.entries -= 1;
        true
    }

    /// Converts the ZAP to a fat ZAP with the same entries and differentiators: `mzap_upgrade`.
    pub(super) fn upgrade<O: Objects + ?Sized>(
        &self,
        objects: &O,
        object: u64,
    ) -> Result<Result<fat::Fat, Refused>, ZplError> {
        let mut fat = fat::Fat::empty(object, self.hashing);
        for (at, name) in self.entries_in_use() {
            let bytes = self.value(at).to_be_bytes().to_vec();
            let value = Stored { integer_size: 8, count: 1, bytes };
            let named = Named { name, hash: self.hashing.hash_name(name), cd: Some(self.cd(at)) };
            if let Err(refused) = fat.add(objects, named, &value)? {
                return Ok(Err(refused));
            }
        }
        Ok(Ok(fat))
    }

    pub(super) fn write<O: ObjectsMut>(
        &mut self,
        objects: &O,
        tx: &O::Tx<'_>,
        object: u64,
    ) -> Result<(), ZplError> {
        let failed = |source| ZplError::Source { object, source };
        if self.block.len() != self.stored_len {
            objects.set_block_size(tx, object, self.block.len() as u32).map_err(failed)?;
        }
        if let Some((from, to)) = self.dirty {
            objects.write(tx, object, from as u64, &self.block[from..to]).map_err(failed)?;
        }
        self.stored_len = self.block.len();
        self.dirty = None;
        Ok(())
    }
}

/// The range of all index entries with this hash.
fn of_hash(hash: u64) -> RangeInclusive<(u64, u32, usize)> {
    (hash, 0, 0)..=(hash, u32::MAX, usize::MAX)
}

/// A name without its padding.
fn trimmed(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    &name[..end]
}

const _: () = assert!(ENTRY_CHUNKS * CHUNK_LEN < 1 << super::DEFAULT_BLOCK_SHIFT);
