//! The head of a dataset, open for writing: the equivalent of ZFS's DMU.
//!
//! Changes collect in memory, in a layer above the objset tree, and are written to the tree before each commit
//! ([`Writeback`]). A block that is written a hundred times in a txg is compressed, hashed
//! and stored once. All changes of one transaction are in the same txg.

mod allocate;
mod flush;
mod holes;
mod known;
mod locks;
mod objects;
mod overlay;
mod read;
mod spare;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use snowmelt_pool::{Hold, Pool, PoolError, Tree, Txg, Writeback};
use snowmelt_stream::features::Features;
use snowmelt_zpl::{Room, SourceError};

use self::allocate::Allocator;
use self::known::Known;
use self::locks::BlockLocks;
use self::overlay::Layers;
use self::spare::Spare;
use crate::catalog::{Catalog, Dataset, DatasetId, Kind};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::limits::{Limits, Side};
use crate::objset::{ObjectSet, ObjsetKey};
use crate::receive::prepare::Codec;

/// A dataset's head, shared by all openers: see [`Datasets::open_head`].
pub struct Head {
    pool: Arc<Pool>,
    id: DatasetId,
    kind: Kind,
    /// Replaced by rollback and receive. Both are sync tasks, so no transaction is open meanwhile.
    tree: RwLock<Arc<Tree>>,
    layers: Mutex<Layers>,
    known: Known,
    spare: Spare,
    blocks: BlockLocks,
    /// Held while layers are written to the tree. Taken with a hold, or by the commit.
    writing: Mutex<()>,
    allocator: Mutex<Allocator>,
    codec: Mutex<Codec>,
    /// Features of the content that are missing in the dataset's record.
    new_features: AtomicU64,
    /// Whether it belongs to a staging writer, and is not the dataset's head yet.
    staged: bool,
    /// Bytes of large whole blocks that a staging writer wrote since it last asked the pool to write out.
    streamed: AtomicUsize,
    /// For the head of a shadow.
    shadow: Option<Mutex<ShadowObjects>>,
    /// How often the tree was replaced.
    generation: AtomicU64,
    limits: Arc<Limits>,
    /// Bytes kept in memory or promised, over all heads of the dataset.
    inflight: Arc<AtomicU64>,
    /// Number of its [`OpenHead`]s.
    openers: AtomicUsize,
}

pub use self::locks::LockedBlocks;

/// How the data of objects in a shadow is stored. For objects in neither set, only blocks that differ from the old ones
/// are stored.
#[derive(Default)]
struct ShadowObjects {
    /// Objects whose data is only referred to.
    outside: ObjectSet,
    /// Objects whose data is always stored.
    inside: ObjectSet,
}

/// A transaction on a head. It ends when it is dropped.
pub struct Tx<'a> {
    hold: Hold<'a>,
    inflight: &'a AtomicU64,
    /// Promised bytes that are not used yet.
    room: AtomicU64,
}

impl Tx<'_> {
    /// The txg of its changes.
    pub fn txg(&self) -> Txg {
        self.hold.txg()
    }

    /// Counts `bytes` that are kept in memory. They use promised bytes; the rest is promised now.
    fn keep(&self, bytes: u64) {
        let take = |room: u64| Some(room.saturating_sub(bytes));
        let room = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        // More bytes than promised are kept only after a wrong estimate. The reserve covers them.
        if bytes > room {
            self.hold.promise_anyway(bytes - room);
            self.inflight.fetch_add(bytes - room, Ordering::Relaxed);
        }
    }

    /// Releases promised bytes: they were written, or will never be.
    fn fulfil(&self, bytes: u64) {
        self.hold.fulfil(bytes);
        take(self.inflight, bytes);
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        self.fulfil(self.room.load(Ordering::Relaxed));
    }
}

fn take(from: &AtomicU64, bytes: u64) {
    let _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_sub(bytes)));
}

impl Head {
    fn open(catalog: &Catalog, dataset: &Dataset, limits: &Arc<Limits>) -> Result<Arc<Self>, DatasetError> {
        let tree = catalog.pool().tree(dataset.record.head)?;
        Self::over(catalog, dataset, limits, tree, None, false)
    }

    /// The head of a tree that becomes the dataset's head when it is finished. In a `shadow`, data can be external.
    pub(crate) fn staged(
        catalog: &Catalog,
        dataset: &Dataset,
        limits: &Arc<Limits>,
        tree: Arc<Tree>,
        shadow: bool,
    ) -> Result<Arc<Self>, DatasetError> {
        Self::over(catalog, dataset, limits, tree, shadow.then(Mutex::default), true)
    }

