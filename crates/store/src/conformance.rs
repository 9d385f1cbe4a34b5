//! Tests of the contract of [`Store`], which every implementation must pass. A violation panics.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Result, SegmentId, SegmentInfo, Store, StoreError, UBERBLOCK_RING};

/// Makes the stores that are tested.
pub trait Harness {
    /// Returns a new, empty store that is independent of earlier ones. If its size is limited, then to at most 256
    /// MiB.
    fn fresh(&self) -> Box<dyn Store>;

    /// Closes the store and opens it again, as a new process would. `None` for a store that cannot outlive its
    /// process.
    fn reopen(&self, store: Box<dyn Store>) -> Option<Result<Box<dyn Store>>>;
}

/// Runs all checks.
///
/// # Panics
/// When the store violates the contract of [`Store`].
pub fn run(harness: &dyn Harness) {
    appends_are_read_back(harness);
    long_runs_are_appended_in_any_way(harness);
    appends_only_at_the_end(harness);
    reads_stay_inside(harness);
    names_are_checked(harness);
    reopening_cuts_and_goes_on(harness);
    sealing_ends_appends(harness);
    deletion_gives_back(harness);
    listings_are_sorted(harness);
    contents_survive_reopening(harness);
    uberblocks_are_kept(harness);
    uberblock_limits(harness);
    rewriting_changes_only_what_it_names(harness);
    segments_are_bounded(harness);
    full_is_no_catastrophe(harness);
    threads_do_not_disturb_each_other(harness);
    destroyed_pools_are_gone(harness);
}

/// Returns bytes that depend on their segment and offset, so that misplaced bytes are detected.
fn pattern(id: u64, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((offset + i).wrapping_mul(0x9e37_79b9).rotate_right(13) ^ (id * 131)) as u8)
        .collect()
}

fn append(store: &dyn Store, id: u64, offset: u64, len: usize) {
    store.append(SegmentId(id), offset, &pattern(id, offset, len)).unwrap();
}

#[track_caller]
fn check(store: &dyn Store, id: u64, offset: u64, len: usize) {
    let mut buf = vec![0xa5; len];
    store.read(SegmentId(id), offset, &mut buf).unwrap();
    assert!(buf == pattern(id, offset, len), "segment {id} at {offset}: other bytes than were written");
}

fn reopen(harness: &dyn Harness, store: Box<dyn Store>) -> Option<Box<dyn Store>> {
    harness.reopen(store).map(Result::unwrap)
}

fn appends_are_read_back(harness: &dyn Harness) {
    let store = harness.fresh();
    store.create_segment(SegmentId(7)).unwrap();
    let mut end = 0;
    for len in [4096, 0, 1, 511, 3584, 100_000, 13] {
        append(&*store, 7, end, len);
        // The bytes can be read at once, without a sync.
        check(&*store, 7, end, len);
        end += len as u64;
    }
    let whole = pattern(7, end, 4105);
    let pieces = [&whole[..10], &[], &whole[10..4100], &whole[4100..]].map(IoSlice::new);
    store.append_all(SegmentId(7), end, &pieces).unwrap();
    check(&*store, 7, end, whole.len());
    end += whole.len() as u64;
    assert!(matches!(store.append_all(SegmentId(7), 3, &pieces), Err(StoreError::NotAtEnd { .. })));
    store.start_writeback(SegmentId(7), 0, end);
    store.sync().unwrap();
    check(&*store, 7, 0, end as usize);
    check(&*store, 7, 4095, 3);
    append(&*store, 7, end, 10);
    check(&*store, 7, end - 5, 15);
}

