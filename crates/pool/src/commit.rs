//! Commit: makes a txg the state of the pool.
//!
//! The steps of a commit. Each step is finished before the next one begins:
//! 1. The changes kept in memory by [`Writeback`](crate::Writeback)s are written. Buffered blocks are passed to the
//!    store and synced. Other work continues meanwhile, so that step 5 has little to do.
//! 2. The gate is closed and all holds end. Changes that writebacks got since step 1 are written. Then the sync task
//!    runs, if there is one.
//! 3. Dirty trees are written bottom-up, and their records are put into the meta tree, followed by the segment records.
//!    Then the meta tree is written. Its own nodes are in no segment record, so nothing has to be written twice.
//! 4. Both open segments are padded to whole sectors and passed to the store. The next txg and the gate are opened.
//! 5. The store is synced.
//! 6. The uberblock is published: this is the commit. Some stores do steps 5 and 6 as one.
//! 7. Segments that neither the last [`REWIND_TXGS`] uberblocks nor any view can reach are deleted.
//!
//! A crash before step 6 leaves the previous uberblock, and everything it refers to still exists: segments are only
//! appended to, and they are deleted only in step 7. A failure in steps 2 to 6 suspends the pool.

use snowmelt_store::{SegmentId, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::error::{PoolError, Result};
use crate::format::prefix;
use crate::format::seal::Keys;
use crate::format::tree_record::TreeRecord;
use crate::format::uberblock::{ENDS_MAX, Features, SegmentEnd, Uberblock};
use crate::ids::{TXG_MAX, Txg};
use crate::memory;
use crate::open;
use crate::pool::{Pool, PoolOptions};
use crate::space::SegmentTable;
use crate::tree::View;
use crate::txg::Hold;

/// This number of the newest committed txgs stays completely readable.
pub const REWIND_TXGS: usize = 4;

/// An uberblock claims this many segment ids beyond those in use, so that no id is reused after a crash.
pub(crate) const SEGMENT_IDS_AHEAD: u64 = 64;

/// With fewer dirty bytes than this, a sync before the gate closes is not worth its cost.
const EARLY_SYNC_BYTES: u64 = 4 << 20;
/// A commit is due when 1/`DIRTY_SHARE` of the allowed dirty bytes are in nodes, because nodes are written with the
/// gate closed.
const DIRTY_SHARE: u64 = 4;
/// A commit is due when 1/`WRITTEN_SHARE` of the allowed written bytes were written. These bytes have left memory and
/// only wait for a sync.
const WRITTEN_SHARE: u64 = 2;

/// State that one commit passes to the next.
#[derive(Debug)]
pub(crate) struct CommitState {
    /// The newest committed txgs, oldest first, at most `REWIND_TXGS`.
    pub(crate) recent: VecDeque<Txg>,
    /// Segments that the pool does not know. They are deleted after the first commit, whose uberblock claims their ids.
    pub(crate) orphans: Vec<SegmentId>,
    pub(crate) features: Features,
    pub(crate) epoch: u64,
    /// The txg whose state this owner started from.
    pub(crate) base: Txg,
    pub(crate) nonce: [u8; 16],
    /// The keys of an encrypted pool.
    pub(crate) keys: Option<Keys>,
    /// The claim that must be published before anything is written.
    pub(crate) claim: Option<Claim>,
}

/// The first uberblock that an owner publishes, before it writes anything else. It holds the state that the owner
/// found, with the owner's epoch and a newer txg.
///
/// Only after that are the open segments of the previous owner cut to their committed length and appended to. An
/// uberblock that the previous owner failed to publish may still become visible after the next power failure. Without
/// the claim it would be the newest uberblock, and refer to bytes that were cut off.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) uberblock: Uberblock,
    /// Whether to append to the segments that the previous owner left open.
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
    /// Makes the changes of all holds that have ended durable, and returns the txg that contains them. Concurrent
    /// callers share one commit. If nothing is dirty, this returns the last committed txg. Must not be called with a
    /// hold.
    ///
    /// # Errors
    /// `Suspended`, and the failure that suspends the pool.
    pub fn commit(&self) -> Result<Txg> {
        if self.io().read_only {
            return Ok(self.committed_txg());
        }
        // Damaged blocks that readers found do not make the pool dirty. Their log may be the first thing that this
        // owner writes.
        self.sync_txg(self.io().has_met.load(Ordering::Acquire), None)
    }

    /// Runs `task` when all holds have ended and nothing else can change, and commits its changes together with all
    /// dirty state. This is ZFS's sync task (dsl_synctask.c). Snapshots are taken in this way: no change can get into
    /// the txg after the trees were frozen. `task` must use only the hold that it gets.
    ///
    /// # Errors
    /// The error of `task`; its changes before the error stay in the open txg. As [`commit`](Self::commit).
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

    /// Commits if enough bytes are dirty or written, or if the oldest change is old enough. If
    /// [`Writeback`](crate::Writeback)s keep too much in memory, writes their changes. A fast writer thereby does the
    /// work of the [`Syncer`](crate::Syncer). Bulk writers call this between holds.
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

    /// Limit of dirty bytes for this pool. Open pools of one process share the process's limit.
    pub fn dirty_max_bytes(&self) -> u64 {
        memory::for_one_pool(self.options.dirty_max_bytes)
    }

    /// Whether a commit should begin now, so that it is done before [`maybe_commit`](Self::maybe_commit) makes writers
    /// wait for one.
    pub(crate) fn is_commit_due(&self) -> bool {
        let PoolOptions { written_max_bytes, txg_interval, .. } = self.options;
        // Changes kept by writebacks can be written without a commit, so they do not count here.
        self.dirty_node_bytes() >= self.dirty_max_bytes() / DIRTY_SHARE
            || self.written_bytes() >= written_max_bytes / WRITTEN_SHARE
            || (self.is_dirty() && self.dirty_for() >= txg_interval * 3 / 4)
    }

    /// Commits repeatedly until the dead segments are deleted from the store. Segments that views still read stay.
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

    /// Tries to free space after a write was refused. Commits dirty state, because promises are worst cases, and
    /// deletes dead segments. Returns whether there was anything to try. Must not be called with a hold.
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

    /// Runs `look` while no hold exists, so that numbers kept in several places are consistent. Must not be called with
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
        // The current commit, if there is one, may already include these changes.
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
            // Changes kept since the last call would otherwise be written with the gate closed, while all writers wait.
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

    /// Commits, and returns the committed meta tree and the segment table of the same moment.
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
        assert!(txg <= TXG_MAX, "txg {txg} is not valid on disk");
        if self.io().has_met.load(Ordering::Acquire) {
            self.log_met(hold);
        }
        for (id, tree) in self.take_dirty_trees() {
            if let Some(record) = tree.sync_record(txg)? {
                self.meta().insert(hold, &TreeRecord::key(id), &record.encode())?;
            }
        }
        // Writing a tree releases no blocks, so no other tree can have become dirty.
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

    /// Publishes the [`Claim`] before the first write of this owner.
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

    /// Steps 5 to 7, with the next txg already open.
    fn publish_txg(&self, state: &mut CommitState, written: Written) -> Result<Txg> {
        let Written { txg, uberblock, dead } = written;
        let published = self.io().store.commit(txg, &uberblock);
        self.published(state, txg, published)?;
        let orphans = std::mem::take(&mut state.orphans);
        let count = dead.len() as u64;
        for id in dead.into_iter().chain(orphans) {
            // The commit is valid even if a deletion fails. The next owner finds the remaining segment as an orphan.
            let _ = self.io().store.delete_segment(id);
        }
        self.io().refresh_room()?;
        self.given_back.fetch_add(count, Ordering::Release);
        Ok(txg)
    }
}

/// The key of a segment's record in the meta tree.
pub(crate) fn segment_key(id: SegmentId) -> Vec<u8> {
    let mut out = vec![prefix::SEGMENT];
    out.extend_from_slice(&id.0.to_be_bytes());
    out
}
