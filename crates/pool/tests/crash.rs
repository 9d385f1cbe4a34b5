//! Crashes and failing stores: everything that was committed is there, and the pool has the state of some commit.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, Model, key, small};
use snowmelt_pool::{Pool, PoolError, PoolOptions, Rewind, Txg};
use snowmelt_store::{FaultKind, FaultStore, MemoryStore};
use std::collections::BTreeMap;

/// Deterministic numbers for scripts.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Some txgs with mixed changes. Stops at the first error.
fn script(mini: &mut Mini, rng: &mut Rng, txgs: u64) -> Result<(), PoolError> {
    for _ in 0..txgs {
        for _ in 0..rng.below(40) {
            let at = rng.below(150) as u16;
            match rng.below(10) {
                0..=6 => {
                    let data = vec![rng.below(256) as u8; rng.below(2000) as usize + 1];
                    let noisy: Vec<u8> = data.iter().map(|b| b ^ rng.below(256) as u8).collect();
                    mini.put(&key(at), if rng.below(2) == 0 { &data } else { &noisy })?;
                }
                7..=8 => mini.remove(&key(at))?,
                _ => mini.remove_range(&key(at), &key(at + rng.below(60) as u16))?,
            }
        }
        match rng.below(5) {
            0 => drop(mini.snapshot()?),
            4 => {
                mini.commit()?;
                mini.clean()?;
            }
            1 => {
                mini.destroy_snapshot(rng.below(8) as usize)?;
                mini.commit()?;
            }
            _ => drop(mini.commit()?),
        }
    }
    Ok(())
}

/// Opens a crash image and compares it with the model. Returns the dataset, if it existed in that image.
fn reopen(
    store: Box<dyn snowmelt_store::Store>,
    committed: &BTreeMap<Txg, Model>,
    published: Option<Txg>,
) -> Option<Mini> {
    match Mini::open(store, small(), committed) {
        Ok(Some(mini)) => {
            let txg = mini.pool.open_report().txg;
            assert!(published.is_none_or(|p| txg >= p), "txg {txg} found, {published:?} was published");
            assert_eq!(mini.pool.open_report().passed_over, []);
            assert_eq!(mini.pool.open_report().missing, []);
            mini.verify().unwrap();
            mini.check().unwrap();
            Some(mini)
        }
        // Before the dataset was committed, there is an empty pool; before that, none.
        Ok(None) => None,
        Err(PoolError::NoUberblock { .. }) => {
            assert_eq!(published, None);
            None
        }
        Err(error) => panic!("a crash made the pool unreadable: {error:?}"),
    }
}

#[test]
fn every_crash_leaves_a_committed_state() {
    for seed in 0..6 {
        let store = FaultStore::new(seed);
        let mut rng = Rng(seed);
        let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
        script(&mut mini, &mut rng, 8).unwrap();
        let committed = mini.committed.clone();
        drop(mini);
        let mut images = 0;
        for image in store.crash_points(.., 3) {
            images += 1;
            let found = reopen(Box::new(image.store.clone()), &committed, image.published);
            // Some images are changed further, and crash again.
            if let Some(mini) = found
                && images % 37 == 0
            {
                drop(mini);
                crash_again(seed * 1000 + images, &image.store, &committed);
            }
        }
        assert!(images > 100, "only {images} images");
    }
}

fn crash_again(seed: u64, image: &MemoryStore, committed: &BTreeMap<Txg, Model>) {
    let store = FaultStore::over(seed, &image.snapshot());
    let mut mini = Mini::open(Box::new(store.clone()), small(), committed).unwrap().unwrap();
    // Later txgs of the first run do not exist in this image.
    let reached = mini.pool.open_report().txg;
    let claimed = mini.pool.open_txg() - 1;
    mini.committed.retain(|txg, _| *txg <= reached || *txg == claimed);
    script(&mut mini, &mut Rng(seed), 3).unwrap();
    let committed = mini.committed.clone();
    drop(mini);
    for image in store.crash_points(.., 2) {
        reopen(Box::new(image.store), &committed, image.published);
    }
}

