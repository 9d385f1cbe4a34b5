//! Manifests of snapshots from real ZFS are equal to those created from their mounts.

#![allow(clippy::unwrap_used)]

#[path = "../../zpl/tests/common/mod.rs"]
mod common;

use common::{Received, case, chains, manifests};
use snowmelt_fs::manifest::{manifest, manifest_volume};
use snowmelt_fs::{ObjectReader, volume_info};
use snowmelt_zpl::Filesystem;

/// Receives each chain of a case and compares the manifest of every snapshot. Returns the number of comparisons.
fn check(name: &str) -> usize {
    let Some(files) = case(name) else { return 0 };
    let truth = manifests(&files);
    let mut compared = 0;
    let mut received = Received::default();
    // The origin of the clone in case 12. There is no manifest for it.
    if let Some((_, redacted)) =
        files.iter().find(|(file, _)| file.starts_with("redacted") && file.ends_with(".zstream"))
    {
        received.receive(redacted);
    }
    for step in chains(&files) {
        let Some(stream) = files.get(&step.stream) else { continue };
        for guid in received.receive(stream) {
            let Some(expected) = truth.get(&guid) else { continue };
            let objects = &received.snapshots[&guid];
            let mut made = Vec::new();
            if expected.starts_with(b"{\"type\":\"volume\"") {
                let info = volume_info(objects).unwrap();
                let reader = ObjectReader::new(objects, info.object, info.size);
                manifest_volume(reader, info.size, info.block_size.into(), &mut made).unwrap();
            } else {
                let fs = Filesystem::open(objects).unwrap_or_else(|e| panic!("{name} {}: {e}", step.stream));
                manifest(&fs, &mut made).unwrap_or_else(|e| panic!("{name} {}: {e}", step.stream));
            }
            same(&format!("{name} {} {guid}", step.stream), &made, expected);
            compared += 1;
        }
    }
    compared
}

/// Streams of datasets with blocks over 128 KiB that were sent without `-L`. The blocks are split, so holes are at
/// other places, also in real ZFS.
const OTHER_HOLES: [&str; 6] = [
    "02-flags full-plain",
    "02-flags full-c.",
    "02-flags full-e",
    "02-flags inc-",
    "04-records 1M-",
    "16-newer b3-plain",
];

fn without_extents(manifest: &str) -> String {
    let mut kept = String::new();
    for line in manifest.lines() {
        let (head, tail) = line.split_once("\"data\":[").unwrap_or((line, ""));
        let tail = tail.split_once(",\"sha256").map_or(String::new(), |(_, tail)| format!("\"sha256{tail}"));
        kept.extend([head, &tail, "\n"]);
    }
    kept
}

fn same(what: &str, made: &[u8], expected: &[u8]) {
    if made == expected {
        return;
    }
    let text = |manifest| String::from_utf8(Vec::from(manifest)).unwrap();
    let (mut made, mut expected) = (text(made), text(expected));
    if OTHER_HOLES.iter().any(|stream| what.starts_with(stream)) {
        (made, expected) = (without_extents(&made), without_extents(&expected));
        assert_eq!(made.lines().count(), expected.lines().count(), "{what}");
    }
    for (line, (ours, theirs)) in made.lines().zip(expected.lines()).enumerate() {
        assert_eq!(ours, theirs, "{what}, line {}", line + 1);
    }
    assert_eq!(made.lines().count(), expected.lines().count(), "{what}");
}

macro_rules! cases {
    ($($test:ident $name:literal $least:literal)*) => {$(
        #[test]
        fn $test() {
            let compared = check($name);
            // The repository contains only a part of the corpus. All of it is compared if it is available.
            let whole = std::env::var_os("SNOWMELT_CORPUS").is_some();
            let least = if whole { $least } else { usize::from(case($name).is_some()) };
            assert!(compared >= least, "only {compared} snapshots compared");
        }
    )*};
}

cases! {
    basic "01-basic" 5
    flags "02-flags" 1
    compress "03-compress" 1
    records "04-records" 1
    names "05-names" 2
    xattr "06-xattr" 6
    special "07-special" 2
    volumes "08-zvol" 1
    replicate "09-replicate" 1
    redact "12-redact" 1
    quota_and_names "13-quota-names" 12
    large "14-large" 1
    newer "16-newer" 8
}
