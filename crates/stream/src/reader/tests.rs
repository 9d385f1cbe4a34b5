//! Tests of the reader.

use proptest::prelude::*;

use super::*;
use crate::fletcher::Fletcher4;
use crate::nvlist::NvList;
use crate::record::*;
use crate::wire::{HeaderMut, OFF_CHECKSUM};
use crate::{ChecksumKind, Writer, verify};

const GUID: u64 = 0x1234_5678_9abc_def0;

fn begin(features: Features, payload_len: u32) -> Begin {
    Begin {
        header_type: HeaderType::Substream,
        features,
        creation_time: 1_700_000_000,
        objset_type: 2,
        flags: BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK,
        to_guid: GUID,
        from_guid: 0,
        to_name: ToName::new(b"tank/fs@one").unwrap(),
        payload_len,
    }
}

fn object(object: u64, bonus_len: u32) -> Object {
    Object {
        object,
        object_type: 19,
        bonus_type: 44,
        block_size: 131_072,
        bonus_len,
        dn_slots: 1,
        to_guid: GUID,
        ..Object::default()
    }
}

/// A substream with a record of every kind that occurs in streams that are not raw.
fn records() -> Vec<(Record, Vec<u8>)> {
    let features = Features::SA_SPILL
        | Features::EMBED_DATA
        | Features::LZ4
        | Features::LARGE_BLOCKS
        | Features::REDACTED
        | Features::COMPRESSED
        | Features::DEDUP;
    let mut list = NvList::new();
    list.insert("redact_snaps", vec![1, 2, 3]);
    let packed = list.pack_xdr();
    let mut lz4 = 100_u32.to_be_bytes().to_vec();
    lz4.resize(512, 7);
    let write = Write { object: 8, object_type: 19, to_guid: GUID, ..Write::default() };
    vec![
        (Record::Begin(begin(features, packed.len() as u32)), packed),
        (Record::FreeObjects(FreeObjects { first: 0, count: 8, to_guid: GUID }), vec![]),
        (Record::Object(object(8, 172)), vec![3; 176]),
        (Record::Free(Free { object: 8, offset: 131_072, length: Free::TO_END, to_guid: GUID }), vec![]),
        (Record::Write(Write { logical_size: 131_072, ..write }), vec![1; 131_072]),
        (Record::Write(Write { logical_size: 1 << 20, offset: 1 << 20, ..write }), vec![2; 1 << 20]),
        (Record::Write(Write { logical_size: 4096, compression: 15, compressed_size: 512, ..write }), lz4),
        (
            Record::WriteByRef(WriteByRef {
                object: 8,
                offset: 512,
                length: 512,
                to_guid: GUID,
                ref_guid: GUID,
                ref_object: 8,
                ..WriteByRef::default()
            }),
            vec![],
        ),
        (Record::Spill(Spill { object: 8, length: 512, to_guid: GUID, ..Spill::default() }), vec![4; 512]),
        (Record::Object(object(9, 168)), vec![5; 168]),
        (
            Record::WriteEmbedded(WriteEmbedded {
                object: 9,
                length: 512,
                to_guid: GUID,
                compression: 15,
                lsize: 512,
                psize: 21,
                ..WriteEmbedded::default()
            }),
            vec![6; 24],
        ),
        (Record::Redact(Redact { object: 9, offset: 512, length: 512, to_guid: GUID }), vec![]),
        (Record::End(End { checksum: [0; 4], to_guid: GUID }), vec![]),
    ]
}

fn write_all(records: &[(Record, Vec<u8>)], order: ByteOrder) -> Vec<u8> {
    let mut writer = Writer::with_order(Vec::new(), order);
    for (record, payload) in records {
        writer.record(record, payload).unwrap();
    }
    assert!(writer.is_finished());
    writer.into_inner().unwrap()
}

