//! Reading the header and pointer table of a fat ZAP: `zap_phys_t` of `include/sys/zap_impl.h`.
//!
//! Block 0 is the header. The pointer table is indexed by the top bits of a hash and contains the number of the leaf
//! block for each prefix. It is the second half of block 0 as long as it fits there, then a run of separate blocks.

use super::hash::{Hashing, Wanted};
use super::leaf::Leaf;
use super::{Cursor, Entry, norm_flags};
use crate::bytes::Endian;
use crate::error::ZplError;
use crate::source::Objects;

/// `ZAP_MAGIC`.
pub(super) const MAGIC: u64 = 0x2_F52A_B2AB;

pub(super) const OFF_MAGIC: usize = 8;
pub(super) const OFF_TABLE_BLOCK: usize = 16;
pub(super) const OFF_TABLE_BLOCKS: usize = 24;
pub(super) const OFF_TABLE_SHIFT: usize = 32;
pub(super) const OFF_FREE_BLOCK: usize = 56;
pub(super) const OFF_ENTRIES: usize = 72;
pub(super) const OFF_SALT: usize = 80;
pub(super) const OFF_NORMFLAGS: usize = 88;
pub(super) const OFF_FLAGS: usize = 96;

/// Chunk numbers have 16 bits. A leaf of 1 MiB nearly exhausts them.
const BLOCK_SHIFT_MAX: u32 = 20;
const BLOCK_SHIFT_MIN: u32 = 9;

pub(super) struct Fat {
    object: u64,
    header: Vec<u8>,
    pub(super) endian: Endian,
    block_shift: u32,
    /// First block of the pointer table, or `None` if the table is in the header block.
    table: Option<u64>,
    table_shift: u32,
    /// Blocks from this number on were never used.
    free_block: u64,
    pub(super) entries: u64,
    pub(super) hashing: Hashing,
}