#[test]
fn a_failing_write_suspends_the_pool_and_loses_nothing_committed() {
    for n in 0..150 {
        let store = FaultStore::new(n);
        let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
        store.fail_after(n, FaultKind::Write);
        let error = match script(&mut mini, &mut Rng(n % 5), 8) {
            Ok(()) => continue,
            Err(error) => error,
        };
        assert!(matches!(error, PoolError::Store { .. } | PoolError::Suspended { .. }), "{error:?}");
        let published = mini.pool.committed_txg();
        assert!(matches!(mini.pool.begin(), Err(PoolError::Suspended { .. })));
        assert!(matches!(mini.pool.commit(), Err(PoolError::Suspended { .. })));
        // Committed data is still readable, although nothing can be written.
        let committed = mini.committed.clone();
        drop(mini);
        store.restart();
        assert!(reopen(Box::new(store.clone()), &committed, Some(published)).is_some());
        for image in store.crash_points(store.position().., 3) {
            assert!(reopen(Box::new(image.store), &committed, image.published).is_some());
        }
    }
}

#[test]
fn a_failing_read_is_an_error_and_no_more() {
    for n in 0..60 {
        let store = FaultStore::new(n);
        let mut options = small();
        options.node_cache_bytes = 0;
        options.data_cache_bytes = 0;
        let mut mini = Mini::create(Box::new(store.clone()), options).unwrap();
        script(&mut mini, &mut Rng(7), 3).unwrap();
        store.fail_after(n, FaultKind::Read);
        // Reads also fail in the middle of changes. Each change is then either done or not, and the tree stays valid.
        for at in 0..150 {
            let key = key(at);
            let failed = match at % 3 {
                0 => mini.pool.begin().and_then(|hold| mini.head.remove(&hold, &key).map(drop)).is_err(),
                _ => mini.head.get(&key).is_err(),
            };
            if failed {
                break;
            }
        }
        store.clear_faults();
        let keys: Vec<_> = mini.head.view().range(&[], None).map(|item| item.unwrap().0).collect();
        assert!(keys.is_sorted());
        assert!(keys.iter().all(|key| mini.head.get(key).unwrap().is_some()));
        mini.pool.commit().unwrap();
    }
}

#[test]
fn a_damaged_newest_txg_gives_way_to_the_one_before_when_asked_to() {
    let store = FaultStore::new(1);
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    script(&mut mini, &mut Rng(3), 6).unwrap();
    let before = mini.commit().unwrap();
    let intact = store.snapshot();
    mini.put(&key(1), b"the last txg").unwrap();
    let last = mini.commit().unwrap();
    let committed = mini.committed.clone();
    drop(mini);
    // Damages every byte that the last txg added, one segment at a time.
    use snowmelt_store::Store;
    let lens: BTreeMap<_, _> = intact.segments().unwrap().iter().map(|s| (s.id, s.len)).collect();
    let mut rewound = 0;
    for info in store.segments().unwrap() {
        let from = lens.get(&info.id).copied().unwrap_or(0);
        if from == info.len {
            continue;
        }
        let image = store.snapshot();
        (from..info.len).for_each(|at| image.corrupt(info.id, at, 0x55).unwrap());
        let untouched = image.snapshot();
        match Pool::open(Box::new(untouched.clone()), small()) {
            Ok(pool) => {
                assert_eq!(pool.open_report().txg, last);
                continue;
            }
            Err(PoolError::NeedsRewind { newest, to, source, .. }) => {
                assert_eq!((newest, to), (last, before));
                assert!(source.is_corruption(), "{source:?}");
            }
            Err(other) => panic!("{other:?}"),
        }
        // Opening for reading needs no consent to a loss.
        let reading = PoolOptions { read_only: true, ..small() };
        assert_eq!(Pool::open(Box::new(untouched), reading).unwrap().open_report().txg, before);
        let recent = PoolOptions { rewind: Rewind::Recent, ..small() };
        let mini = Mini::open(Box::new(image.clone()), recent, &committed).unwrap().unwrap();
        let report = mini.pool.open_report().clone();
        rewound += 1;
        assert_eq!(report.txg, before);
        assert_eq!(report.passed_over.iter().map(|(txg, _)| *txg).collect::<Vec<_>>(), [last]);
        mini.verify().unwrap();
        // The pool continues with txgs that were never used.
        let mut mini = mini;
        assert!(mini.pool.open_txg() > last);
        mini.put(&key(2), b"after the rewind").unwrap();
        mini.commit().unwrap();
        mini.check().unwrap();
        let committed = mini.committed.clone();
        drop(mini);
        let mini = Mini::open(Box::new(image), small(), &committed).unwrap().unwrap();
        assert_eq!(mini.pool.open_report().passed_over, []);
        mini.verify().unwrap();
        mini.check().unwrap();
    }
    assert!(rewound > 0);
}

