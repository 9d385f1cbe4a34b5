//! Parity: what lets a pool on one store mend bytes that have gone bad.
//!
//! Behind what it covers, in the same segment, lies a parity frame: checksums of pieces of these bytes, and Reed-Solomon
//! pieces from which as many of them can be had again. Bytes, invariants and crash argument: `docs/format/parity.md`.
//!
//! [`cover`] makes such frames as blocks are appended; [`find`] looks for them in a segment, when something is damaged;
//! [`stripe`] has the bytes of one at hand, and mends them; [`mend`] is that for a pool.

mod cover;
mod find;
mod head;
mod mend;
mod stripe;
#[cfg(test)]
mod tests;

use crate::error::{PoolError, Result};

pub(crate) use cover::{Cover, Target};
pub(crate) use head::{Head, with_sum};
pub(crate) use mend::{Finding, HeadCache};

/// The most parity a pool can have, in hundredths of the data.
pub const PARITY_MAX_PERCENT: u8 = 50;

/// First bytes of a parity frame's head.
pub(crate) const PARITY_MAGIC: [u8; 4] = *b"SMpa";

/// Bytes that are covered together once there are so many.
const WIDE_BYTES: u64 = 2 << 20;
/// The most that one parity frame covers, bytes.
const STRIPE_BYTES_MAX: u64 = 4 << 20;
/// Length of a piece, bytes, where much is covered; …
const PIECE_BYTES: u32 = 4096;
/// … and up to so many bytes the length of the other, so that there are pieces enough.
const SMALL_BYTES: u64 = 128 << 10;
const SMALL_PIECE_BYTES: u32 = 512;
/// So much parity there is at least that a lost sector of this many bytes can be mended, wherever it begins; …
const SECTOR_BYTES: u32 = 4096;
/// … and where much is covered, a run of sectors of this many bytes, …
const RUN_BYTES: u32 = 64 << 10;
/// … if that is not more than one part in so many of a segment.
const RUN_SHARE: u64 = 16;

/// Decodes the pool's property.
pub(crate) fn decode(value: &[u8]) -> Result<u8> {
    match value {
        [percent] if *percent <= PARITY_MAX_PERCENT => Ok(*percent),
        other => Err(PoolError::record("property parity", format!("{other:?} is no number of hundredths"))),
    }
}

/// Bytes that a pool with so much parity takes for `bytes` of data, about: heads cost one hundredth at the most, and runs want 4 at
/// the least.
pub(crate) fn with_parity(bytes: u64, percent: u8) -> u64 {
    match percent {
        0 => bytes,
        percent => bytes.saturating_add(bytes.saturating_mul(u64::from(percent.max(4)) + 1) / 100),
    }
}

/// Bytes of data that go into `bytes` with so much parity, about.
pub(crate) fn without_parity(bytes: u64, percent: u8) -> u64 {
    match percent {
        0 => bytes,
        percent => {
            u64::try_from(u128::from(bytes) * 100 / (101 + u128::from(percent.max(4)))).unwrap_or(bytes)
        }
    }
}
