//! Streams received by reference have the same content as copied ones.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{check, corpus, new_pool, receive, receive_from};
use snowmelt_dataset::objset::{Block, ObjsetKey};
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::{Datasets, ReceiveError};
use snowmelt_pool::{BlockPtr, OutsideFile};

fn refer(datasets: &Datasets, file: &Path) -> Result<(), ReceiveError> {
    let pool = datasets.pool();
    pool.allow_outside();
    pool.set_outside(Arc::new(OutsideFile::new(file)));
    let options = ReceiveOptions { by_reference: true, ..ReceiveOptions::default() };
    receive_from(datasets, "tank/x", File::open(file).unwrap(), &options).map(drop)
}

/// Hashes of the logical bytes of each snapshot, and the numbers of blocks inside and outside the pool.
fn contents(datasets: &Datasets) -> (BTreeMap<String, blake3::Hash>, (u64, u64)) {
    let catalog = datasets.catalog();
    let (mut hashes, mut counts) = (BTreeMap::new(), (0, 0));
    for dataset in catalog.descendants(catalog.root().unwrap()).unwrap() {
        for snapshot in catalog.snapshots(&dataset).map(Result::unwrap) {
            let objset = catalog.objset(&snapshot);
            let mut hash = blake3::Hasher::new();
            for item in objset.view().range(&[], None) {
                let (key, entry) = item.unwrap();
                hash.update(&key);
                let key = ObjsetKey::decode(&key).unwrap();
                if !matches!(key, ObjsetKey::Block { .. } | ObjsetKey::Spill { .. }) {
                    hash.update(&entry.value);
                    continue;
                }
                let Block { ptr, crypt } = Block::decode(&entry.value).unwrap();
                match ptr {
                    BlockPtr::Stored(_) => counts.0 += 1,
                    BlockPtr::Outside(_) => counts.1 += 1,
                    BlockPtr::Embedded { .. } => {}
                }
                let bytes = match crypt {
                    Some(_) => catalog.pool().read_stored(&ptr).unwrap(),
                    None => catalog.pool().read(&ptr).unwrap(),
                };
                hash.update(&bytes);
            }
            hashes.insert(snapshot.full_name(), hash.finalize());
        }
    }
    (hashes, counts)
}

/// All streams of the corpus.
fn streams() -> Vec<PathBuf> {
    let cases = std::fs::read_dir(corpus()).unwrap().map(|case| case.unwrap().path());
    let files = cases.flat_map(std::fs::read_dir).flatten().map(|file| file.unwrap().path());
    let mut streams: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|ext| ext == "zstream")).collect();
    streams.sort();
    streams
}

#[test]
fn what_is_referred_to_is_what_would_be_copied() {
    let (mut good, mut inside, mut outside) = (0, 0, 0);
    for file in streams() {
        let what = file.display().to_string();
        let copied = new_pool();
        let received = receive(&copied, "tank/x", &file, false);
        let referred = new_pool();
        let outcome = refer(&referred, &file);
        match (received, outcome) {
            (Ok(_), Ok(())) => {}
            // Incremental and damaged streams.
            (Err(copied), Err(referred)) => {
                assert_eq!(copied.to_string(), referred.to_string(), "{what}");
                continue;
            }
            (copied, referred) => panic!("{what}: copied {copied:?}, referred to {referred:?}"),
        }
        good += 1;
        let (hashes, counts) = contents(&referred);
        assert_eq!(hashes, contents(&copied).0, "{what}");
        inside += counts.0;
        outside += counts.1;
        check(&referred, &what);
    }
    assert!(good > 10, "only {good} full streams were found in {}", corpus().display());
    assert!(outside > 100 * inside, "{inside} blocks were copied, {outside} referred to");
}

#[test]
fn a_stream_that_changes_or_goes_is_told() {
    let stream = streams()
        .into_iter()
        .find(|file| {
            let datasets = new_pool();
            refer(&datasets, file).is_ok() && contents(&datasets).1.1 > 10
        })
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stream");
    std::fs::copy(&stream, &file).unwrap();
    let datasets = new_pool();
    refer(&datasets, &file).unwrap();
    check(&datasets, "the receive");
    let mut bytes = std::fs::read(&file).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xa5);
    std::fs::write(&file, &bytes).unwrap();
    let faults = |datasets: &Datasets| {
        let mut faults = Vec::new();
        let options = snowmelt_dataset::CheckOptions { data: true };
        datasets.check(options, &mut |finding| faults.push(finding.what)).unwrap();
        faults
    };
    let found = faults(&datasets);
    let name = file.display().to_string();
    assert!(!found.is_empty() && found.iter().all(|what| what.contains(&name)), "{found:?}");
    std::fs::write(&file, b"").unwrap();
    assert!(faults(&datasets).len() > found.len());
}
