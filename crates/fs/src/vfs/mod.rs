//! A mounted filesystem dataset: the operations that servers for FUSE, SFTP and similar protocols need.
//!
//! Files are identified by inode numbers. In the dataset's head these are object numbers, as in ZFS, so they stay the
//! same after remounts, rollback and replication. Snapshots are below `.zfs/snapshot` and have other numbers
//! ([`ino`]).
//!
//! Rollback and receive may replace the whole content of a mounted head. An operation that is affected is repeated on
//! the new content. An inode that was another file before becomes stale ([`VfsError::Stale`]). Callers that cache
//! results must watch [`Vfs::epoch`].
//!
//! The locks of the inode table and of the snapshot table are leaves. While one of them is held, no transaction is
//! begun and no other lock is taken.

mod attributes;
mod control;
mod data;
mod directory;
mod error;
pub mod ino;
mod inodes;
mod live;
mod names;
mod open;
mod options;
mod snapshots;
mod space;
mod view;

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use snowmelt_dataset::{Dataset, DatasetId, Datasets, Head, OpenHead, Snapshot, SnapshotId};
use snowmelt_zpl::{Attributes, Caller, FileKind, Timestamp};

pub use data::{FileRange, Seek, WriteHow};
pub use directory::Entry;
pub use error::VfsError;
pub use open::OpenFor;
pub use options::{Atime, SnapDir, VfsOptions};
pub use space::SpaceInfo;

use self::inodes::Inodes;
use self::snapshots::Snapshots;
use self::view::Base;

/// Maximum number of attempts of an operation whose content is replaced meanwhile.
const TRIES_MAX: usize = 8;

/// The mounted dataset or snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Head(DatasetId),
    Snapshot(SnapshotId),
}

/// A mounted dataset or snapshot. All methods may be called from several threads at once, but not from a thread that
/// has a transaction open.
pub struct Vfs {
    datasets: Arc<Datasets>,
    source: Source,
    /// The head; `None` for a snapshot.
    head: Option<Arc<Head>>,
    /// Keeps the head from being destroyed, until [`Vfs::close`].
    opened: Mutex<Option<OpenHead>>,
    options: RwLock<VfsOptions>,
    /// The options that follow from the dataset's properties. A chosen option stays until its property changes.
    properties: Mutex<VfsOptions>,
    base: RwLock<Arc<Base>>,
    /// The epoch at the time of opening. As long as it is current, no inode can be stale.
    first_epoch: u64,
    inodes: Inodes,
    snapshots: Snapshots,
    space: Mutex<Option<space::Cached>>,
}

/// The user who requests an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Who {
    /// Owner of what is created.
    pub uid: u32,
    /// Group of what is created.
    pub gid: u32,
    /// Permission bits that are removed from created objects, unless there is a default ACL.
    pub umask: u32,
}

impl Who {
    /// The caller at the current time of the host's clock.
    fn now(self) -> Caller {
        Caller { uid: self.uid, gid: self.gid, umask: self.umask, now: now() }
    }
}

/// The `stat` data of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// The attributes. Their `object` is the object number in the file's dataset.
    pub attributes: Attributes,
    /// Used space before compression, in units of 512 bytes. For large sparse files it is an estimate.
    pub blocks: u64,
    /// Best size of reads and writes, in bytes.
    pub block_size: u32,
}

impl Stat {
    /// The type of the file.
    pub fn kind(&self) -> FileKind {
        self.attributes.kind()
    }
}

impl Vfs {
    /// Opens a dataset's head. Files that were unlinked while open are removed, unless it is opened read-only.
    ///
    /// # Errors
    /// Like [`Datasets::open_head`], and if it is not a filesystem.
    pub fn open(datasets: Arc<Datasets>, dataset: &Dataset, options: VfsOptions) -> Result<Self, VfsError> {
        let head = datasets.open_head(dataset)?;
        let base = Base::of_head(&datasets, head.head())?;
        if let (Some(fs), false) = (base.view.writable(), options.read_only) {
            fs.drain_unlinked()?;
        }
        let properties = VfsOptions::of(&datasets.catalog(), dataset)?;
        Ok(Self::over(datasets, Source::Head(dataset.id), Some(head), base, options, properties))
    }

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    /// If it is not a snapshot of a filesystem, or cannot be read.
    pub fn open_snapshot(
        datasets: Arc<Datasets>,
        snapshot: &Snapshot,
        options: VfsOptions,
    ) -> Result<Self, VfsError> {
        let base = Base::of_snapshot(&datasets, snapshot)?;
        let options = VfsOptions { read_only: true, ..options };
        Ok(Self::over(datasets, Source::Snapshot(snapshot.id), None, base, options, options))
    }

