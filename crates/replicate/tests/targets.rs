//! Targets and sources that a sync cannot use: the message tells what happened and which command helps.
//!
//! Without force nothing is destroyed. With force only what is newer than the common snapshot is destroyed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Cut, How, MIB, Outcome, Random, TestPool, name, options, sync};
use snowmelt_dataset::receive::{Observer, ReceiveOptions};
use snowmelt_dataset::{DatasetError, DestroyPlan, RollbackOptions};
use snowmelt_pool::PoolOptions;
use snowmelt_replicate::FailureKind;
use snowmelt_replicate::plan::Options;
use snowmelt_store::MemoryStore;
use snowmelt_volume::Volume;

/// Two pools. The second has a copy of a volume of the first.
struct Pair {
    source: TestPool,
    target: TestPool,
    random: Random,
}

impl Pair {
    fn new() -> Self {
        Self::onto(TestPool::new("back"))
    }

    fn onto(target: TestPool) -> Self {
        let mut pair = Self { source: TestPool::new("tank"), target, random: Random(3) };
        pair.source.volume("tank/vol", 16 * MIB);
        pair.write_and_snapshot(MIB, "1");
        pair.done(&pair.sync(false));
        pair
    }

    fn write_and_snapshot(&mut self, len: u64, snapshot: &str) {
        self.source.write("tank/vol", 0, len, &mut self.random);
        self.source.snapshot(&format!("tank/vol@{snapshot}"));
    }

    fn how(force: bool) -> How {
        How { options: Options { force, large_blocks: true, ..Options::default() }, ..How::default() }
    }

    fn sync(&self, force: bool) -> Outcome {
        self.sync_as(&Self::how(force))
    }

    fn sync_as(&self, how: &How) -> Outcome {
        let never = Cut::never();
        sync((&self.source, "tank/vol", &never), (&self.target, "back/vol", &never), how)
    }

    /// Checks that the target has every snapshot of the source.
    fn done(&self, outcome: &Outcome) {
        assert!(outcome.is_done(), "{:?}", outcome.failures());
        let there = self.target.content("back/vol");
        for line in self.source.content("tank/vol") {
            assert!(there.contains(&line), "{line} is not in {there:?}");
        }
        self.target.check("a sync");
    }

    /// Checks that the sync fails with this error, and that the target is unchanged.
    fn refuses(&self, force: bool, kind: FailureKind, parts: &[&str]) {
        let before = self.target.content("back/vol");
        refused(&self.sync(force), kind, parts);
        assert_eq!(self.target.content("back/vol"), before);
        self.target.check("a sync that was refused");
    }

    fn write_to_target(&self) {
        Volume::open(&self.target.datasets, "back/vol").unwrap().write(0, b"mine").unwrap();
        self.target.datasets.pool().commit().unwrap();
    }
}

fn refused(outcome: &Outcome, kind: FailureKind, parts: &[&str]) {
    let failures = outcome.failures();
    let [failure] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!(failure.kind, kind, "{failure}");
    for part in parts {
        assert!(failure.message.contains(part), "{part}: {failure}");
    }
}

fn destroy(pool: &TestPool, snapshot: &str) {
    let catalog = pool.datasets.catalog();
    let snapshot = catalog.snapshot(&name(snapshot)).unwrap();
    pool.datasets.destroy(&DestroyPlan::snapshots(&catalog, vec![snapshot], false).unwrap()).unwrap();
}

fn rollback(pool: &TestPool, snapshot: &str) {
    let options = RollbackOptions { newer: true, ..RollbackOptions::default() };
    pool.datasets.rollback(&name(snapshot), options).unwrap();
}

#[test]
fn a_target_that_was_rolled_back_gets_again_what_it_lost() {
    let mut pair = Pair::new();
    pair.write_and_snapshot(MIB, "2");
    pair.done(&pair.sync(false));
    pair.target.datasets.release("snowmelt-sync", &[name("back/vol@2")]).unwrap();
    rollback(&pair.target, "back/vol@1");
    pair.write_and_snapshot(MIB, "3");
    pair.done(&pair.sync(false));
}

#[test]
fn a_source_that_was_rolled_back_is_followed_with_force() {
    let mut pair = Pair::new();
    pair.write_and_snapshot(MIB, "2");
    pair.done(&pair.sync(false));
    rollback(&pair.source, "tank/vol@1");
    pair.write_and_snapshot(MIB, "3");
    pair.refuses(false, FailureKind::Diverged, &["newer than @1", "back/vol@2", "--force", "clone or send"]);
    // A hold of an earlier sync is no obstacle, but a hold of another user is.
    pair.target.datasets.hold("mine", &[name("back/vol@2")]).unwrap();
    pair.refuses(true, FailureKind::Other, &["back/vol@2", "it is held"]);
    pair.target.datasets.release("mine", &[name("back/vol@2")]).unwrap();
    pair.done(&pair.sync(true));
    assert!(!pair.target.content("back/vol").iter().any(|line| line.starts_with("@2")));
}

