//! The pool on the stores that users have: a directory and a file.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, key};
use snowmelt_pool::{PoolError, PoolOptions};
use snowmelt_store::{Access, CreateOptions, Location, PoolLabel, create, open};
use std::path::Path;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(byte).collect()
}

fn made(path: &Path, size: Option<u64>) -> (Location, Mini) {
    let location =
        if size.is_some() { Location::File(path.to_owned()) } else { Location::Directory(path.to_owned()) };
    let label = PoolLabel { name: "tank".to_owned(), guid: 42 };
    let store = create(&location, &CreateOptions { label, size, force: false }).unwrap();
    let mini = Mini::create(store, PoolOptions::default()).unwrap();
    (location, mini)
}

/// Several sessions, some without a close. Each finds everything that was committed before.
fn sessions(path: &Path, size: Option<u64>) {
    let (location, mut mini) = made(path, size);
    for session in 0..8u64 {
        for n in 0..40 {
            mini.put(&key(n), &noise(3000, session * 40 + u64::from(n))).unwrap();
        }
        if session % 3 == 0 {
            mini.snapshot().unwrap();
        }
        mini.remove(&key(session as u16)).unwrap();
        mini.commit().unwrap();
        mini.verify().unwrap();
        mini.check().unwrap();
        if session % 2 == 0 {
            // Never committed, so lost with the session.
            let lost = mini.model.clone();
            mini.put(&key(99), b"lost").unwrap();
            mini.model = lost;
        } else {
            mini.pool.clone().close().unwrap();
        }
        let committed = std::mem::take(&mut mini.committed);
        drop(mini);
        let store = open(&location, Access::ReadWrite).unwrap();
        mini = Mini::open(store, PoolOptions::default(), &committed).unwrap().unwrap();
        assert_eq!(mini.pool.open_report().missing, []);
        mini.verify().unwrap();
        mini.check().unwrap();
    }
}

#[test]
fn sessions_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    sessions(&dir.path().join("tank"), None);
}

#[test]
fn sessions_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    sessions(&dir.path().join("tank.img"), Some(64 << 20));
}

/// Each command opens the pool, changes little, and closes it again. A file has slots for only a few segments.
#[test]
fn short_sessions_share_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (location, mut mini) = made(&dir.path().join("tank.img"), Some(64 << 20));
    for session in 0..60u16 {
        // Data and nodes, or only a property: then no data segment is written.
        if session % 3 == 0 {
            mini.put(&key(session), &noise(3000, session.into())).unwrap();
        } else {
            let hold = mini.pool.begin().unwrap();
            mini.pool.set_property(&hold, "session", &session.to_le_bytes()).unwrap();
        }
        mini.commit().unwrap();
        if session % 2 == 0 {
            mini.pool.clone().close().unwrap();
        }
        let committed = std::mem::take(&mut mini.committed);
        drop(mini);
        let store = open(&location, Access::ReadWrite).unwrap();
        let count = store.segments().unwrap().len();
        assert!(count <= 3, "{count} segments after {session} sessions");
        mini = Mini::open(store, PoolOptions::default(), &committed).unwrap().unwrap();
    }
    mini.verify().unwrap();
    mini.check().unwrap();
}

/// Removes everything, and deletes the segments.
fn empty(mini: &mut Mini) {
    {
        let hold = mini.pool.begin_free().unwrap();
        let mut gone = Vec::new();
        mini.head
            .remove_range(&hold, &[], &[0xff], &mut |_, entry| {
                gone.push(entry.value);
                Ok(())
            })
            .unwrap();
        for value in gone {
            let ptr = snowmelt_pool::BlockPtr::decode(&mut &value[..]).unwrap();
            mini.head.release(&hold, &ptr).unwrap();
        }
    }
    mini.model.live.clear();
    mini.commit().unwrap();
    mini.pool.drain_frees().unwrap();
    mini.check().unwrap();
}

#[test]
fn a_file_fills_up_and_empties_again() {
    let dir = tempfile::tempdir().unwrap();
    let (location, mut mini) = made(&dir.path().join("tank.img"), Some(64 << 20));
    for round in 0..3u64 {
        let mut n = 0;
        let full = loop {
            match mini.put(&key(n), &noise(128 << 10, round << 20 | u64::from(n))) {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
            if n % 16 == 0 {
                mini.commit().unwrap();
            }
        };
        assert!(matches!(full, PoolError::NoSpace { .. }), "{full:?}");
        // At least half of the file is for the user, beside slots and the reserve.
        assert!(n > 256, "only {n} blocks of 128 KiB in round {round}");
        mini.commit().unwrap();
        mini.verify().unwrap();
        mini.check().unwrap();
        empty(&mut mini);
    }
    drop(mini);
    drop(location);
}

#[test]
fn what_is_free_is_given_to_the_host_at_once_or_when_told() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tank.img");
    let taken = || (std::fs::metadata(&path).unwrap().blocks() * 512) >> 20;
    let (location, mut mini) = made(&path, Some(128 << 20));
    let fill = |mini: &mut Mini| {
        for n in 0..256 {
            mini.put(&key(n), &noise(128 << 10, n.into())).unwrap();
        }
        mini.commit().unwrap();
    };
    assert_eq!(mini.pool.autotrim().unwrap(), None);
    fill(&mut mini);
    let segments = mini.pool.segments();
    assert!(segments.iter().map(|s| s.len).sum::<u64>() >= 32 << 20, "{segments:?}");
    assert!(segments.iter().all(|s| s.alive <= s.len) && segments.iter().any(|s| s.is_open));
    let full = taken();
    empty(&mut mini);
    assert!(taken() + 16 < full, "{} of {full} MiB", taken());

    // Without autotrim nothing is trimmed, neither in this session nor in the next.
    mini.pool.set_autotrim(false).unwrap();
    fill(&mut mini);
    let full = taken();
    mini.pool.clone().close().unwrap();
    let committed = std::mem::take(&mut mini.committed);
    drop(mini);
    let store = open(&location, Access::ReadWrite).unwrap();
    let mut mini = Mini::open(store, PoolOptions::default(), &committed).unwrap().unwrap();
    assert_eq!(mini.pool.autotrim().unwrap(), Some(false));
    empty(&mut mini);
    assert!(taken() >= full, "{} of {full} MiB", taken());
    let trimmed = mini.pool.trim().unwrap();
    assert!(trimmed >= 64 << 20, "{trimmed}");
    assert!(taken() + 16 < full, "{} of {full} MiB", taken());
    fill(&mut mini);
    mini.verify().unwrap();
    mini.pool.set_autotrim(true).unwrap();
    let full = taken();
    empty(&mut mini);
    assert!(taken() + 16 < full, "{} of {full} MiB", taken());
    mini.check().unwrap();
}
