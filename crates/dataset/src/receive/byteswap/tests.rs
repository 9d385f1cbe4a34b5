#![allow(clippy::unwrap_used)]

use super::to_little_endian;
use crate::objset::types;
use proptest::prelude::*;

/// A block as a big-endian machine writes it: fields of different widths one after another.
struct Big(Vec<u8>);

impl Big {
    fn u16s(mut self, values: &[u16]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        self
    }
    fn u32s(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        self
    }
    fn u64s(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        self
    }
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn padded(mut self, len: usize) -> Self {
        assert!(self.0.len() <= len);
        self.0.resize(len, 0);
        self
    }
    fn turned(mut self, object_type: u8) -> Vec<u8> {
        to_little_endian(object_type, &mut self.0).unwrap();
        self.0
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

const DIRECTORY: u8 = 20;

#[test]
fn micro_zaps_turn_but_for_names() {
    let block = Big(Vec::new())
        .u64s(&[(1 << 63) + 3, 0x1122_3344_5566_7788, 5])
        .padded(64)
        .u64s(&[0x8000_0000_0000_0022])
        .u32s(&[9])
        .u16s(&[0])
        .bytes(b"a name of fourty-nine bytes at most")
        .padded(512)
        .turned(DIRECTORY);
    assert_eq!(
        (u64_at(&block, 0), u64_at(&block, 8), u64_at(&block, 16)),
        ((1 << 63) + 3, 0x1122_3344_5566_7788, 5)
    );
    assert_eq!((u64_at(&block, 64), u32_at(&block, 72)), (0x8000_0000_0000_0022, 9));
    assert!(block[78..].starts_with(b"a name of fourty-nine bytes"));
}

#[test]
fn leaves_turn_chunk_by_chunk() {
    let mut leaf = Big(Vec::new())
        .u64s(&[1 << 63, 0, 0x0102_0304_0506_0708])
        .u32s(&[0x02AB_1EAF])
        .u16s(&[15, 1, 3, 4])
        .bytes(&[1])
        .padded(48)
        .u16s(&[0xffff; 15])
        .u16s(&[2])
        // Chunk 0 is free, and the last of its list.
        .bytes(&[253])
        .padded(48 + 32 + 22)
        .u16s(&[0xfffe])
        // Chunk 1 is an array, whose integers are always big-endian.
        .bytes(&[251])
        .bytes(b"twenty-one bytes long")
        .u16s(&[0x0102])
        // Chunk 2 is an entry.
        .bytes(&[252, 8])
        .u16s(&[0xffff, 1, 5, 6, 1])
        .u32s(&[7])
        .u64s(&[0xaabb_ccdd_0000_0000]);
    while leaf.0.len() < 512 {
        let len = leaf.0.len();
        leaf = leaf.bytes(&[253]).padded(len + 22).u16s(&[0x0506]);
    }
    let leaf = leaf.turned(DIRECTORY);
    assert_eq!(
        (u64_at(&leaf, 0), u64_at(&leaf, 16), u32_at(&leaf, 24)),
        (1 << 63, 0x0102_0304_0506_0708, 0x02AB_1EAF)
    );
    assert_eq!([28, 30, 32, 34].map(|at| u16_at(&leaf, at)), [15, 1, 3, 4]);
    assert_eq!((leaf[36], u16_at(&leaf, 48 + 30)), (1, 2));
    assert_eq!(u16_at(&leaf, 80 + 22), 0xfffe);
    assert_eq!((&leaf[105..126], u16_at(&leaf, 126)), (&b"twenty-one bytes long"[..], 0x0102));
    let entry = &leaf[128..152];
    assert_eq!([2, 4, 6, 8, 10].map(|at| u16_at(entry, at)), [0xffff, 1, 5, 6, 1]);
    assert_eq!((u32_at(entry, 12), u64_at(entry, 16)), (7, 0xaabb_ccdd_0000_0000));
    assert_eq!(u16_at(&leaf, 510), 0x0506);
}

#[test]
fn unknown_chunks_are_refused() {
    let mut leaf = Big(Vec::new()).u64s(&[1 << 63]).padded(512).0;
    assert!(to_little_endian(DIRECTORY, &mut leaf).unwrap_err().contains("chunk 0"));
}

#[test]
fn acls_turn_entry_by_entry() {
    let entries = Big(Vec::new())
        // owner@, then a user, then an entry with two GUIDs, then everyone@.
        .u16s(&[0, 0x1000])
        .u32s(&[0x0001_0203])
        .u16s(&[1, 0])
        .u32s(&[0x0405_0607])
        .u64s(&[1000])
        .u16s(&[5, 0x0040])
        .u32s(&[0x0809_0a0b])
        .u64s(&[1001])
        .bytes(&[7; 32])
        .u16s(&[0, 0x4000])
        .u32s(&[0x0c0d_0e0f])
        .padded(512)
        .turned(33);
    let header = |at: usize| (u16_at(&entries, at), u16_at(&entries, at + 2), u32_at(&entries, at + 4));
    assert_eq!(header(0), (0, 0x1000, 0x0001_0203));
    assert_eq!((header(8), u64_at(&entries, 16)), ((1, 0, 0x0405_0607), 1000));
    assert_eq!((header(24), u64_at(&entries, 32)), ((5, 0x0040, 0x0809_0a0b), 1001));
    assert_eq!(entries[40..72], [7; 32]);
    assert_eq!(header(72), (0, 0x4000, 0x0c0d_0e0f));
}

#[test]
fn znodes_turn_with_their_acl_and_not_their_target() {
    let znode = |version: u16| {
        Big(Vec::new())
            .u64s(&(0..22).map(|word| 0x0102_0304_0000_0000 + word).collect::<Vec<_>>())
            .u64s(&[0x55])
            .u32s(&[24])
            .u16s(&[version, 2])
    };
    let old = znode(0).u32s(&[11, 12]).u16s(&[13, 14]).padded(264).bytes(b"../target").turned(types::ZNODE);
    for word in 0..22 {
        assert_eq!(u64_at(&old, word * 8), 0x0102_0304_0000_0000 + word as u64);
    }
    assert_eq!(
        (u64_at(&old, 176), u32_at(&old, 184), u16_at(&old, 188), u16_at(&old, 190)),
        (0x55, 24, 0, 2)
    );
    assert_eq!(
        (u32_at(&old, 192), u32_at(&old, 196), u16_at(&old, 200), u16_at(&old, 202)),
        (11, 12, 13, 14)
    );
    assert!(old.ends_with(b"../target"));
    let new = znode(1).u16s(&[0, 0x1000]).u32s(&[9]).padded(264).turned(types::ZNODE);
    assert_eq!((u16_at(&new, 192), u16_at(&new, 194), u32_at(&new, 196)), (0, 0x1000, 9));
}

#[test]
fn data_and_attributes_stay() {
    for object_type in [types::PLAIN_FILE_CONTENTS, types::ZVOL, types::SA, 34, 35, 0xa0] {
        let mut bytes: Vec<u8> = (0..=255).collect();
        to_little_endian(object_type, &mut bytes).unwrap();
        assert!(bytes.iter().copied().eq(0..=255), "type {object_type}");
    }
    assert_eq!(
        Big(Vec::new()).u16s(&[0x0102; 5]).bytes(&[9]).turned(0xc1),
        [2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 9]
    );
    assert_eq!(Big(Vec::new()).u32s(&[0x0102_0304]).turned(0xc2), [4, 3, 2, 1]);
    assert_eq!(Big(Vec::new()).u64s(&[1]).turned(36), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(to_little_endian(10, &mut [0; 512]).is_err());
}

proptest! {
    /// No input may cause a panic.
    #[test]
    fn any_bytes_of_any_type(object_type: u8, start in 0u8..5, rest in prop::collection::vec(any::<u8>(), 0..700)) {
        let mut bytes = match start {
            0 => ((1u64 << 63) + 3).to_be_bytes().to_vec(),
            1 => (1u64 << 63).to_be_bytes().to_vec(),
            _ => Vec::new(),
        };
        bytes.extend(rest);
        let _ = to_little_endian(object_type, &mut bytes);
    }
}
