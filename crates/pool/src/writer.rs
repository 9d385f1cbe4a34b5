//! The open segment of one kind: a tail in memory before the store, rolled over to a new segment when full.
//!
//! Blocks are handed out as written once they are in the tail; whoever reads one that is still there is served from
//! it. Lock order: a writer's tail, then the segment table.

use bytes::Bytes;
use parking_lot::Mutex;
use snowmelt_store::{SegmentId, Store, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pending::Pending;
use crate::segment::{COMMIT_ALIGN, FRAME_ALIGN, FRAME_HEADER, FrameHeader, Kind, frame_len};

/// Marks that no segment is open. Ids begin at 1.
const NONE: u64 = 0;

struct Tail {
    segment: SegmentId,
    /// Bytes the store has.
    base: u64,
    /// What is behind them that it does not have yet.
    pending: Pending,
}

impl Tail {
    fn end(&self) -> u64 {
        self.base + self.pending.len()
    }
}

/// What writers tell the segment table.
pub(crate) trait Ledger {
    /// A new id, never given out before.
    fn next_id(&self) -> SegmentId;
    fn opened(&self, id: SegmentId, kind: Kind);
    fn grown(&self, id: SegmentId, len: u64);
    fn sealed(&self, id: SegmentId);
}

pub(crate) struct Writer {
    kind: Kind,
    segment_bytes: u64,
    buffer_bytes: usize,
    tail: Mutex<Option<Tail>>,
    /// Copies of the tail's segment and base, so that a reader of anything else takes no lock.
    segment: AtomicU64,
    base: AtomicU64,
}

/// Why a frame could not be appended: the store, or a block larger than a segment.
pub(crate) enum AppendError {
    Store(StoreError),
    TooLarge { max: u64 },
}

impl From<StoreError> for AppendError {
    fn from(error: StoreError) -> Self {
        AppendError::Store(error)
    }
}

impl Writer {
    pub(crate) fn new(kind: Kind, segment_bytes: u64, buffer_bytes: usize) -> Self {
        Writer {
            kind,
            segment_bytes,
            buffer_bytes,
            tail: Mutex::new(None),
            segment: AtomicU64::new(NONE),
            base: AtomicU64::new(0),
        }
    }

    /// Goes on in a segment that an earlier owner left open at `len`.
    pub(crate) fn resume(&self, segment: SegmentId, len: u64) {
        *self.tail.lock() = Some(Tail { segment, base: len, pending: Pending::default() });
        self.base.store(len, Ordering::Release);
        self.segment.store(segment.0, Ordering::Release);
    }

    /// Appends one frame. When this fails, nothing was appended, and it may be tried again.
    pub(crate) fn append(
        &self,
        store: &dyn Store,
        ledger: &dyn Ledger,
        header: &FrameHeader,
        payload: &Bytes,
    ) -> Result<(SegmentId, u32), AppendError> {
        let len = frame_len(header.psize);
        if len > self.segment_bytes {
            return Err(AppendError::TooLarge {
                max: self.segment_bytes - FRAME_HEADER as u64 - FRAME_ALIGN,
            });
        }
        let mut tail = self.tail.lock();
        if tail.as_ref().is_some_and(|tail| tail.end() + len > self.segment_bytes) {
            self.close(store, ledger, &mut tail)?;
        }
        let open = match &mut *tail {
            Some(open) => {
                let pending = open.pending.len();
                if pending > 0 && pending + len > self.buffer_bytes as u64 {
                    self.write_out(store, open)?;
                }
                open
            }
            none => {
                let id = ledger.next_id();
                store.create_segment(id)?;
                ledger.opened(id, self.kind);
                self.base.store(0, Ordering::Release);
                self.segment.store(id.0, Ordering::Release);
                none.insert(Tail { segment: id, base: 0, pending: Pending::default() })
            }
        };
        let offset = open.end();
        open.pending.copy(&header.encode(open.segment, offset));
        open.pending.push(payload);
        open.pending.pad_to(open.pending.len().next_multiple_of(FRAME_ALIGN));
        ledger.grown(open.segment, open.end());
        let offset = u32::try_from(offset).map_err(|_| AppendError::TooLarge { max: self.segment_bytes })?;
        Ok((open.segment, offset))
    }

    fn flush_tail(&self, store: &dyn Store, tail: &mut Tail) -> Result<(), StoreError> {
        if tail.pending.len() == 0 {
            return Ok(());
        }
        store.append_all(tail.segment, tail.base, &tail.pending.slices())?;
        tail.base = tail.end();
        tail.pending.clear(self.buffer_bytes * 2);
        self.base.store(tail.base, Ordering::Release);
        Ok(())
    }

    /// As [`flush_tail`](Self::flush_tail), of what nobody waits for yet.
    fn write_out(&self, store: &dyn Store, tail: &mut Tail) -> Result<(), StoreError> {
        let (from, len) = (tail.base, tail.pending.len());
        self.flush_tail(store, tail)?;
        store.start_writeback(tail.segment, from, len);
        Ok(())
    }

    /// Gives the store what is buffered.
    pub(crate) fn flush(&self, store: &dyn Store) -> Result<(), StoreError> {
        match &mut *self.tail.lock() {
            Some(tail) => self.flush_tail(store, tail),
            None => Ok(()),
        }
    }

    /// Pads the open segment so that what comes after shares no sector with what is there, and gives the store all.
    pub(crate) fn pad(&self, store: &dyn Store, ledger: &dyn Ledger) -> Result<(), StoreError> {
        let mut tail = self.tail.lock();
        let Some(open) = &mut *tail else { return Ok(()) };
        let end = open.end();
        let padded = end.next_multiple_of(COMMIT_ALIGN).min(self.segment_bytes);
        open.pending.pad_to(padded - open.base);
        self.flush_tail(store, open)?;
        ledger.grown(open.segment, padded);
        Ok(())
    }

    fn close(
        &self,
        store: &dyn Store,
        ledger: &dyn Ledger,
        tail: &mut Option<Tail>,
    ) -> Result<(), StoreError> {
        let Some(open) = tail else { return Ok(()) };
        self.write_out(store, open)?;
        store.seal_segment(open.segment)?;
        ledger.sealed(open.segment);
        self.segment.store(NONE, Ordering::Release);
        *tail = None;
        Ok(())
    }

    /// Ends the open segment.
    pub(crate) fn seal(&self, store: &dyn Store, ledger: &dyn Ledger) -> Result<(), StoreError> {
        self.close(store, ledger, &mut self.tail.lock())
    }

    /// The open segment.
    pub(crate) fn open_segment(&self) -> Option<SegmentId> {
        let id = self.segment.load(Ordering::Acquire);
        (id != NONE).then_some(SegmentId(id))
    }

    /// Fills `buf` if the range is still in the tail; a range never lies half in it, for frames go out whole.
    pub(crate) fn read(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> bool {
        if self.segment.load(Ordering::Acquire) != segment.0 || offset < self.base.load(Ordering::Acquire) {
            return false;
        }
        let tail = self.tail.lock();
        let Some(open) = tail.as_ref().filter(|open| open.segment == segment) else { return false };
        offset.checked_sub(open.base).is_some_and(|start| open.pending.read(start, buf))
    }

    /// Bytes in the tail.
    pub(crate) fn buffered(&self) -> u64 {
        self.tail.lock().as_ref().map_or(0, |tail| tail.pending.len())
    }
}
