//! Frames: the form of a block in a segment. A segment can be read without any tree.
//!
//! Bytes: `docs/format/pool.md`, "Frame".

use snowmelt_store::SegmentId;

use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;
use crate::format::compression::{self, BLOCK_MAX};
use crate::ids::{TXG_MAX, TreeId, Txg};

/// The first bytes of every frame.
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"SMfr";
/// Length of a frame's header, bytes.
pub const FRAME_HEADER: usize = 96;
/// Frames begin at multiples of this many bytes.
pub(crate) const FRAME_ALIGN: u64 = 8;
/// A commit pads open segments to a multiple of this many bytes, so that no sector with durable bytes is written twice.
pub(crate) const COMMIT_ALIGN: u64 = 4096;

/// Maximal length of a segment, bytes: pointers have 32 bits for the offset.
pub(crate) const SEGMENT_MAX: u64 = u32::MAX as u64;

const VERSION: u8 = 1;
pub(crate) const SUM_AT: usize = 88;
const _: () = assert!(SUM_AT + 8 == FRAME_HEADER);

/// What a frame contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A data block, opaque to the pool.
    Data,
    /// A node of a tree.
    Node,
}

impl Kind {
    pub(crate) fn id(self) -> u8 {
        match self {
            Kind::Data => 1,
            Kind::Node => 2,
        }
    }

    pub(crate) fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Kind::Data),
            2 => Some(Kind::Node),
            _ => None,
        }
    }
}

/// The header of a frame. It identifies the block without any tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame contains.
    pub kind: Kind,
    /// `enum zio_compress` of ZFS and the suite, as in [`StoredPtr`](crate::StoredPtr).
    pub compression: u8,
    /// Logical length, bytes.
    pub lsize: u32,
    /// Stored length, bytes.
    pub psize: u32,
    /// Txg of the write.
    pub birth: Txg,
    /// Tree the block was written for.
    pub owner: TreeId,
    /// Object in the tree; for a node, its level.
    pub object: u64,
    /// Block number in the object; for a node, its number of entries.
    pub blkid: u64,
    /// The pool's guid.
    pub pool: u64,
    /// BLAKE3 of the payload.
    pub hash: [u8; 32],
}

impl FrameHeader {
    /// Encodes the header of a frame at `offset` of `segment`. The place is part of the checksum.
    pub(crate) fn encode(&self, segment: SegmentId, offset: u64) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&FRAME_MAGIC);
        put(&[VERSION, self.kind.id(), self.compression, 0]);
        put(&self.lsize.to_le_bytes());
        put(&self.psize.to_le_bytes());
        put(&self.birth.to_le_bytes());
        put(&self.owner.0.to_le_bytes());
        put(&self.object.to_le_bytes());
        put(&self.blkid.to_le_bytes());
        put(&self.pool.to_le_bytes());
        put(&self.hash);
        debug_assert_eq!(at, SUM_AT);
        let sum = checksum(&out[..SUM_AT], segment, offset);
        out[SUM_AT..].copy_from_slice(&sum);
        out
    }

    /// Decodes and verifies the header of a frame at `offset` of `segment`.
    ///
    /// # Errors
    /// `PoolError::Record` when the bytes are not a frame header, or one of another place.
    pub fn decode(bytes: &[u8], segment: SegmentId, offset: u64) -> Result<Self> {
        let mut fields = Fields::new("frame header", bytes);
        let covered = bytes.get(..SUM_AT).unwrap_or_default();
        if fields.array::<4>()? != FRAME_MAGIC {
            return fields.fail("no frame magic");
        }
        let [version, kind, compression, flags] = fields.array()?;
        if version != VERSION || flags != 0 {
            return fields.fail(format!("version {version}, flags {flags:#x} are unknown"));
        }
        let Some(kind) = Kind::from_id(kind) else {
            return fields.fail(format!("unknown kind {kind}"));
        };
        let header = FrameHeader {
            kind,
            compression,
            lsize: fields.u32()?,
            psize: fields.u32()?,
            birth: fields.u64()?,
            owner: TreeId(fields.u64()?),
            object: fields.u64()?,
            blkid: fields.u64()?,
            pool: fields.u64()?,
            hash: fields.array()?,
        };
        if fields.array::<8>()? != checksum(covered, segment, offset) {
            return Err(PoolError::record("frame header", "checksum does not match"));
        }
        let overhead = compression::overhead(header.compression).unwrap_or(0);
        if header.psize == 0
            || header.psize > BLOCK_MAX + overhead
            || header.lsize > BLOCK_MAX
            || header.birth > TXG_MAX
        {
            return Err(PoolError::record(
                "frame header",
                format!(
                    "out of range: psize {}, lsize {}, birth {}",
                    header.psize, header.lsize, header.birth
                ),
            ));
        }
        Ok(header)
    }
}

/// First 8 bytes of BLAKE3 over the header, the segment's id and the offset.
pub(crate) fn checksum(header: &[u8], segment: SegmentId, offset: u64) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header);
    hasher.update(&segment.0.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    let mut out = [0; 8];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    out
}

/// Length of the whole frame of a block of `psize` stored bytes.
pub(crate) fn frame_len(psize: u32) -> u64 {
    (FRAME_HEADER as u64 + u64::from(psize)).next_multiple_of(FRAME_ALIGN)
}
