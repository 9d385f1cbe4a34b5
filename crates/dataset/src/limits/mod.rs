//! Quotas and reservations, enforced: whether a dataset may be written to, without reading the pool for it.
//!
//! What ZFS keeps in each `dsl_dir` is kept here in memory, for as long as any dataset of the pool has a limit, and only for
//! datasets that one concerns. It is read from the pool once, follows what is written by [`Tree::growth`], and is read
//! again where a snapshot, rename, destroy, … changed it ([`Limits::note`]).
//!
//! Lock order: a txg hold or the closed gate, then the table. What is stale is read with the gate closed: only then do the
//! sizes of trees and of deadlists fit together.
//!
//! [`Tree::growth`]: snowmelt_pool::Tree::growth

mod admit;
mod build;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use snowmelt_pool::{CleanOptions, Hold, Pool, PoolError, Turn};

use self::admit::{Exceeded, Refused};
use self::build::Stale;
pub(crate) use self::table::Table;
use crate::catalog::{Catalog, DatasetId};
use crate::error::DatasetError;
use crate::ops::clean::clean_once;

/// How often a write waits for a commit before a limit that is only nearly reached refuses it.
const TRIES: usize = 4;

/// How often somebody is given room that others take before he has it.
const REFUSALS_MAX: usize = 256;

/// Takes a share in the open txg with room for `bytes`, of whatever dataset; makes room if need be.
pub(crate) fn begin_with_room(pool: &Pool, bytes: u64) -> Result<Hold<'_>, DatasetError> {
    keep_room(pool);
    let mut seeker = Seeker::new(pool);
    loop {
        let hold = pool.begin()?;
        match hold.require(bytes) {
            Err(error @ PoolError::NoSpace { .. }) => {
                drop(hold);
                if !seeker.more_room()? {
                    return Err(error.into());
                }
            }
            other => return Ok(other.map(|()| hold)?),
        }
    }
}

/// Somebody who looks for room. While others write, what is made for him may be gone when he asks again: he is refused when no
/// more is to be had, and not for being late.
struct Seeker<'p> {
    pool: &'p Pool,
    /// Before the pool is first asked, what it had given back by then.
    seen: u64,
    has_committed: bool,
    refusals: usize,
}

impl<'p> Seeker<'p> {
    fn new(pool: &'p Pool) -> Self {
        Self { pool, seen: pool.given_back(), has_committed: false, refusals: 0 }
    }

    /// Makes room after a refusal, or waits for who does. Says whether it is worth asking again.
    fn more_room(&mut self) -> Result<bool, DatasetError> {
        self.refusals += 1;
        if self.refusals > REFUSALS_MAX {
            return Ok(false);
        }
        let turn = self.pool.turn();
        let has_more = self.pool.given_back() > self.seen || self.make(&turn)?;
        self.seen = self.pool.given_back();
        Ok(has_more)
    }

    fn make(&mut self, turn: &Turn<'_>) -> Result<bool, DatasetError> {
        // What is promised is the worst case: a commit may be all that it takes.
        if self.pool.reclaim()? && !std::mem::replace(&mut self.has_committed, true) {
            return Ok(true);
        }
        make_room(self.pool, turn, CleanOptions::last_resort())
    }
}

/// Makes room before there is none: the less there is, the fewer segments fit beside what is there, and each time everything is
/// walked. What fails here is told to whoever finds no room.
fn keep_room(pool: &Pool) {
    let _ = pool.while_low(|turn| make_room(pool, turn, CleanOptions::default()));
}

/// Cleans segments, when that gives back a good part of the pool. Says whether it did.
fn make_room(pool: &Pool, turn: &Turn<'_>, options: CleanOptions) -> Result<bool, DatasetError> {
    // The larger the pool, the longer the walk that this must be worth.
    let bytes_max = options.bytes_max.max(pool.space()?.size.unwrap_or(0) / 1024);
    let options = CleanOptions { bytes_max, ..options };
    Ok(pool.is_worth_cleaning(&options)? && clean_once(pool, turn, &options)?.freed > 0)
}

/// What is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The head, for which `refquota` counts.
    Head,
    /// A tree that a receive or an import fills beside the head. Whether it may become the head is asked at its end.
    Beside,
}

/// The limits of a pool's datasets.
pub(crate) struct Limits {
    pool: Arc<Pool>,
    pool_name: Arc<str>,
    /// The table is behind, and somebody has limits.
    stale: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    table: Table,
    stale: Stale,
    /// Bytes kept in memory for datasets, and promised for open transactions.
    inflight: HashMap<DatasetId, Arc<AtomicU64>>,
}

impl Limits {
    pub(crate) fn new(pool: Arc<Pool>, pool_name: Arc<str>) -> Arc<Self> {
        Arc::new(Self { pool, pool_name, stale: AtomicBool::new(true), state: Mutex::default() })
    }