/// A store may write all or part of a long run in another way than short runs.
fn long_runs_are_appended_in_any_way(harness: &dyn Harness) {
    let mut store = harness.fresh();
    store.create_segment(SegmentId(3)).unwrap();
    let mut end = 0;
    for len in [1 << 20, (512 << 10) + 4096, 300_001, 300_000, 95, (1 << 20) + 4095, 4096] {
        let whole = pattern(3, end, len);
        let mut rest = &whole[..];
        let mut pieces = Vec::new();
        for len in [96, 131_072, 0, 7].into_iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(len));
            pieces.push(IoSlice::new(piece));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        store.append_all(SegmentId(3), end, &pieces).unwrap();
        end += len as u64;
        check(&*store, 3, 0, end as usize);
        // Pad and sync now and then, as a commit does.
        if len % 2 == 1 {
            let padded = end.next_multiple_of(4096);
            append(&*store, 3, end, (padded - end) as usize);
            end = padded;
            store.sync().unwrap();
        }
    }
    store.sync().unwrap();
    let Some(reopened) = reopen(harness, store) else { return };
    store = reopened;
    check(&*store, 3, 0, end as usize);
    store.reopen_segment(SegmentId(3), 1_000_000).unwrap();
    append(&*store, 3, 1_000_000, 12_288 - 1_000_000 % 4096);
    let end = 1_000_000 / 4096 * 4096 + 12_288;
    append(&*store, 3, end, 1 << 20);
    check(&*store, 3, 0, end as usize + (1 << 20));
}

fn appends_only_at_the_end(harness: &dyn Harness) {
    let store = harness.fresh();
    store.create_segment(SegmentId(1)).unwrap();
    append(&*store, 1, 0, 100);
    for offset in [0, 99, 101, u64::MAX] {
        let error = store.append(SegmentId(1), offset, b"x").unwrap_err();
        assert!(matches!(error, StoreError::NotAtEnd { end: Some(100), .. }), "at {offset}: {error:?}");
    }
    let error = store.append(SegmentId(2), 0, b"x").unwrap_err();
    assert!(
        matches!(error, StoreError::NotAtEnd { end: None, .. } | StoreError::NoSegment { .. }),
        "{error:?}"
    );
    append(&*store, 1, 100, 1);
    check(&*store, 1, 0, 101);
}

fn reads_stay_inside(harness: &dyn Harness) {
    let store = harness.fresh();
    store.create_segment(SegmentId(1)).unwrap();
    append(&*store, 1, 0, 5000);
    for sealed in [false, true] {
        if sealed {
            store.seal_segment(SegmentId(1)).unwrap();
        }
        store.read(SegmentId(1), 5000, &mut []).unwrap();
        for (offset, len) in [(5000, 1), (0, 5001), (4999, 2), (1 << 40, 1), (u64::MAX, 1), (u64::MAX - 1, 4)]
        {
            let error = store.read(SegmentId(1), offset, &mut vec![0; len]).unwrap_err();
            assert!(
                matches!(error, StoreError::OutOfRange { segment: SegmentId(1), end: 5000, .. }),
                "sealed {sealed}, {len} at {offset}: {error:?}"
            );
        }
    }
}

fn names_are_checked(harness: &dyn Harness) {
    let store = harness.fresh();
    let id = SegmentId(u64::MAX);
    store.create_segment(id).unwrap();
    store.append(id, 0, b"abc").unwrap();
    assert!(matches!(store.create_segment(id), Err(StoreError::Exists { id: there }) if there == id));
    let mut buf = [0; 3];
    store.read(id, 0, &mut buf).unwrap();
    assert_eq!(&buf, b"abc");
    let absent = SegmentId(5);
    assert!(matches!(store.read(absent, 0, &mut buf), Err(StoreError::NoSegment { .. })));
    assert!(matches!(store.reopen_segment(absent, 0), Err(StoreError::NoSegment { .. })));
    store.seal_segment(absent).unwrap();
    store.delete_segment(absent).unwrap();
}

