//! The pool: what holds a store, its trees and its txgs together.

use bytes::Bytes;
use parking_lot::Mutex;
use snowmelt_store::{SegmentId, Store};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::block::{BlockId, Prepared};
use crate::commit::{CommitState, REWIND_TXGS};
use crate::error::{PoolError, Result};
use crate::io::{Counters, Io};
use crate::memory;
use crate::open::OpenReport;
use crate::outside::Outside;
use crate::parity::PARITY_MAX_PERCENT;
use crate::ptr::{BlockPtr, StoredPtr, Txg};
use crate::rewind::Rewind;
use crate::scrub::Scrubbing;
use crate::seal::{Class, KeyRecord, Keys, Wrap};
use crate::space::{Segment, SegmentFacts, Space};
use crate::syncer::Wake;
use crate::tree::{Tree, TreeId, TreeRecord, View};
use crate::txg::{Gate, Hold};
use crate::uberblock::Features;
use crate::writeback::Writeback;
use crate::{prefix, relocation};

/// Name of the property that says how much parity is written.
pub(crate) const PARITY: &str = "parity";

/// Clean trees kept open beyond this number are dropped when nobody else has them.
const TREES_MAX: usize = 4096;

/// Sizes and times; the defaults are for production.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Nodes are split above this encoded size, bytes: 256 to 128 KiB.
    pub node_bytes: usize,
    /// Segments are sealed at this length, bytes, or at what the store can take if that is less: 64 KiB to 4 GiB.
    pub segment_bytes: u64,
    /// Appended blocks are given to the store in pieces of about this many bytes.
    pub buffer_bytes: usize,
    /// Bound of the cache of decompressed data blocks, bytes.
    pub data_cache_bytes: usize,
    /// Bound of the cache of tree nodes, bytes.
    pub node_cache_bytes: usize,
    /// [`Pool::maybe_commit`] commits when this many bytes in memory are dirty …
    pub dirty_max_bytes: u64,
    /// … or this many have been written to the store …
    pub written_max_bytes: u64,
    /// … or when the oldest change is this old.
    pub txg_interval: Duration,
    /// Seconds since 1970, for the uberblock.
    pub clock: fn() -> u64,
    /// Open for reading only: nothing is written, nothing is deleted.
    pub read_only: bool,
    /// Why that is so, for whoever tries to write.
    pub read_only_because: Option<Arc<str>>,
    /// Which txg to open, if not the newest.
    pub rewind: Rewind,
    /// The key of an encrypted pool, or of one that is to be.
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
    /// Its name.
    pub name: &'a str,
    /// Its guid; not 0.
    pub guid: u64,
}

/// A pool, open. Dropping it without [`close`](Self::close) loses what was not committed, as a crash would.
pub struct Pool {
    io: Arc<Io>,
    meta: Arc<Tree>,
    trees: Mutex<HashMap<TreeId, Arc<Tree>>>,
    dirty_trees: Mutex<BTreeMap<TreeId, Arc<Tree>>>,
    /// Whether [`Claim`](crate::commit::Claim) is still to be made.
    pub(crate) unclaimed: AtomicBool,
    dirty: AtomicBool,
    dirty_since: Mutex<Option<Instant>>,
    gate: Gate,
    pub(crate) writebacks: Mutex<Vec<Weak<dyn Writeback>>>,
    pub(crate) wake: Wake,
    pub(crate) commit: Mutex<CommitState>,
    pub(crate) committed: AtomicU64,
    pub(crate) next_tree: AtomicU64,
    /// Held by whoever cleans.
    pub(crate) cleaner: Mutex<()>,
    /// Segments given back to the store.
    pub(crate) given_back: AtomicU64,
    /// Held by whoever scrubs.
    pub(crate) scrubber: Mutex<()>,
    pub(crate) scrubbing: Scrubbing,
    pub(crate) options: PoolOptions,
    report: OpenReport,
    /// It has its part of the process's memory as long as it is open.
    _counted: memory::OpenPool,
}