impl Fat {
    pub(super) fn new(object: u64, header: Vec<u8>, endian: Endian) -> Result<Self, ZplError> {
        let corrupt = |what: String| ZplError::corrupt(object, what);
        let size = header.len();
        let block_shift = size.trailing_zeros();
        if !size.is_power_of_two() || !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&block_shift) {
            return Err(corrupt(format!("a fat ZAP with blocks of {size} bytes")));
        }
        let word = |at| endian.u64(&header, at).unwrap_or(0);
        if word(OFF_MAGIC) != MAGIC {
            return Err(corrupt(format!("ZAP magic is {:#x}, not {MAGIC:#x}", word(OFF_MAGIC))));
        }
        let hashing =
            Hashing { salt: word(OFF_SALT), flags: word(OFF_FLAGS), norm: norm_flags(word(OFF_NORMFLAGS)) };
        let (table_block, table_blocks, shift) =
            (word(OFF_TABLE_BLOCK), word(OFF_TABLE_BLOCKS), word(OFF_TABLE_SHIFT));
        let embedded_shift = u64::from(block_shift - 4);
        let table = match table_blocks {
            0 => None,
            _ => Some(table_block),
        };
        // Number of entries that the table has room for, as a shift.
        let room = match table_blocks {
            0 => embedded_shift,
            n if n.is_power_of_two() => u64::from(n.trailing_zeros() + block_shift - 3),
            n => return Err(corrupt(format!("a pointer table of {n} blocks"))),
        };
        if shift > room || shift > u64::from(hashing.hash_bits()) {
            return Err(corrupt(format!("a pointer table of 2^{shift} entries in {table_blocks} blocks")));
        }
        Ok(Self {
            object,
            endian,
            block_shift,
            table,
            table_shift: shift as u32,
            free_block: word(OFF_FREE_BLOCK),
            entries: word(OFF_ENTRIES),
            hashing,
            header,
        })
    }

    /// The header block as it was read.
    pub(super) fn into_header(self) -> Vec<u8> {
        self.header
    }

    fn corrupt(&self, what: impl Into<String>) -> ZplError {
        ZplError::corrupt(self.object, what)
    }

    /// The leaf block at `index` of the pointer table.
    fn leaf_block<O: Objects + ?Sized>(&self, objects: &O, index: u64) -> Result<u64, ZplError> {
        let raw: [u8; 8] = match self.table {
            None => {
                let at = (self.header.len() / 2).saturating_add((index as usize).saturating_mul(8));
                let found = self.header.get(at..).and_then(|rest| rest.first_chunk());
                *found
                    .ok_or_else(|| self.corrupt(format!("no entry {index} in the embedded pointer table")))?
            }
            Some(start) => {
                let at = start
                    .checked_mul(1 << self.block_shift)
                    .and_then(|at| at.checked_add(index.checked_mul(8)?))
                    .ok_or_else(|| self.corrupt(format!("a pointer table at block {start}")))?;
                let mut raw = [0; 8];
                objects.read(self.object, at, &mut raw).map_err(ZplError::source(self.object))?;
                raw
            }
        };
        let block = self.endian.u64(&raw, 0).unwrap_or(0);
        // A table block has no magic number. If a dataset was written on machines of both byte orders, the byte order
        // of a pointer shows only in that it must be the number of a used block.
        let swapped = block.swap_bytes();
        let block = if block >= self.free_block && swapped < self.free_block { swapped } else { block };
        if block == 0 || block >= self.free_block {
            return Err(self.corrupt(format!(
                "entry {index} of the pointer table names block {block}, of {}",
                self.free_block
            )));
        }
        Ok(block)
    }

    /// Reads the leaf for `hash` and checks its prefix.
    fn leaf<O: Objects + ?Sized>(&self, objects: &O, hash: u64) -> Result<Leaf, ZplError> {
        let number = self.leaf_block(objects, top_bits(hash, self.table_shift))?;
        let at = number
            .checked_mul(1 << self.block_shift)
            .ok_or_else(|| self.corrupt(format!("a leaf at block {number}")))?;
        let mut block = vec![0; 1 << self.block_shift];
        objects.read(self.object, at, &mut block).map_err(ZplError::source(self.object))?;
        let leaf = Leaf::new(self.object, number, block)?;
        if leaf.prefix_len > self.table_shift || top_bits(hash, leaf.prefix_len) != leaf.prefix {
            return Err(self.corrupt(format!(
                "the leaf in block {number} is for prefix {:#x} of {} bits, not for hash {hash:#x}",
                leaf.prefix, leaf.prefix_len
            )));
        }
        Ok(leaf)
    }

    pub(super) fn lookup<O: Objects + ?Sized>(
        &self,
        objects: &O,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Entry>, ZplError> {
        if self.hashing.has_word_keys() {
            return Ok(None);
        }
        self.leaf(objects, wanted.hash)?.lookup(wanted)
    }

    /// The entries of the leaf at `from` that are not before `from`, in order, and where the next leaf begins.
    pub(super) fn leaf_from<O: Objects + ?Sized>(
        &self,
        objects: &O,
        from: Cursor,
    ) -> Result<(Vec<Entry>, Option<Cursor>), ZplError> {
        if from == Cursor::END {
            return Ok((Vec::new(), None));
        }
        let leaf = self.leaf(objects, from.hash)?;
        let entries = leaf.sorted_from(from, self.hashing.has_word_keys())?;
        // The next position is always higher, so that a damaged table cannot cause an endless loop.
        let next = match leaf.prefix_len {
            0 => None,
            bits => leaf
                .prefix
                .checked_add(1)
                .filter(|next| bits == 64 || next >> bits == 0)
                .map(|next| Cursor { hash: next << (64 - bits), cd: 0 }),
        };
        Ok((entries, next))
    }
}

/// `ZAP_HASH_IDX`: the top `bits` of a hash.
pub(super) fn top_bits(hash: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { hash >> (64 - bits.min(64)) }
}
