use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::conformance::{self, Harness};
use crate::model_tests::{Call, bytes, call, perform};
use crate::{
    Access, CreateOptions, FaultKind, FaultStore, FileStore, Location, MemoryStore, PoolLabel, create_mirror,
    label,
};
use crate::{MemberState, MirrorMember, ResilverStatus};

fn member(guid: u64, store: impl Store + 'static) -> MirrorMember {
    MirrorMember { guid, path: PathBuf::from(format!("/{guid}")), store: Ok(Box::new(store)) }
}

fn absent(guid: u64) -> MirrorMember {
    MirrorMember { guid, path: PathBuf::from(format!("/{guid}")), store: Err("gone".to_owned()) }
}

/// Opens a mirror like a pool that needs all existing data.
fn assemble(members: Vec<MirrorMember>) -> Result<MirrorStore> {
    let mirror = MirrorStore::assemble(members, Access::ReadWrite)?;
    mirror.set_ends(&mirror.segments()?)?;
    Ok(mirror)
}

fn of(stores: &[MemoryStore]) -> MirrorStore {
    assemble(stores.iter().zip(1..).map(|(store, guid)| member(guid, store.clone())).collect()).unwrap()
}

fn options(size: Option<u64>) -> CreateOptions {
    CreateOptions { label: PoolLabel { name: "tank".to_owned(), guid: 77 }, size, force: false }
}

struct Memory;

impl Harness for Memory {
    fn fresh(&self) -> Box<dyn Store> {
        Box::new(of(&[MemoryStore::with_capacity(16 << 20), MemoryStore::with_capacity(20 << 20)]))
    }
    fn reopen(&self, _: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        None
    }
}

#[test]
fn conforms_in_memory() {
    conformance::run(&Memory);
}

struct Real {
    dir: TempDir,
    count: std::cell::Cell<u32>,
}

impl Real {
    fn paths(&self) -> [PathBuf; 2] {
        let n = self.count.get();
        [self.dir.path().join(format!("{n}")), self.dir.path().join(format!("{n}.img"))]
    }
}

impl Harness for Real {
    fn fresh(&self) -> Box<dyn Store> {
        self.count.set(self.count.get() + 1);
        let [directory, file] = self.paths();
        let locations = [Location::Directory(directory), Location::File(file)];
        create_mirror(&locations, &options(Some(64 << 20))).unwrap()
    }
    fn reopen(&self, store: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        drop(store);
        let [directory, file] = self.paths();
        // Opened by one member and the other in turn.
        let location = if self.count.get().is_multiple_of(2) {
            Location::Directory(directory)
        } else {
            Location::File(file)
        };
        Some(crate::open(&location, Access::ReadWrite))
    }
}

#[test]
fn a_directory_and_a_file_conform_together() {
    conformance::run(&Real { dir: TempDir::new().unwrap(), count: Default::default() });
}

/// Writes `len` bytes that depend on their offset, and commits them.
fn commit(mirror: &MirrorStore, txg: u64, id: u64, offset: u64, len: usize) -> Result<()> {
    mirror.append(SegmentId(id), offset, &bytes(id + offset, len))?;
    mirror.sync()?;
    mirror.publish(txg, &txg.to_le_bytes())
}

fn newest(store: &dyn Store) -> u64 {
    store.uberblocks().unwrap().last().map_or(0, |last| last.txg)
}

fn contents(store: &dyn Store) -> Vec<(SegmentId, Vec<u8>)> {
    let read = |info: SegmentInfo| {
        let mut buf = vec![0; info.len as usize];
        store.read(info.id, 0, &mut buf).unwrap();
        (info.id, buf)
    };
    store.segments().unwrap().into_iter().map(read).collect()
}

fn resilver(mirror: &dyn Mirror) -> ResilverStatus {
    mirror.resilver(&|| 1000, &mut |_| true).unwrap()
}

fn states(mirror: &MirrorStore) -> Vec<(MemberState, bool)> {
    mirror.members().into_iter().map(|member| (member.state, member.is_stale)).collect()
}

