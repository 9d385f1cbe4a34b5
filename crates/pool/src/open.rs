//! Creates and opens a pool.

use snowmelt_store::{RawUberblock, SegmentId, SegmentInfo, Store};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::commit::{Claim, CommitState, REWIND_TXGS, SEGMENT_IDS_AHEAD};
use crate::deadman::{self, DEADMAN_PROPERTY};
use crate::error::{PoolError, Result};
use crate::format::prefix;
use crate::format::seal::{KeyRecord, Keys, Sealer, random};
use crate::format::tree_record::TreeRecord;
use crate::format::uberblock::{Features, Uberblock};
use crate::ids::{TXG_FOUND_MAX, TreeId, Txg};
use crate::io::{Io, IoOptions};
use crate::parity;
use crate::pool::{NewPool, PARITY, Pool, PoolOptions, property_key};
use crate::rewind::{self, Rewind};
use crate::salvage::{LostState, Salvage};
use crate::space::{SegmentRecord, SegmentTable};
use crate::tree::{KEY_MAX, Tree, VALUE_MAX, codec};
use crate::trim::{self, AUTOTRIM};

/// The result of opening a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// The txg whose state was opened.
    pub txg: Txg,
    /// When that txg was committed, in seconds since 1970 by the clock of that time.
    pub time: u64,
    /// Newer txgs that could not be opened or should not be opened, newest first, with the reason. Their changes are
    /// lost once the pool is written to.
    pub passed_over: Vec<(Txg, String)>,
    /// Seconds between the newest of these and the opened txg, by the clocks of that time.
    pub lost: u64,
    /// Segments that the pool does not know. A crash left them; the first commit deletes them.
    pub orphans: Vec<SegmentId>,
    /// Segments that the pool knows but that are missing or too short in the store.
    pub missing: Vec<SegmentId>,
}

/// Minimal length of a segment. Any tree node fits, whatever its keys and values are. (A split leaves at most half of
/// the entries and one more, so a node of large entries is smaller than three of the largest entries.)
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const _: () = assert!(3 * (KEY_MAX + VALUE_MAX + 64) + 4096 < SEGMENT_BYTES_MIN as usize);

impl PoolOptions {
    fn io(&self) -> Result<IoOptions> {
        let node_bytes = self.node_bytes;
        if !(256..=codec::NODE_BYTES_MAX).contains(&node_bytes) {
            return Err(PoolError::Size {
                what: "a node",
                len: node_bytes as u64,
                min: 256,
                max: codec::NODE_BYTES_MAX as u64,
            });
        }
        Ok(IoOptions {
            node_bytes,
            segment_bytes: self.segment_bytes,
            buffer_bytes: self.buffer_bytes,
            data_cache_bytes: self.data_cache_bytes,
            node_cache_bytes: self.node_cache_bytes,
            read_only: self.read_only,
            read_only_because: self.read_only_because.clone(),
            sealer: self.keys.as_ref().map(Sealer::new),
        })
    }
}

/// Refuses a segment length, of the options or of the store, that is too small for a tree node.
fn check_segment(len: u64, node_bytes: usize) -> Result<()> {
    let min = SEGMENT_BYTES_MIN.max(2 * node_bytes as u64);
    if len < min {
        return Err(PoolError::Size { what: "a segment", len, min, max: u64::from(u32::MAX) });
    }
    Ok(())
}

