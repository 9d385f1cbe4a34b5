//! Quotas, reservations and the pool's size: what they refuse, with which error, and that frees still work.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::files::{fill, noise, open, remove, write, write_file};
use common::{check, corpus, listing, name, options, receive, receive_from};
use snowmelt_dataset::catalog::{SpaceReader, Totals};
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::send::{SendFlags, SendPlan, Source};
use snowmelt_dataset::{
    CloneOptions, CreateOptions, DatasetError, Datasets, DestroyPlan, NewVolume, Quota, ReceiveError,
    RenameOptions, RollbackOptions, volume_reservation,
};
use snowmelt_pool::{NewPool, Pool, PoolError, PoolOptions};
use snowmelt_store::{CreateOptions as CreateStore, Location, MemoryStore, PoolLabel};
use snowmelt_zpl::{Objects, SourceError};

const MIB: u64 = 1 << 20;

fn pool_of(bytes: u64) -> Arc<Datasets> {
    let options = PoolOptions { segment_bytes: MIB, ..options() };
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(MemoryStore::with_capacity(bytes)), &new, options).unwrap();
    Datasets::create(pool).unwrap()
}

fn make(datasets: &Datasets, dataset: &str, properties: &[(&str, u64)]) -> Result<(), DatasetError> {
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
    datasets.create_filesystem(dataset, &CreateOptions { properties, ..CreateOptions::default() })
}

fn set(datasets: &Datasets, dataset: &str, property: &str, value: u64) -> Result<(), DatasetError> {
    datasets.set_properties(&name(dataset), &[(property.to_owned(), value.to_string())])
}

fn totals(datasets: &Datasets, dataset: &str) -> Totals {
    datasets.pool().commit().unwrap();
    let catalog = datasets.catalog();
    SpaceReader::new(&catalog).totals(&catalog.dataset(dataset).unwrap()).unwrap()
}

fn available(datasets: &Datasets, dataset: &str) -> u64 {
    datasets.pool().commit().unwrap();
    let catalog = datasets.catalog();
    SpaceReader::new(&catalog).available(&catalog.dataset(dataset).unwrap()).unwrap()
}

fn destroy(datasets: &Datasets, dataset: &str) {
    let catalog = datasets.catalog();
    let found = catalog.dataset(dataset).unwrap();
    datasets.destroy(&DestroyPlan::dataset(&catalog, &found, true, true).unwrap()).unwrap();
}

fn near(value: u64, wanted: u64, slack: u64) {
    assert!(value.abs_diff(wanted) <= slack, "{value} is not within {slack} of {wanted}");
}

#[test]
fn a_quota_counts_everything_below_it() {
    let datasets = pool_of(256 * MIB);
    make(&datasets, "tank/q", &[("quota", 8 * MIB)]).unwrap();
    make(&datasets, "tank/q/a", &[]).unwrap();
    make(&datasets, "tank/q/b", &[]).unwrap();
    let (a, b) = (open(&datasets, "tank/q/a"), open(&datasets, "tank/q/b"));
    assert!(fill(&a, 1, 4 * MIB).2.is_none());
    datasets.snapshot(&[name("tank/q/a@1")], &[]).unwrap();
    let (object, written, refused) = fill(&b, 2, 64 * MIB);
    assert!(matches!(refused, Some(SourceError::QuotaExceeded)), "{refused:?}");
    near(written, 4 * MIB, MIB / 2);
    near(totals(&datasets, "tank/q").used, 8 * MIB, MIB / 2);
    assert_eq!(available(&datasets, "tank/q/b"), 0);
    assert!(matches!(write(&a, 200, 0, &[1]), Err(SourceError::QuotaExceeded)), "the other one as well");
    // A free is not a write and makes space available; blocks in a snapshot stay used.
    remove(&b, object.unwrap());
    datasets.pool().commit().unwrap();
    near(available(&datasets, "tank/q/b"), 4 * MIB, MIB / 2);
    assert!(fill(&b, 3, 3 * MIB).2.is_none());
    set(&datasets, "tank/q", "quota", 0).unwrap();
    assert!(fill(&b, 4, 10 * MIB).2.is_none());
    check(&datasets, "quotas");
}

