//! Block pointers: the place of a block, its sizes, compression and birth txg, and the hash of its stored bytes.
//!
//! Bytes: `docs/format/pool.md`, "Block pointer".

use snowmelt_store::SegmentId;

use crate::error::Result;
use crate::format::bytes_io::Fields;
use crate::format::compression::{BLOCK_MAX, COMPRESSION_OFF, algorithm, overhead};
use crate::format::outside::OutsidePtr;
use crate::format::segment;
use crate::ids::{TXG_MAX, Txg};

/// Maximal length of a payload that is embedded in the pointer instead of being stored, bytes.
pub const EMBEDDED_MAX: usize = 112;

/// Encoded length of a [`StoredPtr`], bytes, without a tag.
pub(crate) const STORED_LEN: usize = 61;

const TAG_STORED: u8 = 1;
const TAG_EMBEDDED: u8 = 2;
const TAG_OUTSIDE: u8 = 3;

/// A pointer to a block in a segment. It stays valid as long as anything refers to the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPtr {
    /// Segment that holds the block.
    pub segment: SegmentId,
    /// Offset of the block's frame in the segment, bytes; a multiple of 8.
    pub offset: u32,
    /// Stored length, bytes.
    pub psize: u32,
    /// Logical length, bytes.
    pub lsize: u32,
    /// `enum zio_compress` of ZFS, 2 = uncompressed. The upper two bits are the suite that seals the block, 0 = not
    /// sealed.
    pub compression: u8,
    /// Txg in which the block was written.
    pub birth: Txg,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

impl StoredPtr {
    /// The compression without the suite, `enum zio_compress` of ZFS.
    pub fn algorithm(&self) -> u8 {
        algorithm(self.compression)
    }

    /// Length of the block before it was sealed, bytes.
    pub(crate) fn payload_len(&self) -> u32 {
        self.psize.saturating_sub(overhead(self.compression).unwrap_or(0))
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.compression != self.algorithm()
    }

    /// Bytes the block takes in its segment: frame header and payload, rounded up to 8.
    pub fn asize(&self) -> u64 {
        segment::frame_len(self.psize)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.segment.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.psize.to_le_bytes());
        out.extend_from_slice(&self.lsize.to_le_bytes());
        out.push(self.compression);
        out.extend_from_slice(&self.birth.to_le_bytes());
        out.extend_from_slice(&self.hash);
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        let ptr = StoredPtr {
            segment: SegmentId(fields.u64()?),
            offset: fields.u32()?,
            psize: fields.u32()?,
            lsize: fields.u32()?,
            compression: fields.u8()?,
            birth: fields.u64()?,
            hash: fields.array()?,
        };
        let Some(overhead) = overhead(ptr.compression) else {
            return fields.fail(format!("sealed with an unknown suite, compression {:#x}", ptr.compression));
        };
        if ptr.psize <= overhead || ptr.payload_len() > BLOCK_MAX || ptr.lsize == 0 || ptr.lsize > BLOCK_MAX {
            return fields.fail(format!("sizes out of range: psize {}, lsize {}", ptr.psize, ptr.lsize));
        }
        if !ptr.offset.is_multiple_of(8) || ptr.birth == 0 || ptr.birth > TXG_MAX {
            return fields.fail(format!("offset {} or birth {} is illegal", ptr.offset, ptr.birth));
        }
        if ptr.algorithm() == COMPRESSION_OFF && ptr.payload_len() != ptr.lsize {
            return fields.fail(format!("not compressed, yet psize {} of lsize {}", ptr.psize, ptr.lsize));
        }
        Ok(ptr)
    }
}

/// A pointer to a block. Very small blocks are inside their pointer.
///
/// Only `Stored` blocks take space and are freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockPtr {
    /// The block is in a segment.
    Stored(StoredPtr),
    /// The block is in this pointer.
    Embedded {
        /// Logical length, bytes.
        lsize: u32,
        /// `enum zio_compress` of ZFS.
        compression: u8,
        /// Txg in which the pointer was created.
        birth: Txg,
        /// The stored bytes, 1 to [`EMBEDDED_MAX`].
        data: Box<[u8]>,
    },
    /// The block's bytes are outside the pool: an external block.
    Outside(Box<OutsidePtr>),
}

