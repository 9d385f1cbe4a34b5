//! Reads the archives of `testdata/streams` for tests.
//!
//! Include it where it is needed (with `zstd-safe` among the dev-dependencies):
//! ```ignore
//! #[path = "../../../testdata/unpack.rs"]
//! mod testdata;
//! let special = testdata::case("07-special");
//! let stream: &[u8] = &special["full.zstream"];
//! ```
//! An archive is one zstd frame that names its content size, around a plain ustar archive.
//! These are our own files, so whatever is wrong with one is a panic.

#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::path::PathBuf;

const BLOCK: usize = 512;

/// The directory `testdata` of this checkout.
pub fn root() -> PathBuf {
    let mut at = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    while !at.join("testdata/unpack.rs").exists() {
        assert!(at.pop(), "no testdata directory above {}", env!("CARGO_MANIFEST_DIR"));
    }
    at.join("testdata")
}

/// The files of one case, by their path in it: `full.zstream`, `manifest/tank+special@one.jsonl`, …
pub fn case(name: &str) -> BTreeMap<String, Vec<u8>> {
    let path = root().join("streams").join(format!("{name}.tar.zst"));
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let size = zstd_safe::get_frame_content_size(&packed)
        .ok()
        .flatten()
        .unwrap_or_else(|| panic!("{}: no content size", path.display()));
    let mut tar = Vec::with_capacity(usize::try_from(size).expect("content size"));
    zstd_safe::decompress(&mut tar, &packed)
        .unwrap_or_else(|e| panic!("{}: {}", path.display(), zstd_safe::get_error_name(e)));
    untar(&tar, &format!("{name}/"))
}

/// One file of `testdata/demo`.
pub fn demo(name: &str) -> Vec<u8> {
    let path = root().join("demo").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The fields of POSIX `ustar` that matter here: name at 0, octal size at 124, prefix at 345.
fn untar(tar: &[u8], strip: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut at = 0;
    while tar[at] != 0 {
        let head = &tar[at..at + BLOCK];
        let text = |from: usize, to: usize| {
            let field = &head[from..to];
            let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
            std::str::from_utf8(&field[..end]).expect("a name in UTF-8").trim().to_owned()
        };
        let prefix = text(345, 500);
        let name = if prefix.is_empty() { text(0, 100) } else { format!("{prefix}/{}", text(0, 100)) };
        let size = usize::from_str_radix(&text(124, 136), 8).expect("a size in octal");
        let from = at + BLOCK;
        let name = name.strip_prefix(strip).unwrap_or(&name).to_owned();
        files.insert(name, tar[from..from + size].to_vec());
        at = from + size.next_multiple_of(BLOCK);
    }
    files
}
