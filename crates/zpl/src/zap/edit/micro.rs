//! Changing a micro ZAP: `module/zfs/zap_micro.c`.

use super::leaf::{Named, Stored};
use super::{BLOCK_STEP, EditEntry, MICRO_MAX, Refused, fat};
use crate::bytes::{Endian, put_u32, put_u64};
use crate::error::ZplError;
use crate::source::{Objects, ObjectsMut};
use crate::zap::ZBT_MICRO;
use crate::zap::hash::{Hashing, Wanted};
use crate::zap::leaf::{ARRAY_LEN, CHUNK_LEN};
use crate::zap::micro::{OFF_NORMFLAGS, OFF_SALT, SLOT_CD, SLOT_LEN, SLOT_NAME};

/// `MZAP_NAME_LEN`, the NUL included.
const NAME_LEN: usize = SLOT_LEN - SLOT_NAME;
/// Most chunks that an entry takes in a leaf: `MZAP_ENT_CHUNKS`.
const ENTRY_CHUNKS: usize = 1 + NAME_LEN.div_ceil(ARRAY_LEN) + 1;

/// A micro ZAP being changed.
pub(super) struct Micro {
    block: Vec<u8>,
    pub(super) hashing: Hashing,
    entries: u64,
    /// Length of the block as stored.
    stored_len: usize,
    dirty: Option<(usize, usize)>,
}

impl Micro {
    pub(super) fn new(block: Vec<u8>, hashing: Hashing) -> Self {
        let stored_len = block.len();
        let mut micro = Self { block, hashing, entries: 0, stored_len, dirty: None };
        micro.entries = micro.names().filter(|(_, name)| name[0] != 0).count() as u64;
        micro
    }

    /// The first bytes of an empty one.
    pub(super) fn header(hashing: &Hashing) -> Vec<u8> {
        let mut header = vec![0; SLOT_LEN];
        put_u64(&mut header, 0, ZBT_MICRO);
        put_u64(&mut header, OFF_SALT, hashing.salt);
        put_u64(&mut header, OFF_NORMFLAGS, hashing.norm.bits().into());
        header
    }

    /// Where each slot begins, and the name in it with the NULs behind it; all NULs where the slot is free.
    fn names(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let slots = self.block.chunks_exact(SLOT_LEN).enumerate().skip(1);
        slots.map(|(index, slot)| (index * SLOT_LEN, &slot[SLOT_NAME..]))
    }

    /// As [`Micro::names`], without the NULs and the free slots.
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

    fn find(&self, wanted: &Wanted<'_>) -> Option<usize> {
        let matching = self.names().filter(|(_, name)| wanted.matches_padded(name));
        matching.map(|(at, _)| at).min_by_key(|at| self.cd(*at))
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

    /// Differentiators of the entries with this hash.
    fn cds(&self, hash: u64) -> Vec<u32> {
        let same = self.entries_in_use().filter(|(_, name)| self.hashing.hash_name(name) == hash);
        let mut cds: Vec<u32> = same.map(|(at, _)| self.cd(at)).collect();
        cds.sort_unstable();
        cds.dedup();
        cds
    }

    /// Adds an entry that is not there yet; [`Refused::TooSmall`] where only a fat ZAP can take it.
    pub(super) fn add(&mut self, name: &[u8], hash: u64, value: u64) -> Result<(), Refused> {
        if name.len() >= NAME_LEN {
            return Err(Refused::TooSmall);
        }
        let cds = self.cds(hash);
        // Too many of one hash could not be moved to a leaf later (`mze_canfit_fzap_leaf`).
        if super::leaf::chunks_in(1 << super::DEFAULT_BLOCK_SHIFT) <= (cds.len() + 1) * ENTRY_CHUNKS {
            return Err(Refused::TooSmall);
        }
        let free = self.names().find(|(_, name)| name[0] == 0).map(|(at, _)| at);
        let at = match free {
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
        self.block[at..at + SLOT_LEN].fill(0);
        self.touch(at, at + SLOT_LEN);
        self.entries -= 1;
        true
    }

    /// The same entries, with their differentiators, as a fat ZAP: `mzap_upgrade`.
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
        &self,
        objects: &O,
        tx: &O::Tx<'_>,
        object: u64,
    ) -> Result<(), ZplError> {
        let failed = |source| ZplError::Source { object, source };
        if self.block.len() != self.stored_len {
            objects.set_block_size(tx, object, self.block.len() as u32).map_err(failed)?;
        }
        match self.dirty {
            Some((from, to)) => objects.write(tx, object, from as u64, &self.block[from..to]).map_err(failed),
            None => Ok(()),
        }
    }
}

/// A name without the NULs behind it.
fn trimmed(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    &name[..end]
}

const _: () = assert!(ENTRY_CHUNKS * CHUNK_LEN < 1 << super::DEFAULT_BLOCK_SHIFT);
