//! Tests of the rules for single records.

use super::*;
use crate::record::{Crypt, Redact, ToName};

const GUID: u64 = 77;

fn context(features: Features) -> BeginContext {
    BeginContext { features, flags: BeginFlags::SPILL_BLOCK, to_guid: GUID, from_guid: 0 }
}

fn good_object() -> Object {
    Object {
        object: 7,
        object_type: 19,
        bonus_type: 44,
        block_size: 4096,
        bonus_len: 168,
        dn_slots: 1,
        to_guid: GUID,
        ..Object::default()
    }
}

fn good_raw_object() -> Object {
    Object { raw_bonus_len: 192, nlevels: 1, nblkptr: 1, indirect_block_shift: 17, ..good_object() }
}

fn good_write() -> Write {
    Write { object: 7, object_type: 19, logical_size: 4096, to_guid: GUID, ..Write::default() }
}

fn good_embedded() -> WriteEmbedded {
    WriteEmbedded {
        object: 7,
        length: 4096,
        to_guid: GUID,
        compression: 3,
        lsize: 4096,
        psize: 100,
        ..WriteEmbedded::default()
    }
}

/// The field that the error for a refused record names.
fn blamed(record: Record, features: Features) -> String {
    match validate(&record, &context(features)) {
        Ok(()) => "nothing".to_owned(),
        Err(
            Violation::Range { field, .. }
            | Violation::Unaligned { field, .. }
            | Violation::Overflow { field, .. }
            | Violation::Unknown { field, .. }
            | Violation::MustBeZero { field, .. },
        ) => field.to_owned(),
        Err(Violation::FeatureMissing { feature, .. }) => feature.to_string(),
        Err(other) => other.to_string(),
    }
}

/// Changes one field of a valid record at a time, and compares the field that the error names.
macro_rules! table {
    ($record:ident, $good:expr, $features:expr, [$({$($field:ident: $value:expr),*} => $blamed:literal,)*]) => {
        assert_eq!(blamed(Record::$record($good), $features), "nothing");
        $(assert_eq!(
            blamed(Record::$record($record { $($field: $value,)* ..$good }), $features),
            $blamed,
            concat!($(stringify!($field), " = ", stringify!($value), " "),*)
        );)*
    };
}

#[test]
fn objects() {
    table!(Object, good_object(), Features::NONE, [
        {object: 0} => "object number",
        {object: MAX_OBJECT} => "object number",
        {object_type: 0} => "object type",
        {object_type: 54} => "object type",
        {object_type: 200} => "nothing",
        {object_type: 250} => "object type",
        {object_type: 256} => "object type",
        {bonus_type: 127} => "bonus type",
        {bonus_type: 0} => "bonus type 0 does not go with bonus length 168",
        {bonus_type: 17, bonus_len: 0} => "bonus type 17 does not go with bonus length 0",
        {bonus_len: 0} => "nothing",
        {bonus_len: 320} => "nothing",
        {bonus_len: 321} => "bonus length",
        {bonus_len: u32::MAX} => "bonus length",
        {checksum_type: 15} => "checksum type",
        {compress: 17} => "compression",
        {block_size: 0} => "block size",
        {block_size: 513} => "block size",
        {block_size: 128 << 10} => "nothing",
        {block_size: 256 << 10} => "LARGE_BLOCKS",
        {block_size: 32 << 20} => "block size",
        {dn_slots: 0} => "nothing",
        {dn_slots: 2} => "LARGE_DNODE",
        {dn_slots: 33} => "dnode slots",
        {flags: Object::SPILL} => "nothing",
        {flags: Object::RAW_BYTESWAP} => "flags",
        {flags: 1} => "flags",
        {raw_bonus_len: 8} => "raw bonus length",
        {nlevels: 1} => "levels",
        {nblkptr: 1} => "block pointers",
        {indirect_block_shift: 17} => "indirect block shift",
        {to_guid: 78} => "belongs to snapshot 0x4e, but the stream is of 0x4d",
    ]);
    table!(Object, Object { dn_slots: 8, bonus_len: 3904, ..good_object() }, Features::LARGE_DNODE, [
        {bonus_len: 3905} => "bonus length",
        {object: MAX_OBJECT - 8} => "nothing",
        {object: MAX_OBJECT - 7} => "last slot",
    ]);
    let no_spill = BeginContext { flags: BeginFlags::default(), ..context(Features::NONE) };
    let spill = Record::Object(Object { flags: Object::SPILL, ..good_object() });
    assert!(matches!(validate(&spill, &no_spill), Err(Violation::MustBeZero { field: "spill flag", .. })));
}

#[test]
fn raw_objects() {
    table!(Object, good_raw_object(), Features::RAW, [
        {flags: Object::SPILL | Object::RAW_BYTESWAP} => "nothing",
        {flags: 8} => "flags",
        {indirect_block_shift: 0} => "nothing",
        {indirect_block_shift: 11} => "indirect block shift",
        {indirect_block_shift: 18} => "indirect block shift",
        {nlevels: 0} => "levels",
        {nlevels: 13} => "levels",
        {nblkptr: 0} => "block pointers",
        {nblkptr: 4} => "block pointers",
        {raw_bonus_len: 164} => "raw bonus length",
        {raw_bonus_len: 170} => "raw bonus length",
        {raw_bonus_len: 320} => "nothing",
        {raw_bonus_len: 324} => "raw bonus length",
        {raw_bonus_len: 320, nblkptr: 2} => "raw bonus length",
        {raw_bonus_len: 320, flags: Object::SPILL} => "raw bonus length",
    ]);
}

