//! Receives every good stream of the corpus, and refuses every bad one (`SNOWMELT_CORPUS`: the unpacked corpus; else
//! the part of it that is in `testdata`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use snowmelt_dataset::receive::{Observer, ReceiveOptions, Received};
use snowmelt_dataset::{CheckOptions, Datasets, ReceiveError};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;

fn corpus() -> PathBuf {
    match std::env::var_os("SNOWMELT_CORPUS") {
        Some(dir) => dir.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/streams"),
    }
}

fn new_pool() -> Arc<Datasets> {
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(MemoryStore::new()), &new, PoolOptions::default()).unwrap();
    Datasets::create(pool).unwrap()
}

fn receive(datasets: &Datasets, target: &str, file: &Path, force: bool) -> Result<Received, ReceiveError> {
    let options = ReceiveOptions { force, ..ReceiveOptions::default() };
    let observer = Observer { event: &|_| {}, cancelled: &AtomicBool::new(false) };
    datasets.receive(target, File::open(file).unwrap(), &options, &observer)
}

/// The pool's invariants hold, down to every block's hash.
fn check(datasets: &Datasets, what: &Path) {
    let mut faults = Vec::new();
    let options = CheckOptions { data: true };
    datasets
        .check(options, &mut |finding| faults.push(format!("{}: {}", finding.place, finding.what)))
        .unwrap();
    assert!(faults.is_empty(), "after {}:\n{}", what.display(), faults.join("\n"));
}

/// Names, guids and space of everything: what must not change when a stream is refused.
fn listing(datasets: &Datasets) -> Vec<String> {
    let catalog = datasets.catalog();
    let mut lines = Vec::new();
    for dataset in catalog.descendants(catalog.root().unwrap()).unwrap() {
        lines.push(format!("{} {:x} {:?}", dataset.name, dataset.record.guid, dataset.record.head));
        for snapshot in catalog.snapshots(&dataset) {
            let snapshot = snapshot.unwrap();
            lines.push(format!(
                "{} {:x} {:?}",
                snapshot.full_name(),
                snapshot.record.guid,
                snapshot.record.root
            ));
        }
    }
    lines
}

#[test]
fn good_chains_are_received() {
    let mut streams = 0;
    let mut failed = Vec::new();
    for case in std::fs::read_dir(corpus()).unwrap() {
        let case = case.unwrap().path();
        let Ok(text) = std::fs::read_to_string(case.join("chains.tsv")) else { continue };
        // Interrupted receives have tests of their own, and damaged streams are not in chains.
        if case.ends_with("10-resume") || case.ends_with("15-corrupt") {
            continue;
        }
        let datasets = new_pool();
        let redacted = case.join("redacted.zstream");
        if redacted.exists() {
            receive(&datasets, "tank/redacted", &redacted, false).unwrap();
        }
        // Clones come after everything that may be their origin.
        let (clones, others): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("cl\t"));
        for line in others.into_iter().chain(clones) {
            let mut fields = line.split('\t');
            let (Some(chain), Some(stream), Some(expected)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let file = case.join(stream);
            if !file.exists() || !stream.ends_with(".zstream") {
                continue;
            }
            streams += 1;
            let target = format!("tank/{chain}");
            if let Err(error) = receive(&datasets, &target, &file, true) {
                failed.push(format!("{}: {error}", file.display()));
                continue;
            }
            let have = listing(&datasets);
            for (snapshot, _) in expected.split(' ').filter_map(|word| word.split_once('=')) {
                let name = format!("{target}{snapshot} ");
                if !have.iter().any(|line| line.starts_with(&name)) {
                    failed.push(format!("{}: no {name}", file.display()));
                }
            }
        }
        check(&datasets, &case);
    }
    assert!(failed.is_empty(), "{} of {streams}:\n{}", failed.len(), failed.join("\n"));
    assert!(streams > 10, "only {streams} streams were found in {}", corpus().display());
}

#[test]
fn damaged_streams_are_refused() {
    let case = corpus().join("15-corrupt");
    let expected = std::fs::read_to_string(case.join("expected.jsonl")).unwrap();
    let mut failed = Vec::new();
    let mut tried = 0;
    for line in expected.lines() {
        let field = |key: &str| {
            let at = line.find(&format!("\"{key}\"")).unwrap();
            line[at + key.len() + 2..].split('"').nth(1).unwrap().to_owned()
        };
        let (file, expect) = (field("file"), field("expect"));
        // Nobody without the key can tell these from good ones.
        let needs_key = file.starts_with("bad-w-");
        if !case.join(&file).exists() {
            continue;
        }
        tried += 1;
        let datasets = new_pool();
        if file.starts_with("bad-i-") {
            receive(&datasets, "tank/x", &case.join("base-full.zstream"), false).unwrap();
        }
        let before = listing(&datasets);
        match receive(&datasets, "tank/x", &case.join(&file), false) {
            Ok(_) if expect == "refuse" && !needs_key => failed.push(format!("{file} was accepted")),
            Ok(_) => {}
            Err(_) if listing(&datasets) != before => failed.push(format!("{file} left something behind")),
            Err(_) => {}
        }
        check(&datasets, Path::new(&file));
    }
    assert!(failed.is_empty(), "{} of {tried}:\n{}", failed.len(), failed.join("\n"));
    assert!(tried > 50, "only {tried} damaged streams were found");
}