impl Pool {
    /// Creates a pool on a store without a pool, and commits it.
    ///
    /// # Errors
    /// `Exists`; `Misuse` when the key belongs to another pool; as [`commit`](Self::commit).
    pub fn create(store: Box<dyn Store>, new: &NewPool<'_>, options: PoolOptions) -> Result<Arc<Self>> {
        let raw = store.uberblocks().map_err(PoolError::store("looking for a pool"))?;
        if !raw.is_empty() {
            return Err(PoolError::Exists { store: store.describe() });
        }
        if options.keys.as_ref().is_some_and(|keys| keys.guid() != new.guid) {
            return Err(PoolError::Misuse("the key is that of another pool"));
        }
        let io = Arc::new(Io::new(store, new.guid, options.io()?));
        check_segment(io.segment_bytes, options.node_bytes)?;
        io.is_loaded.store(true, Ordering::Release);
        io.writable()?;
        io.refresh_room()?;
        let meta = Tree::new(TreeId::META, io.clone(), TreeRecord::default());
        let state = CommitState {
            recent: VecDeque::new(),
            orphans: Vec::new(),
            features: Features {
                incompat: if options.keys.is_some() { Features::ENCRYPTION } else { 0 },
                ..Features::default()
            },
            keys: options.keys.clone(),
            epoch: 1,
            base: 0,
            nonce: random()?,
            claim: None,
        };
        let created = (options.clock)();
        let pool = Pool::assemble(io, meta, options, state, OpenReport::default(), 1);
        {
            let hold = pool.begin_free()?;
            pool.set_property(&hold, "name", new.name.as_bytes())?;
            pool.set_property(&hold, "guid", &new.guid.to_le_bytes())?;
            pool.set_property(&hold, "created", &created.to_le_bytes())?;
        }
        pool.commit()?;
        Ok(pool)
    }