fn reopening_cuts_and_goes_on(harness: &dyn Harness) {
    let store = harness.fresh();
    store.create_segment(SegmentId(3)).unwrap();
    append(&*store, 3, 0, 12288);
    store.sync().unwrap();
    store.seal_segment(SegmentId(3)).unwrap();
    let store = match harness.reopen(store) {
        Some(store) => store.unwrap(),
        None => return,
    };
    let too_long = store.segments().unwrap()[0].len + 1;
    let error = store.reopen_segment(SegmentId(3), too_long).unwrap_err();
    assert!(matches!(error, StoreError::OutOfRange { .. }), "{error:?}");
    store.reopen_segment(SegmentId(3), 8192).unwrap();
    assert_eq!(store.segments().unwrap(), [SegmentInfo { id: SegmentId(3), len: 8192 }]);
    assert!(matches!(store.read(SegmentId(3), 8192, &mut [0]), Err(StoreError::OutOfRange { .. })));
    store.append(SegmentId(3), 8192, b"new").unwrap();
    store.sync().unwrap();
    store.seal_segment(SegmentId(3)).unwrap();
    store.sync().unwrap();
    let store = reopen(harness, store).unwrap();
    assert_eq!(store.segments().unwrap(), [SegmentInfo { id: SegmentId(3), len: 8195 }]);
    check(&*store, 3, 0, 8192);
    let mut buf = [0; 3];
    store.read(SegmentId(3), 8192, &mut buf).unwrap();
    assert_eq!(&buf, b"new");
}

fn sealing_ends_appends(harness: &dyn Harness) {
    let store = harness.fresh();
    store.create_segment(SegmentId(1)).unwrap();
    append(&*store, 1, 0, 10);
    store.seal_segment(SegmentId(1)).unwrap();
    store.seal_segment(SegmentId(1)).unwrap();
    assert!(matches!(store.append(SegmentId(1), 10, b"x"), Err(StoreError::NotAtEnd { end: None, .. })));
    check(&*store, 1, 0, 10);
    store.sync().unwrap();
    store.reopen_segment(SegmentId(1), 10).unwrap();
    append(&*store, 1, 10, 5);
    check(&*store, 1, 0, 15);
}

fn deletion_gives_back(harness: &dyn Harness) {
    let store = harness.fresh();
    for id in 1..=3 {
        store.create_segment(SegmentId(id)).unwrap();
        append(&*store, id, 0, 8192);
    }
    store.seal_segment(SegmentId(3)).unwrap();
    let before = store.capacity().unwrap();
    // One segment is open and dirty. The other one is sealed and was read before.
    check(&*store, 3, 0, 8192);
    for id in [2, 3] {
        store.delete_segment(SegmentId(id)).unwrap();
        store.delete_segment(SegmentId(id)).unwrap();
        assert!(matches!(store.read(SegmentId(id), 0, &mut [0]), Err(StoreError::NoSegment { .. })));
    }
    if before.total.is_some() {
        assert!(store.capacity().unwrap().free >= before.free + 2 * 8192);
    }
    store.sync().unwrap();
    check(&*store, 1, 0, 8192);
    // After a crash, an id may be used again. The new segment must not show bytes of the old one.
    store.create_segment(SegmentId(2)).unwrap();
    assert!(matches!(store.read(SegmentId(2), 0, &mut [0]), Err(StoreError::OutOfRange { end: 0, .. })));
    append(&*store, 2, 0, 10);
    check(&*store, 2, 0, 10);
}

fn listings_are_sorted(harness: &dyn Harness) {
    let store = harness.fresh();
    assert_eq!(store.segments().unwrap(), []);
    let ids = [9, 0x1_0000, 256, 1, 255, 0x0123_4567_89ab_cdef];
    for (len, id) in ids.into_iter().enumerate() {
        store.create_segment(SegmentId(id)).unwrap();
        append(&*store, id, 0, len);
        if len % 2 == 0 {
            store.seal_segment(SegmentId(id)).unwrap();
        }
    }
    let mut expected: Vec<_> =
        ids.into_iter().zip(0..).map(|(id, len)| SegmentInfo { id: SegmentId(id), len }).collect();
    expected.sort_unstable();
    assert_eq!(store.segments().unwrap(), expected);
}

