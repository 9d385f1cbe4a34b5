//! Scrub: reads everything that is alive once, and verifies it.
//!
//! What is alive is found as ZFS does (dsl_scan.c): frozen roots in the order they were frozen, and in each only what was
//! born since the one before it, so every block comes up once, however many roots have it, and nothing need be
//! remembered but a place: a root, and a key in it. Blocks are gathered for a while and then read in the order of their
//! places. After each such batch the place, the figures and what was found are committed together, so a scrub that
//! dies goes on where its last batch ended.
//!
//! Nothing waits for a scrub. A batch reads what one commit left, and pins it. What roots hold moves on only to roots
//! frozen later, or to live trees, so going through them in that order misses nothing that stays; blocks born after the
//! scrub began are left out. What live trees let go of to roots frozen while they were gone through is looked for in
//! those at the end.
//!
//! Where only a frame's header is damaged, the block is written anew, and a relocation leads to it.

mod batch;
mod gather;
mod record;
mod run;
mod walk;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::block::BlockId;
use crate::check::Roots;
use crate::error::Result;
use crate::ptr::{StoredPtr, Txg};
use crate::tree::TreeId;

pub(crate) use record::ScrubRecord;
pub use record::ScrubState;
#[cfg(test)]
pub(crate) use record::{Position, Stage};
pub use walk::MetaScan;

/// A frozen root, to be gone through.
#[derive(Clone, Debug)]
pub struct FrozenRoot {
    /// What the layer above calls its owner, for the damage log.
    pub owner: u64,
    /// A live tree of the same owner, for headers of blocks that are written anew.
    pub tree: TreeId,
    /// The txg it was frozen in.
    pub txg: Txg,
    /// Tells it from others of the same txg, and stays the same for as long as it is there.
    pub guid: u64,
    /// What was born up to this txg, the root frozen before it has too.
    pub since: Txg,
    /// The root; `None` when it is empty.
    pub root: Option<StoredPtr>,
}

/// A live tree with data, to be gone through.
#[derive(Clone, Copy, Debug)]
pub struct LiveRoot {
    /// What the layer above calls its owner, for the damage log.
    pub owner: u64,
    /// What was born up to this txg, a frozen root has too.
    pub since: Txg,
}

/// What there is to be gone through.
#[derive(Clone, Debug, Default)]
pub struct ScrubPlan {
    /// All frozen roots, in any order.
    pub frozen: Vec<FrozenRoot>,
    /// Live trees with data. Of those that are not here only the nodes are looked at.
    pub live: BTreeMap<TreeId, LiveRoot>,
}

/// What the layer above knows of the trees, for a scrub.
pub trait ScrubRoots: Roots {
    /// What there is, by what of the meta tree can be read. The `since` of live trees is the newest of their frozen
    /// roots that is not of a txg after `frozen_until`.
    ///
    /// # Errors
    /// When the store fails.
    fn plan(&self, meta: &MetaScan<'_>, frozen_until: Txg) -> Result<ScrubPlan>;

    /// What a frame's header says of the block of an entry.
    fn block_id(&self, key: &[u8]) -> BlockId;
}

/// How to scrub.
pub struct ScrubOptions<'a> {
    /// Bytes to read in a second, at most.
    pub rate: Option<u64>,
    /// Bytes between two commits of the scrub's place, at most: so much is read twice after a crash.
    pub batch_bytes: u64,
    /// Asked often: whether to leave off. The scrub stays under way.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Told how far it is, some times a second at most.
    pub progress: &'a dyn Fn(&ScrubStatus),
}

impl ScrubOptions<'_> {
    /// What is sensible for [`batch_bytes`](Self::batch_bytes).
    pub const BATCH_BYTES: u64 = 256 << 20;
}

impl std::fmt::Debug for ScrubOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScrubOptions").field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// The last scrub, as far as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubStatus {
    /// How it stands.
    pub state: ScrubState,
    /// Whether this process is at it.
    pub is_running: bool,
    /// When it began: seconds since 1970.
    pub started: u64,
    /// When it ended, or was paused: seconds since 1970; 0 while it is under way.
    pub ended: u64,
    /// Seconds of work, those between not counted.
    pub worked: u64,
    /// Bytes that were alive when it began.
    pub total: u64,
    /// Bytes of blocks found.
    pub scanned: u64,
    /// Of these, bytes read and verified.
    pub issued: u64,
    /// Bytes written anew.
    pub repaired: u64,
    /// Blocks that are damaged for good.
    pub errors: u64,
}

/// Why a scrub was not begun, paused or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScrubRefused {
    /// One is under way, in this process.
    #[error("a scrub is under way")]
    Running,
    /// None is under way.
    #[error("there is no active scrub")]
    NotRunning,
    /// It is paused already.
    #[error("the scrub is paused already")]
    Paused,
}

/// What of a scrub is in memory only.
#[derive(Debug, Default)]
pub(crate) struct Scrubbing {
    is_running: AtomicBool,
    /// The runner is to look at the record: somebody changed it.
    interrupt: AtomicBool,
    /// Bytes of the batch at hand: found, and read.
    scanned: AtomicU64,
    issued: AtomicU64,
    /// Seconds of work since the last batch ended.
    worked: AtomicU64,
}