#[test]
fn a_refquota_counts_the_head_alone() {
    let datasets = pool_of(256 * MIB);
    make(&datasets, "tank/r", &[("refquota", 4 * MIB)]).unwrap();
    make(&datasets, "tank/r/below", &[]).unwrap();
    let (head, below) = (open(&datasets, "tank/r"), open(&datasets, "tank/r/below"));
    assert!(fill(&below, 9, 8 * MIB).2.is_none(), "children do not count");
    let (object, written, refused) = fill(&head, 1, 64 * MIB);
    assert!(matches!(refused, Some(SourceError::QuotaExceeded)), "{refused:?}");
    near(written, 4 * MIB, MIB / 2);
    datasets.snapshot(&[name("tank/r@full")], &[]).unwrap();
    remove(&head, object.unwrap());
    datasets.pool().commit().unwrap();
    assert!(fill(&head, 2, 3 * MIB).2.is_none(), "snapshots do not count");
    set(&datasets, "tank/r", "refquota", 3 * MIB + MIB / 2).unwrap();
    // The snapshot refers to more than the head may.
    let refused = datasets.rollback(&name("tank/r@full"), RollbackOptions::default()).unwrap_err();
    assert!(matches!(refused, DatasetError::QuotaExceeded { quota: Quota::Refquota, .. }), "{refused:?}");
    check(&datasets, "refquotas");
}

#[test]
fn reservations_are_kept_from_others() {
    let datasets = pool_of(64 * MIB);
    let all = available(&datasets, "tank");
    make(&datasets, "tank/kept", &[("reservation", 20 * MIB)]).unwrap();
    make(&datasets, "tank/kept/below", &[]).unwrap();
    make(&datasets, "tank/head", &[("refreservation", 10 * MIB)]).unwrap();
    make(&datasets, "tank/other", &[]).unwrap();
    near(totals(&datasets, "tank").used, 30 * MIB, MIB);
    near(totals(&datasets, "tank/kept").used, 0, MIB / 4);
    near(totals(&datasets, "tank/head").refreservation, 10 * MIB, MIB / 4);
    near(available(&datasets, "tank/other"), all - 30 * MIB, MIB);
    near(available(&datasets, "tank/kept/below"), all - 10 * MIB, MIB);
    near(available(&datasets, "tank/head"), all - 20 * MIB, MIB);
    let other = open(&datasets, "tank/other");
    let (others, written, refused) = fill(&other, 1, 100 * MIB);
    assert!(matches!(refused, Some(SourceError::NoSpace)), "{refused:?}");
    // One eighth of each small segment is too short for a record.
    near(written, (all - 30 * MIB) * 7 / 8, 2 * MIB);
    // Datasets with reservations can write that much.
    let below = open(&datasets, "tank/kept/below");
    assert!(fill(&below, 2, 18 * MIB).2.is_none());
    let head = open(&datasets, "tank/head");
    let (object, _, refused) = fill(&head, 3, 9 * MIB);
    assert!(refused.is_none(), "{refused:?}");
    let (_, more, refused) = fill(&other, 4, 20 * MIB);
    assert!(matches!(refused, Some(SourceError::NoSpace)), "{refused:?}");
    near(more, 0, 4 * MIB);
    // The part of the head that only the snapshot would use must be kept free once more.
    let refused = datasets.snapshot(&[name("tank/head@1")], &[]).unwrap_err();
    assert!(matches!(refused, DatasetError::OutOfSpace { .. }), "{refused:?}");
    remove(&head, object.unwrap());
    remove(&other, others.unwrap());
    datasets.pool().commit().unwrap();
    datasets.snapshot(&[name("tank/head@1")], &[]).unwrap();
    check(&datasets, "reservations");
}

