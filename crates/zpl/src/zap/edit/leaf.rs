//! Changing a leaf block of a fat ZAP, as `module/zfs/zap_leaf.c` does.
//!
//! Leaves may come from untrusted sources. So every chunk number is checked before it is followed, and every chain has
//! a limit.

use super::EditEntry;
use crate::bytes::{Endian, put_u16, put_u32, put_u64};
use crate::error::ZplError;
use crate::zap::fat::top_bits;
use crate::zap::hash::Wanted;
use crate::zap::leaf::{
    ARRAY_LEN, CHAIN_END, CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_LEN, HEADER_LEN, MAGIC, OFF_MAGIC, OFF_PREFIX,
    OFF_PREFIX_LEN,
};
use crate::zap::{Value, ZBT_LEAF};

/// `ZAP_CHUNK_FREE`.
const CHUNK_FREE: u8 = 253;
/// `lh_nfree`.
const OFF_FREE: usize = 28;
/// `lh_nentries`.
const OFF_ENTRIES: usize = 30;
/// `lh_freelist`.
const OFF_FREE_LIST: usize = 34;
/// `lh_flags`.
const OFF_FLAGS: usize = 36;
/// `ZLF_ENTRIES_CDSORTED`: the entries of a chain are sorted by ascending differentiator.
const FLAG_CD_SORTED: u8 = 1;

/// Offsets of the fields of an entry chunk.
const ENTRY_NEXT: usize = 2;
const ENTRY_NAME_CHUNK: usize = 4;
const ENTRY_NAME_LEN: usize = 6;
const ENTRY_VALUE_CHUNK: usize = 8;
const ENTRY_VALUE_LEN: usize = 10;
const ENTRY_CD: usize = 12;
const ENTRY_HASH: usize = 16;
/// Offset, in an array chunk or free chunk, of the number of the next chunk.
const NEXT: usize = 1 + ARRAY_LEN;

/// A value as leaves store it: big-endian integers, all of one size.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) integer_size: u8,
    pub(super) count: u16,
    pub(super) bytes: Vec<u8>,
}

impl Stored {
    /// `None` if the value is larger than `ZAP_MAXVALUELEN` or its integer size is invalid.
    pub(super) fn new(value: &Value) -> Option<Self> {
        let integer_size = match value {
            Value::One(_) => 8,
            Value::Many { integer_size, .. } => *integer_size,
        };
        let integers = value.integers();
        let size = usize::from(integer_size);
        if !matches!(size, 1 | 2 | 4 | 8) || integers.is_empty() || integers.len() * size > super::VALUE_MAX {
            return None;
        }
        let bytes = integers.iter().flat_map(|integer| integer.to_be_bytes()[8 - size..].to_vec()).collect();
        Some(Self { integer_size, count: integers.len() as u16, bytes })
    }
}

/// A name to be stored in a leaf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'n> {
    pub(super) name: &'n [u8],
    pub(super) hash: u64,
    /// Differentiator, or `None` for the lowest free one.
    pub(super) cd: Option<u32>,
}

/// An entry found in a leaf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Offset of the link that holds the number of the entry's chunk.
    link: usize,
    chunk: u16,
}

/// Whether the change fitted into the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Done,
    Full,
}

/// The fields of an entry chunk.
struct Raw {
    next: u16,
    name_chunk: u16,
    name_len: u16,
    value_chunk: u16,
    value_len: u16,
    value_size: u8,
    cd: u32,
    hash: u64,
}

/// A leaf block being changed.
pub(super) struct Leaf<'b> {
    object: u64,
    number: u64,
    block: &'b mut [u8],
    hash_len: usize,
    chunks: u16,
}

/// Number of chunks that `len` bytes take: `ZAP_LEAF_ARRAY_NCHUNKS`.
pub(super) fn array_chunks(len: usize) -> usize {
    len.div_ceil(ARRAY_LEN)
}

fn geometry(block_len: usize) -> (usize, u16) {
    let hash_len = block_len / 32;
    (hash_len, ((block_len - 2 * hash_len) / CHUNK_LEN).saturating_sub(2) as u16)
}

/// Number of chunks in a leaf of `block_len` bytes.
pub(super) fn chunks_in(block_len: usize) -> usize {
    usize::from(geometry(block_len).1)
}

