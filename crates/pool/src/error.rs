//! Errors of a pool.

use snowmelt_store::{SegmentId, StoreError};
use std::sync::Arc;

use crate::ids::{TreeId, Txg};

/// Result of a pool operation.
pub type Result<T, E = PoolError> = std::result::Result<T, E>;

/// An error of the pool layer.
///
/// `Corrupt` means that bytes were read and are wrong. `Store` means that bytes could not be read. They are never
/// mixed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The store refused an operation, or it failed.
    #[error("{what}")]
    Store {
        /// What the pool was doing.
        what: &'static str,
        /// The error of the store.
        #[source]
        source: StoreError,
    },
    /// Stored bytes differ from what was written: a checksum, a frame or a record is wrong.
    #[error("segment {segment} offset {offset}: {what}")]
    Corrupt {
        /// Segment of the block.
        segment: SegmentId,
        /// Offset of the block's frame in the segment.
        offset: u32,
        /// Which check failed.
        what: String,
    },
    /// A record inside verified bytes cannot be decoded. A newer version or a bug wrote it.
    #[error("{record}: {why}")]
    Record {
        /// Name of the record.
        record: &'static str,
        /// Why it is refused.
        why: String,
    },
    /// An external block cannot be read.
    #[error("a block's bytes are outside the pool and cannot be read: {place}")]
    Outside {
        /// The file that must be there.
        place: String,
        /// Why it cannot be read.
        #[source]
        source: std::io::Error,
    },
    /// The file with an external block has changed since the pool referred to it.
    #[error("a block's bytes are outside the pool, and are not what they were: {place} has changed")]
    OutsideChanged {
        /// The file that must be there.
        place: String,
    },
    /// A block does not decompress to its logical size.
    #[error("segment {segment} offset {offset}: {source}")]
    Decompress {
        /// Segment of the block (0 for an embedded one).
        segment: SegmentId,
        /// Offset of the block's frame in the segment.
        offset: u32,
        /// The decompressor's error.
        #[source]
        source: snowmelt_stream::compress::CompressError,
    },
    /// There is no space for `needed` bytes outside the reserve.
    #[error("no space left in the pool: {needed} bytes needed, {room} left outside the reserve")]
    NoSpace {
        /// Bytes that were requested.
        needed: u64,
        /// Bytes left outside the reserve; 0 when the store itself is full.
        room: u64,
    },
    /// An earlier write, sync or publication failed. Nothing can be written until the pool is opened again.
    #[error("the pool is suspended since txg {txg}: {cause}")]
    Suspended {
        /// The txg that could not be committed.
        txg: Txg,
        /// The first failure, with its causes.
        cause: Arc<str>,
    },
    /// The pool was opened for reading only.
    #[error("the pool is open read-only{}", because.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    ReadOnly {
        /// Why, if the caller did not choose it.
        because: Option<Arc<str>>,
    },
    /// There is no tree of this id.
    #[error("there is no tree {0:?}")]
    NoTree(TreeId),
    /// The tree was frozen for a snapshot in the txg that is still open. A change now would have the snapshot's txg as
    /// its birth, and an incremental stream would miss it. Drop the hold, commit, and begin again.
    #[error("tree {tree:?} was frozen in txg {txg}, which is still open: commit before changing it")]
    Frozen {
        /// The tree.
        tree: TreeId,
        /// The txg in which the tree was frozen.
        txg: Txg,
    },
    /// A key, value or block is outside its legal sizes.
    #[error("{what} of {len} bytes: legal are {min} to {max}")]
    Size {
        /// What was too large or too small.
        what: &'static str,
        /// Its length, bytes.
        len: u64,
        /// Smallest legal length, bytes.
        min: u64,
        /// Largest legal length, bytes.
        max: u64,
    },
    /// The space accounting contradicts itself; `check` reports details.
    #[error("segment {segment}: freeing {asize} bytes of {live} that are alive")]
    Accounting {
        /// The segment.
        segment: SegmentId,
        /// Number of bytes to free.
        asize: u64,
        /// Number of bytes recorded as live.
        live: u64,
    },
    /// The store holds no uberblock.
    #[error("{store}: no pool here: no readable uberblock")]
    NoUberblock {
        /// Name of the store for messages.
        store: String,
    },
    /// The store already holds a pool.
    #[error("{store}: there is a pool here already")]
    Exists {
        /// Name of the store for messages.
        store: String,
    },
    /// The pool uses features that this build does not know.
    #[error("the pool uses features unknown to this build: {}", names.join(", "))]
    Features {
        /// Their names or bit numbers.
        names: Vec<String>,
        /// Whether the pool can still be opened for reading only.
        read_only_ok: bool,
    },
    /// The pool is encrypted, and no key was given.
    #[error("{store}: the pool is encrypted, and its key is not loaded")]
    KeyNeeded {
        /// Name of the store for messages.
        store: String,
    },
    /// The given key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Uberblocks were found, but none of them leads to a readable pool.
    #[error(
        "none of the {tried} newest uberblocks leads to a readable pool; the newest fails with: {source}"
    )]
    Unreadable {
        /// How many uberblocks were tried.
        tried: usize,
        /// Why the newest one cannot be opened.
        #[source]
        source: Box<PoolError>,
    },
    /// The newest txg cannot be read, but an older one can. Opening the older one loses the changes in between, so the
    /// caller must ask for it.
    #[error("txg {newest}, the newest, cannot be read: {source}")]
    NeedsRewind {
        /// The newest txg.
        newest: Txg,
        /// The newest txg that can be read.
        to: Txg,
        /// When `to` was committed, in seconds since 1970.
        time: u64,
        /// Seconds between `to` and `newest`.
        lost: u64,
        /// Why the newest txg cannot be read.
        #[source]
        source: Box<PoolError>,
    },
    /// The requested txg is no longer in the ring of uberblocks, or some of its segments are missing.
    #[error("txg {txg} cannot be gone back to: {why}")]
    NoTxg {
        /// The requested txg.
        txg: Txg,
        /// Why it cannot be opened.
        why: String,
    },
    /// The request does not fit the state of the scrub.
    #[error("{0}")]
    Scrub(#[from] ScrubRefused),
    /// An argument that only an incorrect caller passes.
    #[error("{0}")]
    Misuse(&'static str),
}

/// Why a key could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key does not unwrap the pool's key.
    #[error("incorrect key")]
    Incorrect,
    /// The key does not have the expected form. Says what was expected and what was given.
    #[error("{0}")]
    Form(String),
    /// The key record demands costs or parameters that no writer uses.
    #[error("the pool's key record is not to be trusted: {0}")]
    Record(String),
    /// The system provides no random numbers or no memory.
    #[error("{0}")]
    System(&'static str),
}

/// Why a request about a scrub was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScrubRefused {
    /// A scrub is running in this process.
    #[error("a scrub is under way")]
    Running,
    /// No scrub is under way.
    #[error("there is no active scrub")]
    NotRunning,
    /// The scrub is already paused.
    #[error("the scrub is paused already")]
    Paused,
}

impl PoolError {
    pub(crate) fn record(record: &'static str, why: impl Into<String>) -> Self {
        PoolError::Record { record, why: why.into() }
    }

    pub(crate) fn store(what: &'static str) -> impl FnOnce(StoreError) -> Self {
        move |source| PoolError::Store { what, source }
    }

    /// Whether stored bytes are wrong or missing, as opposed to a failing device or a full pool.
    pub fn is_corruption(&self) -> bool {
        match self {
            PoolError::Corrupt { .. } | PoolError::Record { .. } | PoolError::Decompress { .. } => true,
            PoolError::Store { source, .. } => matches!(source, StoreError::OutOfRange { .. }),
            _ => false,
        }
    }

    /// The error with all its causes on one line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }
}
