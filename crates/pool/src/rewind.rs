//! Rewind: opens an older txg, like `zpool import -F`, `-X` and `-T`.
//!
//! The last [`REWIND_TXGS`] txgs have everything that they refer to, because their segments are kept. Older txgs in the
//! ring of uberblocks may have lost segments, so they are opened only if they are complete.

use std::collections::BTreeSet;

use snowmelt_store::{SegmentId, SegmentInfo};

use crate::commit::REWIND_TXGS;
use crate::error::{PoolError, Result};
use crate::format::uberblock::Uberblock;
use crate::ids::Txg;
use crate::space::SegmentTable;

/// Which txg to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// The newest. If it cannot be read, an older one is opened, but only for reading. For writing, the error is
    /// [`NeedsRewind`](PoolError::NeedsRewind).
    #[default]
    No,
    /// The newest readable one of the last [`REWIND_TXGS`].
    Recent,
    /// The newest one in the ring that is readable and has all its segments.
    Extreme,
    /// Exactly this txg.
    To(Txg),
}

impl Rewind {
    /// The uberblocks to try, as indexes into `ring`, which is sorted, newest first.
    pub(crate) fn candidates(self, ring: &[Uberblock]) -> Result<std::ops::Range<usize>> {
        match self {
            Self::No | Self::Recent => Ok(0..ring.len().min(REWIND_TXGS)),
            Self::Extreme => Ok(0..ring.len()),
            Self::To(txg) => match ring.iter().position(|uberblock| uberblock.txg == txg) {
                Some(at) => Ok(at..at + 1),
                None => {
                    let known: Vec<String> = ring.iter().rev().map(|it| it.txg.to_string()).collect();
                    Err(PoolError::NoTxg { txg, why: format!("there are {}", known.join(", ")) })
                }
            },
        }
    }

    /// Refuses missing segments, except for the last txgs: their segments are kept, so a missing segment there is
    /// damage and not a reason to refuse the whole pool.
    pub(crate) fn check_segments(self, txg: Txg, missing: &[SegmentId]) -> Result<()> {
        match (self, missing.first()) {
            (Self::No | Self::Recent, _) | (_, None) => Ok(()),
            (Self::Extreme | Self::To(_), Some(first)) => {
                let why = match missing.len() {
                    1 => format!("segment {first} is not there any more"),
                    more => format!("segment {first} and {} others are not there any more", more - 1),
                };
                Err(PoolError::NoTxg { txg, why })
            }
        }
    }
}

/// Segments with live blocks that are missing or too short in the store. Dead segments are skipped, because a later txg
/// may have deleted them.
pub(crate) fn missing(table: &SegmentTable, stored: &[SegmentInfo]) -> Vec<SegmentId> {
    let whole: BTreeSet<SegmentId> = stored
        .iter()
        .filter(|info| table.get(info.id).is_some_and(|segment| segment.len <= info.len))
        .map(|info| info.id)
        .collect();
    let alive = table.iter().filter(|(_, segment)| segment.live + segment.meta > 0);
    alive.map(|(id, _)| id).filter(|id| !whole.contains(id)).collect()
}
