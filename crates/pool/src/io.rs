//! The layer below trees and views: the store with its writers, the caches and the segment table.
//!
//! Lock order, outermost first: commit, a tree's `write`, a tree's `state`, a writer's tail, the segment table. While
//! the lock of the pins or of a cache shard is held, no other lock is taken.

mod room;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use snowmelt_store::{SegmentId, Store, StoreError};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::block::{self, Prepared};
use crate::cache::{Cache, Place};
use crate::cleaner::Cleaning;
use crate::damage::{self, MetBlocks};
use crate::error::{PoolError, Result};
use crate::format::compression::COMPRESSION_OFF;
use crate::format::outside::OutsidePtr;
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::seal::{self, Class, KeyRecord, Seal, Sealer};
use crate::format::segment::{FRAME_HEADER, FrameHeader, Kind, frame_len};
use crate::heal::{Copies, HeadCache};
use crate::ids::{BlockId, TreeId, Txg};
use crate::outside::{self, Outside};
use crate::relocation::{self, Retired};
use crate::space::{Reach, SegmentTable};
use crate::tree::{Bounds, Node, Tree, codec};
use crate::writer::{AppendError, Ledger, Writer};

/// Default of `recordsize`.
const RECORD_BYTES: u32 = 128 << 10;

/// Counters since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tree nodes used by views and edits, cached or not. Nodes that are dirty in memory do not count.
    pub node_reads: u64,
    /// How many of these nodes were read from the store.
    pub node_misses: u64,
    /// Data blocks read from the store.
    pub block_reads: u64,
    /// Data blocks found in the cache.
    pub block_hits: u64,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// Tree nodes written.
    pub nodes_written: u64,
    /// Data blocks written.
    pub blocks_written: u64,
    /// Bytes of frames written.
    pub bytes_written: u64,
}

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub(crate) node_reads: AtomicU64,
    node_misses: AtomicU64,
    block_reads: AtomicU64,
    block_hits: AtomicU64,
    bytes_read: AtomicU64,
    nodes_written: AtomicU64,
    blocks_written: AtomicU64,
    bytes_written: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The reaches of all views, with the number of views that have each.
type Pins = Arc<Mutex<BTreeMap<Reach, usize>>>;

/// Protects everything that was reachable when a view was taken. Segments that died later and hold any of it are kept.
#[derive(Debug)]
pub(crate) struct Pin {
    reach: Reach,
    pins: Pins,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.get_mut(&self.reach) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.reach);
            }
        }
    }
}

/// Sizes of a pool's buffers, caches and segments.
pub(crate) struct IoOptions {
    pub(crate) node_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) buffer_bytes: usize,
    pub(crate) data_cache_bytes: usize,
    pub(crate) node_cache_bytes: usize,
    pub(crate) read_only: bool,
    pub(crate) read_only_because: Option<Arc<str>>,
    pub(crate) sealer: Option<Sealer>,
}