#[test]
fn writes() {
    table!(Write, good_write(), Features::NONE, [
        {object: 0} => "object number",
        {object_type: 0} => "nothing",
        {object_type: 55} => "object type",
        {checksum_type: 99} => "checksum type",
        {logical_size: 0} => "logical size",
        {logical_size: 600} => "logical size",
        {logical_size: 1 << 63} => "logical size",
        {logical_size: 1 << 20} => "LARGE_BLOCKS",
        {offset: u64::MAX - 511} => "offset + logical size",
        {offset: 17} => "nothing",
        {compressed_size: 512} => "compressed size",
        {compression: 15, compressed_size: 512} => "COMPRESSED",
        {compression: 99} => "compression",
    ]);
    let compressed = Write { compression: 15, compressed_size: 512, ..good_write() };
    table!(Write, compressed, Features::COMPRESSED | Features::LZ4, [
        {compressed_size: 0} => "compressed size",
        {compressed_size: 4097} => "compressed size",
        {compressed_size: 510} => "compressed size",
        {compression: 16} => "ZSTD",
        {compression: 3} => "nothing",
    ]);
    assert_eq!(blamed(Record::Write(compressed), Features::COMPRESSED), "LZ4");
    table!(Write, Write { compression: 2, compressed_size: 4096, ..good_write() }, Features::RAW, [
        {compressed_size: 0} => "compressed size",
        {compression: 0} => "nothing",
    ]);
}

#[test]
fn spills() {
    let good = Spill { object: 7, length: 512, to_guid: GUID, ..Spill::default() };
    table!(Spill, good, Features::NONE, [
        {object: 0} => "object number",
        {object_type: 60} => "object type",
        {length: 0} => "length",
        {length: 1000} => "length",
        {length: 1 << 40} => "length",
        {compressed_size: 512} => "compressed size",
        {compression: 2} => "compression",
    ]);
    table!(Spill, Spill { compression: 2, compressed_size: 512, ..good }, Features::RAW, [
        {compressed_size: 0} => "compressed size",
        {compressed_size: 516} => "compressed size",
        {compression: 17} => "compression",
    ]);
}

#[test]
fn embedded_blocks() {
    table!(WriteEmbedded, good_embedded(), Features::EMBED_DATA, [
        {object: 0} => "object number",
        {length: 0} => "length",
        {offset: u64::MAX} => "offset + length",
        {embedded_type: 1} => "embedded type",
        {compression: 17} => "compression",
        {compression: 15} => "LZ4",
        {lsize: 0} => "logical size",
        {lsize: 4097} => "logical size",
        {lsize: 1 << 31} => "logical size",
        {psize: 0} => "payload size",
        {psize: 113} => "payload size",
        {lsize: 99} => "payload size",
        {compression: 2} => "payload size",
        {compression: 2, lsize: 100} => "nothing",
        {compression: 2, lsize: 101} => "payload size",
    ]);
    assert_eq!(blamed(Record::WriteEmbedded(good_embedded()), Features::NONE), "EMBED_DATA");
    let both = Features::EMBED_DATA | Features::RAW;
    assert!(blamed(Record::WriteEmbedded(good_embedded()), both).contains("raw streams"));
}

#[test]
fn ranges() {
    table!(Free, Free { object: 7, offset: 5, length: Free::TO_END, to_guid: GUID }, Features::NONE, [
        {object: 0} => "object number",
        {length: u64::MAX - 1} => "offset + length",
    ]);
    table!(FreeObjects, FreeObjects { first: 0, count: u64::MAX, to_guid: GUID }, Features::NONE, [
        {first: 1} => "first object + count",
    ]);
    let redact = Redact { object: 7, offset: 0, length: 512, to_guid: GUID };
    table!(Redact, redact, Features::REDACTED, [
        {object: 0} => "object number",
        {offset: u64::MAX} => "offset + length",
    ]);
    assert_eq!(blamed(Record::Redact(redact), Features::NONE), "REDACTED");
    let range = ObjectRange { first: 64, count: 32, to_guid: GUID, crypt: Crypt::default(), flags: 0 };
    table!(ObjectRange, range, Features::RAW, [
        {first: 65} => "first object",
        {first: MAX_OBJECT} => "first object",
        {count: 31} => "slots",
    ]);
    assert_eq!(blamed(Record::ObjectRange(range), Features::NONE), "RAW");
    let byref = WriteByRef { object: 7, length: 512, to_guid: GUID, ref_object: 7, ..WriteByRef::default() };
    table!(WriteByRef, byref, Features::DEDUP, [
        {ref_object: 0} => "object number",
        {length: 0} => "length",
        {offset: u64::MAX} => "offset + length",
        {ref_offset: u64::MAX} => "referenced offset + length",
    ]);
    assert_eq!(blamed(Record::WriteByRef(byref), Features::DEDUPPROPS), "nothing");
    assert_eq!(blamed(Record::WriteByRef(byref), Features::NONE), "DEDUP");
}

#[test]
fn begins() {
    let good = Begin {
        header_type: HeaderType::Substream,
        features: Features::NONE,
        creation_time: 0,
        objset_type: 2,
        flags: BeginFlags(0xf0),
        to_guid: GUID,
        from_guid: 0,
        to_name: ToName::default(),
        payload_len: 0,
    };
    table!(Begin, good.clone(), Features::NONE, [
        {features: Features(1 << 3)} => "the stream needs unknown features (0x8)",
        {features: Features::LARGE_MICROZAP} => "LARGE_BLOCKS",
        {features: Features::LARGE_MICROZAP | Features::LARGE_BLOCKS} => "nothing",
        {objset_type: 0} => "object set type",
        {objset_type: 5} => "object set type",
        {objset_type: 0, header_type: HeaderType::Compound} => "nothing",
        {payload_len: 6} => "payload length",
        {payload_len: u32::MAX - 3} => "payload length",
    ]);
}
