//! Pools that are full or nearly so: on a disk that is full, and in a file where what is free lies between what is alive.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;

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

#[test]
#[ignore = "root, to mount a tmpfs"]
fn a_full_disk_is_a_full_pool() {
    let disk = Disk::new("64m");
    let location = Location::Directory(disk.path().join("tank"));
    let label = PoolLabel { name: "tank".to_owned(), guid: 1 };
    let store = snowmelt_store::create(&location, &NewStore { label, size: None, force: false }).unwrap();
    let options = PoolOptions { segment_bytes: 4 * MIB, ..PoolOptions::default() };
    let pool = Pool::create(store, &NewPool { name: "tank", guid: 1 }, options.clone()).unwrap();
    let mut datasets = Datasets::create(pool).unwrap();
    for round in 0..4 {
        datasets.create_filesystem("tank/x", &CreateOptions::default()).unwrap();
        let head = open(&datasets, "tank/x");
        let (object, written, refused) = fill(&head, round, 100 * MIB);
        assert!(matches!(refused, Some(SourceError::NoSpace)), "{refused:?}");
        assert!(written > 40 * MIB, "{written} bytes in round {round}");
        // Somebody else takes the rest of the disk, but for what a commit needs.
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

/// What is rewritten here and there leaves segments of which two thirds are alive, hardly one of them nearly empty.
#[test]
fn what_is_free_between_blocks_can_be_written_again_and_again() {
    const BLOCK: u64 = 16 << 10;
    let dir = tempfile::tempdir().unwrap();
    let location = Location::File(dir.path().join("tank.img"));
    let label = PoolLabel { name: "tank".to_owned(), guid: 1 };
    let new = NewStore { label, size: Some(128 * MIB), force: false };
    let store = snowmelt_store::create(&location, &new).unwrap();
    let pool = Pool::create(store, &NewPool { name: "tank", guid: 1 }, PoolOptions::default()).unwrap();
    let datasets = Datasets::create(pool).unwrap();
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
