//! The head of a dataset, open for writing: ZFS's DMU.
//!
//! Changes collect in memory, in a layer above the objset tree, and are written to it before each commit
//! ([`Writeback`](snowmelt_pool::Writeback)): a block that is written a hundred times in a txg is compressed, hashed and
//! stored once. All that is done in one transaction lands in one txg.

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

/// A dataset's head, shared by all who have it open: see [`Datasets::open_head`].
pub struct Head {
    pool: Arc<Pool>,
    id: DatasetId,
    kind: Kind,
    /// Replaced by rollback and receive, which nobody's transaction can meet: both are sync tasks.
    tree: RwLock<Arc<Tree>>,
    layers: Mutex<Layers>,
    known: Known,
    spare: Spare,
    blocks: BlockLocks,
    /// Held by whoever writes layers to the tree. Taken with a hold, or by the commit itself.
    writing: Mutex<()>,
    allocator: Mutex<Allocator>,
    codec: Mutex<Codec>,
    /// Features of the content that its record lacks.
    new_features: AtomicU64,
    /// It is not the dataset's head yet.
    staged: bool,
    /// Bytes of large whole blocks written to what is staged since the pool was last asked to write them out.
    streamed: AtomicUsize,
    /// It is that of a shadow.
    shadow: Option<Mutex<ShadowObjects>>,
    /// How often the tree was replaced.
    generation: AtomicU64,
    limits: Arc<Limits>,
    /// Bytes kept in memory or promised, of all heads of the dataset.
    inflight: Arc<AtomicU64>,
    /// How many [`OpenHead`]s there are of it.
    openers: AtomicUsize,
}

pub use self::locks::LockedBlocks;

/// What becomes of the data of objects in a shadow. Of those not named, blocks that differ from what was there are kept.
#[derive(Default)]
struct ShadowObjects {
    /// It is only referred to.
    outside: ObjectSet,
    /// It is kept, whatever was there.
    inside: ObjectSet,
}

/// A transaction on a head: ends when dropped.
pub struct Tx<'a> {
    hold: Hold<'a>,
    inflight: &'a AtomicU64,
    /// Bytes promised and not kept so far.
    room: AtomicU64,
}

impl Tx<'_> {
    /// The txg it lands in.
    pub fn txg(&self) -> Txg {
        self.hold.txg()
    }

    /// `bytes` more are kept: they come out of what was promised, or are promised now.
    fn keep(&self, bytes: u64) {
        let take = |room: u64| Some(room.saturating_sub(bytes));
        let room = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        // Beyond the room only a wrong estimate leads; the reserve is there for that too.
        if bytes > room {
            self.hold.promise_anyway(bytes - room);
            self.inflight.fetch_add(bytes - room, Ordering::Relaxed);
        }
    }

    /// Promised bytes have been written, or never will be.
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

    /// Over a tree that will be the dataset's head when it is finished; in a `shadow`, data can stay outside.
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

    /// Features of the content that the dataset's record lacks.
    pub(crate) fn new_features(&self) -> Features {
        Features(self.new_features.load(Ordering::Relaxed))
    }

    /// Drops what is kept in memory: it will not be needed.
    pub(crate) fn forget(&self) {
        // Before the lock: who waits for the lock has a hold, and a commit that waits for that lets nobody in.
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

    /// Bytes that were kept in memory are in the tree, or nowhere.
    fn fulfil(&self, hold: &Hold<'_>, bytes: u64) {
        hold.fulfil(bytes);
        take(&self.inflight, bytes);
    }

    /// The data that is written to an object from now on is where the pool's [outside](snowmelt_pool::Outside) finds it, under
    /// the object's number and the same offset. Only the head of a shadow does that, and it gives zeros for what was written
    /// before: whoever writes to the object writes whole blocks.
    pub fn refer_outside(&self, object: u64) {
        if let Some(shadow) = &self.shadow {
            shadow.lock().outside.insert(object);
        }
    }

    /// The data that is written to an object of a shadow from now on is kept in the pool, also where it is what the pool
    /// referred to before.
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

    /// Changes whenever rollback or receive replaces all content. While a transaction is open it does not, so what was
    /// read before it began is of the same content if this is as it was then.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Bytes taken in the pool by what it refers to, as of the last commit.
    pub fn referenced(&self) -> u64 {
        self.tree().stats().physical
    }

    fn tree(&self) -> Arc<Tree> {
        self.tree.read().clone()
    }

    /// Begins a transaction, after committing if enough is dirty. Transactions that free as much as they write are begun
    /// though the pool is full or a quota used up.
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
        // Nothing, but the txg has something to commit from now on.
        hold.promise(0)?;
        Ok(hold)
    }

    /// Keeps others who ask in the same way from blocks `first..past` of a volume until what this gives is dropped. In a
    /// transaction already begun: nothing that is held here waits for a commit.
    pub fn lock_blocks(&self, first: u64, past: u64) -> LockedBlocks<'_> {
        self.blocks.lock(first, past)
    }

    /// Makes everything durable (`zil_commit`, as far as there is one): one commit for all who wait for one.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn sync(&self) -> Result<(), DatasetError> {
        self.pool.commit()?;
        Ok(())
    }

    /// Takes the properties that matter to writing from the catalog: after `set`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn reload_properties(&self, catalog: &Catalog) -> Result<(), DatasetError> {
        let dataset = catalog.dataset_by_id(self.id)?;
        *self.codec.lock() = codec(catalog, &dataset)?;
        Ok(())
    }

    /// The head is another tree from now on: to be called in a sync task.
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

/// The first object number past all in use.
fn past_objects(tree: &Tree) -> Result<u64, DatasetError> {
    let Some((key, _)) = tree.view().last_before(&[0xff; 9])? else { return Ok(1) };
    let object = ObjsetKey::decode(&key)?.object();
    let slots = match tree.get(&ObjsetKey::Dnode { object }.encode())? {
        Some(entry) => u64::from(crate::objset::Dnode::decode(&entry.value)?.slots),
        None => 1,
    };
    Ok(object + slots)
}

/// A head that somebody has open. While one exists, the dataset cannot be destroyed.
pub struct OpenHead(Arc<Head>);

impl OpenHead {
    fn new(head: Arc<Head>) -> Self {
        head.openers.fetch_add(1, Ordering::AcqRel);
        Self(head)
    }

    /// The head, for parts of the opener that end no later than this.
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

    /// Brings what open heads keep into their trees, so that the catalog shows it.
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

    /// Forgets the head of a dataset that is to be destroyed. Returns `false`, and forgets nothing, when changes in memory
    /// must be written first.
    ///
    /// # Errors
    /// [`DatasetError::Busy`] while somebody has it open.
    pub(crate) fn close_head(&self, id: DatasetId, name: &str) -> Result<bool, DatasetError> {
        let mut heads = self.heads.lock();
        let Some(head) = heads.get(&id) else { return Ok(true) };
        if head.is_open() {
            return Err(DatasetError::Busy { name: name.to_owned() });
        }
        // A commit may hold a reference for a moment. It writes nothing of a head that has no changes.
        if head.is_dirty() {
            return Ok(false);
        }
        heads.remove(&id);
        Ok(true)
    }

    /// The head is another tree from now on. Whoever has it open goes on with that one.
    pub(crate) fn replace_head(&self, id: DatasetId, tree: Arc<Tree>) -> Result<(), DatasetError> {
        let head = self.heads.lock().get(&id).cloned();
        head.map_or(Ok(()), |head| head.replaced(tree))
    }
}