/// Initialises `block` as an empty leaf: `zap_leaf_init`.
pub(super) fn init(block: &mut [u8], sorted: bool) {
    let (hash_len, chunks) = geometry(block.len());
    block[..HEADER_LEN].fill(0);
    block[HEADER_LEN..HEADER_LEN + 2 * hash_len].fill(0xff);
    let first = HEADER_LEN + 2 * hash_len;
    block[first..].fill(0);
    for chunk in 0..chunks {
        let at = first + usize::from(chunk) * CHUNK_LEN;
        block[at] = CHUNK_FREE;
        put_u16(block, at + NEXT, if chunk + 1 == chunks { CHAIN_END } else { chunk + 1 });
    }
    put_u64(block, 0, ZBT_LEAF);
    put_u32(block, OFF_MAGIC, MAGIC);
    put_u16(block, OFF_FREE, chunks);
    block[OFF_FLAGS] = if sorted { FLAG_CD_SORTED } else { 0 };
}

impl<'b> Leaf<'b> {
    /// The length of `block` is a power of two, at least 512.
    pub(super) fn new(object: u64, number: u64, block: &'b mut [u8]) -> Result<Self, ZplError> {
        let (kind, magic) = (Endian::Little.u64(block, 0), Endian::Little.u32(block, OFF_MAGIC));
        if kind != Some(ZBT_LEAF) || magic != Some(MAGIC) {
            if kind == Some(ZBT_LEAF.swap_bytes()) {
                return Err(super::other_order(object));
            }
            return Err(ZplError::corrupt(object, format!("block {number} is no ZAP leaf")));
        }
        let (hash_len, chunks) = geometry(block.len());
        Ok(Self { object, number, block, hash_len, chunks })
    }

    fn corrupt(&self, what: &str, chunk: u16) -> ZplError {
        ZplError::corrupt(self.object, format!("leaf in block {}: {what} (chunk {chunk})", self.number))
    }

    fn short(&self, at: usize) -> u16 {
        Endian::Little.u16(self.block, at).unwrap_or(CHAIN_END)
    }

    pub(super) fn prefix(&self) -> u64 {
        Endian::Little.u64(self.block, OFF_PREFIX).unwrap_or(0)
    }

    pub(super) fn prefix_len(&self) -> u32 {
        u32::from(self.short(OFF_PREFIX_LEN))
    }

    /// Number of free chunks.
    pub(super) fn free(&self) -> u16 {
        self.short(OFF_FREE)
    }

    fn chunk_at(&self, chunk: u16, kind: u8) -> Result<usize, ZplError> {
        if chunk >= self.chunks {
            return Err(self.corrupt("a chunk out of range", chunk));
        }
        let at = HEADER_LEN + 2 * self.hash_len + usize::from(chunk) * CHUNK_LEN;
        if self.block[at] != kind {
            return Err(self.corrupt("a chunk of the wrong type", chunk));
        }
        Ok(at)
    }

    fn raw(&self, chunk: u16) -> Result<Raw, ZplError> {
        let at = self.chunk_at(chunk, CHUNK_ENTRY)?;
        Ok(Raw {
            next: self.short(at + ENTRY_NEXT),
            name_chunk: self.short(at + ENTRY_NAME_CHUNK),
            name_len: self.short(at + ENTRY_NAME_LEN),
            value_chunk: self.short(at + ENTRY_VALUE_CHUNK),
            value_len: self.short(at + ENTRY_VALUE_LEN),
            value_size: self.block[at + 1],
            cd: Endian::Little.u32(self.block, at + ENTRY_CD).unwrap_or(0),
            hash: Endian::Little.u64(self.block, at + ENTRY_HASH).unwrap_or(0),
        })
    }

    /// Offset of the hash table entry that holds the head of the chain for `hash`: `LEAF_HASH_ENTPTR`.
    fn bucket(&self, hash: u64) -> usize {
        let below_prefix = hash.checked_shl(self.prefix_len()).unwrap_or(0);
        HEADER_LEN + 2 * top_bits(below_prefix, self.hash_len.trailing_zeros()) as usize
    }