    fn over(
        datasets: Arc<Datasets>,
        source: Source,
        head: Option<OpenHead>,
        base: Base,
        options: VfsOptions,
        properties: VfsOptions,
    ) -> Self {
        Self {
            datasets,
            source,
            head: head.as_ref().map(|head| head.head().clone()),
            opened: Mutex::new(head),
            options: RwLock::new(options),
            properties: Mutex::new(properties),
            first_epoch: base.epoch,
            base: RwLock::new(Arc::new(base)),
            inodes: Inodes::default(),
            snapshots: Snapshots::default(),
            space: Mutex::default(),
        }
    }

    /// The mounted dataset, or the dataset of the mounted snapshot.
    pub fn dataset_id(&self) -> DatasetId {
        match self.source {
            Source::Head(id) => id,
            Source::Snapshot(id) => id.dataset,
        }
    }

    /// Whether a snapshot is mounted.
    pub fn is_snapshot(&self) -> bool {
        self.head.is_none()
    }

    /// The options of the mount.
    pub fn options(&self) -> VfsOptions {
        *self.options.read()
    }

    /// Whether the mounted filesystem is read-only.
    pub fn is_read_only(&self) -> bool {
        self.options.read().read_only || self.base.read().view.writable().is_none()
    }

    /// The properties that options of this mount may override, with the values of the mount.
    pub fn chosen(&self) -> Vec<(&'static str, bool)> {
        let options = self.options();
        let mut chosen = options.differing(&self.properties.lock());
        // What is not granted here is off, whatever the property says.
        for (name, is_on) in [("devices", options.devices), ("setuid", options.setuid)] {
            if !chosen.iter().any(|(other, _)| *other == name) {
                chosen.push((name, is_on));
            }
        }
        chosen
    }

    /// A number that changes when the content is replaced. Anything cached before is invalid then.
    pub fn epoch(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.generation())
    }

    /// Like [`Datasets::change_count`]. As long as it stays the same, so do the properties and the snapshots.
    pub fn change_count(&self) -> u64 {
        self.datasets.change_count()
    }

    /// Applies changed properties of the dataset, if a mounted filesystem can change them.
    ///
    /// # Errors
    /// If the pool cannot be read.
    pub fn reload_properties(&self) -> Result<(), VfsError> {
        let Some(head) = &self.head else { return Ok(()) };
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(self.dataset_id())?;
        head.reload_properties(&catalog)?;
        if let Some(fs) = self.base()?.view.writable() {
            let options = snowmelt_dataset::write_options(&catalog, &dataset)?;
            // A mounted filesystem keeps its type of ACLs.
            fs.set_options(snowmelt_zpl::WriteOptions { posix_acl: fs.options().posix_acl, ..options })?;
        }
        let new = VfsOptions::of(&catalog, &dataset)?;
        let old = std::mem::replace(&mut *self.properties.lock(), new);
        if old == new {
            return Ok(());
        }
        if new.read_only && !old.read_only {
            // Changes that were made before are synced.
            self.sync()?;
        }
        let mut options = self.options.write();
        *options = options.following(&old, &new);
        Ok(())
    }

    /// Changes the options. Those that only a new mount can change stay. Before a change to read-only, the caller makes
    /// sure that no file is open for writing.
    ///
    /// # Errors
    /// [`VfsError::ReadOnly`] if a snapshot should become writable.
    pub fn remount(&self, chosen: VfsOptions) -> Result<(), VfsError> {
        if self.is_snapshot() && !chosen.read_only {
            return Err(VfsError::ReadOnly);
        }
        // Changes that were made before are synced.
        self.sync()?;
        let mut options = self.options.write();
        *options = VfsOptions { posix_acl: options.posix_acl, ..chosen };
        Ok(())
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn sync(&self) -> Result<(), VfsError> {
        if let (Some(head), false) = (&self.head, self.is_read_only()) {
            head.sync()?;
        }
        Ok(())
    }

    /// Ends the mount. All files must be closed. Unlinked files are removed, and all changes are made durable.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn close(&self) -> Result<(), VfsError> {
        self.inodes.clear();
        self.snapshots.clear();
        // Others may have a reference to this for a moment more. The dataset can be destroyed all the same.
        let _opened = self.opened.lock().take();
        if self.is_read_only() {
            return Ok(());
        }
        if let Some(fs) = self.base()?.view.writable() {
            fs.drain_unlinked()?;
        }
        self.sync()
    }
}

/// The current time of the host.
fn now() -> Timestamp {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(_) => Timestamp::default(),
    }
}