#[test]
fn a_member_that_fails_is_left_out_and_brought_back() {
    let (a, b) = (FaultStore::new(1), FaultStore::new(2));
    let mirror = assemble(vec![member(1, a.clone()), member(2, b.clone())]).unwrap();
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 4096).unwrap();
    b.fail_after(0, FaultKind::Write);
    commit(&mirror, 2, 1, 4096, 4096).unwrap();
    assert_eq!(states(&mirror), [(MemberState::Online, false), (MemberState::Faulted, true)]);
    assert_eq!(mirror.members()[1].write_errors, 1);
    mirror.seal_segment(SegmentId(1)).unwrap();
    mirror.create_segment(SegmentId(2)).unwrap();
    commit(&mirror, 3, 2, 0, 8192).unwrap();
    b.restart();
    mirror.online(2, "/2".into(), Box::new(b.clone())).unwrap();
    commit(&mirror, 4, 2, 8192, 4096).unwrap();
    assert_eq!(states(&mirror)[1], (MemberState::Online, true));
    let status = resilver(&mirror);
    assert_eq!((status.is_due, status.ended, status.copied), (false, 1000, 4096 + 8192 + 4096));
    commit(&mirror, 5, 2, 12288, 100).unwrap();
    assert_eq!(contents(&a), contents(&b));
    assert_eq!((newest(&a), newest(&b)), (5, 5));
    // The last member that has all data is never left out.
    a.fail_after(0, FaultKind::Write);
    commit(&mirror, 6, 2, 12388, 100).unwrap();
    b.fail_after(0, FaultKind::Write);
    assert!(matches!(mirror.append(SegmentId(2), 12488, b"x"), Err(StoreError::Io { .. })));
    mirror.append(SegmentId(2), 12488, b"x").unwrap();
}

#[test]
fn a_full_member_refuses_for_all() {
    let (a, b) = (MemoryStore::new(), MemoryStore::with_capacity(10_000));
    let mirror = of(&[a.clone(), b.clone()]);
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 8192).unwrap();
    assert!(matches!(mirror.append(SegmentId(1), 8192, &[0; 4096]), Err(StoreError::Full { .. })));
    mirror.append(SegmentId(1), 8192, &[1; 1000]).unwrap();
    assert_eq!(contents(&a), contents(&b));
    assert_eq!(mirror.capacity().unwrap().free, 10_000 - 9192);
}

#[test]
fn an_older_member_never_wins_and_apart_is_refused() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mirror = of(&[a.clone(), b.clone()]);
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 4096).unwrap();
    drop(mirror);
    let (a0, b0) = (a.snapshot(), b.snapshot());
    // Only the first member can be reached.
    let mirror = assemble(vec![member(1, a0.clone()), absent(2)]).unwrap();
    mirror.reopen_segment(SegmentId(1), 4096).unwrap();
    commit(&mirror, 100, 1, 4096, 4096).unwrap();
    commit(&mirror, 2, 1, 8192, 4096).unwrap();
    assert_eq!(states(&mirror), [(MemberState::Online, false), (MemberState::Unavailable, true)]);
    drop(mirror);
    let a1 = a0.snapshot();
    // The other member comes back with its old data, and what it missed is copied at once.
    for swapped in [false, true] {
        let (a, b) = (a1.snapshot(), b0.snapshot());
        let mut members = vec![member(1, a.clone()), member(2, b.clone())];
        if swapped {
            members.reverse();
        }
        let mirror = assemble(members).unwrap();
        assert_eq!(newest(&mirror), 2);
        assert!(mirror.members().iter().all(|m| (m.state, m.is_stale) == (MemberState::Online, false)));
        assert_eq!(contents(&a), contents(&b));
        assert_eq!(contents(&a)[0].1.len(), 12288);
    }
    // A member that was written to separately does not belong to the mirror any more.
    let b1 = b0.snapshot();
    let mirror = assemble(vec![absent(1), member(2, b1.clone())]).unwrap();
    mirror.publish(3, b"other").unwrap();
    drop(mirror);
    let b1 = b1.snapshot();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let members = vec![member(1, a1.snapshot()), member(2, b1.snapshot())];
        let error = MirrorStore::assemble(members, access).unwrap_err();
        assert!(matches!(error, StoreError::SplitBrain { .. }), "{error:?}");
    }
    // It cannot be brought online either.
    let mirror = assemble(vec![member(1, a1.snapshot()), absent(2)]).unwrap();
    let error = mirror.online(2, "/2".into(), Box::new(b1.snapshot())).unwrap_err();
    assert!(matches!(error, StoreError::SplitBrain { .. }), "{error:?}");
}