    fn over(
        catalog: &Catalog,
        dataset: &Dataset,
        limits: &Arc<Limits>,
        tree: Arc<Tree>,
        shadow: Option<Mutex<ShadowObjects>>,
        staged: bool,
    ) -> Result<Arc<Self>, DatasetError> {
        let pool = catalog.pool().clone();
        let past = past_objects(&tree)?;
        let head = Arc::new(Self {
            pool,
            id: dataset.id,
            kind: dataset.record.kind,
            tree: RwLock::new(tree),
            layers: Mutex::default(),
            known: Known::default(),
            spare: Spare::default(),
            blocks: BlockLocks::default(),
            writing: Mutex::default(),
            allocator: Mutex::new(Allocator::new(past)),
            codec: Mutex::new(codec(catalog, dataset)?),
            new_features: AtomicU64::new(0),
            staged,
            streamed: AtomicUsize::new(0),
            shadow,
            generation: AtomicU64::new(0),
            inflight: limits.inflight(dataset.id),
            limits: limits.clone(),
            openers: AtomicUsize::new(0),
        });
        let writeback: Arc<dyn Writeback> = head.clone();
        head.pool.register(Arc::downgrade(&writeback));
        Ok(head)
    }

    /// Features of the content that are missing in the dataset's record.
    pub(crate) fn new_features(&self) -> Features {
        Features(self.new_features.load(Ordering::Relaxed))
    }

    /// Drops the changes in memory, which are not needed any more.
    pub(crate) fn forget(&self) {
        // The hold is taken before the lock. Otherwise a thread with a hold could wait for the lock while a commit
        // waits for its hold and admits no new one.
        let hold = self.pool.begin_free();
        let _writing = self.writing.lock();
        let layers = std::mem::take(&mut *self.layers.lock());
        self.known.forget_all();
        if let Ok(hold) = hold {
            self.fulfil(&hold, layers.active.bytes + layers.below.map_or(0, |below| below.bytes));
        }
    }

    fn is_open(&self) -> bool {
        self.openers.load(Ordering::Acquire) > 0
    }

    /// Releases promised bytes of changes that are in the tree now, or were dropped.
    fn fulfil(&self, hold: &Hold<'_>, bytes: u64) {
        hold.fulfil(bytes);
        take(&self.inflight, bytes);
    }

    /// Makes the data that is written to an object from now on external: the pool's [outside](snowmelt_pool::Outside)
    /// must find it under the object's number and the same offset. This works only in the head of a shadow. Such a head
    /// returns zeros for external data written before, so callers must write whole blocks.
    pub fn refer_outside(&self, object: u64) {
        if let Some(shadow) = &self.shadow {
            shadow.lock().outside.insert(object);
        }
    }

    /// Stores the data that is written to an object of a shadow from now on in the pool, even if it is equal to the
    /// external block before.
    pub fn keep_inside(&self, object: u64) {
        if let Some(shadow) = &self.shadow {
            shadow.lock().inside.insert(object);
        }
    }

    /// The dataset's id.
    pub fn id(&self) -> DatasetId {
        self.id
    }

    /// Filesystem or volume.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A number that changes whenever rollback or receive replaces the whole content. It does not change while a
    /// transaction is open. If it is unchanged in a transaction, what was read before the transaction is still valid.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Bytes that its content takes in the pool, as of the last commit.
    pub fn referenced(&self) -> u64 {
        self.tree().stats().physical
    }

    fn tree(&self) -> Arc<Tree> {
        self.tree.read().clone()
    }

