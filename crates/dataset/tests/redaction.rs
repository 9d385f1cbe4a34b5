//! Redacted datasets, and parts of blocks that are freed: with hand-made streams of a volume of ten blocks, and real
//! ones.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{check, corpus, name, new_pool, receive, receive_from};
use snowmelt_dataset::objset::{Block, ObjsetKey};
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::{Datasets, Objset};
use snowmelt_fs::manifest::manifest;
use snowmelt_stream::{
    Begin, BeginFlags, End, Features, Free, HeaderType, NvList, Object, Record, Redact, ToName, Write, Writer,
};
use snowmelt_zpl::Filesystem;

const BLOCK: u64 = 4096;
const SIZE: u64 = 10 * BLOCK;

struct Stream {
    writer: Writer<Vec<u8>>,
    guid: u64,
}

impl Stream {
    /// A stream of the snapshot `guid`, incremental from `from` unless that is 0.
    fn new(guid: u64, from: u64, features: Features) -> Self {
        let mut payload = Vec::new();
        if features.contains(Features::REDACTED) {
            let mut list = NvList::new();
            list.insert("redact_snaps", vec![77u64]);
            payload = list.pack_xdr();
        }
        let begin = Begin {
            header_type: HeaderType::Substream,
            features,
            creation_time: 1_700_000_000 + guid,
            objset_type: 3,
            flags: BeginFlags::FREERECORDS,
            to_guid: guid,
            from_guid: from,
            to_name: ToName::new(format!("tank/v@{guid}").as_bytes()).unwrap(),
            payload_len: u32::try_from(payload.len()).unwrap(),
        };
        let mut stream = Self { writer: Writer::new(Vec::new()), guid };
        stream.put(Record::Begin(begin), &payload);
        let object = |object, object_type, block_size| {
            Record::Object(Object {
                object,
                object_type,
                block_size,
                dn_slots: 1,
                to_guid: guid,
                ..Object::default()
            })
        };
        if from == 0 {
            stream.put(object(1, 23, BLOCK as u32), &[]);
            stream.put(object(2, 24, 512), &[]);
            let mut zap = vec![0; 512];
            zap[..8].copy_from_slice(&((1u64 << 63) + 3).to_le_bytes());
            zap[64..72].copy_from_slice(&SIZE.to_le_bytes());
            zap[78..82].copy_from_slice(b"size");
            let (object_type, logical_size) = (24, 512);
            let write = Write { object: 2, object_type, logical_size, to_guid: guid, ..Write::default() };
            stream.put(Record::Write(write), &zap);
        }
        stream
    }

    fn put(&mut self, record: Record, payload: &[u8]) {
        self.writer.record(&record, payload).unwrap();
    }

    fn write(&mut self, blkid: u64, data: &[u8]) {
        let write = Write {
            object: 1,
            object_type: 23,
            offset: blkid * BLOCK,
            logical_size: BLOCK,
            to_guid: self.guid,
            ..Write::default()
        };
        self.put(Record::Write(write), data);
    }

    fn free(&mut self, offset: u64, length: u64) {
        self.put(Record::Free(Free { object: 1, offset, length, to_guid: self.guid }), &[]);
    }

    fn redact(&mut self, offset: u64, length: u64) {
        self.put(Record::Redact(Redact { object: 1, offset, length, to_guid: self.guid }), &[]);
    }

    fn receive(mut self, datasets: &Datasets) -> Objset {
        let to_guid = self.guid;
        self.put(Record::End(End { to_guid, ..End::default() }), &[]);
        let stream = self.writer.into_inner().unwrap();
        receive_from(datasets, "tank/v", &stream[..], &ReceiveOptions::default()).unwrap();
        let catalog = datasets.catalog();
        catalog.objset(&catalog.snapshot(&name(&format!("tank/v@{to_guid}"))).unwrap())
    }
}

/// The omitted ranges of object 1, in blocks.
fn marked(objset: &Objset) -> Vec<(u64, u64)> {
    let from = ObjsetKey::Redaction { object: 1, offset: 0 }.encode();
    let to = ObjsetKey::Range { object: 2 }.encode();
    let entries = objset.view().range(&from, Some(&to)).map(|item| {
        let (key, entry) = item.unwrap();
        let ObjsetKey::Redaction { offset, .. } = ObjsetKey::decode(&key).unwrap() else { panic!("{key:?}") };
        (offset / BLOCK, u64::from_le_bytes(entry.value[1..9].try_into().unwrap()) / BLOCK)
    });
    entries.collect()
}

