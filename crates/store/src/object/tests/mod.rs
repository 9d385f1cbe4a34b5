//! Tests of one or several machines, simulated in one process, with one bucket in memory.

mod flaky;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStoreExt;
use object_store::path::Path as Key;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::lifecycle::nonce;
use super::publication::Writer;
use super::remote::Patience;
use super::{ObjectStore, Opener};
use crate::conformance::{self, Harness};
use crate::model_tests::{call, follows_the_model, options};
use crate::{Access, CacheLocation, Result, SegmentId, SegmentInfo, Store, StoreError};
use flaky::{Fate, Flaky, Shared};

const URL: &str = "s3://bucket/tank";

fn opener(machine: u8) -> Opener {
    let host = format!("machine{machine}");
    Opener {
        writer: Writer { machine: [machine; 16], host, nonce: nonce().unwrap(), since: 1_795_290_000 },
        patience: Patience {
            total: Duration::from_secs(60),
            first_pause: Duration::from_micros(1),
            longest_pause: Duration::from_micros(20),
        },
        delete_after: Duration::from_secs(3600),
        recheck_after: Duration::from_secs(1_000_000_000),
        cache: None,
        take_over: false,
        lock: false,
    }
}

fn create(bucket: &Arc<Flaky>, machine: u8) -> Result<ObjectStore> {
    let backend = Arc::new(Shared(bucket.clone()));
    ObjectStore::create_in(backend, Key::from("tank"), Path::new(URL), &options(None), opener(machine))
}

fn open_with(bucket: &Arc<Flaky>, access: Access, opener: Opener) -> Result<ObjectStore> {
    ObjectStore::open_in(Arc::new(Shared(bucket.clone())), Key::from("tank"), Path::new(URL), access, opener)
}

fn open(bucket: &Arc<Flaky>, machine: u8) -> Result<ObjectStore> {
    open_with(bucket, Access::ReadWrite, opener(machine))
}

fn take_over(bucket: &Arc<Flaky>, machine: u8) -> ObjectStore {
    let opener = Opener { take_over: true, ..opener(machine) };
    let store = open_with(bucket, Access::ReadWrite, opener).unwrap();
    store.inner.claim().unwrap();
    store
}

fn bucket() -> Arc<Flaky> {
    Arc::new(Flaky::new(0, 0))
}

/// Creates a segment with these bytes, and commits.
fn commit(store: &ObjectStore, id: u64, txg: u64, bytes: &[u8]) {
    store.create_segment(SegmentId(id)).unwrap();
    store.append(SegmentId(id), 0, bytes).unwrap();
    store.sync().unwrap();
    store.publish(txg, format!("txg {txg}").as_bytes()).unwrap();
}

fn read(store: &ObjectStore, id: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    store.read(SegmentId(id), 0, &mut buf).unwrap();
    buf
}

fn txgs(store: &ObjectStore) -> Vec<u64> {
    store.uberblocks().unwrap().iter().map(|uberblock| uberblock.txg).collect()
}

