//! Byte-swaps metadata from machines of the other byte order.
//!
//! A stream has its sender's byte order, and so do those blocks and bonuses in it that are not just bytes. They are
//! stored as little-endian, so that higher layers need not know their source. The method for each type follows
//! OpenZFS's `dmu_ot_byteswap[]` (`module/zfs/dmu.c`): `zap_byteswap`, `mzap_byteswap`, `zap_leaf_byteswap`,
//! `zfs_znode_byteswap`, `zfs_acl_byteswap`, `zfs_oldacl_byteswap`.
//!
//! System attributes are not swapped: only the registry and layouts of their filesystem say what they contain. Their
//! magic number shows their byte order, and every reader checks it (`sa_byteswap` of `module/zfs/sa.c`).

use crate::objset::types::{self, Swap};

/// First words of ZAP blocks, see `meaning`.
const ZBT_LEAF: u64 = 1 << 63;
const ZBT_MICRO: u64 = (1 << 63) + 3;

/// Swaps a whole block or bonus of an object of type `object_type` from big-endian to little-endian.
///
/// # Errors
/// What is wrong with it, when it cannot be swapped.
pub(crate) fn to_little_endian(object_type: u8, bytes: &mut [u8]) -> Result<(), String> {
    match types::swap(object_type) {
        Swap::Bytes => {}
        Swap::U16 => words::<2>(bytes),
        Swap::U32 => words::<4>(bytes),
        Swap::U64 => words::<8>(bytes),
        Swap::Zap => return zap(bytes),
        Swap::Znode => znode(bytes),
        Swap::OldAcl => old_acl(bytes),
        Swap::Acl => acl(bytes),
        Swap::Never => {
            return Err(format!("type {object_type} is none of what filesystems and volumes hold"));
        }
    }
    Ok(())
}

/// Swaps every whole word of `N` bytes. The rest at the end does not change.
fn words<const N: usize>(bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<N>().0 {
        word.reverse();
    }
}

/// Swaps the word of `N` bytes at `at`, if it exists.
fn word<const N: usize>(bytes: &mut [u8], at: usize) {
    if let Some(word) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        word.reverse();
    }
}

/// A word of two bytes that was already swapped.
fn turned_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_le_bytes(*word))
}

/// Fat ZAPs contain only 64-bit words, except for their leaves.
fn zap(bytes: &mut [u8]) -> Result<(), String> {
    match bytes.first_chunk().map(|word| u64::from_be_bytes(*word)) {
        Some(ZBT_MICRO) => micro_zap(bytes),
        Some(ZBT_LEAF) => return zap_leaf(bytes),
        _ => words::<8>(bytes),
    }
    Ok(())
}

/// `mzap_phys_t`: a header, then `mzap_ent_phys_t`s, whose names are not swapped.
fn micro_zap(bytes: &mut [u8]) {
    /// Length of the header, and of an entry (`MZAP_ENT_LEN`).
    const ENTRY: usize = 64;
    const HEADER_WORDS: usize = 24;
    let (header, entries) = bytes.split_at_mut(bytes.len().min(ENTRY));
    let used = header.len().min(HEADER_WORDS);
    words::<8>(&mut header[..used]);
    for entry in entries.as_chunks_mut::<ENTRY>().0 {
        word::<8>(entry, 0);
        word::<4>(entry, 8);
    }
}

/// `zap_leaf_phys_t`: a header, a hash table, and chunks with a type byte.
fn zap_leaf(bytes: &mut [u8]) -> Result<(), String> {
    const HEADER: usize = 48;
    const CHUNK: usize = 24;
    const ENTRY: u8 = 252;
    const FREE: u8 = 253;
    const ARRAY: u8 = 251;
    // The size of the leaf is a power of two, whatever the block's size is.
    let len = 1usize << bytes.len().ilog2();
    let hash_len = len / 32 * 2;
    let Some((header, rest)) = bytes.get_mut(..len).and_then(|leaf| leaf.split_at_mut_checked(HEADER)) else {
        return Err(format!("a leaf of a ZAP of {} bytes", bytes.len()));
    };
    let Some((hash, chunks)) = rest.split_at_mut_checked(hash_len) else {
        return Err(format!("a leaf of a ZAP of {len} bytes"));
    };
    word::<8>(header, 0);
    word::<8>(header, 16);
    word::<4>(header, 24);
    // Numbers of free chunks and entries, length of the prefix, head of the list of free chunks.
    words::<2>(&mut header[28..36]);
    words::<2>(hash);
    for (number, chunk) in chunks.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
        match chunk[0] {
            ENTRY => {
                words::<2>(&mut chunk[2..12]);
                word::<4>(chunk, 12);
                word::<8>(chunk, 16);
            }
            // Arrays are always big-endian; only the link to the next chunk is swapped.
            FREE | ARRAY => word::<2>(chunk, 22),
            other => return Err(format!("chunk {number} of a ZAP leaf is of type {other}")),
        }
    }
    Ok(())
}

/// `znode_phys_t`: words, with an ACL at the end. A symlink's target after it is not swapped.
fn znode(bytes: &mut [u8]) {
    /// Offset of `zp_acl`, and the offsets of the version and the entries in it (`zfs_acl_phys_t`).
    const ACL: usize = 176;
    const VERSION: usize = ACL + 12;
    const ENTRIES: usize = ACL + 16;
    const END: usize = ENTRIES + 72;
    /// `ZFS_ACL_VERSION_FUID`: entries of variable length.
    const FUID: u16 = 1;
    let len = bytes.len();
    words::<8>(&mut bytes[..len.min(ACL + 8)]);
    word::<4>(bytes, ACL + 8);
    word::<2>(bytes, VERSION);
    word::<2>(bytes, VERSION + 2);
    let version = turned_u16(bytes, VERSION);
    if let Some(entries) = bytes.get_mut(ENTRIES..len.min(END)) {
        if version == FUID { acl(entries) } else { old_acl(entries) }
    }
}

/// `zfs_oldace_t`s: user and mask of four bytes each, then flags and type.
fn old_acl(bytes: &mut [u8]) {
    for entry in bytes.as_chunks_mut::<12>().0 {
        words::<4>(&mut entry[..8]);
        words::<2>(&mut entry[8..]);
    }
}

/// Entries of variable length, one after another (`zfs_ace_hdr_t`, `zfs_ace_t`, `zfs_object_ace_t`). The block does not
/// contain their number: zeros after them do not matter.
fn acl(mut rest: &mut [u8]) {
    const HEADER: usize = 8;
    const WITH_WHO: usize = 16;
    const OBJECT: usize = 48;
    /// `ACE_TYPE_FLAGS`, and its values without a user: owner, group, everyone.
    const WHO: u16 = 0x7040;
    const NOBODY: [u16; 3] = [0x1000, 0x2040, 0x4000];
    /// `ACE_ACCESS_ALLOWED_OBJECT_ACE_TYPE` to `ACE_SYSTEM_ALARM_OBJECT_ACE_TYPE`.
    const OBJECT_TYPES: std::ops::RangeInclusive<u16> = 5..=8;
    while rest.len() >= HEADER {
        word::<2>(rest, 0);
        word::<2>(rest, 2);
        word::<4>(rest, 4);
        let (kind, flags) = (turned_u16(rest, 0), turned_u16(rest, 2));
        let len = if NOBODY.contains(&(flags & WHO)) {
            HEADER
        } else {
            word::<8>(rest, HEADER);
            if OBJECT_TYPES.contains(&kind) { OBJECT } else { WITH_WHO }
        };
        rest = std::mem::take(&mut rest).get_mut(len..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
