//! Measures the speed of the pool's parts in memory: `cargo run --release -p snowmelt-pool --example pool_bench
//! [scale]`.
//!
//! Prints one line per workload with its rate by CPU time, so that a busy machine matters less. Where that makes sense,
//! also prints the ratio to the same work without the pool. Scale 1 takes a few seconds.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use snowmelt_pool::{BlockId, NewPool, Pool, PoolOptions, Prepared, TreeId, View};
use snowmelt_store::MemoryStore;
use std::collections::BTreeMap;
use std::sync::Arc;

/// CPU time this thread has used, seconds.
#[derive(Clone, Copy)]
struct Instant(f64);

impl Instant {
    fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Instant(now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
    }

    fn elapsed(self) -> f64 {
        Instant::now().0 - self.0
    }
}

fn pool() -> Arc<Pool> {
    let new = NewPool { name: "bench", guid: 1 };
    // All nodes fit into the cache, so this measures the tree and not the store.
    let options = PoolOptions { node_cache_bytes: 1 << 30, ..PoolOptions::default() };
    Pool::create(Box::new(MemoryStore::new()), &new, options).unwrap()
}

fn rate(what: &str, count: u64, unit: &str, start: Instant) -> f64 {
    let rate = count as f64 / start.elapsed();
    println!("{what:<40} {:>12.3} M{unit}/s", rate / 1e6);
    rate
}

fn key(n: u64) -> [u8; 20] {
    let mut key = [0; 20];
    key[4..12].copy_from_slice(&(n / 1000).to_be_bytes());
    key[12..20].copy_from_slice(&(n % 1000).to_be_bytes());
    key
}

fn main() {
    let scale: f64 = std::env::args().nth(1).map_or(1.0, |arg| arg.parse().unwrap());
    let n = (1_000_000.0 * scale) as u64;
    let scatter = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (n * 4);
    let value = [7; 70];

    let start = Instant::now();
    let mut map = BTreeMap::new();
    (0..n).for_each(|i| drop(map.insert(key(i).to_vec(), value.to_vec())));
    let base = rate("BTreeMap, ascending keys", n, "inserts", start);

    let pool = pool();
    let hold = pool.begin().unwrap();
    let tree = pool.create_tree(&hold).unwrap();
    let start = Instant::now();
    (0..n).for_each(|i| drop(tree.insert(&hold, &key(i), &value).unwrap()));
    let ours = rate("tree, ascending keys", n, "inserts", start);
    println!("{:<40} {:>12.2}", "  ratio", ours / base);
    let random = pool.create_tree(&hold).unwrap();
    let start = Instant::now();
    (0..n).for_each(|i| drop(random.insert(&hold, &key(scatter(i)), &value).unwrap()));
    rate("tree, scattered keys", n, "inserts", start);
    drop(hold);
    let start = Instant::now();
    pool.commit().unwrap();
    println!("{:<40} {:>12.3} s", "  commit of both", start.elapsed());

    let start = Instant::now();
    (0..n).for_each(|i| assert!(tree.get(&key(scatter(i) % n)).unwrap().is_some()));
    rate("tree, scattered gets", n, "gets", start);
    let view: View = tree.view();
    let start = Instant::now();
    assert_eq!(view.range(&[], None).count() as u64, n);
    rate("tree, range", n, "entries", start);
    let start = Instant::now();
    let hold = pool.begin().unwrap();
    let mut gone = 0;
    tree.remove_range(&hold, &[], &[0xff], &mut |_, _| {
        gone += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(gone, n);
    rate("tree, remove_range", n, "entries", start);
    drop(hold);
    pool.commit().unwrap();
    drop(view);

    let blocks = (8192.0 * scale).max(16.0) as u64;
    let mut seed = 1u64;
    let mut data = vec![0u8; 128 << 10];
    for byte in &mut data {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (seed >> 56) as u8;
    }
    let start = Instant::now();
    (0..blocks).for_each(|_| drop(std::hint::black_box(Prepared::stored(data.clone(), 128 << 10, 2))));
    rate("Prepared::stored (BLAKE3), 128 KiB", blocks << 17, "B", start);
    let prepared = Prepared::stored(data, 128 << 10, 2);
    let start = Instant::now();
    let mut ptrs = Vec::new();
    for blkid in 0..blocks {
        let hold = pool.begin().unwrap();
        ptrs.push(hold.write(TreeId(1), BlockId { object: 1, blkid }, prepared.clone()).unwrap());
    }
    rate("Hold::write, 128 KiB", blocks << 17, "B", start);
    pool.commit().unwrap();
    let start = Instant::now();
    ptrs.iter().for_each(|ptr| drop(pool.read_stored(ptr).unwrap()));
    rate("read_stored, 128 KiB", blocks << 17, "B", start);
}