/// In a file every segment has a slot. The rest of the open segment is available, and no more can be written than was
/// available.
#[test]
fn no_more_can_be_written_than_was_available() {
    let scratch = tempfile::tempdir().unwrap();
    let label = PoolLabel { name: "tank".to_owned(), guid: 1 };
    let options = CreateStore { label, size: Some(512 * MIB), force: false };
    let store = snowmelt_store::create(&Location::File(scratch.path().join("pool")), &options).unwrap();
    let new = NewPool { name: "tank", guid: 1 };
    let datasets = Datasets::create(Pool::create(store, &new, PoolOptions::default()).unwrap()).unwrap();
    make(&datasets, "tank/kept", &[]).unwrap();
    make(&datasets, "tank/other", &[]).unwrap();
    set(&datasets, "tank/kept", "reservation", available(&datasets, "tank") - 32 * MIB).unwrap();
    let told = available(&datasets, "tank/other");
    let (_, written, refused) = fill(&open(&datasets, "tank/other"), 1, 256 * MIB);
    assert!(matches!(refused, Some(SourceError::NoSpace)), "{refused:?}");
    assert!(written <= told + MIB, "{written} bytes were written, {told} were available");
}

#[test]
fn limits_are_set_within_reason() {
    let datasets = pool_of(64 * MIB);
    make(&datasets, "tank/x", &[]).unwrap();
    let head = open(&datasets, "tank/x");
    assert!(fill(&head, 1, 4 * MIB).2.is_none());
    for quota in ["quota", "refquota"] {
        let refused = set(&datasets, "tank/x", quota, 2 * MIB).unwrap_err();
        assert_eq!(refused.to_string(), "size is less than current used or reserved space");
        set(&datasets, "tank/x", quota, 5 * MIB).unwrap();
    }
    for reservation in ["reservation", "refreservation"] {
        for (value, why) in [(100, "the pool"), (6, "the quota")] {
            let refused = set(&datasets, "tank/x", reservation, value * MIB).unwrap_err();
            assert_eq!(refused.to_string(), "size is greater than available space", "{why}");
        }
        set(&datasets, "tank/x", reservation, 5 * MIB).unwrap();
    }
    let refused = set(&datasets, "tank/x", "quota", 4 * MIB + MIB / 2).unwrap_err();
    assert!(matches!(refused, DatasetError::BelowUse { property: "quota" }), "{refused:?}");
    let refused = make(&datasets, "tank/y", &[("reservation", 100 * MIB)]).unwrap_err();
    assert_eq!(refused.to_string(), "'tank/y': out of space");
    assert!(datasets.catalog().dataset("tank/y").is_err());
}

#[test]
fn a_volume_can_be_written_whatever_others_do() {
    let datasets = pool_of(64 * MIB);
    let volume = NewVolume { size: 8 * MIB, block_size: 16 << 10 };
    let whole = volume_reservation(volume.size, 16 << 10, 1);
    // 512 blocks: one of pointers, and seven levels of the dnode, each twice 128 KiB.
    assert_eq!(whole, 8 * MIB + 8 * 2 * (128 << 10));
    let properties = vec![("refreservation".to_owned(), whole.to_string())];
    let options = CreateOptions { properties, ..CreateOptions::default() };
    datasets.create_volume("tank/v", &volume, &options).unwrap();
    make(&datasets, "tank/other", &[]).unwrap();
    assert!(matches!(fill(&open(&datasets, "tank/other"), 1, 100 * MIB).2, Some(SourceError::NoSpace)));
    let head = open(&datasets, "tank/v");
    for at in 0..8 {
        write(&head, 1, at * MIB, &noise(at, MIB as usize)).unwrap();
    }
    head.sync().unwrap();
    let large = NewVolume { size: 64 * MIB, block_size: 16 << 10 };
    let properties = vec![("refreservation".to_owned(), (64 * MIB).to_string())];
    let options = CreateOptions { properties, ..CreateOptions::default() };
    let refused = datasets.create_volume("tank/large", &large, &options).unwrap_err();
    assert!(matches!(refused, DatasetError::OutOfSpace { .. }), "{refused:?}");
    datasets.create_volume("tank/large", &large, &CreateOptions::default()).unwrap();
    check(&datasets, "volumes");
}

