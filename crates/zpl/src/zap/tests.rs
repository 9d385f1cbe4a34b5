//! Tests of reading ZAPs: built by hand in both byte orders, and damaged ones.

use super::*;
use crate::memory::{MemoryObject, MemoryObjects};
use crate::source::Dnode;
use fat::{
    OFF_ENTRIES, OFF_FLAGS, OFF_FREE_BLOCK, OFF_NORMFLAGS, OFF_SALT, OFF_TABLE_BLOCK, OFF_TABLE_BLOCKS,
};
use leaf::{ARRAY_LEN, CHAIN_END, CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_LEN, HEADER_LEN};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SALT: u64 = 0xdead_beef_0bad_cafe;
const OBJECT: u64 = 7;

fn put<const N: usize>(buf: &mut [u8], at: usize, endian: Endian, little: [u8; N]) {
    let mut bytes = little;
    if endian == Endian::Big {
        bytes.reverse();
    }
    buf[at..at + N].copy_from_slice(&bytes);
}

fn put16(buf: &mut [u8], at: usize, endian: Endian, value: u16) {
    put(buf, at, endian, value.to_le_bytes());
}

fn put32(buf: &mut [u8], at: usize, endian: Endian, value: u32) {
    put(buf, at, endian, value.to_le_bytes());
}

fn put64(buf: &mut [u8], at: usize, endian: Endian, value: u64) {
    put(buf, at, endian, value.to_le_bytes());
}

fn object(block_size: usize, data: &[u8]) -> MemoryObjects {
    let dnode = Dnode { object: OBJECT, block_size: block_size as u32, ..Dnode::default() };
    let mut object = MemoryObject { dnode, ..Default::default() };
    object.write(0, data);
    MemoryObjects { objects: [(OBJECT, object)].into() }
}

/// An entry to be stored. `key` holds the key bytes as in the leaf (with their NUL); the value is big-endian bytes.
#[derive(Clone)]
struct Stored {
    key: Vec<u8>,
    key_len: u16,
    hash: u64,
    cd: u32,
    size: u8,
    value: Vec<u8>,
}

/// Builds leaves and a pointer table of `shift` bits, with one leaf for each prefix of `leaf_bits` bits.
struct FatBuilder {
    endian: Endian,
    block: usize,
    hashing: Hashing,
    leaf_bits: u32,
    /// Bits of the pointer table. A table that does not fit in the header is stored in blocks of its own.
    shift: u32,
}

impl FatBuilder {
    fn new(endian: Endian) -> Self {
        let hashing = Hashing { salt: SALT, flags: 0, norm: NormFlags::NONE };
        Self { endian, block: 1024, hashing, leaf_bits: 2, shift: 6 }
    }

    fn named(&self, name: &[u8], cd: u32, value: u64) -> Stored {
        let key = [name, b"\0"].concat();
        let (key_len, hash) = (key.len() as u16, self.hashing.hash_name(name));
        Stored { key, key_len, hash, cd, size: 8, value: value.to_be_bytes().to_vec() }
    }