#[test]
fn one_that_lacks_something_is_no_pool_by_itself() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mirror = of(&[a.clone(), b.clone()]);
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 4096).unwrap();
    mirror.offline(2).unwrap();
    assert_eq!(states(&mirror)[1], (MemberState::Offline, true));
    let error = mirror.offline(1).unwrap_err();
    assert!(matches!(&error, StoreError::Invalid { why, .. } if why == "no valid replicas"), "{error:?}");
    commit(&mirror, 2, 1, 4096, 4096).unwrap();
    mirror.online(2, "/2".into(), Box::new(b.snapshot())).unwrap();
    let b = mirror.state.read().members[1].store.as_ref().map(|store| store.segments().unwrap());
    assert_eq!(b.unwrap()[0].len, 4096);
    drop(mirror);
    // A member that has lost everything gets all data.
    let (a, b) = (a.snapshot(), MemoryStore::new());
    let mirror = of(&[a.clone(), b.clone()]);
    assert_eq!(states(&mirror), [(MemberState::Online, false); 2]);
    assert_eq!(contents(&a), contents(&b));
    // An offline member stays offline when the pool is opened again, and is not read.
    mirror.offline(2).unwrap();
    drop(mirror);
    let mirror = of(&[a.snapshot(), b.snapshot()]);
    assert_eq!(states(&mirror)[1].0, MemberState::Offline);
    assert_eq!(mirror.copies(SegmentId(1), 0), [0]);
    drop(mirror);
    // A member that lacks data cannot be opened alone.
    let mirror = of(&[a.clone(), MemoryStore::new()]);
    mirror.attach(member(3, MemoryStore::new()), None).unwrap();
    let c = mirror.state.read().members[2].store.as_ref().unwrap().uberblocks().unwrap();
    let alone = MemoryStore::new();
    alone.publish(c[0].txg, &c[0].bytes).unwrap();
    let error = assemble(vec![member(3, alone), absent(1), absent(2)]).unwrap_err();
    assert!(matches!(error, StoreError::Incomplete { .. }), "{error:?}");
}

#[test]
fn new_members_get_everything_and_replaced_ones_go() {
    let (a, b, c) = (MemoryStore::new(), MemoryStore::new(), MemoryStore::new());
    let mirror = of(&[a.clone(), b.clone()]);
    for id in 1..20 {
        mirror.create_segment(SegmentId(id)).unwrap();
        commit(&mirror, id, id, 0, 5000 * id as usize).unwrap();
        if id < 19 {
            mirror.seal_segment(SegmentId(id)).unwrap();
        }
    }
    mirror.attach(member(3, c.clone()), Some(2)).unwrap();
    assert_eq!(mirror.members()[2].replaces, Some(2));
    // First the resilver is interrupted, then it runs while the pool is written to.
    let mut pieces = 0;
    let status = mirror
        .resilver(&|| 5, &mut |_| {
            pieces += 1;
            pieces < 7
        })
        .unwrap();
    assert_eq!((status.is_due, status.ended), (true, 0));
    let mut end = 5000 * 19;
    let status = mirror
        .resilver(&|| 9, &mut |_| {
            mirror.append(SegmentId(19), end, &bytes(19 + end, 100)).unwrap();
            end += 100;
            true
        })
        .unwrap();
    assert_eq!((status.is_due, status.started, status.ended), (false, 5, 9));
    assert_eq!(mirror.members().iter().map(|m| m.guid).collect::<Vec<_>>(), [1, 3]);
    assert!(b.sync().is_err(), "the one that was replaced is wiped");
    mirror.append(SegmentId(19), end, b"more").unwrap();
    mirror.sync().unwrap();
    assert_eq!(contents(&a), contents(&c));
    drop(mirror);
    let mirror = assemble(vec![member(3, c.snapshot()), member(1, a.snapshot())]).unwrap();
    assert_eq!(newest(&mirror), 19);
}

#[test]
fn wrong_copies_are_found_and_put_right() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mirror = of(&[a.clone(), b.clone()]);
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 8192).unwrap();
    b.corrupt(SegmentId(1), 5000, 0xff).unwrap();
    let good = bytes(1, 8192);
    let mut wrong = Vec::new();
    for place in mirror.copies(SegmentId(1), 0) {
        let mut buf = vec![0; 8192];
        mirror.read_copy(place, SegmentId(1), 0, &mut buf).unwrap();
        if buf != good {
            wrong.push(place);
            mirror.note_wrong(place);
            mirror.rewrite_copy(place, SegmentId(1), 0, &good).unwrap();
        }
    }
    assert_eq!(wrong, [1]);
    assert_eq!(contents(&b)[0].1, good);
    // A resilver restores a segment that was lost completely.
    b.delete_segment(SegmentId(1)).unwrap();
    mirror.rewrite_copy(1, SegmentId(1), 0, &good[..10]).unwrap();
    assert_eq!(mirror.copies(SegmentId(1), 0), [0]);
    resilver(&mirror);
    mirror.append(SegmentId(1), 8192, b"end").unwrap();
    assert_eq!(contents(&a), contents(&b));
    mirror.settle().unwrap();
    assert_eq!(mirror.members()[1].checksum_errors, 1);
    // The counts are kept when the process ends.
    drop(mirror);
    let mirror = of(&[a.snapshot(), b.snapshot()]);
    assert_eq!(mirror.members()[1].checksum_errors, 1);
    mirror.clear_errors(None);
    assert_eq!(mirror.members()[1].checksum_errors, 0);
}