    /// Begins a transaction, after a commit if enough is dirty. A transaction that frees as much as it writes can begin
    /// even if the pool is full or a quota is reached.
    ///
    /// # Errors
    /// [`SourceError::NoSpace`], [`SourceError::QuotaExceeded`], [`SourceError::ReadOnly`]; when the pool cannot be
    /// written.
    pub fn begin(&self, room: Room) -> Result<Tx<'_>, SourceError> {
        let refused = objects::source_error(0, 0);
        self.pool.maybe_commit().map_err(|error| refused(error.into()))?;
        let (hold, bytes) = match room {
            Room::Write(bytes) => (self.begin_write(bytes).map_err(refused)?, bytes),
            Room::Free => (self.begin_free().map_err(|error| refused(error.into()))?, 0),
        };
        self.inflight.fetch_add(bytes, Ordering::Relaxed);
        Ok(Tx { hold, inflight: &self.inflight, room: AtomicU64::new(bytes) })
    }

    fn begin_write(&self, bytes: u64) -> Result<Hold<'_>, DatasetError> {
        let promise = |hold: &Hold<'_>, reserved| hold.promise_beside(bytes, reserved);
        let into = if self.staged { Side::Beside } else { Side::Head };
        self.limits.begin(&self.pool, self.id, into, bytes, promise)
    }

    fn begin_free(&self) -> Result<Hold<'_>, PoolError> {
        self.limits.written(self.id);
        let hold = self.pool.begin_free()?;
        // Promises nothing, but marks the txg as dirty so that it is committed.
        hold.promise(0)?;
        Ok(hold)
    }

    /// Locks the blocks `first..past` of a volume until the result is dropped. Must be called in a transaction: no
    /// holder of this lock waits for a commit.
    pub fn lock_blocks(&self, first: u64, past: u64) -> LockedBlocks<'_> {
        self.blocks.lock(first, past)
    }

    /// Makes all changes durable (like `zil_commit`). Concurrent callers share one commit.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn sync(&self) -> Result<(), DatasetError> {
        self.pool.commit()?;
        Ok(())
    }

    /// Reads the properties that affect writing from the catalog. Must be called after `set`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn reload_properties(&self, catalog: &Catalog) -> Result<(), DatasetError> {
        let dataset = catalog.dataset_by_id(self.id)?;
        *self.codec.lock() = codec(catalog, &dataset)?;
        Ok(())
    }

    /// Replaces the head's tree. Must be called in a sync task.
    fn replaced(&self, tree: Arc<Tree>) -> Result<(), DatasetError> {
        *self.allocator.lock() = Allocator::new(past_objects(&tree)?);
        *self.layers.lock() = Layers::default();
        *self.tree.write() = tree;
        self.known.forget_all();
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

fn codec(catalog: &Catalog, dataset: &Dataset) -> Result<Codec, DatasetError> {
    let value = catalog.inherited_property(dataset, "compression")?;
    Ok(Codec::of_property(value.as_ref().map_or("on", |(value, ..)| value)))
}

/// The first object number after all used ones.
fn past_objects(tree: &Tree) -> Result<u64, DatasetError> {
    let Some((key, _)) = tree.view().last_before(&[0xff; 9])? else { return Ok(1) };
    let object = ObjsetKey::decode(&key)?.object();
    let slots = match tree.get(&ObjsetKey::Dnode { object }.encode())? {
        Some(entry) => u64::from(crate::objset::Dnode::decode(&entry.value)?.slots),
        None => 1,
    };
    Ok(object + slots)
}

/// A reference to an open head. While one exists, the dataset cannot be destroyed.
pub struct OpenHead(Arc<Head>);

impl OpenHead {
    fn new(head: Arc<Head>) -> Self {
        head.openers.fetch_add(1, Ordering::AcqRel);
        Self(head)
    }

    /// The head, for parts of the opener that end no later than this reference.
    pub fn head(&self) -> &Arc<Head> {
        &self.0
    }
}

impl Deref for OpenHead {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.0
    }
}

impl Clone for OpenHead {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for OpenHead {
    fn drop(&mut self) {
        self.0.openers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Datasets {
    /// Opens the head of a dataset for reading and writing. All openers share one [`Head`].
    ///
    /// # Errors
    /// [`DatasetError::Busy`] while its first receive has not ended, [`DatasetError::Encrypted`] without its key;
    /// when the pool cannot be read.
    pub fn open_head(&self, dataset: &Dataset) -> Result<OpenHead, DatasetError> {
        let mut heads = self.heads.lock();
        if let Some(head) = heads.get(&dataset.id) {
            return Ok(OpenHead::new(head.clone()));
        }
        let catalog = self.catalog();
        let dataset = catalog.dataset_by_id(dataset.id)?;
        if dataset.record.inconsistent {
            return Err(DatasetError::Busy { name: dataset.name });
        }
        let objset = catalog.head(&dataset)?;
        if objset.is_encrypted() {
            return Err(objset.encrypted(0));
        }
        let head = Head::open(&catalog, &dataset, &self.limits)?;
        heads.retain(|_, other| Arc::strong_count(other) > 1 || other.is_dirty());
        heads.insert(dataset.id, head.clone());
        Ok(OpenHead::new(head))
    }

    /// Writes the changes of open heads to their trees, so that the catalog shows them.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn settle(&self) -> Result<(), DatasetError> {
        let dirty = self.heads.lock().values().any(|head| head.is_dirty());
        if dirty {
            self.pool().commit()?;
        }
        Ok(())
    }

    /// Whether an [`OpenHead`] of the dataset exists.
    pub fn is_open(&self, id: DatasetId) -> bool {
        self.heads.lock().get(&id).is_some_and(|head| head.is_open())
    }

    /// Closes the head of a dataset that will be destroyed. Returns `false`, and does not close it, when changes in
    /// memory must be written first.
    ///
    /// # Errors
    /// [`DatasetError::Busy`] while it is open.
    pub(crate) fn close_head(&self, id: DatasetId, name: &str) -> Result<bool, DatasetError> {
        let mut heads = self.heads.lock();
        let Some(head) = heads.get(&id) else { return Ok(true) };
        if head.is_open() {
            return Err(DatasetError::Busy { name: name.to_owned() });
        }
        // A commit may hold a reference for a moment. It writes nothing for a head without changes.
        if head.is_dirty() {
            return Ok(false);
        }
        heads.remove(&id);
        Ok(true)
    }

    /// Replaces the tree of an open head. Its openers continue with the new tree.
    pub(crate) fn replace_head(&self, id: DatasetId, tree: Arc<Tree>) -> Result<(), DatasetError> {
        let head = self.heads.lock().get(&id).cloned();
        head.map_or(Ok(()), |head| head.replaced(tree))
    }
}
