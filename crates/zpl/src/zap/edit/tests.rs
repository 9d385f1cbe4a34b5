//! Tests of changing ZAPs. Results are read back by the reader and verified by a checker of all pointers, chains and
//! counters.

use super::*;
use crate::bytes::Endian;
use crate::memory::{MemoryObjset, MemoryTx};
use crate::source::Room;
use crate::zap::{Cursor, Key, ZBT_LEAF};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SALT: u64 = 0x1234_5678_9abc_def1;

fn begin(objects: &MemoryObjset) -> MemoryTx<'_> {
    objects.begin(Room::Free).unwrap()
}

fn new_zap(objects: &MemoryObjset, norm: NormFlags) -> u64 {
    NewZap { norm, ..NewZap::plain(20, SALT) }.create(objects, &begin(objects)).unwrap()
}

/// Makes one change and writes it.
fn change<T>(
    objects: &MemoryObjset,
    zap: u64,
    change: impl FnOnce(&mut ZapEdit<'_, MemoryObjset>) -> Result<T, ZplError>,
) -> Result<T, ZplError> {
    let mut edit = ZapEdit::open(objects, zap)?;
    let result = change(&mut edit)?;
    edit.write(&begin(objects))?;
    Ok(result)
}

fn contents(objects: &MemoryObjset, zap: u64) -> BTreeMap<Vec<u8>, u64> {
    let zap = Zap::open(objects, zap).unwrap();
    let all: BTreeMap<Vec<u8>, u64> = zap
        .entries(Cursor::START)
        .map(|entry| {
            let entry = entry.unwrap();
            let Key::Name(name) = entry.key else { panic!("a key of integers") };
            (name, entry.value.as_u64().unwrap())
        })
        .collect();
    assert_eq!(zap.count(), all.len() as u64);
    all
}

/// Checks all invariants that ZFS asserts of a fat ZAP.
fn check_fat(objects: &MemoryObjset, zap: u64) {
    let snapshot = objects.snapshot();
    let object = &snapshot.objects[&zap];
    let block_size = u64::from(object.dnode.block_size);
    assert!(block_size.is_power_of_two());
    let read = |offset: u64, len: usize| {
        let mut buf = vec![0; len];
        snapshot.read(zap, offset, &mut buf).unwrap();
        buf
    };
    let header = read(0, block_size as usize);
    let word = |at| Endian::Little.u64(&header, at).unwrap();
    let (table, blocks, shift, next, copied) = (word(16), word(24), word(32), word(40), word(48));
    let (free_block, leaves, entries) = (word(56), word(64), word(72));
    let pointer = |at: u64| Endian::Little.u64(&read(at, 8), 0).unwrap();
    let pointers: Vec<u64> = match blocks {
        0 => (0..1u64 << shift).map(|index| pointer(block_size / 2 + index * 8)).collect(),
        _ => {
            assert_eq!(1 << shift, blocks * block_size / 8);
            (0..1u64 << shift).map(|index| pointer(table * block_size + index * 8)).collect()
        }
    };
    if next != 0 {
        assert!(copied < blocks && next + 2 * blocks <= free_block);
        for (index, old) in (0..copied * block_size / 8).zip(&pointers) {
            for twin in 0..2 {
                assert_eq!(pointer(next * block_size + (index * 2 + twin) * 8), *old);
            }
        }
    } else {
        assert_eq!(copied, 0);
    }
    let numbers: BTreeSet<u64> = pointers.iter().copied().collect();
    assert_eq!(numbers.len() as u64, leaves);
    let mut total = 0;
    for number in numbers {
        assert!(number > 0 && number < free_block);
        let leaf = read(number * block_size, block_size as usize);
        let (prefix, len) = (Endian::Little.u64(&leaf, 16).unwrap(), Endian::Little.u16(&leaf, 32).unwrap());
        assert_eq!(Endian::Little.u64(&leaf, 0), Some(ZBT_LEAF));
        for (index, pointer) in pointers.iter().enumerate() {
            let mine = index as u64 >> (shift - u64::from(len)) == prefix;
            assert_eq!(*pointer == number, mine, "pointer {index} of {shift} bits, leaf {number}");
        }
        total += check_leaf(&leaf);
    }
    assert_eq!(total, entries);
    assert!(object.blocks.keys().all(|number| *number < free_block));
}

/// Checks that every chunk is in exactly one chain, and returns the number of entries.
fn check_leaf(leaf: &[u8]) -> u64 {
    let short = |at| Endian::Little.u16(leaf, at).unwrap();
    let hash_len = leaf.len() / 32;
    let chunks = super::leaf::chunks_in(leaf.len());
    let at = |chunk: u16| 48 + 2 * hash_len + usize::from(chunk) * 24;
    let mut seen = vec![false; chunks];
    let mut visit = |chunk: u16, kind: u8| {
        assert_eq!(leaf[at(chunk)], kind);
        assert!(!std::mem::replace(&mut seen[usize::from(chunk)], true), "chunk {chunk} twice");
    };
    let (mut free, mut chunk) = (0, short(34));
    while chunk != 0xffff {
        visit(chunk, 253);
        free += 1;
        chunk = short(at(chunk) + 22);
    }
    assert_eq!(free, short(28));
    let mut entries = 0;
    for bucket in 0..hash_len {
        let (mut chunk, mut last_cd) = (short(48 + 2 * bucket), 0);
        while chunk != 0xffff {
            visit(chunk, 252);
            entries += 1;
            let entry = at(chunk);
            let cd = Endian::Little.u32(leaf, entry + 12).unwrap();
            assert!(cd >= last_cd, "a chain not sorted by differentiator");
            last_cd = cd;
            let hash = Endian::Little.u64(leaf, entry + 16).unwrap();
            let prefix_len = u32::from(short(32));
            let below = hash.checked_shl(prefix_len).unwrap_or(0);
            assert_eq!((below >> (64 - hash_len.trailing_zeros())) as usize, bucket);
            for array in [short(entry + 4), short(entry + 8)] {
                let mut part = array;
                while part != 0xffff {
                    visit(part, 251);
                    part = short(at(part) + 22);
                }
            }
            chunk = short(entry + 2);
        }
    }
    assert_eq!(entries, short(30));
    assert!(seen.iter().all(|seen| *seen), "a lost chunk");
    u64::from(entries)
}

fn is_micro(objects: &MemoryObjset, zap: u64) -> bool {
    Zap::open(objects, zap).unwrap().is_micro()
}

#[test]
fn micro_zaps_grow_and_become_fat() {
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::NONE);
    let mut model = BTreeMap::new();
    for n in 0..2048u64 {
        let name = format!("name {n}").into_bytes();
        change(&objects, zap, |edit| edit.add(&name, &Value::One(n))).unwrap();
        model.insert(name, n);
        let size = objects.dnode(zap).unwrap().unwrap().block_size;
        if n < 2047 {
            assert!(is_micro(&objects, zap));
            assert_eq!(u64::from(size), ((n + 2) * 64).next_multiple_of(512));
        }
    }
    assert!(!is_micro(&objects, zap));
    assert_eq!(objects.dnode(zap).unwrap().unwrap().block_size, 16384);
    assert_eq!(contents(&objects, zap), model);
    check_fat(&objects, zap);
}

