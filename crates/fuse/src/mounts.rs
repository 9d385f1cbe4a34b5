//! All that one process has mounted of one pool.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use snowmelt_dataset::{Dataset, DatasetError, DatasetId, Datasets, Snapshot};
use snowmelt_fs::vfs::{Vfs, VfsError, VfsOptions};
use snowmelt_pool::{PoolError, Syncer};

use crate::error::MountError;
use crate::mount::{Mount, MountOptions};

/// Interval of the check whether the wait for the end of mounts was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);

/// The mounts of a pool that this process has open.
pub struct Mounts {
    datasets: Arc<Datasets>,
    state: Mutex<State>,
    changed: Condvar,
    complain: fn(&str),
}

#[derive(Default)]
struct State {
    mounts: Vec<Arc<Mount>>,
    /// Being mounted, so not to be mounted twice.
    beginning: Vec<DatasetId>,
    /// Sees to it that commits happen, as long as anything is mounted.
    syncer: Option<Syncer>,
}

impl Mounts {
    /// No mounts yet. `complain` gets the errors that no one else gets in full.
    pub fn new(datasets: Arc<Datasets>, complain: fn(&str)) -> Arc<Self> {
        Arc::new(Self { datasets, state: Mutex::default(), changed: Condvar::new(), complain })
    }

    /// Mounts a dataset's head.
    ///
    /// # Errors
    /// [`MountError::Mounted`]; when it cannot be opened, or the system refuses.
    pub fn mount(
        self: &Arc<Self>,
        dataset: &Dataset,
        dir: &Path,
        properties: VfsOptions,
        options: &MountOptions,
    ) -> Result<Arc<Mount>, MountError> {
        let id = dataset.id;
        {
            let mut state = self.state.lock();
            if let Some(mount) = state.mounts.iter().find(|mount| is_head_of(mount, id)) {
                return Err(MountError::Mounted { dir: mount.dir().to_owned() });
            }
            if state.beginning.contains(&id) {
                return Err(MountError::Mounted { dir: dir.to_owned() });
            }
            state.beginning.push(id);
        }
        let mount = Vfs::open(self.datasets.clone(), dataset, properties)
            .map_err(MountError::from)
            .and_then(|vfs| self.begin(dataset.name.clone(), dir, vfs, options));
        self.state.lock().beginning.retain(|other| *other != id);
        mount
    }

    /// Mounts a snapshot, for reading.
    ///
    /// # Errors
    /// When it cannot be opened, or the system refuses.
    pub fn mount_snapshot(
        self: &Arc<Self>,
        snapshot: &Snapshot,
        dir: &Path,
        properties: VfsOptions,
        options: &MountOptions,
    ) -> Result<Arc<Mount>, MountError> {
        let vfs = Vfs::open_snapshot(self.datasets.clone(), snapshot, properties)?;
        self.begin(snapshot.full_name(), dir, vfs, options)
    }

    fn begin(
        self: &Arc<Self>,
        name: String,
        dir: &Path,
        vfs: Vfs,
        options: &MountOptions,
    ) -> Result<Arc<Mount>, MountError> {
        let complain = self.complain;
        let told = name.clone();
        let complain = Arc::new(move |error: &VfsError| complain(&format!("{told}: {}", chain(error))));
        let all = self.clone();
        // Held so that it cannot be over before it is in the list.
        let mut state = self.state.lock();
        let over = move |mount: &Arc<Mount>| {
            let mut state = all.state.lock();
            state.mounts.retain(|other| !Arc::ptr_eq(other, mount));
            let syncer = if state.mounts.is_empty() { state.syncer.take() } else { None };
            drop(state);
            // It may be in the middle of a commit, so not with the lock.
            drop(syncer);
            all.changed.notify_all();
        };
        let syncer = match state.syncer {
            Some(_) => None,
            None => Some(self.syncer().map_err(|source| MountError::Mount { dir: dir.to_owned(), source })?),
        };
        let mount = Mount::begin(name, dir, vfs, options, complain, over)?;
        state.mounts.push(mount.clone());
        state.syncer = state.syncer.take().or(syncer);
        Ok(mount)
    }

    fn syncer(&self) -> std::io::Result<Syncer> {
        let (complain, pool) = (self.complain, self.datasets.pool_name().to_owned());
        let failed = move |error: &PoolError| complain(&format!("{pool}: {}", chain(error)));
        Syncer::start(self.datasets.pool().clone(), failed)
    }

    /// The mounts.
    pub fn list(&self) -> Vec<Arc<Mount>> {
        self.state.lock().mounts.clone()
    }

    /// The mount of a dataset's head. Only the pool's owner can have one.
    pub fn head(&self, id: DatasetId) -> Option<Arc<Mount>> {
        self.state.lock().mounts.iter().find(|mount| is_head_of(mount, id)).cloned()
    }

    /// Datasets whose heads are mounted.
    pub fn heads(&self) -> HashSet<DatasetId> {
        let state = self.state.lock();
        let heads = state.mounts.iter().filter(|mount| !mount.vfs().is_snapshot());
        heads.map(|mount| mount.vfs().dataset_id()).collect()
    }

    /// The same, with the properties that options of each mount stand in for.
    pub fn chosen(&self) -> HashMap<DatasetId, Vec<(&'static str, bool)>> {
        let mounts = self.list();
        let heads = mounts.iter().map(|mount| mount.vfs()).filter(|vfs| !vfs.is_snapshot());
        heads.map(|vfs| (vfs.dataset_id(), vfs.chosen())).collect()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.state.lock().mounts.is_empty()
    }

    /// Waits until nothing is mounted. When `cancelled` becomes true everything is unmounted, in use or not.
    pub fn wait_until_none(&self, cancelled: &AtomicBool) {
        let mut forced = false;
        let mut state = self.state.lock();
        while !state.mounts.is_empty() {
            if cancelled.load(Ordering::Relaxed) && !forced {
                forced = true;
                let mounts = state.mounts.clone();
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    // Those inside others first.
                    for mount in mounts.iter().rev() {
                        if let Err(error) = mount.unmount(true) {
                            (self.complain)(&chain(&error));
                        }
                    }
                });
                continue;
            }
            self.changed.wait_for(&mut state, CANCEL_INTERVAL);
        }
    }

    /// To be called after a command that may have rolled back a mounted dataset, received into it, set its
    /// properties, or destroyed snapshots. Afterwards all users see the current state. Returns the number of mounts
    /// that had to be checked. Mounts of a pool without changes since the last time are not.
    pub fn refresh(&self) -> usize {
        let (mut wait, mut read) = (Duration::ZERO, 0);
        for mount in self.list() {
            let refreshed = mount.refresh();
            read += usize::from(!matches!(refreshed, Ok(None)));
            match refreshed {
                Ok(missed) => wait = wait.max(missed.unwrap_or_default()),
                // Destroyed while it was unmounted in use.
                Err(MountError::Vfs(VfsError::Dataset(DatasetError::NotFound { .. }))) => {}
                Err(error) => (self.complain)(&format!("{}: {}", mount.name(), chain(&error))),
            }
        }
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        read
    }
}

fn is_head_of(mount: &Mount, id: DatasetId) -> bool {
    !mount.vfs().is_snapshot() && mount.vfs().dataset_id() == id
}

/// An error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
