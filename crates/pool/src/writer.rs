//! The writer of one kind of segment: buffers the tail of the open segment in memory, and begins a new segment when it
//! is full.
//!
//! A block counts as written once it is in the tail. A read of such a block is served from the tail. Lock order: a
//! writer's tail, then the segment table.

use bytes::Bytes;
use parking_lot::Mutex;
use snowmelt_store::{SegmentId, Store, StoreError};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::format::segment::{COMMIT_ALIGN, FRAME_ALIGN, FRAME_HEADER, FrameHeader, Kind, frame_len};
use crate::parity::{Cover, Target};
use crate::pending::Pending;

/// Says that no segment is open. Ids begin at 1.
const NONE: u64 = 0;

struct Tail {
    segment: SegmentId,
    /// Length of the key frame at the beginning of the segment.
    head: u64,
    /// Number of bytes that the store already has.
    base: u64,
    /// The bytes after them, which the store does not have yet.
    pending: Pending,
    /// The bytes that parity does not cover yet, if there is parity.
    cover: Option<Cover>,
}

impl Tail {
    fn new(segment: SegmentId, base: u64) -> Self {
        Tail { segment, head: 0, base, pending: Pending::default(), cover: None }
    }

    fn end(&self) -> u64 {
        self.base + self.pending.len()
    }

    /// Whether it contains no block.
    fn is_empty(&self) -> bool {
        self.end() == self.head
    }
}

/// The segment table and the ids, as writers use them.
pub(crate) trait Ledger {
    /// A new segment id that was never used before.
    fn next_id(&self) -> SegmentId;
    fn opened(&self, id: SegmentId, kind: Kind);
    fn grown(&self, id: SegmentId, len: u64);
    fn sealed(&self, id: SegmentId);
    /// The bytes at the beginning of a new segment, if any.
    fn key_frame(&self, id: SegmentId) -> Option<Vec<u8>>;
    /// Counts appended bytes that are not blocks: parity or a key frame.
    fn covered(&self, bytes: u64);
}

pub(crate) struct Writer {
    kind: Kind,
    segment_bytes: u64,
    buffer_bytes: usize,
    /// The pool's guid.
    pool: u64,
    /// How much parity is written, in percent of the data.
    parity: AtomicU8,
    tail: Mutex<Option<Tail>>,
    /// Copies of the tail's segment and base, so that readers of other segments take no lock.
    segment: AtomicU64,
    base: AtomicU64,
}

