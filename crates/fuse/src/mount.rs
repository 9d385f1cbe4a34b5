//! One mount: a thread that serves it, from mounting to whatever unmounts it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{Config, INodeNo, MountOption, Notifier, Session};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use snowmelt_fs::vfs::{Atime, Vfs, VfsError, VfsOptions};

use crate::error::MountError;
use crate::filesystem::Adapter;
use crate::kernel::{self, Complain};

/// Threads that answer requests: `fsync` keeps one for as long as a commit takes.
const THREADS: std::ops::RangeInclusive<usize> = 8..=32;

/// How to mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Others than the user who mounts may use it, as the files' permissions say.
    pub allow_other: bool,
}

/// A mounted dataset or snapshot.
pub struct Mount {
    /// Its full name.
    name: String,
    dir: PathBuf,
    vfs: Arc<Vfs>,
    notifier: Notifier,
    /// Content that the kernel knows of.
    epoch: AtomicU64,
    ended: Mutex<Ended>,
    end: Condvar,
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
        let config = config(&name, &vfs, options);
        let session = Session::new(Adapter::new(vfs.clone(), complain), &dir, &config)
            .map_err(|source| MountError::Mount { dir: dir.clone(), source })?;
        kernel::read_ahead(&dir);
        let mount = Arc::new(Self {
            name,
            dir,
            epoch: AtomicU64::new(vfs.epoch()),
            vfs,
            notifier: session.notifier(),
            ended: Mutex::new(Ended::No),
            end: Condvar::new(),
        });
        let served = mount.clone();
        let thread = std::thread::Builder::new().name("mount".to_owned());
        let spawned = thread.spawn(move || {
            // It ends when it is unmounted. What it fails with is a lost connection to the kernel: the same.
            let _ = session.run();
            let failure = served.vfs.close().err();
            over(&served);
            *served.ended.lock() = Ended::Yes(failure);
            served.end.notify_all();
        });
        match spawned {
            Ok(_) => Ok(mount),
            Err(source) => Err(MountError::Mount { dir: mount.dir.clone(), source }),
        }
    }

    /// The full name of what is mounted, as it was then.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is mounted.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// Unmounts it. What was written is durable only when [`Mount::wait`] returns.
    ///
    /// # Errors
    /// [`MountError::Busy`] while it is in use, unless forced: then it goes as soon as it is not.
    pub fn unmount(&self, force: bool) -> Result<(), MountError> {
        if self.is_over() {
            return Ok(());
        }
        unmount_at(&self.dir, force)
    }

    /// Changes how it is mounted: read-only or not, and what else options can say.
    ///
    /// # Errors
    /// [`MountError::Busy`] while something is open that could be written, when it is to be read-only;
    /// [`MountError::Remount`], to anybody but root; [`MountError::Vfs`] for a snapshot that is to be written.
    pub fn remount(&self, chosen: VfsOptions) -> Result<(), MountError> {
        let was = self.vfs.options();
        // The kernel knows what is open, so that it is first to refuse writes and last to allow them.
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
        let flags = [
            (chosen.read_only, MountFlags::RDONLY),
            // One of them, since with none it stays as it was.
            (chosen.atime == Atime::Off, MountFlags::NOATIME),
            (chosen.atime == Atime::Relative, MountFlags::RELATIME),
            (chosen.atime == Atime::Strict, MountFlags::STRICTATIME),
            (!chosen.devices, MountFlags::NODEV),
            (!chosen.exec, MountFlags::NOEXEC),
            (!chosen.setuid, MountFlags::NOSUID),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag);
        mount_remount(&self.dir, set.collect(), c"").map_err(|error| match error {
            Errno::BUSY => MountError::Busy { dir: self.dir.clone() },
            error => MountError::Remount { dir: self.dir.clone(), source: error.into() },
        })
    }

    /// Whether it is unmounted, and all is durable.
    pub fn is_over(&self) -> bool {
        matches!(*self.ended.lock(), Ended::Yes(_))
    }

    /// Waits until it is.
    ///
    /// # Errors
    /// When the last of it could not be written.
    pub fn wait(&self) -> Result<(), MountError> {
        let mut ended = self.ended.lock();
        while matches!(*ended, Ended::No) {
            self.end.wait(&mut ended);
        }
        match &mut *ended {
            Ended::Yes(failure) => failure.take().map_or(Ok(()), |failure| Err(failure.into())),
            Ended::No => Ok(()),
        }
    }

    /// If the content was replaced, makes the kernel forget what it knows of inodes. Says whether it was.
    pub(crate) fn forget_replaced(&self) -> bool {
        let epoch = self.vfs.epoch();
        if self.epoch.swap(epoch, Ordering::AcqRel) == epoch {
            return false;
        }
        let root = self.vfs.root().ok();
        for ino in
            self.vfs.inodes_in_use().into_iter().map(|ino| if Some(ino) == root { 1 } else { ino }).chain([1])
        {
            // It may have forgotten the inode by itself.
            let _ = self.notifier.inval_inode(INodeNo(ino), 0, 0);
        }
        true
    }
}

/// Unmounts what is at `dir`.
///
/// # Errors
/// [`MountError::Busy`] while it is in use, unless forced: then it goes as soon as it is not.
pub(crate) fn unmount_at(dir: &Path, force: bool) -> Result<(), MountError> {
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_with_helper(dir, force),
        Err(Errno::BUSY) => Err(MountError::Busy { dir: dir.to_owned() }),
        // Somebody was faster.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(MountError::Unmount { dir: dir.to_owned(), source: error.into() }),
    }
}

/// Only root may unmount, and those for whom `fusermount3` does it.
fn unmount_with_helper(dir: &Path, force: bool) -> Result<(), MountError> {
    let failed = |source| MountError::Unmount { dir: dir.to_owned(), source };
    let mut command = Command::new("fusermount3");
    command.arg(if force { "-uz" } else { "-u" }).arg("--").arg(dir).stdin(Stdio::null());
    let output = command.output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match said.contains("busy") {
        true => Err(MountError::Busy { dir: dir.to_owned() }),
        false => Err(failed(io::Error::other(said))),
    }
}

fn config(name: &str, vfs: &Vfs, options: &MountOptions) -> Config {
    let properties = vfs.options();
    let either = |is: bool, yes, no| if is { yes } else { no };
    let is_root = rustix::process::geteuid().is_root();
    let more = [
        either(vfs.is_read_only(), MountOption::RO, MountOption::RW),
        either(properties.exec, MountOption::Exec, MountOption::NoExec),
        either(properties.devices && is_root, MountOption::Dev, MountOption::NoDev),
        either(properties.setuid && is_root, MountOption::Suid, MountOption::NoSuid),
        either(properties.atime == Atime::Off, MountOption::NoAtime, MountOption::Atime),
    ];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores * 2).clamp(*THREADS.start(), *THREADS.end());
    kernel::config(name, "snowmelt", more, options.allow_other, threads)
}
