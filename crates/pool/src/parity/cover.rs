//! Collects appended bytes that parity must cover, and makes parity frames for them.
//!
//! There are two kinds of frames, which differ only in what they cover. At the end of a txg, a *narrow* frame covers
//! the bytes since the last frame, so that nothing durable is without parity. After a small txg it has small pieces,
//! from which single bit flips are repaired. After 2 MiB, or when the segment is full, a *wide* frame covers all these
//! bytes, including the narrow frames. It repairs a long run of lost bytes.

use bytes::Bytes;
use snowmelt_store::SegmentId;

use super::head::{Head, frame_len, piece_sum};
use super::{
    PIECE_BYTES, RUN_BYTES, RUN_SHARE, SECTOR_BYTES, SMALL_BYTES, SMALL_PIECE_BYTES, STRIPE_BYTES_MAX,
    WIDE_BYTES,
};
use crate::format::segment::COMMIT_ALIGN;

/// Bytes of a segment that no wide frame covers yet.
#[derive(Debug)]
pub(crate) struct Cover {
    /// Offset in the segment where they begin.
    start: u64,
    bytes: Vec<u8>,
    /// Offset up to which narrow frames cover them.
    covered: u64,
    /// Minimal number of parity pieces in a wide frame.
    run_pieces: u32,
}

/// Where frames are written, and how much parity they have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) pool: u64,
    pub(crate) segment: SegmentId,
    pub(crate) percent: u8,
}

/// A part of the bytes that gets a frame of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    start: u64,
    len: u32,
    piece_shift: u8,
    parity: u32,
}

impl Part {
    fn piece(&self) -> u32 {
        1 << self.piece_shift
    }

    fn data(&self) -> u32 {
        self.len.div_ceil(self.piece())
    }

    fn frame_len(&self) -> u64 {
        frame_len(self.data(), self.parity, self.piece())
    }
}

/// How many parity pieces a frame has.
#[derive(Clone, Copy, Debug)]
struct Share {
    percent: u8,
    /// Minimal number of pieces in a wide frame; `None` for narrow frames, which have another minimum.
    wide: Option<u32>,
}

/// Splits `len` bytes into as few parts of equal length as possible.
fn parts(start: u64, len: u64, share: Share) -> impl Iterator<Item = Part> {
    let is_small = len <= SMALL_BYTES && share.wide.is_none();
    let piece: u32 = if is_small { SMALL_PIECE_BYTES } else { PIECE_BYTES };
    let least = share.wide.unwrap_or(SECTOR_BYTES / piece + 1);
    let count = len.div_ceil(STRIPE_BYTES_MAX).max(1);
    let each = len.div_ceil(count).next_multiple_of(u64::from(piece)).max(1);
    (0..len.div_ceil(each)).map(move |number| {
        let at = number * each;
        let len = u32::try_from(each.min(len - at)).unwrap_or(u32::MAX);
        let data = len.div_ceil(piece);
        let parity = (data * u32::from(share.percent)).div_ceil(100).max(least);
        // Both are powers of two.
        let piece_shift = u8::try_from(piece.trailing_zeros()).unwrap_or(u8::MAX);
        Part { start: start + at, len, piece_shift, parity }
    })
}

/// Total length of the frames for `len` bytes.
fn frames_len(len: u64, share: Share) -> u64 {
    parts(0, len, share).map(|part| part.frame_len()).sum()
}

