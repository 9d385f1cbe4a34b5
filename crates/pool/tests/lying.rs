//! A disk that reports syncs as done but does not do them. The data it loses cannot be restored. The remaining data
//! must be told apart from the lost data, and no wrong data is returned.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::{Mini, MiniRoots, Model, key, small};
use snowmelt_pool::{BlockPtr, CheckOptions, Pool, PoolError, PoolOptions, Rewind, Txg};
use snowmelt_store::{FaultStore, MemoryStore};

/// Results of opening the pool.
#[derive(Default, Debug)]
struct Tally {
    /// The newest txg, complete.
    whole: u32,
    /// An older txg, complete: the disk lost everything newer, including uberblocks.
    older: u32,
    /// Opened, and `check` reports what is lost.
    named: u32,
    /// Opened only with consent to lose the newest txgs.
    rewound: u32,
    /// No txg is readable.
    unreadable: u32,
}

/// Opens a crash image. Everything readable must be correct. If not everything is readable, `check` must find that.
fn look(image: &MemoryStore, newest: Txg, committed: &BTreeMap<Txg, Model>, tally: &mut Tally) {
    let open = |rewind| {
        let options = PoolOptions { rewind, ..small() };
        Mini::open(Box::new(image.snapshot()), options, committed)
    };
    let (opened, is_rewound) = match open(Rewind::No) {
        Err(PoolError::NeedsRewind { to, newest, .. }) => {
            assert!(to < newest);
            (open(Rewind::Recent), true)
        }
        opened => (opened, false),
    };
    let mini = match opened {
        Ok(mini) => mini.unwrap(),
        Err(PoolError::Unreadable { source, .. }) => {
            assert!(is_of_damage(&source), "{source:?}");
            tally.unreadable += 1;
            return;
        }
        Err(error) => {
            assert!(is_of_damage(&error), "{error:?}");
            tally.unreadable += 1;
            return;
        }
    };
    let report = mini.pool.open_report();
    assert_eq!(is_rewound, !report.passed_over.is_empty());
    let reads = read_all(&mini);
    let mut found = 0;
    let checked = mini.pool.check(&MiniRoots, CheckOptions { data: true }, &mut |_| found += 1);
    let is_clean = checked.is_ok_and(|report| report.errors == 0) && found == 0;
    assert!(reads.is_ok() || !is_clean, "what cannot be read was not found: {reads:?}");
    assert!(report.missing.is_empty() || !is_clean, "missing: {:?}", report.missing);
    match (is_rewound, is_clean) {
        (true, _) => tally.rewound += 1,
        (_, false) => tally.named += 1,
        _ if report.txg == newest => tally.whole += 1,
        _ => tally.older += 1,
    }
}

fn is_of_damage(error: &PoolError) -> bool {
    error.is_corruption() || error.to_string().contains("segment")
}

/// Each read returns what was written, or an error that means damage.
fn read_all(mini: &Mini) -> Result<(), PoolError> {
    let mut first = Ok(());
    for (key, (birth, data)) in &mini.model.live {
        let read = mini.head.view().get(key).and_then(|entry| {
            let entry = entry.unwrap_or_else(|| panic!("{key:x?} is gone, and nobody says so"));
            assert_eq!(entry.birth, *birth);
            mini.pool.read(&BlockPtr::decode(&mut &entry.value[..])?)
        });
        match read {
            Ok(read) => assert!(read == data[..], "{key:x?} is not what was written"),
            Err(error) => {
                assert!(is_of_damage(&error), "{error:?}");
                first = first.and(Err(error));
            }
        }
    }
    first.and_then(|()| mini.verify())
}

/// Some txgs with changes.
fn work(mini: &mut Mini, seed: u64, txgs: u64) {
    let mut state = seed;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for txg in 0..txgs {
        for _ in 0..below(60) + 1 {
            let data: Vec<u8> = (0..below(3000) + 1).map(|_| below(256) as u8).collect();
            mini.put(&key(below(200) as u16), &data).unwrap();
        }
        match txg % 4 {
            0 => drop(mini.snapshot().unwrap()),
            3 => {
                mini.commit().unwrap();
                mini.destroy_snapshot(below(4) as usize).unwrap();
                mini.commit().unwrap();
                mini.clean().unwrap();
            }
            _ => drop(mini.commit().unwrap()),
        }
    }
}

#[test]
fn what_a_lying_disk_loses_is_never_taken_for_something_else() {
    let mut tally = Tally::default();
    for seed in 0..20 {
        let store = FaultStore::new(seed);
        let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
        work(&mut mini, seed, 6);
        store.lie();
        let begin = store.position();
        work(&mut mini, seed + 1000, 1 + seed % 7);
        let (committed, newest) = (mini.committed.clone(), mini.pool.committed_txg());
        drop(mini);
        // The power fails when everything was reported as durable, and also somewhat earlier.
        let end = store.position();
        for point in [end, begin + (end - begin) / 2] {
            for image in store.crash_points(point..=point, 30) {
                look(&image.store, newest, &committed, &mut tally);
            }
        }
    }
    let Tally { whole, older, named, rewound, unreadable } = tally;
    assert!([whole, older, named, rewound, unreadable].iter().all(|count| *count > 0), "{tally:?}");
}

#[test]
fn lost_segments_are_named_when_the_pool_is_opened() {
    use snowmelt_store::Store;
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    work(&mut mini, 7, 9);
    let (committed, newest) = (mini.committed.clone(), mini.pool.committed_txg());
    drop(mini);
    let mut tally = Tally::default();
    let mut told = 0;
    for info in store.segments().unwrap() {
        let image = store.snapshot();
        image.delete_segment(info.id).unwrap();
        let options = PoolOptions { read_only: true, ..small() };
        if let Ok(pool) = Pool::open(Box::new(image.snapshot()), options)
            && pool.open_report().passed_over.is_empty()
        {
            assert_eq!(pool.open_report().missing, [info.id]);
            told += 1;
        }
        look(&image, newest, &committed, &mut tally);
    }
    assert!(told > 0 && tally.whole == 0 && tally.older == 0, "{told} {tally:?}");
}
