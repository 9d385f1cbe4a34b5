//! Pointers to external blocks, and the properties of a pool that has such blocks.
//!
//! Bytes: `docs/format/pool.md`, "External blocks".

use crate::error::Result;
use crate::ids::Txg;

use super::bytes_io::Fields;
use super::compression::{BLOCK_MAX, COMPRESSION_OFF};

/// The property of a pool with external blocks that has the kind of their source. Salvage recognises such a
/// pool by it.
pub const OUTSIDE_PROPERTY: &str = "outside";
/// The property that has the source's path.
pub const OUTSIDE_PATH_PROPERTY: &str = "outside_path";

/// The place of an external block, as its [`Outside`](crate::Outside) defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutsidePlace {
    /// Number of the source that holds it; 0 if there is only one source.
    pub source: u64,
    /// Offset of the stored bytes in the source, bytes.
    pub offset: u64,
}

/// A pointer to an external block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsidePtr {
    /// The place of the stored bytes.
    pub place: OutsidePlace,
    /// Stored length, bytes.
    pub psize: u32,
    /// Logical length, bytes.
    pub lsize: u32,
    /// `enum zio_compress` of ZFS; 2 = uncompressed.
    pub compression: u8,
    /// Txg in which the pointer was created.
    pub birth: Txg,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

impl OutsidePtr {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.place.source.to_le_bytes());
        out.extend_from_slice(&self.place.offset.to_le_bytes());
        out.extend_from_slice(&self.psize.to_le_bytes());
        out.extend_from_slice(&self.lsize.to_le_bytes());
        out.push(self.compression);
        out.extend_from_slice(&self.birth.to_le_bytes());
        out.extend_from_slice(&self.hash);
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        let ptr = OutsidePtr {
            place: OutsidePlace { source: fields.u64()?, offset: fields.u64()? },
            psize: fields.u32()?,
            lsize: fields.u32()?,
            compression: fields.u8()?,
            birth: fields.u64()?,
            hash: fields.array()?,
        };
        let OutsidePtr { psize, lsize, birth, .. } = ptr;
        if psize == 0 || psize > BLOCK_MAX || lsize == 0 || lsize > BLOCK_MAX || birth == 0 {
            return fields.fail(format!("outside: psize {psize}, lsize {lsize}, birth {birth}"));
        }
        if ptr.compression == COMPRESSION_OFF && psize != lsize {
            return fields.fail(format!("not compressed, yet psize {psize} of lsize {lsize}"));
        }
        Ok(ptr)
    }
}