#[test]
fn a_volume_that_changes_its_size_has_as_much_reserved() {
    let datasets = pool_of(64 * MIB);
    let reserved = |name: &str| {
        let dataset = datasets.catalog().dataset(name).unwrap();
        let own = datasets.catalog().own_property(dataset.id, 0, "refreservation").unwrap();
        own.map(|(value, _)| value.parse::<u64>().unwrap())
    };
    let size = |name: &str| {
        let catalog = datasets.catalog();
        catalog.head(&catalog.dataset(name).unwrap()).unwrap().volume_size().unwrap()
    };
    let volume = NewVolume { size: 8 * MIB, block_size: 16 << 10 };
    let whole = |size: u64| volume_reservation(size, 16 << 10, 1);
    for (name, reserved) in
        [("tank/whole", Some(whole(8 * MIB))), ("tank/part", Some(MIB)), ("tank/thin", None)]
    {
        let properties = reserved.map(|bytes| ("refreservation".to_owned(), bytes.to_string()));
        let options =
            CreateOptions { properties: properties.into_iter().collect(), ..CreateOptions::default() };
        datasets.create_volume(name, &volume, &options).unwrap();
    }
    for new in [24 * MIB, 4 * MIB] {
        for (name, expected) in
            [("tank/whole", Some(whole(new))), ("tank/part", Some(MIB)), ("tank/thin", None)]
        {
            datasets.resize_reserved_volume(name, new).unwrap();
            assert_eq!((size(name), reserved(name)), (new, expected), "{name}");
        }
    }
    let refused = datasets.resize_reserved_volume("tank/whole", 100 * MIB).unwrap_err();
    assert!(matches!(refused, DatasetError::BeyondSpace { .. }), "{refused:?}");
    assert!(datasets.resize_reserved_volume("tank/whole", 8 * MIB + 1).is_err());
    assert_eq!((size("tank/whole"), reserved("tank/whole")), (4 * MIB, Some(whole(4 * MIB))));
    datasets.resize_reserved_volume("tank/thin", 100 * MIB).unwrap();
    check(&datasets, "resized volumes");
}