#[test]
fn a_target_that_was_written_to_is_kept_unless_forced() {
    let mut pair = Pair::new();
    pair.write_to_target();
    pair.write_and_snapshot(MIB, "2");
    pair.refuses(
        false,
        FailureKind::Diverged,
        &["back/vol has been modified", "--force", "copy it elsewhere"],
    );
    let mut found = [0; 4];
    Volume::open(&pair.target.datasets, "back/vol").unwrap().read(0, &mut found).unwrap();
    assert_eq!(&found, b"mine");
    pair.done(&pair.sync(true));
}

#[test]
fn a_target_that_lost_its_base_is_never_overwritten() {
    let mut pair = Pair::new();
    pair.target.snapshot("back/vol@mine");
    pair.target.datasets.release("snowmelt-sync", &[name("back/vol@1")]).unwrap();
    destroy(&pair.target, "back/vol@1");
    pair.write_and_snapshot(MIB, "2");
    for force in [false, true] {
        pair.refuses(
            force,
            FailureKind::Other,
            &["no snapshot in common", "rename 'back/vol' or destroy it"],
        );
    }
}

/// Other data takes two MiB of the pool. Then `make_room` frees space.
fn resumes_after_no_space(pair: &mut Pair, reason: &str, make_room: impl FnOnce(&TestPool)) {
    pair.write_and_snapshot(12 * MIB, "2");
    let first = pair.sync(false);
    refused(&first, FailureKind::NoSpace, &[reason, "make room for 'back/vol'", "sync again"]);
    // A second attempt fails in the same way, costs nothing and loses nothing.
    let again = pair.sync(false);
    refused(&again, FailureKind::NoSpace, &[reason]);
    assert!(again.sent < 5 * MIB, "{} bytes for nothing", again.sent);
    pair.target.check("a sync that found no room");
    make_room(&pair.target);
    let last = pair.sync(false);
    pair.done(&last);
    assert!(last.sent < 9 * MIB, "{} bytes to resume", last.sent);
}

#[test]
fn a_full_pool_is_told_and_resumed_once_there_is_room() {
    let target = TestPool::on(MemoryStore::with_capacity(24 * MIB), "back");
    target.volume("back/other", 10 * MIB);
    target.write("back/other", 0, 9 * MIB, &mut Random(9));
    target.datasets.pool().commit().unwrap();
    let mut pair = Pair::onto(target);
    resumes_after_no_space(&mut pair, "space", |target| {
        let catalog = target.datasets.catalog();
        let other = catalog.dataset("back/other").unwrap();
        target.datasets.destroy(&DestroyPlan::dataset(&catalog, &other, true, true).unwrap()).unwrap();
    });
}

#[test]
fn a_quota_is_told_and_resumed_once_it_is_raised() {
    let mut pair = Pair::new();
    let quota = |target: &TestPool, bytes: u64| {
        let property = ("quota".to_owned(), bytes.to_string());
        target.datasets.set_properties(&name("back"), &[property]).unwrap();
    };
    quota(&pair.target, 7 * MIB);
    resumes_after_no_space(&mut pair, "quota", |target| quota(target, 0));
}

/// A stream that waits before its end until it is released.
struct Waiting<'a>(&'a [u8], &'a AtomicBool);

impl Read for Waiting<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        while self.0.is_empty() && !self.1.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.0.read(buf)
    }
}

#[test]
fn a_target_that_is_being_received_into_is_left_alone() {
    let mut pair = Pair::new();
    pair.write_and_snapshot(2 * MIB, "2");
    let (may_end, mut stream) = (AtomicBool::new(false), Vec::new());
    {
        let catalog = pair.source.datasets.catalog();
        let (from, to) = (name("tank/vol@1"), name("tank/vol@2"));
        let from = snowmelt_dataset::send::Source::Snapshot(catalog.snapshot(&from).unwrap());
        let to = catalog.snapshot(&to).unwrap();
        let flags = snowmelt_dataset::send::SendFlags::default();
        let plan = snowmelt_dataset::send::SendPlan::single(&catalog, &to, from, &flags).unwrap();
        plan.run(&mut stream, &|_| {}).unwrap();
    }
    std::thread::scope(|scope| {
        let datasets = &pair.target.datasets;
        let id = datasets.catalog().dataset("back/vol").unwrap().id;
        let (input, may_end) = (Waiting(&stream[..stream.len() / 2], &may_end), &may_end);
        scope.spawn(move || {
            let options = ReceiveOptions { resumable: true, ..ReceiveOptions::default() };
            let observer = Observer { event: &|_| {}, cancelled: &AtomicBool::new(false) };
            datasets.receive("back/vol", input, &options, &observer).unwrap_err();
        });
        while !datasets.is_receiving(id) {
            std::thread::yield_now();
        }
        let outcome = pair.sync(true);
        may_end.store(true, Ordering::SeqCst);
        refused(&outcome, FailureKind::Busy, &["a receive into 'back/vol' is running", "wait"]);
    });
    // The partial receive of another program is continued.
    pair.done(&pair.sync(false));
}

