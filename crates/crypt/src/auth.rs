//! The authenticated part of a block pointer (`blkptr_auth_buf_t`, `zio_crypt_bp_zero_nonportable_blkprop` in
//! `module/os/linux/zfs/zio_crypt.c`).
//!
//! It consists of the MAC and those bits of `blk_prop` that stay the same when the block is sent elsewhere.

use snowmelt_stream::{ByteOrder, Spill, Write};

use crate::error::TreeError;
use crate::suite::MAC_LEN;

/// Length of the authenticated part of a block pointer, in bytes.
pub const AUTH_LEN: usize = 32;
/// `DMU_OT_DNODE`.
pub(crate) const OT_DNODE: u32 = 10;
/// `ZIO_COMPRESS_OFF`.
const COMPRESS_OFF: u8 = 2;
/// Unit of block sizes (`SPA_MINBLOCKSIZE`), in bytes.
const SECTOR: u64 = 512;
/// Maximum number of sectors of a block: the field has 16 bits and 0 stands for one sector.
const MAX_SECTORS: u64 = 1 << 16;

// Bit offsets of fields in `blk_prop` (`include/sys/spa.h`).
const PROP_PSIZE: u32 = 16;
const PROP_COMPRESS: u32 = 32;
const PROP_TYPE: u32 = 48;
const PROP_LEVEL: u32 = 56;
const PROP_CRYPT: u32 = 61;
const PROP_ORDER: u32 = 63;

/// Whether blocks of a `dmu_object_type_t` are encrypted. Blocks of other types are only authenticated (`dmu_ot`,
/// `DMU_OT_IS_ENCRYPTED` in `include/sys/dmu.h`).
#[must_use]
pub const fn is_encrypted(object_type: u32) -> bool {
    const NEW_TYPE: u32 = 0x80;
    const ENCRYPTED: u32 = 0x20;
    if object_type & NEW_TYPE != 0 {
        return object_type & ENCRYPTED != 0;
    }
    // Intent log, dnodes, ACLs, files, directories, delete queues, volumes, uint8 and uint64 arrays, FUIDs, accounts
    // and quotas, system attributes, deduplicated blocks.
    matches!(object_type, 9 | 10 | 18..=20 | 22 | 23 | 25 | 26 | 33..=35 | 39 | 40 | 44..=47 | 49)
}

/// The byte order of a raw block: the stream's order, unless the block's record states the other one.
#[must_use]
pub const fn block_order(stream: ByteOrder, is_other: bool) -> ByteOrder {
    match (stream, is_other) {
        (ByteOrder::Little, false) | (ByteOrder::Big, true) => ByteOrder::Little,
        (ByteOrder::Big, false) | (ByteOrder::Little, true) => ByteOrder::Big,
    }
}

/// The authenticated part of one block pointer; all zeros for a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockAuth {
    prop: u64,
    mac: [u8; MAC_LEN],
}

impl BlockAuth {
    /// A hole's.
    pub const HOLE: Self = Self { prop: 0, mac: [0; MAC_LEN] };

    /// The authenticated part of the pointer to the block of a raw WRITE.
    ///
    /// # Errors
    /// No block pointer can have these sizes.
    pub fn of_write(write: &Write, stream: ByteOrder) -> Result<Self, TreeError> {
        let order = block_order(stream, write.flags & Write::RAW_BYTESWAP != 0);
        let sizes = prop_sizes(write.logical_size, write.compressed_size)?;
        Ok(Self::leaf(sizes, write.compression, write.object_type, order, write.crypt.mac))
    }

    /// The authenticated part of the pointer to the block of a raw SPILL. Spill blocks have the type of their object's
    /// bonus buffer.
    ///
    /// # Errors
    /// No block pointer can have these sizes.
    pub fn of_spill(spill: &Spill, bonus_type: u32, stream: ByteOrder) -> Result<Self, TreeError> {
        let order = block_order(stream, spill.flags & Write::RAW_BYTESWAP != 0);
        let sizes = prop_sizes(spill.length, spill.compressed_size)?;
        Ok(Self::leaf(sizes, spill.compression, bonus_type, order, spill.crypt.mac))
    }

    /// The authenticated part of the pointer to a block of dnodes: 16 KiB, never compressed.
    pub(crate) fn of_dnodes(mac: [u8; MAC_LEN], order: ByteOrder) -> Self {
        const SIZES: u64 = (crate::keydata::DNODE_BLOCK / SECTOR - 1) * ((1 << PROP_PSIZE) + 1);
        Self::leaf(SIZES, COMPRESS_OFF, OT_DNODE, order, mac)
    }

