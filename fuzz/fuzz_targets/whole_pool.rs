//! A pool with arbitrary trees and valid hashes: every operation ends in an error or a result, not in a panic.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use snowmelt_dataset::Datasets;
use snowmelt_dataset::fuzzing::whole;
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;

static FILLED: LazyLock<MemoryStore> = LazyLock::new(|| {
    let store = MemoryStore::new();
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(store.clone()), &new, PoolOptions::default()).expect("a new pool");
    whole::fill(&Datasets::create(pool).expect("its datasets")).expect("room in memory");
    store
});

fn open(store: MemoryStore) -> Option<Arc<Datasets>> {
    Datasets::open(Pool::open(Box::new(store), PoolOptions::default()).ok()?).ok()
}

fuzz_target!(|data: &[u8]| {
    let store = FILLED.snapshot();
    if open(store.clone()).is_some_and(|datasets| whole::spoil(&datasets, data).is_ok())
        && let Some(datasets) = open(store.snapshot())
    {
        whole::exercise(&datasets);
    }
});
