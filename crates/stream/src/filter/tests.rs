//! Tests of filters.

use super::*;
use crate::byte_order::ByteOrder;
use crate::compress::{Compression, ZSTD_LEVEL_DEFAULT, compress, decompress, pad_to_sector};
use crate::record::Write;
use crate::record::*;
use crate::{NvList, verify};

const GUID: u64 = 0x1234_5678_9abc_def0;
/// Size of all blocks here.
const BLOCK: usize = 128 << 10;

fn begin(features: Features) -> Record {
    Record::Begin(Begin {
        header_type: HeaderType::Substream,
        features,
        creation_time: 1_700_000_000,
        objset_type: 2,
        flags: BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK,
        to_guid: GUID,
        from_guid: 0,
        to_name: ToName::new(b"tank/fs@one").unwrap(),
        payload_len: 0,
    })
}

fn write(object: u64, blkid: u64, object_type: u32) -> Write {
    let (offset, logical_size) = (blkid * BLOCK as u64, BLOCK as u64);
    Write { object, object_type, offset, logical_size, to_guid: GUID, ..Write::default() }
}

/// Data that compresses.
fn data(seed: u8) -> Vec<u8> {
    (0..BLOCK).map(|i| (i / 100) as u8 ^ seed).collect()
}

/// A substream: one file, and one directory, with these blocks.
fn stream(features: Features, blocks: Vec<(Record, Vec<u8>)>) -> Vec<(Record, Vec<u8>)> {
    let object = |object, object_type| {
        let block_size = BLOCK as u32;
        let base = Object { object, object_type, block_size, to_guid: GUID, ..Object::default() };
        (Record::Object(Object { dn_slots: 1, ..base }), Vec::new())
    };
    let mut all = vec![(begin(features), Vec::new()), object(7, 20), object(8, 19)];
    all.extend(blocks);
    all.push((Record::End(End { to_guid: GUID, ..End::default() }), Vec::new()));
    all
}

fn pack(records: &[(Record, Vec<u8>)], order: ByteOrder) -> Vec<u8> {
    let mut writer = Writer::with_order(Vec::new(), order);
    for (record, payload) in records {
        writer.record(record, payload).unwrap();
    }
    writer.into_inner().unwrap()
}

fn unpack(bytes: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let (mut reader, mut payload, mut all) = (Reader::new(bytes), Vec::new(), Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        all.push((at.record, payload.clone()));
    }
    all
}

fn filter(bytes: &[u8], filter: impl Filter) -> Result<(Vec<u8>, Vec<Notice>), FilterError> {
    let mut out = Vec::new();
    let mut notices = Vec::new();
    let mut pipe = Pipe::new(bytes, &mut out, filter);
    while pipe.step()? {
        notices.extend(pipe.notices());
    }
    drop(pipe);
    Ok((out, notices))
}

fn redup(bytes: &[u8], max: usize) -> Result<Vec<u8>, FilterError> {
    Ok(filter(bytes, Redup::plan(bytes, bytes, max)?)?.0)
}

/// The stream as a package of two equal substreams.
fn package(substream: &[(Record, Vec<u8>)]) -> Vec<(Record, Vec<u8>)> {
    let mut list = NvList::new();
    list.insert("tosnap", "one");
    let packed = list.pack_xdr();
    let Record::Begin(begin) = &substream[0].0 else { panic!("no BEGIN") };
    let header = Begin {
        header_type: HeaderType::Compound,
        features: Features::NONE,
        objset_type: 0,
        to_guid: 0,
        flags: BeginFlags::default(),
        payload_len: packed.len() as u32,
        ..begin.clone()
    };
    let mut all = vec![(Record::Begin(header), packed), (Record::End(End::default()), Vec::new())];
    all.extend_from_slice(substream);
    all.extend_from_slice(substream);
    all.push((Record::End(End::default()), Vec::new()));
    all
}

fn compressed(algorithm: Compression, level: u8, plain: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    compress(algorithm, level, plain, &mut packed).unwrap();
    pad_to_sector(&mut packed);
    packed
}

