//! The pool: connects a store with its trees, its txgs and its segments.

use bytes::Bytes;
use parking_lot::Mutex;
use snowmelt_store::{SegmentId, Store};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::block::Prepared;
use crate::commit::{CommitState, REWIND_TXGS};
use crate::error::{PoolError, Result};
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::seal::{Class, KeyRecord, Keys, Wrap};
use crate::format::tree_record::TreeRecord;
use crate::format::uberblock::Features;
use crate::ids::{BlockId, TreeId, Txg};
use crate::io::{Counters, Io};
use crate::memory;
use crate::open::OpenReport;
use crate::outside::Outside;
use crate::parity::PARITY_MAX_PERCENT;
use crate::prefix;
use crate::relocation;
use crate::rewind::Rewind;
use crate::scrub::Scrubbing;
use crate::space::{Segment, SegmentFacts, Space};
use crate::syncer::Wake;
use crate::tree::{Tree, View};
use crate::txg::{Gate, Hold};
use crate::writeback::Writeback;

/// Name of the property for the amount of parity.
pub(crate) const PARITY: &str = "parity";

/// Above this number of open trees, clean trees that nothing else refers to are dropped.
const TREES_MAX: usize = 4096;

/// Sizes and times of an open pool. The defaults are for production.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// A node is split above this encoded size in bytes: 256 to 128 KiB.
    pub node_bytes: usize,
    /// Segments are sealed at this length in bytes: 64 KiB to 4 GiB. If the store supports only shorter segments, they
    /// are sealed at the store's limit.
    pub segment_bytes: u64,
    /// Appended blocks are passed to the store in pieces of about this many bytes.
    pub buffer_bytes: usize,
    /// Limit of the cache of decompressed data blocks, bytes.
    pub data_cache_bytes: usize,
    /// Limit of the cache of tree nodes, bytes.
    pub node_cache_bytes: usize,
    /// [`Pool::maybe_commit`] commits when this many bytes in memory are dirty.
    pub dirty_max_bytes: u64,
    /// [`Pool::maybe_commit`] commits when this many bytes were written to the store.
    pub written_max_bytes: u64,
    /// [`Pool::maybe_commit`] commits when the oldest change is this old.
    pub txg_interval: Duration,
    /// The time in seconds since 1970, for the uberblock.
    pub clock: fn() -> u64,
    /// Open for reading only: nothing is written and nothing is deleted.
    pub read_only: bool,
    /// Why the pool is opened read-only, for the error that a write returns.
    pub read_only_because: Option<Arc<str>>,
    /// Which txg to open instead of the newest.
    pub rewind: Rewind,
    /// The key of an encrypted pool, or of a pool that is to be created with encryption.
    pub keys: Option<Keys>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            node_bytes: 32 << 10,
            segment_bytes: 64 << 20,
            buffer_bytes: 4 << 20,
            data_cache_bytes: memory_share(8, 64 << 20),
            node_cache_bytes: memory_share(8, 64 << 20),
            dirty_max_bytes: memory::share(2, 256 << 20),
            written_max_bytes: 256 << 20,
            txg_interval: Duration::from_secs(5),
            clock: || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            read_only: false,
            read_only_because: None,
            rewind: Rewind::No,
            keys: None,
        }
    }
}

/// Identity of a pool to be created.
#[derive(Clone, Copy, Debug)]
pub struct NewPool<'a> {
    /// The pool's name.
    pub name: &'a str,
    /// The pool's guid; not 0.
    pub guid: u64,
}

/// An open pool. Dropping it without [`close`](Self::close) loses all changes that were not committed, as a crash does.
pub struct Pool {
    io: Arc<Io>,
    meta: Arc<Tree>,
    trees: Mutex<HashMap<TreeId, Arc<Tree>>>,
    dirty_trees: Mutex<BTreeMap<TreeId, Arc<Tree>>>,
    /// True until the [`Claim`](crate::commit::Claim) of this owner was published.
    pub(crate) unclaimed: AtomicBool,
    dirty: AtomicBool,
    dirty_since: Mutex<Option<Instant>>,
    gate: Gate,
    pub(crate) writebacks: Mutex<Vec<Weak<dyn Writeback>>>,
    pub(crate) wake: Wake,
    pub(crate) commit: Mutex<CommitState>,
    pub(crate) committed: AtomicU64,
    pub(crate) next_tree: AtomicU64,
    /// Held while the cleaner runs.
    pub(crate) cleaner: Mutex<()>,
    /// Number of segments that were deleted from the store.
    pub(crate) given_back: AtomicU64,
    /// Held while a scrub runs.
    pub(crate) scrubber: Mutex<()>,
    pub(crate) scrubbing: Scrubbing,
    pub(crate) options: PoolOptions,
    report: OpenReport,
    /// Counts this pool as a user of the process's memory for as long as it is open.
    _counted: memory::OpenPool,
}

