//! The cleaner: moves live blocks out of segments that are mostly dead, so that the segments can be deleted.
//!
//! Pointers do not change. The new place of a block is recorded under the place that it was first written to
//! ([`relocation`](crate::relocation)). Relocations are stored in the meta tree, so they cannot lead to its own nodes:
//! these are written again instead.
//!
//! A walk from all roots finds the live blocks. Other work continues meanwhile. A block is moved only if it was
//! reachable after the cleaning began and has not been freed since: [`Cleaning`] notes frees from before the walk
//! begins. A block that the walk misses stays in its place, and so does its segment, because a segment is deleted only
//! if its accounting says that it is empty.
//!
//! Blocks are copied in sync tasks, so that copy, relocation and accounting are in the same txg. After a crash a block
//! is at its old place or at its new one. The old place is kept until no uberblock of the ring and no view needs it.

mod mark;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::MutexGuard;
use snowmelt_store::{Capacity, SegmentId};

pub(crate) use self::mark::Live;
use self::mark::Marks;
use crate::block::Prepared;
use crate::check::Roots;
use crate::error::{PoolError, Result};
use crate::format::segment::{FRAME_HEADER, FrameHeader};
use crate::io::{Io, Outgoing};
use crate::pool::Pool;
use crate::relocation;
use crate::space::{ALIVE_MAX_PERCENT, LAST_RESORT_PERCENT};
use crate::txg::Hold;

/// Bytes copied in one sync task. All other writers wait during a sync task.
const BATCH_BYTES: u64 = 32 << 20;

/// Which segments to clean.
#[derive(Clone, Copy, Debug)]
pub struct CleanOptions {
    /// Clean only segments of which at most this percentage is live.
    pub alive_max_percent: u64,
    /// Copy at most about this many bytes.
    pub bytes_max: u64,
}

impl Default for CleanOptions {
    fn default() -> Self {
        CleanOptions { alive_max_percent: ALIVE_MAX_PERCENT, bytes_max: 256 << 20 }
    }
}

impl CleanOptions {
    /// For a pool without free space: also chooses segments that give little space back.
    #[must_use]
    pub fn last_resort() -> Self {
        CleanOptions { alive_max_percent: LAST_RESORT_PERCENT, ..CleanOptions::default() }
    }
}

/// The result of cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments that were deleted.
    pub segments: u64,
    /// Blocks that were moved.
    pub blocks: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes of the deleted segments minus the copied bytes.
    pub freed: u64,
    /// Blocks that could not be read. They stay in their place.
    pub unreadable: u64,
}

impl CleanReport {
    /// Adds the numbers of another round.
    pub fn add(&mut self, other: &CleanReport) {
        self.segments += other.segments;
        self.blocks += other.blocks;
        self.copied += other.copied;
        self.freed = self.freed.saturating_add(other.freed);
        self.unreadable += other.unreadable;
    }
}

/// The segments being cleaned, and the places of blocks that were freed since the cleaning began. A place is where the
/// block was first written to.
#[derive(Debug, Default)]
pub(crate) struct Cleaning {
    pub(crate) segments: BTreeSet<SegmentId>,
    pub(crate) freed: HashSet<(SegmentId, u32)>,
}

/// Permission to clean. Only one exists at a time.
#[must_use]
pub struct Turn<'p>(#[expect(dead_code, reason = "held for its drop")] MutexGuard<'p, ()>);

/// Space reserved for the cleaner until this is dropped.
struct SetAside<'p>(&'p Io);

impl<'p> SetAside<'p> {
    fn new(io: &'p Io, bytes: u64) -> Self {
        io.set_aside.store(bytes, Ordering::Relaxed);
        Self(io)
    }

    /// Notes that `bytes` of the reserved space were used.
    fn used(io: &Io, bytes: u64) {
        let less = |left: u64| Some(left.saturating_sub(bytes));
        let _ = io.set_aside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        self.0.set_aside.store(0, Ordering::Relaxed);
    }
}

/// A block in memory that is being moved.
struct Moving {
    live: Live,
    header: FrameHeader,
    payload: Vec<u8>,
}