#[test]
fn what_comes_later_is_no_longer_left_out() {
    let datasets = new_pool();
    let mut full = Stream::new(1, 0, Features::REDACTED);
    full.redact(0, SIZE);
    full.write(3, &[3; BLOCK as usize]);
    let objset = full.receive(&datasets);
    assert_eq!(marked(&objset), [(0, 3), (4, 6)]);
    assert!(objset.is_redacted());
    let mut data = vec![1; SIZE as usize];
    objset.read(1, 0, &mut data).unwrap();
    let expected = |at: usize| if at / BLOCK as usize == 3 { 3 } else { 0 };
    assert!(
        data.iter().enumerate().all(|(at, byte)| *byte == expected(at)),
        "what was left out reads as zeros"
    );
    assert_eq!(objset.next_data(1, 0).unwrap(), Some(3 * BLOCK));
    assert_eq!(objset.next_hole(1, 3 * BLOCK).unwrap(), Some(4 * BLOCK));

    let mut next = Stream::new(2, 1, Features::REDACTED);
    // The beginning, the middle, the end; and data that is omitted now.
    next.free(0, BLOCK);
    next.redact(3 * BLOCK, BLOCK);
    next.free(5 * BLOCK, 2 * BLOCK);
    next.write(9, &[9; BLOCK as usize]);
    let objset = next.receive(&datasets);
    assert_eq!(marked(&objset), [(1, 2), (3, 1), (4, 1), (7, 2)]);

    // The rest comes with a stream that is not redacted.
    let mut rest = Stream::new(3, 2, Features::NONE);
    for blkid in [1, 2, 3, 4, 7, 8] {
        rest.write(blkid, &[7; BLOCK as usize]);
    }
    let objset = rest.receive(&datasets);
    assert_eq!(marked(&objset), []);
    assert!(!objset.is_redacted());
    check(&datasets, "redactions");
}

#[test]
fn a_part_that_is_zero_already_is_not_freed_again() {
    let datasets = new_pool();
    let mut full = Stream::new(1, 0, Features::NONE);
    let mut half = vec![7; BLOCK as usize];
    half[2048..].fill(0);
    full.write(0, &half);
    full.write(1, &[1; BLOCK as usize]);
    let old = full.receive(&datasets);
    let mut next = Stream::new(2, 1, Features::NONE);
    next.free(2048, 2048);
    next.free(BLOCK + 1024, SIZE);
    let new = next.receive(&datasets);
    let birth = |objset: &Objset, blkid| {
        let entry = objset.view().get(&ObjsetKey::Block { object: 1, blkid }.encode()).unwrap().unwrap();
        Block::decode(&entry.value).unwrap().ptr.birth()
    };
    assert_eq!(birth(&old, 0), birth(&new, 0), "the block is the same");
    assert_ne!(birth(&old, 1), birth(&new, 1));
    let mut data = vec![9; SIZE as usize];
    new.read(1, 0, &mut data).unwrap();
    half.extend_from_slice(&[1; 1024]);
    half.resize(SIZE as usize, 0);
    assert!(data == half);
    check(&datasets, "frees");
}

/// As real ZFS shows it in a forced mount; and its clone, which gets everything that was omitted.
#[test]
fn a_real_redacted_dataset_shows_what_zfs_shows() {
    let case = corpus().join("12-redact");
    let datasets = new_pool();
    receive(&datasets, "tank/redacted", &case.join("redacted-Lec.zstream"), false).unwrap();
    receive(&datasets, "tank/cl", &case.join("clone-from-mark.zstream"), false).unwrap();
    let catalog = datasets.catalog();
    for (snapshot, truth) in
        [("tank/redacted@base", "redacted-Lec-as-received.jsonl"), ("tank/cl@clean", "tank+cl@clean.jsonl")]
    {
        let objset = catalog.objset(&catalog.snapshot(&name(snapshot)).unwrap());
        let mut made = Vec::new();
        manifest(&Filesystem::open(objset).unwrap(), &mut made).unwrap();
        let truth = std::fs::read_to_string(case.join("manifest").join(truth)).unwrap();
        let made = String::from_utf8(made).unwrap();
        for (ours, theirs) in made.lines().zip(truth.lines()) {
            assert_eq!(ours, theirs, "{snapshot}");
        }
        assert_eq!(made.lines().count(), truth.lines().count(), "{snapshot}");
    }
    check(&datasets, "a redacted dataset");
}
