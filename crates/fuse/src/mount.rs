//! One mount, from mounting to whatever unmounts it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use snowmelt_fs::vfs::{Atime, Vfs, VfsError, VfsOptions};

use crate::attach::Attach;
use crate::error::MountError;
use crate::filesystem::{self, Adapter};
use crate::kernel::{self, Complain};
use crate::notify::Notifier;
use crate::server;
use crate::told::NamesTold;
use crate::unmount::unmount_at;

/// How to mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Users other than the one who mounts may use it, according to the permissions of the files.
    pub allow_other: bool,
}

/// A mounted dataset or snapshot.
pub struct Mount {
    /// Where it is mounted. The first is the one that counts; there is always one.
    places: Mutex<Vec<Place>>,
    vfs: Arc<Vfs>,
    notifier: Notifier,
    told: Arc<NamesTold>,
    /// How the kernel has it mounted.
    in_kernel: Mutex<VfsOptions>,
    /// Content that the kernel knows of.
    epoch: AtomicU64,
    /// The [`Vfs::change_count`] up to which the mount and the kernel are in line with the catalog. Locked while they
    /// are updated.
    followed: Mutex<Option<u64>>,
    ended: Mutex<Ended>,
    end: Condvar,
    is_forced: AtomicBool,
}

/// A directory where something is mounted.
#[derive(Debug, Clone)]
struct Place {
    /// Its full name, as it was then.
    name: String,
    dir: PathBuf,
    /// It was mounted read-only at this place, regardless of other places.
    read_only: bool,
}

/// Whether a mount is over.
enum Ended {
    No,
    /// With what went wrong at the end.
    Yes(Option<VfsError>),
}

impl Mount {
    /// Mounts, and calls `over` when it is unmounted and everything is durable.
    pub(crate) fn begin(
        name: String,
        dir: &Path,
        vfs: Vfs,
        options: &MountOptions,
        complain: Complain<VfsError>,
        over: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<Arc<Self>, MountError> {
        let dir = kernel::mount_point(dir)?;
        let vfs = Arc::new(vfs);
        let told = Arc::new(NamesTold::default());
        let failed = |source| MountError::Mount { dir: dir.clone(), source };
        let adapter = Arc::new(Adapter::new(vfs.clone(), told.clone(), complain));
        let wants = filesystem::wants(vfs.options().posix_acl);
        let device = attach(&name, &vfs, options).attach(&dir, &wants).map_err(failed)?;
        let notifier = Notifier::new(device.as_fd()).map_err(failed)?;
        kernel::read_ahead(&dir);
        let place = Place { name, dir, read_only: false };
        let mount = Arc::new(Self {
            places: Mutex::new(vec![place.clone()]),
            epoch: AtomicU64::new(vfs.epoch()),
            followed: Mutex::new(None),
            in_kernel: Mutex::new(vfs.options()),
            vfs,
            notifier,
            told,
            ended: Mutex::new(Ended::No),
            end: Condvar::new(),
            is_forced: AtomicBool::new(false),
        });
        let served = mount.clone();
        let begun = server::serve(device, adapter, move || {
            let failure = served.vfs.close().err();
            over(&served);
            *served.ended.lock() = Ended::Yes(failure);
            served.end.notify_all();
        });
        match begun {
            Ok(()) => Ok(mount),
            Err(source) => {
                // Accesses to it would not be answered.
                let _ = unmount_at(&place.dir, true);
                Err(MountError::Mount { dir: place.dir, source })
            }
        }
    }

    /// The full name of the dataset or snapshot at the time of the mount.
    pub fn name(&self) -> String {
        self.places.lock().first().map(|place| place.name.clone()).unwrap_or_default()
    }

    /// The full name of what is mounted, if its dataset is called `dataset` now.
    pub fn name_under(&self, dataset: &str) -> String {
        match self.name().split_once('@') {
            Some((_, snapshot)) => format!("{dataset}@{snapshot}"),
            None => dataset.to_owned(),
        }
    }

    /// Where it is mounted. If that is in several places, the first of them.
    pub fn dir(&self) -> PathBuf {
        self.places.lock().first().map(|place| place.dir.clone()).unwrap_or_default()
    }

    /// All directories where it is mounted.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.places.lock().iter().map(|place| place.dir.clone()).collect()
    }

