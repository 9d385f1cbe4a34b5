//! Views: their content stays readable, whatever is freed, cleaned and committed meanwhile, and nothing else is kept.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Content, Mini, key, small, verify_view};
use proptest::prelude::*;
use snowmelt_pool::{PoolOptions, View};
use snowmelt_store::MemoryStore;

#[derive(Clone, Debug)]
enum Op {
    Put(u16, u8),
    RemoveRange(u16, u16),
    Commit,
    Snapshot,
    Destroy(usize),
    Clean,
    /// Takes a view of the head.
    Look,
    /// Takes a view of a snapshot.
    LookBack(usize),
    Forget(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0u16..200, any::<u8>()).prop_map(|(k, v)| Op::Put(k, v)),
        2 => (0u16..220, 0u16..220).prop_map(|(a, b)| Op::RemoveRange(a.min(b), a.max(b))),
        6 => Just(Op::Commit),
        2 => Just(Op::Snapshot),
        2 => any::<usize>().prop_map(Op::Destroy),
        3 => Just(Op::Clean),
        1 => Just(Op::Look),
        2 => any::<usize>().prop_map(Op::LookBack),
        1 => any::<usize>().prop_map(Op::Forget),
    ]
}

fn options() -> PoolOptions {
    // Freed blocks must not be read from memory.
    PoolOptions { data_cache_bytes: 0, node_cache_bytes: 0, ..small() }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn run(ops: &[Op]) {
    let mut mini = Mini::create(Box::new(MemoryStore::new()), options()).unwrap();
    let mut views: Vec<(View, Content)> = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        match op {
            Op::Put(k, v) => {
                let data = |n: u16| noise(usize::from(*v) * 8 + 500, u64::from(n) << 32 | at as u64);
                (0..20).for_each(|n| mini.put(&key(k + n), &data(n)).unwrap());
            }
            Op::RemoveRange(a, b) => mini.remove_range(&key(*a), &key(*b)).unwrap(),
            Op::Commit => drop(mini.commit().unwrap()),
            Op::Snapshot => drop(mini.snapshot().unwrap()),
            Op::Destroy(n) => mini.destroy_snapshot(*n).unwrap(),
            Op::Clean => drop(mini.clean().unwrap()),
            Op::Look => views.push((mini.head.view(), mini.model.live.clone())),
            Op::LookBack(n) => {
                let count = mini.model.snapshots.len();
                if let Some((txg, content)) = mini.model.snapshots.iter().nth(n % count.max(1)) {
                    views.push((mini.snapshot_view(*txg).unwrap(), content.clone()));
                }
            }
            Op::Forget(n) => {
                if !views.is_empty() {
                    let (view, content) = views.swap_remove(n % views.len());
                    verify_view(&mini.pool, &view, &content).unwrap();
                }
            }
        }
    }
    mini.clean().unwrap();
    mini.pool.drain_frees().unwrap();
    for (view, content) in &views {
        verify_view(&mini.pool, view, content).unwrap();
    }
    mini.verify().unwrap();
    mini.check().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_seen_stays(ops in prop::collection::vec(op(), 1..120)) {
        run(&ops);
    }
}

/// A view of a snapshot that is open for days keeps the snapshot's blocks, and not blocks that come and go meanwhile.
#[test]
fn a_snapshot_in_use_holds_nothing_newer() {
    let mut mini = Mini::create(Box::new(MemoryStore::new()), options()).unwrap();
    (0..40).for_each(|n| mini.put(&key(n), &noise(3000, n.into())).unwrap());
    let txg = mini.snapshot().unwrap();
    let (view, content) = (mini.snapshot_view(txg).unwrap(), mini.model.live.clone());
    mini.destroy_snapshot(0).unwrap();
    for round in 1..40 {
        (0..40).for_each(|n| mini.put(&key(n), &noise(3000, round * 100 + u64::from(n))).unwrap());
        mini.commit().unwrap();
    }
    mini.pool.drain_frees().unwrap();
    verify_view(&mini.pool, &view, &content).unwrap();
    let kept = mini.pool.space().unwrap().occupied;
    assert!(kept < 1_000_000, "{kept} bytes of forty rounds of 120,000");
    drop(view);
    mini.commit().unwrap();
    mini.pool.drain_frees().unwrap();
    let left = mini.pool.space().unwrap().occupied;
    assert!(left + 60_000 < kept, "{left} of {kept}");
    mini.check().unwrap();
}