#[test]
fn a_receive_over_quota_leaves_nothing() {
    let case = corpus().join("01-basic");
    let datasets = pool_of(256 * MIB);
    make(&datasets, "tank/q", &[("quota", MIB)]).unwrap();
    let before = listing(&datasets);
    let refused = receive(&datasets, "tank/q/x", &case.join("full-0.zstream"), false).unwrap_err();
    let ReceiveError::Dataset(DatasetError::QuotaExceeded { name, quota: Quota::Quota, limit: MIB, .. }) =
        refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(name, "tank/q");
    assert_eq!(listing(&datasets), before);
    near(totals(&datasets, "tank/q").used, 0, MIB / 4);
    // An incremental stream that would make the head too large.
    receive(&datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    let used = totals(&datasets, "tank/x").used;
    let before = listing(&datasets);
    set(&datasets, "tank/x", "quota", used + MIB / 8).unwrap();
    let refused = receive(&datasets, "tank/x", &case.join("inc-0-1.zstream"), false).unwrap_err();
    assert!(
        matches!(refused, ReceiveError::Dataset(DatasetError::QuotaExceeded { quota: Quota::Quota, .. })),
        "{refused:?}"
    );
    assert_eq!(listing(&datasets), before);
    check(&datasets, "receives over quota");
}

/// A stream of a snapshot, incremental from `from` if that is given.
fn sent(datasets: &Datasets, from: Option<&str>, to: &str) -> Vec<u8> {
    let catalog = datasets.catalog();
    let from = from.map_or(Source::None, |from| Source::Snapshot(catalog.snapshot(&name(from)).unwrap()));
    let to = catalog.snapshot(&name(to)).unwrap();
    let mut stream = Vec::new();
    SendPlan::single(&catalog, &to, from, &SendFlags::default()).unwrap().run(&mut stream, &|_| {}).unwrap();
    stream
}

/// As in ZFS: a sender at its `refquota` has exceeded it a little, and must still be replicable.
#[test]
fn what_has_used_up_its_refquota_is_replicated() {
    let datasets = pool_of(256 * MIB);
    make(&datasets, "tank/source", &[]).unwrap();
    for (file, snapshot) in [("one", "tank/source@one"), ("two", "tank/source@two")] {
        write_file(&open(&datasets, "tank/source"), file, 2 * MIB);
        datasets.snapshot(&[name(snapshot)], &[]).unwrap();
    }
    let receive =
        |stream: Vec<u8>| receive_from(&datasets, "tank/x", &stream[..], &ReceiveOptions::default());
    receive(sent(&datasets, None, "tank/source@one")).unwrap();
    let referenced = totals(&datasets, "tank/x").own.referenced.physical;
    set(&datasets, "tank/x", "refquota", referenced).unwrap();
    let refused = fill(&open(&datasets, "tank/x"), 3, MIB).2;
    assert!(matches!(refused, Some(SourceError::QuotaExceeded)), "it holds for those who write");
    datasets.rollback(&name("tank/x@one"), RollbackOptions::default()).unwrap();
    receive(sent(&datasets, Some("tank/source@one"), "tank/source@two")).unwrap();
    assert!(totals(&datasets, "tank/x").own.referenced.physical > referenced + MIB);
    check(&datasets, "receives over refquota");
}

#[test]
fn what_is_removed_makes_room_at_once() {
    let datasets = pool_of(256 * MIB);
    for (dataset, quota) in [("tank/q", "quota"), ("tank/r", "refquota")] {
        make(&datasets, dataset, &[(quota, 4 * MIB)]).unwrap();
        let head = open(&datasets, dataset);
        let (object, _, refused) = fill(&head, 1, 64 * MIB);
        assert!(matches!(refused, Some(SourceError::QuotaExceeded)), "{refused:?}");
        datasets.pool().commit().unwrap();
        remove(&head, object.unwrap());
        let (_, written, refused) = fill(&head, 2, 3 * MIB);
        assert!(refused.is_none(), "{quota}: {written} bytes, then {refused:?}");
        // A refused writer for which no space can be freed does not cause commit after commit.
        let _ = fill(&head, 3, 64 * MIB);
        for _ in 0..4 {
            let _ = write(&head, object.unwrap(), 0, &[1]);
        }
        let txg = datasets.pool().committed_txg();
        assert!(matches!(fill(&head, 4, MIB).2, Some(SourceError::QuotaExceeded)));
        assert_eq!(datasets.pool().committed_txg(), txg, "{quota}");
    }
    check(&datasets, "quotas after removals");
}

#[test]
fn a_quota_is_passed_by_one_write_at_most() {
    let datasets = pool_of(256 * MIB);
    for (dataset, quota) in [("tank/q", "quota"), ("tank/r", "refquota")] {
        make(&datasets, dataset, &[(quota, 16 * MIB)]).unwrap();
        let head = open(&datasets, dataset);
        let (_, _, refused) = fill(&head, 1, 64 * MIB);
        assert!(matches!(refused, Some(SourceError::QuotaExceeded)), "{refused:?}");
        let used = totals(&datasets, dataset).used;
        assert!((16 * MIB..=16 * MIB + (128 << 10) + (8 << 10)).contains(&used), "{quota}: {used}");
    }
}

#[test]
fn what_moves_must_fit() {
    let datasets = pool_of(256 * MIB);
    make(&datasets, "tank/q", &[("quota", 4 * MIB)]).unwrap();
    make(&datasets, "tank/x", &[]).unwrap();
    assert!(fill(&open(&datasets, "tank/x"), 1, 6 * MIB).2.is_none());
    datasets.snapshot(&[name("tank/x@1")], &[]).unwrap();
    let moved = datasets.rename(&name("tank/x"), &name("tank/q/x"), RenameOptions::default());
    assert!(matches!(moved, Err(DatasetError::OutOfSpace { .. })), "{moved:?}");
    datasets.clone_snapshot(&name("tank/x@1"), "tank/q/clone", &CloneOptions::default()).unwrap();
    let promoted = datasets.promote("tank/q/clone");
    assert!(matches!(promoted, Err(DatasetError::OutOfSpace { .. })), "{promoted:?}");
    set(&datasets, "tank/q", "quota", 7 * MIB).unwrap();
    datasets.promote("tank/q/clone").unwrap();
    near(totals(&datasets, "tank/q").used, 6 * MIB, MIB / 2);
    check(&datasets, "moves");
}

/// The space of deleted files is in segments with other, live files: these are moved together.
#[test]
fn dead_space_between_what_is_alive_comes_back() {
    let datasets = pool_of(64 * MIB);
    make(&datasets, "tank/x", &[]).unwrap();
    let head = open(&datasets, "tank/x");
    let mut kept = Vec::new();
    let mut written = 0;
    let mut round = |fill_to: u64| {
        let (mut objects, mut seed) = (Vec::new(), written);
        while seed - written < fill_to {
            let (object, bytes, refused) = fill(&head, seed, 256 << 10);
            objects.extend(object.map(|object| (object, seed, bytes)));
            if refused.is_some() {
                break;
            }
            seed += bytes;
        }
        let done = seed - written;
        written = seed;
        // Three of four objects are removed.
        for (at, (object, seed, bytes)) in objects.into_iter().enumerate() {
            if at % 4 == 0 { kept.push((object, seed, bytes)) } else { remove(&head, object) }
        }
        done
    };
    let first = round(u64::MAX);
    assert!(first > 40 * MIB);
    // A quarter still exists.
    let second = round(u64::MAX);
    assert!(second > first * 6 / 10, "{second} of {first} could be written again");
    let third = round(u64::MAX);
    assert!(third > first * 4 / 10, "{third} of {first} could be written again");
    let _ = round;
    for (object, seed, bytes) in kept {
        let mut at = 0;
        while at < bytes {
            let mut data = vec![0; 128 << 10];
            head.read(object, at, &mut data).unwrap();
            assert!(data == noise(seed + at, 128 << 10), "object {object} at {at}");
            at += data.len() as u64;
        }
    }
    drop(head);
    check(&datasets, "cleaning");
}

/// Everything that only frees space works in a full pool, and the space can be used again.
#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    let datasets = pool_of(64 * MIB);
    let case = corpus().join("01-basic");
    let mut first = 0;
    for round in 0..6 {
        make(&datasets, "tank/x", &[]).unwrap();
        make(&datasets, "tank/y", &[]).unwrap();
        let head = open(&datasets, "tank/x");
        let (_, early, _) = fill(&head, round, 8 * MIB);
        datasets.snapshot(&[name("tank/x@1")], &[]).unwrap();
        let (object, late, refused) = fill(&head, round + 100, 100 * MIB);
        assert!(matches!(refused, Some(SourceError::NoSpace)), "{refused:?}");
        let received = receive(&datasets, "tank/z", &case.join("full-0.zstream"), false);
        let Err(ReceiveError::Dataset(DatasetError::Pool(PoolError::NoSpace { .. }))) = received else {
            panic!("{received:?}");
        };
        assert!(datasets.catalog().dataset("tank/z").is_err());
        // Properties can be set, and files can be removed.
        set(&datasets, "tank/x", "quota", 100 * MIB).unwrap();
        remove(&head, object.unwrap());
        drop(head);
        let catalog = datasets.catalog();
        let snapshot = catalog.snapshot(&name("tank/x@1")).unwrap();
        datasets.destroy(&DestroyPlan::snapshots(&catalog, vec![snapshot], false).unwrap()).unwrap();
        drop(catalog);
        destroy(&datasets, "tank/x");
        destroy(&datasets, "tank/y");
        check(&datasets, "emptying a full pool");
        if round == 0 {
            first = early + late;
        }
        near(early + late, first, 2 * MIB);
    }
}
