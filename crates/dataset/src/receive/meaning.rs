//! Refuses metadata that no filesystem could use, when it is received.
//!
//! A stream's checksums only prove that it arrived as it was sent. Blocks with a known format are also checked by their
//! magic numbers. Otherwise a receiver would notice invalid data only when it is needed.

use crate::objset::types::{self, Swap};

/// `SA_MAGIC` (`sys/sa_impl.h`).
const SA_MAGIC: u32 = 0x002F_505A;
/// `MZAP_HDR`-type block types (`ZBT_MICRO`, `ZBT_HEADER`, `ZBT_LEAF` of `sys/zap_impl.h`).
const ZBT_LEAF: u64 = 1 << 63;
const ZBT_HEADER: u64 = (1 << 63) + 1;
const ZBT_MICRO: u64 = (1 << 63) + 3;
/// `ZAP_MAGIC`
const ZAP_MAGIC: u64 = 0x0002_F52A_B2AB;
/// `ZAP_LEAF_MAGIC`
const ZAP_LEAF_MAGIC: u32 = 0x02AB_1EAF;
/// Length of `znode_phys_t` up to its embedded ACL.
const ZNODE_LEN: usize = 264;

/// What is wrong with an object's bonus, if anything.
pub(crate) fn bonus(bonus_type: u8, bytes: &[u8]) -> Result<(), String> {
    match bonus_type {
        types::SA if bytes.is_empty() => Ok(()),
        types::SA => system_attributes(bytes),
        types::ZNODE if bytes.len() < ZNODE_LEN => Err(format!("a znode of {} bytes", bytes.len())),
        _ => Ok(()),
    }
}

/// What is wrong with a spill block, if anything.
pub(crate) fn spill(bytes: &[u8]) -> Result<(), String> {
    system_attributes(bytes)
}

fn system_attributes(bytes: &[u8]) -> Result<(), String> {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else {
        return Err("system attributes are cut short".to_owned());
    };
    let layout = rest.first_chunk::<2>().copied().unwrap_or_default();
    let layout = match u32::from_le_bytes(*magic) {
        SA_MAGIC => u16::from_le_bytes(layout),
        swapped if swapped == SA_MAGIC.swap_bytes() => u16::from_be_bytes(layout),
        other => return Err(format!("system attributes begin with {other:#x}, not {SA_MAGIC:#x}")),
    };
    let header_len = usize::from(layout >> 10) * 8;
    if header_len < 8 || header_len > bytes.len() {
        return Err(format!("system attributes with a header of {header_len} bytes"));
    }
    Ok(())
}

/// What is wrong with a block of an object of this type, if anything. `blkid` is the block number.
pub(crate) fn block(object_type: u8, blkid: u64, bytes: &[u8]) -> Result<(), String> {
    if types::swap(object_type) != Swap::Zap {
        return Ok(());
    }
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
    let (kind, magic) = (word(0), word(8));
    let ok = match kind {
        ZBT_MICRO => blkid == 0,
        ZBT_HEADER => blkid == 0 && magic == ZAP_MAGIC,
        ZBT_LEAF => {
            let magic = bytes.get(24..28).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes);
            magic == ZAP_LEAF_MAGIC
        }
        // Pointer tables and unused blocks of a fat ZAP have no magic number.
        _ => blkid != 0,
    };
    if ok { Ok(()) } else { Err(format!("block {blkid} of a ZAP object begins with {kind:#x}")) }
}

/// The generation of a file, from its bonus (`zpl_get_file_info`). It distinguishes files that had the same object
/// number.
pub(crate) fn generation(bonus_type: u8, bonus: &[u8]) -> Option<u64> {
    /// `SA_GEN_OFFSET`: the third attribute of every layout of a file.
    const SA_GEN: usize = 16;
    const ZNODE_GEN: usize = 64;
    let word = |at: usize| bonus.get(at..)?.first_chunk::<8>().copied();
    match bonus_type {
        types::SA => {
            let (magic, rest) = bonus.split_first_chunk::<4>()?;
            let layout = *rest.first_chunk::<2>()?;
            let at = |layout: u16| usize::from(layout >> 10) * 8 + SA_GEN;
            // Attributes from a stream of the other byte order were not swapped.
            if u32::from_be_bytes(*magic) == SA_MAGIC {
                word(at(u16::from_be_bytes(layout))).map(u64::from_be_bytes)
            } else {
                word(at(u16::from_le_bytes(layout))).map(u64::from_le_bytes)
            }
        }
        types::ZNODE => word(ZNODE_GEN).map(u64::from_le_bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junk_is_told_from_metadata() {
        let mut sa = vec![0; 160];
        sa[..4].copy_from_slice(&SA_MAGIC.to_le_bytes());
        sa[4..6].copy_from_slice(&((1u16 << 10) | 2).to_le_bytes());
        sa[24..32].copy_from_slice(&77u64.to_le_bytes());
        assert_eq!(bonus(types::SA, &sa), Ok(()));
        assert_eq!(generation(types::SA, &sa), Some(77));
        let mut big = vec![0; 160];
        big[..4].copy_from_slice(&SA_MAGIC.to_be_bytes());
        big[4..6].copy_from_slice(&((1u16 << 10) | 2).to_be_bytes());
        big[24..32].copy_from_slice(&77u64.to_be_bytes());
        assert_eq!(bonus(types::SA, &big), Ok(()));
        assert_eq!(generation(types::SA, &big), Some(77));
        sa[0] ^= 1;
        assert!(bonus(types::SA, &sa).is_err());
        assert!(bonus(types::ZNODE, &[0; 100]).is_err());
        assert!(spill(&[]).is_err());
    }

    #[test]
    fn zap_blocks_say_what_they_are() {
        let mut micro = vec![0; 512];
        micro[..8].copy_from_slice(&ZBT_MICRO.to_le_bytes());
        assert_eq!(block(20, 0, &micro), Ok(()));
        assert!(block(20, 3, &micro).is_err());
        assert!(block(20, 0, &[7; 512]).is_err());
        assert_eq!(block(20, 1, &[7; 512]), Ok(()));
        assert_eq!(block(types::PLAIN_FILE_CONTENTS, 0, &[7; 512]), Ok(()));
    }
}
