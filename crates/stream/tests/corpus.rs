//! The crate against streams that real OpenZFS made: a directory of cases named by `SNOWMELT_CORPUS`, and the few
//! streams that the repository ships in `testdata/streams`.

use std::fs;
use std::path::{Path, PathBuf};

use snowmelt_stream::{NvList, Reader, Record, Writer, verify};

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
