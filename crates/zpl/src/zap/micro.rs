//! Reading a micro ZAP: `mzap_phys_t` and `mzap_ent_phys_t` of `include/sys/zap_impl.h`.
//!
//! A micro ZAP is one block. It has a 64-byte header (type, salt, normalisation flags), then slots of 64 bytes. A slot
//! has a value, a differentiator and a name of at most 49 bytes. A slot with an empty name is free.

use super::hash::{Hashing, Wanted};
use super::{Cursor, Entry, Key, Value, norm_flags};
use crate::bytes::Endian;

pub(super) const OFF_SALT: usize = 8;
pub(super) const OFF_NORMFLAGS: usize = 16;
/// `MZAP_ENT_LEN`. The header has the same length.
pub(super) const SLOT_LEN: usize = 64;
pub(super) const SLOT_CD: usize = 8;
pub(super) const SLOT_NAME: usize = 14;

pub(super) struct Micro {
    block: Vec<u8>,
    pub(super) endian: Endian,
    pub(super) hashing: Hashing,
}

struct Slot<'b> {
    name: &'b [u8],
    value: u64,
    cd: u64,
}

impl Micro {
    pub(super) fn new(block: Vec<u8>, endian: Endian) -> Self {
        let word = |at| endian.u64(&block, at).unwrap_or(0);
        let hashing = Hashing { salt: word(OFF_SALT), flags: 0, norm: norm_flags(word(OFF_NORMFLAGS)) };
        Self { block, endian, hashing }
    }

    /// The block as it was read.
    pub(super) fn into_block(self) -> Vec<u8> {
        self.block
    }

    /// The content of a slot, or `None` if it is free.
    fn slot<'b>(&self, slot: &'b [u8]) -> Option<Slot<'b>> {
        let name = slot[SLOT_NAME..].split(|byte| *byte == 0).next()?;
        if name.is_empty() {
            return None;
        }
        let cd = self.endian.u32(slot, SLOT_CD)?;
        Some(Slot { name, value: self.endian.u64(slot, 0)?, cd: u64::from(cd) })
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        self.block.chunks_exact(SLOT_LEN).skip(1).filter_map(|slot| self.slot(slot))
    }

    fn entry(slot: &Slot<'_>, hash: u64) -> Entry {
        let at = Cursor { hash, cd: slot.cd };
        Entry { key: Key::Name(slot.name.to_vec()), value: Value::One(slot.value), at }
    }

    pub(super) fn count(&self) -> u64 {
        self.block.chunks_exact(SLOT_LEN).skip(1).filter(|slot| slot[SLOT_NAME] != 0).count() as u64
    }

    pub(super) fn lookup(&self, wanted: &Wanted<'_>) -> Option<Entry> {
        let matching = self.block.chunks_exact(SLOT_LEN).skip(1);
        let matching = matching.filter(|slot| wanted.matches_padded(&slot[SLOT_NAME..]));
        let found = matching.filter_map(|slot| self.slot(slot)).min_by_key(|slot| slot.cd)?;
        Some(Self::entry(&found, wanted.hash))
    }

    /// All entries from `from` on, sorted. There is at most one for each slot of the block.
    pub(super) fn sorted_from(&self, from: Cursor) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self
            .slots()
            .map(|slot| Self::entry(&slot, self.hashing.hash_name(slot.name)))
            .filter(|entry| entry.at >= from)
            .collect();
        entries.sort_by_key(|entry| entry.at);
        entries
    }
}