impl Cover {
    /// Starts empty at offset `start` of a segment with maximal length `segment_bytes`.
    pub(crate) fn new(start: u64, segment_bytes: u64) -> Self {
        // A run may begin and end inside a piece, and the parity may be cut off from the data between them.
        let run = u64::from(RUN_BYTES / PIECE_BYTES + 3);
        let run = run.min(segment_bytes / RUN_SHARE / u64::from(PIECE_BYTES));
        let run_pieces = u32::try_from(run).unwrap_or(0).max(SECTOR_BYTES / PIECE_BYTES + 1);
        Self { start, bytes: Vec::new(), covered: start, run_pieces }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Adds bytes that were appended to the segment.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds zeros that were appended, up to offset `end`.
    pub(crate) fn pad_to(&mut self, end: u64) {
        let more = usize::try_from(end.saturating_sub(self.end())).unwrap_or(0);
        self.bytes.resize(self.bytes.len() + more, 0);
    }

    /// Notes the padding at the end of a txg, up to offset `end`. It needs no frame of its own.
    pub(crate) fn end_txg(&mut self, end: u64) {
        if self.bytes.is_empty() {
            self.start = end;
        }
        self.pad_to(end);
        self.covered = self.end();
    }

    /// Whether bytes were appended since the last frame.
    pub(crate) fn has_uncovered(&self) -> bool {
        self.covered < self.end()
    }

    /// Whether there are enough bytes for a wide frame.
    pub(crate) fn is_wide(&self) -> bool {
        self.bytes.len() as u64 >= WIDE_BYTES
    }

    /// Whether, at the end of a txg, a narrow frame would cost too much compared with a wide one.
    pub(crate) fn is_nearly_wide(&self) -> bool {
        self.end() - self.covered >= WIDE_BYTES / 2
    }

    /// The space that must stay free in the segment after `more` bytes: for a narrow frame, the padding of its txg, and
    /// a wide frame.
    pub(crate) fn reserve(&self, more: u64, percent: u8) -> u64 {
        let narrow = Share { percent, wide: None };
        let narrow = frames_len(self.end() - self.covered + more, narrow) + COMMIT_ALIGN;
        narrow + frames_len(self.bytes.len() as u64 + more + narrow, self.wide_share(percent))
    }

    fn wide_share(&self, percent: u8) -> Share {
        Share { percent, wide: Some(self.run_pieces) }
    }

    /// Makes frames for the bytes since the last frame; they must be appended at the end. If they are longer than
    /// `room`, there are no frames. Later wide frames also cover them.
    pub(crate) fn narrow(&mut self, target: Target, room: u64) -> Vec<Bytes> {
        let share = Share { percent: target.percent, wide: None };
        let frames = self.frames(self.covered, target, share, room);
        frames.iter().for_each(|frame| self.bytes.extend_from_slice(frame));
        self.covered = self.end();
        frames
    }

    /// Makes wide frames for all bytes; they must be appended at the end. Then starts again empty after them.
    pub(crate) fn wide(&mut self, target: Target, room: u64) -> Vec<Bytes> {
        let frames = self.frames(self.start, target, self.wide_share(target.percent), room);
        self.start = self.end() + frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        self.covered = self.start;
        self.bytes.clear();
        // The memory of a large block is not kept.
        self.bytes.shrink_to(STRIPE_BYTES_MAX as usize);
        frames
    }

    fn frames(&self, from: u64, target: Target, share: Share, room: u64) -> Vec<Bytes> {
        let len = self.end() - from;
        if frames_len(len, share) > room {
            return Vec::new();
        }
        let mut at = self.end();
        let frame = |part: Part| {
            let frame = self.frame(part, target, at)?;
            at += frame.len() as u64;
            Some(frame)
        };
        // All frames or none. An error here would mean impossible parameters of the code.
        parts(from, len, share).map(frame).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// The frame for one part, written at offset `at`.
    fn frame(&self, part: Part, target: Target, at: u64) -> Option<Bytes> {
        let begin = usize::try_from(part.start - self.start).ok()?;
        let bytes = self.bytes.get(begin..begin.checked_add(part.len as usize)?)?;
        let parity = encode(bytes, part.piece() as usize, part.parity)?;
        let piece = part.piece() as usize;
        let mut last = Vec::new();
        let sums = pieces_of(bytes, piece, &mut last).chain(parity.iter().map(Vec::as_slice)).map(piece_sum);
        let head = Head {
            pool: target.pool,
            segment: target.segment,
            at: u32::try_from(at).ok()?,
            start: u32::try_from(part.start).ok()?,
            len: part.len,
            piece_shift: part.piece_shift,
            parity: part.parity,
            sums: sums.collect(),
        };
        let mut out = Vec::with_capacity(usize::try_from(part.frame_len()).ok()?);
        out.extend_from_slice(&head.encode(0));
        parity.iter().for_each(|piece| out.extend_from_slice(piece));
        out.extend_from_slice(&head.encode(1));
        Some(out.into())
    }
}

/// The pieces of the covered bytes. The last one is padded with zeros, in `last`.
pub(super) fn pieces_of<'a>(
    bytes: &'a [u8],
    piece: usize,
    last: &'a mut Vec<u8>,
) -> impl Iterator<Item = &'a [u8]> {
    let pieces = bytes.chunks_exact(piece);
    let rest = pieces.remainder();
    last.clear();
    if !rest.is_empty() {
        last.extend_from_slice(rest);
        last.resize(piece, 0);
    }
    pieces.chain((!last.is_empty()).then_some(&last[..]))
}

/// Computes the parity pieces of some bytes.
pub(super) fn encode(bytes: &[u8], piece: usize, parity: u32) -> Option<Vec<Vec<u8>>> {
    let mut last = Vec::new();
    let data = bytes.len().div_ceil(piece);
    reed_solomon_simd::encode(data, parity as usize, pieces_of(bytes, piece, &mut last)).ok()
}