    /// Calls `visit` for each entry of a chain, with the offset of the link to it, until `visit` returns `true`.
    fn walk(
        &self,
        hash: u64,
        mut visit: impl FnMut(usize, u16, &Raw) -> Result<bool, ZplError>,
    ) -> Result<(), ZplError> {
        let mut link = self.bucket(hash);
        for _ in 0..=self.chunks {
            let chunk = self.short(link);
            if chunk == CHAIN_END {
                return Ok(());
            }
            let raw = self.raw(chunk)?;
            if visit(link, chunk, &raw)? {
                return Ok(());
            }
            link = self.chunk_at(chunk, CHUNK_ENTRY)? + ENTRY_NEXT;
        }
        Err(self.corrupt("entries chained in a circle", self.short(link)))
    }

    /// The first `len` bytes of the array that begins in `chunk`.
    fn array(&self, mut chunk: u16, len: usize) -> Result<Vec<u8>, ZplError> {
        let mut bytes = Vec::with_capacity(len.min(self.block.len()));
        while bytes.len() < len {
            let at = self.chunk_at(chunk, CHUNK_ARRAY)?;
            let take = (len - bytes.len()).min(ARRAY_LEN);
            bytes.extend_from_slice(&self.block[at + 1..at + 1 + take]);
            chunk = self.short(at + NEXT);
        }
        Ok(bytes)
    }

