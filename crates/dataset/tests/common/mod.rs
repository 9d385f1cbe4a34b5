//! Common parts of this crate's tests.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use snowmelt_dataset::objset::{Block, ObjsetKey};
use snowmelt_dataset::receive::{Observer, ReceiveOptions, Received};
use snowmelt_dataset::{CheckOptions, Datasets, Name, ReceiveError};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;

pub mod files;

#[path = "../../../../testdata/unpack.rs"]
mod testdata;

/// The unpacked corpus (`SNOWMELT_CORPUS`), otherwise the part of it in `testdata`, unpacked once per run.
pub fn corpus() -> PathBuf {
    static UNPACKED: OnceLock<PathBuf> = OnceLock::new();
    if let Some(dir) = std::env::var_os("SNOWMELT_CORPUS") {
        return dir.into();
    }
    let dir = UNPACKED.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("corpus-{}", std::process::id()));
        for archive in std::fs::read_dir(testdata::root().join("streams")).unwrap() {
            let archive = archive.unwrap().file_name().into_string().unwrap();
            let Some(case) = archive.strip_suffix(".tar.zst") else { continue };
            for (file, bytes) in testdata::case(case) {
                let path = dir.join(case).join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
        }
        dir
    });
    dir.clone()
}

/// Small tree nodes, so that small datasets have deep trees.
pub fn options() -> PoolOptions {
    PoolOptions { node_bytes: 2 << 10, ..PoolOptions::default() }
}

pub fn new_pool_on(store: &MemoryStore) -> Arc<Datasets> {
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(store.clone()), &new, options()).unwrap();
    Datasets::create(pool).unwrap()
}

pub fn new_pool() -> Arc<Datasets> {
    new_pool_on(&MemoryStore::new())
}

pub fn receive_from(
    datasets: &Datasets,
    target: &str,
    input: impl std::io::Read + Send,
    options: &ReceiveOptions,
) -> Result<Received, ReceiveError> {
    let observer = Observer { event: &|_| {}, cancelled: &AtomicBool::new(false) };
    datasets.receive(target, input, options, &observer)
}

pub fn receive(
    datasets: &Datasets,
    target: &str,
    file: &Path,
    force: bool,
) -> Result<Received, ReceiveError> {
    let options = ReceiveOptions { force, ..ReceiveOptions::default() };
    receive_from(datasets, target, std::fs::File::open(file).unwrap(), &options)
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// Verifies the pool's invariants, including every block's hash.
pub fn check(datasets: &Datasets, what: &str) {
    let mut faults = Vec::new();
    let options = CheckOptions { data: true };
    datasets
        .check(options, &mut |finding| faults.push(format!("{}: {}", finding.place, finding.what)))
        .unwrap();
    assert!(faults.is_empty(), "after {what}:\n{}", faults.join("\n"));
}

/// Names, guids and roots of everything: they must not change when a stream is refused.
pub fn listing(datasets: &Datasets) -> Vec<String> {
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

/// A hash of a snapshot's content, independent of the places of its blocks.
pub fn digest(datasets: &Datasets, snapshot: &str) -> String {
    let catalog = datasets.catalog();
    let objset = catalog.objset(&catalog.snapshot(&name(snapshot)).unwrap());
    let mut hash = blake3::Hasher::new();
    for item in objset.view().range(&[], None) {
        let (key, entry) = item.unwrap();
        hash.update(&key);
        match ObjsetKey::decode(&key).unwrap() {
            ObjsetKey::Block { .. } | ObjsetKey::Spill { .. } => {
                let block = Block::decode(&entry.value).unwrap();
                hash.update(&catalog.pool().read_stored(&block.ptr).unwrap());
            }
            _ => drop(hash.update(&entry.value)),
        }
    }
    hash.finalize().to_hex().to_string()
}
