use std::collections::HashSet;

use super::*;
use crate::conformance::{self, Harness};

struct Faulty;

impl Harness for Faulty {
    fn fresh(&self) -> Box<dyn Store> {
        Box::new(FaultStore::over(1, &MemoryStore::with_capacity(8 << 20)))
    }
    fn reopen(&self, _: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        None
    }
}

#[test]
fn conforms() {
    conformance::run(&Faulty);
}

const SEG: SegmentId = SegmentId(1);

/// Two commits of 8 KiB each, with different bytes.
fn two_commits(seed: u64) -> FaultStore {
    let store = FaultStore::new(seed);
    store.create_segment(SEG).unwrap();
    store.append(SEG, 0, &[1; 8192]).unwrap();
    store.sync().unwrap();
    store.publish(1, b"one").unwrap();
    store.append(SEG, 8192, &[2; 8192]).unwrap();
    store.create_segment(SegmentId(2)).unwrap();
    store.append(SegmentId(2), 0, &[3; 5000]).unwrap();
    store.sync().unwrap();
    store.publish(2, b"two").unwrap();
    store
}

fn contents(store: &MemoryStore, id: SegmentId) -> Option<Vec<u8>> {
    let info = store.segments().unwrap().into_iter().find(|info| info.id == id)?;
    let mut buf = vec![0; info.len as usize];
    store.read(id, 0, &mut buf).unwrap();
    Some(buf)
}

#[test]
fn what_was_acknowledged_is_in_every_image() {
    for seed in 0..20 {
        for image in two_commits(seed).crash_points(.., 12) {
            let newest = image.store.uberblocks().unwrap().last().map(|u| u.txg);
            assert!(newest >= image.published, "point {}", image.point);
            if newest >= Some(1) {
                assert_eq!(contents(&image.store, SEG).unwrap()[..8192], [1; 8192]);
            }
            if newest == Some(2) {
                assert_eq!(contents(&image.store, SEG).unwrap()[8192..16384], [2; 8192]);
                assert_eq!(contents(&image.store, SegmentId(2)).unwrap()[..5000], [3; 5000]);
            }
        }
    }
}

#[test]
fn images_differ_as_crashes_do() {
    let store = two_commits(3);
    // The position before the second sync.
    let point = 7;
    let images: Vec<_> = store.crash_points(point..=point, 200).map(|i| i.store).collect();
    assert_eq!(images.len(), 200);
    let second: Vec<_> = images.iter().map(|image| contents(image, SegmentId(2))).collect();
    assert!(second.contains(&None), "creation lost");
    assert!(second.contains(&Some(vec![])), "creation kept, data lost");
    assert!(second.contains(&Some(vec![3; 5000])), "kept");
    let torn =
        second.iter().flatten().any(|b| b.len() >= 1024 && b[..512] == [3; 512] && b[512..1024] != [3; 512]);
    assert!(torn, "torn within the append");
    let reordered = images.iter().any(|image| {
        contents(image, SegmentId(2)) == Some(vec![3; 5000]) && contents(image, SEG).unwrap().len() == 8192
    });
    assert!(reordered, "the later append kept, the earlier lost");
    let first: HashSet<_> = images.iter().map(|image| contents(image, SEG).unwrap()).collect();
    assert!(first.iter().any(|b| b.len() > 16384), "garbage beyond the end");
    assert!(first.iter().all(|b| b[..8192] == [1; 8192]), "synced bytes never change");
}

#[test]
fn a_publication_under_way_is_there_or_not() {
    let store = two_commits(5);
    let point = store.position() - 1;
    let newest: HashSet<_> = store
        .crash_points(point..=point, 50)
        .map(|image| image.store.uberblocks().unwrap().last().map(|u| u.txg))
        .collect();
    assert_eq!(newest, HashSet::from([Some(1), Some(2)]));
}

#[test]
fn a_publication_without_sync_is_found_out() {
    let store = FaultStore::new(9);
    store.create_segment(SEG).unwrap();
    store.append(SEG, 0, &[1; 4096]).unwrap();
    store.publish(1, b"too early").unwrap();
    let dangling = store
        .crash_images(8)
        .any(|image| !image.uberblocks().unwrap().is_empty() && contents(&image, SEG) != Some(vec![1; 4096]));
    assert!(dangling);
}

#[test]
fn truncations_and_deletions_may_be_lost() {
    let store = FaultStore::new(11);
    for id in [SEG, SegmentId(2)] {
        store.create_segment(id).unwrap();
        store.append(id, 0, &[1; 8192]).unwrap();
    }
    store.sync().unwrap();
    store.restart();
    store.reopen_segment(SEG, 4096).unwrap();
    store.delete_segment(SegmentId(2)).unwrap();
    let end = store.position();
    let found: HashSet<_> = store
        .crash_points(end.., 100)
        .map(|i| (contents(&i.store, SEG).unwrap().len(), contents(&i.store, SegmentId(2)).is_some()))
        .collect();
    assert_eq!(found, HashSet::from([(4096, false), (4096, true), (8192, false), (8192, true)]));
}

