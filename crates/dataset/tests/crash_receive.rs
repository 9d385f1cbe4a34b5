//! A receive is killed at every moment, with every kind of loss that a crash may cause. Afterwards the pool passes its
//! check, the snapshot is visible completely or not at all, and the kept state can be resumed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{check, corpus, digest, listing, name, receive, receive_from};
use snowmelt_dataset::receive::{ReceiveOptions, resume_token};
use snowmelt_dataset::send::SendPlan;
use snowmelt_dataset::{Datasets, ReceiveError};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::FaultStore;
use snowmelt_stream::token::ResumeToken;

/// Commits so often that a small stream needs many txgs.
fn options() -> PoolOptions {
    PoolOptions {
        dirty_max_bytes: 96 << 10,
        written_max_bytes: 64 << 10,
        buffer_bytes: 16 << 10,
        ..common::options()
    }
}

struct Crashed {
    images: usize,
    before: usize,
    after: usize,
    resumed: usize,
}

/// Receives `full-0`, then `inc-0-1` with a crash at every point.
fn crash_everywhere(resumable: bool, per_point: usize) -> Crashed {
    let case = corpus().join("01-basic");
    let source = common::new_pool();
    receive(&source, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    receive(&source, "tank/x", &case.join("inc-0-1.zstream"), false).unwrap();
    let names: Vec<String> = {
        let catalog = source.catalog();
        let dataset = catalog.dataset("tank/x").unwrap();
        catalog.snapshots(&dataset).map(|snapshot| snapshot.unwrap().full_name()).collect()
    };
    let digests: Vec<String> = names.iter().map(|snapshot| digest(&source, snapshot)).collect();

    let store = FaultStore::new(11);
    let pool = Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 1 }, options()).unwrap();
    let datasets = Datasets::create(pool).unwrap();
    receive(&datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    let start = store.position();
    let how = ReceiveOptions { resumable, ..ReceiveOptions::default() };
    let stream = std::fs::read(case.join("inc-0-1.zstream")).unwrap();
    receive_from(&datasets, "tank/x", &stream[..], &how).unwrap();
    drop(datasets);

    let mut seen = Crashed { images: 0, before: 0, after: 0, resumed: 0 };
    for image in store.crash_points(start.., per_point) {
        let place = format!("crash at operation {} (variant {})", image.point, image.variant);
        let pool =
            Pool::open(Box::new(image.store), options()).unwrap_or_else(|error| panic!("{place}: {error}"));
        let datasets = Datasets::open(pool).unwrap();
        check(&datasets, &place);
        seen.images += 1;
        assert_eq!(digest(&datasets, &names[0]), digests[0], "{place}");
        let catalog = datasets.catalog();
        if catalog.snapshot(&name(&names[1])).is_ok() {
            assert_eq!(digest(&datasets, &names[1]), digests[1], "{place}");
            seen.after += 1;
            continue;
        }
        seen.before += 1;
        let dataset = catalog.dataset("tank/x").unwrap();
        match resume_token(&catalog, dataset.id).unwrap() {
            Some(token) => {
                assert!(resumable, "{place}: state was kept that nobody asked for");
                let token = ResumeToken::parse(&token).unwrap();
                let mut rest = Vec::new();
                SendPlan::resume(&source.catalog(), &token).unwrap().run(&mut rest, &|_| {}).unwrap();
                let refused = receive_from(&datasets, "tank/x", &stream[..], &how);
                assert!(matches!(refused, Err(ReceiveError::PartialState { .. })), "{place}");
                receive_from(&datasets, "tank/x", &rest[..], &how)
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
                seen.resumed += 1;
            }
            None => {
                if catalog.receive_state(dataset.id).unwrap().is_some() {
                    datasets.abort_receive("tank/x").unwrap();
                }
                receive_from(&datasets, "tank/x", &stream[..], &how).unwrap();
            }
        }
        assert_eq!(digest(&datasets, &names[1]), digests[1], "{place}: received again");
        check(&datasets, &place);
    }
    seen
}

#[test]
fn a_crash_leaves_all_or_nothing() {
    // How records are divided into txgs depends on the speed of threads: 20 to 29 points were seen.
    let seen = crash_everywhere(false, 6);
    assert!(
        seen.images > 80 && seen.before > 50 && seen.after > 0,
        "{} {} {}",
        seen.images,
        seen.before,
        seen.after
    );
    assert_eq!(seen.resumed, 0);
}

#[test]
fn a_crash_can_be_resumed() {
    let seen = crash_everywhere(true, 4);
    assert!(seen.resumed > 10 && seen.after > 0, "{} of {}", seen.resumed, seen.images);
}

#[test]
fn failing_writes_leave_the_pool_as_it_was() {
    let case = corpus().join("01-basic");
    for n in (0..200).step_by(7) {
        let store = FaultStore::new(n);
        let pool =
            Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 1 }, options()).unwrap();
        let datasets = Datasets::create(pool).unwrap();
        receive(&datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
        let before = listing(&datasets);
        store.fail_after(n, snowmelt_store::FaultKind::Write);
        let outcome = receive(&datasets, "tank/x", &case.join("inc-0-1.zstream"), false);
        drop(datasets);
        store.clear_faults();
        store.restart();
        let datasets = Datasets::open(Pool::open(Box::new(store), options()).unwrap()).unwrap();
        check(&datasets, &format!("write {n} failed"));
        match outcome {
            Err(_) => assert_eq!(listing(&datasets), before, "write {n} failed"),
            Ok(_) => assert_eq!(listing(&datasets).len(), before.len() + 1, "write {n} did not happen"),
        }
    }
}