fn names(bucket: &Arc<Flaky>, folder: &str) -> usize {
    use futures_util::TryStreamExt;
    let prefix = Key::from(format!("tank/{folder}"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let list = object_store::ObjectStore::list(&bucket.objects, Some(&prefix));
    runtime.block_on(list.try_collect::<Vec<_>>()).unwrap().len()
}

fn put(bucket: &Arc<Flaky>, name: &str, bytes: &'static str) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(bucket.objects.put(&Key::from(format!("tank/{name}")), bytes.into())).unwrap();
}

fn delete(bucket: &Arc<Flaky>, name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(bucket.objects.delete(&Key::from(format!("tank/{name}")))).unwrap();
}

struct InMemoryBucket {
    one_in: u64,
    current: Mutex<Arc<Flaky>>,
}

impl Harness for InMemoryBucket {
    fn fresh(&self) -> Box<dyn Store> {
        let bucket = Arc::new(Flaky::new(7, self.one_in));
        *self.current.lock() = bucket.clone();
        Box::new(create(&bucket, 1).unwrap())
    }

    fn reopen(&self, store: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        drop(store);
        Some(open(&self.current.lock(), 1).map(|store| Box::new(store) as Box<dyn Store>))
    }
}

#[test]
fn conforms() {
    conformance::run(&InMemoryBucket { one_in: 0, current: Mutex::new(bucket()) });
}

#[test]
fn conforms_on_a_bad_line() {
    let harness = InMemoryBucket { one_in: 4, current: Mutex::new(bucket()) };
    conformance::run(&harness);
    assert!(harness.current.lock().faults() > 0);
}

/// Does everything that a pool does to a bucket: it is created, written to, opened again, followed and taken over.
/// Returns its contents at the end.
fn life(bucket: &Arc<Flaky>) -> (Vec<SegmentInfo>, Vec<u64>, Vec<Vec<u8>>) {
    let large: Vec<u8> = (0..2u32 << 20).map(|n| (n / 999) as u8).collect();
    let store = create(bucket, 1).unwrap();
    commit(&store, 1, 1, &large);
    commit(&store, 2, 2, b"second");
    drop(store);
    let store = open(bucket, 1).unwrap();
    store.reopen_segment(SegmentId(2), 6).unwrap();
    store.append(SegmentId(2), 6, b" and more").unwrap();
    store.sync().unwrap();
    store.publish(3, b"txg 3").unwrap();
    store.delete_segment(SegmentId(1)).unwrap();
    commit(&store, 3, 4, &large);
    let reader = open_with(bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!(read(&reader, 3, large.len()), large);
    let other = take_over(bucket, 3);
    commit(&other, 4, 5, b"fourth");
    assert!(store.publish(6, b"late").is_err());
    drop((store, reader, other));
    let store = open(bucket, 3).unwrap();
    let segments = store.segments().unwrap();
    let contents = segments.iter().map(|info| read(&store, info.id.0, info.len as usize)).collect();
    (segments, txgs(&store), contents)
}

#[test]
fn one_fault_at_any_request_changes_nothing() {
    let sound = bucket();
    let wanted = life(&sound);
    assert!(sound.requests() > 20, "{}", sound.requests());
    for before in 0..sound.requests() {
        for fate in Fate::FAULTS {
            let bucket = Arc::new(Flaky::once(before, fate));
            assert!(life(&bucket) == wanted, "{fate:?} at request {before}");
            assert_eq!(bucket.faults(), 1, "{fate:?} at request {before}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn follows_the_model_on_a_bad_line(
        calls in prop::collection::vec(call(), 1..60),
        seed: u64,
        one_in in prop_oneof![Just(0u64), 2..8u64],
    ) {
        let bucket = Arc::new(Flaky::new(seed, one_in));
        let store = create(&bucket, 1).unwrap();
        let inner = Mutex::new(store.inner.clone());
        follows_the_model(&calls, Box::new(store), |store| {
            // Data that is not synced is lost, and so are deletions since the last publication.
            store.sync().unwrap();
            republish(&inner.lock());
            drop(store);
            let store = open(&bucket, 1).unwrap();
            *inner.lock() = store.inner.clone();
            Box::new(store)
        });
    }
}

/// Publishes the last uberblock again, including the deletions since then.
fn republish(inner: &super::Inner) {
    let mut published = inner.published.lock();
    let ring = published.ring.clone();
    inner.put_publication(&mut published, ring).unwrap();
}

#[test]
fn what_was_not_synced_is_lost_and_nothing_else() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    commit(&store, 1, 5, b"first");
    store.append(SegmentId(1), 5, b" and more").unwrap();
    drop(store);
    let store = open(&bucket, 1).unwrap();
    assert_eq!(store.segments().unwrap(), [SegmentInfo { id: SegmentId(1), len: 5 }]);
    assert_eq!((read(&store, 1, 5), txgs(&store)), (b"first".to_vec(), vec![5]));
}

#[test]
fn small_commits_are_one_request() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    let mut expected = Vec::new();
    store.create_segment(SegmentId(1)).unwrap();
    for txg in 1..=40 {
        let before = store.traffic().puts;
        store.append(SegmentId(1), expected.len() as u64, &[txg as u8; 4096]).unwrap();
        expected.extend_from_slice(&[txg as u8; 4096]);
        store.commit(txg, b"x").unwrap();
        // At the 33rd commit, the data is too long for a publication and goes to an object.
        assert_eq!(store.traffic().puts - before, if txg == 33 { 2 } else { 1 }, "txg {txg}");
        assert_eq!(read(&store, 1, expected.len()), expected);
        assert_eq!(names(&bucket, "segments"), usize::from(txg >= 33));
    }
    drop(store);
    // The next owner continues to carry the data, and cuts it.
    let store = open(&bucket, 1).unwrap();
    store.publish(50, b"claim").unwrap();
    assert_eq!(read(&store, 1, expected.len()), expected);
    store.reopen_segment(SegmentId(1), 36 * 4096).unwrap();
    store.append(SegmentId(1), 36 * 4096, b"new").unwrap();
    expected.truncate(36 * 4096);
    expected.extend_from_slice(b"new");
    store.commit(51, b"x").unwrap();
    assert_eq!(names(&bucket, "segments"), 1);
    let reader = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!(read(&reader, 1, expected.len()), expected);
    store.append(SegmentId(1), expected.len() as u64, &[9; 1 << 20]).unwrap();
    expected.extend_from_slice(&[9; 1 << 20]);
    store.commit(52, b"x").unwrap();
    assert_eq!(names(&bucket, "segments"), 2);
    let reader = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!(read(&reader, 1, expected.len()), expected);
    assert_eq!(reader.inner.state.lock().kept(), []);
}

#[test]
fn more_deletions_than_a_publication_holds() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    for id in 0..1100 {
        store.create_segment(SegmentId(id)).unwrap();
    }
    store.sync().unwrap();
    store.publish(1, b"x").unwrap();
    for id in 0..1100 {
        store.delete_segment(SegmentId(id)).unwrap();
    }
    store.publish(2, b"x").unwrap();
    store.inner.wait_for_chores();
    assert_eq!(names(&bucket, "segments"), 1024);
    drop(store);
    assert_eq!(open(&bucket, 1).unwrap().segments().unwrap(), []);
}

#[test]
fn another_machine_reads_but_does_not_write_unasked() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    commit(&store, 1, 5, b"first");
    let error = open(&bucket, 2).unwrap_err();
    assert!(matches!(&error, StoreError::Elsewhere { owner, .. } if owner.host == "machine1"), "{error}");
    assert!(error.to_string().contains("import -f"), "{error}");
    let reader = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!((read(&reader, 1, 5), txgs(&reader)), (b"first".to_vec(), vec![5]));
    assert!(matches!(reader.sync(), Err(StoreError::ReadOnly { .. })));
    // The owner is not affected.
    commit(&store, 2, 6, b"second");
}

#[test]
fn whoever_is_taken_over_stops_and_says_by_whom() {
    let bucket = bucket();
    let first = create(&bucket, 1).unwrap();
    commit(&first, 1, 5, b"first");
    let second = take_over(&bucket, 2);
    first.create_segment(SegmentId(2)).unwrap();
    first.append(SegmentId(2), 0, b"lost").unwrap();
    first.sync().unwrap();
    let error = first.publish(6, b"lost").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("taken over by machine2") && text.contains("since 2026-11-21 19:40:00 UTC"),
        "{text}"
    );
    for result in [first.publish(7, b"x"), first.sync(), first.create_segment(SegmentId(9)), first.destroy()]
    {
        assert!(matches!(result, Err(StoreError::Fenced { .. })), "{result:?}");
    }
    commit(&second, 70, 8, b"second");
    let reader = open_with(&bucket, Access::ReadOnly, opener(3)).unwrap();
    assert_eq!(txgs(&reader), [5, 8]);
}

