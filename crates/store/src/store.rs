//! The contract that every store fulfils.
//!
//! A store keeps append-only *segments*, a small ring of *uberblocks*, and knows nothing of what either holds. Only
//! two calls promise anything about a power failure: [`Store::sync`] and [`Store::publish`]. After a crash,
//! - everything that was appended or created before the last successful `sync` is there, as written;
//! - of what came after, any part may be there, whole, torn or not at all, in any order, and a segment may be longer
//!   than what was appended to it, with arbitrary bytes in the excess;
//! - every published uberblock is there, except that one being published at that moment may be there or not;
//! - a deleted segment may be back. So whoever opens a pool deletes the segments that its uberblock does not know.

mod answers;
mod mirror;
mod usage;

use std::fmt;
use std::io::IoSlice;
use std::path::PathBuf;
use std::time::Duration;

pub use answers::{DEADMAN, DEADMAN_MAX, DEADMAN_MIN, MayGiveUp, Unanswered};
pub use mirror::{MemberState, MemberStatus, Mirror, MirrorMember, ResilverStatus};
pub use usage::{CacheStatus, Traffic};

use crate::error::{Result, StoreError};
use crate::label::MirrorLabel;
use crate::limits::UBERBLOCK_MAX;
use crate::segment_id::SegmentId;

/// How much a store holds and can still take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The store's own size; `None` when only the host file system limits it.
    pub total: Option<u64>,
    /// What can still be written.
    pub free: u64,
    /// `free` is that of whole slots: what segments that are being appended to can still take is not in it.
    pub by_slots: bool,
}

/// A segment as a listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentInfo {
    /// Its name.
    pub id: SegmentId,
    /// Its length in bytes. Of a segment that was not sealed before a crash, an upper bound.
    pub len: u64,
}

/// An uberblock as it was published; what it says is the pool's business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawUberblock {
    /// The transaction group it was published for.
    pub txg: u64,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// Where a pool's bytes live.
///
/// All methods may be called from any thread at any time, but the appends to one segment must not overlap each other,
/// its reopening or its sealing.
pub trait Store: Send + Sync + fmt::Debug {
    /// The greatest length a segment may reach here, in bytes.
    fn segment_capacity(&self) -> u64;

    /// Makes an empty segment, open for appending. Not durable until [`sync`](Self::sync).
    ///
    /// # Errors
    /// `Full` when there is no room, `Exists` when the id is taken (a pool deletes orphans when it is opened).
    fn create_segment(&self, id: SegmentId) -> Result<()>;

    /// Writes `data` at exactly `offset`, which must be the segment's present end. Not durable until
    /// [`sync`](Self::sync). When it fails the end stays where it was, and the same append may be tried again.
    ///
    /// A segment's sectors are overwritten only if `offset` is not a multiple of 4096, so a pool pads what it syncs
    /// to that.
    ///
    /// # Errors
    /// `NotAtEnd`, `SegmentFull`, `Full`, `Poisoned`, `Io`.
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()>;

