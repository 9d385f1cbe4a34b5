//! Reads a segment without a tree: finds its frames, and skips damaged and foreign bytes.

use snowmelt_store::{SegmentId, SegmentInfo, Store};

use crate::error::{PoolError, Result};
use crate::format::segment::{FRAME_ALIGN, FRAME_HEADER, FRAME_MAGIC, FrameHeader, frame_len};

/// Bytes that are read from the store at once.
const CHUNK: usize = 1 << 20;
/// A scan ends after this many bytes without a frame: segments are sealed at this length, and a hole in a file can have
/// any length.
const BARREN_MAX: u64 = 64 << 20;
/// A scan also ends when the damaged payloads that were read exceed twice the segment's length by this number of bytes.
/// Forged headers are short, and each of them can name a long payload.
const DAMAGED_BASE: u64 = 64 << 20;

/// A frame found in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its segment.
    pub segment: SegmentId,
    /// Its offset, as in block pointers.
    pub offset: u32,
    /// Its header. The header's checksum is correct.
    pub header: FrameHeader,
    /// The payload, if its hash matches the header.
    pub payload: Option<Vec<u8>>,
}

/// The frames of one segment, in order. Bytes that are not a frame are skipped, 8 at a time. A frame that is cut off by
/// the segment's end is returned without payload. The iteration ends after an error of the store,
/// after 64 MiB without a frame, and when there are more damaged frames than any pool writes.
#[derive(Debug)]
pub struct Scan<'a> {
    store: &'a dyn Store,
    id: SegmentId,
    len: u64,
    at: u64,
    /// Where the search continued after the last frame.
    last: u64,
    /// How many bytes of damaged payloads may still be read.
    damaged: u64,
    /// Bytes from `base` on.
    chunk: Vec<u8>,
    base: u64,
}

/// Scans a segment up to its length in the store.
pub fn scan(store: &dyn Store, info: SegmentInfo) -> Scan<'_> {
    let len = info.len.min(u64::from(u32::MAX));
    let damaged = 2 * len + DAMAGED_BASE;
    Scan { store, id: info.id, len, at: 0, last: 0, damaged, chunk: Vec::new(), base: 0 }
}

impl Scan<'_> {
    /// Returns `len` bytes at the current place, or fewer at the end of the segment.
    fn fill(&mut self, len: usize) -> Result<&[u8]> {
        let mut start = usize::try_from(self.at - self.base).unwrap_or(usize::MAX);
        if start.saturating_add(len) > self.chunk.len() {
            let left = usize::try_from(self.len - self.at).unwrap_or(usize::MAX);
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.resize(CHUNK.max(len).min(left), 0);
            self.store.read(self.id, self.at, &mut chunk).map_err(PoolError::store("scanning a segment"))?;
            (self.chunk, self.base, start) = (chunk, self.at, 0);
        }
        let end = start.saturating_add(len).min(self.chunk.len());
        Ok(self.chunk.get(start..end).unwrap_or_default())
    }

    fn step(&mut self) -> Result<Option<Frame>> {
        while self.at + FRAME_HEADER as u64 <= self.len && self.at - self.last <= BARREN_MAX {
            let (id, at) = (self.id, self.at);
            let head = self.fill(FRAME_HEADER)?;
            if !head.starts_with(&FRAME_MAGIC) {
                self.at += FRAME_ALIGN;
                continue;
            }
            let Ok(header) = FrameHeader::decode(head, id, at) else {
                self.at += FRAME_ALIGN;
                continue;
            };
            let whole = FRAME_HEADER + header.psize as usize;
            let payload = self.fill(whole)?.get(FRAME_HEADER..whole).map(<[u8]>::to_vec);
            let payload = payload.filter(|bytes| *blake3::hash(bytes).as_bytes() == header.hash);
            // After a payload that does not match its header, the next frame may begin anywhere.
            self.at += if payload.is_some() { frame_len(header.psize) } else { FRAME_ALIGN };
            self.last = self.at;
            if payload.is_none() {
                match self.damaged.checked_sub(header.psize.into()) {
                    Some(left) => self.damaged = left,
                    None => self.len = 0,
                }
            }
            let offset = u32::try_from(at).unwrap_or(u32::MAX);
            return Ok(Some(Frame { segment: id, offset, header, payload }));
        }
        Ok(None)
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Frame>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(frame) => frame.map(Ok),
            Err(error) => {
                self.len = 0;
                Some(Err(error))
            }
        }
    }
}