impl Pool {
    /// Segments that may be cleaned and their live bytes, those with the fewest live bytes first.
    fn cleanable(&self, options: &CleanOptions) -> Result<Vec<(SegmentId, u64)>> {
        let slot = self.io().slot(self.capacity()?.total);
        let table = self.io().space.lock();
        let found = table.cleanable(options.alive_max_percent, slot);
        let mut found: Vec<_> = found.filter(|(_, alive, _)| *alive > 0).collect();
        found.sort_by_key(|(_, alive, _)| *alive);
        Ok(found.into_iter().map(|(id, alive, _)| (id, alive)).collect())
    }

    /// Waits until no other thread cleans. Must not be called with a hold.
    pub fn turn(&self) -> Turn<'_> {
        Turn(self.cleaner.lock())
    }

    /// Number of segments deleted from the store since the pool was opened.
    pub fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Acquire)
    }

    /// Calls `clean` repeatedly while space is low and `clean` returns true. Does nothing while another thread cleans,
    /// or if this was already tried and no segment was filled or deleted since. Must not be called with a hold.
    ///
    /// # Errors
    /// Those of `clean`; when the store cannot report its capacity.
    pub fn while_low<E: From<PoolError>>(
        &self,
        mut clean: impl FnMut(&Turn<'_>) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let io = self.io();
        if !io.looks_low() || !io.has_moved() {
            return Ok(());
        }
        let Some(turn) = self.cleaner.try_lock().map(Turn) else { return Ok(()) };
        io.refresh_room()?;
        while io.looks_low() && clean(&turn)? {
            io.refresh_room()?;
        }
        io.saw_low();
        Ok(())
    }

    /// Whether cleaning would free at least one percent of the size of all segments.
    ///
    /// # Errors
    /// When the store cannot report its capacity.
    pub fn is_worth_cleaning(&self, options: &CleanOptions) -> Result<bool> {
        let found = self.cleanable(options)?;
        let dead: u64 = found.iter().map(|(_, alive)| self.io().segment_bytes.saturating_sub(*alive)).sum();
        let occupied = self.io().space.lock().occupied();
        let enough = self.cleaned_at_least()?;
        let least = if enough > 1 { self.io().segment_bytes } else { 1 };
        Ok(found.len() >= enough && dead >= least.max(occupied / 100))
    }

    /// The minimal number of segments to clean. If every segment occupies a slot of fixed size, cleaning one segment
    /// may fill another, so at least two are needed.
    fn cleaned_at_least(&self) -> Result<usize> {
        Ok(if self.capacity()?.total.is_some() { 2 } else { 1 })
    }

    /// Bytes that may be copied beside the existing and the promised bytes. The relocations need space too. If segments
    /// occupy slots of fixed size, nodes may need one slot.
    fn room_to_copy(&self) -> Result<u64> {
        let Capacity { total, free, .. } = self.capacity()?;
        let unused = free.saturating_sub(self.promised());
        Ok(if total.is_some() { unused / 2 } else { unused / 4 * 3 })
    }

    fn capacity(&self) -> Result<Capacity> {
        self.store().capacity().map_err(PoolError::store("asking the store for its capacity"))
    }

    /// Cleans some segments. `roots` is as for [`check`](Self::check). Must not be called with a hold.
    ///
    /// # Errors
    /// When the pool cannot be read or written. Blocks that were moved before the error stay moved.
    pub fn clean(&self, _turn: &Turn<'_>, roots: &dyn Roots, options: &CleanOptions) -> Result<CleanReport> {
        let bytes_max = options.bytes_max.min(self.room_to_copy()?);
        let mut alive = 0;
        let within = self.cleanable(options)?.into_iter().take_while(|(_, bytes)| {
            let fits = alive + bytes <= bytes_max;
            if fits {
                alive += bytes;
            }
            fits
        });
        let segments: BTreeSet<_> = within.map(|(id, _)| id).collect();
        if segments.len() < self.cleaned_at_least()? {
            return Ok(CleanReport::default());
        }
        // Otherwise other writers could use the space, and the cleaner could not write the blocks.
        let _set_aside = SetAside::new(self.io(), alive);
        let before = self.io().space.lock().occupied();
        *self.io().cleaning.lock() = Some(Cleaning { segments: segments.clone(), ..Cleaning::default() });
        self.io().is_cleaning.store(true, Ordering::Release);
        let cleaned = self.clean_segments(roots, &segments);
        self.io().is_cleaning.store(false, Ordering::Release);
        *self.io().cleaning.lock() = None;
        let mut report = cleaned?;
        self.drain_frees()?;
        let table = self.io().space.lock();
        report.segments = segments.iter().filter(|id| table.get(**id).is_none()).count() as u64;
        report.freed = before.saturating_sub(table.occupied());
        Ok(report)
    }

    fn clean_segments(&self, roots: &dyn Roots, segments: &BTreeSet<SegmentId>) -> Result<CleanReport> {
        let marks = {
            let (_, meta, _) = self.capture()?;
            Marks::collect(self, &meta, roots, segments)?
        };
        let mut report = CleanReport::default();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for live in marks.into_iter() {
            match self.read_or_mend(&live) {
                Ok(moving) => {
                    bytes += live.asize;
                    batch.push(moving);
                }
                Err(error) if error.is_corruption() => report.unreadable += 1,
                Err(error) => return Err(error),
            }
            if bytes >= BATCH_BYTES {
                self.sync_task(|hold| self.move_all(hold, std::mem::take(&mut batch), &mut report))?;
                bytes = 0;
            }
        }
        self.sync_task(|hold| {
            self.move_all(hold, batch, &mut report)?;
            self.meta().rewrite(hold, &|ptr| segments.contains(&ptr.segment))
        })?;
        Ok(report)
    }

    /// As [`read_frame`](Self::read_frame), but repairs a damaged block from parity.
    fn read_or_mend(&self, live: &Live) -> Result<Moving> {
        match self.read_frame(live) {
            Err(error) if error.is_damage() && self.io().mend_range(live.place, live.asize) => {
                self.read_frame(live)
            }
            read => read,
        }
    }

    fn read_frame(&self, live: &Live) -> Result<Moving> {
        let (segment, offset) = live.place;
        let corrupt = |what: &str| PoolError::Corrupt { segment, offset, what: what.to_owned() };
        let length = usize::try_from(live.asize).map_err(|_| corrupt("a block of impossible size"))?;
        let mut bytes = vec![0; length];
        let read = self.store().read(segment, u64::from(offset), &mut bytes);
        read.map_err(PoolError::store("reading a block to be moved"))?;
        let header =
            FrameHeader::decode(bytes.get(..FRAME_HEADER).unwrap_or_default(), segment, offset.into())?;
        let end = FRAME_HEADER + header.psize as usize;
        let payload =
            bytes.get(FRAME_HEADER..end).ok_or_else(|| corrupt("a frame longer than its pointer says"))?;
        if *blake3::hash(payload).as_bytes() != header.hash {
            return Err(corrupt("BLAKE3 of the stored bytes does not match the frame"));
        }
        Ok(Moving { live: *live, payload: payload.to_vec(), header })
    }

    /// Copies blocks to the open segments and records their new places.
    fn move_all(&self, hold: &Hold<'_>, batch: Vec<Moving>, report: &mut CleanReport) -> Result<()> {
        for Moving { live, header, payload } in batch {
            let freed = |cleaning: &Cleaning| cleaning.freed.contains(&live.origin);
            if self.io().cleaning.lock().as_ref().is_none_or(freed) {
                continue;
            }
            self.put_elsewhere(hold, &live, &header, payload.into())?;
            SetAside::used(self.io(), live.asize);
            report.blocks += 1;
            report.copied += live.asize;
        }
        Ok(())
    }

    /// Writes a live block to a new place, and records the relocation.
    pub(crate) fn put_elsewhere(
        &self,
        hold: &Hold<'_>,
        live: &Live,
        header: &FrameHeader,
        payload: Bytes,
    ) -> Result<()> {
        let FrameHeader { kind, owner, object, blkid, .. } = *header;
        let block = Prepared {
            payload,
            lsize: header.lsize,
            compression: header.compression,
            hash: header.hash,
            outside: None,
        };
        let out = Outgoing { kind, owner, object, blkid, block: &block };
        let new = self.io().write(&out, header.birth)?;
        let value = relocation::encode(new.segment, new.offset);
        let (segment, offset) = live.origin;
        if let Err(error) = self.meta().insert(hold, &relocation::key(segment, offset), &value) {
            self.io().free(new.segment, new.asize(), false, hold.txg())?;
            return Err(error);
        }
        self.io().relocations.store(true, Ordering::Release);
        self.io().free(live.place.0, live.asize, false, hold.txg())
    }
}