    fn leaf(&self, prefix: u64, entries: &[&Stored]) -> Vec<u8> {
        let e = self.endian;
        let mut leaf = vec![0; self.block];
        put64(&mut leaf, 0, e, ZBT_LEAF);
        put64(&mut leaf, 16, e, prefix);
        put32(&mut leaf, 24, e, leaf::MAGIC);
        put16(&mut leaf, 32, e, self.leaf_bits as u16);
        let hash_len = self.block / 32;
        leaf[HEADER_LEN..HEADER_LEN + 2 * hash_len].fill(0xff);
        let chunk_at = |chunk: u16| HEADER_LEN + 2 * hash_len + usize::from(chunk) * CHUNK_LEN;
        let mut next = 0u16;
        for entry in entries {
            let number = next;
            next += 1;
            let mut arrays = [CHAIN_END; 2];
            for (first, bytes) in arrays.iter_mut().zip([&entry.key, &entry.value]) {
                let count = bytes.len().div_ceil(ARRAY_LEN) as u16;
                for (index, part) in bytes.chunks(ARRAY_LEN).enumerate() {
                    let at = chunk_at(next);
                    leaf[at] = CHUNK_ARRAY;
                    leaf[at + 1..at + 1 + part.len()].copy_from_slice(part);
                    let follow = if index as u16 + 1 == count { CHAIN_END } else { next + 1 };
                    put16(&mut leaf, at + 22, e, follow);
                    if index == 0 {
                        *first = next;
                    }
                    next += 1;
                }
            }
            let at = chunk_at(number);
            assert!(chunk_at(next) <= self.block, "the leaf is full");
            let bucket = (entry.hash << self.leaf_bits >> (64 - hash_len.trailing_zeros())) as usize;
            let head = e.u16(&leaf, HEADER_LEN + 2 * bucket).unwrap();
            put16(&mut leaf, HEADER_LEN + 2 * bucket, e, number);
            leaf[at] = CHUNK_ENTRY;
            leaf[at + 1] = entry.size;
            put16(&mut leaf, at + 2, e, head);
            put16(&mut leaf, at + 4, e, arrays[0]);
            put16(&mut leaf, at + 6, e, entry.key_len);
            put16(&mut leaf, at + 8, e, arrays[1]);
            put16(&mut leaf, at + 10, e, (entry.value.len() / usize::from(entry.size)) as u16);
            put32(&mut leaf, at + 12, e, entry.cd);
            put64(&mut leaf, at + 16, e, entry.hash);
        }
        leaf
    }

    fn build(&self, entries: &[Stored]) -> MemoryObjects {
        let e = self.endian;
        let leaves = 1u64 << self.leaf_bits;
        let mut header = vec![0; self.block];
        let embedded = self.block.trailing_zeros() - 4;
        let table_bytes = 8usize << self.shift;
        let table_blocks = if self.shift > embedded { table_bytes.div_ceil(self.block) } else { 0 };
        put64(&mut header, 0, e, ZBT_HEADER);
        put64(&mut header, 8, e, fat::MAGIC);
        if table_blocks > 0 {
            put64(&mut header, OFF_TABLE_BLOCK, e, 1 + leaves);
        }
        put64(&mut header, OFF_TABLE_BLOCKS, e, table_blocks as u64);
        put64(&mut header, fat::OFF_TABLE_SHIFT, e, self.shift.into());
        put64(&mut header, OFF_FREE_BLOCK, e, 1 + leaves + table_blocks as u64);
        put64(&mut header, OFF_ENTRIES, e, entries.len() as u64);
        put64(&mut header, OFF_SALT, e, self.hashing.salt);
        put64(&mut header, OFF_NORMFLAGS, e, self.hashing.norm.bits().into());
        put64(&mut header, OFF_FLAGS, e, self.hashing.flags);
        let mut table = vec![0; table_bytes];
        for index in 0..1u64 << self.shift {
            let leaf = 1 + (index >> (self.shift - self.leaf_bits));
            put64(&mut table, index as usize * 8, e, leaf);
        }
        if table_blocks == 0 {
            let half = self.block / 2;
            header[half..half + table.len()].copy_from_slice(&table);
        }
        let mut data = header;
        for prefix in 0..leaves {
            let mine = |entry: &&Stored| fat::top_bits(entry.hash, self.leaf_bits) == prefix;
            data.extend(self.leaf(prefix, &entries.iter().filter(mine).collect::<Vec<_>>()));
        }
        if table_blocks > 0 {
            data.extend(table);
        }
        object(self.block, &data)
    }
}