fn compressed_write(write: Write, algorithm: Compression, level: u8, plain: &[u8]) -> (Record, Vec<u8>) {
    let payload = compressed(algorithm, level, plain);
    let write = Write { compression: algorithm.id(), compressed_size: payload.len() as u64, ..write };
    (Record::Write(write), payload)
}

#[test]
fn what_a_filter_leaves_alone_is_unchanged_in_either_byte_order() {
    let blocks = vec![(Record::Write(write(8, 0, 19)), data(1)), (Record::Write(write(8, 1, 19)), data(2))];
    let substream = stream(Features::SA_SPILL, blocks);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for records in [substream.clone(), package(&substream)] {
            let bytes = pack(&records, order);
            assert!(filter(&bytes, DropRecords::new([(8, 7)])).unwrap().0 == bytes);
            assert!(filter(&bytes, Decompress::new([((9, 0), Compression::Lz4)])).unwrap().0 == bytes);
            assert!(filter(&bytes, Recompress::new(Compression::Off, 0).unwrap()).unwrap().0 == bytes);
            assert!(redup(&bytes, 10).unwrap() == bytes);
        }
    }
}

#[test]
fn references_become_data() {
    let by_ref = |object, blkid: u64, ref_offset: u64| {
        let (offset, length) = (blkid * BLOCK as u64, BLOCK as u64);
        let base =
            WriteByRef { object, offset, length, to_guid: GUID, ref_guid: GUID, ..WriteByRef::default() };
        (Record::WriteByRef(WriteByRef { ref_object: 8, ref_offset, ..base }), Vec::new())
    };
    let features = Features::DEDUP | Features::DEDUPPROPS | Features::COMPRESSED | Features::LZ4;
    let first = compressed_write(write(8, 0, 19), Compression::Lz4, 0, &data(1));
    let second = (Record::Write(write(8, 1, 19)), data(2));
    let blocks =
        vec![first.clone(), second.clone(), by_ref(8, 2, 0), by_ref(8, 3, BLOCK as u64), by_ref(8, 4, 0)];
    let substream = stream(features, blocks);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let out = unpack(&redup(&pack(&package(&substream), order), 2).unwrap());
        let Record::Begin(begin) = &out[2].0 else { panic!("no BEGIN") };
        assert_eq!(begin.features, Features::COMPRESSED | Features::LZ4);
        for (at, expected, blkid) in [(7, &first, 2), (8, &second, 3), (9, &first, 4)] {
            let Record::Write(expected_write) = expected.0 else { panic!("no WRITE") };
            let offset = blkid * BLOCK as u64;
            assert_eq!(out[at].0, Record::Write(Write { offset, ..expected_write }));
            assert!(out[at].1 == expected.1);
        }
    }
    let bytes = pack(&substream, ByteOrder::Little);
    let few = redup(&bytes, 1).unwrap_err();
    assert!(matches!(few, FilterError::TooManyReferences { max: 1 }), "{few}");
}

#[test]
fn references_that_lead_nowhere_are_refused() {
    let by_ref = |ref_guid, ref_offset| WriteByRef {
        object: 8,
        offset: BLOCK as u64,
        length: BLOCK as u64,
        to_guid: GUID,
        ref_guid,
        ref_object: 8,
        ref_offset,
        ..WriteByRef::default()
    };
    let data_block = (Record::Write(write(8, 0, 19)), data(1));
    for (guid, offset) in [(GUID, 512), (GUID + 1, 0), (GUID, BLOCK as u64)] {
        let blocks = vec![data_block.clone(), (Record::WriteByRef(by_ref(guid, offset)), Vec::new())];
        let bytes = pack(&stream(Features::DEDUP, blocks), ByteOrder::Little);
        let said = redup(&bytes, 10).unwrap_err();
        assert!(matches!(said, FilterError::UnknownReference { index: 4, .. }), "{said}");
    }
    // A block that comes after the reference to it.
    let blocks = vec![(Record::WriteByRef(by_ref(GUID, 0)), Vec::new()), data_block.clone()];
    let bytes = pack(&stream(Features::DEDUP, blocks), ByteOrder::Little);
    assert!(matches!(redup(&bytes, 10), Err(FilterError::UnknownReference { .. })));
    // A file that is no longer the stream.
    let blocks = vec![data_block, (Record::WriteByRef(by_ref(GUID, 0)), Vec::new())];
    let bytes = pack(&stream(Features::DEDUP, blocks), ByteOrder::Little);
    let zeros = vec![0; bytes.len()];
    let plan = Redup::plan(&bytes[..], &zeros[..], 10).unwrap();
    assert!(matches!(filter(&bytes, plan), Err(FilterError::Changed { .. })));
    let plan = Redup::plan(&bytes[..], &bytes[..100], 10).unwrap();
    assert!(matches!(filter(&bytes, plan), Err(FilterError::ReadAgain { .. })));
}