pub(crate) struct Io {
    pub(crate) store: Box<dyn Store>,
    pub(crate) guid: u64,
    pub(crate) node_bytes: usize,
    pub(crate) read_only: bool,
    read_only_because: Option<Arc<str>>,
    /// Seals and unseals the blocks of an encrypted pool.
    sealer: Option<Sealer>,
    /// The record of its key. Every segment begins with it.
    key_record: RwLock<Option<KeyRecord>>,
    pub(crate) segment_bytes: u64,
    data: Writer,
    nodes: Writer,
    pub(crate) space: Mutex<SegmentTable>,
    pub(crate) next_segment: AtomicU64,
    pub(crate) open_txg: AtomicU64,
    pins: Pins,
    pub(crate) outside: RwLock<Option<Arc<dyn Outside>>>,
    /// Whether pointers to external blocks are allowed.
    pub(crate) outside_allowed: AtomicBool,
    data_cache: Cache<Bytes>,
    node_cache: Cache<Arc<Node>>,
    pub(crate) counters: AtomicCounters,
    suspended: OnceLock<(Txg, Arc<str>)>,
    /// Bytes that can be written before the reserve is used. Updated from the store from time to time.
    room: AtomicI64,
    /// Bytes of `room` that are reserved for the cleaner.
    pub(crate) set_aside: AtomicU64,
    /// Segments should be cleaned when `room` is below this.
    low_water: AtomicI64,
    /// Bytes of all segments when cleaning for low space was last tried.
    low_since: AtomicU64,
    /// Bytes of blocks written in the open txg.
    pub(crate) written: AtomicU64,
    /// Bytes of memory in dirty nodes. They still have to be written.
    pub(crate) dirty_nodes: AtomicU64,
    /// Bytes that writebacks keep in memory and that will be written in the open txg.
    pub(crate) promised: AtomicU64,
    /// Length of the largest frame written so far; at least that of a block of the default record size.
    largest: AtomicU64,
    meta: OnceLock<Weak<Tree>>,
    pub(crate) relocations: AtomicBool,
    /// Relocations that are no longer recorded but that views may still need.
    pub(crate) retired: Retired,
    /// Whether `cleaning` is `Some`.
    pub(crate) is_cleaning: AtomicBool,
    pub(crate) cleaning: Mutex<Option<Cleaning>>,
    /// Whether there are lists in `watched`.
    is_watched: AtomicBool,
    watched: Mutex<Vec<Weak<Freed>>>,
    /// Damaged blocks that readers found since the last commit.
    pub(crate) met: Mutex<MetBlocks>,
    pub(crate) has_met: AtomicBool,
    /// Whether segments may have parity.
    pub(crate) has_parity: AtomicBool,
    /// How much parity is written, in percent of the data.
    parity: AtomicU8,
    pub(crate) parity_heads: Mutex<HeadCache>,
    /// Damaged blocks that were repaired from parity since the last commit.
    pub(crate) healed: AtomicU64,
    /// Whether the segment table is complete.
    pub(crate) is_loaded: AtomicBool,
}

/// Blocks that were freed since the watch began, by the places that they were first written to.
#[derive(Debug, Default)]
pub(crate) struct Freed(Mutex<HashSet<(SegmentId, u32)>>);

impl Freed {
    pub(crate) fn has(&self, origin: (SegmentId, u32)) -> bool {
        self.0.lock().contains(&origin)
    }
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").field("store", &self.store).field("guid", &self.guid).finish_non_exhaustive()
    }
}

