//! Golden tests: every record as version 1 writes it. A change here changes the format and needs a new version.

use bytes::Bytes;
use snowmelt_store::SegmentId;
use std::sync::Arc;

use crate::damage::{Damage, DamageCounters, DamageOwner};
use crate::deadlist::Dead;
use crate::format::outside::{OutsidePlace, OutsidePtr};
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::segment::{FrameHeader, Kind};
use crate::format::tree_record::{TreeRecord, TreeStats};
use crate::format::uberblock::{Features, SegmentEnd, Uberblock};
use crate::ids::TreeId;
use crate::relocation;
use crate::scrub::{Position, ScrubRecord, ScrubState, Stage};
use crate::space::SegmentRecord;
use crate::tree::{Child, Inner, Key, Leaf, LeafEntry, Link, Node, codec};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn stored() -> StoredPtr {
    StoredPtr {
        segment: SegmentId(0x0102_0304),
        offset: 0x1000,
        psize: 0x200,
        lsize: 0x2_0000,
        compression: 15,
        birth: 77,
        hash: [0xab; 32],
    }
}

const STORED: &str = "04030201000000000010000000020000000002000f4d00000000000000\
     abababababababababababababababababababababababababababababababab";

#[test]
fn block_pointers() {
    let mut out = Vec::new();
    BlockPtr::Stored(stored()).encode(&mut out);
    assert_eq!(hex(&out), format!("01{STORED}"));
    assert_eq!(BlockPtr::decode(&mut &out[..]).unwrap(), BlockPtr::Stored(stored()));
    let outside = BlockPtr::Outside(Box::new(OutsidePtr {
        place: OutsidePlace { source: 3, offset: 0x1_0000_0001 },
        psize: 0x200,
        lsize: 0x2_0000,
        compression: 15,
        birth: 77,
        hash: [0xab; 32],
    }));
    let mut out = Vec::new();
    outside.encode(&mut out);
    assert_eq!(hex(&out), format!("030300000000000000010000000100000000020000{}", &STORED[32..]));
    assert_eq!(BlockPtr::decode(&mut &out[..]).unwrap(), outside);
    let embedded = BlockPtr::Embedded { lsize: 5, compression: 2, birth: 9, data: b"hello"[..].into() };
    let mut out = Vec::new();
    embedded.encode(&mut out);
    assert_eq!(hex(&out), "0202090000000000000005000000".to_owned() + "0568656c6c6f");
    assert_eq!(BlockPtr::decode(&mut &out[..]).unwrap(), embedded);
    for (at, bad) in [(0, 3), (0, 4), (1, 0), (14, 0), (14, 113)] {
        let mut bytes = out.clone();
        bytes[at] = bad;
        if at != 1 {
            assert!(BlockPtr::decode(&mut &bytes[..]).is_err(), "byte {at} = {bad}");
        }
    }
}

#[test]
fn frames() {
    let header = FrameHeader {
        kind: Kind::Data,
        compression: 15,
        lsize: 0x2_0000,
        psize: 0x200,
        birth: 77,
        owner: TreeId(3),
        object: 8,
        blkid: 2,
        pool: 0x1122_3344_5566_7788,
        hash: [0xcd; 32],
    };
    let bytes = header.encode(SegmentId(5), 0x1000);
    assert_eq!(
        hex(&bytes[..88]),
        "534d667201010f0000000200000200004d00000000000000\
         0300000000000000080000000000000002000000000000008877665544332211\
         cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"
    );
    assert_eq!(FrameHeader::decode(&bytes, SegmentId(5), 0x1000).unwrap(), header);
    // The checksum covers the place and every byte.
    assert!(FrameHeader::decode(&bytes, SegmentId(6), 0x1000).is_err());
    assert!(FrameHeader::decode(&bytes, SegmentId(5), 0x1008).is_err());
    for at in 0..bytes.len() {
        let mut bad = bytes;
        bad[at] ^= 1;
        assert!(FrameHeader::decode(&bad, SegmentId(5), 0x1000).is_err(), "byte {at}");
    }
}

#[test]
fn tree_nodes() {
    let entry = |key: &[u8], value: &'static [u8]| LeafEntry {
        key: Key::from(key),
        birth: 3,
        value: Bytes::from_static(value),
    };
    let mut leaf = Leaf { entries: vec![entry(b"ab1", b"x"), entry(b"ab22", b"")], bytes: 0 };
    leaf.recount();
    let bytes = codec::encode(&Node::Leaf(leaf.clone())).unwrap();
    assert_eq!(
        hex(&bytes),
        "0100020002000000".to_owned()
            + "6162"
            + "0100010003000000000000003178"
            + "020000000300000000000000"
            + "3232"
    );
    let Node::Leaf(again) = codec::decode(&Bytes::from(bytes.clone()), 3).unwrap() else { panic!() };
    assert_eq!((again.bytes, again.entries[1].key.as_slice()), (leaf.bytes, &b"ab22"[..]));
    assert!(codec::decode(&Bytes::from(bytes), 2).is_err(), "an entry younger than its leaf");
    let child = |key: &[u8]| Child { key: Key::from(key), link: Link::Disk(stored()) };
    let mut inner = Inner { level: 1, entries: vec![child(b""), child(b"m")], bytes: 0 };
    inner.recount();
    let bytes = codec::encode(&Node::Inner(inner.clone())).unwrap();
    assert_eq!(hex(&bytes), format!("01010000020000000000{STORED}01006d{STORED}"));
    assert!(codec::decode(&Bytes::from(bytes.clone()), 77).is_ok());
    assert!(codec::decode(&Bytes::from(bytes), 76).is_err(), "a child younger than its parent");
    // Children must be written before their parents.
    inner.entries[0].link = Link::Dirty(Arc::new(Node::Leaf(leaf)));
    assert!(codec::encode(&Node::Inner(inner)).is_err());
}