/// Why a frame could not be appended: the store failed, or the block is larger than a segment.
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
    pub(crate) fn new(kind: Kind, segment_bytes: u64, buffer_bytes: usize, pool: u64) -> Self {
        Writer {
            kind,
            segment_bytes,
            buffer_bytes,
            pool,
            parity: AtomicU8::new(0),
            tail: Mutex::new(None),
            segment: AtomicU64::new(NONE),
            base: AtomicU64::new(0),
        }
    }

    /// Continues a segment that the previous owner left open at `len`.
    pub(crate) fn resume(&self, segment: SegmentId, len: u64) {
        *self.tail.lock() = Some(Tail::new(segment, len));
        self.base.store(len, Ordering::Release);
        self.segment.store(segment.0, Ordering::Release);
    }

    /// Appends one frame. After an error nothing was appended, and the caller may try again.
    pub(crate) fn append(
        &self,
        store: &dyn Store,
        ledger: &dyn Ledger,
        header: &FrameHeader,
        payload: &Bytes,
    ) -> Result<(SegmentId, u32), AppendError> {
        let len = frame_len(header.psize);
        let room =
            self.segment_bytes - ledger.key_frame(SegmentId(NONE)).map_or(0, |frame| frame.len() as u64);
        if len > room {
            return Err(AppendError::TooLarge { max: room - FRAME_HEADER as u64 - FRAME_ALIGN });
        }
        let mut tail = self.tail.lock();
        if tail.as_ref().is_some_and(|tail| !self.fits(tail, len)) {
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
                let open = none.insert(Tail::new(id, 0));
                if let Some(frame) = ledger.key_frame(id) {
                    let frame = Bytes::from(frame);
                    open.pending.push(&frame);
                    open.head = open.end();
                    self.note(open, 0, &frame, &[]);
                    ledger.covered(open.head);
                }
                open
            }
        };
        let offset = open.end();
        let head = header.encode(open.segment, offset);
        open.pending.copy(&head);
        open.pending.push(payload);
        open.pending.pad_to(open.pending.len().next_multiple_of(FRAME_ALIGN));
        self.note(open, offset, &head, payload);
        if open.cover.as_ref().is_some_and(Cover::is_wide) {
            self.cover(ledger, open, true);
        }
        ledger.grown(open.segment, open.end());
        let offset = u32::try_from(offset).map_err(|_| AppendError::TooLarge { max: self.segment_bytes })?;
        Ok((open.segment, offset))
    }

    /// Sets how much parity is written from now on, in percent of the data.
    pub(crate) fn set_parity(&self, percent: u8) {
        self.parity.store(percent, Ordering::Relaxed);
    }

    /// Whether a frame of `len` bytes and the parity for it fit into the segment. In a segment too short for both, the
    /// frame is written without parity.
    fn fits(&self, tail: &Tail, len: u64) -> bool {
        let percent = self.parity.load(Ordering::Relaxed);
        let reserve = match (&tail.cover, percent) {
            (_, 0) => 0,
            (Some(cover), percent) => cover.reserve(len, percent),
            (None, percent) => Cover::new(0, self.segment_bytes).reserve(len, percent),
        };
        let end = tail.end() + len;
        end + reserve <= self.segment_bytes || (tail.is_empty() && end <= self.segment_bytes)
    }

    /// Notes that a frame was appended at `offset`, so that parity will cover it.
    fn note(&self, open: &mut Tail, offset: u64, head: &[u8], payload: &[u8]) {
        if self.parity.load(Ordering::Relaxed) == 0 {
            open.cover = None;
            return;
        }
        let end = open.end();
        let cover = open.cover.get_or_insert_with(|| Cover::new(offset, self.segment_bytes));
        cover.push(head);
        cover.push(payload);
        cover.pad_to(end);
    }

    /// Appends parity for bytes that have none. If `wide`, for all bytes that no wide frame covers. The store is not
    /// called.
    fn cover(&self, ledger: &dyn Ledger, open: &mut Tail, wide: bool) {
        let end = open.end();
        let target =
            Target { pool: self.pool, segment: open.segment, percent: self.parity.load(Ordering::Relaxed) };
        let Some(cover) = open.cover.as_mut().filter(|_| target.percent > 0) else { return };
        let room = self.segment_bytes.saturating_sub(end);
        let frames = if wide { cover.wide(target, room) } else { cover.narrow(target, room) };
        frames.iter().for_each(|frame| open.pending.push(frame));
        ledger.covered(open.end() - end);
        ledger.grown(open.segment, open.end());
    }

    /// Passes the tail up to `end` to the store.
    fn flush_to(&self, store: &dyn Store, tail: &mut Tail, end: u64) -> Result<(), StoreError> {
        let len = end.saturating_sub(tail.base);
        if len == 0 {
            return Ok(());
        }
        store.append_all(tail.segment, tail.base, &tail.pending.first(len))?;
        tail.base += len;
        tail.pending.advance(len, self.buffer_bytes * 2);
        self.base.store(tail.base, Ordering::Release);
        Ok(())
    }

    /// Passes the whole tail to the store.
    fn flush_tail(&self, store: &dyn Store, tail: &mut Tail) -> Result<(), StoreError> {
        self.flush_to(store, tail, tail.end())
    }

    /// Passes the whole sectors of the tail to the store, in advance. The store can write these without reading, and
    /// the next bytes also begin at a sector.
    fn write_out(&self, store: &dyn Store, tail: &mut Tail) -> Result<(), StoreError> {
        let from = tail.base;
        self.flush_to(store, tail, tail.end() / COMMIT_ALIGN * COMMIT_ALIGN)?;
        store.start_writeback(tail.segment, from, tail.base - from);
        Ok(())
    }

    /// Passes buffered bytes to the store, so that a later sync has less to do.
    pub(crate) fn flush(&self, store: &dyn Store) -> Result<(), StoreError> {
        match &mut *self.tail.lock() {
            Some(tail) => self.write_out(store, tail),
            None => Ok(()),
        }
    }

    /// Pads the open segment so that later bytes share no sector with the existing ones, and passes everything to the
    /// store.
    pub(crate) fn pad(&self, store: &dyn Store, ledger: &dyn Ledger) -> Result<(), StoreError> {
        let mut tail = self.tail.lock();
        let Some(open) = &mut *tail else { return Ok(()) };
        if let Some(cover) = open.cover.as_ref().filter(|cover| cover.has_uncovered()) {
            let wide = cover.is_nearly_wide();
            self.cover(ledger, open, wide);
        }
        let end = open.end();
        let padded = end.next_multiple_of(COMMIT_ALIGN).min(self.segment_bytes);
        open.pending.pad_to(padded - open.base);
        if let Some(cover) = &mut open.cover {
            cover.end_txg(padded);
        }
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
        self.cover(ledger, open, true);
        self.write_out(store, open)?;
        self.flush_tail(store, open)?;
        store.seal_segment(open.segment)?;
        ledger.sealed(open.segment);
        self.segment.store(NONE, Ordering::Release);
        *tail = None;
        Ok(())
    }

    /// Closes the open segment, so that the next block begins a new one.
    pub(crate) fn roll(&self, store: &dyn Store, ledger: &dyn Ledger) -> Result<(), StoreError> {
        self.close(store, ledger, &mut self.tail.lock())
    }

    /// Closes the open segment, in which no block is live.
    pub(crate) fn seal(&self, store: &dyn Store, ledger: &dyn Ledger) -> Result<(), StoreError> {
        let mut tail = self.tail.lock();
        if let Some(open) = &mut *tail {
            // Dead blocks need no parity.
            open.cover = None;
        }
        self.close(store, ledger, &mut tail)
    }

    /// The open segment.
    pub(crate) fn open_segment(&self) -> Option<SegmentId> {
        let id = self.segment.load(Ordering::Acquire);
        (id != NONE).then_some(SegmentId(id))
    }

    /// Copies the part of the range that is in the tail to the end of `buf`. Returns how many bytes before it must be
    /// read from the store; the length of `buf` if the range is not in the tail.
    pub(crate) fn read(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> usize {
        let all = buf.len();
        let end = offset.saturating_add(all as u64);
        if self.segment.load(Ordering::Acquire) != segment.0 || end <= self.base.load(Ordering::Acquire) {
            return all;
        }
        let tail = self.tail.lock();
        let Some(open) = tail.as_ref().filter(|open| open.segment == segment && end > open.base) else {
            return all;
        };
        // Less than `all`, possibly 0.
        let stored = open.base.saturating_sub(offset) as usize;
        let is_there = open.pending.read(offset.saturating_sub(open.base), &mut buf[stored..]);
        if is_there { stored } else { all }
    }

    /// Bytes in the tail.
    pub(crate) fn buffered(&self) -> u64 {
        self.tail.lock().as_ref().map_or(0, |tail| tail.pending.len())
    }
}