/// Every txg of the ring that is requested is either opened completely, or refused because segments are missing.
#[test]
fn a_txg_to_go_back_to_is_whole_or_refused() {
    let store = FaultStore::new(7);
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    // Enough is written and freed that segments are deleted.
    let mut rng = Rng(11);
    for _ in 0..24 {
        script(&mut mini, &mut rng, 1).unwrap();
        mini.commit().unwrap();
    }
    let committed = mini.committed.clone();
    let newest = mini.pool.committed_txg();
    drop(mini);
    let (mut opened, mut refused) = (0, 0);
    for txg in 1..=newest {
        let image = store.snapshot();
        let options = PoolOptions { rewind: Rewind::To(txg), ..small() };
        let mini = match Mini::open(Box::new(image.clone()), options, &committed) {
            Ok(mini) => mini,
            Err(PoolError::NoTxg { txg: named, .. }) => {
                assert_eq!(named, txg);
                assert!(txg + 4 <= newest, "the last txgs are kept");
                refused += 1;
                continue;
            }
            Err(other) => panic!("{txg}: {other:?}"),
        };
        let Some(mut mini) = mini else { continue };
        opened += 1;
        assert_eq!(mini.pool.open_report().txg, txg);
        mini.verify().unwrap();
        mini.put(&key(2), b"after going back").unwrap();
        mini.commit().unwrap();
        mini.check().unwrap();
        // Later txgs are gone for good, also for the next open.
        let committed = mini.committed.clone();
        drop(mini);
        let mini = Mini::open(Box::new(image), small(), &committed).unwrap().unwrap();
        assert!(mini.pool.open_report().txg > newest);
        mini.verify().unwrap();
        mini.check().unwrap();
    }
    assert!(opened >= 4 && refused > 0, "{opened} opened, {refused} refused");
}

/// If all of the last txgs are damaged, an older complete one can be opened on request.
#[test]
fn extreme_measures_find_what_is_whole() {
    use snowmelt_store::Store;
    let store = FaultStore::new(9);
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    mini.put(&key(1), b"kept").unwrap();
    let whole = mini.commit().unwrap();
    let intact = store.snapshot();
    for at in 0..6u8 {
        mini.put(&key(2), &[at]).unwrap();
        mini.commit().unwrap();
    }
    let committed = mini.committed.clone();
    drop(mini);
    let lens: BTreeMap<_, _> = intact.segments().unwrap().iter().map(|s| (s.id, s.len)).collect();
    let image = store.snapshot();
    for info in image.segments().unwrap() {
        let from = lens.get(&info.id).copied().unwrap_or(0);
        (from..info.len).for_each(|at| image.corrupt(info.id, at, 0x55).unwrap());
    }
    for rewind in [Rewind::No, Rewind::Recent] {
        let failed = Pool::open(Box::new(image.snapshot()), PoolOptions { rewind, ..small() });
        assert!(matches!(failed, Err(PoolError::Unreadable { .. })), "{failed:?}");
    }
    let extreme = PoolOptions { rewind: Rewind::Extreme, ..small() };
    let mini = Mini::open(Box::new(image), extreme, &committed).unwrap().unwrap();
    assert_eq!(mini.pool.open_report().txg, whole);
    mini.verify().unwrap();
}

#[test]
fn a_pool_with_nothing_readable_says_why() {
    use snowmelt_store::Store;
    let store = MemoryStore::new();
    let mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    drop(mini);
    for info in store.segments().unwrap() {
        (0..info.len).for_each(|at| store.corrupt(info.id, at, 1).unwrap());
    }
    match Pool::open(Box::new(store.snapshot()), small()) {
        Err(PoolError::Unreadable { tried: 2, source }) => assert!(source.is_corruption(), "{source:?}"),
        other => panic!("{other:?}"),
    }
    match Pool::open(Box::new(MemoryStore::new()), small()) {
        Err(PoolError::NoUberblock { .. }) => {}
        other => panic!("{other:?}"),
    }
}
