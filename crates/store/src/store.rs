//! The trait [`Store`]: the contract that every store fulfils.
//!
//! A store keeps append-only *segments* and a small ring of *uberblocks*. It does not interpret their contents. Only
//! two calls make a promise about power failures: [`Store::sync`] and [`Store::publish`]. After a crash:
//! - Everything that was appended or created before the last successful `sync` is present, as written.
//! - Any part of the later writes may be present: whole, torn or not at all, in any order. A segment may also be
//!   longer than what was appended to it, with arbitrary bytes beyond that.
//! - Every published uberblock is present. An uberblock that was being published at that moment may be present
//!   or not.
//! - A deleted segment may be present again. Therefore, when the owner opens the pool, it deletes the segments
//!   that its uberblock does not know.

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

/// The size and the free space of a store, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The size of the store; `None` when only the host file system limits it.
    pub total: Option<u64>,
    /// Bytes that can still be written.
    pub free: u64,
    /// Whether `free` counts only whole free slots, without the space left in segments that are open for appending.
    pub by_slots: bool,
}

/// The id and length of a segment, as [`Store::segments`] lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentInfo {
    /// The segment.
    pub id: SegmentId,
    /// Length in bytes. This is an upper bound for a segment that was not sealed before a crash.
    pub len: u64,
}

/// An uberblock as it was published. The store does not interpret its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawUberblock {
    /// The txg that the uberblock was published for.
    pub txg: u64,
    /// The contents of the uberblock.
    pub bytes: Vec<u8>,
}

/// The place that holds the bytes of a pool.
///
/// All methods may be called from any thread at any time, with one exception: appends to a segment must not run at
/// the same time as each other, as [`reopen_segment`](Self::reopen_segment) or as
/// [`seal_segment`](Self::seal_segment) of that segment.
pub trait Store: Send + Sync + fmt::Debug {
    /// The maximum length of a segment in this store, in bytes.
    fn segment_capacity(&self) -> u64;

    /// Creates an empty segment that is open for appending. Durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// `Full` when there is no space; `Exists` when the id is in use. (A pool deletes orphans when it is opened.)
    fn create_segment(&self, id: SegmentId) -> Result<()>;

    /// Writes `data` at `offset`, which must be the current end of the segment. Durable only after
    /// [`sync`](Self::sync). After an error, the end is unchanged, and the same append may be tried again.
    ///
    /// If `offset` is not a multiple of 4096, the append overwrites a sector that already holds data. Therefore, a
    /// pool pads what it syncs to a multiple of 4096.
    ///
    /// # Errors
    /// `NotAtEnd`, `SegmentFull`, `Full`, `Poisoned`, `Io`.
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()>;

