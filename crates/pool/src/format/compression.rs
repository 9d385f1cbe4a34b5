//! The compression byte of pointers and frames: ZFS's compression, and the suite that seals the block.
//!
//! Bytes: `docs/format/pool.md`, "Block pointer".

use super::seal::{SUITE_SHIFT, Suite};

/// Largest block, bytes: the largest record of ZFS (`SPA_MAXBLOCKSIZE`, spa.h).
pub const BLOCK_MAX: u32 = 16 << 20;

/// Maximal length of a stored block including what sealing adds, bytes.
pub(crate) const STORED_MAX: u32 = BLOCK_MAX + Suite::OVERHEAD_MAX;

/// ZFS's number for "uncompressed" (`enum zio_compress`, zio.h).
pub const COMPRESSION_OFF: u8 = 2;

/// The compression alone, `enum zio_compress` of ZFS.
pub(crate) fn algorithm(compression: u8) -> u8 {
    compression & ((1 << SUITE_SHIFT) - 1)
}

/// By how many bytes sealing makes a block longer; `None` for an unknown suite.
pub(crate) fn overhead(compression: u8) -> Option<u32> {
    match compression >> SUITE_SHIFT {
        0 => Some(0),
        id => Suite::from_id(id).map(Suite::overhead),
    }
}