fn read_all(bytes: &[u8], limits: Limits) -> Result<Vec<(Record, Vec<u8>)>, StreamError> {
    let mut reader = Reader::with_limits(bytes, limits);
    let (mut out, mut payload, mut offset) = (Vec::new(), Vec::new(), 0);
    while let Some(p) = reader.next(&mut payload)? {
        assert_eq!((p.index, p.offset), (out.len() as u64, offset));
        offset = p.end();
        out.push((p.record, payload.clone()));
    }
    Ok(out)
}

/// The records without END's checksum, so that written and read records can be compared.
fn without_checksums(records: &[(Record, Vec<u8>)]) -> Vec<(Record, Vec<u8>)> {
    let mut out = records.to_vec();
    for (record, _) in &mut out {
        if let Record::End(e) = record {
            e.checksum = [0; 4];
        }
    }
    out
}

/// The stream as a sender before 0.6.4 wrote it: without record checksums.
fn without_record_checksums(records: &[(Record, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new());
    for (record, payload) in records {
        let record = match record {
            Record::End(e) => Record::End(End { checksum: sum.state(), ..*e }),
            other => other.clone(),
        };
        let header = HeaderMut::encode(&record, ByteOrder::Little);
        sum.update(header.bytes());
        sum.update(payload);
        out.extend_from_slice(header.bytes());
        out.extend_from_slice(payload);
    }
    out
}

#[test]
fn what_was_written_is_read_in_either_byte_order() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let bytes = write_all(&records(), order);
        for exact in [false, true] {
            let read = read_all(&bytes, Limits { exact, ..Limits::default() }).unwrap();
            assert_eq!(without_checksums(&read), records());
        }
        let mut reader = Reader::new(bytes.as_slice());
        reader.next(&mut Vec::new()).unwrap();
        assert_eq!(reader.is_swapped(), order == ByteOrder::Big);
        assert!(reader.has_record_checksums());
    }
}

#[test]
fn verifying_counts_what_reading_finds() {
    let bytes = write_all(&records(), ByteOrder::Big);
    let summary = verify(bytes.as_slice()).unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    assert_eq!(summary.records(), 13);
    assert_eq!(summary.kinds[3].records, 3);
    assert_eq!(summary.kinds[3].payload, 131_072 + (1 << 20) + 512);
    assert_eq!(summary.snapshots.len(), 1);
    assert!(summary.is_swapped && summary.has_record_checksums && !summary.is_package);
}

#[test]
fn streams_without_record_checksums_are_verified_by_their_end() {
    let mut bytes = without_record_checksums(&records());
    let summary = verify(bytes.as_slice()).unwrap();
    assert!(!summary.has_record_checksums);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let error = verify(bytes.as_slice()).unwrap_err();
    assert!(matches!(error, StreamError::Checksum { which: ChecksumKind::Stream, index: 12, .. }), "{error}");
}

#[test]
fn a_checksum_wiped_out_or_put_in_is_refused() {
    let mut bytes = write_all(&records(), ByteOrder::Little);
    // The FREEOBJECTS after BEGIN is the first that has one; the OBJECT after that is the second.
    let second = RECORD_LEN + records()[0].1.len() + RECORD_LEN;
    bytes[second + OFF_CHECKSUM..second + RECORD_LEN].fill(0);
    let error = verify(bytes.as_slice()).unwrap_err();
    assert_eq!(error.violation(), Some(&Violation::MixedChecksums { found: false }));

    let mut old = without_record_checksums(&records());
    old[second + OFF_CHECKSUM] = 1;
    let error = verify(old.as_slice()).unwrap_err();
    assert_eq!(error.violation(), Some(&Violation::MixedChecksums { found: true }));
}