    /// Appends several pieces, in order. Either all of them are appended, or none.
    ///
    /// # Errors
    /// The same as [`append`](Self::append).
    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        let mut all = Vec::new();
        pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        self.append(id, offset, &all)
    }

    /// Makes everything durable that was created and appended before the call.
    ///
    /// # Errors
    /// After any error except `ReadOnly`, the store refuses all further writes with `Poisoned`. The reason: the
    /// kernel may have dropped the data that it could not write, and would report success for the next sync.
    fn sync(&self) -> Result<()>;

    /// Announces that a [`sync`](Self::sync) will follow soon. This is a hint: it does not promise that anything is
    /// durable. Where a sync is cheap, this call does one, so that the next sync has less to write.
    ///
    /// # Errors
    /// The same as [`sync`](Self::sync).
    fn sync_early(&self) -> Result<()> {
        self.sync()
    }

    /// Starts to write an appended range to the medium, without waiting. This is a hint.
    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64);

    /// Opens an existing segment for appending at `len`. Bytes beyond `len` are discarded.
    ///
    /// # Errors
    /// `NoSegment`; `OutOfRange` when the segment is shorter than `len`.
    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()>;

    /// Declares that no more appends will follow, so that the store can close file handles. Does nothing for a
    /// segment that is not open.
    ///
    /// # Errors
    /// `Io` when the store keeps a record of the length and cannot write it.
    fn seal_segment(&self, id: SegmentId) -> Result<()>;

    /// Fills `buf` with the bytes of the segment that start at `offset`.
    ///
    /// # Errors
    /// `NoSegment`; `OutOfRange` when the range goes beyond the end of the segment; `Io`.
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Lists all segments in order of their ids: for scans, checks and salvage.
    ///
    /// # Errors
    /// `Io`.
    fn segments(&self) -> Result<Vec<SegmentInfo>>;

    /// Passes to the store how many bytes of each segment the pool refers to. The pool calls this when it has been
    /// opened for writing. Bytes beyond these ends, and segments that are not listed, are left over from before a
    /// crash.
    ///
    /// A mirror needs these ends because its members may not know the length of a segment that was open. It then
    /// knows what it must copy to members that lack data. If that is little, it copies it at once.
    ///
    /// # Errors
    /// Errors of a mirror that cannot copy.
    fn set_ends(&self, ends: &[SegmentInfo]) -> Result<()> {
        let _ = ends;
        Ok(())
    }

    /// Deletes a segment and frees its space. Deleting a segment that does not exist succeeds. The deletion is not
    /// durable: the segment may be present again after a crash. The caller must make sure first that no uberblock in
    /// the ring needs the segment.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    fn delete_segment(&self, id: SegmentId) -> Result<()>;

    /// Publishes the uberblock of `txg`, atomically and durably. At least the last
    /// [`UBERBLOCK_RING`](crate::UBERBLOCK_RING) uberblocks stay readable. Everything that the uberblock refers to must
    /// have been synced before.
    ///
    /// # Errors
    /// The same as [`sync`](Self::sync), and `UberblockTooLong`. After an error, the next owner may find the
    /// uberblock or not.
    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()>;

    /// Does [`sync`](Self::sync), then [`publish`](Self::publish). Some stores can do both together at a lower cost.
    ///
    /// # Errors
    /// The same as those two calls.
    fn commit(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        self.sync()?;
        self.publish(txg, uberblock)
    }

    /// Returns all readable uberblocks in the order of their publication. Torn uberblocks are left out. If several
    /// were published for one txg, only the last of them is returned.
    ///
    /// # Errors
    /// `Io`.
    fn uberblocks(&self) -> Result<Vec<RawUberblock>>;

    /// Returns the size and the free space.
    ///
    /// # Errors
    /// `Io`.
    fn capacity(&self) -> Result<Capacity>;

    /// The name of this store in messages: a path.
    fn describe(&self) -> String;

    /// The path of the owner's control socket; `None` when no other process can reach the store.
    fn control_socket(&self) -> Option<PathBuf>;

    /// Counts of requests and bytes since the store was opened, for stores whose requests cost money or time; else
    /// `None`.
    fn traffic(&self) -> Option<Traffic> {
        None
    }

    /// The state of the store's cache on a local disk; `None` if it has no cache.
    fn cache(&self) -> Option<CacheStatus> {
        None
    }

    /// Sets the maximum size of the cache. Does nothing if there is no cache.
    fn set_cache_size(&self, _max_bytes: u64) {}

    /// Destroys the pool. First the label is wiped, durably, so that the pool can no longer be opened. Then the space
    /// is freed. Afterwards, all writes are refused.
    ///
    /// # Errors
    /// `Io`, `ReadOnly`.
    fn destroy(&self) -> Result<()>;

    /// The maximum length of an uberblock in this store, in bytes. It is at most [`UBERBLOCK_MAX`].
    fn uberblock_max(&self) -> usize {
        UBERBLOCK_MAX
    }

    /// Overwrites bytes that were appended before, to repair a damaged copy. If a crash tears the write, the copy is
    /// still damaged. Durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// `CannotRewrite` where bytes cannot be changed in place; `NoSegment`; `OutOfRange`; `Io`.
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (offset, data);
        Err(StoreError::CannotRewrite { id, path: self.describe().into() })
    }

    /// Compares the labels and tables of the store on its medium with their correct contents. With `repair`, writes
    /// those again that differ. Returns how many bytes were wrong.
    ///
    /// # Errors
    /// `Io`; with `repair` also `ReadOnly`, `Poisoned`.
    fn verify_own(&self, repair: bool) -> Result<u64> {
        let _ = repair;
        Ok(0)
    }

    /// Records that the store is a member of a mirror, or with `None` that it is no longer one. Stores without a
    /// label record nothing.
    ///
    /// # Errors
    /// `Invalid` when the record does not fit; `Io`, `ReadOnly`.
    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        let _ = mirror;
        Ok(())
    }

    /// Sets whether freed space is reported to the medium below at once (the default), or only by
    /// [`trim`](Self::trim).
    fn set_autotrim(&self, on: bool) {
        let _ = on;
    }

    /// Reports all free space to the medium below, if the medium supports that. Returns how many bytes were reported.
    ///
    /// # Errors
    /// `ReadOnly`, `Poisoned`.
    fn trim(&self) -> Result<u64> {
        Ok(0)
    }

    /// Returns this store as a mirror, if it is one. A caller that finds a wrong checksum can then read another copy.
    fn mirror(&self) -> Option<&dyn Mirror> {
        None
    }

    /// Returns the oldest request that the store has not answered yet; `None` if there is none, or if the store does
    /// not keep track of its requests. Does not wait.
    fn unanswered(&self) -> Option<Unanswered> {
        None
    }

    /// Sets how long to wait for the answer of a mirror's member before the member is given up.
    fn set_deadman(&self, wait: Duration) {
        let _ = wait;
    }

    /// Sets the function that decides whether a late answer is given up. When a request takes longer than
    /// [`set_deadman`](Self::set_deadman) allows and `may_give_up` returns true, its caller gets `NoAnswer`. The
    /// operation may still be done later.
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