/// The size of a cache for [`PoolOptions`]: a share of the process's memory, or `otherwise`.
fn memory_share(parts: u64, otherwise: u64) -> usize {
    usize::try_from(memory::share(parts, otherwise)).unwrap_or(usize::MAX)
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("guid", &self.guid())
            .field("txg", &self.open_txg())
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn assemble(
        io: Arc<Io>,
        meta: Arc<Tree>,
        options: PoolOptions,
        commit: CommitState,
        report: OpenReport,
        next_tree: u64,
    ) -> Arc<Self> {
        io.set_meta(&meta);
        Arc::new(Pool {
            io,
            meta,
            trees: Mutex::default(),
            dirty_trees: Mutex::default(),
            unclaimed: AtomicBool::new(commit.claim.is_some()),
            dirty: AtomicBool::new(false),
            dirty_since: Mutex::default(),
            gate: Gate::default(),
            writebacks: Mutex::default(),
            wake: Wake::default(),
            committed: AtomicU64::new(commit.newest()),
            commit: Mutex::new(commit),
            next_tree: AtomicU64::new(next_tree),
            cleaner: Mutex::default(),
            given_back: AtomicU64::new(0),
            scrubber: Mutex::default(),
            scrubbing: Scrubbing::default(),
            options,
            _counted: memory::OpenPool::count(),
            report,
        })
    }

    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.io
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether the pool was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.io.read_only
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.io.guid
    }

    /// The result of opening the pool.
    pub fn open_report(&self) -> &OpenReport {
        &self.report
    }

    /// The segments that the pool may refer to. `None` after a txg was passed over: then all segments are kept for
    /// later inspection.
    pub fn known_segments(&self) -> Option<BTreeSet<SegmentId>> {
        let is_newest = self.report.passed_over.is_empty();
        is_newest.then(|| self.io.space.lock().iter().map(|(id, _)| id).collect())
    }

    /// The store of this pool.
    pub fn store(&self) -> &dyn Store {
        &*self.io.store
    }

    /// Takes a hold on the open txg. Waits while a commit collects the changes of the previous txg. The thread must
    /// have no other hold.
    ///
    /// # Errors
    /// `Suspended`, `ReadOnly`.
    pub fn begin(&self) -> Result<Hold<'_>> {
        Hold::enter(self, false)
    }

    /// As [`begin`](Self::begin), for work that frees space: such a hold may use the reserve.
    ///
    /// # Errors
    /// `Suspended`, `ReadOnly`.
    pub fn begin_free(&self) -> Result<Hold<'_>> {
        Hold::enter(self, true)
    }

    /// The number of the open txg.
    pub fn open_txg(&self) -> Txg {
        self.io.open_txg.load(Ordering::Acquire)
    }

    /// The number of the last durable txg.
    pub fn committed_txg(&self) -> Txg {
        self.committed.load(Ordering::Acquire)
    }

    /// Bytes in memory that the open txg still has to write: data of [`Writeback`]s and dirty nodes.
    pub fn dirty_bytes(&self) -> u64 {
        self.promised().saturating_add(self.dirty_node_bytes())
    }

    /// Bytes of memory in dirty nodes.
    pub(crate) fn dirty_node_bytes(&self) -> u64 {
        self.io.dirty_nodes.load(Ordering::Relaxed)
    }

    /// Bytes that [`Writeback`]s keep in memory, or that open transactions have promised to write.
    pub(crate) fn promised(&self) -> u64 {
        self.io.promised.load(Ordering::Relaxed)
    }

    /// Bytes of blocks written in the open txg.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.io.written.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_dirty(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            *self.dirty_since.lock() = Some(Instant::now());
        }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Marks the pool as clean. The gate must be closed.
    pub(crate) fn mark_clean(&self) {
        self.dirty.store(false, Ordering::Release);
        *self.dirty_since.lock() = None;
        self.io.written.store(0, Ordering::Relaxed);
        self.io.dirty_nodes.store(0, Ordering::Relaxed);
    }

    /// How long the oldest uncommitted change has been waiting.
    pub(crate) fn dirty_for(&self) -> Duration {
        self.dirty_since.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Adds `bytes` of node memory to the dirty memory.
    pub(crate) fn dirtied(&self, bytes: usize) {
        self.io.dirty_nodes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.mark_dirty();
    }

    /// Notes that a tree's record in the meta tree is out of date.
    pub(crate) fn tree_is_dirty(&self, tree: &Weak<Tree>) {
        if let Some(tree) = tree.upgrade()
            && tree.id() != TreeId::META
        {
            self.dirty_trees.lock().insert(tree.id(), tree);
        }
    }

    pub(crate) fn take_dirty_trees(&self) -> BTreeMap<TreeId, Arc<Tree>> {
        std::mem::take(&mut *self.dirty_trees.lock())
    }

    /// The meta tree. Keys whose first byte is below [`prefix::FIRST_FREE`] belong to the pool itself.
    pub fn meta(&self) -> &Arc<Tree> {
        &self.meta
    }

    /// Creates an empty tree.
    ///
    /// # Errors
    /// As [`Tree::insert`].
    pub fn create_tree(&self, hold: &Hold<'_>) -> Result<Arc<Tree>> {
        hold.check(&self.io)?;
        let id = TreeId(self.next_tree.fetch_add(1, Ordering::Relaxed));
        let record = TreeRecord::default();
        self.meta.insert(hold, &TreeRecord::key(id), &record.encode())?;
        let tree = Tree::new(id, self.io.clone(), record);
        self.trees.lock().insert(id, tree.clone());
        Ok(tree)
    }

    /// Opens a tree.
    ///
    /// # Errors
    /// `NoTree`; when the meta tree cannot be read.
    pub fn tree(&self, id: TreeId) -> Result<Arc<Tree>> {
        if id == TreeId::META {
            return Ok(self.meta.clone());
        }
        // The lock is held while the record is read, so that a tree is never opened twice.
        let mut trees = self.trees.lock();
        if let Some(tree) = trees.get(&id) {
            return Ok(tree.clone());
        }
        let entry = self.meta.get(&TreeRecord::key(id))?.ok_or(PoolError::NoTree(id))?;
        let tree = Tree::new(id, self.io.clone(), TreeRecord::decode(&entry.value)?);
        if trees.len() >= TREES_MAX {
            trees.retain(|_, tree| Arc::strong_count(tree) > 1 || tree.is_dirty());
        }
        trees.insert(id, tree.clone());
        Ok(tree)
    }

    /// Frees every node of a tree that was born after `born_after`, and removes the tree. The caller must free the
    /// tree's data blocks. Nodes born up to `born_after` are shared with snapshots and are not freed.
    ///
    /// # Errors
    /// `NoTree`; when a node cannot be read.
    pub fn destroy_tree(&self, hold: &Hold<'_>, id: TreeId, born_after: Txg) -> Result<()> {
        hold.check(&self.io)?;
        if id == TreeId::META {
            return Err(PoolError::Misuse("the meta tree cannot be destroyed"));
        }
        let tree = self.tree(id)?;
        self.meta.remove(hold, &TreeRecord::key(id))?;
        let view = tree.view();
        tree.destroyed();
        self.dirty_trees.lock().remove(&id);
        self.trees.lock().remove(&id);
        for ptr in view.nodes_since(born_after) {
            let ptr = ptr?;
            self.free(hold, ptr.segment, ptr.offset, ptr.asize())?;
        }
        Ok(())
    }

    /// A view of a frozen root.
    pub fn view(&self, root: Option<StoredPtr>) -> View {
        View::of_root(self.io.clone(), root, false)
    }

    /// Frees a stored block. No tree, snapshot or deadlist may refer to it any more.
    ///
    /// # Errors
    /// `Accounting` when the segment has fewer live bytes than `asize`.
    pub fn free(&self, hold: &Hold<'_>, segment: SegmentId, offset: u32, asize: u64) -> Result<()> {
        hold.check(&self.io)?;
        self.free_at(hold, segment, offset, asize, false)
    }

    pub(crate) fn free_at(
        &self,
        hold: &Hold<'_>,
        segment: SegmentId,
        offset: u32,
        asize: u64,
        meta: bool,
    ) -> Result<()> {
        let mut place = segment;
        let key = relocation::key(segment, offset);
        if !meta
            && self.io.relocations.load(Ordering::Acquire)
            && let Some(entry) = self.meta.get(&key)?
        {
            let to = relocation::decode(&entry.value)?;
            if self.io.has_pins() {
                self.io.retired.note(hold.txg(), (segment, offset), to);
            }
            self.meta.remove(hold, &key)?;
            place = to.0;
        }
        if !meta {
            self.io.note_free(place, (segment, offset));
        }
        self.mark_dirty();
        self.io.free(place, asize, meta, hold.txg())
    }

    /// The verified stored bytes of a block. They may be compressed.
    ///
    /// # Errors
    /// `Corrupt`, `Store`.
    pub fn read_stored(&self, ptr: &BlockPtr) -> Result<Bytes> {
        self.io.read_stored(ptr)
    }

    /// The logical bytes of a block, verified and decompressed. Uses the block cache.
    ///
    /// # Errors
    /// `Corrupt`, `Decompress`, `Store`.
    pub fn read(&self, ptr: &BlockPtr) -> Result<Bytes> {
        self.io.read(ptr)
    }

    /// As [`read`](Self::read), but does not put the block into the cache.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_once(&self, ptr: &BlockPtr) -> Result<Bytes> {
        self.io.read_once(ptr)
    }

    /// Reads an uncompressed block directly into `buf`, and verifies it. The block's logical length must be the length
    /// of `buf`. Returns `false` if the block is compressed, has another length, or is in the cache; the content of
    /// `buf` is then undefined.
    ///
    /// # Errors
    /// `Corrupt`, `Store`.
    pub fn read_plain(&self, ptr: &BlockPtr, buf: &mut [u8]) -> Result<bool> {
        self.io.read_plain(ptr, buf)
    }

    /// Allows pointers to external blocks from now on. Builds that do not know external blocks then refuse the pool.
    /// Must not be called with a hold.
    pub fn allow_outside(&self) {
        self.commit.lock().features.incompat |= Features::OUTSIDE;
        self.io.outside_allowed.store(true, Ordering::Release);
        self.mark_dirty();
    }

    /// Whether the pool may have pointers to external blocks.
    pub fn allows_outside(&self) -> bool {
        self.io.outside_allowed.load(Ordering::Acquire)
    }

    /// Sets the reader of external blocks. If one is set already, it stays.
    pub fn set_outside(&self, outside: Arc<dyn Outside>) {
        self.io.outside.write().get_or_insert(outside);
    }

    /// Drops the reader of external blocks and everything that it has open. These files may be in this pool.
    pub fn clear_outside(&self) {
        let gone = self.io.outside.write().take();
        drop(gone);
    }

    /// Sets how much parity segments get from now on, in percent of the data; 0 for none. Segments written before do
    /// not change. Builds that do not know parity can then open the pool only for reading. Must not be called with a
    /// hold.
    ///
    /// # Errors
    /// `Size` when it is more than [`PARITY_MAX_PERCENT`]; as [`set_property`](Self::set_property).
    pub fn set_parity(&self, percent: u8) -> Result<()> {
        if percent > PARITY_MAX_PERCENT {
            let (len, max) = (percent.into(), PARITY_MAX_PERCENT.into());
            return Err(PoolError::Size { what: "parity, in hundredths,", len, min: 0, max });
        }
        if percent == 0 && self.parity() == 0 {
            return Ok(());
        }
        self.io.writable()?;
        // The feature flag must be in every uberblock that refers to parity, so it is set before any parity is written.
        self.commit.lock().features.ro_compat |= Features::PARITY;
        let hold = self.begin()?;
        self.set_property(&hold, PARITY, &[percent])?;
        self.io.set_parity(percent);
        Ok(())
    }

    /// The record of the pool's key, if the pool is encrypted.
    pub fn key_record(&self) -> Option<KeyRecord> {
        self.commit.lock().keys.as_ref().map(|keys| keys.record().clone())
    }

    /// Wraps the pool's key with another key of the user. The pool's key and the sealed blocks do not change.
    ///
    /// After success, every txg that an open without a rewind can choose has the new record. After a failure, the pool
    /// opens with the old key. If the failure suspended the pool, it opens with one of the two keys. Must not be called
    /// with a hold.
    ///
    /// # Errors
    /// `Misuse` when the pool is not encrypted; `Key` when the new key is not valid; as [`commit`](Self::commit).
    pub fn change_key(&self, wrap: &Wrap<'_>) -> Result<()> {
        self.io.writable()?;
        let before = self.commit.lock().keys.clone();
        let before = before.ok_or(PoolError::Misuse("the pool is not encrypted"))?;
        let keys = before.rewrap(wrap)?;
        self.claim()?;
        self.io.set_key_record(keys.record())?;
        self.commit.lock().keys = Some(keys);
        let changed = (0..REWIND_TXGS).try_for_each(|_| self.sync_txg(true, None).map(drop));
        if changed.is_err() {
            // Without this, a later commit would still change the key.
            self.io.put_key_record(before.record());
            self.commit.lock().keys = Some(before);
        }
        changed
    }

    /// Whether a pointer already leads to exactly this block. `id` is the object and block number of both.
    pub fn is_at(&self, block: &Prepared, id: BlockId, ptr: &BlockPtr) -> bool {
        let BlockPtr::Stored(stored) = ptr else { return block.is_at(ptr) };
        if block.payload.len() != stored.payload_len() as usize || block.compression != stored.algorithm() {
            return false;
        }
        let sealed = self.io.stored_form(Class::Data, stored.birth, id, block);
        sealed.is_ok_and(|sealed| sealed.is_at(ptr))
    }

    /// How much parity is written, in percent of the data.
    pub fn parity(&self) -> u8 {
        self.io.parity()
    }

    /// How full the pool is.
    ///
    /// # Errors
    /// When the store cannot report its capacity.
    pub fn space(&self) -> Result<Space> {
        self.io.space()
    }

    /// All segments, in the order in which they were created.
    pub fn segments(&self) -> Vec<SegmentFacts> {
        let table = self.io.space.lock();
        let facts = |(id, segment): (_, &Segment)| SegmentFacts {
            id,
            kind: segment.kind,
            len: segment.len,
            alive: segment.live + segment.meta,
            is_open: segment.open,
        };
        table.iter().map(facts).collect()
    }

    /// Counters since the pool was opened.
    pub fn counters(&self) -> Counters {
        self.io.counters()
    }

    /// Bytes in the caches of data blocks and of nodes.
    pub fn cached_bytes(&self) -> (usize, usize) {
        self.io.cached()
    }

    /// A property of the pool itself, e.g. `name` or `created`.
    ///
    /// # Errors
    /// When the meta tree cannot be read.
    pub fn property(&self, name: &str) -> Result<Option<Bytes>> {
        Ok(self.meta.get(&property_key(name))?.map(|entry| entry.value))
    }

    /// Sets a property of the pool itself.
    ///
    /// # Errors
    /// As [`Tree::insert`].
    pub fn set_property(&self, hold: &Hold<'_>, name: &str, value: &[u8]) -> Result<()> {
        self.meta.insert(hold, &property_key(name), value).map(drop)
    }

    /// The pool's name.
    ///
    /// # Errors
    /// When the meta tree cannot be read or the name is not UTF-8.
    pub fn name(&self) -> Result<String> {
        let bytes = self.property("name")?.unwrap_or_default();
        String::from_utf8(bytes.to_vec()).map_err(|_| PoolError::record("pool name", "not UTF-8"))
    }

    /// Commits the dirty state and deletes dead segments. Views may be used after this call.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn close(self: Arc<Self>) -> Result<()> {
        if self.io.read_only {
            return Ok(());
        }
        self.commit()?;
        if self.io.space.lock().has_dead() { self.drain_frees() } else { Ok(()) }
    }
}

pub(crate) fn property_key(name: &str) -> Vec<u8> {
    let mut out = vec![prefix::PROPERTY];
    out.extend_from_slice(name.as_bytes());
    out
}