impl Ledger for Io {
    fn next_id(&self) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed))
    }
    fn opened(&self, id: SegmentId, kind: Kind) {
        self.space.lock().opened(id, kind);
    }
    fn grown(&self, id: SegmentId, len: u64) {
        self.space.lock().grown(id, len);
    }
    fn sealed(&self, id: SegmentId) {
        self.space.lock().sealed(id, self.open_txg.load(Ordering::Acquire));
    }
    fn key_frame(&self, id: SegmentId) -> Option<Vec<u8>> {
        let txg = self.open_txg.load(Ordering::Acquire);
        self.key_record.read().as_ref().map(|record| seal::encode_key_frame(record, id, txg))
    }
    fn covered(&self, bytes: u64) {
        self.room.fetch_sub(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

/// A block that is to be written in a frame.
pub(crate) struct Outgoing<'a> {
    pub(crate) kind: Kind,
    pub(crate) owner: TreeId,
    pub(crate) object: u64,
    pub(crate) blkid: u64,
    pub(crate) block: &'a Prepared,
}

impl Io {
    pub(crate) fn new(store: Box<dyn Store>, guid: u64, options: IoOptions) -> Self {
        let segment_bytes = options.segment_bytes.min(store.segment_capacity()).min(u64::from(u32::MAX));
        Io {
            store,
            guid,
            node_bytes: options.node_bytes,
            read_only: options.read_only,
            read_only_because: options.read_only_because,
            key_record: RwLock::new(options.sealer.as_ref().map(|sealer| sealer.record().clone())),
            sealer: options.sealer,
            segment_bytes,
            data: Writer::new(Kind::Data, segment_bytes, options.buffer_bytes, guid),
            nodes: Writer::new(Kind::Node, segment_bytes, options.buffer_bytes, guid),
            space: Mutex::default(),
            next_segment: AtomicU64::new(1),
            open_txg: AtomicU64::new(1),
            pins: Pins::default(),
            outside: RwLock::default(),
            outside_allowed: AtomicBool::new(false),
            data_cache: Cache::new(options.data_cache_bytes),
            node_cache: Cache::new(options.node_cache_bytes),
            counters: AtomicCounters::default(),
            suspended: OnceLock::new(),
            room: AtomicI64::new(0),
            set_aside: AtomicU64::new(0),
            low_water: AtomicI64::new(0),
            low_since: AtomicU64::new(0),
            written: AtomicU64::new(0),
            dirty_nodes: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            largest: AtomicU64::new(frame_len(RECORD_BYTES)),
            meta: OnceLock::new(),
            relocations: AtomicBool::new(false),
            retired: Retired::default(),
            is_cleaning: AtomicBool::new(false),
            cleaning: Mutex::default(),
            is_watched: AtomicBool::new(false),
            watched: Mutex::default(),
            met: Mutex::default(),
            has_met: AtomicBool::new(false),
            has_parity: AtomicBool::new(false),
            parity: AtomicU8::new(0),
            parity_heads: Mutex::default(),
            healed: AtomicU64::new(0),
            is_loaded: AtomicBool::new(false),
        }
    }

    pub(crate) fn set_meta(&self, meta: &Arc<Tree>) {
        let _ = self.meta.set(Arc::downgrade(meta));
    }

    /// Whether the pool is encrypted.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealer.is_some()
    }

    /// Sets the key record for new segments, and closes the open segments so that new ones begin with it.
    pub(crate) fn set_key_record(&self, record: &KeyRecord) -> Result<()> {
        let before = self.key_record.write().replace(record.clone());
        for writer in [&self.data, &self.nodes] {
            if let Err(error) = writer.roll(&*self.store, self) {
                *self.key_record.write() = before;
                return Err(self.failed("sealing a segment", 0, error));
            }
        }
        Ok(())
    }

    /// Sets the key record for new segments, without closing the open ones.
    pub(crate) fn put_key_record(&self, record: &KeyRecord) {
        *self.key_record.write() = Some(record.clone());
    }

    /// The stored form of a block: sealed if the pool is encrypted. A sealed block that is moved is not sealed again.
    pub(crate) fn stored_form<'a>(
        &self,
        class: Class,
        birth: Txg,
        id: BlockId,
        block: &'a Prepared,
    ) -> Result<Cow<'a, Prepared>> {
        let Some(sealer) = self.sealer.as_ref().filter(|_| !block.is_sealed()) else {
            return Ok(Cow::Borrowed(block));
        };
        let compression = block.compression | sealer.suite().bits();
        let seal = Seal { class, compression, lsize: block.lsize, birth };
        let payload = sealer.seal(&seal, id, &block.payload, &block.hash);
        let payload = payload.ok_or(PoolError::Misuse("a block that is too long to be encrypted"))?;
        let hash = *blake3::hash(&payload).as_bytes();
        Ok(Cow::Owned(Prepared { payload, lsize: block.lsize, compression, hash, outside: None }))
    }

    /// Unseals the verified stored bytes of a block.
    pub(crate) fn unseal(&self, ptr: &StoredPtr, class: Class, stored: Bytes) -> Result<Bytes> {
        let corrupt = |what: &str| {
            let what = format!("{what} (born in txg {})", ptr.birth);
            PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what }
        };
        let Some(sealer) = &self.sealer else {
            return match ptr.is_sealed() {
                true => Err(corrupt("an encrypted block in a pool that is not encrypted")),
                false => Ok(stored),
            };
        };
        let seal = Seal { class, compression: ptr.compression, lsize: ptr.lsize, birth: ptr.birth };
        if sealer.suite().bits() | ptr.algorithm() != ptr.compression {
            return Err(corrupt("a block that is not encrypted as the pool is"));
        }
        sealer.open(&seal, stored).ok_or_else(|| corrupt("an encrypted block that is not authentic"))
    }

    /// Sets how much parity segments get from now on, in percent of the data.
    pub(crate) fn set_parity(&self, percent: u8) {
        if percent > 0 {
            self.has_parity.store(true, Ordering::Release);
        }
        self.parity.store(percent, Ordering::Relaxed);
        self.space.lock().set_parity(percent);
        self.data.set_parity(percent);
        self.nodes.set_parity(percent);
    }

    /// How much parity is written, in percent of the data.
    pub(crate) fn parity(&self) -> u8 {
        self.parity.load(Ordering::Relaxed)
    }

    fn writer(&self, kind: Kind) -> &Writer {
        match kind {
            Kind::Data => &self.data,
            Kind::Node => &self.nodes,
        }
    }

    /// Continues a segment that the previous owner left open.
    pub(crate) fn resume(&self, kind: Kind, id: SegmentId, len: u64) {
        self.writer(kind).resume(id, len);
        self.space.lock().reopened(id);
    }

    /// Pins everything that the open txg or a later one can reach and that was born up to `newest`. Must be called
    /// before a root is read that may change.
    pub(crate) fn pin(&self, newest: Txg) -> Arc<Pin> {
        let mut pins = self.pins.lock();
        let reach = Reach { since: self.open_txg.load(Ordering::Acquire), newest };
        *pins.entry(reach).or_default() += 1;
        Arc::new(Pin { reach, pins: self.pins.clone() })
    }

    /// The reaches of all views, oldest first.
    pub(crate) fn reaches(&self) -> Vec<Reach> {
        self.pins.lock().keys().copied().collect()
    }

    /// Whether any view exists.
    pub(crate) fn has_pins(&self) -> bool {
        !self.pins.lock().is_empty()
    }

    /// Suspends the pool, and remembers the first failure.
    pub(crate) fn suspend(&self, error: &PoolError) {
        let txg = self.open_txg.load(Ordering::Acquire);
        let _ = self.suspended.set((txg, error.chain().into()));
    }

    /// # Errors
    /// `Suspended` after a failure, `ReadOnly`.
    pub(crate) fn writable(&self) -> Result<()> {
        if let Some((txg, cause)) = self.suspended.get() {
            return Err(PoolError::Suspended { txg: *txg, cause: cause.clone() });
        }
        if self.read_only {
            return Err(PoolError::ReadOnly { because: self.read_only_because.clone() });
        }
        Ok(())
    }

    /// The error of a failed store operation. Suspends the pool, unless the store is only full.
    fn failed(&self, what: &'static str, needed: u64, error: StoreError) -> PoolError {
        if matches!(error, StoreError::Full { .. }) {
            return PoolError::NoSpace { needed, room: 0 };
        }
        let error = PoolError::Store { what, source: error };
        self.suspend(&error);
        error
    }

    /// Appends a block to the open segment of its kind. A node goes to the data segment if no segment for nodes can be
    /// opened.
    ///
    /// # Errors
    /// `NoSpace`, `Store` (the pool is then suspended), `Size`.
    pub(crate) fn write(&self, out: &Outgoing<'_>, birth: Txg) -> Result<StoredPtr> {
        let id = BlockId { object: out.object, blkid: out.blkid };
        let block = self.stored_form(Class::of(out.kind, out.owner), birth, id, out.block)?;
        let Prepared { payload, lsize, compression, hash, .. } = &*block;
        let psize = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = FrameHeader {
            kind: out.kind,
            compression: *compression,
            lsize: *lsize,
            psize,
            birth,
            owner: out.owner,
            object: out.object,
            blkid: out.blkid,
            pool: self.guid,
            hash: *hash,
        };
        let store = &*self.store;
        let mut done = self.writer(out.kind).append(store, self, &header, payload);
        if out.kind == Kind::Node && matches!(done, Err(AppendError::Store(StoreError::Full { .. }))) {
            done = self.data.append(store, self, &header, payload);
        }
        let (segment, offset) = done.map_err(|error| match error {
            AppendError::Store(error) => self.failed("appending to a segment", u64::from(psize), error),
            AppendError::TooLarge { max } => {
                PoolError::Size { what: "a stored block", len: u64::from(psize), min: 1, max }
            }
        })?;
        let ptr = StoredPtr {
            segment,
            offset,
            psize,
            lsize: *lsize,
            compression: *compression,
            birth,
            hash: *hash,
        };
        let asize = ptr.asize();
        self.largest.fetch_max(asize, Ordering::Relaxed);
        self.space.lock().add(segment, asize, out.owner == TreeId::META, birth);
        self.room.fetch_sub(i64::try_from(asize).unwrap_or(i64::MAX), Ordering::Relaxed);
        count(&self.counters.bytes_written, asize);
        match out.kind {
            Kind::Data => count(&self.counters.blocks_written, 1),
            Kind::Node => count(&self.counters.nodes_written, 1),
        }
        Ok(ptr)
    }

    /// Reports the free of a block to the cleaner and to other watchers. The block is in `segment` and was first
    /// written to `origin`.
    pub(crate) fn note_free(&self, segment: SegmentId, origin: (SegmentId, u32)) {
        if self.is_cleaning.load(Ordering::Acquire)
            && let Some(cleaning) = &mut *self.cleaning.lock()
            && cleaning.segments.contains(&segment)
        {
            cleaning.freed.insert(origin);
        }
        if self.is_watched.load(Ordering::Acquire) {
            self.watched.lock().iter().filter_map(Weak::upgrade).for_each(|freed| {
                freed.0.lock().insert(origin);
            });
        }
    }

    /// Records all frees from now on in the returned list, until the list is dropped.
    pub(crate) fn watch_frees(&self) -> Arc<Freed> {
        let freed = Arc::new(Freed::default());
        let mut watched = self.watched.lock();
        watched.retain(|freed| freed.strong_count() > 0);
        watched.push(Arc::downgrade(&freed));
        self.is_watched.store(true, Ordering::Release);
        freed
    }

    /// Drops a list of frees, and stops recording if it was the last one.
    pub(crate) fn unwatch_frees(&self, freed: Arc<Freed>) {
        drop(freed);
        let mut watched = self.watched.lock();
        watched.retain(|freed| freed.strong_count() > 0);
        self.is_watched.store(!watched.is_empty(), Ordering::Release);
    }

    /// Records a damaged block that a reader found.
    fn note_damage(&self, ptr: &StoredPtr, unreadable: bool) {
        // A reader without a view may read a block that was freed and whose segment is deleted. That is not damage.
        let is_gone = self.space.lock().get(ptr.segment).is_none();
        if !is_gone && damage::note(&mut self.met.lock(), ptr, unreadable) {
            self.has_met.store(true, Ordering::Release);
        }
    }

    /// Takes the damaged blocks that readers found since the last call.
    pub(crate) fn take_met(&self) -> MetBlocks {
        self.has_met.store(false, Ordering::Release);
        std::mem::take(&mut *self.met.lock())
    }

    /// Frees a block. `segment` is the segment that it was relocated to, if it was relocated.
    pub(crate) fn free(&self, segment: SegmentId, asize: u64, meta: bool, txg: Txg) -> Result<()> {
        self.space.lock().sub(segment, asize, meta, txg)
    }

    /// Passes all buffered blocks to the store.
    pub(crate) fn flush(&self) -> Result<()> {
        for writer in [&self.data, &self.nodes] {
            writer.flush(&*self.store).map_err(|e| self.failed("appending to a segment", 0, e))?;
        }
        Ok(())
    }

    /// Pads both open segments to whole sectors, and passes all buffered blocks to the store.
    pub(crate) fn pad(&self) -> Result<()> {
        for writer in [&self.data, &self.nodes] {
            writer.pad(&*self.store, self).map_err(|e| self.failed("appending to a segment", 0, e))?;
        }
        Ok(())
    }

    /// Seals open segments that have no live block, so that they can be deleted.
    pub(crate) fn seal_dead(&self) -> Result<()> {
        for writer in [&self.data, &self.nodes] {
            let Some(id) = writer.open_segment() else { continue };
            let dead = self.space.lock().get(id).is_some_and(|s| s.len > 0 && s.live + s.meta == 0);
            if dead {
                writer.seal(&*self.store, self).map_err(|e| self.failed("sealing a segment", 0, e))?;
            }
        }
        Ok(())
    }

    /// Syncs early, where the store can do that cheaply, so that the commit has less to do.
    ///
    /// # Errors
    /// As the store; the pool is then suspended.
    pub(crate) fn sync_early(&self) -> Result<()> {
        self.store.sync_early().map_err(|source| {
            let error = PoolError::Store { what: "making a txg durable", source };
            self.suspend(&error);
            error
        })
    }

    /// The verified and unsealed bytes of a stored block.
    fn fetch(&self, ptr: &StoredPtr, class: Class) -> Result<Bytes> {
        let mut bytes = vec![0; ptr.psize as usize];
        self.fetch_into(ptr, class == Class::MetaNode, &mut bytes)?;
        self.unseal(ptr, class, Bytes::from(bytes))
    }

    /// Reads and verifies the stored bytes of a block. `bytes` must have the stored length. Damage is recorded.
    fn fetch_into(&self, ptr: &StoredPtr, meta: bool, bytes: &mut [u8]) -> Result<()> {
        let (segment, offset) = self.locate(ptr, meta)?;
        let read = self.read_at(segment, u64::from(offset) + FRAME_HEADER as u64, bytes, ptr);
        count(&self.counters.bytes_read, bytes.len() as u64);
        let Err(error) = read.and_then(|()| verify(bytes, ptr)) else { return Ok(()) };
        if error.is_damage()
            && let Some(copies) = self.heal_any(ptr, (segment, offset))
        {
            bytes.copy_from_slice(&copies.payload);
            return Ok(());
        }
        self.note_damage(ptr, matches!(error, PoolError::Store { .. }));
        Err(error)
    }

    /// Reads bytes of a segment from the writers' buffers or the store. `ptr` is used for errors.
    fn read_at(&self, segment: SegmentId, at: u64, bytes: &mut [u8], ptr: &StoredPtr) -> Result<()> {
        let mut stored = bytes.len();
        for writer in [&self.data, &self.nodes] {
            // A segment is open in at most one of the writers.
            stored = writer.read(segment, at, &mut bytes[..stored]);
        }
        if stored == 0 {
            return Ok(());
        }
        self.read_one(segment, at, &mut bytes[..stored]).map_err(|error| match error {
            StoreError::OutOfRange { .. } | StoreError::NoSegment { .. } => {
                PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what: error.to_string() }
            }
            source => PoolError::Store { what: "reading a block", source },
        })
    }

    /// A block's frame from the store: its verified payload, and its header if that is valid. The caller must record
    /// damage.
    pub(crate) fn fetch_frame(&self, ptr: &StoredPtr, meta: bool) -> Result<(Option<FrameHeader>, Bytes)> {
        self.fetch_repaired(ptr, meta).map(|copies| (copies.header, copies.payload))
    }

    /// As [`fetch_frame`](Self::fetch_frame), with the number of repaired bytes.
    pub(crate) fn fetch_repaired(&self, ptr: &StoredPtr, meta: bool) -> Result<Copies> {
        let (segment, offset) = self.locate(ptr, meta)?;
        let mut frame = vec![0; FRAME_HEADER + ptr.psize as usize];
        let read = self.read_at(segment, offset.into(), &mut frame, ptr);
        count(&self.counters.bytes_read, frame.len() as u64);
        let frame = Bytes::from(frame);
        let header = frame_header(&frame, ptr, (segment, offset)).filter(|_| read.is_ok());
        let payload = frame.slice(FRAME_HEADER..);
        match read.and_then(|()| verify(&payload, ptr)) {
            Ok(()) if header.is_some() => Ok(Copies { header, payload, repaired: 0 }),
            Err(error) if !error.is_damage() => Err(error),
            other => match self.heal_any(ptr, (segment, offset)) {
                Some(copies) => Ok(copies),
                None => other.map(|()| Copies { header, payload, repaired: 0 }),
            },
        }
    }

    /// The current place of a block. Nodes of the meta tree are never relocated, so this does not recurse.
    pub(crate) fn locate(&self, ptr: &StoredPtr, meta: bool) -> Result<relocation::Place> {
        if meta {
            return Ok((ptr.segment, ptr.offset));
        }
        self.locate_at(ptr.segment, ptr.offset)
    }

    /// The current place of the block that was first written to `segment` and `offset`.
    pub(crate) fn locate_at(&self, segment: SegmentId, offset: u32) -> Result<relocation::Place> {
        if self.relocations.load(Ordering::Acquire)
            && let Some(tree) = self.meta.get().and_then(Weak::upgrade)
            && let Some(entry) = tree.get(&relocation::key(segment, offset))?
        {
            return relocation::decode(&entry.value);
        }
        Ok(self.retired.find((segment, offset)).unwrap_or((segment, offset)))
    }

    /// The verified and unsealed bytes of a data block.
    pub(crate) fn read_stored(&self, ptr: &BlockPtr) -> Result<Bytes> {
        match ptr {
            BlockPtr::Embedded { data, .. } => Ok(Bytes::copy_from_slice(data)),
            BlockPtr::Stored(ptr) => {
                count(&self.counters.block_reads, 1);
                self.fetch(ptr, Class::Data)
            }
            BlockPtr::Outside(ptr) => {
                let mut bytes = vec![0; ptr.psize as usize];
                self.fetch_outside(ptr, &mut bytes)?;
                Ok(Bytes::from(bytes))
            }
        }
    }

    /// Refuses pointers to external blocks if the pool does not allow them.
    pub(crate) fn check_outside(&self) -> Result<()> {
        if self.outside_allowed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(PoolError::record(
            "block pointer",
            "it leads outside the pool, which is not of a pool that allows that",
        ))
    }

    /// Reads and verifies the stored bytes of an external block. `bytes` must have the stored length.
    fn fetch_outside(&self, ptr: &OutsidePtr, bytes: &mut [u8]) -> Result<()> {
        self.check_outside()?;
        let Some(outside) = self.outside.read().clone() else {
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, "nobody has said where it is");
            return Err(PoolError::Outside { place: "what the pool was made of".to_owned(), source });
        };
        count(&self.counters.block_reads, 1);
        let mut read = |again| -> Result<()> {
            outside
                .read(ptr, bytes, again)
                .map_err(|source| PoolError::Outside { place: outside.describe(ptr), source })?;
            count(&self.counters.bytes_read, bytes.len() as u64);
            match *blake3::hash(bytes).as_bytes() == ptr.hash {
                true => Ok(()),
                false => Err(PoolError::OutsideChanged { place: outside.describe(ptr) }),
            }
        };
        read(false).or_else(|_| read(true)).inspect_err(|error| match error {
            PoolError::Outside { source, .. } => outside.lost(ptr, Some(source)),
            _ => outside.lost(ptr, None),
        })
    }

    /// As [`Pool::read_plain`](crate::Pool::read_plain).
    pub(crate) fn read_plain(&self, ptr: &BlockPtr, buf: &mut [u8]) -> Result<bool> {
        let is_plain = ptr.compression() == COMPRESSION_OFF && ptr.psize() as usize == buf.len();
        match ptr {
            BlockPtr::Stored(stored) if is_plain && !self.data_cache.has(cached_at(stored)) => {
                count(&self.counters.block_reads, 1);
                if self.is_sealed() || stored.is_sealed() {
                    buf.copy_from_slice(&self.fetch(stored, Class::Data)?);
                } else {
                    self.fetch_into(stored, false, buf)?;
                }
                Ok(true)
            }
            BlockPtr::Outside(outside) if is_plain && !self.data_cache.has(outside::cached_at(outside)) => {
                self.fetch_outside(outside, buf)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The logical bytes of a data block. Puts them into the cache.
    pub(crate) fn read(&self, ptr: &BlockPtr) -> Result<Bytes> {
        let Some(at) = place_of(ptr) else { return self.read_expanded(ptr) };
        if let Some(bytes) = self.remembered(ptr, at) {
            return Ok(bytes);
        }
        let bytes = self.read_expanded(ptr)?;
        self.data_cache.put(at, bytes.clone(), bytes.len() + 128);
        Ok(bytes)
    }

    /// The logical bytes of a data block. Does not put them into the cache.
    pub(crate) fn read_once(&self, ptr: &BlockPtr) -> Result<Bytes> {
        match place_of(ptr).and_then(|at| self.remembered(ptr, at)) {
            Some(bytes) => Ok(bytes),
            None => self.read_expanded(ptr),
        }
    }

    fn remembered(&self, ptr: &BlockPtr, at: Place) -> Option<Bytes> {
        let bytes = self.data_cache.get(at).filter(|bytes| bytes.len() == ptr.lsize() as usize)?;
        count(&self.counters.block_hits, 1);
        Some(bytes)
    }

    fn read_expanded(&self, ptr: &BlockPtr) -> Result<Bytes> {
        let at = match ptr {
            BlockPtr::Stored(ptr) => (ptr.segment, ptr.offset),
            BlockPtr::Outside(_) | BlockPtr::Embedded { .. } => (SegmentId(0), 0),
        };
        expand(self.read_stored(ptr)?, ptr.compression(), ptr.lsize(), at)
    }

    /// The node that a pointer leads to. It must fit the bounds that its parent gives.
    pub(crate) fn node(&self, ptr: &StoredPtr, bounds: Bounds<'_>, meta: bool) -> Result<Arc<Node>> {
        count(&self.counters.node_reads, 1);
        let place = cached_at(ptr);
        let node = match self.node_cache.get(place) {
            Some(node) => node,
            None => {
                let node = Arc::new(self.read_node(ptr, meta)?);
                self.node_cache.put(place, node.clone(), node.memory());
                node
            }
        };
        match bounds.refuse(&node) {
            Some(what) => Err(PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what }),
            None => Ok(node),
        }
    }

    /// Reads a node from the store without the cache.
    pub(crate) fn read_node(&self, ptr: &StoredPtr, meta: bool) -> Result<Node> {
        count(&self.counters.node_misses, 1);
        check_node_size(ptr)?;
        node_of(ptr, self.fetch(ptr, Class::of_node(meta))?)
    }

    /// Decodes a node from its verified stored bytes.
    pub(crate) fn open_node(&self, ptr: &StoredPtr, stored: Bytes, meta: bool) -> Result<Node> {
        node_of(ptr, self.unseal(ptr, Class::of_node(meta), stored)?)
    }

    pub(crate) fn remember_node(&self, ptr: &StoredPtr, node: Arc<Node>) {
        let memory = node.memory();
        self.node_cache.put(cached_at(ptr), node, memory);
    }

    pub(crate) fn counters(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        Counters {
            node_reads: get(&c.node_reads),
            node_misses: get(&c.node_misses),
            block_reads: get(&c.block_reads),
            block_hits: get(&c.block_hits),
            bytes_read: get(&c.bytes_read),
            nodes_written: get(&c.nodes_written),
            blocks_written: get(&c.blocks_written),
            bytes_written: get(&c.bytes_written),
        }
    }

    /// Bytes in the caches of data blocks and of nodes.
    pub(crate) fn cached(&self) -> (usize, usize) {
        (self.data_cache.bytes(), self.node_cache.bytes())
    }
}

/// Verifies the stored bytes of a block with the hash in its pointer.
pub(crate) fn verify(bytes: &[u8], ptr: &StoredPtr) -> Result<()> {
    if *blake3::hash(bytes).as_bytes() == ptr.hash {
        return Ok(());
    }
    let what = format!(
        "BLAKE3 of {} stored bytes does not match the pointer (born in txg {})",
        ptr.psize, ptr.birth
    );
    Err(PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what })
}

