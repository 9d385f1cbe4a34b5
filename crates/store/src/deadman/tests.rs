//! Tests of stores that hang, alone and as members of mirrors.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::DeadmanStore;
use crate::mirror::MirrorStore;
use crate::{Access, FaultStore, MemberState, MirrorMember, SegmentId, Store, StoreError};

const ONE: SegmentId = SegmentId(1);
/// Long enough for an answer on a busy machine, short enough for a test to wait.
const PATIENCE: Duration = Duration::from_millis(400);

/// A member of a mirror whose requests can be given up.
fn member(guid: u64, store: &FaultStore) -> MirrorMember {
    let store: Box<dyn Store> = Box::new(DeadmanStore::new(Box::new(store.clone())));
    MirrorMember { guid, path: PathBuf::from(format!("/{guid}")), store: Ok(store) }
}

fn mirror(stores: &[&FaultStore]) -> MirrorStore {
    let members = stores.iter().zip(1..).map(|(store, guid)| member(guid, store)).collect();
    let mirror = MirrorStore::assemble(members, Access::ReadWrite).unwrap();
    mirror.set_deadman(PATIENCE);
    mirror
}

fn states(mirror: &MirrorStore) -> Vec<MemberState> {
    mirror.members().iter().map(|member| member.state).collect()
}

/// Waits until `holds` returns true.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_mirror_goes_on_without_the_member_that_hangs() {
    use MemberState::{Faulted, Online};
    // The store hangs at each of the operations: creating a segment, writing, syncing, publishing, reading.
    for n in 0..8 {
        let (a, b) = (FaultStore::new(1), FaultStore::new(2));
        let mirror = mirror(&[&a, &b]);
        let hanging = if n % 2 == 0 { &a } else { &b };
        hanging.hang_after(n);
        let begun = Instant::now();
        mirror.create_segment(ONE).unwrap();
        mirror.append(ONE, 0, &[7; 4096]).unwrap();
        mirror.commit(1, b"one").unwrap();
        let mut buf = [0; 4096];
        for offset in [0, 1 << 20] {
            // At the second offset it is the turn of the other member.
            let read = mirror.read(ONE, offset, &mut buf[..if offset == 0 { 4096 } else { 0 }]);
            assert!(read.is_ok() || offset > 0);
        }
        mirror.append(ONE, 4096, &[8; 4096]).unwrap();
        mirror.commit(2, b"two").unwrap();
        // The mirror waited for the member only once.
        assert!(begun.elapsed() < 3 * PATIENCE, "{n}: {:?}", begun.elapsed());
        assert!(hanging.is_hanging(), "{n}");
        let wanted = if n % 2 == 0 { [Faulted, Online] } else { [Online, Faulted] };
        assert_eq!(states(&mirror), wanted, "{n}");
        let members = mirror.members();
        let status = members.iter().find(|member| member.state == Faulted).unwrap();
        assert!(status.why.as_ref().unwrap().contains("no answer for 0 s"), "{:?}", status.why);
        assert!(status.unanswered.unwrap().since >= PATIENCE, "{:?}", status.unanswered);
        // The pool does not wait for the member.
        assert_eq!(mirror.unanswered(), None);
        // The member cannot come back while an operation may still be under way.
        let guid = status.guid;
        let early = mirror.online(guid, "/x".into(), Box::new(hanging.clone())).unwrap_err();
        assert!(early.to_string().contains("has not answered for"), "{early}");
        // An operation that is done late causes no damage.
        hanging.release();
        until("it has answered", || mirror.members().iter().all(|member| member.unanswered.is_none()));
        assert_eq!(states(&mirror), wanted);
        hanging.restart();
        let MirrorMember { path, store, .. } = member(guid, hanging);
        mirror.online(guid, path, store.unwrap()).unwrap();
        mirror.resilver(&|| 1, &mut |_| true).unwrap();
        mirror.commit(3, b"three").unwrap();
        assert_eq!(states(&mirror), [Online, Online]);
        for store in [&a, &b] {
            let mut buf = [0; 8192];
            store.read(ONE, 0, &mut buf).unwrap();
            assert!(buf[..4096] == [7; 4096] && buf[4096..] == [8; 4096], "{n}");
        }
        // The state as the next owner finds it.
        drop(mirror);
        let stores = [a.snapshot(), b.snapshot()].map(|store| FaultStore::over(3, &store));
        let again = super::tests::mirror(&[&stores[0], &stores[1]]);
        assert_eq!(again.uberblocks().unwrap().last().unwrap().bytes, b"three");
    }
}

