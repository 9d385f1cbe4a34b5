//! Finds the parity frames and the blocks of a segment. No index of them is stored, so nothing else must be intact to
//! find them.

use snowmelt_store::SegmentId;

use super::PARITY_MAGIC;
use super::head::{FIXED, Head};
use super::medium::Medium;
use crate::format::segment::{FRAME_ALIGN, FRAME_HEADER, FRAME_MAGIC, FrameHeader, frame_len};

/// Bytes that are read from the store at once.
const CHUNK: u64 = 1 << 20;

/// The parity frames and the blocks of a segment.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The parity frames, in order.
    pub(crate) heads: Vec<Head>,
    /// Offset and stored length of each block that has a valid header, in order.
    blocks: Vec<(u32, u32)>,
    /// Whether all bytes were readable.
    pub(crate) is_whole: bool,
}

impl Layout {
    /// Offset and length of each block's frame that shares bytes with the range from `from` to `to`.
    pub(crate) fn frames_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, usize)> + '_ {
        let frame = |&(at, psize): &(u32, u32)| (u64::from(at), FRAME_HEADER + psize as usize);
        let first = self.blocks.partition_point(|block| {
            let (at, len) = frame(block);
            at + len as u64 <= from
        });
        let rest = self.blocks.get(first..).unwrap_or_default();
        rest.iter().map(frame).take_while(move |(at, _)| *at < to)
    }
}

/// Reads a segment from its beginning.
struct Reader<'a> {
    medium: Medium<'a>,
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
            self.is_whole &= self.medium.read_lossy(self.segment, at, &mut self.chunk);
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

/// Finds the parity frames and blocks in the first `len` bytes of a segment.
///
/// Frames of blocks are skipped by their headers, so the users' data in blocks is not searched.
pub(crate) fn layout(medium: Medium<'_>, pool: u64, segment: SegmentId, len: u64) -> Layout {
    let mut reader = Reader { medium, segment, len, chunk: Vec::new(), base: 0, is_whole: true };
    let (mut heads, mut blocks) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at + FIXED as u64 <= len {
        let bytes = reader.fill(at, FRAME_HEADER);
        let mut next = at + FRAME_ALIGN;
        if bytes.starts_with(&FRAME_MAGIC) {
            if let Ok(header) = FrameHeader::decode(bytes, segment, at) {
                next = at + frame_len(header.psize);
                if header.pool == pool
                    && let Ok(at) = u32::try_from(at)
                {
                    blocks.push((at, header.psize));
                }
            }
        } else if bytes.starts_with(&PARITY_MAGIC)
            && let Some((head, _)) = reader.head(at)
            && head.pool == pool
            && head.end() <= len
        {
            next = head.end();
            heads.push(head);
        }
        at = next;
    }
    Layout { heads, blocks, is_whole: reader.is_whole }
}
