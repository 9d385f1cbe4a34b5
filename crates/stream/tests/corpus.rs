//! Tests of the crate with streams from real OpenZFS: a directory of cases that `SNOWMELT_CORPUS` names, and the few
//! streams in `testdata/streams` of the repository.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use snowmelt_stream::{
    Compression, Features, NvList, Reader, Record, ResumeToken, Summary, Writer, compress, decompress, verify,
};

#[allow(unreachable_pub)]
#[path = "../../../testdata/unpack.rs"]
mod testdata;

/// The files of all cases, by case and name. Streams of the full corpus replace the repository's own.
fn files() -> BTreeMap<(String, String), Vec<u8>> {
    let mut all = BTreeMap::new();
    for archive in fs::read_dir(testdata::root().join("streams")).unwrap() {
        let name = archive.unwrap().file_name().into_string().unwrap();
        let case = name.strip_suffix(".tar.zst").unwrap();
        all.extend(testdata::case(case).into_iter().map(|(file, bytes)| ((case.to_owned(), file), bytes)));
    }
    for file in ["full.zstream", "incremental.zstream"] {
        all.insert(("demo".to_owned(), file.to_owned()), testdata::demo(file));
    }
    // The output of `zstream dump -v` of OpenZFS 2.1.11 for a few streams.
    walk(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dumps")), &mut all);
    match std::env::var_os("SNOWMELT_CORPUS") {
        Some(dir) => walk(Path::new(&dir), &mut all),
        None => eprintln!("SNOWMELT_CORPUS is not set: only the repository's own streams are tested"),
    }
    all
}

fn walk(root: &Path, all: &mut BTreeMap<(String, String), Vec<u8>>) {
    let before = all.len();
    for case in fs::read_dir(root).unwrap().flatten().filter(|e| e.path().is_dir()) {
        for file in fs::read_dir(case.path()).unwrap().flatten().filter(|e| e.path().is_file()) {
            let key = (case.file_name().into_string().unwrap(), file.file_name().into_string().unwrap());
            all.insert(key, fs::read(file.path()).unwrap());
        }
    }
    assert!(all.len() > before, "{} holds no cases", root.display());
}

/// All damaged streams, or all others.
fn streams(damaged: bool) -> Vec<(String, Vec<u8>)> {
    let all = files().into_iter().filter(|((_, file), _)| file.ends_with(".zstream"));
    let found: Vec<_> = all
        .filter(|((_, file), _)| file.starts_with("bad-") == damaged)
        .map(|((case, file), bytes)| (format!("{case}/{file}"), bytes))
        .collect();
    assert!(found.len() > 40, "only {} streams", found.len());
    found
}

#[test]
fn good_streams_are_rewritten_byte_for_byte() {
    for (name, bytes) in streams(false) {
        let mut reader = Reader::new(bytes.as_slice());
        let mut writer = Writer::new(Vec::new());
        let mut payload = Vec::new();
        while let Some(p) = reader.next(&mut payload).unwrap_or_else(|e| panic!("{}: {e}", name)) {
            assert_eq!(payload.len() as u64, p.record.payload_len());
            if matches!(p.record, Record::Begin(_)) && !payload.is_empty() {
                let list = NvList::unpack(&payload).unwrap();
                assert!(list.pack_like(&payload) == payload, "{}: {list}", name);
            }
            writer.record(&p.record, &payload).unwrap_or_else(|e| panic!("{}: {e}", name));
        }
        let written = writer.into_inner().unwrap();
        assert!(written == bytes[..written.len()], "{}", name);
        assert_eq!(written.len(), bytes.len(), "{name}");
        let summary = verify(bytes.as_slice()).unwrap();
        assert_eq!(summary.bytes, written.len() as u64);
        assert!(summary.has_record_checksums);
    }
}

#[test]
fn dumps_equal_those_of_zstream() {
    let all = files();
    for ((case, file), expected) in all.iter().filter(|((_, file), _)| file.ends_with(".zstream.dump")) {
        let name = format!("{case}/{file}");
        let expected = std::str::from_utf8(expected).unwrap();
        let bytes = &all[&(case.clone(), file.trim_end_matches(".dump").to_owned())];
        let mut reader = Reader::new(bytes.as_slice());
        let (mut payload, mut summary, mut text) = (Vec::new(), Summary::default(), String::new());
        while let Some(p) = reader.next(&mut payload).unwrap() {
            summary.count(&p.record);
            text.push_str(&p.record.dump(&payload).to_string());
        }
        text.push_str(&summary.to_string());
        for (ours, theirs) in text.lines().zip(expected.lines()) {
            assert_eq!(ours, theirs, "{}", name);
        }
        assert_eq!(text.lines().count(), expected.lines().count(), "{}", name);
    }
}

/// Damaged streams whose records are in order. Only a pool or the file system's own structure reveals the damage.
const FOR_OTHER_LAYERS: [&str; 11] = [
    "bad-c-lsize-more",
    "bad-c-lz4-junk",
    "bad-i-fromguid",
    "bad-s-bonus-junk",
    "bad-s-dir-junk",
    "bad-s-master-junk",
    "bad-s-master-type",
    "bad-w-ciphertext",
    "bad-w-iv",
    "bad-w-mac",
    "bad-x-spill-junk",
];

#[test]
fn damaged_streams_are_refused() {
    let all = files();
    let expected =
        std::str::from_utf8(&all[&("15-corrupt".to_owned(), "expected.jsonl".to_owned())]).unwrap();
    for (path, bytes) in streams(true) {
        let name = path.trim_start_matches("15-corrupt/").trim_end_matches(".zstream");
        let verified = verify(bytes.as_slice());
        let mut reader = Reader::new(bytes.as_slice());
        let mut payload = Vec::new();
        let read = loop {
            match reader.next(&mut payload) {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        assert_eq!(
            verified.as_ref().err().map(ToString::to_string),
            read.as_ref().err().map(ToString::to_string),
            "{name}"
        );
        let line = expected.lines().find(|l| l.contains(&format!("\"{name}.zstream\""))).unwrap();
        if line.contains("\"expect\": \"refuse\"") {
            assert_eq!(verified.is_ok(), FOR_OTHER_LAYERS.contains(&name), "{name}");
        }
    }
}

#[test]
fn tokens_are_read_as_zfs_reads_them() {
    let all = files();
    let tokens: Vec<_> = all.iter().filter(|((_, file), _)| file.ends_with(".token")).collect();
    assert!(tokens.len() >= 6);
    for ((case, file), text) in tokens {
        let name = format!("{case}/{file}");
        let text = std::str::from_utf8(text).unwrap();
        let token = ResumeToken::parse(text).unwrap();
        let said = std::str::from_utf8(&all[&(case.clone(), format!("{file}.txt"))]).unwrap();
        assert!(said.contains(&token.0.to_string()), "{}: {}", name, token.0);
        let ours = token.to_string();
        assert_eq!(ResumeToken::parse(&ours).unwrap(), token);
        // The compressed bytes depend on the zlib in use, but the length before compression does not.
        assert_eq!(ours.split('-').nth(2), text.split('-').nth(2), "{}", name);
    }
}

#[test]
fn compressed_blocks_decompress_and_compress_again() {
    for (name, bytes) in streams(false) {
        let mut reader = Reader::new(bytes.as_slice());
        let (mut payload, mut raw) = (Vec::new(), false);
        let (mut block, mut again, mut packed) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(p) = reader.next(&mut payload).unwrap() {
            let (id, lsize) = match &p.record {
                Record::Begin(b) => {
                    raw = b.features.contains(Features::RAW);
                    continue;
                }
                Record::Write(w) if w.compression != 0 && !raw => (w.compression, w.logical_size as usize),
                Record::WriteEmbedded(w) => (w.compression, w.lsize as usize),
                _ => continue,
            };
            block.resize(lsize, 0);
            let psize = p.record.content_len() as usize;
            decompress(id, &payload[..psize], &mut block)
                .unwrap_or_else(|e| panic!("{}: record {}: {e}", name, p.index));
            let algorithm = Compression::from_id(id).unwrap();
            if compress(algorithm, 0, &block, &mut packed).is_some() {
                again.resize(lsize, 0);
                decompress(id, &packed, &mut again).unwrap();
                assert!(again == block, "{}: record {}", name, p.index);
            }
        }
    }
}
