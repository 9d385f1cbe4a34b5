//! The crate against streams that real OpenZFS made: a directory of cases named by `SNOWMELT_CORPUS`, and the few
//! streams that the repository ships in `testdata/streams`.

#![allow(clippy::print_stderr)]

use std::fs;
use std::path::{Path, PathBuf};

use snowmelt_stream::{
    Compression, Features, NvList, Reader, Record, ResumeToken, Summary, Writer, compress, decompress, verify,
};

/// All `*.zstream` files below the corpus and the repository's own, the damaged ones (`bad-*`) or the others.
fn streams(damaged: bool) -> Vec<PathBuf> {
    let mut roots = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/streams"))];
    match std::env::var_os("SNOWMELT_CORPUS") {
        Some(dir) => roots.push(dir.into()),
        None => eprintln!("SNOWMELT_CORPUS is not set: only the repository's own streams are tested"),
    }
    let mut found = Vec::new();
    for root in roots {
        walk(&root, &mut found);
    }
    found.retain(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".zstream") && name.starts_with("bad-") == damaged
    });
    found.sort();
    found
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.path().is_dir() { walk(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

#[test]
fn good_streams_are_rewritten_byte_for_byte() {
    for path in streams(false) {
        let bytes = fs::read(&path).unwrap();
        let mut reader = Reader::new(bytes.as_slice());
        let mut writer = Writer::new(Vec::new());
        let mut payload = Vec::new();
        while let Some(p) = reader.next(&mut payload).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
            assert_eq!(payload.len() as u64, p.record.payload_len());
            if matches!(p.record, Record::Begin(_)) && !payload.is_empty() {
                let list = NvList::unpack(&payload).unwrap();
                assert!(list.pack_like(&payload) == payload, "{}: {list}", path.display());
            }
            writer.record(&p.record, &payload).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        let written = writer.into_inner().unwrap();
        assert!(written == bytes[..written.len()], "{}", path.display());
        let cut = path.file_name().unwrap_or_default().to_string_lossy().starts_with("cut-");
        assert!(cut || written.len() == bytes.len(), "{}", path.display());
        let summary = verify(bytes.as_slice()).unwrap();
        assert_eq!(summary.bytes, written.len() as u64);
        assert!(summary.has_record_checksums);
    }
}

#[test]
fn dumps_equal_those_of_zstream() {
    for path in streams(false) {
        let mut dump_path = path.clone().into_os_string();
        dump_path.push(".dump");
        let Ok(expected) = fs::read_to_string(&dump_path) else { continue };
        let bytes = fs::read(&path).unwrap();
        let mut reader = Reader::new(bytes.as_slice());
        let (mut payload, mut summary, mut text) = (Vec::new(), Summary::default(), String::new());
        while let Some(p) = reader.next(&mut payload).unwrap() {
            summary.count(&p.record);
            text.push_str(&p.record.dump(&payload).to_string());
        }
        text.push_str(&summary.to_string());
        for (ours, theirs) in text.lines().zip(expected.lines()) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
        assert_eq!(text.lines().count(), expected.lines().count(), "{}", path.display());
    }
}

/// Damaged streams whose records are in order: only a pool, or the file system's own structure, shows the damage.
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
    for path in streams(true) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = fs::read(&path).unwrap();
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
        let expected = fs::read_to_string(path.with_file_name("expected.jsonl")).unwrap();
        let line = expected.lines().find(|l| l.contains(&format!("\"{name}.zstream\""))).unwrap();
        if line.contains("\"expect\": \"refuse\"") {
            assert_eq!(verified.is_ok(), FOR_OTHER_LAYERS.contains(&name.as_str()), "{name}");
        }
    }
}

#[test]
fn tokens_are_read_as_zfs_reads_them() {
    let mut all = Vec::new();
    if let Some(dir) = std::env::var_os("SNOWMELT_CORPUS") {
        walk(Path::new(&dir), &mut all);
    }
    for path in all.iter().filter(|p| p.extension().is_some_and(|e| e == "token")) {
        let text = fs::read_to_string(path).unwrap();
        let token = ResumeToken::parse(&text).unwrap();
        let mut said = path.clone().into_os_string();
        said.push(".txt");
        let said = fs::read_to_string(said).unwrap();
        assert!(said.contains(&token.0.to_string()), "{}: {}", path.display(), token.0);
        let ours = token.to_string();
        assert_eq!(ResumeToken::parse(&ours).unwrap(), token);
        // The compressed data depends on the zlib in use, but not what is compressed.
        assert_eq!(ours.split('-').nth(2), text.split('-').nth(2), "{}", path.display());
    }
}

#[test]
fn compressed_blocks_decompress_and_compress_again() {
    for path in streams(false) {
        let bytes = fs::read(&path).unwrap();
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
                .unwrap_or_else(|e| panic!("{}: record {}: {e}", path.display(), p.index));
            let algorithm = Compression::from_id(id).unwrap();
            if compress(algorithm, 0, &block, &mut packed).is_some() {
                again.resize(lsize, 0);
                decompress(id, &packed, &mut again).unwrap();
                assert!(again == block, "{}: record {}", path.display(), p.index);
            }
        }
    }
}