#[test]
fn the_last_member_is_waited_for() {
    let (a, b) = (FaultStore::new(1), FaultStore::new(2));
    let mirror = mirror(&[&a, &b]);
    mirror.create_segment(ONE).unwrap();
    for store in [&a, &b] {
        store.hang_after(0);
    }
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            mirror.append(ONE, 0, &[7; 4096]).unwrap();
            mirror.commit(1, b"one").unwrap();
            tell.send(()).unwrap();
        });
        let early = told.recv_timeout(4 * PATIENCE);
        let (waiting, found) = (mirror.unanswered(), states(&mirror));
        // With this member the mirror can continue. Release both before any assertion, so that a failing test does
        // not hang.
        b.release();
        let done = told.recv_timeout(Duration::from_secs(30));
        a.release();
        assert!(early.is_err(), "it goes on without any member");
        let waiting = waiting.unwrap();
        assert!(waiting.since >= PATIENCE && waiting.is_late(), "{waiting:?}");
        assert_eq!(found, [MemberState::Faulted, MemberState::Online]);
        done.unwrap();
    });
    assert_eq!(mirror.uberblocks().unwrap().last().unwrap().txg, 1);
}

#[test]
fn a_slow_member_is_no_failed_one() {
    let (a, b) = (FaultStore::new(1), FaultStore::new(2));
    let mirror = mirror(&[&a, &b]);
    b.slow_down(PATIENCE / 4);
    mirror.create_segment(ONE).unwrap();
    for n in 0..4 {
        mirror.append(ONE, n * 4096, &[7; 4096]).unwrap();
        mirror.commit(n + 1, b"x").unwrap();
    }
    assert_eq!(states(&mirror), [MemberState::Online; 2]);
    assert_eq!(a.snapshot().segments().unwrap(), b.snapshot().segments().unwrap());
}

#[test]
fn a_single_store_is_waited_for_and_says_so() {
    let inner = FaultStore::new(1);
    let store = DeadmanStore::new(Box::new(inner.clone()));
    store.set_deadman(PATIENCE);
    store.create_segment(ONE).unwrap();
    assert_eq!(store.unanswered(), None);
    inner.hang_after(1);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.append(ONE, 0, b"there").unwrap();
            store.commit(1, b"one").unwrap();
            tell.send(()).unwrap();
        });
        let (early, waiting) = (told.recv_timeout(2 * PATIENCE), store.unanswered());
        inner.release();
        assert!(early.is_err());
        let waiting = waiting.unwrap();
        assert!(waiting.op == "commit to" && waiting.since >= PATIENCE, "{waiting:?}");
        told.recv_timeout(Duration::from_secs(30)).unwrap();
    });
    assert_eq!(store.unanswered(), None);
    let mut buf = [0; 5];
    store.read(ONE, 0, &mut buf).unwrap();
    assert_eq!(&buf, b"there");
}

#[test]
fn a_read_that_is_given_up_is_made_elsewhere() {
    let (a, b) = (FaultStore::new(1), FaultStore::new(2));
    let mirror = mirror(&[&a, &b]);
    mirror.create_segment(ONE).unwrap();
    mirror.append(ONE, 0, &[7; 4096]).unwrap();
    mirror.commit(1, b"one").unwrap();
    // Let the member hang that is asked first.
    let first = mirror.copies(ONE, 0)[0];
    [&a, &b][first].hang_after(0);
    let mut buf = [0; 4096];
    mirror.read(ONE, 0, &mut buf).unwrap();
    assert_eq!(buf, [7; 4096]);
    assert_eq!(states(&mirror)[first], MemberState::Faulted);
    // Later requests do not wait.
    let begun = Instant::now();
    mirror.read(ONE, 0, &mut buf).unwrap();
    assert!(begun.elapsed() < PATIENCE / 2);
    assert!(mirror.capacity().is_ok());
    assert!(!matches!(mirror.sync(), Err(StoreError::NoAnswer { .. })));
    [&a, &b][first].release();
}