#[test]
fn readonly_keeps_writers_out_and_no_sync() {
    let mut pair = Pair::new();
    let property = ("readonly".to_owned(), "on".to_owned());
    pair.target.datasets.set_properties(&name("back/vol"), &[property]).unwrap();
    pair.write_and_snapshot(MIB, "2");
    pair.done(&pair.sync(false));
}

#[test]
fn a_pool_that_can_only_be_read_says_so() {
    let mut pair = Pair::new();
    pair.write_and_snapshot(MIB, "2");
    let store = pair.target.store.clone();
    pair.target.datasets.pool().commit().unwrap();
    drop(std::mem::replace(&mut pair.target, TestPool::new("none")));
    pair.target = TestPool::open(store, PoolOptions { read_only: true, ..options() });
    refused(&pair.sync(false), FailureKind::Other, &["read-only"]);
}

#[test]
fn a_head_that_is_open_follows_the_sync() {
    let mut pair = Pair::new();
    // Opened as by a mount or an export.
    let open = Volume::open(&pair.target.datasets, "back/vol").unwrap();
    pair.write_and_snapshot(MIB, "2");
    pair.done(&pair.sync(false));
    let mut found = [[0; 512], [0; 512]];
    open.read(4096, &mut found[0]).unwrap();
    Volume::open(&pair.source.datasets, "tank/vol@2").unwrap().read(4096, &mut found[1]).unwrap();
    assert_eq!(found[0], found[1]);
    // Its writes block the sync like the writes of others.
    open.write(0, b"mine").unwrap();
    pair.write_and_snapshot(MIB, "3");
    pair.refuses(false, FailureKind::Diverged, &["has been modified", "--force"]);
    pair.done(&pair.sync(true));
}

#[test]
fn a_source_destroyed_in_the_middle_costs_the_target_nothing() {
    let mut pair = Pair::new();
    pair.write_and_snapshot(12 * MIB, "2");
    let (datasets, once) = (pair.source.datasets.clone(), AtomicBool::new(true));
    let how = How {
        on_bytes: Arc::new(move || {
            if once.swap(false, Ordering::SeqCst) {
                let catalog = datasets.catalog();
                let doomed = catalog.dataset("tank/vol").unwrap();
                datasets.destroy(&DestroyPlan::dataset(&catalog, &doomed, true, true).unwrap()).unwrap();
                for _ in 0..8 {
                    datasets.pool().commit().unwrap();
                }
            }
        }),
        ..Pair::how(false)
    };
    let before = pair.target.content("back/vol");
    let outcome = pair.sync_as(&how);
    // Data that was read before is complete. Unreadable data does not become a snapshot.
    let after = pair.target.content("back/vol");
    assert!(after.starts_with(&before), "{after:?}");
    assert_eq!(outcome.is_done(), after.len() == before.len() + 1, "{:?}", outcome.failures());
    pair.target.check("the death of its source");
    for force in [false, true] {
        pair.refuses(force, FailureKind::Other, &["cannot open 'tank/vol'", "does not exist"]);
    }
}

#[test]
fn a_target_is_not_destroyed_in_the_middle() {
    let mut pair = Pair::new();
    pair.target.datasets.release("snowmelt-sync", &[name("back/vol@1")]).unwrap();
    pair.write_and_snapshot(12 * MIB, "2");
    let (datasets, once) = (pair.target.datasets.clone(), AtomicBool::new(true));
    let seen = Arc::new(parking_lot::Mutex::new(None));
    let said = seen.clone();
    let how = How {
        on_bytes: Arc::new(move || {
            if once.swap(false, Ordering::SeqCst) {
                let catalog = datasets.catalog();
                let doomed = catalog.dataset("back/vol").unwrap();
                while !datasets.is_receiving(doomed.id) {
                    std::thread::yield_now();
                }
                let plan = DestroyPlan::dataset(&catalog, &doomed, true, true);
                *said.lock() = Some(plan.and_then(|plan| datasets.destroy(&plan)));
            }
        }),
        ..Pair::how(false)
    };
    let outcome = pair.sync_as(&how);
    let refusal = seen.lock().take().unwrap().unwrap_err();
    assert!(matches!(refusal, DatasetError::Busy { .. }), "{refusal}");
    pair.done(&outcome);
}