#[test]
fn a_publication_that_hangs_while_another_machine_takes_over_never_happened() {
    let bucket = bucket();
    let first = create(&bucket, 1).unwrap();
    commit(&first, 1, 5, b"first");
    bucket.hold("uberblocks");
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| first.publish(6, b"hangs"));
        bucket.wait_until_held();
        let second = take_over(&bucket, 2);
        bucket.release();
        let error = hanging.join().unwrap().unwrap_err();
        assert!(matches!(&error, StoreError::Fenced { by, .. } if by.host == "machine2"), "{error}");
        second.publish(8, b"second").unwrap();
        assert_eq!(txgs(&open(&bucket, 2).unwrap()), [5, 8]);
    });
}

#[test]
fn a_part_that_comes_late_changes_nothing_for_the_owner_after() {
    let bucket = bucket();
    let first = create(&bucket, 1).unwrap();
    commit(&first, 1, 5, &[1; 4096]);
    first.append(SegmentId(1), 4096, &[2; 8192]).unwrap();
    bucket.hold("segments");
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| first.sync());
        bucket.wait_until_held();
        let second = take_over(&bucket, 2);
        second.reopen_segment(SegmentId(1), 4096).unwrap();
        second.append(SegmentId(1), 4096, &[3; 100]).unwrap();
        bucket.release();
        hanging.join().unwrap().unwrap();
        second.sync().unwrap();
        second.publish(9, b"second").unwrap();
        assert!(matches!(first.publish(6, b"first"), Err(StoreError::Fenced { .. })));
    });
    let reader = open_with(&bucket, Access::ReadOnly, opener(3)).unwrap();
    assert_eq!(reader.segments().unwrap(), [SegmentInfo { id: SegmentId(1), len: 4196 }]);
    assert_eq!(read(&reader, 1, 4196), [vec![1; 4096], vec![3; 100]].concat());
}