    /// Where whoever writes to a dataset counts bytes that have not reached its tree.
    pub(crate) fn inflight(&self, id: DatasetId) -> Arc<AtomicU64> {
        let inflight = &mut self.state.lock().inflight;
        inflight.retain(|_, bytes| Arc::strong_count(bytes) > 1);
        inflight.entry(id).or_default().clone()
    }

    /// A record of the catalog is written or removed: the table may be behind.
    pub(crate) fn note(&self, key: &[u8], removed: bool) {
        let mut state = self.state.lock();
        let has_limits = state.table.has_limits();
        if state.stale.note(key, removed, has_limits) {
            self.stale.store(true, Ordering::Release);
        }
    }

    /// Takes a share in the open txg to write about `bytes` to a dataset when limits and the pool allow it. `ask` asks the
    /// pool for them, with so much besides that others have reserved. Not to be called with a hold.
    ///
    /// # Errors
    /// [`DatasetError::QuotaExceeded`]; [`PoolError::NoSpace`] when the pool is full but for what others have reserved.
    pub(crate) fn begin<'p>(
        &self,
        pool: &'p Pool,
        id: DatasetId,
        into: Side,
        bytes: u64,
        ask: impl Fn(&Hold<'p>, u64) -> Result<(), PoolError>,
    ) -> Result<Hold<'p>, DatasetError> {
        keep_room(pool);
        let (mut tries, mut seeker) = (0, Seeker::new(pool));
        let mut has_committed = false;
        loop {
            tries += 1;
            let reserved = match self.admit(id, into, bytes, tries >= TRIES)? {
                Ok(reserved) => reserved,
                Err(Refused::Unsettled) => {
                    pool.commit()?;
                    continue;
                }
                // What was removed since the last commit is still counted as used.
                Err(Refused::Exceeded(Exceeded { pending: true, .. })) if !has_committed => {
                    has_committed = true;
                    pool.commit()?;
                    continue;
                }
                Err(Refused::Exceeded(exceeded)) => return Err(self.exceeded(exceeded)?),
            };
            let hold = pool.begin()?;
            match ask(&hold, reserved) {
                Ok(()) => return Ok(hold),
                Err(error @ PoolError::NoSpace { .. }) => {
                    drop(hold);
                    if !seeker.more_room()? {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether `bytes` may be written to a dataset, and how much of the pool is reserved for others. With `last`, what has not
    /// been written yet does not count.
    fn admit(
        &self,
        id: DatasetId,
        into: Side,
        bytes: u64,
        last: bool,
    ) -> Result<Result<u64, Refused>, DatasetError> {
        if self.stale.load(Ordering::Acquire) {
            self.pool.quiesced(|| self.refresh())?;
        }
        let mut state = self.state.lock();
        let State { table, inflight, .. } = &mut *state;
        // The hold comes later, maybe after a commit. Without limits too: the first may be set before this is written.
        let txg = self.pool.open_txg() + 2;
        if !table.has_limits() {
            table.touch(id, txg);
            return Ok(Ok(0));
        }
        table.settle(self.pool.committed_txg());
        let inflight = |id: DatasetId| match inflight.get(&id) {
            Some(bytes) if !last => bytes.load(Ordering::Relaxed),
            _ => 0,
        };
        let admitted = table.admit(id, into, bytes, &inflight);
        // A refused writer changes nothing, and so gives nobody a reason to wait for a commit.
        if admitted.is_ok() {
            table.touch(id, txg);
        }
        Ok(admitted)
    }

    /// A dataset is about to be written to, by something that frees as much as it writes.
    pub(crate) fn written(&self, id: DatasetId) {
        // The hold comes later, maybe after a commit. Without limits too: they may not have been read yet.
        self.state.lock().table.touch(id, self.pool.open_txg() + 2);
    }

    /// A snapshot was taken of a dataset: its head holds nothing alone any more. With the gate closed.
    pub(crate) fn snapshot_taken(&self, id: DatasetId) {
        self.state.lock().table.snapshot_taken(id);
    }

    /// Looks at the table as it is, with the gate closed: in a sync task.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub(crate) fn settled<T>(&self, look: impl FnOnce(&mut Table) -> T) -> Result<T, DatasetError> {
        if self.stale.load(Ordering::Acquire) {
            self.refresh()?;
        }
        let mut state = self.state.lock();
        state.table.settle(self.pool.committed_txg());
        Ok(look(&mut state.table))
    }

    fn exceeded(&self, exceeded: Exceeded) -> Result<DatasetError, DatasetError> {
        let Exceeded { id, quota, limit, used, .. } = exceeded;
        let name = self.catalog().dataset_by_id(id)?.name;
        Ok(DatasetError::QuotaExceeded { name, quota, limit, used })
    }

    fn catalog(&self) -> Catalog {
        Catalog::new(self.pool.clone(), self.pool_name.clone())
    }

    /// With the gate closed: reads what the table is behind of.
    fn refresh(&self) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let mut state = self.state.lock();
        let State { table, stale, .. } = &mut *state;
        stale.refresh(&catalog, table)?;
        self.stale.store(false, Ordering::Release);
        Ok(())
    }
}
