//! Values of an objset tree (docs/format/dataset.md).

use snowmelt_pool::{BLOCK_MAX, BlockPtr};

use crate::codec::Fields;
use crate::error::DatasetError;

const VERSION: u8 = 1;

/// Maximal length of a bonus: a dnode of 16 KiB without its fixed part.
pub const BONUS_MAX: usize = 16 * 1024;

/// `DNODE_MIN_SIZE`, `DNODE_CORE_SIZE` and the size of a block pointer, in bytes.
const DNODE_MIN: usize = 512;
const DNODE_CORE: usize = 64;
const BLKPTR: usize = 128;

/// A dnode: everything of an object except its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dnode {
    /// `dmu_object_type_t`
    pub object_type: u8,
    /// `dmu_object_type_t` of the bonus.
    pub bonus_type: u8,
    /// Checksum algorithm at the sender.
    pub checksum: u8,
    /// Compression at the sender.
    pub compress: u8,
    /// Number of 512-byte slots: 1 to 32.
    pub slots: u8,
    /// Block size in bytes: a multiple of 512.
    pub block_size: u32,
    /// Length of the valid part of the bonus. [`Dnode::bonus`] is longer in raw datasets.
    pub bonus_len: u32,
    /// Structure that a raw dataset must keep; `None` in other datasets.
    pub raw: Option<RawDnode>,
    /// The bonus bytes.
    pub bonus: Vec<u8>,
}

/// What the MAC of an encrypted dnode covers in addition to its bonus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDnode {
    /// Highest block number.
    pub max_blkid: u64,
    /// Log2 of the indirect block size.
    pub indirect_block_shift: u8,
    /// Levels of the block tree.
    pub nlevels: u8,
    /// Block pointers in the dnode.
    pub nblkptr: u8,
    /// The `flags` of its OBJECT record, which say how it was encoded.
    pub flags: u8,
}

impl Dnode {
    /// Number of block pointers that fit beside a bonus of this type and length (`deduce_nblkptr`).
    pub fn block_pointers(slots: u8, bonus_type: u8, bonus_len: u32) -> u8 {
        const DMU_OT_SA: u8 = 44;
        if bonus_type == DMU_OT_SA {
            return 1;
        }
        let room = usize::from(slots) * DNODE_MIN - DNODE_CORE - BLKPTR;
        let left = room.saturating_sub(usize::try_from(bonus_len).unwrap_or(usize::MAX));
        u8::try_from(1 + left / BLKPTR).unwrap_or(3).min(3)
    }

    /// Maximal length of the bonus in a dnode with this many slots (`DN_BONUS_SIZE`).
    pub fn bonus_room(slots: u8) -> usize {
        (usize::from(slots) * DNODE_MIN).saturating_sub(DNODE_CORE + BLKPTR)
    }

    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.bonus.len());
        out.extend_from_slice(&[
            VERSION,
            self.object_type,
            self.bonus_type,
            self.checksum,
            self.compress,
            self.slots,
        ]);
        out.extend_from_slice(&self.block_size.to_le_bytes());
        out.extend_from_slice(&self.bonus_len.to_le_bytes());
        match &self.raw {
            None => out.push(0),
            Some(raw) => {
                out.extend_from_slice(&[1, raw.indirect_block_shift, raw.nlevels, raw.nblkptr, raw.flags]);
                out.extend_from_slice(&raw.max_blkid.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.bonus);
        out
    }

    /// Decodes a value.
    ///
    /// # Errors
    /// When it is not a dnode, or of a version that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("dnode", bytes);
        fields.version(VERSION)?;
        let (object_type, bonus_type, checksum, compress, slots) =
            (fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?);
        let (block_size, bonus_len) = (fields.u32()?, fields.u32()?);
        let raw = match fields.u8()? {
            0 => None,
            _ => {
                let (indirect_block_shift, nlevels, nblkptr, flags) =
                    (fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?);
                Some(RawDnode { max_blkid: fields.u64()?, indirect_block_shift, nlevels, nblkptr, flags })
            }
        };
        let bonus = fields.remaining().to_vec();
        let is_whole = block_size % 512 == 0 && (512..=BLOCK_MAX).contains(&block_size);
        let is_bonus = bonus.len() <= BONUS_MAX && bonus_len as usize <= BONUS_MAX;
        if !is_whole || !is_bonus || slots == 0 {
            return Err(DatasetError::corrupt("dnode", "impossible sizes"));
        }
        Ok(Self { object_type, bonus_type, checksum, compress, slots, block_size, bonus_len, raw, bonus })
    }
}

/// Encryption parameters of a block, as in streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCrypt {
    /// `drr_salt`
    pub salt: [u8; 8],
    /// `drr_iv`
    pub iv: [u8; 12],
    /// `drr_mac`
    pub mac: [u8; 16],
    /// The record's flags (`DRR_RAW_BYTESWAP`).
    pub flags: u8,
}

impl BlockCrypt {
    const LEN: usize = 37;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.iv);
        out.extend_from_slice(&self.mac);
        out.push(self.flags);
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, DatasetError> {
        Ok(Self { salt: fields.fixed()?, iv: fields.fixed()?, mac: fields.fixed()?, flags: fields.u8()? })
    }

    /// Encodes the value of an object range.
    pub fn encode_range(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + Self::LEN);
        out.push(VERSION);
        self.encode(&mut out);
        out
    }

    /// Decodes the value of an object range.
    ///
    /// # Errors
    /// When it is not an object range.
    pub fn decode_range(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("object range", bytes);
        fields.version(VERSION)?;
        let crypt = Self::decode(&mut fields)?;
        fields.finish()?;
        Ok(crypt)
    }
}

/// A data or spill block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The pointer to its bytes.
    pub ptr: BlockPtr,
    /// Its encryption parameters; `None` if it is not encrypted.
    pub crypt: Option<BlockCrypt>,
}

impl Block {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.push(VERSION);
        match &self.crypt {
            None => out.push(0),
            Some(crypt) => {
                out.push(1);
                crypt.encode(&mut out);
            }
        }
        self.ptr.encode(&mut out);
        out
    }

    /// Decodes a value.
    ///
    /// # Errors
    /// When it is not a block, or of a version that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("block", bytes);
        fields.version(VERSION)?;
        let crypt = match fields.u8()? {
            0 => None,
            1 => Some(BlockCrypt::decode(&mut fields)?),
            _ => return Err(DatasetError::corrupt("block", "unknown flags")),
        };
        let ptr = BlockPtr::decode(fields.nested())?;
        fields.finish()?;
        Ok(Self { ptr, crypt })
    }
}
