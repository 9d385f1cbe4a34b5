//! Going back to an older txg: `zpool import -F`, `-X` and `-T`.
//!
//! The last [`REWIND_TXGS`] txgs have everything they refer to, by the rule that segments are kept for them. Older ones
//! in the ring of uberblocks may have lost segments, so of these only what is whole is taken.

use std::collections::BTreeSet;

use snowmelt_store::{SegmentId, SegmentInfo};

use crate::commit::REWIND_TXGS;
use crate::error::{PoolError, Result};
use crate::ptr::Txg;
use crate::space::SegmentTable;
use crate::uberblock::Uberblock;

/// Which txg is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// The newest. If it cannot be read, an older one for reading only; for writing that is
    /// [`NeedsRewind`](PoolError::NeedsRewind).
    #[default]
    No,
    /// The newest of the last [`REWIND_TXGS`] that can be read.
    Recent,
    /// The newest of all in the ring that can be read and has all its segments.
    Extreme,
    /// This one.
    To(Txg),
}

impl Rewind {
    /// The uberblocks to try, as indices of `ring`, which is in order, newest first.
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

    /// Whether segments may be missing: the last txgs have had theirs kept, and damage there is damage, no loss of
    /// the whole pool.
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

/// Segments with anything alive that the store has not, or not whole. A dead segment may have been given back by a
/// later txg.
pub(crate) fn missing(table: &SegmentTable, stored: &[SegmentInfo]) -> Vec<SegmentId> {
    let whole: BTreeSet<SegmentId> = stored
        .iter()
        .filter(|info| table.get(info.id).is_some_and(|segment| segment.len <= info.len))
        .map(|info| info.id)
        .collect();
    let alive = table.iter().filter(|(_, segment)| segment.live + segment.meta > 0);
    alive.map(|(id, _)| id).filter(|id| !whole.contains(id)).collect()
}
