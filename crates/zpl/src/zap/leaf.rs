//! Reading a leaf block of a fat ZAP: `zap_leaf_phys_t` of `include/sys/zap_leaf.h`.
//!
//! A leaf has a 48-byte header, a hash table of 16-bit chunk numbers, then 24-byte chunks. A chunk holds an entry, or
//! 21 bytes of the array of a name or value. Integers inside arrays are always big-endian.

use super::fat::top_bits;
use super::hash::Wanted;
use super::{Cursor, Entry, Key, Value, ZBT_LEAF, block_type};
use crate::bytes::Endian;
use crate::error::ZplError;

/// `ZAP_LEAF_MAGIC`.
pub(super) const MAGIC: u32 = 0x02AB_1EAF;
pub(super) const OFF_PREFIX: usize = 16;
pub(super) const OFF_MAGIC: usize = 24;
pub(super) const OFF_PREFIX_LEN: usize = 32;
pub(super) const HEADER_LEN: usize = 48;

pub(super) const CHUNK_LEN: usize = 24;
/// `ZAP_LEAF_ARRAY_BYTES`.
pub(super) const ARRAY_LEN: usize = 21;
pub(super) const CHUNK_ENTRY: u8 = 252;
pub(super) const CHUNK_ARRAY: u8 = 251;
pub(super) const CHAIN_END: u16 = 0xffff;

/// `ZAP_MAXNAMELEN_NEW`: longest name including its NUL, if the longname feature is active.
const NAME_MAX: usize = 1024;
/// Longest value that is accepted, in bytes: `ZAP_MAXVALUELEN`.
const VALUE_MAX: usize = 8192;

pub(super) struct Leaf {
    object: u64,
    number: u64,
    block: Vec<u8>,
    endian: Endian,
    pub(super) prefix: u64,
    pub(super) prefix_len: u32,
    /// Number of entries in the hash table: one for each 32 bytes of the block.
    hash_len: usize,
    chunks: usize,
}

/// An entry chunk whose name and value have not been read yet.
struct Raw {
    value_size: u8,
    next: u16,
    name_chunk: u16,
    name_len: u16,
    value_chunk: u16,
    value_len: u16,
    at: Cursor,
}

impl Leaf {
    /// The length of `block` is a power of two, at least 512.
    pub(super) fn new(object: u64, number: u64, block: Vec<u8>) -> Result<Self, ZplError> {
        let (kind, endian) = block_type(&block);
        let magic = endian.u32(&block, OFF_MAGIC).unwrap_or(0);
        if kind != ZBT_LEAF || magic != MAGIC {
            let what = format!("block {number} is no ZAP leaf (type {kind:#x}, magic {magic:#x})");
            return Err(ZplError::corrupt(object, what));
        }
        let prefix_len = u32::from(endian.u16(&block, OFF_PREFIX_LEN).unwrap_or(u16::MAX));
        let hash_len = block.len() / 32;
        let chunks = ((block.len() - 2 * hash_len) / CHUNK_LEN).saturating_sub(2);
        if prefix_len > 64 {
            let what = format!("the leaf in block {number} has a prefix of {prefix_len} bits");
            return Err(ZplError::corrupt(object, what));
        }
        let prefix = endian.u64(&block, OFF_PREFIX).unwrap_or(0);
        Ok(Self { object, number, endian, prefix, prefix_len, hash_len, chunks, block })
    }

    fn corrupt(&self, what: &str, chunk: u16) -> ZplError {
        ZplError::corrupt(self.object, format!("leaf in block {}: {what} (chunk {chunk})", self.number))
    }

    fn chunk(&self, number: u16, kind: u8) -> Result<&[u8], ZplError> {
        let at = HEADER_LEN + 2 * self.hash_len + usize::from(number) * CHUNK_LEN;
        if usize::from(number) >= self.chunks {
            return Err(self.corrupt("a chunk out of range", number));
        }
        let chunk =
            self.block.get(at..at + CHUNK_LEN).ok_or_else(|| self.corrupt("a chunk out of range", number))?;
        if chunk[0] != kind {
            return Err(self.corrupt("a chunk of the wrong type", number));
        }
        Ok(chunk)
    }

    fn raw(&self, number: u16) -> Result<Raw, ZplError> {
        let chunk = self.chunk(number, CHUNK_ENTRY)?;
        let short = |at| self.endian.u16(chunk, at).unwrap_or(CHAIN_END);
        let cd = self.endian.u32(chunk, 12).unwrap_or(0);
        let at = Cursor { hash: self.endian.u64(chunk, 16).unwrap_or(0), cd: u64::from(cd) };
        Ok(Raw {
            value_size: chunk[1],
            next: short(2),
            name_chunk: short(4),
            name_len: short(6),
            value_chunk: short(8),
            value_len: short(10),
            at,
        })
    }