    /// As [`append`](Self::append), of several pieces one behind the other: all of them or none.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        let mut all = Vec::new();
        pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        self.append(id, offset, &all)
    }

    /// Makes durable whatever was created and appended before the call.
    ///
    /// # Errors
    /// After any error but `ReadOnly` the store refuses all further writes with `Poisoned`: the kernel may have
    /// dropped what it could not write and would report success the next time.
    fn sync(&self) -> Result<()>;

    /// A hint that a [`sync`](Self::sync) is near, from which nobody expects that anything is durable already. Where a sync
    /// is cheap this is one, so that the next has less to do.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    fn sync_early(&self) -> Result<()> {
        self.sync()
    }

    /// Begins to write out a range that was appended, without waiting. A hint.
    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64);

    /// Opens an existing segment for appending at `len`; whatever lies beyond is discarded.
    ///
    /// # Errors
    /// `NoSegment`; `OutOfRange` when the segment is shorter.
    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()>;

    /// Declares that no more appends will come, so that handles can be freed. Nothing happens to a segment that is
    /// not open.
    ///
    /// # Errors
    /// `Io` when the store keeps a record of the length and cannot write it.
    fn seal_segment(&self, id: SegmentId) -> Result<()>;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// `NoSegment`; `OutOfRange` when the segment ends before the range does; `Io`.
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// All segments in order of id: for scans, checks and salvage.
    ///
    /// # Errors
    /// `Io`.
    fn segments(&self) -> Result<Vec<SegmentInfo>>;

    /// Tells how far the pool refers to each segment, when it has been opened for writing: what is behind that, or in a segment
    /// that is not named, is left from before a crash. A mirror, whose members may not know the length of a segment that
    /// was open, knows then what is to be brought to those that lack something, and brings at once what is little.
    ///
    /// # Errors
    /// Those of a mirror that fails at that.
    fn set_ends(&self, ends: &[SegmentInfo]) -> Result<()> {
        let _ = ends;
        Ok(())
    }

    /// Gives a segment's space back. Deleting what is not there succeeds. Not durable: after a crash the segment may
    /// be back, so the caller makes sure first that no uberblock in the ring needs it.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    fn delete_segment(&self, id: SegmentId) -> Result<()>;

    /// Publishes the uberblock of `txg`, atomically and durably, and keeps at least the last [`UBERBLOCK_RING`]
    /// readable. What it refers to must have been synced before.
    ///
    /// # Errors
    /// As [`sync`](Self::sync), and `UberblockTooLong`. After a failure the uberblock may or may not be found by the
    /// next owner.
    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()>;

    /// [`sync`](Self::sync), then [`publish`](Self::publish): for stores where both together cost less.
    ///
    /// # Errors
    /// As the two.
    fn commit(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        self.sync()?;
        self.publish(txg, uberblock)
    }

    /// All readable uberblocks, the last published last. Torn ones are left out; of several that were published for
    /// one txg, only the last is given.
    ///
    /// # Errors
    /// `Io`.
    fn uberblocks(&self) -> Result<Vec<RawUberblock>>;

    /// Size and free space.
    ///
    /// # Errors
    /// `Io`.
    fn capacity(&self) -> Result<Capacity>;

    /// How a person names this store: a path.
    fn describe(&self) -> String;

    /// Where the owner's control socket lives; `None` when nobody else can reach the store.
    fn control_socket(&self) -> Option<PathBuf>;

    /// Requests and bytes since it was opened, where each costs something; `None` elsewhere.
    fn traffic(&self) -> Option<Traffic> {
        None
    }

    /// What it keeps on a local disk of what costs something to read; `None` if it keeps nothing.
    fn cache(&self) -> Option<CacheStatus> {
        None
    }

    /// Keeps no more than so much of it from now on. Nothing without a cache.
    fn set_cache_size(&self, _max_bytes: u64) {}

    /// Destroys the pool: its label is wiped, durably, so that it opens no more; then space is given back.
    /// Afterwards all writes are refused.
    ///
    /// # Errors
    /// `Io`, `ReadOnly`.
    fn destroy(&self) -> Result<()>;

    /// The longest uberblock that this store accepts, in bytes: at most [`UBERBLOCK_MAX`].
    fn uberblock_max(&self) -> usize {
        UBERBLOCK_MAX
    }

    /// Writes over bytes that were appended before, to put right a copy that has gone bad. Torn by a crash it leaves a
    /// copy as bad as it was. Not durable until [`sync`](Self::sync).
    ///
    /// # Errors
    /// `CannotRewrite` where bytes cannot be changed in place; `NoSegment`; `OutOfRange`; `Io`.
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (offset, data);
        Err(StoreError::CannotRewrite { id, path: self.describe().into() })
    }

    /// Compares what the store keeps about itself on its medium (labels, tables) with what it knows to be right, writes
    /// again what differs if `repair` is set, and tells how many bytes were wrong.
    ///
    /// # Errors
    /// `Io`; with `repair` also `ReadOnly`, `Poisoned`.
    fn verify_own(&self, repair: bool) -> Result<u64> {
        let _ = repair;
        Ok(0)
    }

    /// Records that the store is a member of a mirror, or (`None`) that it is one no more. Stores without a label have
    /// nothing to record.
    ///
    /// # Errors
    /// `Invalid` when the record does not fit; `Io`, `ReadOnly`.
    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        let _ = mirror;
        Ok(())
    }

    /// Whether the medium below is told at once of space that is given back, as it is at first, or only by
    /// [`trim`](Self::trim).
    fn set_autotrim(&self, on: bool) {
        let _ = on;
    }

    /// Tells the medium below of all space that holds nothing, where it wants to know. Gives the bytes that it was told of.
    ///
    /// # Errors
    /// `ReadOnly`, `Poisoned`.
    fn trim(&self) -> Result<u64> {
        Ok(0)
    }

    /// This store as a mirror, if it is one: who reads verified bytes asks it for another copy.
    fn mirror(&self) -> Option<&dyn Mirror> {
        None
    }

    /// What it has been asked longest ago and has not answered; `None` if nothing, or if nobody takes note. Does not wait.
    fn unanswered(&self) -> Option<Unanswered> {
        None
    }

    /// How long the answer of a member of a mirror is waited for before it is given up.
    fn set_deadman(&self, wait: Duration) {
        let _ = wait;
    }

    /// From now on, whoever waits for an answer longer than [`set_deadman`](Self::set_deadman) says gets `NoAnswer`, if this says
    /// so. What was asked may be done all the same, later.
    fn give_up_if(&self, may_give_up: MayGiveUp) {
        let _ = may_give_up;
    }
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn segment_capacity(&self) -> u64 {
        (**self).segment_capacity()
    }
    fn create_segment(&self, id: SegmentId) -> Result<()> {
        (**self).create_segment(id)
    }
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        (**self).append(id, offset, data)
    }
    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        (**self).append_all(id, offset, pieces)
    }
    fn sync(&self) -> Result<()> {
        (**self).sync()
    }
    fn sync_early(&self) -> Result<()> {
        (**self).sync_early()
    }
    fn traffic(&self) -> Option<Traffic> {
        (**self).traffic()
    }
    fn cache(&self) -> Option<CacheStatus> {
        (**self).cache()
    }
    fn set_cache_size(&self, max_bytes: u64) {
        (**self).set_cache_size(max_bytes);
    }
    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        (**self).start_writeback(id, offset, len);
    }
    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        (**self).reopen_segment(id, len)
    }
    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        (**self).seal_segment(id)
    }
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        (**self).read(id, offset, buf)
    }
    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        (**self).segments()
    }
    fn set_ends(&self, ends: &[SegmentInfo]) -> Result<()> {
        (**self).set_ends(ends)
    }
    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        (**self).delete_segment(id)
    }
    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        (**self).publish(txg, uberblock)
    }
    fn commit(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        (**self).commit(txg, uberblock)
    }
    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        (**self).uberblocks()
    }
    fn capacity(&self) -> Result<Capacity> {
        (**self).capacity()
    }
    fn describe(&self) -> String {
        (**self).describe()
    }
    fn control_socket(&self) -> Option<PathBuf> {
        (**self).control_socket()
    }
    fn destroy(&self) -> Result<()> {
        (**self).destroy()
    }
    fn uberblock_max(&self) -> usize {
        (**self).uberblock_max()
    }
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        (**self).rewrite(id, offset, data)
    }
    fn verify_own(&self, repair: bool) -> Result<u64> {
        (**self).verify_own(repair)
    }
    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        (**self).set_mirror(mirror)
    }
    fn set_autotrim(&self, on: bool) {
        (**self).set_autotrim(on);
    }
    fn trim(&self) -> Result<u64> {
        (**self).trim()
    }
    fn mirror(&self) -> Option<&dyn Mirror> {
        (**self).mirror()
    }
    fn unanswered(&self) -> Option<Unanswered> {
        (**self).unanswered()
    }
    fn set_deadman(&self, wait: Duration) {
        (**self).set_deadman(wait);
    }
    fn give_up_if(&self, may_give_up: MayGiveUp) {
        (**self).give_up_if(may_give_up);
    }
}