fn contents_survive_reopening(harness: &dyn Harness) {
    let mut store = harness.fresh();
    let mut lens = Vec::new();
    for id in 0..5 {
        store.create_segment(SegmentId(id)).unwrap();
        append(&*store, id, 0, 5000);
        store.sync().unwrap();
        append(&*store, id, 5000, 1000 * id as usize);
        store.seal_segment(SegmentId(id)).unwrap();
        lens.push(SegmentInfo { id: SegmentId(id), len: 5000 + 1000 * id });
        store.sync().unwrap();
        store.publish(id, &pattern(id, 0, 100)).unwrap();
        store = match harness.reopen(store) {
            Some(store) => store.unwrap(),
            None => return,
        };
        assert_eq!(store.segments().unwrap(), lens);
        for info in &lens {
            check(&*store, info.id.0, 0, info.len as usize);
        }
        let last = store.uberblocks().unwrap().pop().unwrap();
        assert_eq!((last.txg, last.bytes), (id, pattern(id, 0, 100)));
    }
}

fn uberblocks_are_kept(harness: &dyn Harness) {
    let mut store = harness.fresh();
    assert_eq!(store.uberblocks().unwrap(), []);
    // The txgs are not consecutive: a store must not compute the slot from the txg.
    for i in 0..200u64 {
        let txg = i * 64;
        store.publish(txg, &pattern(txg, 0, 700 + i as usize)).unwrap();
        let found = store.uberblocks().unwrap();
        let kept = (i as usize + 1).min(UBERBLOCK_RING);
        assert!(found.len() >= kept, "{} of {kept} uberblocks are left", found.len());
        for (back, uberblock) in found.iter().rev().enumerate() {
            let txg = (i - back as u64) * 64;
            assert_eq!(uberblock.txg, txg);
            assert_eq!(uberblock.bytes, pattern(txg, 0, 700 + i as usize - back));
        }
        if i % 37 == 0 {
            store = match harness.reopen(store) {
                Some(store) => store.unwrap(),
                None => return,
            };
            assert_eq!(store.uberblocks().unwrap(), found);
        }
    }
}

fn uberblock_limits(harness: &dyn Harness) {
    let store = harness.fresh();
    let max = store.uberblock_max();
    store.publish(1, &[]).unwrap();
    store.publish(2, &pattern(2, 0, max)).unwrap();
    let error = store.publish(3, &vec![0; max + 1]).unwrap_err();
    assert!(matches!(error, StoreError::UberblockTooLong { len } if len == max + 1), "{error:?}");
    // The last publication for a txg counts, even if the txg is not the greatest.
    store.publish(1, b"again").unwrap();
    let found: Vec<_> = store.uberblocks().unwrap().into_iter().map(|u| (u.txg, u.bytes)).collect();
    assert_eq!(found, [(2, pattern(2, 0, max)), (1, b"again".to_vec())]);
}

/// Where a store can overwrite bytes, only these bytes change, and the end of the segment stays the same.
fn rewriting_changes_only_what_it_names(harness: &dyn Harness) {
    let store = harness.fresh();
    for (id, sealed) in [(1, false), (2, true)] {
        store.create_segment(SegmentId(id)).unwrap();
        append(&*store, id, 0, 4096);
        store.append(SegmentId(id), 4096, &[0xee; 100]).unwrap();
        if sealed {
            store.seal_segment(SegmentId(id)).unwrap();
        }
        match store.rewrite(SegmentId(id), 4096, &pattern(id, 4096, 100)) {
            Err(StoreError::CannotRewrite { .. }) => return,
            other => other.unwrap(),
        }
        check(&*store, id, 0, 4196);
        for (offset, len) in [(4100, 97), (4197, 1), (u64::MAX, 1)] {
            let error = store.rewrite(SegmentId(id), offset, &vec![0; len]).unwrap_err();
            assert!(matches!(error, StoreError::OutOfRange { .. }), "{len} at {offset}: {error:?}");
        }
        check(&*store, id, 0, 4196);
    }
    assert!(matches!(store.rewrite(SegmentId(9), 0, b"x"), Err(StoreError::NoSegment { .. })));
    append(&*store, 1, 4196, 10);
    store.sync().unwrap();
    assert_eq!(store.verify_own(true).unwrap(), 0);
    let Some(store) = reopen(harness, store) else { return };
    check(&*store, 2, 0, 4196);
}

