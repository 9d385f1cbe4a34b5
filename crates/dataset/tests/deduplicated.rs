//! Streams that refer to blocks which they contained before (`zfs send -D` of OpenZFS before 2.0).
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{check, corpus, name, new_pool, receive_from};
use snowmelt_dataset::objset::{Block, ObjsetKey};
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::{Datasets, ReceiveError};
use snowmelt_stream::filter::{MAX_REFERENCES, Pipe, Redup};
use snowmelt_stream::{Features, Reader, Record, Write, WriteByRef, Writer};

const RAW: &str = "11-raw/ccmraw-w-full.zstream";

fn read(file: &str) -> Vec<(Record, Vec<u8>)> {
    let bytes = std::fs::read(corpus().join(file)).unwrap();
    let (mut reader, mut payload, mut all) = (Reader::new(&bytes[..]), Vec::new(), Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        all.push((at.record, payload.clone()));
    }
    all
}

fn pack(records: &[(Record, Vec<u8>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for (record, payload) in records {
        writer.record(record, payload).unwrap();
    }
    writer.into_inner().unwrap()
}

/// Two blocks of equal length in one object: the first one, and the position of the second one's record.
fn pair(records: &[(Record, Vec<u8>)]) -> (Write, usize) {
    for (at, (record, _)) in records.iter().enumerate() {
        let Record::Write(first) = record else { continue };
        let second = records[at + 1..].iter().position(|(record, _)| match record {
            Record::Write(second) => {
                second.object == first.object && second.logical_size == first.logical_size
            }
            _ => false,
        });
        if let Some(second) = second {
            return (*first, at + 1 + second);
        }
    }
    panic!("there is no object of two blocks");
}

/// The records, with one WRITE replaced by a reference to a block.
fn refer(records: &mut [(Record, Vec<u8>)], at: usize, to: (u64, u64, u64)) -> Write {
    let Record::Begin(begin) = &mut records[0].0 else { panic!("no BEGIN") };
    begin.features |= Features::DEDUP | Features::DEDUPPROPS;
    let Record::Write(write) = records[at].0 else { panic!("no WRITE") };
    let (ref_guid, ref_object, ref_offset) = to;
    let by_ref = WriteByRef {
        object: write.object,
        offset: write.offset,
        length: write.logical_size,
        to_guid: write.to_guid,
        ref_guid,
        ref_object,
        ref_offset,
        ..WriteByRef::default()
    };
    records[at] = (Record::WriteByRef(by_ref), Vec::new());
    write
}

fn receive(datasets: &Datasets, stream: &[u8]) -> Result<(), ReceiveError> {
    receive_from(datasets, "tank/x", stream, &ReceiveOptions::default()).map(drop)
}

/// The encryption and the bytes of a block.
fn stored(datasets: &Datasets, write: &Write) -> (Block, Vec<u8>) {
    let catalog = datasets.catalog();
    let dataset = catalog.dataset("tank/x").unwrap();
    let snapshot = catalog.newest_snapshot(&dataset).unwrap().unwrap();
    let objset = catalog.objset(&catalog.snapshot(&name(&snapshot.full_name())).unwrap());
    let key = ObjsetKey::Block { object: write.object, blkid: write.offset / write.logical_size };
    let entry = objset.view().get(&key.encode()).unwrap().unwrap();
    let block = Block::decode(&entry.value).unwrap();
    let bytes = catalog.pool().read_stored(&block.ptr).unwrap().to_vec();
    (block, bytes)
}

#[test]
fn a_raw_block_is_copied_with_its_salt_iv_and_mac() {
    let mut records = read(RAW);
    let (first, second) = pair(&records);
    let copy = refer(&mut records, second, (first.to_guid, first.object, first.offset));
    let stream = pack(&records);
    let datasets = new_pool();
    receive(&datasets, &stream).unwrap();
    check(&datasets, "receiving a raw deduplicated stream");
    let (block, bytes) = stored(&datasets, &copy);
    let (original, expected) = stored(&datasets, &first);
    assert_eq!(block.crypt, original.crypt);
    let crypt = block.crypt.unwrap();
    assert_eq!((crypt.salt, crypt.iv, crypt.mac), (first.crypt.salt, first.crypt.iv, first.crypt.mac));
    assert_eq!(bytes, expected);

    // The same, with the reference replaced by the data first.
    let plain = new_pool();
    let redup = Redup::plan(&stream[..], &stream[..], MAX_REFERENCES).unwrap();
    let mut out = Vec::new();
    Pipe::new(&stream[..], &mut out, redup).run().unwrap();
    receive(&plain, &out).unwrap();
    let (block, bytes) = stored(&plain, &copy);
    assert_eq!((block.crypt, bytes), (original.crypt, expected));
}

#[test]
fn a_raw_block_that_cannot_be_copied_whole_is_refused() {
    let records = read(RAW);
    let (first, second) = pair(&records);
    let guid = first.to_guid;
    let no_data = first.offset + (1 << 40) * first.logical_size;
    for (to, why) in [
        ((guid, first.object, first.offset + 512), "raw block"),
        ((guid, first.object, no_data), "no data"),
        ((guid, 1 << 40, 0), "no data"),
        ((guid + 1, first.object, first.offset), "has not brought"),
    ] {
        let mut records = records.clone();
        refer(&mut records, second, to);
        let datasets = new_pool();
        let said = receive(&datasets, &pack(&records)).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        check(&datasets, why);
    }
}

#[test]
fn a_stream_may_not_refer_to_a_snapshot_that_it_has_not_brought() {
    let datasets = new_pool();
    let base = read(RAW);
    let Record::Begin(begin) = &base[0].0 else { panic!("no BEGIN") };
    receive(&datasets, &pack(&base)).unwrap();
    let mut records = read("11-raw/ccmraw-w-inc.zstream");
    let (first, second) = pair(&records);
    refer(&mut records, second, (begin.to_guid, first.object, first.offset));
    let said = receive(&datasets, &pack(&records)).unwrap_err().to_string();
    assert!(said.contains("has not brought"), "{said}");
}