fn package() -> Vec<(Record, Vec<u8>)> {
    let mut list = NvList::new();
    list.insert("tosnap", "one");
    let packed = list.pack_xdr();
    let header = Begin {
        header_type: HeaderType::Compound,
        objset_type: 0,
        to_guid: 0,
        flags: BeginFlags::default(),
        ..begin(Features::HOLDS, packed.len() as u32)
    };
    let mut all = vec![(Record::Begin(header), packed), (Record::End(End::default()), vec![])];
    all.extend(records());
    all.extend(records());
    all.push((Record::End(End::default()), vec![]));
    all
}

#[test]
fn packages_hold_substreams() {
    let bytes = write_all(&package(), ByteOrder::Little);
    let read = read_all(&bytes, Limits::default()).unwrap();
    assert_eq!(without_checksums(&read), package());
    assert!(
        bytes[bytes.len() - RECORD_LEN + 4..].iter().all(|b| *b == 0),
        "the last END is all zero but its type"
    );
    let summary = verify(bytes.as_slice()).unwrap();
    assert!(summary.is_package);
    assert_eq!(summary.snapshots.len(), 2);
}

#[test]
fn a_package_header_is_covered_by_its_end() {
    let mut bytes = write_all(&package(), ByteOrder::Little);
    bytes[RECORD_LEN + 20] ^= 4;
    let error = verify(bytes.as_slice()).unwrap_err();
    assert!(matches!(error, StreamError::Checksum { which: ChecksumKind::Stream, index: 1, .. }), "{error}");
}

/// The sum over a header alone.
fn own_sum(header: &[u8]) -> [u64; 4] {
    let mut sum = Fletcher4::new();
    sum.update(&header[..OFF_CHECKSUM]);
    sum.state()
}