impl BlockPtr {
    /// Appends the encoded pointer to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            BlockPtr::Stored(ptr) => {
                out.push(TAG_STORED);
                ptr.encode(out);
            }
            BlockPtr::Embedded { lsize, compression, birth, data } => {
                debug_assert!(!data.is_empty() && data.len() <= EMBEDDED_MAX);
                out.push(TAG_EMBEDDED);
                out.push(*compression);
                out.extend_from_slice(&birth.to_le_bytes());
                out.extend_from_slice(&lsize.to_le_bytes());
                out.push(u8::try_from(data.len()).unwrap_or(u8::MAX));
                out.extend_from_slice(data);
            }
            BlockPtr::Outside(ptr) => {
                out.push(TAG_OUTSIDE);
                ptr.encode(out);
            }
        }
    }

    /// Decodes one pointer from the front of `bytes`, and advances `bytes`.
    ///
    /// # Errors
    /// `PoolError::Record` when the bytes end early, the tag is unknown or a field is out of range; `bytes` is then
    /// unchanged.
    pub fn decode(bytes: &mut &[u8]) -> Result<Self> {
        let mut fields = Fields::new("block pointer", bytes);
        let ptr = match fields.u8()? {
            TAG_STORED => BlockPtr::Stored(StoredPtr::decode(&mut fields)?),
            TAG_EMBEDDED => {
                let compression = fields.u8()?;
                let birth = fields.u64()?;
                let lsize = fields.u32()?;
                let len = usize::from(fields.u8()?);
                if len == 0
                    || len > EMBEDDED_MAX
                    || lsize == 0
                    || lsize > BLOCK_MAX
                    || birth == 0
                    || birth > TXG_MAX
                {
                    return fields.fail(format!("embedded: length {len}, lsize {lsize}, birth {birth}"));
                }
                let data = fields.take(len)?.into();
                BlockPtr::Embedded { lsize, compression, birth, data }
            }
            TAG_OUTSIDE => BlockPtr::Outside(Box::new(OutsidePtr::decode(&mut fields)?)),
            tag => return fields.fail(format!("unknown tag {tag}")),
        };
        *bytes = fields.rest();
        Ok(ptr)
    }

    /// Txg in which the block was written.
    pub fn birth(&self) -> Txg {
        match self {
            BlockPtr::Stored(ptr) => ptr.birth,
            BlockPtr::Embedded { birth, .. } => *birth,
            BlockPtr::Outside(ptr) => ptr.birth,
        }
    }

    /// The place of the block in pointers: segment, and offset of its frame. `None` for embedded and external blocks.
    pub fn place(&self) -> Option<(SegmentId, u32)> {
        match self {
            BlockPtr::Stored(ptr) => Some((ptr.segment, ptr.offset)),
            BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => None,
        }
    }

    /// Logical length, bytes.
    pub fn lsize(&self) -> u32 {
        match self {
            BlockPtr::Stored(ptr) => ptr.lsize,
            BlockPtr::Embedded { lsize, .. } => *lsize,
            BlockPtr::Outside(ptr) => ptr.lsize,
        }
    }

    /// Stored length without what sealing adds, bytes. For an embedded block, the length of the embedded bytes.
    pub fn psize(&self) -> u32 {
        match self {
            BlockPtr::Stored(ptr) => ptr.payload_len(),
            BlockPtr::Embedded { data, .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
            BlockPtr::Outside(ptr) => ptr.psize,
        }
    }

    /// Bytes that it takes in a segment; 0 for embedded and external blocks.
    pub fn asize(&self) -> u64 {
        match self {
            BlockPtr::Stored(ptr) => ptr.asize(),
            BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => 0,
        }
    }

    /// `enum zio_compress` of ZFS.
    pub fn compression(&self) -> u8 {
        match self {
            BlockPtr::Stored(ptr) => ptr.algorithm(),
            BlockPtr::Embedded { compression, .. } => *compression,
            BlockPtr::Outside(ptr) => ptr.compression,
        }
    }
}
