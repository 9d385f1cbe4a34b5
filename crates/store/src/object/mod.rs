//! A store in a bucket of an object store: S3 and compatible services, Google Cloud Storage, Azure Blob Storage.
//!
//! Keys, bytes, crash argument and fencing argument: `docs/format/object-store.md`.
//!
//! Lock order: `syncing`, then `published`, then `state`. No request is made while `state` is locked. Publications
//! are made one after the other, with `published` locked.

mod backend;
mod cache;
mod fence;
mod lifecycle;
mod limited;
mod local;
mod parts;
mod publication;
mod reading;
mod refusal;
mod remote;
mod segments;
#[cfg(test)]
mod tests;
mod windows;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use cache::check_cache;
pub use lifecycle::{CACHE_BYTES, take_over};

use crate::gate::Gate;
use crate::label::{Label, PoolLabel};
use crate::{
    CacheLocation, CacheStatus, Capacity, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError,
    Traffic, UBERBLOCK_MAX, runtime,
};
use cache::Disk;
use fence::{Fence, Published};
use local::LocalLock;
use publication::Writer;
use remote::{Patience, Remote};
use segments::State;
use windows::Windows;

/// The maximum length of a segment. A single request can put an object of this length, so no incomplete uploads
/// remain.
const SEGMENT_CAPACITY: u64 = 64 << 20;
/// The free space that is reported for a bucket, which has no limit.
const ROOM: u64 = 1 << 60;
/// Maximum number of parts that are uploaded at once. Together with the open segments, this limits the memory use.
const UPLOADS_MAX: usize = 4;
/// How long the objects of a deleted segment are kept for processes that read without being the owner.
const DELETE_AFTER: Duration = Duration::from_secs(15 * 60);

/// An open pool below a prefix of a bucket.
pub struct ObjectStore {
    inner: Arc<Inner>,
}

/// The state that the store shares with its upload threads.
struct Inner {
    /// The address of the pool.
    url: PathBuf,
    remote: Remote,
    gate: Gate,
    /// Set when another owner was found.
    fence: Fence,
    label: Mutex<Label>,
    writer: Writer,
    /// The number of this owner.
    epoch: u64,
    syncing: Mutex<()>,
    published: Mutex<Published>,
    state: Mutex<State>,
    /// Notified when an upload has ended.
    arrived: Condvar,
    windows: Windows,
    /// The cache on a local disk, or why it cannot be used.
    disk: Option<Disk>,
    delete_after: Duration,
    recheck_after: Duration,
    /// The owner's lock on this machine.
    _lock: Option<LocalLock>,
}

impl std::fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectStore").field("url", &self.inner.url).finish_non_exhaustive()
    }
}

/// The process that opens a store, and its options. A test simulates several machines in one process.
#[derive(Debug, Clone)]
pub(crate) struct Opener {
    pub(crate) writer: Writer,
    pub(crate) patience: Patience,
    pub(crate) delete_after: Duration,
    /// The place of the cache on a local disk.
    pub(crate) cache: Option<CacheLocation>,
    pub(crate) recheck_after: Duration,
    /// Whether the pool may be taken over from another machine.
    pub(crate) take_over: bool,
    /// Whether to take the lock among processes of this machine.
    pub(crate) lock: bool,
}

impl ObjectStore {
    /// Counts of requests and bytes since the store was opened.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.inner.remote.traffic()
    }

    /// Renames the pool.
    ///
    /// # Errors
    /// `Invalid` for an invalid name or for another guid; `ReadOnly`, `Remote`, `Fenced`.
    pub fn set_label(&self, pool: &PoolLabel) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        inner.claim()?;
        let mut label = inner.label.lock();
        let renamed = label.renamed(pool, &inner.url)?;
        inner
            .remote
            .put(lifecycle::LABEL, &[renamed.encode().into()])
            .map_err(|error| inner.refused("write the label of", error))?;
        *label = renamed;
        Ok(())
    }
}

/// The control socket of the owner on this machine.
pub(crate) fn control_socket(url: &Path) -> Option<PathBuf> {
    runtime::of_place(&backend::identity(url))
}

impl Inner {
    /// # Errors
    /// Why writes are refused.
    fn check(&self) -> Result<()> {
        self.fence.check(&self.url)?;
        self.gate.check()
    }

    fn refused(&self, op: &'static str, error: object_store::Error) -> StoreError {
        refusal::explain(op, &self.url, &error)
    }

    /// Seconds since 1970.
    fn now() -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

impl Store for ObjectStore {
    fn segment_capacity(&self) -> u64 {
        SEGMENT_CAPACITY
    }

    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.inner.check()?;
        self.inner.create_segment(id)
    }

    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.append_all(id, offset, &[std::io::IoSlice::new(data)])
    }

    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[std::io::IoSlice<'_>]) -> Result<()> {
        self.inner.check()?;
        self.inner.append(id, offset, pieces)
    }

    fn sync(&self) -> Result<()> {
        let _syncing = self.inner.syncing.lock();
        self.inner.check()?;
        Inner::sync(&self.inner)
    }

    fn sync_early(&self) -> Result<()> {
        // Does not upload: the data goes up with the commit, and uploading parts of it now would cost extra requests.
        self.inner.check()
    }

    fn start_writeback(&self, _id: SegmentId, _offset: u64, _len: u64) {}

    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.inner.check()?;
        self.inner.reopen_segment(id, len)
    }

    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.inner.check()?;
        Inner::seal_segment(&self.inner, id)
    }

    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read(id, offset, buf)
    }

    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        self.inner.segments()
    }

    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.inner.check()?;
        self.inner.delete_segment(id)
    }

    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        if uberblock.len() > UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        self.inner.check()?;
        Inner::publish(&self.inner, RawUberblock { txg, bytes: uberblock.to_vec() })
    }

    fn commit(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        if uberblock.len() > UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        let _syncing = self.inner.syncing.lock();
        self.inner.check()?;
        Inner::sync_for_publication(&self.inner)?;
        Inner::publish(&self.inner, RawUberblock { txg, bytes: uberblock.to_vec() })
    }

    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        Ok(self.inner.published.lock().ring.iter().cloned().collect())
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total: None, free: ROOM, by_slots: false })
    }

    fn describe(&self) -> String {
        self.inner.url.display().to_string()
    }

    fn control_socket(&self) -> Option<PathBuf> {
        control_socket(&self.inner.url)
    }

    fn destroy(&self) -> Result<()> {
        let _syncing = self.inner.syncing.lock();
        self.inner.check()?;
        self.inner.claim()?;
        self.inner.gate.destroy();
        self.inner.destroy()
    }

    fn traffic(&self) -> Option<Traffic> {
        Some(self.traffic())
    }

    fn cache(&self) -> Option<CacheStatus> {
        self.inner.disk.as_ref().map(Disk::status)
    }

    fn set_cache_size(&self, max_bytes: u64) {
        if let Some(disk) = &self.inner.disk {
            disk.set_max(max_bytes);
        }
    }
}
