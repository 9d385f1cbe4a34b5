//! Volumes as files of one directory, as `/dev/zvol` has them: for loop devices, qemu, and whatever else wants a path.

mod adapter;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use fuser::{Config, MountOption, Session};
use parking_lot::Mutex;
use snowmelt_dataset::{DatasetError, Datasets};

use crate::error::MountError;
use crate::kernel;
use crate::mount::unmount_at;
use adapter::Adapter;
use tree::Tree;

/// Threads that answer requests: `fsync` keeps one for as long as a commit takes.
const THREADS: usize = 8;

/// What to show, and how.
#[derive(Debug, Clone, Default)]
pub struct VolumesOptions {
    /// Names of volumes, of snapshots of volumes, or of filesystems, for all volumes below.
    pub targets: Vec<String>,
    /// Nothing can be written.
    pub read_only: bool,
    /// Others than the user who mounts may use it, as the files' permissions say: those of its owner only.
    pub allow_other: bool,
}

/// A directory of volumes, mounted.
pub struct VolumesMount {
    dir: PathBuf,
    datasets: Arc<Datasets>,
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl VolumesMount {
    /// Mounts on a directory. `complain` is told what went wrong that nobody else is told in full.
    ///
    /// # Errors
    /// When there is no such directory, or the system refuses.
    pub fn begin(
        datasets: Arc<Datasets>,
        dir: &Path,
        options: VolumesOptions,
        complain: fn(&str),
    ) -> Result<Self, MountError> {
        let dir = kernel::mount_point(dir)?;
        let config = config(datasets.pool_name(), &options);
        let tree = Arc::new(Tree::new(datasets.clone(), options.targets, options.read_only));
        let complain =
            Arc::new(move |error: &snowmelt_volume::VolumeError| complain(&crate::mounts::chain(error)));
        let session = Session::new(Adapter::new(tree, complain), &dir, &config)
            .map_err(|source| MountError::Mount { dir: dir.clone(), source })?;
        kernel::read_ahead(&dir);
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = is_over.clone();
        let thread = std::thread::Builder::new().name("volumes".to_owned()).spawn(move || {
            // It ends when it is unmounted. What it fails with is a lost connection to the kernel: the same.
            let _ = session.run();
            ended.store(true, Ordering::Release);
        });
        let thread = thread.map_err(|source| MountError::Mount { dir: dir.clone(), source })?;
        Ok(Self { dir, datasets, is_over, thread: Mutex::new(Some(thread)) })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it was unmounted.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Unmounts it. What was written is durable only when [`VolumesMount::wait`] returns.
    ///
    /// # Errors
    /// [`MountError::Busy`] while it is in use, unless forced: then it goes as soon as it is not.
    pub fn unmount(&self, force: bool) -> Result<(), MountError> {
        if self.is_over() { Ok(()) } else { unmount_at(&self.dir, force) }
    }

    /// Waits until it is unmounted and all is durable.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn wait(&self) -> Result<(), DatasetError> {
        if let Some(thread) = self.thread.lock().take() {
            // A panic of it was told already.
            let _ = thread.join();
        }
        if !self.datasets.pool().is_read_only() {
            self.datasets.pool().commit()?;
        }
        Ok(())
    }
}

fn config(pool: &str, options: &VolumesOptions) -> Config {
    let more = [
        if options.read_only { MountOption::RO } else { MountOption::RW },
        MountOption::NoExec,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    kernel::config(pool, "snowmelt-volumes", more, options.allow_other, THREADS)
}
