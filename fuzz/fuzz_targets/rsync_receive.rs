//! Arbitrary bytes as the input of the rsync receiver, from a pushing client or from a server of a pull.
//!
//! The receiver ends, does not panic, and leaves a sound pool.

#![no_main]

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use libfuzzer_sys::fuzz_target;
use snowmelt_dataset::Datasets;
use snowmelt_dataset::receive::{Observer, ReceiveOptions};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_rsync::fuzzing::{greeting, pull, push};
use snowmelt_rsync::target::DatasetTarget;
use snowmelt_store::MemoryStore;

const STREAM: &[u8] = include_bytes!("../../testdata/demo/full.zstream");

/// A pool with a dataset. Each run gets a copy of it.
static BEGIN: LazyLock<MemoryStore> = LazyLock::new(|| {
    let (store, new) = (MemoryStore::new(), NewPool { name: "tank", guid: 1 });
    let pool = Pool::create(Box::new(store.clone()), &new, PoolOptions::default()).expect("a pool");
    let datasets = Datasets::create(pool).expect("datasets");
    let cancelled = AtomicBool::new(false);
    let observer = Observer { event: &|_| {}, cancelled: &cancelled };
    datasets.receive("tank/home", STREAM, &ReceiveOptions::default(), &observer).expect("a stream");
    store
});

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    if first % 4 == 3 {
        return greeting(rest);
    }
    let pool = Pool::open(Box::new(BEGIN.snapshot()), PoolOptions::default()).expect("a pool");
    let datasets = Datasets::open(pool).expect("datasets");
    let target = Box::new(DatasetTarget::begin(&datasets, "tank/home").expect("a dataset"));
    match first % 4 {
        0 | 1 => push(rest, target),
        _ => pull(rest, target),
    }
});
