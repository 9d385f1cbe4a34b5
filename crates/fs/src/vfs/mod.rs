//! A filesystem dataset as something that is mounted: what FUSE, SFTP and the like serve, without their protocols.
//!
//! Files are named by inode numbers: of the dataset's head these are its object numbers, as in ZFS, so they stay the same
//! across remounts, rollback and replication. Snapshots show below `.zfs/snapshot`, with numbers of their own
//! ([`ino`](self::ino)).
//!
//! Rollback and receive may replace the head's whole content while it is mounted. An operation that meets that is done
//! again on the new content; an inode that was another file before is stale from then on ([`VfsError::Stale`]). Whoever
//! caches what it is told watches [`Vfs::epoch`].
//!
//! Locks: the table of inodes and that of snapshots are leaves; no transaction is begun, and no other lock taken, while
//! one of them is held.

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

/// Tries of an operation whose content is replaced under it.
const TRIES_MAX: usize = 8;

/// What of a pool is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Head(DatasetId),
    Snapshot(SnapshotId),
}

/// A mounted dataset or snapshot. All methods may be called from any number of threads, but from none that has a
/// transaction open.
pub struct Vfs {
    datasets: Arc<Datasets>,
    source: Source,
    /// The head; `None` for a snapshot.
    head: Option<Arc<Head>>,
    /// Keeps the head from being destroyed, until [`Vfs::close`].
    opened: Mutex<Option<OpenHead>>,
    options: RwLock<VfsOptions>,
    /// What the dataset's properties say: an option stays as it was chosen until its property changes.
    properties: Mutex<VfsOptions>,
    base: RwLock<Arc<Base>>,
    /// The content that was there when it was opened: as long as it is, no inode can be stale.
    first_epoch: u64,
    inodes: Inodes,
    snapshots: Snapshots,
    space: Mutex<Option<space::Cached>>,
}

/// Whoever asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Who {
    /// Owner of what is created.
    pub uid: u32,
    /// Group of what is created.
    pub gid: u32,
    /// Permission bits taken from what is created, unless a default ACL says otherwise.
    pub umask: u32,
}

impl Who {
    /// Now, by the host's clock.
    fn now(self) -> Caller {
        Caller { uid: self.uid, gid: self.gid, umask: self.umask, now: now() }
    }
}

/// What `stat` tells of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// All else; its `object` is that of the file in its dataset.
    pub attributes: Attributes,
    /// Space taken in units of 512 bytes, before compression; of large sparse files an estimate.
    pub blocks: u64,
    /// Bytes that are best read or written at once.
    pub block_size: u32,
}

impl Stat {
    /// The type of the file.
    pub fn kind(&self) -> FileKind {
        self.attributes.kind()
    }
}

impl Vfs {
    /// Opens a dataset's head. What was unlinked while it was open the last time is removed, unless it is opened for
    /// reading only.
    ///
    /// # Errors
    /// As [`Datasets::open_head`]; when it is no filesystem.
    pub fn open(datasets: Arc<Datasets>, dataset: &Dataset, options: VfsOptions) -> Result<Self, VfsError> {
        let head = datasets.open_head(dataset)?;
        let base = Base::of_head(&datasets, head.head())?;
        if let (Some(fs), false) = (base.view.writable(), options.read_only) {
            fs.drain_unlinked()?;
        }
        let properties = VfsOptions::of(&datasets.catalog(), dataset)?;
        Ok(Self::over(datasets, Source::Head(dataset.id), Some(head), base, options, properties))
    }

    /// Opens a snapshot, for reading.
    ///
    /// # Errors
    /// When it is no filesystem's, or cannot be read.
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

    /// The dataset that is mounted, or that the mounted snapshot is of.
    pub fn dataset_id(&self) -> DatasetId {
        match self.source {
            Source::Head(id) => id,
            Source::Snapshot(id) => id.dataset,
        }
    }

    /// Whether a snapshot is mounted, not a head.
    pub fn is_snapshot(&self) -> bool {
        self.head.is_none()
    }

    /// How it is mounted.
    pub fn options(&self) -> VfsOptions {
        *self.options.read()
    }

    /// Whether nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.options.read().read_only || self.base.read().view.writable().is_none()
    }

    /// Properties that an option of this mount stands in for, and whether they are on.
    pub fn chosen(&self) -> Vec<(&'static str, bool)> {
        self.options().differing(&self.properties.lock())
    }

    /// Changes when the content is replaced: whatever was cached from before is worthless.
    pub fn epoch(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.generation())
    }

    /// As [`Datasets::change_count`]: while it stays the same, so do the properties and the snapshots.
    pub fn change_count(&self) -> u64 {
        self.datasets.change_count()
    }

    /// Takes changed properties of the dataset over, as far as a mounted filesystem can.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn reload_properties(&self) -> Result<(), VfsError> {
        let Some(head) = &self.head else { return Ok(()) };
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(self.dataset_id())?;
        head.reload_properties(&catalog)?;
        if let Some(fs) = self.base()?.view.writable() {
            let options = snowmelt_dataset::write_options(&catalog, &dataset)?;
            // A mounted filesystem keeps the kind of ACLs that it was mounted with.
            fs.set_options(snowmelt_zpl::WriteOptions { posix_acl: fs.options().posix_acl, ..options })?;
        }
        let new = VfsOptions::of(&catalog, &dataset)?;
        let old = std::mem::replace(&mut *self.properties.lock(), new);
        if old == new {
            return Ok(());
        }
        if new.read_only && !old.read_only {
            // Everything that was done while that was allowed.
            self.sync()?;
        }
        let mut options = self.options.write();
        *options = options.following(&old, &new);
        Ok(())
    }

    /// Chooses other options; what only a new mount can change stays. Whoever makes it read-only sees to it first that
    /// nobody has anything open for writing.
    ///
    /// # Errors
    /// [`VfsError::ReadOnly`] when a snapshot is to be written.
    pub fn remount(&self, chosen: VfsOptions) -> Result<(), VfsError> {
        if self.is_snapshot() && !chosen.read_only {
            return Err(VfsError::ReadOnly);
        }
        // Everything that was done while that was allowed.
        self.sync()?;
        let mut options = self.options.write();
        *options = VfsOptions { posix_acl: options.posix_acl, ..chosen };
        Ok(())
    }

    /// Makes all that was done durable.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn sync(&self) -> Result<(), VfsError> {
        if let (Some(head), false) = (&self.head, self.is_read_only()) {
            head.sync()?;
        }
        Ok(())
    }

    /// Ends: nobody has anything open any more. What was unlinked goes, and all is made durable.
    ///
    /// # Errors
    /// When the pool cannot be written.
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

/// The host's time.
fn now() -> Timestamp {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(_) => Timestamp::default(),
    }
}