    fn leaf(sizes: u64, compression: u8, object_type: u32, order: ByteOrder, mac: [u8; MAC_LEN]) -> Self {
        let prop = sizes
            | u64::from(compression & 0x7f) << PROP_COMPRESS
            | u64::from(object_type & 0xff) << PROP_TYPE
            | 1 << PROP_CRYPT
            | u64::from(matches!(order, ByteOrder::Little)) << PROP_ORDER;
        Self { prop, mac }
    }

    /// The authenticated part of the pointer to an indirect block. Its stored size does not matter, because streams do
    /// not contain it.
    pub(crate) fn indirect(object_type: u32, level: u8, indirect_shift: u8, mac: [u8; MAC_LEN]) -> Self {
        let sectors = (1_u64 << indirect_shift) / SECTOR;
        let prop = sectors.saturating_sub(1)
            | u64::from(object_type & 0xff) << PROP_TYPE
            | u64::from(level & 0x1f) << PROP_LEVEL
            | 1 << PROP_CRYPT;
        Self { prop, mac }
    }

    /// The authenticated bytes: `blk_prop`, MAC, 8 reserved bytes. Little-endian on every machine.
    #[must_use]
    pub fn to_bytes(self) -> [u8; AUTH_LEN] {
        let mut out = [0; AUTH_LEN];
        out[..8].copy_from_slice(&self.prop.to_le_bytes());
        out[8..24].copy_from_slice(&self.mac);
        out
    }
}

/// The two size fields, in sectors minus one.
fn prop_sizes(logical: u64, physical: u64) -> Result<u64, TreeError> {
    let field = |bytes: u64| {
        let sectors = bytes / SECTOR;
        (bytes.is_multiple_of(SECTOR) && (1..=MAX_SECTORS).contains(&sectors)).then(|| sectors - 1)
    };
    match (field(logical), field(physical)) {
        (Some(logical), Some(physical)) => Ok(logical | physical << PROP_PSIZE),
        _ => Err(TreeError::Sizes { logical, physical }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_pointers_have_the_bits_of_openzfs() {
        let write = Write {
            object_type: 19,
            logical_size: 0x2_0000,
            compressed_size: 0x600,
            compression: 15,
            crypt: snowmelt_stream::Crypt { mac: [7; 16], ..Default::default() },
            ..Write::default()
        };
        let auth = BlockAuth::of_write(&write, ByteOrder::Little).unwrap().to_bytes();
        assert_eq!(auth[..8], 0xa013_000f_0002_00ff_u64.to_le_bytes());
        assert_eq!(auth[8..24], [7; 16]);
        assert_eq!(auth[24..], [0; 8]);
        let swapped = Write { flags: Write::RAW_BYTESWAP, ..write };
        let auth = BlockAuth::of_write(&swapped, ByteOrder::Little).unwrap();
        assert_eq!(auth.prop, 0x2013_000f_0002_00ff);
        assert_eq!(auth, BlockAuth::of_write(&write, ByteOrder::Big).unwrap());
        assert_eq!(BlockAuth::indirect(19, 2, 17, [1; 16]).prop, 0x2213_0000_0000_00ff);
        assert_eq!(BlockAuth::of_dnodes([1; 16], ByteOrder::Little).prop, 0xa00a_0002_001f_001f);
        let odd = Write { compressed_size: 0x601, ..write };
        assert!(matches!(BlockAuth::of_write(&odd, ByteOrder::Little), Err(TreeError::Sizes { .. })));
        let spill = Spill { length: 512, compressed_size: 512, compression: 2, ..Spill::default() };
        assert_eq!(BlockAuth::of_spill(&spill, 44, ByteOrder::Little).unwrap().prop, 0xa02c_0002_0000_0000);
    }

    #[test]
    fn types_are_encrypted_as_in_openzfs() {
        let encrypted: Vec<u32> = (0..54).filter(|&t| is_encrypted(t)).collect();
        assert_eq!(encrypted, [9, 10, 18, 19, 20, 22, 23, 25, 26, 33, 34, 35, 39, 40, 44, 45, 46, 47, 49],);
        assert!(is_encrypted(0xa0) && is_encrypted(0xe3) && !is_encrypted(0xc3) && !is_encrypted(0x80));
    }
}