fn micro(endian: Endian, norm: NormFlags, entries: &[(&[u8], u64, u32)]) -> MemoryObjects {
    let mut block = vec![0; 4096];
    put64(&mut block, 0, endian, ZBT_MICRO);
    put64(&mut block, 8, endian, SALT);
    put64(&mut block, 16, endian, norm.bits().into());
    for (index, (name, value, cd)) in entries.iter().enumerate() {
        // Slots between used ones may be free.
        let at = 64 + index * 128;
        put64(&mut block, at, endian, *value);
        put32(&mut block, at + 8, endian, *cd);
        block[at + 14..at + 14 + name.len()].copy_from_slice(name);
    }
    object(4096, &block)
}

fn names(objects: &MemoryObjects, from: Cursor) -> Vec<(String, u64)> {
    let zap = Zap::open(objects, OBJECT).unwrap();
    zap.entries(from)
        .map(|entry| {
            let entry = entry.unwrap();
            let name = String::from_utf8(entry.key.as_name().unwrap().to_vec()).unwrap();
            (name, entry.value.as_u64().unwrap())
        })
        .collect()
}

#[test]
fn micro_zaps_of_both_byte_orders() {
    for endian in [Endian::Little, Endian::Big] {
        let objects = micro(endian, NormFlags::NONE, &[(b"one", 1, 0), (b"two", 2, 0), (b"three", 3, 0)]);
        let zap = Zap::open(&objects, OBJECT).unwrap();
        assert!(zap.is_micro());
        assert_eq!(zap.count(), 3);
        assert_eq!(zap.lookup_u64("two").unwrap(), Some(2));
        assert_eq!(zap.lookup_u64("Two").unwrap(), None);
        let mut found = names(&objects, Cursor::START);
        found.sort();
        assert_eq!(found, [("one".into(), 1), ("three".into(), 3), ("two".into(), 2)]);
    }
}

#[test]
fn case_folding_prefers_the_first_made() {
    let objects = micro(Endian::Little, NormFlags::UPPER, &[(b"name", 2, 1), (b"Name", 1, 0), (b"x", 3, 0)]);
    let zap = Zap::open(&objects, OBJECT).unwrap();
    let found = |name: &[u8], matching| {
        let entry = zap.lookup(name, matching).unwrap();
        entry.map(|entry| entry.value.as_u64().unwrap())
    };
    assert_eq!(found(b"NAME", Matching::Normalized), Some(1));
    assert_eq!(found(b"name", Matching::NormalizedCaseSensitive), Some(2));
    assert_eq!(found(b"NAME", Matching::NormalizedCaseSensitive), None);
    // Both have the same hash, so both are listed, in the order of their differentiators.
    let all: Vec<_> =
        zap.entries(Cursor::START).map(|entry| entry.unwrap().value.as_u64().unwrap()).collect();
    let (first, second) = (all.iter().position(|v| *v == 1), all.iter().position(|v| *v == 2));
    assert!(first < second);
}

#[test]
fn fat_zaps_with_embedded_and_external_tables() {
    for endian in [Endian::Little, Endian::Big] {
        for (block, leaf_bits, shift) in
            [(1024, 0, 0), (1024, 2, 6), (4096, 3, 8), (1024, 2, 7), (1024, 3, 9)]
        {
            let builder = FatBuilder { block, leaf_bits, shift, ..FatBuilder::new(endian) };
            let entries: Vec<_> = (0..6)
                .map(|n| builder.named(format!("a name of some length {n}").as_bytes(), 0, 100 + n))
                .collect();
            let objects = builder.build(&entries);
            let zap = Zap::open(&objects, OBJECT).unwrap();
            assert!(!zap.is_micro());
            for n in 0..6 {
                assert_eq!(zap.lookup_u64(&format!("a name of some length {n}")).unwrap(), Some(100 + n));
            }
            assert_eq!(zap.lookup_u64("a name of some length 9").unwrap(), None);
            let found = names(&objects, Cursor::START);
            assert_eq!(found.len(), 6);
            // A listing resumed at any cursor continues after that entry, also after the cursor was serialised.
            let all: Vec<Entry> = zap.entries(Cursor::START).map(Result::unwrap).collect();
            for (index, entry) in all.iter().enumerate() {
                let bits = zap.hashing().hash_bits();
                let cursor = Cursor::deserialize(entry.at.after().serialize(bits), bits);
                assert_eq!(names(&objects, cursor), found[index + 1..]);
            }
            assert_eq!(names(&objects, Cursor::deserialize(Cursor::END.serialize(28), 28)), []);
        }
    }
}

