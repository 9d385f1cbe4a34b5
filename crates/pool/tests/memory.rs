//! A process with a memory budget. This test has a process of its own, because a budget cannot be changed.
#![allow(clippy::unwrap_used)]

use snowmelt_pool::memory::{self, UnderWay};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;

const LIMIT: u64 = 256 << 20;

fn create(guid: u64) -> std::sync::Arc<Pool> {
    let new = NewPool { name: "tank", guid };
    Pool::create(Box::new(MemoryStore::new()), &new, PoolOptions::default()).unwrap()
}

#[test]
fn pools_and_pipelines_share_what_there_is() {
    memory::limit(LIMIT);
    memory::limit(1 << 40);
    assert_eq!(memory::limited_to(), Some(LIMIT), "a budget is for good");
    let options = PoolOptions::default();
    let sizes = options.data_cache_bytes as u64 + options.node_cache_bytes as u64 + options.dirty_max_bytes;
    assert_eq!(sizes, LIMIT / 4 * 3);

    // Two pools share the budget of one.
    let first = create(1);
    let alone = first.dirty_max_bytes();
    assert_eq!(alone, LIMIT / 2);
    let second = create(2);
    assert_eq!((first.dirty_max_bytes(), second.dirty_max_bytes()), (alone / 2, alone / 2));
    drop(second);
    assert_eq!(first.dirty_max_bytes(), alone);

    // A quarter is for pipelines. The first ones take all of it, and the last one still gets a little.
    let mut many: Vec<UnderWay> = (0..3).map(|_| UnderWay::new(32 << 20)).collect();
    let mut taken = 0;
    for under_way in &mut many {
        while under_way.take(1 << 20) {
            taken += 1 << 20;
        }
    }
    assert_eq!(taken, LIMIT / 4 + (1 << 20));
    many.remove(0);
    let mut next = UnderWay::new(32 << 20);
    let count = (0..100).take_while(|_| next.take(1 << 20)).count();
    assert_eq!(count, 31, "what is given back is there for others");
}