/// The header of a frame, if it is valid and belongs to the block that `ptr` leads to.
pub(crate) fn frame_header(frame: &[u8], ptr: &StoredPtr, place: (SegmentId, u32)) -> Option<FrameHeader> {
    let header = FrameHeader::decode(frame.get(..FRAME_HEADER)?, place.0, place.1.into()).ok()?;
    let is_of_it = header.hash == ptr.hash && header.psize == ptr.psize && header.birth == ptr.birth;
    (is_of_it && header.lsize == ptr.lsize && header.compression == ptr.compression).then_some(header)
}

/// Refuses a pointer to a node that is too large, before anything is read.
fn check_node_size(ptr: &StoredPtr) -> Result<()> {
    let larger = ptr.lsize.max(ptr.payload_len());
    if larger > codec::NODE_LSIZE_MAX {
        let what = format!("a tree node of {larger} bytes");
        return Err(PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what });
    }
    Ok(())
}

/// Decodes a node from its unsealed bytes.
fn node_of(ptr: &StoredPtr, stored: Bytes) -> Result<Node> {
    let corrupt = |what: String| PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what };
    check_node_size(ptr)?;
    let bytes = expand(stored, ptr.algorithm(), ptr.lsize, (ptr.segment, ptr.offset))?;
    codec::decode(&bytes, ptr.birth).map_err(|error| corrupt(error.to_string()))
}

/// The key of a block in the caches.
fn cached_at(ptr: &StoredPtr) -> Place {
    (ptr.segment, u64::from(ptr.offset))
}

/// The key of any block in the data cache; `None` for an embedded block.
fn place_of(ptr: &BlockPtr) -> Option<Place> {
    match ptr {
        BlockPtr::Stored(ptr) => Some(cached_at(ptr)),
        BlockPtr::Outside(ptr) => Some(outside::cached_at(ptr)),
        BlockPtr::Embedded { .. } => None,
    }
}

fn expand(stored: Bytes, compression: u8, lsize: u32, place: (SegmentId, u32)) -> Result<Bytes> {
    let (segment, offset) = place;
    if compression == COMPRESSION_OFF && stored.len() != lsize as usize {
        let what = format!("{} bytes stored uncompressed for {lsize}", stored.len());
        return Err(PoolError::Corrupt { segment, offset, what });
    }
    block::expand(stored, compression, lsize).map_err(|source| PoolError::Decompress {
        segment,
        offset,
        source,
    })
}