#[test]
fn values_of_all_integer_sizes() {
    let builder = FatBuilder::new(Endian::Big);
    let mut entries = Vec::new();
    for (name, size) in [("bytes", 1u8), ("shorts", 2), ("words", 4), ("longs", 8)] {
        let value =
            (1..=5u64).flat_map(|n| (n * 17).to_be_bytes()[8 - usize::from(size)..].to_vec()).collect();
        entries.push(Stored { size, value, ..builder.named(name.as_bytes(), 0, 0) });
    }
    let objects = builder.build(&entries);
    let zap = Zap::open(&objects, OBJECT).unwrap();
    for (name, size) in [("bytes", 1), ("shorts", 2), ("words", 4), ("longs", 8)] {
        let entry = zap.lookup(name.as_bytes(), Matching::Exact).unwrap().unwrap();
        let Value::Many { integer_size, integers } = &entry.value else { panic!("{name} is one integer") };
        assert_eq!((*integer_size, integers.as_slice()), (size, &[17, 34, 51, 68, 85][..]));
        assert!(zap.lookup_u64(name).is_err());
    }
}

#[test]
fn keys_of_integers_and_long_names() {
    let flags = hash::FLAG_HASH64 | hash::FLAG_UINT64_KEY | hash::FLAG_PRE_HASHED_KEY;
    let hashing = Hashing { flags, ..FatBuilder::new(Endian::Little).hashing };
    let builder = FatBuilder { hashing, ..FatBuilder::new(Endian::Little) };
    let words = [0x8123_4567_89ab_cdefu64, 5];
    let key = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let hash = hashing.hash_words(&words);
    assert_eq!(hash, 0x8123_4567_89ab_0000);
    let stored = Stored { key, key_len: 2, hash, cd: 0, size: 8, value: 9u64.to_be_bytes().to_vec() };
    let objects = builder.build(&[stored]);
    let zap = Zap::open(&objects, OBJECT).unwrap();
    let entry = zap.entries(Cursor::START).next().unwrap().unwrap();
    assert_eq!((entry.key, entry.value), (Key::Words(words.to_vec()), Value::One(9)));

    let builder = FatBuilder { block: 16384, ..FatBuilder::new(Endian::Little) };
    let long = [b'x'; 1023];
    let objects = builder.build(&[builder.named(&long, 0, 4)]);
    let found = Zap::open(&objects, OBJECT).unwrap().lookup(&long, Matching::Exact).unwrap();
    assert_eq!(found.unwrap().value, Value::One(4));
    let objects = builder.build(&[builder.named(&[b'x'; 1024], 0, 4)]);
    assert!(Zap::open(&objects, OBJECT).unwrap().entries(Cursor::START).any(|entry| entry.is_err()));
}

#[test]
fn pointer_tables_of_the_other_byte_order() {
    let little = FatBuilder { shift: 7, ..FatBuilder::new(Endian::Little) };
    let big = FatBuilder { shift: 7, ..FatBuilder::new(Endian::Big) };
    let entries: Vec<_> = (0..6).map(|n| little.named(format!("n{n}").as_bytes(), 0, n)).collect();
    let mut objects = little.build(&entries);
    let other = big.build(&entries);
    // A leaf shows its byte order by its magic number. The pointer table does not.
    for block in [2, 5] {
        let swapped = other.objects[&OBJECT].blocks[&block].clone();
        objects.objects.get_mut(&OBJECT).unwrap().blocks.insert(block, swapped);
    }
    assert_eq!(names(&objects, Cursor::START).len(), 6);
}

