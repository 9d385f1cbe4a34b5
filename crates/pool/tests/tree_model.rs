//! Compares the tree with a `BTreeMap`: any sequence of changes, commits, snapshots, destroys and reopens. Differences
//! are found with both kinds of walks, and `check` runs at the end.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, key, small};
use proptest::prelude::*;
use snowmelt_store::MemoryStore;

#[derive(Clone, Debug)]
enum Op {
    Put(u16, u8),
    PutMany(u16, u8),
    Remove(u16),
    RemoveRange(u16, u16),
    Commit,
    Snapshot,
    Destroy(usize),
    Reopen,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u16..200, any::<u8>()).prop_map(|(k, v)| Op::Put(k, v)),
        4 => (0u16..200, any::<u8>()).prop_map(|(k, v)| Op::PutMany(k, v)),
        6 => (0u16..200).prop_map(Op::Remove),
        3 => (0u16..220, 0u16..220).prop_map(|(a, b)| Op::RemoveRange(a.min(b), a.max(b))),
        3 => Just(Op::Commit),
        3 => Just(Op::Snapshot),
        2 => any::<usize>().prop_map(Op::Destroy),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ]
}

fn data(n: u8) -> Vec<u8> {
    // From embedded blocks to several hundred bytes, compressible and incompressible.
    let mut state = u32::from(n).wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..usize::from(n) * 3 + 1)
        .map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if n.is_multiple_of(3) { (at / 40) as u8 } else { (state >> 24) as u8 }
        })
        .collect()
}

fn run(ops: &[Op], cache: usize) {
    let store = MemoryStore::new();
    let mut options = small();
    options.node_cache_bytes = cache;
    options.data_cache_bytes = cache;
    let mut mini = Mini::create(Box::new(store.clone()), options.clone()).unwrap();
    for op in ops {
        match op {
            Op::Put(k, v) => mini.put(&key(*k), &data(*v)).unwrap(),
            Op::PutMany(k, v) => {
                (0..40).for_each(|n| mini.put(&key(k + n), &data(v.wrapping_add(n as u8))).unwrap());
            }
            Op::Remove(k) => mini.remove(&key(*k)).unwrap(),
            Op::RemoveRange(a, b) => mini.remove_range(&key(*a), &key(*b)).unwrap(),
            Op::Commit => drop(mini.commit().unwrap()),
            Op::Snapshot => drop(mini.snapshot().unwrap()),
            Op::Destroy(n) => mini.destroy_snapshot(*n).unwrap(),
            Op::Reopen | Op::Crash => {
                if matches!(op, Op::Reopen) {
                    mini.commit().unwrap();
                }
                let committed = std::mem::take(&mut mini.committed);
                drop(mini);
                mini = Mini::open(Box::new(store.snapshot()), options.clone(), &committed).unwrap().unwrap();
                // The test continues on the snapshot of the store.
                let pool = mini.pool.clone();
                assert!(pool.open_report().passed_over.is_empty());
            }
        }
        if matches!(op, Op::Reopen | Op::Crash) {
            mini.verify().unwrap();
        }
    }
    mini.verify_differences(&[]).unwrap();
    mini.verify_differences(&key(100)).unwrap();
    mini.commit().unwrap();
    mini.verify().unwrap();
    mini.verify_differences(&[]).unwrap();
    mini.check().unwrap();
    // All space can be freed.
    while !mini.model.snapshots.is_empty() {
        mini.destroy_snapshot(0).unwrap();
        mini.commit().unwrap();
        mini.check().unwrap();
    }
    mini.remove_range(&[], &[0xff; 8]).unwrap();
    mini.commit().unwrap();
    assert_eq!(mini.head.stats(), Default::default());
    mini.check().unwrap();
    mini.pool.drain_frees().unwrap();
    let space = mini.pool.space().unwrap();
    // At most the open segments, and those with the last nodes of the meta tree.
    assert!(space.occupied <= 5 * (64 << 10), "{space:?} after everything was freed");
    mini.check().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_as_the_model(
        ops in prop::collection::vec(op(), 1..70),
        cache in prop_oneof![Just(0usize), Just(1 << 20)],
    ) {
        run(&ops, cache);
    }
}
