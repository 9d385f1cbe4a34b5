//! Write-back: changes that a layer above keeps in memory until their txg ends.
//!
//! A block of a file may be written a hundred times in a txg, but only its last state must reach the disk. A layer that
//! keeps such changes registers a [`Writeback`]. Before each commit, the pool asks it twice to write them. The first
//! time other work goes on, so that little is left for the second time. The second time the gate is closed, so nothing
//! can be added. Thus all changes made under one hold are in one txg.

use std::sync::{Arc, Weak};

use crate::error::{PoolError, Result};
use crate::pool::Pool;
use crate::txg::Hold;

/// With fewer promised bytes than this, the gate may close: they are written in moments.
const LEFT_FOR_LAST_BYTES: u64 = 8 << 20;
/// The writebacks are asked at most this often before the gate closes, even if writers are faster than the disk.
const EARLY_PASSES_MAX: usize = 4;
/// Kept changes are written in the background when they reach 1/`WRITE_OUT_SHARE` of the allowed dirty bytes. A smaller
/// share would allow fewer overwrites in memory.
const WRITE_OUT_SHARE: u64 = 8;

/// Keeps changes of the open txg in memory.
pub trait Writeback: Send + Sync {
    /// Whether there is anything to write.
    fn is_dirty(&self) -> bool;

    /// Writes the kept changes under `hold`. If `last` is true, the gate is closed: no more changes come in this txg,
    /// and a change that is not written now is lost to it. After an error the changes must still be kept.
    ///
    /// # Errors
    /// Any error. With `last`, it suspends the pool.
    fn write_back(&self, hold: &Hold<'_>, last: bool) -> Result<()>;
}

impl Pool {
    /// Registers `writeback`: it is asked for its changes before every commit, as long as it lives.
    pub fn register(&self, writeback: Weak<dyn Writeback>) {
        let mut all = self.writebacks.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(writeback);
    }

    fn dirty_writebacks(&self) -> Vec<Arc<dyn Writeback>> {
        let all = self.writebacks.lock().clone();
        all.iter().filter_map(Weak::upgrade).filter(|writeback| writeback.is_dirty()).collect()
    }

    /// Whether kept changes should be written now, so that little is left for the commit.
    pub(crate) fn is_write_out_due(&self) -> bool {
        self.promised() >= self.dirty_max_bytes() / WRITE_OUT_SHARE
    }

    /// Writes kept changes to the open txg. This does not commit, unless the pool is full. Must not be called with a
    /// hold.
    ///
    /// # Errors
    /// As [`begin`](Pool::begin) and [`commit`](Pool::commit); the error of a [`Writeback`].
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

    /// Asks writebacks with the gate open, repeatedly while too many changes come in. A full pool is not an error yet:
    /// the last call may use the reserve.
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

    /// Asks writebacks the second time, with the gate closed.
    pub(crate) fn write_back_last(&self, hold: &Hold<'_>) -> Result<()> {
        self.dirty_writebacks().iter().try_for_each(|writeback| writeback.write_back(hold, true))
    }
}