#[test]
fn of_two_that_opened_it_one_becomes_the_owner() {
    for _ in 0..20 {
        let bucket = bucket();
        commit(&create(&bucket, 1).unwrap(), 1, 5, b"first");
        let stores = [open(&bucket, 1).unwrap(), open(&bucket, 1).unwrap()];
        let outcomes = std::thread::scope(|scope| {
            let racers = stores.each_ref().map(|store| scope.spawn(|| store.publish(6, b"claim")));
            racers.map(|racer| racer.join().unwrap())
        });
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(won, 1, "{outcomes:?}");
        assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(StoreError::Fenced { .. }))));
    }
}

#[test]
fn an_owner_that_slept_looks_before_it_believes_itself() {
    let bucket = bucket();
    let sleeper = Opener { recheck_after: Duration::ZERO, ..opener(1) };
    commit(&create(&bucket, 1).unwrap(), 1, 5, b"first");
    let first = open_with(&bucket, Access::ReadWrite, sleeper).unwrap();
    first.publish(6, b"awake").unwrap();
    let second = take_over(&bucket, 2);
    second.publish(8, b"second").unwrap();
    // The owner slept so long that the object that would have stopped it is deleted.
    delete(&bucket, "uberblocks/0000000000000004");
    let error = first.publish(7, b"lost").unwrap_err();
    assert!(matches!(&error, StoreError::Fenced { by, .. } if by.host == "machine2"), "{error}");
}

#[test]
fn a_store_that_ignores_conditions_gets_no_pool() {
    let careless = Arc::new(Flaky::careless());
    let error = create(&careless, 1).unwrap_err().to_string();
    assert!(error.contains("two machines could write"), "{error}");
    assert_eq!(names(&careless, ""), 0);
}

#[test]
fn nothing_is_made_where_something_is() {
    let bucket = bucket();
    drop(create(&bucket, 1).unwrap());
    let error = create(&bucket, 1).unwrap_err();
    assert!(matches!(&error, StoreError::Foreign { what, .. } if what.contains("tank")), "{error}");
    let missing = open_with(&Arc::new(Flaky::new(0, 0)), Access::ReadOnly, opener(1)).unwrap_err();
    assert!(matches!(missing, StoreError::NotAPool { .. }), "{missing}");
}

#[test]
fn a_damaged_publication_costs_one_txg() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    commit(&store, 1, 5, b"first");
    store.publish(6, b"second").unwrap();
    drop(store);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let newest = Key::from("tank/uberblocks/0000000000000003");
    runtime.block_on(bucket.objects.put(&newest, "garbage".into())).unwrap();
    let store = open(&bucket, 1).unwrap();
    assert_eq!(txgs(&store), [5]);
    store.publish(7, b"third").unwrap();
    assert_eq!(txgs(&open(&bucket, 1).unwrap()), [5, 7]);
}

#[test]
fn deleted_segments_stay_for_readers_and_then_go() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    commit(&store, 1, 5, b"first");
    commit(&store, 2, 6, b"second");
    let reader = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!(reader.segments().unwrap().len(), 2);
    store.delete_segment(SegmentId(1)).unwrap();
    store.publish(7, b"deleted").unwrap();
    store.inner.wait_for_chores();
    assert_eq!(read(&reader, 1, 5), b"first");
    drop(store);
    // The next owner does not list the segment, but remembers it and deletes its objects later.
    let store =
        open_with(&bucket, Access::ReadWrite, Opener { delete_after: Duration::ZERO, ..opener(1) }).unwrap();
    assert_eq!(store.segments().unwrap(), [SegmentInfo { id: SegmentId(2), len: 6 }]);
    store.publish(8, b"due").unwrap();
    store.inner.wait_for_chores();
    assert_eq!(names(&bucket, "segments"), 1);
    let error = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap().read(SegmentId(1), 0, &mut [0; 5]);
    assert!(matches!(error, Err(StoreError::NoSegment { .. })));
}

