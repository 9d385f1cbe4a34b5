//! What can go wrong in a pool, with the facts needed to act.

use snowmelt_store::{SegmentId, StoreError};
use std::sync::Arc;

use crate::ptr::Txg;
use crate::tree::TreeId;

/// Result of a pool operation.
pub type Result<T, E = PoolError> = std::result::Result<T, E>;

/// An error of the pool layer.
///
/// `Corrupt` (bytes are there, but wrong) is never merged with `Store` (bytes could not be had).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The store refused or failed an operation.
    #[error("{what}")]
    Store {
        /// What the pool was doing.
        what: &'static str,
        /// The store's own account.
        #[source]
        source: StoreError,
    },
    /// Stored bytes are not what was written: a checksum, a frame or a record does not hold.
    #[error("segment {segment} offset {offset}: {what}")]
    Corrupt {
        /// Segment of the block.
        segment: SegmentId,
        /// Offset of the block's frame in the segment.
        offset: u32,
        /// Which check failed.
        what: String,
    },
    /// A record inside verified bytes does not decode: written by a newer or broken writer.
    #[error("{record}: {why}")]
    Record {
        /// Name of the record.
        record: &'static str,
        /// Why it is refused.
        why: String,
    },
    /// A block's bytes are outside the pool, and cannot be had.
    #[error("a block's bytes are outside the pool and cannot be read: {place}")]
    Outside {
        /// What must be there.
        place: String,
        /// Why it cannot be read.
        #[source]
        source: std::io::Error,
    },
    /// What has a block's bytes, outside the pool, has changed since the pool referred to it.
    #[error("a block's bytes are outside the pool, and are not what they were: {place} has changed")]
    OutsideChanged {
        /// What must be there.
        place: String,
    },
    /// A block does not decompress to its logical size.
    #[error("segment {segment} offset {offset}: {source}")]
    Decompress {
        /// Segment of the block (0 for an embedded one).
        segment: SegmentId,
        /// Offset of the block's frame in the segment.
        offset: u32,
        /// The decompressor's account.
        #[source]
        source: snowmelt_stream::compress::CompressError,
    },
    /// No room for `needed` bytes beside the reserve.
    #[error("no space left in the pool: {needed} bytes needed, {room} left outside the reserve")]
    NoSpace {
        /// Bytes asked for.
        needed: u64,
        /// Bytes left outside the reserve (0 when the store itself is full).
        room: u64,
    },
    /// An earlier write, sync or publish failed; nothing can be written until the pool is opened again.
    #[error("the pool is suspended since txg {txg}: {cause}")]
    Suspended {
        /// Txg that could not be finished.
        txg: Txg,
        /// The first failure, with its sources.
        cause: Arc<str>,
    },
    /// The pool was opened for reading only.
    #[error("the pool is open read-only{}", because.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    ReadOnly {
        /// Why it was, where whoever opened it had no choice.
        because: Option<Arc<str>>,
    },
    /// There is no tree of this id.
    #[error("there is no tree {0:?}")]
    NoTree(TreeId),
    /// The tree was frozen for a snapshot in this very txg: a change now would carry the snapshot's txg, and no
    /// incremental could see it. End the hold, commit, and begin again.
    #[error("tree {tree:?} was frozen in txg {txg}, which is still open: commit before changing it")]
    Frozen {
        /// The tree.
        tree: TreeId,
        /// The txg of both.
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
    /// Space accounting contradicts itself; `check` tells more.
    #[error("segment {segment}: freeing {asize} bytes of {live} that are alive")]
    Accounting {
        /// The segment.
        segment: SegmentId,
        /// Bytes to be freed.
        asize: u64,
        /// Bytes recorded as alive.
        live: u64,
    },
    /// The store holds no uberblock.
    #[error("{store}: no pool here: no readable uberblock")]
    NoUberblock {
        /// The store, as a person names it.
        store: String,
    },
    /// The store holds a pool already.
    #[error("{store}: there is a pool here already")]
    Exists {
        /// The store, as a person names it.
        store: String,
    },
    /// Features this build does not know.
    #[error("the pool uses features unknown to this build: {}", names.join(", "))]
    Features {
        /// Their names or bit numbers.
        names: Vec<String>,
        /// Whether a read-only open is still possible.
        read_only_ok: bool,
    },
    /// The pool is encrypted, and no key was given.
    #[error("{store}: the pool is encrypted, and its key is not loaded")]
    KeyNeeded {
        /// The store, as a person names it.
        store: String,
    },
    /// A key that does not do.
    #[error(transparent)]
    Key(#[from] crate::seal::KeyError),
    /// Uberblocks were found, but none leads to a readable pool.
    #[error(
        "none of the {tried} newest uberblocks leads to a readable pool; the newest fails with: {source}"
    )]
    Unreadable {
        /// How many were tried.
        tried: usize,
        /// Why the newest one fails.
        #[source]
        source: Box<PoolError>,
    },
    /// The newest txg cannot be read, and an older one can: what came between would be lost, which nobody has agreed to.
    #[error("txg {newest}, the newest, cannot be read: {source}")]
    NeedsRewind {
        /// The newest txg.
        newest: Txg,
        /// The newest txg that can be read, and the seconds since 1970 when it was committed.
        to: Txg,
        /// See `to`.
        time: u64,
        /// Seconds between the two.
        lost: u64,
        /// Why the newest cannot be read.
        #[source]
        source: Box<PoolError>,
    },
    /// A txg to go back to that is not in the ring of uberblocks any more, or of which segments are gone.
    #[error("txg {txg} cannot be gone back to: {why}")]
    NoTxg {
        /// What was asked for.
        txg: Txg,
        /// Why not.
        why: String,
    },
    /// What was asked of a scrub does not fit how it stands.
    #[error("{0}")]
    Scrub(#[from] crate::scrub::ScrubRefused),
    /// An argument that no correct caller gives.
    #[error("{0}")]
    Misuse(&'static str),
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

    /// The error with all its sources on one line.
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
