//! Finds the parity frames of a segment. No index of them is stored, so nothing else must be intact to find them.

use snowmelt_store::{SegmentId, Store};

use super::PARITY_MAGIC;
use super::head::{FIXED, Head};
use crate::format::segment::{FRAME_ALIGN, FRAME_HEADER, FRAME_MAGIC, FrameHeader, frame_len};

/// Bytes that are read from the store at once.
const CHUNK: u64 = 1 << 20;
/// After a failed read, the range is read again in units of this size.
const SECTOR: usize = 4096;

/// Reads the readable bytes, and fills the rest with zeros. Returns whether all bytes were readable.
pub(crate) fn read_lossy(store: &dyn Store, segment: SegmentId, at: u64, bytes: &mut [u8]) -> bool {
    if store.read(segment, at, bytes).is_ok() {
        return true;
    }
    let mut is_whole = true;
    for (number, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        if store.read(segment, at + (number * SECTOR) as u64, sector).is_err() {
            sector.fill(0);
            is_whole = false;
        }
    }
    is_whole
}

/// Reads a segment from its beginning.
struct Reader<'a> {
    store: &'a dyn Store,
    segment: SegmentId,
    len: u64,
    chunk: Vec<u8>,
    base: u64,
    is_whole: bool,
}

impl Reader<'_> {
    /// Returns `len` bytes at `at`, or fewer at the end of the segment.
    fn fill(&mut self, at: u64, len: usize) -> &[u8] {
        let has = self.base + self.chunk.len() as u64;
        let end = at.saturating_add(len as u64).min(self.len);
        if at < self.base || end > has {
            let wanted = (end - at.min(end)).max(CHUNK).min(self.len.saturating_sub(at));
            self.chunk.resize(usize::try_from(wanted).unwrap_or(0), 0);
            self.base = at;
            self.is_whole &= read_lossy(self.store, self.segment, at, &mut self.chunk);
        }
        let from = usize::try_from(at - self.base).unwrap_or(usize::MAX);
        let to = usize::try_from(end - self.base.min(end)).unwrap_or(0);
        self.chunk.get(from..to).unwrap_or_default()
    }

    /// The copy of a head at `at`.
    fn head(&mut self, at: u64) -> Option<(Head, u8)> {
        let segment = self.segment;
        let len = Head::peek(self.fill(at, FIXED)).ok()?;
        Head::decode(self.fill(at, len), segment, at).ok()
    }
}

/// The parity frames in the first `len` bytes of a segment, in order, and whether all these bytes were readable.
///
/// Frames of blocks are skipped by their headers, so the users' data in blocks is not searched.
pub(crate) fn heads(store: &dyn Store, pool: u64, segment: SegmentId, len: u64) -> (Vec<Head>, bool) {
    let mut reader = Reader { store, segment, len, chunk: Vec::new(), base: 0, is_whole: true };
    let mut found: Vec<Head> = Vec::new();
    let mut at = 0;
    while at + FIXED as u64 <= len {
        let bytes = reader.fill(at, FRAME_HEADER);
        let mut next = at + FRAME_ALIGN;
        if bytes.starts_with(&FRAME_MAGIC) {
            if let Ok(header) = FrameHeader::decode(bytes, segment, at) {
                next = at + frame_len(header.psize);
            }
        } else if bytes.starts_with(&PARITY_MAGIC)
            && let Some((head, _)) = reader.head(at)
            && head.pool == pool
            && head.end() <= len
        {
            next = head.end();
            found.push(head);
        }
        at = next;
    }
    (found, reader.is_whole)
}