#[test]
fn other_filters_refuse_deduplicated_streams() {
    let bytes = pack(&stream(Features::DEDUP, Vec::new()), ByteOrder::Little);
    for said in [
        filter(&bytes, DropRecords::default()).unwrap_err(),
        filter(&bytes, Decompress::default()).unwrap_err(),
        filter(&bytes, Recompress::new(Compression::Lz4, 0).unwrap()).unwrap_err(),
    ] {
        assert!(matches!(said, FilterError::Deduplicated), "{said}");
    }
}

#[test]
fn data_is_compressed_anew_and_metadata_never() {
    let directory = (Record::Write(write(7, 0, 20)), data(3));
    let random = incompressible();
    for from in
        [Compression::Off, Compression::Lz4, Compression::Gzip(9), Compression::Zstd, Compression::Lzjb]
    {
        let block = match from {
            Compression::Off => (Record::Write(write(8, 0, 19)), data(1)),
            _ => compressed_write(write(8, 0, 19), from, 0, &data(1)),
        };
        let random = (Record::Write(write(8, 1, 19)), random.clone());
        let features = Features::COMPRESSED | Features::LZ4 | Features::ZSTD;
        let records = stream(features, vec![directory.clone(), block, random.clone()]);
        let bytes = pack(&records, ByteOrder::Little);
        for to in
            [Compression::Off, Compression::Lz4, Compression::Gzip(1), Compression::Zstd, Compression::Zle]
        {
            let (out, _) = filter(&bytes, Recompress::new(to, 0).unwrap()).unwrap();
            verify(&out[..]).unwrap();
            let out = unpack(&out);
            assert_eq!(out[3], directory, "{from:?} to {to:?}");
            assert_eq!(out[5], random, "{from:?} to {to:?}");
            let (Record::Write(write), payload) = &out[4] else { panic!("no WRITE") };
            let mut plain = vec![0; BLOCK];
            match write.compression {
                0 => plain.copy_from_slice(payload),
                id => decompress(id, payload, &mut plain).unwrap(),
            }
            assert!(plain == data(1), "{from:?} to {to:?}");
            // ZLE compresses only runs of zeros.
            let expected = if matches!(to, Compression::Off | Compression::Zle) { 0 } else { to.id() };
            assert_eq!(write.compression, expected, "{from:?} to {to:?}");
            let Record::Begin(begin) = &out[0].0 else { panic!("no BEGIN") };
            assert_eq!(begin.features.contains(Features::COMPRESSED), to != Compression::Off);
        }
    }
}

/// Bytes that do not compress.
fn incompressible() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..BLOCK)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

#[test]
fn zstd_blocks_of_another_level_are_compressed_anew() {
    let block = |level| compressed_write(write(8, 0, 19), Compression::Zstd, level, &data(1));
    let features = Features::COMPRESSED | Features::ZSTD;
    let bytes = pack(&stream(features, vec![block(19)]), ByteOrder::Little);
    let same = filter(&bytes, Recompress::new(Compression::Zstd, 19).unwrap()).unwrap().0;
    assert!(same == bytes);
    let other = unpack(&filter(&bytes, Recompress::new(Compression::Zstd, 0).unwrap()).unwrap().0);
    assert!(other[3] == block(ZSTD_LEVEL_DEFAULT));
    for level in [20, 102, 124, -1, 1000] {
        assert_eq!(Recompress::new(Compression::Zstd, level).unwrap_err(), UnknownLevel { level });
    }
}

