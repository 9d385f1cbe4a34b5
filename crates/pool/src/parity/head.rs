//! The head of a parity frame: what the frame covers, and the checksum of every piece. Bytes: `docs/format/parity.md`,
//! "Head".

use snowmelt_store::SegmentId;

use super::{PARITY_MAGIC, STRIPE_BYTES_MAX};
use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;
use crate::format::segment::FRAME_ALIGN;

const RECORD: &str = "parity head";
const VERSION: u8 = 1;
/// Offset of the head's own checksum.
const SUM_AT: usize = 40;
/// Offset of the pieces' checksums.
pub(super) const FIXED: usize = 56;
const _: () = assert!(SUM_AT + 16 == FIXED);
/// Length of a piece's checksum, bytes.
const PIECE_SUM: usize = 8;
/// Maximal number of data pieces and of parity pieces in a frame. It limits the memory of a reader.
const PIECES_MAX: u32 = 4096;
/// Allowed lengths of a piece, as powers of two.
const PIECE_SHIFTS: std::ops::RangeInclusive<u8> = 6..=16;

/// The fields of a parity frame's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The pool's guid.
    pub(crate) pool: u64,
    /// The segment that contains it.
    pub(crate) segment: SegmentId,
    /// Offset of the frame.
    pub(crate) at: u32,
    /// Offset of the covered bytes.
    pub(crate) start: u32,
    /// Length of the covered bytes.
    pub(crate) len: u32,
    /// Length of a piece in bytes, as a power of two. The last data piece is padded with zeros.
    pub(crate) piece_shift: u8,
    /// Number of parity pieces.
    pub(crate) parity: u32,
    /// Checksums of all pieces, data pieces first.
    pub(crate) sums: Vec<[u8; PIECE_SUM]>,
}