#[test]
fn long_names_and_other_values_need_a_fat_zap() {
    for (len, fat) in [(1, false), (49, false), (50, true), (255, true)] {
        let objects = MemoryObjset::default();
        let zap = new_zap(&objects, NormFlags::NONE);
        change(&objects, zap, |edit| edit.add(b"first", &Value::One(7))).unwrap();
        change(&objects, zap, |edit| edit.add(&vec![b'x'; len], &Value::One(1))).unwrap();
        assert_eq!(is_micro(&objects, zap), !fat, "{len}");
        assert_eq!(contents(&objects, zap).len(), 2);
    }
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::NONE);
    let too_long = change(&objects, zap, |edit| edit.add(&[b'x'; 256], &Value::One(1)));
    assert!(matches!(too_long, Err(ZplError::NameTooLong { len: 256 })));
    for bad in [&b""[..], b"a\0b"] {
        let refused = change(&objects, zap, |edit| edit.add(bad, &Value::One(1)));
        assert!(matches!(refused, Err(ZplError::InvalidName { .. })));
    }
    for (size, count) in [(1u8, 8192usize), (2, 15), (4, 3), (8, 2), (8, 1024)] {
        let value =
            Value::Many { integer_size: size, integers: (0..count as u64).map(|n| n % 200).collect() };
        change(&objects, zap, |edit| edit.update(b"value", &value)).unwrap();
        let found = Zap::open(&objects, zap).unwrap().lookup(b"value", Matching::Exact).unwrap().unwrap();
        assert_eq!(found.value, value);
        check_fat(&objects, zap);
    }
    let too_large = Value::Many { integer_size: 8, integers: vec![1; 1025] };
    assert!(change(&objects, zap, |edit| edit.update(b"value", &too_large)).is_err());
}

