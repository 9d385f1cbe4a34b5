//! Commit: how a txg becomes the pool's state.
//!
//! The order, each step durable before the next counts:
//! 1. what is kept back ([`Writeback`](crate::Writeback)) is written; what is buffered goes to the store and is synced,
//!    while work goes on (so that step 5 has little to do);
//! 2. the gate is closed and all holds end; what has been kept back since is written; then a sync task runs, if any;
//! 3. dirty trees are written bottom-up and their records put into the meta tree; then the segment records; then the
//!    meta tree is written. Its own nodes are in no segment record, so nothing has to be written again;
//! 4. both open segments are padded to whole sectors and given to the store; the next txg is opened, the gate too;
//! 5. the store is synced;
//! 6. the uberblock is published: this is the commit (some stores do this and 5 as one);
//! 7. segments that none of the last [`REWIND_TXGS`] uberblocks and no view can reach are deleted.
//!
//! A crash before 6 leaves the uberblock before, all of which is still there: segments are only appended to, and
//! deleted only in 7. A failure from 2 to 6 suspends the pool.

use snowmelt_store::{SegmentId, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::error::{PoolError, Result};
use crate::memory;
use crate::open;
use crate::pool::{Pool, PoolOptions};
use crate::prefix;
use crate::ptr::Txg;
use crate::seal::Keys;
use crate::space::SegmentTable;
use crate::tree::{TreeRecord, View};
use crate::txg::Hold;
use crate::uberblock::{ENDS_MAX, Features, SegmentEnd, Uberblock};

/// So many of the newest committed txgs stay readable in full.
pub const REWIND_TXGS: usize = 4;

/// Segment ids that an uberblock claims beyond those given out, so that a crash reuses none of them.
pub(crate) const SEGMENT_IDS_AHEAD: u64 = 64;

/// Below this many dirty bytes a sync before the gate closes is not worth its price.
const EARLY_SYNC_BYTES: u64 = 4 << 20;
/// The share of what may be dirty, one in so many, from which on a commit is due: its nodes are written with the gate closed.
const DIRTY_SHARE: u64 = 4;
/// The same of what may be written: it has left memory, and only waits to be synced.
const WRITTEN_SHARE: u64 = 2;

/// What one commit hands to the next.
#[derive(Debug)]
pub(crate) struct CommitState {
    /// The newest committed txgs, oldest first, at most `REWIND_TXGS`.
    pub(crate) recent: VecDeque<Txg>,
    /// Segments that the pool does not know. They go after the first commit, whose uberblock claims their ids.
    pub(crate) orphans: Vec<SegmentId>,
    pub(crate) features: Features,
    pub(crate) epoch: u64,
    /// The txg whose state this owner began with.
    pub(crate) base: Txg,
    pub(crate) nonce: [u8; 16],
    /// Of an encrypted pool.
    pub(crate) keys: Option<Keys>,
    /// What is left to do before anything may be written.
    pub(crate) claim: Option<Claim>,
}

/// What an owner publishes before it writes anything: the state it found, under its own epoch and a newer txg.
///
/// Only then are the segments that were left open cut to their committed length and appended to. An uberblock of the
/// owner before, whose publication failed, may still turn up after the next power failure; without the claim it would be
/// the newest, and lead to what has been cut off.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) uberblock: Uberblock,
    /// Whether to go on in the segments that were left open.
    pub(crate) resume: bool,
}

impl CommitState {
    pub(crate) fn newest(&self) -> Txg {
        self.recent.back().copied().unwrap_or(0)
    }

    pub(crate) fn push(&mut self, txg: Txg) {
        self.recent.push_back(txg);
        while self.recent.len() > REWIND_TXGS {
            self.recent.pop_front();
        }
    }

    /// The oldest txg that must stay readable once `next` is committed.
    fn oldest_kept(&self, next: Txg) -> Txg {
        let drop = (self.recent.len() + 1).saturating_sub(REWIND_TXGS);
        self.recent.get(drop).copied().unwrap_or(next)
    }
}

/// A txg written but not yet published.
struct Written {
    txg: Txg,
    uberblock: Vec<u8>,
    dead: Vec<SegmentId>,
}

impl Pool {
    /// Makes everything done under holds that have ended durable, and gives the txg that did. Callers that arrive
    /// together share one commit; with nothing dirty this is the last committed txg. Not to be called with a hold.
    ///
    /// # Errors
    /// `Suspended`, and the failure that suspends the pool.
    pub fn commit(&self) -> Result<Txg> {
        if self.io().read_only {
            return Ok(self.committed_txg());
        }
        // What readers met makes nothing dirty, and may be the first that this owner writes.
        self.sync_txg(self.io().has_met.load(Ordering::Acquire), None)
    }