fn ids(store: &dyn Store) -> BTreeSet<SegmentId> {
    store.segments().unwrap().into_iter().map(|info| info.id).collect()
}

/// The member that returns has the only copy of a segment: the other one has lost it.
#[test]
fn what_a_returning_member_alone_has_is_deleted_only_if_the_pool_does_not_know_it() {
    for is_known in [true, false] {
        let (a, b) = (MemoryStore::new(), MemoryStore::new());
        let mirror = of(&[a.clone(), b.clone()]);
        for id in 1..3 {
            mirror.create_segment(SegmentId(id)).unwrap();
            commit(&mirror, id, id, 0, 8192).unwrap();
            mirror.seal_segment(SegmentId(id)).unwrap();
        }
        mirror.offline(2).unwrap();
        mirror.publish(3, b"without").unwrap();
        a.delete_segment(SegmentId(2)).unwrap();
        mirror.online(2, "/2".into(), Box::new(b.clone())).unwrap();
        assert_eq!(ids(&b).len(), 2);
        let known = (1..if is_known { 3 } else { 2 }).map(SegmentId).collect();
        mirror.forget_unknown(&known).unwrap();
        assert_eq!(ids(&b), known);
        assert_eq!(ids(&mirror), known);
        if is_known {
            resilver(&mirror);
            let mut read = vec![0; 8192];
            mirror.read(SegmentId(2), 0, &mut read).unwrap();
            assert_eq!(read, bytes(2, 8192));
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Call(Call),
    /// Makes the next write of a member fail.
    Fail(usize),
    Online(usize),
    Offline(usize),
    Resilver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => call().prop_map(Step::Call),
        2 => (0..3usize).prop_map(Step::Fail),
        3 => (0..3usize).prop_map(Step::Online),
        1 => (0..3usize).prop_map(Step::Offline),
        2 => Just(Step::Resilver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever fails and comes back, the mirror behaves like a single store that never fails.
    #[test]
    fn follows_the_model_while_members_come_and_go(steps in prop::collection::vec(step(), 1..80)) {
        let stores: Vec<FaultStore> = (1..4)
            .map(|seed| FaultStore::over(seed, &MemoryStore::with_segment_capacity(1 << 40)))
            .collect();
        let make = || {
            assemble(stores.iter().zip(1..).map(|(store, guid)| member(guid, store.clone())).collect())
        };
        let mut mirror = make().unwrap();
        let mut model = MemoryStore::with_segment_capacity(1 << 40);
        // Only a publication records that a member is missing, so there must be one before a restart.
        for store in [&mirror as &dyn Store, &model] {
            store.publish(1000, b"first").unwrap();
        }
        for step in &steps {
            let whole = mirror.members().iter().filter(|m| m.state == MemberState::Online && !m.is_stale).count();
            match step {
                Step::Call(Call::Restart) => {
                    for info in model.segments().unwrap() {
                        mirror.seal_segment(info.id).unwrap();
                    }
                    mirror.sync().unwrap();
                    mirror.publish(1001, b"restart").unwrap();
                    model.publish(1001, b"restart").unwrap();
                    stores.iter().for_each(|store| { store.clear_faults(); store.restart(); });
                    drop(mirror);
                    mirror = make().unwrap();
                    model = model.snapshot();
                    // The pool deletes what it does not know when it is opened.
                    let known = ids(&model);
                    for info in mirror.segments().unwrap().iter().filter(|info| !known.contains(&info.id)) {
                        mirror.delete_segment(info.id).unwrap();
                    }
                }
                Step::Call(Call::Publish(txg, len)) => {
                    // A mirror uses part of the space of an uberblock itself.
                    let call = Call::Publish(*txg, if *len > UBERBLOCK_MAX { *len } else { len / 2 });
                    prop_assert_eq!(perform(&mirror, &call), perform(&model, &call));
                }
                Step::Call(call) => prop_assert_eq!(perform(&mirror, call), perform(&model, call), "{:?}", call),
                Step::Fail(at) => {
                    let is_needed = whole < 2 || stores.iter().any(FaultStore::fault_pending);
                    if !is_needed {
                        stores[*at].fail_after(0, FaultKind::Write);
                    }
                }
                Step::Online(at) => {
                    let is_out = mirror.members()[*at].state != MemberState::Online;
                    if is_out {
                        stores[*at].clear_faults();
                        stores[*at].restart();
                        mirror.online(*at as u64 + 1, "/x".into(), Box::new(stores[*at].clone())).unwrap();
                        mirror.forget_unknown(&ids(&model)).unwrap();
                    }
                }
                Step::Offline(at) => {
                    stores.iter().for_each(FaultStore::clear_faults);
                    let is_last = whole == 1 && !mirror.members()[*at].is_stale;
                    prop_assert_eq!(mirror.offline(*at as u64 + 1).is_err(), is_last);
                }
                Step::Resilver => {
                    stores.iter().for_each(FaultStore::clear_faults);
                    resilver(&mirror);
                }
            }
            prop_assert_eq!(mirror.segments().unwrap(), model.segments().unwrap(), "after {:?}", step);
        }
        prop_assert_eq!(contents(&mirror), contents(&model));
        for (at, store) in stores.iter().enumerate() {
            store.clear_faults();
            if mirror.members()[at].state != MemberState::Online {
                store.restart();
                mirror.online(at as u64 + 1, "/x".into(), Box::new(store.clone())).unwrap();
            }
        }
        mirror.forget_unknown(&ids(&model)).unwrap();
        resilver(&mirror);
        mirror.sync().unwrap();
        for store in &stores {
            prop_assert_eq!(contents(store), contents(&model));
        }
        let strip = |store: &dyn Store| store.uberblocks().unwrap().last().cloned();
        prop_assert_eq!(strip(&mirror), strip(&model));
    }
}

/// Crashes at any moment, with different losses on each member; then each image again with one member missing.
#[test]
fn what_was_acknowledged_outlives_a_crash_of_all() {
    let mut images = 0;
    for seed in 0..12u64 {
        let stores = [FaultStore::new(seed), FaultStore::new(seed + 100)];
        let mirror = assemble(vec![member(1, stores[0].clone()), member(2, stores[1].clone())]).unwrap();
        // Possible states after a crash at this moment, and the txg that was acknowledged before it.
        let mut cuts = Vec::new();
        let mut acknowledged = 0;
        let mut end = 0;
        for txg in 1..7u64 {
            let mut cut = |acknowledged, apart: bool| {
                let images = |store: &FaultStore| -> Vec<MemoryStore> {
                    let now = store.position();
                    store.crash_points(now..=now, 3).map(|image| image.store).collect()
                };
                cuts.push((images(&stores[0]), images(&stores[1]), acknowledged, apart));
            };
            if txg == seed % 5 + 1 {
                stores[(seed % 2) as usize].fail_after(seed % 4, FaultKind::Write);
            }
            if txg == 4 {
                for (store, guid) in stores.iter().zip(1..) {
                    store.clear_faults();
                    if mirror.members()[guid as usize - 1].state != MemberState::Online {
                        store.restart();
                        mirror.online(guid, "/x".into(), Box::new(store.clone())).unwrap();
                        cut(acknowledged, false);
                        resilver(&mirror);
                        cut(acknowledged, false);
                    }
                }
            }
            if txg % 3 == 1 {
                mirror.create_segment(SegmentId(txg)).unwrap();
                end = 0;
            }
            cut(acknowledged, true);
            let id = SegmentId((txg - 1) / 3 * 3 + 1);
            mirror.append(id, end, &bytes(id.0 + end, 8192)).unwrap();
            cut(acknowledged, true);
            mirror.sync().unwrap();
            cut(acknowledged, true);
            mirror.publish(txg, &end.to_le_bytes()).unwrap();
            acknowledged = txg;
            cut(acknowledged, true);
            end += 8192;
            if txg % 3 == 0 {
                mirror.seal_segment(id).unwrap();
            }
        }
        drop(mirror);
        for pair in cuts.windows(2) {
            // Within an operation, one member may be ahead of the other.
            let [(a0, b0, acknowledged, _), (a1, b1, _, apart)] = pair else {
                unreachable!("windows of two")
            };
            // An operation with several steps on each member cannot be finished on one member before it starts on the
            // other.
            let pairs = [(a0, b0), (a1, b0), (a0, b1)];
            for (a, b) in pairs.into_iter().take(if *apart { 3 } else { 1 }) {
                for (left, right) in a.iter().flat_map(|left| b.iter().map(move |right| (left, right))) {
                    images += 1;
                    survives(&left.snapshot(), &right.snapshot(), *acknowledged);
                }
            }
        }
    }
    assert!(images > 1000, "{images}");
}

fn survives(a: &MemoryStore, b: &MemoryStore, acknowledged: u64) {
    let mirror = match assemble(vec![member(1, a.clone()), member(2, b.clone())]) {
        Ok(mirror) => mirror,
        Err(error) => panic!("{error}"),
    };
    let last = mirror.uberblocks().unwrap().pop();
    let Some(last) = last else {
        assert_eq!(acknowledged, 0);
        return;
    };
    assert!(last.txg >= acknowledged, "{} of {acknowledged}", last.txg);
    resilver(&mirror);
    assert!(mirror.members().iter().all(|m| (m.state, m.is_stale) == (MemberState::Online, false)));
    let end = u64::from_le_bytes(last.bytes.as_slice().try_into().unwrap()) + 8192;
    for first in (1..=last.txg).filter(|txg| txg % 3 == 1) {
        let end = if first + 3 > last.txg { end } else { 3 * 8192 };
        for (place, offset) in
            [0, 1].into_iter().flat_map(|place| (0..end / 8192).map(move |n| (place, n * 8192)))
        {
            let mut buf = vec![0; 8192];
            mirror.read_copy(place, SegmentId(first), offset, &mut buf).unwrap();
            assert_eq!(buf, bytes(first + offset, 8192), "copy {place} of segment {first} at {offset}");
        }
    }
    // Each member alone has the same contents.
    drop(mirror);
    for (guid, store) in [(1, a), (2, b)] {
        let alone = assemble(vec![member(guid, store.snapshot()), absent(3 - guid)]).unwrap();
        assert_eq!(newest(&alone), last.txg);
    }
}

#[test]
fn members_are_found_by_each_other() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let locations = [Location::Directory(at("a")), Location::File(at("b.img"))];
    let store = create_mirror(&locations, &options(Some(64 << 20))).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, &[7; 5000]).unwrap();
    store.sync().unwrap();
    store.publish(1, b"one").unwrap();
    store.seal_segment(SegmentId(1)).unwrap();
    for location in &locations {
        let error = crate::open(location, Access::ReadWrite).unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    }
    assert_eq!(crate::control_socket(&locations[0]), crate::control_socket(&locations[1]));
    drop(store);
    // The new name is written to all members.
    crate::set_label(&locations[1], &PoolLabel { name: "dozer".to_owned(), guid: 77 }).unwrap();
    assert!(locations.iter().all(|location| label(location).unwrap().name == "dozer"));
    // Members that were moved together are found next to each other. Then their new paths are recorded.
    std::fs::create_dir(at("new")).unwrap();
    let moved = [Location::Directory(at("new/a")), Location::File(at("new/b.img"))];
    for (from, to) in locations.iter().zip(&moved) {
        std::fs::rename(from.path(), to.path()).unwrap();
    }
    let store = crate::open(&moved[0], Access::ReadWrite).unwrap();
    assert!(store.mirror().unwrap().members().iter().all(|m| m.state == MemberState::Online));
    drop(store);
    let paths = |location| -> std::collections::BTreeSet<PathBuf> {
        crate::mirror_paths(location).into_iter().collect()
    };
    assert!(paths(&moved[1]).iter().all(|path| path.starts_with(std::fs::canonicalize(at("new")).unwrap())));
    // A label that is damaged on one member is repaired from its copy.
    flip(&at("new/a/label"), 100);
    flip(&at("new/b.img"), 70);
    let store = crate::open(&moved[0], Access::ReadWrite).unwrap();
    assert!(store.verify_own(false).unwrap() > 0);
    assert!(store.verify_own(true).unwrap() > 0);
    assert_eq!(store.verify_own(false).unwrap(), 0);
    drop(store);
    // A member that was deleted is missing.
    std::fs::remove_file(at("new/b.img")).unwrap();
    let store = crate::open(&moved[0], Access::ReadWrite).unwrap();
    let states: Vec<_> = store.mirror().unwrap().members().iter().map(|m| m.state).collect();
    assert!(states.contains(&MemberState::Unavailable) && states.contains(&MemberState::Online));
    // It is replaced by a new store.
    let mirror = store.mirror().unwrap();
    let old = mirror.members().into_iter().find(|m| m.state == MemberState::Unavailable).unwrap();
    let new = Location::File(at("new/c.img"));
    let size =
        CreateOptions { label: PoolLabel { name: "dozer".to_owned(), guid: 77 }, ..options(Some(80 << 20)) };
    mirror.attach_at(&new, &size, Some(old.guid)).unwrap();
    resilver(mirror);
    assert_eq!(mirror.members().len(), 2);
    store.destroy().unwrap();
    drop(store);
    assert!(crate::open(&new, Access::ReadOnly).is_err());
    assert!(!at("new/a").exists());
}

#[test]
fn files_of_any_sizes_have_slots_of_one_length() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| Location::File(dir.path().join(name));
    let sized = |location: &Location, len: u64| {
        std::fs::File::create(location.path()).unwrap().set_len(len).unwrap();
    };
    sized(&at("large.img"), 600 << 20);
    sized(&at("small.img"), 64 << 20);
    let store = create_mirror(&[at("large.img"), at("small.img")], &options(None)).unwrap();
    assert_eq!(store.segment_capacity(), 4 << 20);
    let full = |store: &dyn Store| {
        let total = store.capacity().unwrap().total.unwrap();
        let made = (0..).map(|id| store.create_segment(SegmentId(1000 + id))).take_while(Result::is_ok);
        (made.count() as u64, total / store.segment_capacity())
    };
    // All segments that the capacity promises can be created.
    assert_eq!(full(&*store), (15, 15));
    let mirror = store.mirror().unwrap();
    assert!(mirror.members().iter().all(|m| m.state == MemberState::Online));
    store.publish(1, b"one").unwrap();
    // A member that is attached later gets them too.
    sized(&at("tight.img"), 64 << 20);
    for id in 0..15 {
        store.seal_segment(SegmentId(1000 + id)).unwrap();
    }
    mirror.attach_at(&at("tight.img"), &options(None), None).unwrap();
    resilver(mirror);
    let small = mirror.members()[1].guid;
    mirror.detach(small).unwrap();
    assert_eq!(full(&*store), (0, 15));
}

