//! Tests of the crate with raw streams from real OpenZFS.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{case, verify};
use snowmelt_crypt::KeyError;
use snowmelt_stream::{Features, NvList, Object, Reader, Record, Write, Writer};

/// Stream, the stream it starts from, and the keys of both.
fn streams() -> Vec<(&'static str, Option<&'static str>, Vec<&'static str>)> {
    let mut all = Vec::new();
    for (name, full, incremental) in [
        ("gcmraw", "gcmraw-w-full.zstream", "gcmraw-w-inc.zstream"),
        ("gcmpass", "gcmpass-w-full.zstream", "gcmpass-w-inc.zstream"),
        ("ccmraw", "ccmraw-w-full.zstream", "ccmraw-w-inc.zstream"),
        ("ccmpass", "ccmpass-w-full.zstream", "ccmpass-w-inc.zstream"),
    ] {
        all.push((full, None, vec![name]));
        all.push((incremental, Some(full), vec![name]));
    }
    all.push(("tree-w-R.zstream", None, vec!["gcmraw"]));
    all.push((
        "tree-w-R-after-change-key.zstream",
        Some("tree-w-R.zstream"),
        vec!["gcmraw", "gcmraw-changed"],
    ));
    all
}

fn key<'a>(files: &'a BTreeMap<String, Vec<u8>>, name: &str) -> &'a [u8] {
    &files[&format!("keys/{name}.key")]
}

#[test]
fn good_streams_are_authentic() {
    let files = case("11-raw");
    let mut tested = 0;
    for (name, base, keys) in streams() {
        let Some(stream) = files.get(name) else { continue };
        let keys: Vec<&[u8]> = keys.into_iter().map(|name| key(&files, name)).collect();
        let chain: Vec<&[u8]> = base.into_iter().map(|base| &files[base][..]).chain([&stream[..]]).collect();
        let done = verify(&chain, &keys).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {done:?}");
        assert!(done.blocks > 10 && done.dnode_blocks > 1 && done.object_sets > 0, "{name}: {done:?}");
        assert_eq!((done.unknown_dnode_blocks, done.unknown_object_sets), (0, 0), "{name}");
        tested += 1;
    }
    assert!(tested >= 2, "{tested} streams");
    let base = case("15-corrupt");
    let done = verify(&[&base["base-w.zstream"]], &[&base["base-w.key"]]).unwrap();
    assert_eq!((done.unknown_dnode_blocks, done.object_sets), (0, 1));
}

#[test]
fn an_incremental_alone_is_authentic_as_far_as_can_be_known() {
    let files = case("11-raw");
    let done = verify(&[&files["ccmraw-w-inc.zstream"]], &[key(&files, "ccmraw")]).unwrap();
    assert!(done.blocks > 10 && done.unknown_dnode_blocks > 0, "{done:?}");
    assert_eq!((done.dnode_blocks, done.object_sets, done.unknown_object_sets), (0, 0, 1));
}

#[test]
fn other_keys_do_not_fit() {
    let files = case("11-raw");
    for (name, _, _) in streams() {
        let Some(stream) = files.get(name) else { continue };
        let said = verify(&[stream], &[&[7; 32]]).unwrap_err();
        assert_eq!(said.downcast_ref::<KeyError>(), Some(&KeyError::Incorrect), "{name}");
    }
    let stream = &files["ccmraw-w-full.zstream"];
    let said = verify(&[stream], &[&[7; 33]]).unwrap_err();
    assert_eq!(said.to_string(), "Raw key too long (expected 32)");
    let said = verify(&[stream], &[b"x"]).unwrap_err();
    assert_eq!(said.to_string(), "Raw key too short (expected 32)");
    assert_eq!(verify(&[stream], &[b"x", &[7; 32]]).unwrap_err().to_string(), "Incorrect key");
    assert!(verify(&[stream], &[b"x", key(&files, "ccmraw")]).is_ok());
}

#[test]
fn damaged_streams_are_refused() {
    let files = case("15-corrupt");
    let key: &[u8] = &files["base-w.key"];
    for name in ["bad-w-ciphertext", "bad-w-mac", "bad-w-iv"] {
        let said = verify(&[&files[&format!("{name}.zstream")]], &[key]).unwrap_err().to_string();
        println!("{name}: {said}");
        assert!(said.starts_with("record ") && said.contains("authentication failed"), "{name}: {said}");
    }
}

/// A copy of a stream with some records changed, or left out for `None`. Its checksums are valid again.
fn rewritten(stream: &[u8], mut change: impl FnMut(u64, Record, &mut Vec<u8>) -> Option<Record>) -> Vec<u8> {
    let (mut reader, mut payload) = (Reader::new(stream), Vec::new());
    let mut writer = Writer::new(Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        if let Some(record) = change(at.index, at.record, &mut payload) {
            writer.record(&record, &payload).unwrap();
        }
    }
    writer.into_inner().unwrap()
}

