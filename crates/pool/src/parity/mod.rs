//! Parity: lets a pool on one store repair bytes that have gone bad.
//!
//! A parity frame follows the bytes that it covers, in the same segment. It contains checksums of pieces of these
//! bytes, and Reed-Solomon pieces. As many bad pieces can be restored as there are Reed-Solomon pieces. Bytes,
//! invariants and crash argument: `docs/format/parity.md`.
//!
//! [`cover`] makes these frames while blocks are appended. [`find`] finds them in a segment when something is damaged.
//! [`stripe`] repairs the bytes of one frame, on one [`medium`]. [`heal`](crate::heal) uses it to repair the blocks of
//! a pool.

mod cover;
pub(crate) mod find;
mod head;
mod medium;
mod stripe;
#[cfg(test)]
mod tests;

use crate::error::{PoolError, Result};

pub(crate) use cover::{Cover, Target};
pub(crate) use head::{Head, with_sum};
pub(crate) use medium::Medium;
pub(crate) use stripe::{Repair, Stripe};

/// Maximal parity of a pool, in percent of the data.
pub const PARITY_MAX_PERCENT: u8 = 50;

/// The first bytes of a parity frame's head.
pub(crate) const PARITY_MAGIC: [u8; 4] = *b"SMpa";

/// A wide frame is written after this many bytes.
const WIDE_BYTES: u64 = 2 << 20;
/// Maximal number of bytes that one parity frame covers.
const STRIPE_BYTES_MAX: u64 = 4 << 20;
/// Length of a piece when many bytes are covered.
const PIECE_BYTES: u32 = 4096;
/// Narrow frames that cover at most this many bytes have pieces of [`SMALL_PIECE_BYTES`], so that there are enough
/// pieces.
const SMALL_BYTES: u64 = 128 << 10;
const SMALL_PIECE_BYTES: u32 = 512;
/// Every frame has enough parity to repair a lost sector of this many bytes, at any offset.
const SECTOR_BYTES: u32 = 4096;
/// A wide frame has enough parity to repair a lost run of sectors of this many bytes.
const RUN_BYTES: u32 = 64 << 10;
/// The parity for a run is limited to 1/`RUN_SHARE` of a segment.
const RUN_SHARE: u64 = 16;

/// Decodes the pool's property.
pub(crate) fn decode(value: &[u8]) -> Result<u8> {
    match value {
        [percent] if *percent <= PARITY_MAX_PERCENT => Ok(*percent),
        other => Err(PoolError::record("property parity", format!("{other:?} is no number of hundredths"))),
    }
}

/// About how many bytes a pool with this parity needs for `bytes` of data: heads cost at most one percent, and parity
/// for runs at least four.
pub(crate) fn with_parity(bytes: u64, percent: u8) -> u64 {
    match percent {
        0 => bytes,
        percent => bytes.saturating_add(bytes.saturating_mul(u64::from(percent.max(4)) + 1) / 100),
    }
}

/// About how many bytes of data fit into `bytes` with this parity.
pub(crate) fn without_parity(bytes: u64, percent: u8) -> u64 {
    match percent {
        0 => bytes,
        percent => {
            u64::try_from(u128::from(bytes) * 100 / (101 + u128::from(percent.max(4)))).unwrap_or(bytes)
        }
    }
}