#[test]
fn compressed_blocks_may_come_although_begin_does_not_say_so() {
    // `zstream recompress` of OpenZFS 2.2 to 2.4 leaves the features unchanged and compresses metadata too.
    let blocks = vec![
        compressed_write(write(7, 0, 20), Compression::Zstd, 0, &data(3)),
        compressed_write(write(8, 0, 19), Compression::Lz4, 0, &data(1)),
    ];
    let honest =
        pack(&stream(Features::COMPRESSED | Features::LZ4 | Features::ZSTD, blocks), ByteOrder::Little);
    let mut records = unpack(&honest);
    let Record::Begin(begin) = &mut records[0].0 else { panic!("no BEGIN") };
    begin.features = Features::NONE;
    let mut strict = Writer::new(Vec::new());
    assert!(records.iter().any(|(record, payload)| strict.record(record, payload).is_err()));
    let mut writer = Writer::passing_on(Vec::new(), ByteOrder::Little);
    for (record, payload) in &records {
        writer.record(record, payload).unwrap();
    }
    let bytes = writer.into_inner().unwrap();
    verify(&bytes[..]).unwrap();
    assert!(filter(&bytes, DropRecords::default()).unwrap().0 == bytes);
    for to in [Compression::Off, Compression::Zstd] {
        let out = unpack(&filter(&bytes, Recompress::new(to, 0).unwrap()).unwrap().0);
        assert_eq!(out[3], (Record::Write(write(7, 0, 20)), data(3)));
        // The output announces the features that it uses.
        let mut strict = Writer::new(Vec::new());
        for (record, payload) in &out {
            strict.record(record, payload).unwrap();
        }
    }
}

#[test]
fn raw_substreams_are_not_compressed_anew() {
    let features = Features::RAW | Features::COMPRESSED | Features::LZ4;
    let range = ObjectRange { first: 0, count: 32, to_guid: GUID, ..ObjectRange::default() };
    let mut records =
        stream(features, vec![compressed_write(write(8, 0, 19), Compression::Lz4, 0, &data(1))]);
    for (record, _) in &mut records {
        if let Record::Object(object) = record {
            (object.nlevels, object.nblkptr) = (1, 3);
        }
    }
    records.insert(1, (Record::ObjectRange(range), Vec::new()));
    let bytes = pack(&records, ByteOrder::Little);
    for to in [Compression::Off, Compression::Zstd] {
        assert!(filter(&bytes, Recompress::new(to, 0).unwrap()).unwrap().0 == bytes);
    }
}

#[test]
fn a_damaged_block_is_not_compressed_anew() {
    let (record, mut payload) = compressed_write(write(8, 0, 19), Compression::Lz4, 0, &data(1));
    payload[40..80].fill(0xff);
    let bytes =
        pack(&stream(Features::COMPRESSED | Features::LZ4, vec![(record, payload)]), ByteOrder::Little);
    let said = filter(&bytes, Recompress::new(Compression::Zstd, 0).unwrap()).unwrap_err();
    assert!(matches!(said, FilterError::Decompress { index: 3, object: 8, offset: 0, .. }), "{said}");
}

