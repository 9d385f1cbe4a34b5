//! Volumes as files of one directory, as `/dev/zvol` has them: for loop devices, qemu, and whatever else wants a path.

mod adapter;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::mount::MountFlags;
use snowmelt_dataset::{DatasetError, Datasets};

use crate::attach::Attach;
use crate::error::MountError;
use crate::kernel;
use crate::server;
use crate::unmount::unmount_at;
use adapter::Adapter;
use tree::Tree;

/// What to show, and how.
#[derive(Debug, Clone, Default)]
pub struct VolumesOptions {
    /// Names of volumes, of snapshots of volumes, or of filesystems, for all volumes below.
    pub targets: Vec<String>,
    /// Nothing can be written.
    pub read_only: bool,
    /// Users other than the one who mounts may use it, according to the permissions of the files: only the owner has
    /// access.
    pub allow_other: bool,
}

/// A directory of volumes, mounted.
pub struct VolumesMount {
    dir: PathBuf,
    datasets: Arc<Datasets>,
    over: Arc<(Mutex<bool>, Condvar)>,
}

impl VolumesMount {
    /// Mounts on a directory. `complain` gets the errors that no one else gets in full.
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
        let attach = Attach {
            name: datasets.pool_name(),
            subtype: "snowmelt-volumes",
            flags: flags(&options),
            allow_other: options.allow_other,
            read_max: kernel::READ_MAX,
        };
        let tree = Arc::new(Tree::new(datasets.clone(), options.targets, options.read_only));
        let complain =
            Arc::new(move |error: &snowmelt_volume::VolumeError| complain(&crate::mounts::chain(error)));
        let failed = |source| MountError::Mount { dir: dir.clone(), source };
        let device = attach.attach(&dir, &adapter::wants()).map_err(failed)?;
        kernel::read_ahead(&dir);
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let ended = over.clone();
        let begun = server::serve(device, Arc::new(Adapter::new(tree, complain)), move || {
            *ended.0.lock() = true;
            ended.1.notify_all();
        });
        if let Err(error) = begun {
            // Accesses to it would not be answered.
            let _ = unmount_at(&dir, true);
            return Err(failed(error));
        }
        Ok(Self { dir, datasets, over })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it was unmounted.
    pub fn is_over(&self) -> bool {
        *self.over.0.lock()
    }

    /// Unmounts it. Written data is durable only when [`VolumesMount::wait`] returns.
    ///
    /// # Errors
    /// [`MountError::Busy`] while it is in use. With force, it is removed as soon as it is not.
    pub fn unmount(&self, force: bool) -> Result<(), MountError> {
        if self.is_over() { Ok(()) } else { unmount_at(&self.dir, force) }
    }

    /// Waits until it is unmounted and all is durable.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn wait(&self) -> Result<(), DatasetError> {
        let mut over = self.over.0.lock();
        while !*over {
            self.over.1.wait(&mut over);
        }
        drop(over);
        if !self.datasets.pool().is_read_only() {
            self.datasets.pool().commit()?;
        }
        Ok(())
    }
}

fn flags(options: &VolumesOptions) -> MountFlags {
    let read_only = if options.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    read_only | MountFlags::NOEXEC | MountFlags::NODEV | MountFlags::NOSUID
}