fn segments_are_bounded(harness: &dyn Harness) {
    let store = harness.fresh();
    let capacity = store.segment_capacity();
    if capacity > 64 << 20 || store.capacity().unwrap().free < capacity {
        return;
    }
    store.create_segment(SegmentId(1)).unwrap();
    store.create_segment(SegmentId(2)).unwrap();
    append(&*store, 1, 0, capacity as usize - 1);
    let error = store.append(SegmentId(1), capacity - 1, b"ab").unwrap_err();
    assert!(matches!(error, StoreError::SegmentFull { .. }), "{error:?}");
    append(&*store, 1, capacity - 1, 1);
    append(&*store, 2, 0, 1);
    check(&*store, 1, 0, capacity as usize);
    assert!(matches!(store.append(SegmentId(1), capacity, b"x"), Err(StoreError::SegmentFull { .. })));
}

fn full_is_no_catastrophe(harness: &dyn Harness) {
    let store = harness.fresh();
    let Some(total) = store.capacity().unwrap().total.filter(|&total| total <= 256 << 20) else { return };
    let len = store.segment_capacity().min(1 << 20) as usize;
    let mut ids = Vec::new();
    let error = loop {
        let id = ids.len() as u64;
        let result = store
            .create_segment(SegmentId(id))
            .and_then(|()| store.append(SegmentId(id), 0, &pattern(id, 0, len)));
        match result {
            Ok(()) => ids.push(id),
            Err(error) => break error,
        }
        assert!(ids.len() as u64 * len as u64 <= total, "more was stored than fits");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    store.sync().unwrap();
    store.publish(1, b"full").unwrap();
    store.delete_segment(SegmentId(ids.len() as u64)).unwrap();
    store.delete_segment(SegmentId(0)).unwrap();
    store.create_segment(SegmentId(1 << 32)).unwrap();
    append(&*store, 1 << 32, 0, len);
    for &id in &ids[1..] {
        check(&*store, id, 0, len);
    }
}

fn threads_do_not_disturb_each_other(harness: &dyn Harness) {
    const THREADS: u64 = 4;
    let store = harness.fresh();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|id| {
                let store = &*store;
                scope.spawn(move || {
                    store.create_segment(SegmentId(id)).unwrap();
                    for i in 0..50 {
                        append(store, id, i * 4096, 4096);
                        if i % 16 == id {
                            store.sync().unwrap();
                        }
                        check(store, id, i / 2 * 4096, 4096);
                    }
                    store.seal_segment(SegmentId(id)).unwrap();
                    store.sync().unwrap();
                })
            })
            .collect();
        let publisher = scope.spawn(|| {
            let mut txg = 0;
            // Publish at least once, even if the writers end before this thread starts.
            loop {
                store.publish(txg, &pattern(txg, 0, 64)).unwrap();
                txg += 1;
                if done.load(Ordering::Relaxed) || txg == 1000 {
                    break txg;
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(publisher.join().unwrap() > 0);
    });
    let store = match harness.reopen(store) {
        Some(store) => store.unwrap(),
        None => return,
    };
    for id in 0..THREADS {
        check(&*store, id, 0, 50 * 4096);
    }
}

fn destroyed_pools_are_gone(harness: &dyn Harness) {
    let store = harness.fresh();
    store.create_segment(SegmentId(1)).unwrap();
    append(&*store, 1, 0, 10);
    store.destroy().unwrap();
    assert!(store.append(SegmentId(1), 10, b"x").is_err());
    assert!(store.publish(1, b"x").is_err());
    assert!(store.sync().is_err());
    assert!(store.create_segment(SegmentId(2)).is_err());
    if let Some(result) = harness.reopen(store) {
        let error = result.map(|store| store.describe()).unwrap_err();
        assert!(matches!(error, StoreError::NotAPool { .. } | StoreError::Io { .. }), "{error:?}");
    }
}