#[test]
fn the_same_seed_gives_the_same_images() {
    let all = |seed| -> Vec<_> {
        two_commits(seed).crash_images(6).map(|i| (contents(&i, SEG), contents(&i, SegmentId(2)))).collect()
    };
    assert_eq!(all(1), all(1));
    assert_ne!(all(1), all(2));
    let store = two_commits(1);
    assert_eq!(all(1).len(), (store.position() + 1) * 6);
    assert_eq!(store.crash_points(3..5, 6).count(), 12);
    assert_eq!(store.crash_points(5..5, 6).count(), 0);
    assert_eq!(store.crash_points(.., 0).count(), 0);
}

#[test]
fn a_failed_append_changes_nothing_that_counts() {
    let store = FaultStore::new(1);
    store.create_segment(SEG).unwrap();
    for (kind, n) in [(FaultKind::Write, 0), (FaultKind::NoSpace, 1)] {
        store.fail_after(n, kind);
    }
    let first = store.append(SEG, 0, &[1; 4096]).unwrap_err();
    assert!(matches!(first, StoreError::Io { .. }), "{first:?}");
    let second = store.append(SEG, 0, &[1; 4096]).unwrap_err();
    assert!(matches!(second, StoreError::Full { .. }), "{second:?}");
    assert!(!store.fault_pending());
    store.append(SEG, 0, &[1; 4096]).unwrap();
    store.sync().unwrap();
    for image in store.crash_points(store.position().., 20) {
        assert_eq!(contents(&image.store, SEG), Some(vec![1; 4096]));
    }
}

#[test]
fn a_failed_sync_poisons() {
    for kind in [FaultKind::Write, FaultKind::NoSpace] {
        let store = two_commits(1);
        store.append(SEG, 16384, &[9; 4096]).unwrap();
        store.fail_after(0, kind);
        assert!(matches!(store.sync(), Err(StoreError::Io { .. })));
        assert!(matches!(store.sync(), Err(StoreError::Poisoned { .. })));
        assert!(matches!(store.append(SEG, 20480, b"x"), Err(StoreError::Poisoned { .. })));
        assert!(matches!(store.publish(3, b"x"), Err(StoreError::Poisoned { .. })));
        store.read(SEG, 0, &mut [0; 100]).unwrap();
        let lost = store
            .crash_points(store.position().., 20)
            .any(|i| contents(&i.store, SEG).unwrap().len() < 20480);
        assert!(lost, "a failed sync promises nothing");
        store.restart();
        store.sync().unwrap();
    }
}

#[test]
fn a_failed_publication_may_have_happened() {
    let store = two_commits(1);
    store.fail_after(0, FaultKind::Write);
    assert!(matches!(store.publish(3, b"three"), Err(StoreError::Io { .. })));
    let newest: HashSet<_> = store
        .crash_points(store.position().., 50)
        .map(|image| (image.published, image.store.uberblocks().unwrap().last().map(|u| u.txg)))
        .collect();
    assert_eq!(newest, HashSet::from([(Some(2), Some(2)), (Some(2), Some(3))]));
}

#[test]
fn reads_fail_and_bytes_rot() {
    let store = two_commits(1);
    store.fail_after(1, FaultKind::Read);
    let mut buf = [0; 2];
    store.read(SEG, 100, &mut buf).unwrap();
    assert!(matches!(store.read(SEG, 100, &mut buf), Err(StoreError::Io { op: "read", .. })));
    store.corrupt(SEG, 101, 0x80).unwrap();
    store.read(SEG, 100, &mut buf).unwrap();
    assert_eq!(buf, [1, 0x81]);
    assert!(matches!(store.corrupt(SEG, 1 << 20, 1), Err(StoreError::OutOfRange { .. })));
    for image in store.crash_points(store.position().., 5) {
        assert_eq!(contents(&image.store, SEG).unwrap()[100..102], [1, 0x81]);
    }
}

#[test]
fn an_image_can_be_gone_on_from() {
    let image = two_commits(1).crash_points(4..=4, 1).next().unwrap();
    let store = FaultStore::over(2, &image.store);
    assert_eq!(store.uberblocks().unwrap().last().unwrap().txg, 1);
    store.reopen_segment(SEG, 8192).unwrap();
    store.append(SEG, 8192, &[7; 4096]).unwrap();
    store.sync().unwrap();
    let whole = [vec![1; 8192], vec![7; 4096]].concat();
    for image in store.crash_points(store.position().., 10) {
        assert_eq!(contents(&image.store, SEG), Some(whole.clone()));
        assert_eq!(image.published, Some(1));
    }
}
