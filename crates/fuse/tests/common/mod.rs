//! A pool in memory with real FUSE mounts, for tests.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)]

#[path = "../../../dataset/tests/common/mod.rs"]
pub mod pools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use snowmelt_dataset::{CreateOptions, Datasets, DestroyPlan, RollbackOptions};
use snowmelt_fs::vfs::VfsOptions;
use snowmelt_fuse::{Mount, MountOptions, Mounts};
use snowmelt_store::MemoryStore;

/// A pool `tank` with an empty filesystem `tank/fs`, and a directory to mount it on.
pub struct World {
    pub store: MemoryStore,
    pub datasets: Arc<Datasets>,
    pub mounts: Arc<Mounts>,
    directory: tempfile::TempDir,
}

fn complain(what: &str) {
    panic!("the mount complains: {what}");
}

impl World {
    pub fn new() -> Self {
        Self::with_properties(&[])
    }

    pub fn with_properties(properties: &[(&str, &str)]) -> Self {
        let world = Self::empty();
        let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let options = CreateOptions { properties: properties.collect(), ..CreateOptions::default() };
        world.datasets.create_filesystem("tank/fs", &options).unwrap();
        world
    }

    /// The same without the filesystem.
    pub fn empty() -> Self {
        let store = MemoryStore::new();
        Self::over(store.clone(), pools::new_pool_on(&store))
    }

    pub fn over(store: MemoryStore, datasets: Arc<Datasets>) -> Self {
        // The tests make devices, change owners and act as other users.
        assert!(rustix::process::geteuid().is_root(), "these tests must be run by root");
        assert!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse: these tests need FUSE");
        let mounts = Mounts::new(datasets.clone(), complain);
        Self { store, datasets, mounts, directory: tempfile::tempdir().unwrap() }
    }

    pub fn dir(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    /// Mounts `tank/fs` according to its properties.
    pub fn mount(&self) -> Arc<Mount> {
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset("tank/fs").unwrap();
        let properties = VfsOptions::of(&catalog, &dataset).unwrap();
        self.mounts.mount(&dataset, &self.dir(), properties, &MountOptions { allow_other: true }).unwrap()
    }

    /// Mounts a snapshot.
    pub fn mount_snapshot(&self, name: &str) -> Arc<Mount> {
        let catalog = self.datasets.catalog();
        let snapshot = catalog.snapshot(&pools::name(name)).unwrap();
        let dataset = catalog.dataset_by_id(snapshot.id.dataset).unwrap();
        let properties = VfsOptions { posix_acl: true, ..VfsOptions::of(&catalog, &dataset).unwrap() };
        let options = MountOptions { allow_other: true };
        self.mounts.mount_snapshot(&snapshot, &self.dir(), properties, &options).unwrap()
    }

    pub fn snapshot(&self, name: &str) {
        self.datasets.snapshot(&[pools::name(&format!("tank/fs@{name}"))], &[]).unwrap();
    }

    pub fn destroy_snapshot(&self, name: &str) {
        let catalog = self.datasets.catalog();
        let snapshot = catalog.snapshot(&pools::name(&format!("tank/fs@{name}"))).unwrap();
        let plan = DestroyPlan::snapshots(&catalog, vec![snapshot], false).unwrap();
        self.datasets.destroy(&plan).unwrap();
        self.mounts.refresh();
    }

    pub fn rollback(&self, name: &str) {
        let options = RollbackOptions { newer: true, clones: false };
        self.datasets.rollback(&pools::name(&format!("tank/fs@{name}")), options).unwrap();
        self.mounts.refresh();
    }

    /// Unmounts, and checks the pool.
    pub fn unmount(&self, mount: &Mount) {
        // A child process that another test is just starting has our files open for a moment.
        for _ in 0..100 {
            if mount.unmount(false).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(mount.wait_for(std::time::Duration::from_secs(60)).unwrap());
        assert!(mount.is_over() && self.mounts.is_empty());
        pools::check(&self.datasets, "unmounting");
    }
}

/// A failed test must not leave a dead mount behind, because every access to it would hang.
impl Drop for World {
    fn drop(&mut self) {
        for mount in self.mounts.list() {
            let _ = mount.unmount(true);
        }
    }
}