    /// The bytes of an array of `len` bytes that begins in chunk `first`.
    fn array(&self, first: u16, len: usize, max: usize) -> Result<Vec<u8>, ZplError> {
        if len > max {
            return Err(self.corrupt(&format!("an array of {len} bytes"), first));
        }
        let mut bytes = Vec::with_capacity(len);
        let mut number = first;
        while bytes.len() < len {
            let chunk = self.chunk(number, CHUNK_ARRAY)?;
            let take = (len - bytes.len()).min(ARRAY_LEN);
            bytes.extend_from_slice(&chunk[1..1 + take]);
            number = self.endian.u16(chunk, 1 + ARRAY_LEN).unwrap_or(CHAIN_END);
        }
        Ok(bytes)
    }

    /// The bytes of a name up to its NUL.
    fn name(&self, raw: &Raw) -> Result<Vec<u8>, ZplError> {
        let mut name = self.array(raw.name_chunk, usize::from(raw.name_len), NAME_MAX)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        if name.is_empty() {
            return Err(self.corrupt("an empty name", raw.name_chunk));
        }
        Ok(name)
    }

    fn words(&self, raw: &Raw) -> Result<Vec<u64>, ZplError> {
        let bytes = self.array(raw.name_chunk, usize::from(raw.name_len) * 8, VALUE_MAX)?;
        Ok(bytes.chunks_exact(8).filter_map(|word| Endian::Big.u64(word, 0)).collect())
    }

    fn value(&self, raw: &Raw) -> Result<Value, ZplError> {
        let size = raw.value_size;
        if !matches!(size, 1 | 2 | 4 | 8) {
            return Err(self.corrupt(&format!("a value of {size}-byte integers"), raw.value_chunk));
        }
        let bytes = self.array(raw.value_chunk, usize::from(raw.value_len) * usize::from(size), VALUE_MAX)?;
        let widen = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(match (size, raw.value_len) {
            (8, 1) => Value::One(widen(&bytes)),
            _ => Value::Many {
                integer_size: size,
                integers: bytes.chunks_exact(usize::from(size)).map(widen).collect(),
            },
        })
    }

    /// Calls `visit` for each entry of hash bucket `bucket`. `budget` limits the steps over all buckets, so that
    /// circular chains end.
    fn walk(
        &self,
        bucket: usize,
        budget: &mut usize,
        mut visit: impl FnMut(Raw) -> Result<(), ZplError>,
    ) -> Result<(), ZplError> {
        let mut number = self.endian.u16(&self.block, HEADER_LEN + 2 * bucket).unwrap_or(CHAIN_END);
        while number != CHAIN_END {
            if *budget == 0 {
                return Err(self.corrupt("entries chained in a circle", number));
            }
            *budget -= 1;
            let raw = self.raw(number)?;
            if top_bits(raw.at.hash, self.prefix_len) != self.prefix {
                return Err(self.corrupt("an entry of another leaf's hash", number));
            }
            number = raw.next;
            visit(raw)?;
        }
        Ok(())
    }

    /// The bucket of `hash`: `LEAF_HASH`.
    fn bucket(&self, hash: u64) -> usize {
        let below_prefix = hash.checked_shl(self.prefix_len).unwrap_or(0);
        top_bits(below_prefix, self.hash_len.trailing_zeros()) as usize
    }

    /// The entry that matches `wanted`. If several match, the one with the lowest differentiator.
    pub(super) fn lookup(&self, wanted: &Wanted<'_>) -> Result<Option<Entry>, ZplError> {
        let mut best: Option<(Raw, Vec<u8>)> = None;
        let mut budget = self.chunks;
        self.walk(self.bucket(wanted.hash), &mut budget, |raw| {
            let better = best.as_ref().is_none_or(|(found, _)| raw.at < found.at);
            if raw.at.hash == wanted.hash && better {
                let name = self.name(&raw)?;
                if wanted.matches(&name) {
                    best = Some((raw, name));
                }
            }
            Ok(())
        })?;
        best.map(|(raw, name)| Ok(Entry { key: Key::Name(name), value: self.value(&raw)?, at: raw.at }))
            .transpose()
    }

    /// All entries that are not before `from`, in order.
    pub(super) fn sorted_from(&self, from: Cursor, word_keys: bool) -> Result<Vec<Entry>, ZplError> {
        let mut entries = Vec::new();
        let mut budget = self.chunks;
        for bucket in 0..self.hash_len {
            self.walk(bucket, &mut budget, |raw| {
                if raw.at >= from {
                    let key =
                        if word_keys { Key::Words(self.words(&raw)?) } else { Key::Name(self.name(&raw)?) };
                    entries.push(Entry { key, value: self.value(&raw)?, at: raw.at });
                }
                Ok(())
            })?;
        }
        entries.sort_by_key(|entry| entry.at);
        Ok(entries)
    }
}