    fn name(&self, raw: &Raw) -> Result<Vec<u8>, ZplError> {
        let mut name = self.array(raw.name_chunk, usize::from(raw.name_len))?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    /// The entry that matches `wanted`. If several match, the one with the lowest differentiator.
    pub(super) fn lookup(&self, wanted: &Wanted<'_>) -> Result<Option<Found>, ZplError> {
        let mut best: Option<(u32, Found)> = None;
        self.walk(wanted.hash, |link, chunk, raw| {
            let better = best.is_none_or(|(cd, _)| raw.cd < cd);
            if raw.hash == wanted.hash && better && wanted.matches(&self.name(raw)?) {
                best = Some((raw.cd, Found { link, chunk }));
            }
            Ok(false)
        })?;
        Ok(best.map(|(_, found)| found))
    }

    /// The name of an entry as stored, and its value if that is one 64-bit integer.
    pub(super) fn read(&self, found: Found) -> Result<EditEntry, ZplError> {
        let raw = self.raw(found.chunk)?;
        let value = match (raw.value_size, raw.value_len) {
            (8, 1) => Endian::Big.u64(&self.array(raw.value_chunk, 8)?, 0),
            _ => None,
        };
        Ok(EditEntry { name: self.name(&raw)?, value })
    }

    fn alloc(&mut self) -> Result<u16, ZplError> {
        let chunk = self.short(OFF_FREE_LIST);
        let at = self.chunk_at(chunk, CHUNK_FREE)?;
        let free = self.free().checked_sub(1).ok_or_else(|| self.corrupt("no free chunk", chunk))?;
        let next = self.short(at + NEXT);
        put_u16(self.block, OFF_FREE_LIST, next);
        put_u16(self.block, OFF_FREE, free);
        Ok(chunk)
    }

    fn free_chunk(&mut self, chunk: u16, kind: u8) -> Result<(), ZplError> {
        let at = self.chunk_at(chunk, kind)?;
        let head = self.short(OFF_FREE_LIST);
        // Zeros compress well.
        self.block[at..at + CHUNK_LEN].fill(0);
        self.block[at] = CHUNK_FREE;
        put_u16(self.block, at + NEXT, head);
        put_u16(self.block, OFF_FREE_LIST, chunk);
        let free = self.free().saturating_add(1).min(self.chunks);
        put_u16(self.block, OFF_FREE, free);
        Ok(())
    }

    /// Frees the chunks of an array. The free list returns them later in their original order.
    fn free_array(&mut self, first: u16) -> Result<(), ZplError> {
        let mut chain = Vec::new();
        let mut chunk = first;
        while chunk != CHAIN_END {
            let at = self.chunk_at(chunk, CHUNK_ARRAY)?;
            if chain.len() >= usize::from(self.chunks) {
                return Err(self.corrupt("an array chained in a circle", chunk));
            }
            chain.push(chunk);
            chunk = self.short(at + NEXT);
        }
        chain.iter().rev().try_for_each(|chunk| self.free_chunk(*chunk, CHUNK_ARRAY))
    }

    fn put_array(&mut self, bytes: &[u8]) -> Result<u16, ZplError> {
        let mut first = CHAIN_END;
        let mut last: Option<usize> = None;
        for part in bytes.chunks(ARRAY_LEN) {
            let chunk = self.alloc()?;
            let at = self.chunk_at(chunk, CHUNK_FREE)?;
            self.block[at] = CHUNK_ARRAY;
            self.block[at + 1..at + 1 + part.len()].copy_from_slice(part);
            self.block[at + 1 + part.len()..at + NEXT].fill(0);
            put_u16(self.block, at + NEXT, CHAIN_END);
            match last {
                None => first = chunk,
                Some(last) => put_u16(self.block, last + NEXT, chunk),
            }
            last = Some(at);
        }
        Ok(first)
    }

    /// The lowest differentiator that no entry with `hash` uses.
    fn unused_cd(&self, hash: u64) -> Result<u32, ZplError> {
        let mut used = Vec::new();
        self.walk(hash, |_, _, raw| {
            if raw.hash == hash {
                used.push(raw.cd);
            }
            Ok(false)
        })?;
        used.sort_unstable();
        used.dedup();
        Ok((0u32..).zip(&used).take_while(|(wanted, used)| wanted == *used).count() as u32)
    }

    /// Adds an entry that must not exist yet: `zap_entry_create`.
    pub(super) fn add(&mut self, named: Named<'_>, value: &Stored) -> Result<Fit, ZplError> {
        let needed = 1 + array_chunks(named.name.len() + 1) + array_chunks(value.bytes.len());
        if usize::from(self.free()) < needed {
            return Ok(Fit::Full);
        }
        let cd = named.cd.map_or_else(|| self.unused_cd(named.hash), Ok)?;
        let chunk = self.alloc()?;
        let at = self.chunk_at(chunk, CHUNK_FREE)?;
        self.block[at] = CHUNK_ENTRY;
        let name_chunk = self.put_array(&[named.name, b"\0"].concat())?;
        let value_chunk = self.put_array(&value.bytes)?;
        self.block[at + 1] = value.integer_size;
        put_u16(self.block, at + ENTRY_NAME_CHUNK, name_chunk);
        put_u16(self.block, at + ENTRY_NAME_LEN, named.name.len() as u16 + 1);
        put_u16(self.block, at + ENTRY_VALUE_CHUNK, value_chunk);
        put_u16(self.block, at + ENTRY_VALUE_LEN, value.count);
        put_u32(self.block, at + ENTRY_CD, cd);
        put_u64(self.block, at + ENTRY_HASH, named.hash);
        self.link(chunk)?;
        self.count(1);
        Ok(Fit::Done)
    }

    fn count(&mut self, change: i32) {
        let entries = i32::from(self.short(OFF_ENTRIES)) + change;
        put_u16(self.block, OFF_ENTRIES, entries.clamp(0, i32::from(u16::MAX)) as u16);
    }

    /// Inserts an entry into the chain for its hash, sorted by differentiator: `zap_leaf_rehash_entry`.
    fn link(&mut self, chunk: u16) -> Result<(), ZplError> {
        let entry = self.raw(chunk)?;
        let mut place = self.bucket(entry.hash);
        self.walk(entry.hash, |link, chunk, raw| {
            place = link;
            if raw.cd > entry.cd {
                return Ok(true);
            }
            place = self.chunk_at(chunk, CHUNK_ENTRY)? + ENTRY_NEXT;
            Ok(false)
        })?;
        let at = self.chunk_at(chunk, CHUNK_ENTRY)?;
        let next = self.short(place);
        put_u16(self.block, at + ENTRY_NEXT, next);
        put_u16(self.block, place, chunk);
        Ok(())
    }

    /// Replaces an entry's value: `zap_entry_update`.
    pub(super) fn update(&mut self, found: Found, value: &Stored) -> Result<Fit, ZplError> {
        let raw = self.raw(found.chunk)?;
        let old = array_chunks(usize::from(raw.value_len) * usize::from(raw.value_size));
        if usize::from(self.free()) + old < array_chunks(value.bytes.len()) {
            return Ok(Fit::Full);
        }
        self.free_array(raw.value_chunk)?;
        let value_chunk = self.put_array(&value.bytes)?;
        let at = self.chunk_at(found.chunk, CHUNK_ENTRY)?;
        self.block[at + 1] = value.integer_size;
        put_u16(self.block, at + ENTRY_VALUE_CHUNK, value_chunk);
        put_u16(self.block, at + ENTRY_VALUE_LEN, value.count);
        Ok(Fit::Done)
    }

    /// Removes an entry: `zap_entry_remove`.
    pub(super) fn remove(&mut self, found: Found) -> Result<(), ZplError> {
        let raw = self.raw(found.chunk)?;
        put_u16(self.block, found.link, raw.next);
        self.free_array(raw.value_chunk)?;
        self.free_array(raw.name_chunk)?;
        self.free_chunk(found.chunk, CHUNK_ENTRY)?;
        self.count(-1);
        Ok(())
    }

    /// Number of chunks used by entries whose hash begins with the same `bits` bits as `hash`.
    pub(super) fn chunks_of(&self, hash: u64, bits: u32) -> Result<usize, ZplError> {
        let mut total = 0;
        for chunk in 0..self.chunks {
            let at = HEADER_LEN + 2 * self.hash_len + usize::from(chunk) * CHUNK_LEN;
            if self.block[at] != CHUNK_ENTRY {
                continue;
            }
            let raw = self.raw(chunk)?;
            if top_bits(raw.hash, bits) == top_bits(hash, bits) {
                let value_len = usize::from(raw.value_len) * usize::from(raw.value_size);
                total += 1 + array_chunks(usize::from(raw.name_len)) + array_chunks(value_len);
            }
        }
        Ok(total)
    }

    /// Moves the entries whose hash has a 1 after the prefix to `sibling`, an empty leaf: `zap_leaf_split`.
    pub(super) fn split(&mut self, sibling: &mut Leaf<'_>, sorted: bool) -> Result<(), ZplError> {
        let bits = self.prefix_len() + 1;
        if bits > 64 {
            return Err(self.corrupt("a prefix that is too long", 0));
        }
        let prefix = self.prefix() << 1;
        for (block, prefix) in [(&mut *self.block, prefix), (&mut *sibling.block, prefix | 1)] {
            put_u64(block, OFF_PREFIX, prefix);
            put_u16(block, OFF_PREFIX_LEN, bits as u16);
        }
        let buckets = HEADER_LEN..HEADER_LEN + 2 * self.hash_len;
        self.block[buckets].fill(0xff);
        if sorted {
            self.block[OFF_FLAGS] |= FLAG_CD_SORTED;
        }
        for chunk in 0..self.chunks {
            let at = HEADER_LEN + 2 * self.hash_len + usize::from(chunk) * CHUNK_LEN;
            if self.block[at] != CHUNK_ENTRY {
                continue;
            }
            let raw = self.raw(chunk)?;
            if raw.hash & 1 << (64 - bits) == 0 {
                self.link(chunk)?;
            } else {
                self.transfer(chunk, &raw, sibling)?;
            }
        }
        Ok(())
    }

    fn transfer(&mut self, chunk: u16, raw: &Raw, to: &mut Leaf<'_>) -> Result<(), ZplError> {
        let name = self.array(raw.name_chunk, usize::from(raw.name_len))?;
        let value = self.array(raw.value_chunk, usize::from(raw.value_len) * usize::from(raw.value_size))?;
        let from = self.chunk_at(chunk, CHUNK_ENTRY)?;
        let copy = to.alloc()?;
        let at = to.chunk_at(copy, CHUNK_FREE)?;
        to.block[at..at + CHUNK_LEN].copy_from_slice(&self.block[from..from + CHUNK_LEN]);
        let (name_chunk, value_chunk) = (to.put_array(&name)?, to.put_array(&value)?);
        put_u16(to.block, at + ENTRY_NAME_CHUNK, name_chunk);
        put_u16(to.block, at + ENTRY_VALUE_CHUNK, value_chunk);
        to.link(copy)?;
        to.count(1);
        self.free_array(raw.value_chunk)?;
        self.free_array(raw.name_chunk)?;
        self.free_chunk(chunk, CHUNK_ENTRY)?;
        self.count(-1);
        Ok(())
    }
}