#[test]
fn a_member_that_missed_no_more_than_a_publication_is_whole_as_soon_as_it_is_back() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let both = || assemble(vec![member(1, a.clone()), member(2, b.clone())]).unwrap();
    let mirror = both();
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 4096).unwrap();
    drop(mirror);
    let mirror = assemble(vec![absent(1), member(2, b.clone())]).unwrap();
    mirror.publish(2, b"two").unwrap();
    drop(mirror);
    assert_eq!(states(&both()), [(MemberState::Online, false); 2]);
    let mirror = assemble(vec![member(1, a.clone()), absent(2)]).unwrap();
    assert_eq!(newest(&mirror), 2);
}

#[test]
fn of_segments_that_were_open_only_what_was_missed_is_brought() {
    let dir = TempDir::new().unwrap();
    let paths = ["a.img", "b.img"].map(|name| dir.path().join(name));
    let mut stores: Vec<_> =
        paths.iter().map(|path| Some(FileStore::create(path, &options(Some(256 << 20))).unwrap())).collect();
    let mut both = |away: Option<usize>| {
        let members = (0..2).map(|at| {
            let open = || FileStore::open(&paths[at], Access::ReadWrite).unwrap();
            match away == Some(at) {
                true => absent(at as u64 + 1),
                false => member(at as u64 + 1, stores[at].take().unwrap_or_else(open)),
            }
        });
        MirrorStore::assemble(members.collect(), Access::ReadWrite).unwrap()
    };
    let len = 1 << 20;
    let mirror = both(None);
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, len).unwrap();
    drop(mirror);
    // While one member is away, a segment grows and a small one is created. Both are open when the process ends.
    // There is also an orphan.
    let mirror = both(Some(1));
    mirror.reopen_segment(SegmentId(1), len as u64).unwrap();
    mirror.create_segment(SegmentId(2)).unwrap();
    commit(&mirror, 2, 1, len as u64, 4096).unwrap();
    commit(&mirror, 3, 2, 0, 8192).unwrap();
    mirror.create_segment(SegmentId(3)).unwrap();
    mirror.append(SegmentId(3), 0, &[3; 4096]).unwrap();
    mirror.seal_segment(SegmentId(3)).unwrap();
    drop(mirror);
    let mirror = both(None);
    assert_eq!(states(&mirror)[1], (MemberState::Online, true));
    let ends =
        [(1, len as u64 + 4096), (2, 8192), (3, 0)].map(|(id, len)| SegmentInfo { id: SegmentId(id), len });
    mirror.set_ends(&ends[..2]).unwrap();
    assert_eq!(states(&mirror), [(MemberState::Online, false); 2]);
    assert_eq!(mirror.segments().unwrap(), ends);
    assert_eq!(mirror.scan.lock().copied, 4096 + 8192);
    drop(mirror);
    let mirror = both(Some(0));
    for (id, offset, len) in [(1, 0, len), (1, len, 4096), (2, 0, 8192)] {
        let mut read = vec![0; len];
        mirror.read(SegmentId(id), offset as u64, &mut read).unwrap();
        assert_eq!(read, bytes(id + offset as u64, len));
    }
}

