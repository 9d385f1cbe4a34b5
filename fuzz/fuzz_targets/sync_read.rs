//! Arbitrary bytes as queries of `read` in `sync` about the snapshots of a real stream, and as answers.
//!
//! Each is answered or refused, within limits.

#![no_main]

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use libfuzzer_sys::fuzz_target;
use snowmelt_dataset::receive::{Observer, ReceiveOptions};
use snowmelt_dataset::{Datasets, Name, Objset};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_replicate::objects::fuzzing::{answers, queries};
use snowmelt_store::MemoryStore;

const STREAMS: [&[u8]; 2] = [
    include_bytes!("../../testdata/demo/full.zstream"),
    include_bytes!("../../testdata/demo/incremental.zstream"),
];

/// The newest snapshot of the streams, and the one before.
static SNAPSHOTS: LazyLock<[Objset; 2]> = LazyLock::new(|| {
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(MemoryStore::new()), &new, PoolOptions::default()).expect("a pool");
    let datasets = Datasets::create(pool).expect("datasets");
    let cancelled = AtomicBool::new(false);
    for stream in STREAMS {
        let observer = Observer { event: &|_| {}, cancelled: &cancelled };
        datasets.receive("tank/home", stream, &ReceiveOptions::default(), &observer).expect("a stream");
    }
    let catalog = datasets.catalog();
    let dataset = catalog.dataset(Name::parse("tank/home").expect("a name").dataset()).expect("a dataset");
    let mut snapshots = catalog.snapshots(&dataset).map(|snapshot| snapshot.expect("a snapshot"));
    let (older, newer) = (snapshots.next().expect("the first"), snapshots.next().expect("the second"));
    [catalog.objset(&newer), catalog.objset(&older)]
});

fuzz_target!(|data: &[u8]| {
    let [newer, older] = &*SNAPSHOTS;
    match data.split_first() {
        Some((0..128, data)) => queries(newer, Some(older), data),
        Some((_, data)) => answers(data),
        None => queries(newer, None, data),
    }
});