#[test]
fn all_that_is_the_pools_goes_with_it_and_nothing_else() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    commit(&store, 1, 5, &[1; 1 << 20]);
    put(&bucket, "probe-00000000000000000000000000000007", "came back");
    put(&bucket, "notes/probe-1", "somebody's");
    put(&bucket, "notes.txt", "somebody's");
    store.destroy().unwrap();
    assert_eq!((names(&bucket, ""), names(&bucket, "notes")), (2, 1));
}

#[test]
fn a_reader_that_comes_too_late_is_told() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    commit(&store, 1, 5, b"first");
    let reader = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!(reader.segments().unwrap().len(), 1);
    store.destroy().unwrap();
    let error = reader.read(SegmentId(1), 0, &mut [0; 5]).unwrap_err();
    assert!(matches!(error, StoreError::NoSegment { .. } | StoreError::Gone { .. }), "{error}");
}

#[test]
fn old_publications_go() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    for txg in 0..100 {
        store.publish(txg, b"x").unwrap();
    }
    store.inner.wait_for_chores();
    // The first publication, and the last ones of the owner.
    assert_eq!(names(&bucket, "uberblocks"), 1 + 8);
    assert_eq!(txgs(&open(&bucket, 1).unwrap()), (100 - 32..100).collect::<Vec<_>>());
}

#[test]
fn requests_are_few() {
    let bucket = bucket();
    let store = create(&bucket, 1).unwrap();
    let before = store.traffic();
    for id in [1, 2] {
        store.create_segment(SegmentId(id)).unwrap();
        for offset in 0..64 {
            store.append(SegmentId(id), offset << 16, &[id as u8; 1 << 16]).unwrap();
        }
    }
    store.sync_early().unwrap();
    store.sync().unwrap();
    store.publish(5, b"x").unwrap();
    let after = store.traffic();
    // A first publication, because there was none before; the parts; the publication.
    assert_eq!((after.puts - before.puts, after.gets - before.gets), (4, 0));
    let reader = open_with(&bucket, Access::ReadOnly, opener(2)).unwrap();
    assert_eq!((reader.traffic().gets, reader.traffic().lists), (2, 1));
    let mut buf = vec![0; 1 << 16];
    for offset in 0..64 {
        reader.read(SegmentId(1), offset << 16, &mut buf).unwrap();
        assert!(buf.iter().all(|&byte| byte == 1));
    }
    // 4 MiB in sequence: runs of 1, 2, 4, 8 and 1 windows.
    assert_eq!(reader.traffic().gets, 2 + 5);
    assert_eq!(reader.traffic().lists, 2);
}

#[test]
fn what_is_in_the_cache_costs_no_request() {
    let (bucket, directory) = (bucket(), tempfile::tempdir().unwrap());
    let cached = |machine| {
        let cache = Some(CacheLocation { directory: directory.path().to_owned(), max_bytes: 64 << 20 });
        open_with(&bucket, Access::ReadOnly, Opener { cache, ..opener(machine) }).unwrap()
    };
    let store = create(&bucket, 1).unwrap();
    let bytes: Vec<u8> = (0..3u32 << 20).map(|n| (n / 1000) as u8).collect();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, &bytes).unwrap();
    store.sync().unwrap();
    store.publish(1, b"x").unwrap();
    let cold = cached(2);
    assert_eq!(read(&cold, 1, bytes.len()), bytes);
    assert!(cold.traffic().gets > 2);
    drop(cold);
    let warm = cached(2);
    assert_eq!(read(&warm, 1, bytes.len()), bytes);
    // Label and publication.
    assert_eq!(warm.traffic().gets, 2);
    drop(warm);
    // A damaged file only costs a request.
    let files = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    for entry in std::fs::read_dir(files).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(byte) = bytes.last_mut() {
            *byte ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let damaged = cached(2);
    assert_eq!(read(&damaged, 1, bytes.len()), bytes);
    assert!(damaged.traffic().gets > 2);
}
