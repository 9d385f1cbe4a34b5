//! Scrub: reads all live blocks once and verifies them.
//!
//! Live blocks are found as ZFS does it (dsl_scan.c). Frozen roots are walked in the order in which they were frozen.
//! In each root only the blocks are read that were born since the previous one. Thus every block is read once, even if
//! several roots share it, and the only state to remember is a position: a root and a key in it. Blocks are gathered
//! for a while and then read in the order of their places. After each such batch, the position, the counters and the
//! damaged blocks are committed together. A scrub that is interrupted continues where its last batch ended.
//!
//! Nothing waits for a scrub. A batch reads the state of one commit, and pins it. While a scrub is under way, blocks
//! can pass only to roots that are frozen later, or to live trees. So walking the roots in this order misses no block
//! that stays. Blocks born after the scrub began are skipped. Live trees may pass blocks to roots that are frozen while
//! the live trees are walked. These roots are walked at the end.
//!
//! If only a frame's header is damaged, the block is written again, and a relocation leads to it.

mod batch;
mod gather;
mod record;
mod run;
mod walk;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::check::Roots;
use crate::error::Result;
use crate::format::ptr::StoredPtr;
use crate::ids::{BlockId, TreeId, Txg};

pub(crate) use record::ScrubRecord;
pub use record::ScrubState;
#[cfg(test)]
pub(crate) use record::{Position, Stage};
pub use walk::MetaScan;

/// A frozen root that a scrub walks.
#[derive(Clone, Debug)]
pub struct FrozenRoot {
    /// The number that the layer above uses for its owner, for the damage log.
    pub owner: u64,
    /// A live tree of the same owner, for the headers of blocks that are written again.
    pub tree: TreeId,
    /// The txg it was frozen in.
    pub txg: Txg,
    /// Distinguishes it from other roots of the same txg. Never changes.
    pub guid: u64,
    /// Blocks born up to this txg are also in the previous frozen root.
    pub since: Txg,
    /// The root; `None` when it is empty.
    pub root: Option<StoredPtr>,
}

/// A live tree with data that a scrub walks.
#[derive(Clone, Copy, Debug)]
pub struct LiveRoot {
    /// The number that the layer above uses for its owner, for the damage log.
    pub owner: u64,
    /// Blocks born up to this txg are also in a frozen root.
    pub since: Txg,
}

/// All roots that a scrub walks.
#[derive(Clone, Debug, Default)]
pub struct ScrubPlan {
    /// All frozen roots, in any order.
    pub frozen: Vec<FrozenRoot>,
    /// Live trees with data. Of other live trees only the nodes are read.
    pub live: BTreeMap<TreeId, LiveRoot>,
}

/// What the layer above knows about the trees, for a scrub.
pub trait ScrubRoots: Roots {
    /// The roots that can be found in the readable parts of the meta tree. For a live tree, `since` is the newest of
    /// its frozen roots that was frozen up to `frozen_until`.
    ///
    /// # Errors
    /// When the store fails.
    fn plan(&self, meta: &MetaScan<'_>, frozen_until: Txg) -> Result<ScrubPlan>;

    /// The object and block number for the frame's header of an entry's block.
    fn block_id(&self, key: &[u8]) -> BlockId;
}

/// How to scrub.
pub struct ScrubOptions<'a> {
    /// Maximal bytes to read per second.
    pub rate: Option<u64>,
    /// Maximal bytes between two commits of the position. After a crash at most this many bytes are read again.
    pub batch_bytes: u64,
    /// Called often: whether to stop reading. The scrub stays under way.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Called with the current status, at most a few times per second.
    pub progress: &'a dyn Fn(&ScrubStatus),
}

impl ScrubOptions<'_> {
    /// A sensible value for [`batch_bytes`](Self::batch_bytes).
    pub const BATCH_BYTES: u64 = 256 << 20;
}

impl std::fmt::Debug for ScrubOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScrubOptions").field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// The status of the last scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Its state.
    pub state: ScrubState,
    /// Whether it is running in this process.
    pub is_running: bool,
    /// When it began: seconds since 1970.
    pub started: u64,
    /// When it ended, or was paused: seconds since 1970; 0 while it is under way.
    pub ended: u64,
    /// Seconds of work, without pauses.
    pub worked: u64,
    /// Live bytes when it began.
    pub total: u64,
    /// Bytes of blocks found.
    pub scanned: u64,
    /// Of these, bytes read and verified.
    pub issued: u64,
    /// Bytes that were written again.
    pub repaired: u64,
    /// Damaged blocks that could not be repaired.
    pub errors: u64,
}

/// The part of a scrub's state that is only in memory.
#[derive(Debug, Default)]
pub(crate) struct Scrubbing {
    is_running: AtomicBool,
    /// The record was changed, so the running scrub must read it.
    interrupt: AtomicBool,
    /// Bytes of the current batch that were found; `issued` those that were read.
    scanned: AtomicU64,
    issued: AtomicU64,
    /// Seconds of work since the last batch ended.
    worked: AtomicU64,
}
