//! What was appended to a segment and is to be covered, and the parity frames that do.
//!
//! Two sorts of frames, which differ only in what they cover. At the end of a txg a *narrow* one covers what came since
//! the last frame, so that nothing durable is without parity; small txgs have small ones, which single flips are mended
//! by. When there are 2 MiB, or the segment is full, a *wide* one covers all of that, narrow frames included: a long run
//! of lost bytes is mended by that one.

use bytes::Bytes;
use snowmelt_store::SegmentId;

use super::head::{Head, frame_len, piece_sum};
use super::{
    PIECE_BYTES, RUN_BYTES, RUN_SHARE, SECTOR_BYTES, SMALL_BYTES, SMALL_PIECE_BYTES, STRIPE_BYTES_MAX,
    WIDE_BYTES,
};
use crate::segment::COMMIT_ALIGN;

/// Bytes of a segment that no wide frame covers yet.
#[derive(Debug)]
pub(crate) struct Cover {
    /// Where in the segment they begin.
    start: u64,
    bytes: Vec<u8>,
    /// Up to where narrow frames cover them.
    covered: u64,
    /// Parity pieces that a wide frame has at least.
    run_pieces: u32,
}

/// Where frames are written, and how much parity they have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) pool: u64,
    pub(crate) segment: SegmentId,
    pub(crate) percent: u8,
}

/// A part of what is to be covered, that has a frame to itself.
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

/// How many parity pieces there are.
#[derive(Clone, Copy, Debug)]
struct Share {
    percent: u8,
    /// At least so many, of wide frames; narrow ones have theirs.
    wide: Option<u32>,
}

/// Parts of equal length, as few as can be.
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

/// What frames over `len` bytes take.
fn frames_len(len: u64, share: Share) -> u64 {
    parts(0, len, share).map(|part| part.frame_len()).sum()
}

impl Cover {
    /// Nothing as yet, from `start` on of a segment that gets so long.
    pub(crate) fn new(start: u64, segment_bytes: u64) -> Self {
        // A run may begin and end within a piece, and the parity be cut from the data in between.
        let run = u64::from(RUN_BYTES / PIECE_BYTES + 3);
        let run = run.min(segment_bytes / RUN_SHARE / u64::from(PIECE_BYTES));
        let run_pieces = u32::try_from(run).unwrap_or(0).max(SECTOR_BYTES / PIECE_BYTES + 1);
        Self { start, bytes: Vec::new(), covered: start, run_pieces }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Bytes were appended.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Zeros were appended, up to `end`.
    pub(crate) fn pad_to(&mut self, end: u64) {
        let more = usize::try_from(end.saturating_sub(self.end())).unwrap_or(0);
        self.bytes.resize(self.bytes.len() + more, 0);
    }

    /// The end of a txg was padded, up to `end`: that needs no frame of its own.
    pub(crate) fn end_txg(&mut self, end: u64) {
        if self.bytes.is_empty() {
            self.start = end;
        }
        self.pad_to(end);
        self.covered = self.end();
    }

    /// Whether anything came since the last frame.
    pub(crate) fn has_uncovered(&self) -> bool {
        self.covered < self.end()
    }

    /// Whether it is time for a wide frame.
    pub(crate) fn is_wide(&self) -> bool {
        self.bytes.len() as u64 >= WIDE_BYTES
    }

    /// Whether, at the end of a txg, a narrow frame would cost more than it is worth.
    pub(crate) fn is_nearly_wide(&self) -> bool {
        self.end() - self.covered >= WIDE_BYTES / 2
    }

    /// Room that must be left in the segment behind `more` bytes yet to be appended: for a narrow frame, the end of its
    /// txg, and then a wide frame.
    pub(crate) fn reserve(&self, more: u64, percent: u8) -> u64 {
        let narrow = Share { percent, wide: None };
        let narrow = frames_len(self.end() - self.covered + more, narrow) + COMMIT_ALIGN;
        narrow + frames_len(self.bytes.len() as u64 + more + narrow, self.wide_share(percent))
    }

    fn wide_share(&self, percent: u8) -> Share {
        Share { percent, wide: Some(self.run_pieces) }
    }

    /// Frames over what came since the last one, to be appended at the end; what they take must be within `room`, or there
    /// are none. They are among what is still to be covered by a wide one.
    pub(crate) fn narrow(&mut self, target: Target, room: u64) -> Vec<Bytes> {
        let share = Share { percent: target.percent, wide: None };
        let frames = self.frames(self.covered, target, share, room);
        frames.iter().for_each(|frame| self.bytes.extend_from_slice(frame));
        self.covered = self.end();
        frames
    }

    /// Frames over all there is, to be appended at the end, behind which it begins anew.
    pub(crate) fn wide(&mut self, target: Target, room: u64) -> Vec<Bytes> {
        let frames = self.frames(self.start, target, self.wide_share(target.percent), room);
        self.start = self.end() + frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        self.covered = self.start;
        self.bytes.clear();
        // A large block is no reason to keep as much room for ever.
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
        // All or none; a failure here would be of a code that cannot be.
        parts(from, len, share).map(frame).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// The frame over a part, at `at`.
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

/// The pieces of what is covered; the last one is filled up with zeros, in `last`.
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

/// The parity pieces of some bytes.
pub(super) fn encode(bytes: &[u8], piece: usize, parity: u32) -> Option<Vec<Vec<u8>>> {
    let mut last = Vec::new();
    let data = bytes.len().div_ceil(piece);
    reed_solomon_simd::encode(data, parity as usize, pieces_of(bytes, piece, &mut last)).ok()
}