#[test]
fn no_record_can_be_left_out() {
    let files = case("11-raw");
    let stream = &files["ccmraw-w-full.zstream"];
    let mut records = Vec::new();
    let same = rewritten(stream, |index, record, _| {
        // Leaving out an OBJECT is against the grammar, or leaves its blocks without one.
        if matches!(record, Record::Write(_) | Record::Spill(_)) {
            records.push(index);
        }
        Some(record)
    });
    assert!(same == *stream);
    for left_out in records {
        let less = rewritten(stream, |index, record, _| (index != left_out).then_some(record));
        let said = verify(&[&less], &[key(&files, "ccmraw")]).unwrap_err().to_string();
        // A missing spill block leaves a pointer without a block.
        let expected = ["authentication failed", "1 block pointers given where the dnode has 2"];
        assert!(expected.iter().any(|why| said.contains(why)), "{left_out}: {said}");
    }
    // A whole dnode block with everything that belongs to it cannot be left out either.
    let less = rewritten(stream, |_, record, _| {
        let is_there = match &record {
            Record::ObjectRange(range) => range.first != 32,
            other => other.object().is_none_or(|object| object < 32),
        };
        is_there.then_some(record)
    });
    let said = verify(&[&less], &[key(&files, "ccmraw")]).unwrap_err().to_string();
    assert!(said.ends_with("object set: authentication failed"), "{said}");
}

#[test]
fn what_is_not_encrypted_is_authenticated_too() {
    let files = case("11-raw");
    let stream = &files["ccmraw-w-full.zstream"];
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut changed = false;
        let other = rewritten(stream, |_, mut record, _| {
            let before = record.clone();
            // Only the first record that can be changed is changed.
            if !changed {
                change(&mut record);
                changed = record != before;
            }
            Some(record)
        });
        assert!(changed);
        verify(&[&other], &[key(&files, "ccmraw")]).unwrap_err().to_string()
    };
    let object = |change: fn(&mut Object)| {
        let said = refused(&|record| {
            if let Record::Object(object) = record
                && object.object_type == 19
            {
                change(object);
            }
        });
        assert!(said.contains("dnodes of objects 0 to 31: authentication failed"), "{said}");
    };
    object(|o| o.checksum_type = 8);
    object(|o| o.compress = 3);
    object(|o| o.max_blkid += 1);
    object(|o| o.bonus_len -= 8);
    object(|o| o.nlevels = 2);
    let write = |change: fn(&mut Write)| {
        let said = refused(&|record| {
            if let Record::Write(write) = record
                && write.object_type == 19
            {
                change(write);
            }
        });
        assert!(said.contains("dnodes of objects 0 to 31: authentication failed"), "{said}");
    };
    write(|w| w.compression = if w.compression == 2 { 15 } else { 2 });
    write(|w| w.flags |= Write::RAW_BYTESWAP);
    write(|w| w.object_type = 20);
    let said = refused(&|record| {
        if let Record::Begin(begin) = record {
            begin.objset_type = 3;
        }
    });
    assert!(said.contains("object set: authentication failed"), "{said}");
}

#[test]
fn a_stream_that_was_resumed_is_authentic_behind_where_it_goes_on() {
    let files = case("11-raw");
    let stream = &files["ccmraw-w-full.zstream"];
    let resumed = rewritten(stream, |_, mut record, payload| {
        if let Record::Begin(begin) = &mut record {
            let mut list = NvList::unpack(payload).unwrap();
            list.insert("resume_object", 20);
            list.insert("resume_offset", 0);
            *payload = list.pack_like(payload);
            begin.payload_len = u32::try_from(payload.len()).unwrap();
            begin.features |= Features::RESUMING;
        }
        record.object().is_none_or(|object| object >= 20).then_some(record)
    });
    let done = verify(&[&resumed], &[key(&files, "ccmraw")]).unwrap();
    assert_eq!((done.dnode_blocks, done.unknown_dnode_blocks), (1, 1), "{done:?}");
    assert_eq!((done.object_sets, done.unknown_object_sets), (0, 1));
    assert!(done.blocks > 10);
}

#[test]
fn every_suite_opens_with_every_format_of_key() {
    let files = case("17-suites");
    let table = String::from_utf8(files["keys.tsv"].clone()).unwrap();
    let mut tested = 0;
    for line in table.lines() {
        let [name, suite, format, file, ..] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let stream = &files[&format!("{name}-full.zstream")];
        let done = verify(&[stream], &[&files[file]]).unwrap_or_else(|e| panic!("{suite}, {format}: {e}"));
        assert!(done.blocks > 5 && done.object_sets == 1, "{suite}, {format}: {done:?}");
        assert_eq!(done.unknown_dnode_blocks, 0, "{suite}, {format}");
        let other = verify(&[stream], &[&[b'7'; 32]]).unwrap_err();
        assert!(other.downcast_ref::<KeyError>().is_some(), "{suite}, {format}: {other}");
        tested += 1;
    }
    assert_eq!(tested, 18);
}