#[test]
fn meta_tree_records() {
    let record = TreeRecord {
        root: Some(stored()),
        stats: TreeStats { physical: 4096, logical: 8192 },
        shared_until: 5,
        deadlist: Some(TreeId(6)),
    };
    let expected = format!(
        "01{}{}{}{}01{STORED}",
        "0500000000000000", "0600000000000000", "0010000000000000", "0020000000000000"
    );
    assert_eq!(hex(&record.encode()), expected);
    assert_eq!(TreeRecord::decode(&record.encode()).unwrap(), record);
    assert_eq!(hex(&TreeRecord::key(TreeId(6))), "010000000000000006");
    let segment = SegmentRecord { kind: Kind::Node, len: 4096, live: 100 };
    assert_eq!(hex(&segment.encode()), "010200100000000000006400000000000000");
    assert_eq!(hex(&crate::commit::segment_key(SegmentId(9))), "020000000000000009");
    assert_eq!(hex(&relocation::key(SegmentId(9), 16)), "03000000000000000900000010");
    assert_eq!(hex(&relocation::encode(SegmentId(9), 16)), "01090000000000000010000000");
}

#[test]
fn deadlist_entries() {
    let dead = Dead::from(&stored());
    assert_eq!(hex(&dead.encode_key()), "01000000000000004d000000000102030400001000");
    assert_eq!(hex(&dead.encode_value()), "0160020000000000000002000000000200");
}

#[test]
fn uberblocks() {
    let uberblock = Uberblock {
        features: Features::default(),
        guid: 1,
        txg: 2,
        time: 3,
        epoch: 4,
        base: 5,
        nonce: [6; 16],
        next_tree: 7,
        next_segment: 8,
        allocated: 9,
        meta: TreeRecord { root: Some(stored()), ..TreeRecord::default() },
        ends: vec![SegmentEnd { id: SegmentId(10), kind: Kind::Data, open: true, len: 4096 }],
        sealed: None,
    };
    let bytes = uberblock.encode(None);
    let word = |n: u8| format!("{n:02x}00000000000000");
    let expected = "736e6f776d656c74".to_owned()
        + "01000000"
        + &[0, 0, 0, 1, 2, 3, 4, 5].map(word).concat()
        + &"06".repeat(16)
        + &[7, 8, 9].map(word).concat()
        + "5f00"
        + "01"
        + &[0, 0, 0, 0].map(word).concat()
        + "01"
        + STORED
        + "0100"
        + &word(10)
        + "0101"
        + "0010000000000000";
    assert_eq!(hex(&bytes[..bytes.len() - 32]), expected);
    assert_eq!(Uberblock::decode(&bytes).unwrap(), uberblock);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        assert!(Uberblock::decode(&bad).is_err(), "byte {at}");
    }
    // Features that this build does not know.
    let incompat = Features { incompat: 4, ..Features::default() };
    assert_eq!(incompat.check(true).unwrap_err().to_string().split(": ").last(), Some("incompat bit 2"));
    assert!(Features { incompat: 3, ..Features::default() }.check(false).is_ok());
    let known = Features { ro_compat: 1, ..Features::default() };
    assert!(known.check(false).is_ok());
    let ro_compat = Features { ro_compat: 2, compat: 1, ..Features::default() };
    assert!(ro_compat.check(true).is_ok() && ro_compat.check(false).is_err());
}

#[test]
fn scrub_records() {
    let record = ScrubRecord {
        state: ScrubState::Paused,
        started: 1,
        ended: 2,
        worked: 3,
        max_txg: 4,
        frozen_until: 5,
        total: 6,
        issued: 7,
        repaired: 8,
        errors: 9,
        position: Position { stage: Stage::Live, root: (0x0a0b, 12), key: Key::from(&b"key"[..]) },
    };
    let numbers: String = (1..=9).map(|n| format!("{n:02x}00000000000000")).collect();
    let expected = format!("010202{numbers}0b0a0000000000000c000000000000000300{}", hex(b"key"));
    assert_eq!(hex(&record.encode()), expected);
    assert_eq!(ScrubRecord::decode(&record.encode()).unwrap(), record);
    for (at, bad) in [(0, 2), (1, 0), (1, 5), (2, 5), (91, 4)] {
        let mut bytes = record.encode();
        bytes[at] = bad;
        assert!(ScrubRecord::decode(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn damage_records() {
    let damage = |owner| Damage {
        segment: SegmentId(1),
        offset: 8,
        psize: 0x200,
        birth: 77,
        time: 9,
        kind: Kind::Node,
        owner,
    };
    let head = "0102000200004d000000000000000900000000000000";
    let root = DamageOwner::Root { owner: 3, txg: 5, key: b"a".to_vec(), high: Some(b"bc".to_vec()) };
    let written = DamageOwner::Written { tree: TreeId(2), object: 3, blkid: 4 };
    for (owner, rest) in [
        (DamageOwner::Pool, "00"),
        (root, "01030000000000000005000000000000000100610102006263"),
        (written, "02020000000000000003000000000000000400000000000000"),
        (DamageOwner::Unknown, "03"),
    ] {
        let damage = damage(owner);
        assert_eq!(hex(&damage.encode()), format!("{head}{rest}"));
        assert_eq!(Damage::decode(SegmentId(1), 8, &damage.encode()).unwrap(), damage);
    }
    let counters = DamageCounters { read: 1, checksum: 2, unnamed: 3 };
    assert_eq!(hex(&counters.encode()), "01010000000000000002000000000000000300000000000000");
    assert_eq!(DamageCounters::decode(&counters.encode()).unwrap(), counters);
}
