//! Tests of the order of records.

use super::*;
use crate::features::Features;
use crate::record::{BeginFlags, End, FreeObjects, Object, ObjectRange, Spill, ToName, Write};

fn begin(header_type: HeaderType, features: Features, from_guid: u64) -> Record {
    Record::Begin(Begin {
        header_type,
        features,
        creation_time: 0,
        objset_type: 2,
        flags: BeginFlags::default(),
        to_guid: 5,
        from_guid,
        to_name: ToName::default(),
        payload_len: 0,
    })
}

fn object(object: u64) -> Record {
    Record::Object(Object { object, object_type: 19, block_size: 512, to_guid: 5, ..Object::default() })
}

fn raw_object(object: u64) -> Record {
    let base = Object { object, object_type: 19, block_size: 512, to_guid: 5, ..Object::default() };
    Record::Object(Object { nlevels: 1, nblkptr: 3, ..base })
}

fn write(object: u64) -> Record {
    Record::Write(Write { object, object_type: 19, logical_size: 512, to_guid: 5, ..Write::default() })
}

fn free_objects(first: u64, count: u64) -> Record {
    Record::FreeObjects(FreeObjects { first, count, to_guid: 5 })
}

const END: Record = Record::End(End { checksum: [0; 4], to_guid: 5 });
const PACKAGE_END: Record = Record::End(End { checksum: [0; 4], to_guid: 0 });

/// Number of records that the grammar admits.
fn admitted(records: &[Record]) -> usize {
    let mut grammar = Grammar::new();
    records.iter().take_while(|r| grammar.admit(r).is_ok()).count()
}

#[test]
fn order_of_records() {
    let (sub, package) =
        (begin(HeaderType::Substream, Features::NONE, 0), begin(HeaderType::Compound, Features::NONE, 0));
    assert_eq!(admitted(&[object(1)]), 0);
    assert_eq!(admitted(&[END]), 0);
    assert_eq!(admitted(&[sub.clone(), END, sub.clone()]), 2);
    assert_eq!(admitted(&[sub.clone(), sub.clone()]), 1);
    assert_eq!(admitted(&[package.clone(), sub.clone()]), 1);
    assert_eq!(admitted(&[package.clone(), PACKAGE_END, PACKAGE_END, PACKAGE_END]), 3);
    assert_eq!(admitted(&[package.clone(), PACKAGE_END, object(1)]), 2);
    assert_eq!(admitted(&[package.clone(), PACKAGE_END, package.clone()]), 2);
    assert_eq!(admitted(&[package.clone(), PACKAGE_END, sub.clone(), END, END]), 4);
    assert_eq!(admitted(&[package, PACKAGE_END, sub.clone(), object(1), END, sub, END, PACKAGE_END]), 8);
}

#[test]
fn a_refused_record_changes_nothing() {
    let mut grammar = Grammar::new();
    grammar.admit(&begin(HeaderType::Substream, Features::NONE, 0)).unwrap();
    assert_eq!(grammar.pending_end(), Some(EndKind::Substream));
    assert!(grammar.admit(&PACKAGE_END).is_err(), "another snapshot's END");
    assert!(!grammar.finished());
    grammar.admit(&END).unwrap();
    assert!(grammar.finished() && grammar.context().is_none() && grammar.pending_end().is_none());
}

#[test]
fn freeobjects_may_not_free_what_was_sent() {
    let sub = begin(HeaderType::Substream, Features::NONE, 0);
    assert_eq!(admitted(&[sub.clone(), object(9), free_objects(10, u64::MAX - 10)]), 3);
    assert_eq!(admitted(&[sub.clone(), object(9), free_objects(0, 9)]), 3);
    assert_eq!(admitted(&[sub.clone(), object(9), free_objects(0, 10)]), 2);
    assert_eq!(admitted(&[sub, object(9), free_objects(9, 1)]), 2);
}

#[test]
fn data_follows_its_object_in_full_streams() {
    let full = begin(HeaderType::Substream, Features::NONE, 0);
    let incremental = begin(HeaderType::Substream, Features::NONE, 4);
    let spill = Record::Spill(Spill { object: 3, length: 512, to_guid: 5, ..Spill::default() });
    assert_eq!(admitted(&[full.clone(), write(1)]), 1);
    assert_eq!(admitted(&[full.clone(), object(2), object(3), write(2), spill.clone(), write(4)]), 5);
    assert_eq!(admitted(&[incremental, write(1), spill]), 3);
}

#[test]
fn raw_objects_follow_their_range() {
    let raw = begin(HeaderType::Substream, Features::RAW, 0);
    let range =
        |first| Record::ObjectRange(ObjectRange { first, count: 32, to_guid: 5, ..ObjectRange::default() });
    assert_eq!(admitted(&[raw.clone(), raw_object(1)]), 1);
    assert_eq!(admitted(&[raw.clone(), range(32), raw_object(32), raw_object(63), raw_object(64)]), 4);
    assert_eq!(admitted(&[raw, range(32), raw_object(31)]), 2);
}
