//! A whole session of `serve sync` with arbitrary bytes from the client.
//!
//! The session ends, does not panic, and leaves a sound pool. Everything out of reach of the client's role stays
//! unchanged.

#![no_main]

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use libfuzzer_sys::fuzz_target;
use snowmelt_dataset::fuzzing::whole;
use snowmelt_dataset::{Catalog, CheckOptions, Datasets, Subtree};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_replicate::access::{Access, Role};
use snowmelt_replicate::serve::serve_pool;
use snowmelt_store::MemoryStore;

/// The greeting of a client without options.
const HELLO: &[u8] = b"SNOWSYNC\x01\0\0\0\0\0\0\0";
/// The dataset that the client can reach.
const ROOT: &str = "tank/a";

static FILLED: LazyLock<MemoryStore> = LazyLock::new(|| {
    let store = MemoryStore::new();
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(store.clone()), &new, PoolOptions::default()).expect("a new pool");
    whole::fill(&Datasets::create(pool).expect("its datasets")).expect("room in memory");
    store
});

/// Names and guids of all snapshots within the client's reach, or of all others.
fn snapshots(catalog: &Catalog, is_inside: bool) -> Vec<(String, u64)> {
    let root = Subtree::new(ROOT).expect("a name");
    let all = catalog.root().and_then(|top| catalog.descendants(top)).expect("a pool that is well");
    let all = all.into_iter().filter(|dataset| root.contains(&dataset.name) == is_inside);
    let all: Vec<_> = all.flat_map(|dataset| catalog.snapshots(&dataset).collect::<Vec<_>>()).collect();
    all.into_iter()
        .map(|found| found.expect("a snapshot"))
        .map(|it| (it.full_name(), it.record.guid))
        .collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((first, frames)) = data.split_first() else { return };
    let role = [Role::Full, Role::Send, Role::Receive, Role::Append][usize::from(first % 4)];
    let pool = Pool::open(Box::new(FILLED.snapshot()), PoolOptions::default()).expect("a pool");
    let datasets = Datasets::open(pool).expect("its datasets");
    let before = [true, false].map(|is_inside| snapshots(&datasets.catalog(), is_inside));
    let access = Access::to_subtree(Subtree::new(ROOT).expect("a name"), role);
    let input = std::io::Cursor::new([HELLO, frames].concat());
    let _ = serve_pool(&datasets, &access, None, input, std::io::sink(), &AtomicBool::new(false));
    let after = [true, false].map(|is_inside| snapshots(&datasets.catalog(), is_inside));
    assert_eq!(before[1], after[1], "what is out of reach");
    if role == Role::Append {
        assert!(before[0].iter().all(|snapshot| after[0].contains(snapshot)), "{:?}", after[0]);
    }
    let report = datasets.check(CheckOptions { data: true }, &mut |_| {}).expect("a pool that can be read");
    assert_eq!(report.errors, 0);
});
