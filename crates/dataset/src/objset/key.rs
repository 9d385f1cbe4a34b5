//! Keys of an objset tree. Their order is that of a ZFS stream: object by object, and in each object the object range,
//! the dnode, the spill block, the redactions, then the data blocks by number.

use crate::error::DatasetError;

/// Dnode slots in one 16 KiB block of the meta-dnode. Raw streams encrypt them together.
pub const SLOTS_PER_BLOCK: u64 = 32;

/// Highest object number (`DN_MAX_OBJECT`).
pub const OBJECT_MAX: u64 = (1 << 48) - 1;

const RANGE: u8 = 0;
const DNODE: u8 = 1;
const SPILL: u8 = 2;
const BLOCK: u8 = 3;
const REDACTION: u8 = 4;

/// The kind of an entry in an objset tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjsetKey {
    /// Encryption parameters of the 32 dnodes from `object` on (only in raw datasets).
    Range {
        /// First object of the range.
        object: u64,
    },
    /// A dnode.
    Dnode {
        /// Its object number.
        object: u64,
    },
    /// A spill block.
    Spill {
        /// The object.
        object: u64,
    },
    /// A data block.
    Block {
        /// The object.
        object: u64,
        /// Block number: the offset divided by the object's block size.
        blkid: u64,
    },
    /// A range of bytes that a redacted stream omitted.
    Redaction {
        /// The object.
        object: u64,
        /// First byte.
        offset: u64,
    },
}

impl ObjsetKey {
    /// The object the entry belongs to.
    pub fn object(self) -> u64 {
        match self {
            Self::Range { object }
            | Self::Dnode { object }
            | Self::Spill { object }
            | Self::Block { object, .. }
            | Self::Redaction { object, .. } => object,
        }
    }

    /// The key's bytes.
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17);
        out.extend_from_slice(&self.object().to_be_bytes());
        match self {
            Self::Range { .. } => out.push(RANGE),
            Self::Dnode { .. } => out.push(DNODE),
            Self::Spill { .. } => out.push(SPILL),
            Self::Block { blkid, .. } => {
                out.push(BLOCK);
                out.extend_from_slice(&blkid.to_be_bytes());
            }
            Self::Redaction { offset, .. } => {
                out.push(REDACTION);
                out.extend_from_slice(&offset.to_be_bytes());
            }
        }
        out
    }

    /// Decodes a key.
    ///
    /// # Errors
    /// When this build does not know the kind of key.
    pub fn decode(key: &[u8]) -> Result<Self, DatasetError> {
        let bad = || DatasetError::corrupt("objset tree", format!("unknown key {key:02x?}"));
        let (object, rest) = key.split_first_chunk::<8>().ok_or_else(bad)?;
        let object = u64::from_be_bytes(*object);
        let (kind, rest) = rest.split_first().ok_or_else(bad)?;
        let number = <[u8; 8]>::try_from(rest).map(u64::from_be_bytes);
        match (*kind, number) {
            (RANGE, _) if rest.is_empty() => Ok(Self::Range { object }),
            (DNODE, _) if rest.is_empty() => Ok(Self::Dnode { object }),
            (SPILL, _) if rest.is_empty() => Ok(Self::Spill { object }),
            (BLOCK, Ok(blkid)) => Ok(Self::Block { object, blkid }),
            (REDACTION, Ok(offset)) => Ok(Self::Redaction { object, offset }),
            _ => Err(bad()),
        }
    }
}

/// The first possible key of an object.
pub fn object_start(object: u64) -> Vec<u8> {
    ObjsetKey::Range { object }.encode()
}

/// The first key after those of an object.
pub fn object_end(object: u64) -> Vec<u8> {
    object_start(object.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_stream_order() {
        let keys = [
            ObjsetKey::Range { object: 32 },
            ObjsetKey::Dnode { object: 32 },
            ObjsetKey::Spill { object: 32 },
            ObjsetKey::Block { object: 32, blkid: 0 },
            ObjsetKey::Block { object: 32, blkid: 256 },
            ObjsetKey::Redaction { object: 32, offset: 0 },
            ObjsetKey::Dnode { object: 33 },
        ];
        let bytes: Vec<_> = keys.iter().map(|key| key.encode()).collect();
        assert!(bytes.is_sorted());
        for (key, bytes) in keys.iter().zip(&bytes) {
            assert_eq!(ObjsetKey::decode(bytes).unwrap(), *key);
        }
        assert!(object_end(32) < bytes[6] && object_end(32) > bytes[5]);
    }

    #[test]
    fn unknown_keys_are_refused() {
        for bad in [&[][..], &[0; 8], &[0; 10], &[0, 0, 0, 0, 0, 0, 0, 1, 9], &[3; 16], &[3; 18]] {
            assert!(ObjsetKey::decode(bad).is_err());
        }
    }
}
