//! Many filesystems mounted at once: the memory, threads and files that each of them costs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::World;
use snowmelt_dataset::CreateOptions;
use snowmelt_fs::vfs::VfsOptions;
use snowmelt_fuse::MountOptions;

/// A number from `/proc/self/status`, in its own unit.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_hundred_mounts_share_threads_and_buffers() {
    mount_many(100);
}

/// Like the test with a hundred mounts. Only run by hand, because it takes minutes.
#[test]
#[ignore = "takes minutes: SNOWMELT_MOUNTS=1000 cargo test -p snowmelt-fuse --test many -- --ignored"]
fn a_thousand_mounts_share_threads_and_buffers() {
    if let Some(count) = std::env::var("SNOWMELT_MOUNTS").ok().and_then(|count| count.parse().ok()) {
        mount_many(count);
    }
}

fn mount_many(count: u64) {
    let world = World::empty();
    let top = world.dir();
    for number in 0..count {
        world.datasets.create_filesystem(&format!("tank/f{number}"), &CreateOptions::default()).unwrap();
    }
    let before = status("VmRSS");
    let mut slowest = Duration::ZERO;
    let mut mounts = Vec::new();
    for number in 0..count {
        let dir = top.join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let catalog = world.datasets.catalog();
        let dataset = catalog.dataset(&format!("tank/f{number}")).unwrap();
        let properties = VfsOptions::of(&catalog, &dataset).unwrap();
        drop(catalog);
        let begun = Instant::now();
        let options = MountOptions { allow_other: true };
        mounts.push(world.mounts.mount(&dataset, &dir, properties, &options).unwrap());
        slowest = slowest.max(begun.elapsed());
        fs::write(dir.join("file"), number.to_string()).unwrap();
    }
    for number in 0..count {
        assert_eq!(fs::read(top.join(format!("{number}/file"))).unwrap(), number.to_string().as_bytes());
    }
    let grown = status("VmRSS").saturating_sub(before);
    let threads = status("Threads");
    assert!(threads < 60, "{threads} threads; slowest mount {slowest:?}");
    assert!(grown < (64 << 10) + 512 * count, "{grown} KiB for {count} mounts");
    for mount in &mounts {
        mount.unmount(false).unwrap();
    }
    for mount in &mounts {
        assert!(mount.wait_for(std::time::Duration::from_secs(60)).unwrap());
    }
    assert!(world.mounts.is_empty());
}
