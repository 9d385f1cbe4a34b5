//! Blocks to be written: compressed and hashed without the pool's locks.

use bytes::Bytes;
use snowmelt_stream::compress::{self, Compression};
use std::borrow::Cow;

use crate::error::{PoolError, Result};
use crate::format::compression::{self, BLOCK_MAX, COMPRESSION_OFF};
use crate::format::outside::OutsidePlace;
use crate::format::ptr::EMBEDDED_MAX;

/// A block ready to be written. Compression and hashing need no lock and can be done in any thread.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) payload: Bytes,
    pub(crate) lsize: u32,
    pub(crate) compression: u8,
    pub(crate) hash: [u8; 32],
    /// The place of an external block, whose bytes are not stored in the pool.
    pub(crate) outside: Option<OutsidePlace>,
}

impl Prepared {
    /// A block that is stored exactly as given, for example the compressed record of a stream.
    pub fn stored(payload: impl Into<Bytes>, lsize: u32, compression: u8) -> Prepared {
        let payload = payload.into();
        // A block embedded in its pointer needs no hash: the node with the pointer has one.
        let hash = if payload.len() <= EMBEDDED_MAX { [0; 32] } else { *blake3::hash(&payload).as_bytes() };
        Prepared { payload, lsize, compression, hash, outside: None }
    }

    /// An external block: its stored bytes stay at `place`, and the pool only refers to them. A block that is small
    /// enough is embedded in its pointer instead.
    pub fn outside(payload: impl Into<Bytes>, lsize: u32, compression: u8, place: OutsidePlace) -> Prepared {
        let prepared = Prepared::stored(payload, lsize, compression);
        let outside = (prepared.payload.len() > EMBEDDED_MAX).then_some(place);
        Prepared { outside, ..prepared }
    }

    /// Compresses `data` as ZFS would. The block stays uncompressed if compression saves less than one eighth.
    pub fn compress<'a>(data: impl Into<Cow<'a, [u8]>>, codec: Compression) -> Prepared {
        Prepared::compress_level(data, codec, 0)
    }

    /// As [`compress`](Self::compress), with a level for the algorithms that have levels; 0 is the default.
    pub fn compress_level<'a>(data: impl Into<Cow<'a, [u8]>>, codec: Compression, level: u8) -> Prepared {
        let data = data.into();
        // ZFS resolves the property value "on" before a block is written.
        let codec = if codec == Compression::On { Compression::Lz4 } else { codec };
        let lsize = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut packed = Vec::new();
        match compress::compress(codec, level, &data, &mut packed) {
            Some(len) => {
                packed.truncate(len);
                Prepared::stored(packed, lsize, codec.id())
            }
            None => Prepared::stored(data.into_owned(), lsize, COMPRESSION_OFF),
        }
    }

    /// Whether the stored bytes are sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        compression::algorithm(self.compression) != self.compression
    }

    /// The stored bytes.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Logical length, bytes.
    pub fn lsize(&self) -> u32 {
        self.lsize
    }

    /// `enum zio_compress` of ZFS.
    pub fn compression(&self) -> u8 {
        self.compression
    }

    /// Bytes that will be stored or embedded.
    pub fn psize(&self) -> usize {
        self.payload.len()
    }

    /// The logical bytes; `None` if the stored bytes cannot be decompressed.
    pub fn expand(&self) -> Option<Bytes> {
        expand(self.payload.clone(), self.compression, self.lsize).ok()
    }

    /// Whether a pointer already leads to exactly these stored bytes, in a pool without encryption.
    /// [`Pool::is_at`](crate::Pool::is_at) works for any pool.
    pub fn is_at(&self, ptr: &crate::format::ptr::BlockPtr) -> bool {
        use crate::format::ptr::BlockPtr;
        let own = (self.lsize, self.payload.len(), self.compression, self.hash);
        let is_large = self.payload.len() > EMBEDDED_MAX;
        match ptr {
            BlockPtr::Stored(ptr) => {
                is_large && (ptr.lsize, ptr.psize as usize, ptr.compression, ptr.hash) == own
            }
            BlockPtr::Outside(ptr) => {
                is_large && (ptr.lsize, ptr.psize as usize, ptr.compression, ptr.hash) == own
            }
            BlockPtr::Embedded { lsize, compression, data, .. } => {
                (*lsize, *compression, &data[..]) == (self.lsize, self.compression, &self.payload[..])
            }
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.is_sealed() {
            return Err(PoolError::Misuse("a block of a compression that there is not"));
        }
        let size = |what, len: u64| Err(PoolError::Size { what, len, min: 1, max: u64::from(BLOCK_MAX) });
        if self.lsize == 0 || self.lsize > BLOCK_MAX {
            return size("a block's logical size", u64::from(self.lsize));
        }
        if self.payload.is_empty() || self.payload.len() > BLOCK_MAX as usize {
            return size("a block's stored size", self.payload.len() as u64);
        }
        if self.compression == COMPRESSION_OFF && self.payload.len() != self.lsize as usize {
            return size("an uncompressed block, whose sizes differ,", self.payload.len() as u64);
        }
        Ok(())
    }
}

/// Decompresses a stored block to its `lsize` logical bytes.
pub(crate) fn expand(stored: Bytes, compression: u8, lsize: u32) -> Result<Bytes, compress::CompressError> {
    if compression == COMPRESSION_OFF {
        return Ok(stored);
    }
    let mut out = vec![0; lsize as usize];
    compress::decompress(compression, &stored, &mut out)?;
    Ok(Bytes::from(out))
}