#[test]
fn names_that_are_the_same_but_for_case_have_one_hash() {
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::UPPER);
    let cd_of = |name: &[u8]| {
        let zap = Zap::open(&objects, zap).unwrap();
        zap.lookup(name, Matching::Exact).unwrap().unwrap().at.cd
    };
    for fat in [false, true] {
        for (cd, name) in ["name", "Name", "NAME"].iter().enumerate() {
            change(&objects, zap, |edit| edit.add(name.as_bytes(), &Value::One(cd as u64))).unwrap();
            assert_eq!(cd_of(name.as_bytes()), cd as u64);
        }
        change(&objects, zap, |edit| edit.remove(b"Name")).unwrap();
        change(&objects, zap, |edit| edit.add(b"nAME", &Value::One(9))).unwrap();
        assert_eq!(cd_of(b"nAME"), 1);
        let twice = change(&objects, zap, |edit| edit.add(b"nAME", &Value::One(9)));
        assert!(matches!(twice, Err(ZplError::Exists { .. })));
        let found = change(&objects, zap, |edit| edit.lookup(b"nAmE", Matching::Normalized)).unwrap();
        assert_eq!(found, Some(EditEntry { name: b"name".to_vec(), value: Some(0) }));
        if !fat {
            change(&objects, zap, |edit| edit.add(&[b'l'; 80], &Value::One(1))).unwrap();
            check_fat(&objects, zap);
            for name in ["name", "nAME", "NAME"] {
                assert!(change(&objects, zap, |edit| edit.remove(name.as_bytes())).unwrap());
            }
        }
    }
    check_fat(&objects, zap);
}

#[test]
fn names_must_fit_when_normalized_too() {
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::NFD);
    let name = |count: usize| "\u{e9}".repeat(count).into_bytes();
    change(&objects, zap, |edit| edit.add(&name(85), &Value::One(1))).unwrap();
    // The name has 172 bytes, but 258 when decomposed.
    let refused = change(&objects, zap, |edit| edit.add(&name(86), &Value::One(1)));
    assert!(matches!(refused, Err(ZplError::NameTooLong { len: 258 })));
    let composing = new_zap(&objects, NormFlags::NFC);
    change(&objects, composing, |edit| edit.add(&name(127), &Value::One(1))).unwrap();
}

/// Names of all lengths and byte values, derived from a counter.
fn odd_name(n: u64) -> Vec<u8> {
    let len = 1 + (n * 37 % 255) as usize;
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut name = Vec::with_capacity(len);
    while name.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let byte = state as u8;
        if byte != 0 && byte != b'/' {
            name.push(byte);
        }
    }
    name
}

#[test]
fn a_hundred_thousand_names() {
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::NONE);
    let mut model = BTreeMap::new();
    for n in 0..100_000u64 {
        let name = if n % 4 == 0 { odd_name(n) } else { format!("file-{n}.txt").into_bytes() };
        if model.insert(name.clone(), n).is_none() {
            change(&objects, zap, |edit| edit.add(&name, &Value::One(n))).unwrap();
        } else {
            change(&objects, zap, |edit| edit.update(&name, &Value::One(n))).unwrap();
        }
        if n == 5_000 || n == 30_000 {
            check_fat(&objects, zap);
        }
    }
    check_fat(&objects, zap);
    assert!(contents(&objects, zap) == model);
    let doomed: Vec<Vec<u8>> = model.keys().step_by(3).cloned().collect();
    for name in doomed {
        assert!(change(&objects, zap, |edit| edit.remove(&name)).unwrap());
        model.remove(&name);
    }
    check_fat(&objects, zap);
    assert!(contents(&objects, zap) == model);
    for name in model.keys().cloned().collect::<Vec<_>>() {
        change(&objects, zap, |edit| edit.remove(&name)).unwrap();
    }
    check_fat(&objects, zap);
    assert!(contents(&objects, zap).is_empty());
}