    /// Mounts it in one more place, with the options in `chosen`. Only root may do this.
    ///
    /// # Errors
    /// [`MountError::Mounted`] if it is mounted there; [`MountError::Mount`] when the system refuses.
    pub fn mount_also(&self, name: &str, dir: &Path, chosen: &VfsOptions) -> Result<(), MountError> {
        let dir = kernel::mount_point(dir)?;
        let mut places = self.places.lock();
        if places.iter().any(|place| place.dir == dir && self.is_at(place)) {
            return Err(MountError::Mounted { dir });
        }
        let failed = |source| MountError::Mount { dir: dir.clone(), source };
        let read_only = chosen.read_only || self.vfs.is_read_only();
        let attach =
            Attach { flags: flags(chosen, read_only), ..attach(name, &self.vfs, &MountOptions::default()) };
        attach.mount_device(self.notifier.device(), &dir).map_err(failed)?;
        kernel::read_ahead(&dir);
        // Mounts that were unmounted by others.
        places.retain(|place| self.is_at(place));
        places.push(Place { name: name.to_owned(), dir, read_only });
        Ok(())
    }

    /// Unmounts it in one of several places.
    ///
    /// # Errors
    /// [`MountError::Busy`] while it is in use there, unless forced.
    pub fn leave(&self, dir: &Path, force: bool) -> Result<(), MountError> {
        unmount_at(dir, force)?;
        let mut places = self.places.lock();
        if places.len() > 1 {
            places.retain(|place| place.dir != dir);
        }
        Ok(())
    }

    /// Whether a place shows this mount, and not a later one on top of it.
    fn is_at(&self, place: &Place) -> bool {
        let mounted = crate::table::mounted().unwrap_or_default();
        mounted.iter().rev().find(|mounted| mounted.dir == place.dir).is_some_and(|it| it.name == place.name)
    }

