//! Quotas and reservations: decides whether a dataset may be written, without reading the pool for each write.
//!
//! What ZFS keeps in each `dsl_dir` is kept here in memory, as long as any dataset of the pool has a limit, and only
//! for the datasets that a limit concerns. It is read from the pool once. Writes update it through [`Tree::growth`].
//! After a snapshot, rename, destroy and so on, the changed parts are read again ([`Limits::note`]).
//!
//! Lock order: a hold or the closed gate, then the table. Outdated parts are read with the gate closed, because only
//! then are the sizes of trees and of deadlists consistent.
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

/// How many commits a write waits for before a limit that is only nearly reached refuses it.
const TRIES: usize = 4;

/// How often space is freed for one writer while other writers take it.
const REFUSALS_MAX: usize = 256;

/// Takes a hold with space for `bytes`, for any dataset. Frees space if necessary.
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

/// A writer that looks for space. Other writers may take the space that was freed for it. It is refused when no more
/// space can be freed, not because it was late.
struct Seeker<'p> {
    pool: &'p Pool,
    /// Number of segments that the pool had deleted before it was last asked for space.
    seen: u64,
    has_committed: bool,
    refusals: usize,
}

impl<'p> Seeker<'p> {
    fn new(pool: &'p Pool) -> Self {
        Self { pool, seen: pool.given_back(), has_committed: false, refusals: 0 }
    }

    /// Frees space after a refusal, or waits for another thread that does. Returns whether it is worth asking again.
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
        // Promised bytes are a worst case, so a commit may be enough.
        if self.pool.reclaim()? && !std::mem::replace(&mut self.has_committed, true) {
            return Ok(true);
        }
        make_room(self.pool, turn, CleanOptions::last_resort())
    }
}

/// Cleans segments before space runs out: the less space there is, the fewer segments can be cleaned at once, and each
/// cleaning walks everything. Errors are ignored here; a writer that finds no space will get them.
fn keep_room(pool: &Pool) {
    let _ = pool.while_low(|turn| make_room(pool, turn, CleanOptions::default()));
}

/// Cleans segments if that frees a considerable part of the pool. Returns whether it freed space.
fn make_room(pool: &Pool, turn: &Turn<'_>, options: CleanOptions) -> Result<bool, DatasetError> {
    // In a larger pool the walk takes longer, so more bytes are cleaned at once.
    let bytes_max = options.bytes_max.max(pool.space()?.size.unwrap_or(0) / 1024);
    let options = CleanOptions { bytes_max, ..options };
    Ok(pool.is_worth_cleaning(&options)? && clean_once(pool, turn, &options)?.freed > 0)
}

/// Which tree of a dataset is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The head, to which `refquota` applies.
    Head,
    /// A tree that a receive or an import fills in addition to the head. Whether it may replace the head is checked at
    /// its end.
    Beside,
}

/// The limits of a pool's datasets.
pub(crate) struct Limits {
    pool: Arc<Pool>,
    pool_name: Arc<str>,
    /// The table is out of date, and there are limits.
    stale: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    table: Table,
    stale: Stale,
    /// Bytes that are kept in memory for each dataset, or promised for open transactions.
    inflight: HashMap<DatasetId, Arc<AtomicU64>>,
}

impl Limits {
    pub(crate) fn new(pool: Arc<Pool>, pool_name: Arc<str>) -> Arc<Self> {
        Arc::new(Self { pool, pool_name, stale: AtomicBool::new(true), state: Mutex::default() })
    }

    /// The counter of bytes that were written to a dataset but are not in its tree yet.
    pub(crate) fn inflight(&self, id: DatasetId) -> Arc<AtomicU64> {
        let inflight = &mut self.state.lock().inflight;
        inflight.retain(|_, bytes| Arc::strong_count(bytes) > 1);
        inflight.entry(id).or_default().clone()
    }

    /// Notes that a record of the catalog is written or removed. The table may then be out of date.
    pub(crate) fn note(&self, key: &[u8], removed: bool) {
        let mut state = self.state.lock();
        let has_limits = state.table.has_limits();
        if state.stale.note(key, removed, has_limits) {
            self.stale.store(true, Ordering::Release);
        }
    }

    /// Takes a hold for writing about `bytes` to a dataset, if limits and the pool allow it. `ask` promises the bytes
    /// to the hold; its argument is the space reserved for other datasets. Must not be called with a hold.
    ///
    /// # Errors
    /// [`DatasetError::QuotaExceeded`]; [`PoolError::NoSpace`] when the pool is full except for reservations of others.
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
                // Blocks removed since the last commit still count as used.
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

    /// Checks whether `bytes` may be written to a dataset. Returns how much of the pool is reserved for others. With
    /// `last`, unwritten bytes do not count.
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
        // The hold is taken later, maybe after a commit. This is also noted without limits: the first one may be set
        // before the write.
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
        // A refused writer changes nothing, so other writers need not wait for a commit because of it.
        if admitted.is_ok() {
            table.touch(id, txg);
        }
        Ok(admitted)
    }

    /// Notes that a dataset will be written by something that frees as much as it writes.
    pub(crate) fn written(&self, id: DatasetId) {
        // The hold is taken later, maybe after a commit. This is also noted without limits, because they may not be
        // read yet.
        self.state.lock().table.touch(id, self.pool.open_txg() + 2);
    }

    /// Notes a snapshot of a dataset: no block is used by its head alone any more. The gate must be closed.
    pub(crate) fn snapshot_taken(&self, id: DatasetId) {
        self.state.lock().table.snapshot_taken(id);
    }

    /// Calls `look` with the up-to-date table, in a sync task (the gate is closed).
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

    /// Updates the table. The gate must be closed.
    fn refresh(&self) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let mut state = self.state.lock();
        let State { table, stale, .. } = &mut *state;
        stale.refresh(&catalog, table)?;
        self.stale.store(false, Ordering::Release);
        Ok(())
    }
}
