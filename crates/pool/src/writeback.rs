//! Write-back: changes that are kept in memory above the pool until their txg ends.
//!
//! A file's block may be written a hundred times in a txg; only the last state of it has to reach the disk. Whoever
//! keeps such changes registers as a [`Writeback`], and is asked for them before each commit: once while work goes on, so
//! that little is left for the second time, with the gate closed, when nobody can add any. So all that was done
//! under one hold lands in one txg, kept back or not.

use std::sync::{Arc, Weak};

use crate::error::{PoolError, Result};
use crate::pool::Pool;
use crate::txg::Hold;

/// With less than this promised and not written, the gate may close: it takes moments to write.
const LEFT_FOR_LAST_BYTES: u64 = 8 << 20;
/// Writers that are faster than the disk are not waited for any longer.
const EARLY_PASSES_MAX: usize = 4;
/// The share of what may be dirty, one in so many, from which on what is kept is written out beside those who write. Less
/// is left to be overwritten in memory.
const WRITE_OUT_SHARE: u64 = 8;

/// Keeps changes in memory that belong to the open txg.
pub trait Writeback: Send + Sync {
    /// Whether there is anything to write.
    fn is_dirty(&self) -> bool;

    /// Writes what is kept, under `hold`. `last` says that the gate is closed: nothing comes after it in this txg, and what
    /// is not written now is in no txg at all. When it fails, what was kept must still be there.
    ///
    /// # Errors
    /// Any; with `last`, it suspends the pool.
    fn write_back(&self, hold: &Hold<'_>, last: bool) -> Result<()>;
}

impl Pool {
    /// Has `writeback` asked for its changes before every commit, for as long as it lives.
    pub fn register(&self, writeback: Weak<dyn Writeback>) {
        let mut all = self.writebacks.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(writeback);
    }

    fn dirty_writebacks(&self) -> Vec<Arc<dyn Writeback>> {
        let all = self.writebacks.lock().clone();
        all.iter().filter_map(Weak::upgrade).filter(|writeback| writeback.is_dirty()).collect()
    }

    /// Whether what is kept had better be written out, so that little is left for whoever commits.
    pub(crate) fn is_write_out_due(&self) -> bool {
        self.promised() >= self.dirty_max_bytes() / WRITE_OUT_SHARE
    }

    /// Has what is kept written to the open txg, which is not committed unless the pool is full. Not to be called with a
    /// hold.
    ///
    /// # Errors
    /// As [`begin`](Pool::begin) and [`commit`](Pool::commit); what a [`Writeback`] fails with.
    pub fn write_out(&self) -> Result<()> {
        match self.write_back_once() {
            // A commit may use the reserve.
            Err(PoolError::NoSpace { .. }) => self.commit().map(drop),
            other => other,
        }
    }

    fn write_back_once(&self) -> Result<()> {
        for writeback in self.dirty_writebacks() {
            let hold = self.begin()?;
            writeback.write_back(&hold, false)?;
        }
        Ok(())
    }

    /// The first time of asking, with the gate open, and again while more comes in than should be left for the last time. A
    /// full pool is no failure yet: the last time may use the reserve.
    pub(crate) fn write_back_early(&self) -> Result<()> {
        for _ in 0..EARLY_PASSES_MAX {
            match self.write_back_once() {
                Err(PoolError::NoSpace { .. }) => return Ok(()),
                other => other?,
            }
            if self.promised() < LEFT_FOR_LAST_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// The second time, with the gate closed.
    pub(crate) fn write_back_last(&self, hold: &Hold<'_>) -> Result<()> {
        self.dirty_writebacks().iter().try_for_each(|writeback| writeback.write_back(hold, true))
    }
}