    /// Runs `task` when all holds have ended and nobody else can change anything, and commits it together with what
    /// was dirty: ZFS's sync task (dsl_synctask.c). The way to snapshot: nothing can slip into the txg after the
    /// trees were frozen. `task` must use no hold but the one it is given.
    ///
    /// # Errors
    /// What `task` returns (what it had done by then stays in the open txg); as [`commit`](Self::commit).
    pub fn sync_task<T, E: From<PoolError>>(
        &self,
        task: impl FnOnce(&Hold<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.io().writable()?;
        let mut result = None;
        let mut task = Some(task);
        let mut run = |hold: &Hold<'_>| {
            if let Some(task) = task.take() {
                result = Some(task(hold));
            }
            matches!(result, Some(Ok(_)))
        };
        let committed = self.sync_txg(true, Some(&mut run));
        match result {
            Some(Err(error)) => Err(error),
            Some(Ok(value)) => committed.map(|_| value).map_err(E::from),
            None => match committed {
                Err(error) => Err(E::from(error)),
                Ok(_) => Err(E::from(PoolError::Misuse("a sync task was not run"))),
            },
        }
    }

    /// Commits if enough is dirty or written, or the oldest change has waited long enough; writes out what is kept above
    /// the pool if that is too much. So whoever is faster than a [`Syncer`](crate::Syncer) does its work. For bulk writers,
    /// between holds.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn maybe_commit(&self) -> Result<()> {
        let PoolOptions { written_max_bytes, txg_interval, .. } = self.options;
        let dirty_max_bytes = self.dirty_max_bytes();
        if self.dirty_bytes() >= dirty_max_bytes
            || self.written_bytes() >= written_max_bytes
            || (self.is_dirty() && self.dirty_for() >= txg_interval)
        {
            self.commit()?;
        } else if self.promised() >= dirty_max_bytes / 2 {
            self.write_out()?;
        } else if self.is_write_out_due() || self.is_commit_due() {
            self.wake.nudge();
        }
        Ok(())
    }

    /// How much may be dirty, beside what other pools of this process have.
    pub fn dirty_max_bytes(&self) -> u64 {
        memory::for_one_pool(self.options.dirty_max_bytes)
    }

    /// Whether a commit had better begin now, so that it is done before [`maybe_commit`](Self::maybe_commit) makes
    /// writers wait for one.
    pub(crate) fn is_commit_due(&self) -> bool {
        let PoolOptions { written_max_bytes, txg_interval, .. } = self.options;
        // What is kept above the pool can be written out without a commit.
        self.dirty_node_bytes() >= self.dirty_max_bytes() / DIRTY_SHARE
            || self.written_bytes() >= written_max_bytes / WRITTEN_SHARE
            || (self.is_dirty() && self.dirty_for() >= txg_interval * 3 / 4)
    }

    /// Commits as often as it takes to give the space of dead segments back to the store. What views still read stays.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn drain_frees(&self) -> Result<()> {
        self.io().writable()?;
        self.io().seal_dead()?;
        for _ in 0..=REWIND_TXGS {
            if !self.io().space.lock().has_dead() {
                break;
            }
            self.sync_txg(true, None)?;
        }
        Ok(())
    }

    /// Tries to make room for whoever was refused: commits what is dirty (promises are worst cases) and gives dead
    /// segments back. Says whether there was anything to try. Not to be called with a hold.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn reclaim(&self) -> Result<bool> {
        let was_dirty = self.is_dirty();
        if was_dirty {
            self.commit()?;
        }
        self.io().seal_dead()?;
        let has_dead = self.io().space.lock().has_dead();
        if has_dead {
            self.drain_frees()?;
        }
        Ok(was_dirty || has_dead)
    }

    /// Runs `look` while nobody has a hold, so that figures kept in several places fit together. Not to be called with
    /// a hold.
    pub fn quiesced<T>(&self, look: impl FnOnce() -> T) -> T {
        let _state = self.commit.lock();
        self.gate().close();
        let seen = look();
        self.gate().open();
        seen
    }

    pub(crate) fn sync_txg(
        &self,
        force: bool,
        task: Option<&mut dyn FnMut(&Hold<'_>) -> bool>,
    ) -> Result<Txg> {
        if force {
            self.claim()?;
        }
        // Whoever commits while we wait for our turn may do so for us.
        let (txg, dirty) = (self.open_txg(), self.is_dirty());
        let mut state = self.commit.lock();
        self.io().writable()?;
        if !force && (!dirty || self.committed_txg() >= txg) {
            return Ok(self.committed_txg());
        }
        self.write_back_early()?;
        if self.dirty_bytes() + self.written_bytes() >= EARLY_SYNC_BYTES {
            self.io().flush()?;
            self.io().sync_early()?;
            // What was written meanwhile would keep everybody waiting behind the gate.
            self.write_back_early()?;
        }
        self.gate().close();
        let written = self.write_txg(&state, task);
        self.gate().open();
        match written? {
            Some(written) => self.publish_txg(&mut state, written),
            None => Ok(self.committed_txg()),
        }
    }

    /// Commits, and gives the meta tree and the segment table exactly as committed.
    pub(crate) fn capture(&self) -> Result<(Txg, View, SegmentTable)> {
        let mut state = self.commit.lock();
        self.gate().close();
        let write = !self.io().read_only && self.is_dirty();
        let written = if write { self.write_txg(&state, None) } else { Ok(None) };
        let captured = (self.meta().view(), self.io().space.lock().clone());
        self.gate().open();
        if let Some(written) = written? {
            self.publish_txg(&mut state, written)?;
        }
        Ok((self.committed_txg(), captured.0, captured.1))
    }

    /// Steps 3 and 4, with the gate closed.
    fn write_txg(
        &self,
        state: &CommitState,
        task: Option<&mut dyn FnMut(&Hold<'_>) -> bool>,
    ) -> Result<Option<Written>> {
        self.io().writable()?;
        let hold = Hold::of_commit(self);
        self.write_back_last(&hold).inspect_err(|error| self.io().suspend(error))?;
        if let Some(task) = task
            && !task(&hold)
        {
            return Ok(None);
        }
        let written = self.write_trees(state, &hold).inspect_err(|error| self.io().suspend(error))?;
        self.mark_clean();
        self.io().open_txg.store(written.txg + 1, Ordering::Release);
        Ok(Some(written))
    }

    fn write_trees(&self, state: &CommitState, hold: &Hold<'_>) -> Result<Written> {
        let txg = hold.txg();
        if self.io().has_met.load(Ordering::Acquire) {
            self.log_met(hold);
        }
        for (id, tree) in self.take_dirty_trees() {
            if let Some(record) = tree.sync_record(txg)? {
                self.meta().insert(hold, &TreeRecord::key(id), &record.encode())?;
            }
        }
        // Writing a tree lets go of nothing, so no tree can have become dirty since.
        debug_assert!(self.take_dirty_trees().is_empty());
        let views = self.io().reaches();
        let dead = self.io().space.lock().take_dead(state.oldest_kept(txg), &views);
        self.io().retired.forget(views.first().map_or(Txg::MAX, |oldest| oldest.since.saturating_sub(1)));
        self.io().retired.forget_segments(&dead);
        for id in &dead {
            self.meta().remove(hold, &segment_key(*id))?;
        }
        let meta = loop {
            let records = self.io().space.lock().take_touched();
            for (id, record) in records {
                self.meta().insert(hold, &segment_key(id), &record.encode())?;
            }
            let root = self.meta().flush(txg)?;
            if self.io().space.lock().touched().len() <= ENDS_MAX / 2 {
                break TreeRecord { root, stats: self.meta().stats(), ..TreeRecord::default() };
            }
        };
        self.io().pad()?;
        let (ends, allocated) = {
            let table = self.io().space.lock();
            let end = |(id, s): (SegmentId, crate::space::Segment)| SegmentEnd {
                id,
                kind: s.kind,
                open: s.open,
                len: s.len,
            };
            (table.touched().into_iter().map(end).collect(), table.allocated())
        };
        let uberblock = Uberblock {
            features: state.features,
            guid: self.guid(),
            txg,
            time: (self.options.clock)(),
            epoch: state.epoch,
            base: state.base,
            nonce: state.nonce,
            next_tree: self.next_tree.load(Ordering::Relaxed),
            next_segment: self.io().next_segment.load(Ordering::Relaxed).saturating_add(SEGMENT_IDS_AHEAD),
            allocated,
            meta,
            ends,
            sealed: None,
        };
        Ok(Written { txg, uberblock: uberblock.encode(state.keys.as_ref()), dead })
    }

    fn published(
        &self,
        state: &mut CommitState,
        txg: Txg,
        published: std::result::Result<(), StoreError>,
    ) -> Result<()> {
        published.map_err(|source| {
            let error = PoolError::Store { what: "publishing the uberblock", source };
            self.io().suspend(&error);
            error
        })?;
        state.push(txg);
        self.committed.store(txg, Ordering::Release);
        Ok(())
    }

    /// Before the first write of this owner: see [`Claim`].
    pub(crate) fn claim(&self) -> Result<()> {
        if !self.unclaimed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = self.commit.lock();
        self.io().writable()?;
        let Some(Claim { uberblock, resume }) = state.claim.take() else { return Ok(()) };
        let published = self.io().store.publish(uberblock.txg, &uberblock.encode(state.keys.as_ref()));
        self.published(&mut state, uberblock.txg, published)?;
        if resume {
            open::resume_segments(self.io(), &uberblock);
        }
        self.unclaimed.store(false, Ordering::Release);
        Ok(())
    }

    /// Steps 5 to 7, with the next txg open.
    fn publish_txg(&self, state: &mut CommitState, written: Written) -> Result<Txg> {
        let Written { txg, uberblock, dead } = written;
        let published = self.io().store.commit(txg, &uberblock);
        self.published(state, txg, published)?;
        let orphans = std::mem::take(&mut state.orphans);
        let count = dead.len() as u64;
        for id in dead.into_iter().chain(orphans) {
            // The commit stands whether or not the space comes back now: what is left is an orphan to the next owner.
            let _ = self.io().store.delete_segment(id);
        }
        self.io().refresh_room()?;
        self.given_back.fetch_add(count, Ordering::Release);
        Ok(txg)
    }
}

/// Key of a segment's record in the meta tree.
pub(crate) fn segment_key(id: SegmentId) -> Vec<u8> {
    let mut out = vec![prefix::SEGMENT];
    out.extend_from_slice(&id.0.to_be_bytes());
    out
}
