//! Full and almost full pools: on a full disk, and in a file whose free space lies between live blocks.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::files::{create, fill, noise, open, remove, write};
use common::{check, name};
use snowmelt_dataset::{CreateOptions, Datasets, DestroyPlan};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::{Access, CreateOptions as NewStore, Location, PoolLabel};
use snowmelt_zpl::SourceError;

const MIB: u64 = 1 << 20;

/// A small disk, for as long as this lives.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new(size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir.path()).status();
        assert!(done.unwrap().success(), "mounting a tmpfs takes root");
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn new_pool(location: &Location, size: Option<u64>, options: PoolOptions) -> Arc<Datasets> {
    let label = PoolLabel { name: "tank".to_owned(), guid: 1 };
    let store = snowmelt_store::create(location, &NewStore { label, size, force: false }).unwrap();
    let pool = Pool::create(store, &NewPool { name: "tank", guid: 1 }, options).unwrap();
    Datasets::create(pool).unwrap()
}

#[test]
#[ignore = "root, to mount a tmpfs"]
fn a_full_disk_is_a_full_pool() {
    let disk = Disk::new("64m");
    let location = Location::Directory(disk.path().join("tank"));
    let options = PoolOptions { segment_bytes: 4 * MIB, ..PoolOptions::default() };
    let mut datasets = new_pool(&location, None, options.clone());
    for round in 0..4 {
        datasets.create_filesystem("tank/x", &CreateOptions::default()).unwrap();
        let head = open(&datasets, "tank/x");
        let (object, written, refused) = fill(&head, round, 100 * MIB);
        assert!(matches!(refused, Some(SourceError::NoSpace)), "{refused:?}");
        assert!(written > 40 * MIB, "{written} bytes in round {round}");
        // Another program uses the rest of the disk, except for what a commit needs.
        let other = disk.path().join("other");
        std::fs::write(&other, vec![0; 4 << 20]).unwrap();
        remove(&head, object.unwrap());
        head.sync().unwrap();
        std::fs::remove_file(&other).unwrap();
        drop(head);
        let catalog = datasets.catalog();
        let doomed = catalog.dataset("tank/x").unwrap();
        datasets.destroy(&DestroyPlan::dataset(&catalog, &doomed, true, true).unwrap()).unwrap();
        drop(catalog);
        check(&datasets, "emptying a full disk");
        if round == 1 {
            datasets.pool().commit().unwrap();
            drop(datasets);
            let store = snowmelt_store::open(&location, Access::ReadWrite).unwrap();
            datasets = Datasets::open(Pool::open(store, options.clone()).unwrap()).unwrap();
        }
    }
}

/// Scattered rewrites leave segments of which two thirds are live; almost none is nearly empty.
#[test]
fn what_is_free_between_blocks_can_be_written_again_and_again() {
    const BLOCK: u64 = 16 << 10;
    let dir = tempfile::tempdir().unwrap();
    let location = Location::File(dir.path().join("tank.img"));
    let datasets = new_pool(&location, Some(128 * MIB), PoolOptions::default());
    datasets.create_filesystem("tank/x", &CreateOptions::default()).unwrap();
    let blocks = datasets.pool().space().unwrap().free * 7 / 11 / BLOCK;
    let head = open(&datasets, "tank/x");
    let object = create(&head, BLOCK as u32).unwrap();
    for block in 0..blocks {
        write(&head, object, block * BLOCK, &noise(block, BLOCK as usize)).unwrap();
    }
    let mut state = 1u64;
    for round in 1..40 {
        datasets.snapshot(&[name("tank/x@new")], &[]).unwrap();
        for part in 0..blocks / 10 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let block = part * 10 + (state >> 33) % 10;
            let wrote = write(&head, object, block * BLOCK, &noise(state, BLOCK as usize));
            wrote.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        head.sync().unwrap();
        let catalog = datasets.catalog();
        let old = vec![catalog.snapshot(&name("tank/x@new")).unwrap()];
        datasets.destroy(&DestroyPlan::snapshots(&catalog, old, false).unwrap()).unwrap();
    }
    let space = datasets.pool().space().unwrap();
    assert!(space.fragmentation() > 20, "{space:?}");
    check(&datasets, "rewriting what is free");
}

/// Rewrites three fifths of a pool's data in many threads at once. Late writers find no space, but only for a moment.
fn rewrite_at_once(datasets: &Datasets) {
    const BLOCK: u64 = 16 << 10;
    const WRITERS: u64 = 32;
    datasets.create_filesystem("tank/x", &CreateOptions::default()).unwrap();
    let blocks = datasets.pool().space().unwrap().free * 6 / 10 / BLOCK / WRITERS;
    let head = open(datasets, "tank/x");
    let objects: Vec<u64> = (0..WRITERS).map(|_| create(&head, BLOCK as u32).unwrap()).collect();
    for object in &objects {
        for block in 0..blocks {
            write(&head, *object, block * BLOCK, &noise(block ^ *object, BLOCK as usize)).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for object in &objects {
            let head = &head;
            scope.spawn(move || {
                let (mut state, mut data) = (*object, noise(*object, BLOCK as usize));
                for count in 0..blocks * 4 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    data[..8].copy_from_slice(&state.to_le_bytes());
                    let wrote = write(head, *object, (state >> 33) % blocks * BLOCK, &data);
                    wrote.unwrap_or_else(|error| panic!("object {object}, write {count}: {error}"));
                }
            });
        }
    });
    head.sync().unwrap();
    drop(head);
    check(datasets, "rewriting at once");
}

#[test]
fn writers_wait_for_room_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let location = Location::File(dir.path().join("tank.img"));
    rewrite_at_once(&new_pool(&location, Some(640 * MIB), PoolOptions::default()));
}

#[test]
#[ignore = "root, to mount a tmpfs"]
fn writers_wait_for_room_on_a_disk() {
    let disk = Disk::new("512m");
    let location = Location::Directory(disk.path().join("tank"));
    rewrite_at_once(&new_pool(&location, None, PoolOptions::default()));
}

/// A thousandth of a pool is for its history, and a little more of a small one. How the pool was made stays in it.
#[test]
fn the_history_of_a_small_pool_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let location = Location::File(directory.path().join("tank.img"));
    let datasets = new_pool(&location, Some(64 * MIB), PoolOptions::default());
    let kept = (128 << 10) / 300;
    for line in 0..kept + 50 {
        datasets.record_history(&format!("command {line}")).unwrap();
    }
    let lines = datasets.catalog().history().unwrap();
    let lines: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!((lines.len(), lines[0], lines[1]), (kept + 1, "command 0", "command 50"));
    assert_eq!(lines[kept], format!("command {}", kept + 49));
    check(&datasets, "cutting the history");
}