/// The package with the checksums of its closing END set: first the stream's, then the record's own.
fn package_closed_with(stream: [u64; 4], record: [u64; 4]) -> Vec<u8> {
    let mut bytes = write_all(&package(), ByteOrder::Little);
    let last = bytes.len() - RECORD_LEN;
    for (at, words) in [(last + 8, stream), (last + OFF_CHECKSUM, record)] {
        for (i, word) in words.iter().enumerate() {
            bytes[at + 8 * i..at + 8 * i + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn the_end_that_closes_a_package_may_have_a_checksum_over_itself_alone() {
    // `zstream redup`, `recompress` and `decompress` of OpenZFS 2.0 to 2.4 start a new sum there.
    let plain = write_all(&package(), ByteOrder::Little);
    let own = own_sum(&plain[plain.len() - RECORD_LEN..]);
    let bytes = package_closed_with([0; 4], own);
    let read = read_all(&bytes, Limits::default()).unwrap();
    assert_eq!(without_checksums(&read), package());
}

#[test]
fn the_end_that_closes_a_package_may_have_no_other_checksum() {
    let plain = write_all(&package(), ByteOrder::Little);
    let own = own_sum(&plain[plain.len() - RECORD_LEN..]);
    for (stream, record) in [([0; 4], [1, 2, 3, 4]), ([1, 2, 3, 4], [0; 4]), (own, own), ([1, 0, 0, 0], own)]
    {
        let error = verify(package_closed_with(stream, record).as_slice()).unwrap_err();
        assert!(matches!(error, StreamError::Checksum { .. }), "{error}");
    }
}

#[test]
fn no_other_end_may_have_a_checksum_over_itself_alone() {
    let plain = write_all(&package(), ByteOrder::Little);
    // The END after the package's BEGIN, and the END of the last substream.
    let header_end = RECORD_LEN + plain[4..8].iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
    for at in [header_end, plain.len() - 2 * RECORD_LEN] {
        let mut bytes = plain.clone();
        let own = own_sum(&bytes[at..]);
        for (i, word) in own.iter().enumerate() {
            bytes[at + OFF_CHECKSUM + 8 * i..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let error = verify(bytes.as_slice()).unwrap_err();
        assert!(matches!(error, StreamError::Checksum { .. }), "{error}");
    }
}

#[test]
fn nothing_behind_the_end_is_looked_at() {
    let mut bytes = write_all(&records(), ByteOrder::Little);
    let len = bytes.len();
    bytes.extend_from_slice(b"and so on");
    for exact in [true, false] {
        let mut source = bytes.as_slice();
        let mut reader = Reader::with_limits(&mut source, Limits { exact, ..Limits::default() });
        while reader.next(&mut Vec::new()).unwrap().is_some() {}
        assert_eq!(reader.bytes_read(), len as u64);
        let (source, buffered) = reader.into_parts();
        assert_eq!([buffered.as_slice(), source].concat(), b"and so on");
        assert!(!exact || buffered.is_empty());
    }
}

/// Gives one byte at a time, and is interrupted before each.
struct Trickle<'a>(&'a [u8], bool);

impl Read for Trickle<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let n = buf.len().min(1);
        self.0.read(&mut buf[..n])
    }
}

#[test]
fn a_trickling_source_is_read_all_the_same() {
    let bytes = write_all(&records(), ByteOrder::Little);
    assert_eq!(verify(Trickle(&bytes, false)).unwrap(), verify(bytes.as_slice()).unwrap());
    let mut reader = Reader::new(Trickle(&bytes, false));
    let mut payload = Vec::new();
    for (record, expected) in records() {
        let read = reader.next(&mut payload).unwrap().unwrap();
        assert_eq!((read.record.kind(), &payload), (record.kind(), &expected));
    }
}

#[test]
fn a_huge_begin_payload_is_refused_before_it_is_read() {
    let header = HeaderMut::encode(&Record::Begin(begin(Features::NONE, u32::MAX - 3)), ByteOrder::Little);
    let error = verify(header.bytes().as_slice()).unwrap_err();
    assert!(matches!(error.violation(), Some(Violation::Range { .. })), "{error}");

    // Even allowed lengths do not cause allocation: a stream that ends at once does not allocate 64 MiB.
    let header =
        HeaderMut::encode(&Record::Begin(begin(Features::NONE, MAX_BEGIN_PAYLOAD)), ByteOrder::Little);
    let (mut reader, mut payload) = (Reader::new(header.bytes().as_slice()), Vec::new());
    assert!(matches!(reader.next(&mut payload), Err(StreamError::Truncated { index: 0, end: 312, .. })));
    assert!(payload.capacity() <= 2 << 20, "{}", payload.capacity());
    assert!(matches!(reader.next(&mut payload), Ok(None)), "after an error there is nothing more");
}

#[test]
fn a_failing_source_is_told_from_a_short_one() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    let bytes = write_all(&records(), ByteOrder::Little);
    let error = verify(bytes[..1000].chain(Failing)).unwrap_err();
    assert!(matches!(error, StreamError::Io { offset: 1000, .. }), "{error}");
    assert!(matches!(verify(&bytes[..1000]), Err(StreamError::Truncated { end: 1000, .. })));
}

/// A small stream, so that every byte of it can be tested.
fn small() -> Vec<u8> {
    let records: Vec<_> = records().into_iter().filter(|(_, payload)| payload.len() < 1000).collect();
    write_all(&records, ByteOrder::Little)
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small();
    for len in 0..bytes.len() {
        let error = verify(&bytes[..len]).unwrap_err();
        assert!(matches!(error, StreamError::Truncated { end, .. } if end == len as u64), "{len}: {error}");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = small();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(verify(damaged.as_slice()).is_err(), "a bit flipped at offset {at}");
    }
}

proptest! {
    #[test]
    fn nonsense_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        start in prop::sample::select(vec![0_usize, 8, 16, 312, 400]),
    ) {
        // After a valid beginning, random bytes reach more code than alone.
        let mut bytes = small();
        bytes.truncate(start);
        bytes.extend_from_slice(&noise);
        prop_assert!(verify(bytes.as_slice()).is_err());
        let _ = read_all(&bytes, Limits::default());
    }
}