#[test]
fn what_the_last_member_has_is_read_though_it_can_be_written_no_more() {
    let disk = FaultStore::new(1);
    let mirror = assemble(vec![member(1, disk.clone()), member(2, MemoryStore::new())]).unwrap();
    mirror.create_segment(SegmentId(1)).unwrap();
    commit(&mirror, 1, 1, 0, 5000).unwrap();
    mirror.offline(2).unwrap();
    mirror.append(SegmentId(1), 5000, &[0; 100]).unwrap();
    disk.fail_after(0, FaultKind::Write);
    assert!(mirror.sync().is_err());
    assert_eq!(states(&mirror)[0].0, MemberState::Faulted);
    let mut read = vec![0; 5000];
    mirror.read(SegmentId(1), 0, &mut read).unwrap();
    assert_eq!(read, bytes(1, 5000));
    assert!(matches!(mirror.create_segment(SegmentId(2)), Err(StoreError::Poisoned { .. })));
}

#[test]
fn a_publication_that_reached_only_who_is_gone_is_not_that_of_the_others() {
    for gone in 0..2 {
        let stores = [MemoryStore::new(), MemoryStore::new()];
        let both = |stores: &[MemoryStore; 2]| {
            assemble(stores.iter().zip(1..).map(|(store, guid)| member(guid, store.clone())).collect())
        };
        let mirror = both(&stores).unwrap();
        mirror.publish(1, b"one").unwrap();
        // The power fails when only one member has the publication.
        let before = stores[1 - gone].snapshot();
        mirror.publish(2, b"two").unwrap();
        drop(mirror);
        let mut stores = stores;
        stores[1 - gone] = before;
        let alone = (0..2).map(|at| match at == gone {
            true => absent(at as u64 + 1),
            false => member(at as u64 + 1, stores[at].clone()),
        });
        let mirror = assemble(alone.collect()).unwrap();
        assert_eq!(newest(&mirror), 1);
        mirror.publish(1, b"one, alone").unwrap();
        drop(mirror);
        let mirror = both(&stores).unwrap();
        assert_eq!(mirror.uberblocks().unwrap().last().unwrap().bytes, b"one, alone");
        assert_eq!(mirror.verify_own(false).unwrap(), 0);
    }
}