#[test]
fn named_blocks_are_decompressed_whatever_their_records_say() {
    let offset = BLOCK as u64;
    let lz4 = compressed(Compression::Lz4, 0, &data(1));
    // The record states gzip, but the payload is LZ4. No reader accepts it, so it must be repaired.
    let wrong = Write { compression: 5, compressed_size: lz4.len() as u64, ..write(8, 0, 19) };
    // The record states LZ4, but the payload is not compressed.
    let plain = data(2);
    let marked = Write { compression: 15, compressed_size: offset, ..write(8, 1, 19) };
    let blocks = vec![(Record::Write(wrong), lz4), (Record::Write(marked), plain.clone())];
    let bytes = pack(&stream(Features::COMPRESSED | Features::LZ4, blocks), ByteOrder::Little);
    assert!(verify(&bytes[..]).is_err());

    let wanted = [((8, 0), Compression::Lz4), ((8, offset), Compression::Off)];
    let (out, notices) = filter(&bytes, Decompress::new(wanted)).unwrap();
    let expected =
        [Notice::Decompressed { object: 8, offset: 0 }, Notice::MarkedUncompressed { object: 8, offset }];
    assert_eq!(notices, expected);
    let out = unpack(&out);
    assert_eq!(out[3].0, Record::Write(write(8, 0, 19)));
    assert!(out[3].1 == data(1));
    assert_eq!(out[4].0, Record::Write(write(8, 1, 19)));
    assert!(out[4].1 == plain);

    // A block that cannot be decompressed stays unchanged, with a warning.
    let (out, notices) = filter(&bytes, Decompress::new([((8, offset), Compression::Zstd)])).unwrap();
    assert!(out == bytes);
    assert!(
        matches!(&notices[..], [notice @ Notice::NotDecompressed { .. }] if notice.is_warning()),
        "{notices:?}"
    );
}

#[test]
fn named_blocks_are_left_out_even_where_no_block_can_be() {
    let bogus = Write { offset: 0xffff_ffff_ffff_0000, ..write(8, 0, 19) };
    let embedded = WriteEmbedded {
        object: 8,
        offset: 3 * BLOCK as u64,
        length: BLOCK as u64,
        to_guid: GUID,
        compression: 15,
        lsize: 40,
        psize: 20,
        ..WriteEmbedded::default()
    };
    let good = (Record::Write(write(8, 1, 19)), data(2));
    let blocks = vec![
        (Record::Write(write(8, 0, 19)), data(1)),
        good.clone(),
        (Record::WriteEmbedded(embedded), vec![1; 20]),
    ];
    let mut bytes = pack(&stream(Features::EMBED_DATA | Features::LZ4, blocks), ByteOrder::Little);
    // No writer writes such a record. The offset is patched in, and all checksums except END's are cleared.
    let at = 3 * RECORD_LEN;
    bytes[at + 24..at + 32].copy_from_slice(&bogus.offset.to_le_bytes());
    let bytes = without_record_checksums(&bytes);
    assert!(verify(&bytes[..]).unwrap_err().violation().is_some());
    assert!(matches!(filter(&bytes, DropRecords::default()), Err(FilterError::Output(_))));

    let unwanted = [(8, bogus.offset), (8, embedded.offset), (8, 5)];
    let (out, notices) = filter(&bytes, DropRecords::new(unwanted)).unwrap();
    assert_eq!(
        notices.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            format!("dropping WRITE record for object 8 offset {}", bogus.offset),
            format!("dropping WRITE_EMBEDDED record for object 8 offset {}", embedded.offset),
        ]
    );
    assert_eq!(unpack(&out)[3..4], [good]);
    assert_eq!(unpack(&out).len(), 5);
}

/// The stream as senders before OpenZFS 0.6.4 wrote it.
fn without_record_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let mut sum = crate::Fletcher4::new();
    let mut at = 0;
    while at < out.len() {
        let header: [u8; RECORD_LEN] = out[at..at + RECORD_LEN].try_into().unwrap();
        let record = crate::wire::HeaderBytes::new(&header, ByteOrder::Little).decode().unwrap();
        match record {
            Record::Begin(_) => {}
            Record::End(_) => {
                for (i, word) in sum.state().iter().enumerate() {
                    out[at + 8 + 8 * i..at + 16 + 8 * i].copy_from_slice(&word.to_le_bytes());
                }
                out[at + RECORD_LEN - 32..at + RECORD_LEN].fill(0);
            }
            _ => out[at + RECORD_LEN - 32..at + RECORD_LEN].fill(0),
        }
        let end = at + RECORD_LEN + usize::try_from(record.payload_len()).unwrap();
        sum.update(&out[at..end]);
        at = end;
    }
    out
}