/// Reads a whole ZAP, valid or damaged. It must terminate.
fn exhaust(objects: &MemoryObjects) -> usize {
    let Ok(zap) = Zap::open(objects, OBJECT) else { return 0 };
    for matching in [Matching::Exact, Matching::Normalized] {
        let _ = zap.lookup(b"n1", matching);
    }
    zap.entries(Cursor::START).take(100_000).count()
}

#[test]
fn circles_end() {
    let builder = FatBuilder { leaf_bits: 0, shift: 0, ..FatBuilder::new(Endian::Little) };
    let mut objects = builder.build(&[builder.named(b"n1", 0, 1), builder.named(b"n2", 0, 2)]);
    let leaf = objects.objects.get_mut(&OBJECT).unwrap().blocks.get_mut(&1).unwrap();
    let first_chunk = HEADER_LEN + 64;
    put16(leaf, first_chunk + 2, Endian::Little, 0);
    let zap = Zap::open(&objects, OBJECT).unwrap();
    assert!(zap.entries(Cursor::START).any(|entry| entry.is_err()));
    assert!(exhaust(&objects) < 10);
    // If the chunks of a name form a circle, the name has its declared length and no more.
    let mut objects = builder.build(&[builder.named(&[b'n'; 100], 0, 1)]);
    let leaf = objects.objects.get_mut(&OBJECT).unwrap().blocks.get_mut(&1).unwrap();
    put16(leaf, first_chunk + CHUNK_LEN + 22, Endian::Little, 1);
    let entry = Zap::open(&objects, OBJECT).unwrap().entries(Cursor::START).next().unwrap().unwrap();
    assert!(entry.key.as_name().unwrap().len() <= 101);
}

#[test]
fn leaves_must_be_the_ones_for_their_prefix() {
    let builder = FatBuilder::new(Endian::Little);
    let entries: Vec<_> = (0..6).map(|n| builder.named(format!("n{n}").as_bytes(), 0, n)).collect();
    let mut objects = builder.build(&entries);
    let blocks = &mut objects.objects.get_mut(&OBJECT).unwrap().blocks;
    let first = blocks[&1].clone();
    blocks.insert(2, first);
    let zap = Zap::open(&objects, OBJECT).unwrap();
    assert!(matches!(zap.entries(Cursor::START).last(), Some(Err(ZplError::Corrupt { object: OBJECT, .. }))));
}

proptest! {
    #[test]
    fn agrees_with_a_map(
        model in proptest::collection::btree_map("[a-z]{1,30}", any::<u64>(), 0..12),
        big: bool,
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let builder = FatBuilder { block: 4096, ..FatBuilder::new(endian) };
        let entries: Vec<_> = model.iter().map(|(name, value)| builder.named(name.as_bytes(), 0, *value)).collect();
        let objects = builder.build(&entries);
        let found: BTreeMap<String, u64> = names(&objects, Cursor::START).into_iter().collect();
        prop_assert_eq!(&found, &model);
        let zap = Zap::open(&objects, OBJECT).unwrap();
        for (name, value) in &model {
            prop_assert_eq!(zap.lookup_u64(name).unwrap(), Some(*value));
        }
    }

    #[test]
    fn damage_never_panics(
        hits in proptest::collection::vec((0usize..6144, any::<u8>()), 1..40),
        big: bool,
        fat: bool,
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let mut objects = if fat {
            let builder = FatBuilder::new(endian);
            let entries: Vec<_> = (0..6).map(|n| builder.named(format!("n{n}").as_bytes(), 0, n)).collect();
            builder.build(&entries)
        } else {
            micro(endian, NormFlags::NONE, &[(b"n1", 1, 0), (b"n2", 2, 0)])
        };
        let found = objects.objects.get_mut(&OBJECT).unwrap();
        for (at, byte) in hits {
            found.write(at as u64, &[byte]);
        }
        exhaust(&objects);
    }
}