/// Checksum of a piece.
pub(super) fn piece_sum(piece: &[u8]) -> [u8; PIECE_SUM] {
    blake3::hash(piece).as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Length of a head for this number of data and parity pieces together.
fn len_of(pieces: u32) -> u32 {
    FIXED as u32 + pieces * PIECE_SUM as u32
}

/// Length of a frame with this number of data and parity pieces.
pub(super) fn frame_len(data: u32, parity: u32, piece: u32) -> u64 {
    2 * u64::from(len_of(data + parity)) + u64::from(parity) * u64::from(piece)
}

impl Head {
    /// Length of a piece, bytes.
    pub(crate) fn piece(&self) -> u32 {
        1 << self.piece_shift
    }

    /// Number of data pieces.
    pub(crate) fn data(&self) -> u32 {
        self.len.div_ceil(self.piece())
    }

    /// Length of one copy of the head.
    pub(crate) fn head_len(&self) -> u32 {
        len_of(self.data() + self.parity)
    }

    /// Offset of the parity pieces.
    pub(crate) fn parity_at(&self) -> u32 {
        self.at + self.head_len()
    }

    /// Offset of a copy of the head: copy 0 is before the parity pieces, copy 1 after them.
    pub(crate) fn copy_at(&self, copy: u8) -> u32 {
        match copy {
            0 => self.at,
            _ => self.parity_at() + self.parity * self.piece(),
        }
    }

    /// Whether it covers any of the `len` bytes at `at`.
    pub(crate) fn covers(&self, at: u64, len: u64) -> bool {
        u64::from(self.start) < at + len && at < u64::from(self.start) + u64::from(self.len)
    }

    /// Offset of the end of the frame.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.at) + frame_len(self.data(), self.parity, self.piece())
    }

    /// Number of bytes that are read to verify the frame and what it covers.
    pub(crate) fn stripe_len(&self) -> u64 {
        u64::from(self.len) + frame_len(self.data(), self.parity, self.piece())
    }

    /// Encodes a copy of the head.
    pub(crate) fn encode(&self, copy: u8) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.head_len() as usize);
        out.extend_from_slice(&PARITY_MAGIC);
        out.extend_from_slice(&[VERSION, copy, self.piece_shift, 0]);
        for number in [self.start, self.len, self.at, self.parity] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.pool.to_le_bytes());
        out.extend_from_slice(&self.segment.0.to_le_bytes());
        debug_assert_eq!(out.len(), SUM_AT);
        out.extend_from_slice(&[0; 16]);
        self.sums.iter().for_each(|sum| out.extend_from_slice(sum));
        let sum = head_sum(&out);
        out[SUM_AT..FIXED].copy_from_slice(&sum);
        out
    }

    /// Length of the head that begins with these bytes.
    ///
    /// # Errors
    /// `PoolError::Record` when the bytes are not the beginning of a head.
    pub(crate) fn peek(bytes: &[u8]) -> Result<usize> {
        Self::fixed(bytes).map(|(head, _)| head.head_len() as usize)
    }

    /// Decodes everything except the checksums, and verifies nothing.
    fn fixed(bytes: &[u8]) -> Result<(Self, u8)> {
        let mut fields = Fields::new(RECORD, bytes);
        if fields.array::<4>()? != PARITY_MAGIC {
            return fields.fail("no magic of parity");
        }
        let [version, copy, piece_shift, flags] = fields.array()?;
        if version != VERSION || flags != 0 || copy > 1 {
            return fields.fail(format!("version {version}, copy {copy}, flags {flags:#x} are unknown"));
        }
        let (start, len, at, parity) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (pool, segment) = (fields.u64()?, SegmentId(fields.u64()?));
        let refuse = || {
            let what = format!("{len} bytes at {start}, pieces of 2^{piece_shift}, {parity} of parity");
            Err(PoolError::record(RECORD, what))
        };
        if !PIECE_SHIFTS.contains(&piece_shift) || len == 0 || u64::from(len) > STRIPE_BYTES_MAX {
            return refuse();
        }
        let head = Head { pool, segment, at, start, len, piece_shift, parity, sums: Vec::new() };
        let is_bounded = head.data() <= PIECES_MAX
            && (1..=PIECES_MAX).contains(&parity)
            && u64::from(parity) << piece_shift <= STRIPE_BYTES_MAX;
        let is_before = start.checked_add(len).is_some_and(|end| end <= at);
        if !is_bounded || !is_before || head.end() > u64::from(u32::MAX) {
            return refuse();
        }
        Ok((head, copy))
    }

    /// Decodes and verifies the copy of a head at `offset` of `segment`. Bytes after it are ignored.
    ///
    /// # Errors
    /// `PoolError::Record` when the bytes are not a head, or one of another place.
    pub(crate) fn decode(bytes: &[u8], segment: SegmentId, offset: u64) -> Result<(Self, u8)> {
        let (mut head, copy) = Self::fixed(bytes)?;
        let Some(bytes) = bytes.get(..head.head_len() as usize) else {
            return Err(PoolError::record(RECORD, "truncated"));
        };
        if bytes.get(SUM_AT..FIXED) != Some(&head_sum(bytes)) {
            return Err(PoolError::record(RECORD, "checksum does not match"));
        }
        if head.segment != segment || u64::from(head.copy_at(copy)) != offset {
            return Err(PoolError::record(RECORD, "it is of another place"));
        }
        let (sums, _) = bytes.get(FIXED..).unwrap_or_default().as_chunks();
        head.sums = sums.to_vec();
        if !offset.is_multiple_of(FRAME_ALIGN) {
            return Err(PoolError::record(RECORD, format!("at {offset}, where no frame begins")));
        }
        Ok((head, copy))
    }
}

/// First 16 bytes of BLAKE3 over a head without its own checksum.
fn head_sum(head: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head.get(..SUM_AT).unwrap_or_default());
    hasher.update(head.get(FIXED..).unwrap_or_default());
    hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Puts the correct checksum into the bytes of a head, for fuzz targets.
pub(crate) fn with_sum(data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    if let Ok(len) = Head::peek(data)
        && let Some(head) = data.get(..len)
    {
        out[SUM_AT..FIXED].copy_from_slice(&head_sum(head));
    }
    out
}