#[test]
fn too_many_names_of_one_hash_are_refused_and_nothing_is_written() {
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::UPPER);
    // All these names are equal if case is ignored.
    let name =
        |n: u64| -> Vec<u8> { (0..20).map(|bit| if n >> bit & 1 == 1 { b'A' } else { b'a' }).collect() };
    let mut taken = 0;
    let refused = loop {
        match change(&objects, zap, |edit| edit.add(&name(taken), &Value::One(taken))) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, ZplError::ZapFull { .. }), "{refused}");
    assert!(taken > 100);
    let before = format!("{:?}", objects.snapshot());
    assert!(change(&objects, zap, |edit| edit.add(&name(taken), &Value::One(1))).is_err());
    assert_eq!(format!("{:?}", objects.snapshot()), before);
    check_fat(&objects, zap);
    assert_eq!(contents(&objects, zap).len() as u64, taken);
    // Other names are still accepted, even if they belong to the same leaves.
    for n in 0..3000u64 {
        change(&objects, zap, |edit| edit.add(format!("other {n}").as_bytes(), &Value::One(n))).unwrap();
    }
    change(&objects, zap, |edit| edit.remove(&name(5))).unwrap();
    change(&objects, zap, |edit| edit.add(&name(taken), &Value::One(1))).unwrap();
    check_fat(&objects, zap);
}

#[test]
fn zaps_of_the_other_byte_order_are_not_changed() {
    let objects = MemoryObjset::default();
    let zap = new_zap(&objects, NormFlags::NONE);
    let mut block = vec![0; 512];
    objects.read(zap, 0, &mut block).unwrap();
    block[..8].reverse();
    objects.write(&begin(&objects), zap, 0, &block).unwrap();
    assert!(matches!(ZapEdit::open(&objects, zap).err(), Some(ZplError::Unsupported { .. })));
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8, u64),
    Update(u8, u64),
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<u8>(), any::<u64>()).prop_map(|(name, value)| Step::Add(name, value)),
        1 => (any::<u8>(), any::<u64>()).prop_map(|(name, value)| Step::Update(name, value)),
        1 => any::<u8>().prop_map(Step::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn agrees_with_a_map(steps in proptest::collection::vec(step(), 1..300), long: bool, fold: bool) {
        let objects = MemoryObjset::default();
        let zap = new_zap(&objects, if fold { NormFlags::UPPER } else { NormFlags::NONE });
        let mut model = BTreeMap::new();
        let name_of = |n: u8| if long { odd_name(n.into()) } else { format!("{n}").into_bytes() };
        for step in steps {
            match step {
                Step::Add(n, value) => {
                    let added = change(&objects, zap, |edit| edit.add(&name_of(n), &Value::One(value)));
                    prop_assert_eq!(added.is_ok(), !model.contains_key(&name_of(n)));
                    model.entry(name_of(n)).or_insert(value);
                }
                Step::Update(n, value) => {
                    change(&objects, zap, |edit| edit.update(&name_of(n), &Value::One(value))).unwrap();
                    model.insert(name_of(n), value);
                }
                Step::Remove(n) => {
                    let removed = change(&objects, zap, |edit| edit.remove(&name_of(n))).unwrap();
                    prop_assert_eq!(removed, model.remove(&name_of(n)).is_some());
                }
            }
        }
        prop_assert_eq!(contents(&objects, zap), model);
        if !is_micro(&objects, zap) {
            check_fat(&objects, zap);
        }
    }

    #[test]
    fn damaged_zaps_never_panic(
        hits in proptest::collection::vec((0u64..49152, any::<u8>()), 1..60),
        names in proptest::collection::vec("[a-z]{1,60}", 1..40),
    ) {
        let objects = MemoryObjset::default();
        let zap = new_zap(&objects, NormFlags::NONE);
        for n in 0..300u64 {
            change(&objects, zap, |edit| edit.add(format!("{n:050}").as_bytes(), &Value::One(n))).unwrap();
        }
        for (at, byte) in hits {
            objects.write(&begin(&objects), zap, at, &[byte]).unwrap();
        }
        for (n, name) in names.iter().enumerate() {
            let _ = change(&objects, zap, |edit| edit.update(name.as_bytes(), &Value::One(1)));
            let _ = change(&objects, zap, |edit| edit.remove(format!("{n:050}").as_bytes()));
        }
    }
}
