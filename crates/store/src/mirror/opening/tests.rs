//! Tests with a member that does not answer: its label cannot be read for a while.

use std::fs;
use std::time::Instant;

use tempfile::TempDir;

use super::*;
use crate::directory::stalled;
use crate::mirror::locate::open_within;
use crate::{CreateOptions, MemberState, MemberStatus, Mirror, PoolLabel, SegmentId, create_mirror};

const LONG: Duration = Duration::from_secs(60);

/// A closed mirror of two directories.
struct Mirrored {
    dir: TempDir,
}

impl Mirrored {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let label = PoolLabel { name: "tank".to_owned(), guid: 77 };
        let options = CreateOptions { label, size: None, force: false };
        let locations = ["a", "b"].map(|name| Location::Directory(dir.path().join(name)));
        for location in &locations {
            fs::create_dir(location.path()).unwrap();
        }
        create_mirror(&locations, &options).unwrap().publish(1, b"one").unwrap();
        Self { dir }
    }

    fn path(&self, member: &str) -> PathBuf {
        // The path as messages contain it.
        fs::canonicalize(self.dir.path().join(member)).unwrap()
    }

    fn open(&self, by: &str, deadman: Duration) -> Result<Box<dyn Store>> {
        let location = Location::Directory(self.path(by));
        open_within(&location, &single::whole_label(&location)?, Access::ReadWrite, deadman)
    }

    fn hang(&self, member: &str) {
        stalled::stall(self.path(member));
    }

    /// Lets the member answer all earlier and later requests.
    fn answer(&self, member: &str) {
        stalled::let_go(&self.path(member));
    }
}

fn status(store: &dyn Store, path: &Path) -> MemberStatus {
    store.mirror().unwrap().members().into_iter().find(|member| member.path == path).unwrap()
}

/// Repeats `act`, because an earlier request may still be under way.
fn patiently<T>(mut act: impl FnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_does_not_answer_is_left_out_after_a_while_and_then_not_waited_for() {
    for silent in ["a", "b"] {
        let mirrored = Mirrored::new();
        let other = if silent == "a" { "b" } else { "a" };
        mirrored.hang(silent);
        let path = mirrored.path(silent);

        let begun = Instant::now();
        let store = mirrored.open(other, Duration::from_secs(3)).unwrap();
        assert!((Duration::from_secs(3)..LONG).contains(&begun.elapsed()));
        let told = status(&*store, &path);
        assert_eq!(told.state, MemberState::Unavailable);
        assert!(told.why.as_ref().is_some_and(|why| why.starts_with("cannot open: no answer for 3 s")));
        drop(store);

        // The next opening does not wait either, although nothing was written.
        let begun = Instant::now();
        let store = mirrored.open(other, LONG).unwrap();
        assert!(begun.elapsed() < LONG / 3, "{:?}", begun.elapsed());
        assert_eq!(status(&*store, &path).state, MemberState::Unavailable);
        store.create_segment(SegmentId(1)).unwrap();
        store.append(SegmentId(1), 0, &[7; 5000]).unwrap();
        store.sync().unwrap();
        store.publish(2, b"two").unwrap();

        // Another process learns quickly who the owner is.
        let begun = Instant::now();
        assert!(matches!(mirrored.open(other, LONG), Err(StoreError::Locked { .. })));
        assert!(begun.elapsed() < LONG / 3, "{:?}", begun.elapsed());

        mirrored.answer(silent);
        let mirror = store.mirror().unwrap();
        patiently(|| mirror.online_again(told.guid));
        mirror.resilver(&|| 1, &mut |_| true).unwrap();
        drop(store);
        // The member alone has all data.
        fs::remove_dir_all(mirrored.path(other)).unwrap();
        let store = patiently(|| mirrored.open(silent, LONG));
        let mut read = [0; 5000];
        store.read(SegmentId(1), 0, &mut read).unwrap();
        assert_eq!(read, [7; 5000]);
    }
}

#[test]
fn who_answers_late_is_taken() {
    let mirrored = Mirrored::new();
    mirrored.hang("a");
    let store = std::thread::scope(|scope| {
        let opening = scope.spawn(|| mirrored.open("b", LONG).unwrap());
        std::thread::sleep(QUIET * 6);
        mirrored.answer("a");
        opening.join().unwrap()
    });
    assert_eq!(status(&*store, &mirrored.path("a")).state, MemberState::Online);
}

#[test]
fn a_member_that_is_brought_online_and_does_not_answer_keeps_nobody() {
    let mirrored = Mirrored::new();
    let store = mirrored.open("a", LONG).unwrap();
    let mirror: &dyn Mirror = store.mirror().unwrap();
    let guid = status(&*store, &mirrored.path("b")).guid;
    mirror.offline(guid).unwrap();
    mirrored.hang("b");
    store.set_deadman(Duration::from_secs(1));
    let error = mirror.online_again(guid).unwrap_err();
    assert!(matches!(error, StoreError::NoAnswer { .. }), "{error}");
    store.publish(2, b"two").unwrap();
    mirrored.answer("b");
    patiently(|| mirror.online_again(guid));
}