/// What [`PoolOptions`] has for a cache.
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

    /// Whether it was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.io.read_only
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.io.guid
    }

    /// How opening went.
    pub fn open_report(&self) -> &OpenReport {
        &self.report
    }

    /// The store below.
    pub fn store(&self) -> &dyn Store {
        &*self.io.store
    }

    /// Takes a share in the open txg; waits while a commit collects the one before. The thread must have no other
    /// hold.
    ///
    /// # Errors
    /// `Suspended`, `ReadOnly`.
    pub fn begin(&self) -> Result<Hold<'_>> {
        Hold::enter(self, false)
    }

    /// As [`begin`](Self::begin), for work that gives space back: it may use the reserve while doing so.
    ///
    /// # Errors
    /// `Suspended`, `ReadOnly`.
    pub fn begin_free(&self) -> Result<Hold<'_>> {
        Hold::enter(self, true)
    }

    /// Number of the open txg.
    pub fn open_txg(&self) -> Txg {
        self.io.open_txg.load(Ordering::Acquire)
    }

    /// Number of the last durable txg.
    pub fn committed_txg(&self) -> Txg {
        self.committed.load(Ordering::Acquire)
    }

    /// Bytes in memory that the open txg has yet to write: kept above the pool, or dirty nodes.
    pub fn dirty_bytes(&self) -> u64 {
        self.promised().saturating_add(self.dirty_node_bytes())
    }

    /// Memory of dirty nodes.
    pub(crate) fn dirty_node_bytes(&self) -> u64 {
        self.io.dirty_nodes.load(Ordering::Relaxed)
    }

    /// Bytes that are kept above the pool, or may be by transactions that are open.
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

    /// With the gate closed: nothing is dirty any more.
    pub(crate) fn mark_clean(&self) {
        self.dirty.store(false, Ordering::Release);
        *self.dirty_since.lock() = None;
        self.io.written.store(0, Ordering::Relaxed);
        self.io.dirty_nodes.store(0, Ordering::Relaxed);
    }

    /// How long the oldest uncommitted change has waited.
    pub(crate) fn dirty_for(&self) -> Duration {
        self.dirty_since.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Node memory was dirtied.
    pub(crate) fn dirtied(&self, bytes: usize) {
        self.io.dirty_nodes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.mark_dirty();
    }

    /// A tree's record is behind.
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

    /// The meta tree. Keys that begin with a byte below [`prefix::FIRST_FREE`] are the pool's own.
    pub fn meta(&self) -> &Arc<Tree> {
        &self.meta
    }

    /// Makes an empty tree.
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
        // Held while the record is read, so that a tree is never opened twice.
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

    /// Frees every node of a tree that was born after `born_after`, and forgets the tree. Its data blocks are the
    /// caller's business, as are nodes shared with snapshots (up to `born_after`).
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

    /// A frozen root, to be read.
    pub fn view(&self, root: Option<StoredPtr>) -> View {
        View::of_root(self.io.clone(), root, false)
    }

    /// A stored block is referred to by nothing any more: by no tree, snapshot or deadlist.
    ///
    /// # Errors
    /// `Accounting` when the segment has fewer bytes alive.
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

    /// The stored (maybe compressed) bytes of a block, verified.
    ///
    /// # Errors
    /// `Corrupt`, `Store`.
    pub fn read_stored(&self, ptr: &BlockPtr) -> Result<Bytes> {
        self.io.read_stored(ptr)
    }

    /// The logical bytes of a block, verified and decompressed, through the block cache.
    ///
    /// # Errors
    /// `Corrupt`, `Decompress`, `Store`.
    pub fn read(&self, ptr: &BlockPtr) -> Result<Bytes> {
        self.io.read(ptr)
    }

    /// As [`read`](Self::read), of a block that is not worth remembering.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_once(&self, ptr: &BlockPtr) -> Result<Bytes> {
        self.io.read_once(ptr)
    }

    /// Fills `buf` with the logical bytes of a block that is stored as it is and as long as `buf`, verified, past the
    /// cache. `false`, with whatever in `buf`, when it is not such a block, or cached.
    ///
    /// # Errors
    /// `Corrupt`, `Store`.
    pub fn read_plain(&self, ptr: &BlockPtr, buf: &mut [u8]) -> Result<bool> {
        self.io.read_plain(ptr, buf)
    }

    /// Allows pointers to blocks outside the pool from now on: builds that know nothing of them refuse the pool. Not
    /// to be called with a hold.
    pub fn allow_outside(&self) {
        self.commit.lock().features.incompat |= Features::OUTSIDE;
        self.io.outside_allowed.store(true, Ordering::Release);
        self.mark_dirty();
    }

    /// Whether there may be pointers to blocks outside the pool.
    pub fn allows_outside(&self) -> bool {
        self.io.outside_allowed.load(Ordering::Acquire)
    }

    /// Says who reads what is outside the pool; who said so first stays.
    pub fn set_outside(&self, outside: Arc<dyn Outside>) {
        self.io.outside.write().get_or_insert(outside);
    }

    /// Lets go of him who reads what is outside, and of all he has open, which may be of this pool.
    pub fn clear_outside(&self) {
        let gone = self.io.outside.write().take();
        drop(gone);
    }

    /// Segments have so much parity from now on, in hundredths of the data; 0 for none. What was written before stays as it
    /// is. Builds that know nothing of parity can then only read the pool. Not to be called with a hold.
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
        // In every uberblock that has parity below it: before any is written.
        self.commit.lock().features.ro_compat |= Features::PARITY;
        let hold = self.begin()?;
        self.set_property(&hold, PARITY, &[percent])?;
        self.io.set_parity(percent);
        Ok(())
    }

    /// The record of the pool's key, if it is encrypted.
    pub fn key_record(&self) -> Option<KeyRecord> {
        self.commit.lock().keys.as_ref().map(|keys| keys.record().clone())
    }

    /// Has the pool's key wrapped by another key of the user. The pool's key stays what it is, and what was sealed with it.
    /// When this succeeds all txgs that are opened without anybody asking for an older one have the new record; when
    /// it fails, the pool opens with the old key or, if it is suspended, with one of the two. Not to be called with a hold.
    ///
    /// # Errors
    /// `Misuse` when the pool is not encrypted; `Key` when the new key is none; as [`commit`](Self::commit).
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
            // Or a later commit would change it after all.
            self.io.put_key_record(before.record());
            self.commit.lock().keys = Some(before);
        }
        changed
    }

    /// Whether a pointer leads to just this block already; `id` is that under which both are written.
    pub fn is_at(&self, block: &Prepared, id: BlockId, ptr: &BlockPtr) -> bool {
        let BlockPtr::Stored(stored) = ptr else { return block.is_at(ptr) };
        if block.payload.len() != stored.payload_len() as usize || block.compression != stored.algorithm() {
            return false;
        }
        let sealed = self.io.stored_form(Class::Data, stored.birth, id, block);
        sealed.is_ok_and(|sealed| sealed.is_at(ptr))
    }

    /// How much parity is written, in hundredths of the data.
    pub fn parity(&self) -> u8 {
        self.io.parity()
    }

    /// How full the pool is.
    ///
    /// # Errors
    /// When the store cannot tell.
    pub fn space(&self) -> Result<Space> {
        self.io.space()
    }

    /// All segments, in the order in which they were made.
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

    /// Counts since the pool was opened.
    pub fn counters(&self) -> Counters {
        self.io.counters()
    }

    /// Bytes in the block cache: of data, of nodes.
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

    /// Commits what is dirty and gives dead segments back. Views may outlive this; they read on.
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