#[test]
fn members_of_today_and_tomorrow_are_trimmed_as_told() {
    use std::os::unix::fs::MetadataExt;
    let dir = TempDir::new().unwrap();
    let at = |name: &str| Location::File(dir.path().join(name));
    let sized = |name: &str| std::fs::File::create(at(name).path()).unwrap().set_len(64 << 20).unwrap();
    let taken = |name: &str| (std::fs::metadata(at(name).path()).unwrap().blocks() * 512) >> 20;
    ["a.img", "b.img", "c.img"].into_iter().for_each(sized);
    let store = create_mirror(&[at("a.img"), at("b.img")], &options(None)).unwrap();
    store.set_autotrim(false);
    store.publish(1, b"one").unwrap();
    let mirror = store.mirror().unwrap();
    mirror.attach_at(&at("c.img"), &options(None), None).unwrap();
    resilver(mirror);
    store.create_segment(SegmentId(7)).unwrap();
    store.append(SegmentId(7), 0, &vec![7; 3 << 20]).unwrap();
    store.sync().unwrap();
    store.delete_segment(SegmentId(7)).unwrap();
    store.sync().unwrap();
    for name in ["a.img", "b.img", "c.img"] {
        assert!(taken(name) >= 3, "{name}: {} MiB", taken(name));
    }
    assert_eq!(store.trim().unwrap(), 3 * store.capacity().unwrap().free);
    for name in ["a.img", "b.img", "c.img"] {
        assert!(taken(name) < 3, "{name}: {} MiB", taken(name));
    }
}

fn flip(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], offset).unwrap();
}

#[test]
fn a_pool_on_one_store_becomes_a_mirror() {
    let dir = TempDir::new().unwrap();
    let single = Location::Directory(dir.path().join("a"));
    let store = crate::create(&single, &options(None)).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, &[3; 9000]).unwrap();
    store.sync().unwrap();
    store.publish(1, b"one").unwrap();
    store.publish(2, b"two").unwrap();
    drop(store);
    attach_to_single(&single).unwrap();
    let store = crate::open(&single, Access::ReadWrite).unwrap();
    assert_eq!(newest(&*store), 2);
    let mirror = store.mirror().unwrap();
    mirror.attach_at(&Location::Directory(dir.path().join("b")), &options(None), None).unwrap();
    resilver(mirror);
    store.publish(3, b"three").unwrap();
    drop(store);
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    let store = crate::open(&Location::Directory(dir.path().join("b")), Access::ReadWrite).unwrap();
    assert_eq!((newest(&*store), contents(&*store)), (3, vec![(SegmentId(1), vec![3; 9000])]));
}