    /// The mounted dataset or snapshot.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// Unmounts it. Written data is durable only when [`Mount::wait_for`] returns `true`.
    ///
    /// # Errors
    /// [`MountError::Busy`] while it is in use. With force, it is removed as soon as it is not.
    pub fn unmount(&self, force: bool) -> Result<(), MountError> {
        if self.is_over() {
            return Ok(());
        }
        let mut places = self.places.lock();
        // The first place is unmounted last: if one of the others is in use, the first one stays mounted.
        while places.len() > 1 {
            if let Some(last) = places.last().filter(|last| self.is_at(last)) {
                unmount_at(&last.dir, force)?;
            }
            places.pop();
        }
        if let Some(first) = places.first() {
            unmount_at(&first.dir, force)?;
        }
        drop(places);
        if force {
            self.is_forced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether it was unmounted by force: it ends as soon as it is no longer used, and nobody has to wait for this.
    pub fn is_forced(&self) -> bool {
        self.is_forced.load(Ordering::Acquire)
    }

    /// The device number that `stat(2)` shows of files in it, while it is mounted.
    pub fn device(&self) -> Option<u64> {
        rustix::fs::stat(self.dir()).ok().map(|stat| stat.st_dev)
    }

    /// Changes its mount options: read-only or not, and all others.
    ///
    /// # Errors
    /// [`MountError::Busy`] while something is open that could be written, when it is to be read-only;
    /// [`MountError::Remount`], to anybody but root; [`MountError::Vfs`] for a snapshot that is to be written.
    pub fn remount(&self, chosen: VfsOptions) -> Result<(), MountError> {
        let was = self.vfs.options();
        // The kernel knows the open files. So it is the first to refuse writes, and the last to allow them.
        if chosen.read_only {
            self.remount_in_kernel(&chosen)?;
            return Ok(self.vfs.remount(chosen)?);
        }
        self.vfs.remount(chosen)?;
        self.remount_in_kernel(&chosen).or_else(|error| {
            self.vfs.remount(was)?;
            Err(error)
        })
    }

    fn remount_in_kernel(&self, chosen: &VfsOptions) -> Result<(), MountError> {
        for place in self.places.lock().iter() {
            let flags = flags(chosen, chosen.read_only || place.read_only);
            mount_remount(&place.dir, flags, c"").map_err(|error| match error {
                Errno::BUSY => MountError::Busy { dir: place.dir.clone() },
                error => MountError::Remount { dir: place.dir.clone(), source: error.into() },
            })?;
        }
        *self.in_kernel.lock() = *chosen;
        Ok(())
    }

    /// Applies changed properties of the dataset. If the kernel cannot accept a change now, it applies here only, as
    /// far as possible: while a file is open for writing, the kernel keeps the mount writable, and each write is
    /// refused here. The kernel gets the change the next time. Returns whether nothing is left for the next time.
    fn follow_properties(&self) -> Result<bool, MountError> {
        self.vfs.reload_properties()?;
        if self.vfs.is_snapshot() || !rustix::process::geteuid().is_root() {
            return Ok(true);
        }
        let (is, was) = (self.vfs.options(), *self.in_kernel.lock());
        let flags = |options: &VfsOptions| {
            (options.read_only, options.atime, options.devices, options.exec, options.setuid)
        };
        if flags(&is) == flags(&was) {
            return Ok(true);
        }
        match self.remount_in_kernel(&is) {
            Err(MountError::Busy { .. }) => {
                self.remount_in_kernel(&VfsOptions { read_only: was.read_only, ..is }).map(|()| false)
            }
            done => done.map(|()| true),
        }
    }

    /// Whether it is unmounted, and all is durable.
    pub fn is_over(&self) -> bool {
        matches!(*self.ended.lock(), Ended::Yes(_))
    }

    /// Waits until it is, at most so long; whether it is.
    ///
    /// # Errors
    /// When the last data could not be written.
    pub fn wait_for(&self, limit: Duration) -> Result<bool, MountError> {
        let mut ended = self.ended.lock();
        if matches!(*ended, Ended::No) {
            self.end.wait_for(&mut ended, limit);
        }
        match &mut *ended {
            Ended::Yes(failure) => failure.take().map_or(Ok(true), |failure| Err(failure.into())),
            Ended::No => Ok(false),
        }
    }

    /// To be called after a command that may have changed properties, replaced the content or destroyed snapshots.
    /// Applies the properties, and invalidates outdated entries in the kernel's caches. Returns how long the kernel
    /// may still use names that are not known here. `None` if nothing in the pool changed since the last time, so
    /// that nothing was read.
    ///
    /// # Errors
    /// When the pool cannot be read, or the kernel refuses other options.
    pub(crate) fn refresh(&self) -> Result<Option<Duration>, MountError> {
        let mut up_to = self.followed.lock();
        let changes = self.vfs.change_count();
        let replaced = self.is_replaced();
        if *up_to == Some(changes) && !replaced {
            return Ok(None);
        }
        let followed = self.follow_properties();
        let gone = self.vfs.close_destroyed()?;
        let root = self.vfs.root().ok();
        let in_kernel = |ino: u64| if Some(ino) == root { 1 } else { ino };
        let mut wait = Duration::ZERO;
        if replaced || !gone.is_empty() {
            let inodes = if replaced { self.vfs.inodes_in_use() } else { gone };
            inodes.into_iter().map(in_kernel).chain([1]).for_each(|ino| self.notifier.inode(ino));
            let (names, missed) = self.told.all();
            for ((parent, name), inode) in names {
                let directory = if parent == 1 { root.unwrap_or(parent) } else { parent };
                if self.vfs.leads_to(directory, &name).ok().flatten() != Some(inode) {
                    self.notifier.name(parent, &name);
                }
            }
            wait = missed;
        }
        *up_to = followed?.then_some(changes);
        Ok(Some(wait))
    }

    /// Whether the content was replaced since the last time.
    fn is_replaced(&self) -> bool {
        let epoch = self.vfs.epoch();
        self.epoch.swap(epoch, Ordering::AcqRel) != epoch
    }
}

/// Flags of mount(2), for root. One of the atime flags is always given, because without one the old setting stays.
fn flags(chosen: &VfsOptions, read_only: bool) -> MountFlags {
    let flags = [
        (read_only, MountFlags::RDONLY),
        (chosen.atime == Atime::Off, MountFlags::NOATIME),
        (chosen.atime == Atime::Relative, MountFlags::RELATIME),
        (chosen.atime == Atime::Strict, MountFlags::STRICTATIME),
        (!chosen.devices, MountFlags::NODEV),
        (!chosen.exec, MountFlags::NOEXEC),
        (!chosen.setuid, MountFlags::NOSUID),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}

fn attach<'a>(name: &'a str, vfs: &Vfs, options: &MountOptions) -> Attach<'a> {
    let properties = vfs.options();
    let is_root = rustix::process::geteuid().is_root();
    let flags = [
        (vfs.is_read_only(), MountFlags::RDONLY),
        (!properties.exec, MountFlags::NOEXEC),
        (!properties.devices || !is_root, MountFlags::NODEV),
        (!properties.setuid || !is_root, MountFlags::NOSUID),
        (properties.atime == Atime::Off, MountFlags::NOATIME),
    ];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect();
    let allow_other = options.allow_other;
    Attach { name, subtype: "snowmelt", flags, allow_other, read_max: kernel::READ_MAX }
}