    /// Opens the newest txg of the pool on a store, or an older one according to [`rewind`](PoolOptions::rewind). The
    /// meta tree of that txg must be readable and valid. [`open_report`](Self::open_report) says which txg was opened.
    ///
    /// # Errors
    /// `NoUberblock`, `Features`, `KeyNeeded`, `NeedsRewind`, `NoTxg`, `Unreadable`; when the store fails.
    pub fn open(store: Box<dyn Store>, options: PoolOptions) -> Result<Arc<Self>> {
        let raw = ring_of(&*store)?;
        let seen = raw.iter().map(|raw| raw.txg).max();
        let Some(seen) = seen else {
            return Err(PoolError::NoUberblock { store: store.describe() });
        };
        let (ring, mut failed) = decode_ring(raw, options.keys.as_ref());
        let guid = match (ring.first(), failed.first()) {
            (Some(newest), _) => newest.guid,
            (None, Some((_, error))) => return Err(PoolError::record("uberblock", error.clone())),
            (None, None) => return Err(PoolError::NoUberblock { store: store.describe() }),
        };
        let io = Arc::new(Io::new(store, guid, options.io()?));
        check_segment(io.segment_bytes, options.node_bytes)?;
        let stored = io.store.segments().map_err(PoolError::store("listing the segments"))?;
        let candidates = options.rewind.candidates(&ring)?;
        let tried = candidates.len();
        let mut first_error = None;
        for at in candidates {
            let uberblock = &ring[at];
            uberblock.features.check(options.read_only)?;
            check_key(uberblock, &io)?;
            let missing = |_: &Arc<Tree>| rewind::missing(&io.space.lock(), &stored);
            let loaded = load(&io, uberblock, stored.len()).map(|meta| (missing(&meta), meta)).and_then(
                |(missing, meta)| {
                    options.rewind.check_segments(uberblock.txg, &missing).map(|()| (meta, missing))
                },
            );
            match loaded {
                Ok((meta, missing)) => {
                    let refused = options.rewind == Rewind::No && !options.read_only;
                    if let Some(source) = first_error.take_if(|_| refused) {
                        return Err(needs_rewind(&ring[0], uberblock, source));
                    }
                    let newer = ring[..at].iter().map(|it| it.txg);
                    let newer: Vec<Txg> =
                        newer.filter(|txg| failed.iter().all(|(it, _)| it != txg)).collect();
                    failed.extend(
                        newer.into_iter().map(|txg| (txg, format!("gone back to txg {}", uberblock.txg))),
                    );
                    failed.sort_by_key(|(txg, _)| std::cmp::Reverse(*txg));
                    failed.retain(|(txg, _)| *txg > uberblock.txg);
                    let recent = ring[at..].iter().take(REWIND_TXGS).rev().map(|u| u.txg).collect();
                    let epoch = ring.iter().map(|u| u.epoch).max().unwrap_or(0);
                    let lost = ring[0].time.saturating_sub(uberblock.time);
                    let found =
                        Found { uberblock, recent, seen, epoch, passed_over: failed, lost, stored, missing };
                    return finish(io, meta, found, options);
                }
                Err(error) if error.is_corruption() || matches!(error, PoolError::NoTxg { .. }) => {
                    *io.space.lock() = SegmentTable::default();
                    failed.push((uberblock.txg, error.chain()));
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let source = first_error.unwrap_or(PoolError::NoUberblock { store: io.store.describe() });
        match (options.rewind, source) {
            (Rewind::To(_), source @ PoolError::NoTxg { .. }) => Err(source),
            (Rewind::To(txg), source) => Err(PoolError::NoTxg { txg, why: source.chain() }),
            (_, source) => Err(PoolError::Unreadable { tried, source: Box::new(source) }),
        }
    }
}

impl Pool {
    /// The key record of an encrypted pool; `None` if the pool is not encrypted, or if no uberblock can be read.
    /// [`Keys::open`] unwraps it with the user's key.
    ///
    /// # Errors
    /// When the store cannot be read; `Features` when a later version encrypted the pool.
    pub fn key_record_of(store: &dyn Store) -> Result<Option<KeyRecord>> {
        let (ring, _) = decode_ring(ring_of(store)?, None);
        let Some(newest) = ring.into_iter().next() else { return Ok(None) };
        newest.features.check(true)?;
        Ok(newest.sealed.map(|sealed| sealed.record))
    }

    /// Opens a state that salvage found without an uberblock. When it is opened for writing, the first txg of this
    /// owner makes it the newest state.
    ///
    /// # Errors
    /// `Corrupt` and others when the state is too incomplete to be opened; when the store fails.
    pub fn open_lost(
        store: Box<dyn Store>,
        salvage: &Salvage,
        state: &LostState,
        options: PoolOptions,
    ) -> Result<Arc<Self>> {
        let raw = ring_of(&*store)?;
        let seen = raw.iter().map(|raw| raw.txg).max().unwrap_or(0).max(salvage.newest);
        let (ring, _) = decode_ring(raw, options.keys.as_ref());
        let io = Arc::new(Io::new(store, salvage.guid, options.io()?));
        check_segment(io.segment_bytes, options.node_bytes)?;
        if salvage.key_record().is_some() && !io.is_sealed() {
            return Err(PoolError::KeyNeeded { store: io.store.describe() });
        }
        let stored = io.store.segments().map_err(PoolError::store("listing the segments"))?;
        io.open_txg.store(state.txg() + 1, Ordering::Release);
        // Only the uberblock would say whether there is parity, so it is assumed.
        io.has_parity.store(true, Ordering::Release);
        let uberblock = &salvage.uberblock(&io, state)?;
        uberblock.features.check(options.read_only)?;
        let meta = load(&io, uberblock, stored.len())?;
        let missing = rewind::missing(&io.space.lock(), &stored);
        let newer = salvage.states.iter().map(LostState::txg).filter(|txg| *txg > uberblock.txg);
        let mut passed_over: Vec<_> =
            newer.map(|txg| (txg, "only a part of it was found".to_owned())).collect();
        // All other segments are kept, as after passing over a txg.
        passed_over.push((uberblock.txg, "its uberblock was lost".to_owned()));
        let found = Found {
            uberblock,
            recent: VecDeque::from([uberblock.txg]),
            seen,
            epoch: ring.iter().map(|u| u.epoch).max().unwrap_or(0),
            passed_over,
            lost: 0,
            stored,
            missing,
        };
        finish(io, meta, found, options)
    }
}

/// The ring of uberblocks. Entries with a txg that no pool reaches are left out: the txgs after it would not be valid,
/// so everything that was written after such an entry would be lost.
fn ring_of(store: &dyn Store) -> Result<Vec<RawUberblock>> {
    let mut raw = store.uberblocks().map_err(PoolError::store("reading the uberblocks"))?;
    raw.retain(|raw| raw.txg <= TXG_FOUND_MAX);
    Ok(raw)
}

fn needs_rewind(newest: &Uberblock, to: &Uberblock, source: PoolError) -> PoolError {
    let lost = newest.time.saturating_sub(to.time);
    PoolError::NeedsRewind { newest: newest.txg, to: to.txg, time: to.time, lost, source: Box::new(source) }
}

/// Refuses an uberblock of an encrypted pool if there is no key.
fn check_key(uberblock: &Uberblock, io: &Io) -> Result<()> {
    match uberblock.sealed.is_some() && !io.is_sealed() {
        true => Err(PoolError::KeyNeeded { store: io.store.describe() }),
        false => Ok(()),
    }
}

/// The uberblocks that decode and are not ghosts, newest first, and why others were rejected. With a key, uberblocks
/// that were not made with that key are rejected.
fn decode_ring(raw: Vec<RawUberblock>, keys: Option<&Keys>) -> (Vec<Uberblock>, Vec<(Txg, String)>) {
    let mut ring = Vec::new();
    let mut failed = Vec::new();
    for RawUberblock { txg, bytes } in raw {
        match Uberblock::decode(&bytes) {
            Ok(uberblock) if keys.is_some_and(|keys| !uberblock.is_authentic(keys)) => {
                failed.push((txg, "it was not made with the pool's key".to_owned()));
            }
            Ok(uberblock) if uberblock.txg == txg => ring.push(uberblock),
            Ok(uberblock) => failed.push((txg, format!("it says it is of txg {}", uberblock.txg))),
            Err(error) => failed.push((txg, error.chain())),
        }
    }
    ring.sort_by_key(|uberblock| std::cmp::Reverse(uberblock.txg));
    let ghosts: BTreeSet<Txg> = ring.iter().filter(|u| u.is_ghost(&ring)).map(|u| u.txg).collect();
    ring.retain(|uberblock| !ghosts.contains(&uberblock.txg));
    (ring, failed)
}

/// Limit of segment records whose segments are missing in the store, because they take memory. As many more are allowed
/// as the store has segments.
const LOST_SEGMENTS_MAX: usize = 64 << 10;

/// Loads the segment table. This verifies all inner nodes of the meta tree. `stored` is the number of segments in the
/// store.
fn load(io: &Arc<Io>, uberblock: &Uberblock, stored: usize) -> Result<Arc<Tree>> {
    io.is_loaded.store(false, Ordering::Release);
    io.has_parity.store(uberblock.features.ro_compat & Features::PARITY != 0, Ordering::Release);
    // Views created here see the state of this txg.
    io.open_txg.store(uberblock.txg + 1, Ordering::Release);
    let meta = Tree::new(TreeId::META, io.clone(), uberblock.meta.clone());
    let view = meta.view();
    // This verifies the root even if it is the only node.
    view.get(&property_key("name"))?;
    let most = stored.saturating_mul(2).saturating_add(LOST_SEGMENTS_MAX);
    for (number, item) in view.range(&[prefix::SEGMENT], Some(&[prefix::SEGMENT + 1])).enumerate() {
        let (key, entry) = item?;
        let id = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        let Some(id) = id else { return Err(PoolError::record("segment record", "key of a wrong length")) };
        if number >= most {
            let what = format!("more than {most} of them, but the store has {stored} segments");
            return Err(PoolError::record("segment record", what));
        }
        io.space.lock().load(SegmentId(id), SegmentRecord::decode(&entry.value)?);
    }
    for end in &uberblock.ends {
        io.space.lock().load_end(end.id, end.kind, end.len);
    }
    for ptr in view.nodes_since(0) {
        let ptr = ptr?;
        let mut table = io.space.lock();
        if table.get(ptr.segment).is_none_or(|s| u64::from(ptr.offset) + ptr.asize() > s.len) {
            let what = "a node of the meta tree lies beyond its segment".to_owned();
            return Err(PoolError::Corrupt { segment: ptr.segment, offset: ptr.offset, what });
        }
        table.add(ptr.segment, ptr.asize(), true, ptr.birth);
    }
    let relocated = view.range(&[prefix::RELOCATION], Some(&[prefix::RELOCATION + 1])).next();
    io.relocations.store(relocated.transpose()?.is_some(), Ordering::Release);
    io.space.lock().loaded(uberblock.txg);
    // Before the ends were known, frames beyond them may have been found. Others will be written in their place.
    *io.parity_heads.lock() = Default::default();
    io.is_loaded.store(true, Ordering::Release);
    if let Some(value) = view.get(&property_key(PARITY))? {
        io.set_parity(parity::decode(&value.value)?);
    }
    if let Some(value) = view.get(&property_key(AUTOTRIM))? {
        io.store.set_autotrim(trim::decode(&value.value)?);
    }
    if let Some(value) = view.get(&property_key(DEADMAN_PROPERTY))? {
        io.store.set_deadman(deadman::decode(&value.value)?);
    }
    io.outside_allowed.store(uberblock.features.incompat & Features::OUTSIDE != 0, Ordering::Release);
    Ok(meta)
}

/// The state to open, and facts from the ring of uberblocks.
struct Found<'a> {
    uberblock: &'a Uberblock,
    recent: VecDeque<Txg>,
    /// The newest txg in the ring, valid or not.
    seen: Txg,
    /// The newest epoch in the ring.
    epoch: u64,
    passed_over: Vec<(Txg, String)>,
    /// Seconds since the opened txg, up to the newest txg that was passed over.
    lost: u64,
    /// Segments in the store.
    stored: Vec<SegmentInfo>,
    /// Segments that this txg refers to but that are missing in the store.
    missing: Vec<SegmentId>,
}

fn finish(io: Arc<Io>, meta: Arc<Tree>, found: Found<'_>, options: PoolOptions) -> Result<Arc<Pool>> {
    let Found { uberblock, recent, seen, epoch, passed_over, lost, stored, missing } = found;
    if seen > TXG_FOUND_MAX {
        return Err(PoolError::record(
            "frame header",
            format!("txg {seen} is larger than any that a pool reaches"),
        ));
    }
    let mut report = OpenReport {
        txg: uberblock.txg,
        time: uberblock.time,
        passed_over,
        lost,
        missing,
        ..OpenReport::default()
    };
    // After a txg was passed over, segments that only that txg uses are kept for later inspection.
    if report.passed_over.is_empty() {
        let table = io.space.lock();
        let orphan = stored.iter().map(|info| info.id).filter(|id| table.get(*id).is_none());
        report.orphans = orphan.collect();
    }
    let newest = stored.iter().map(|info| info.id.0).max().unwrap_or(0);
    io.next_segment.store(uberblock.next_segment.max(newest.saturating_add(1)), Ordering::Relaxed);
    // The previous owner may have tried to publish `seen + 1`. `seen + 2` is for the claim.
    io.open_txg.store(seen.saturating_add(3), Ordering::Release);
    let (epoch, base, nonce) = (epoch.saturating_add(1), uberblock.txg, random()?);
    let mut claim = None;
    if !options.read_only {
        // After a txg was passed over, all segments keep their full length.
        let ends = match report.passed_over.is_empty() {
            true => io.space.lock().iter().map(|(id, it)| SegmentInfo { id, len: it.len }).collect(),
            false => stored,
        };
        io.store.set_ends(&ends).map_err(PoolError::store("noting where the segments end"))?;
        io.refresh_room()?;
        let uberblock = Uberblock {
            txg: seen.saturating_add(2),
            time: (options.clock)(),
            next_segment: io.next_segment.load(Ordering::Relaxed).saturating_add(SEGMENT_IDS_AHEAD),
            epoch,
            base,
            nonce,
            ..uberblock.clone()
        };
        claim = Some(Claim { uberblock, resume: report.passed_over.is_empty() });
    }
    let orphans = report.orphans.clone();
    let features = uberblock.features;
    let keys = options.keys.clone();
    let state = CommitState { recent, orphans, features, keys, epoch, base, nonce, claim };
    Ok(Pool::assemble(io, meta, options, state, report, uberblock.next_tree))
}

/// Continues the segments that were open, so that a short session does not need new segments. A segment that cannot be
/// reopened is sealed.
pub(crate) fn resume_segments(io: &Io, uberblock: &Uberblock) {
    for end in uberblock.ends.iter().filter(|end| end.open && end.len < io.segment_bytes) {
        if io.store.reopen_segment(end.id, end.len).is_ok() {
            io.resume(end.kind, end.id, end.len);
        }
    }
}
