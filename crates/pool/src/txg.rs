//! Txgs and holds: all changes under one hold are in the same txg, and a commit makes them durable together.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::block::Prepared;
use crate::error::{PoolError, Result};
use crate::format::outside::OutsidePtr;
use crate::format::ptr::{BlockPtr, EMBEDDED_MAX};
use crate::format::segment::Kind;
use crate::ids::{BlockId, TreeId, Txg};
use crate::io::{Io, Outgoing};
use crate::pool::Pool;

/// Admits holds, and keeps them out while a commit collects their changes.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    holds: usize,
    closed: bool,
}

impl Gate {
    /// Waits until the gate is open, then enters.
    fn enter(&self) {
        let mut state = self.state.lock();
        while state.closed {
            self.changed.wait(&mut state);
        }
        state.holds += 1;
    }

    fn leave(&self) {
        let mut state = self.state.lock();
        state.holds -= 1;
        if state.holds == 0 && state.closed {
            self.changed.notify_all();
        }
    }

    /// Closes the gate and waits until all holds have ended.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        while state.holds > 0 {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn open(&self) {
        self.state.lock().closed = false;
        self.changed.notify_all();
    }
}

/// A share in the open txg: changes made under it are committed together.
///
/// A thread that has a hold must neither begin a second one nor commit: a commit waits for the first hold to end, and
/// the second hold waits for the commit.
#[derive(Debug)]
#[must_use]
pub struct Hold<'a> {
    pool: &'a Pool,
    txg: Txg,
    /// Whether it may use the reserve.
    frees: bool,
    /// Whether it entered through the gate. The commit's own hold does not.
    entered: bool,
}

impl<'a> Hold<'a> {
    pub(crate) fn enter(pool: &'a Pool, frees: bool) -> Result<Self> {
        pool.io().writable()?;
        pool.claim()?;
        pool.gate().enter();
        // From here on, dropping the hold leaves the gate.
        let mut hold = Hold { pool, txg: 0, frees, entered: true };
        pool.io().writable()?;
        hold.txg = pool.io().open_txg.load(Ordering::Acquire);
        Ok(hold)
    }

    /// This hold with permission to use the reserve: recording a free must not fail because space is low.
    pub(crate) fn for_frees(&self) -> Hold<'a> {
        Hold { pool: self.pool, txg: self.txg, frees: true, entered: false }
    }

    /// The commit's own hold. The gate must be closed.
    pub(crate) fn of_commit(pool: &'a Pool) -> Self {
        let txg = pool.io().open_txg.load(Ordering::Acquire);
        Hold { pool, txg, frees: true, entered: false }
    }

    /// The txg of all changes under this hold.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// The pool.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Writes a block of tree `owner`. The block is live from now on. A caller that puts the pointer into a tree must
    /// also call [`Tree::retain`](crate::Tree::retain). A caller that drops the pointer must call [`Pool::free`].
    ///
    /// # Errors
    /// `NoSpace` (the txg is still valid, and may be continued or committed), `Size`, `Store` (the pool is suspended).
    /// For an external block, `Misuse` if [`Pool::allow_outside`] was not called.
    pub fn write(&self, owner: TreeId, id: BlockId, block: Prepared) -> Result<BlockPtr> {
        block.validate()?;
        let pool = self.pool;
        if block.payload.len() <= EMBEDDED_MAX {
            let Prepared { payload, lsize, compression, .. } = block;
            return Ok(BlockPtr::Embedded {
                lsize,
                compression,
                birth: self.txg,
                data: payload.as_ref().into(),
            });
        }
        pool.io().writable()?;
        if let Some(place) = block.outside {
            pool.io().check_outside()?;
            let Prepared { payload, lsize, compression, hash, .. } = block;
            let psize = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let ptr = OutsidePtr { place, psize, lsize, compression, birth: self.txg, hash };
            pool.mark_dirty();
            return Ok(BlockPtr::Outside(Box::new(ptr)));
        }
        self.admit(block.payload.len() as u64)?;
        let out = Outgoing { kind: Kind::Data, owner, object: id.object, blkid: id.blkid, block: &block };
        let ptr = pool.io().write(&out, self.txg)?;
        pool.io().written.fetch_add(ptr.asize(), Ordering::Relaxed);
        pool.mark_dirty();
        Ok(BlockPtr::Stored(ptr))
    }

    /// Reserves space for `bytes` that will be written later in this txg. They count as dirty until then.
    ///
    /// # Errors
    /// `NoSpace`, unless the hold may use the reserve.
    pub fn promise(&self, bytes: u64) -> Result<()> {
        self.promise_beside(bytes, 0)
    }

    /// Checks that there is space for `bytes` beside everything that was promised.
    ///
    /// # Errors
    /// `NoSpace`, unless the hold may use the reserve.
    pub fn require(&self, bytes: u64) -> Result<()> {
        let io = self.pool.io();
        let bytes = bytes.saturating_add(io.promised.load(Ordering::Relaxed));
        if self.frees { Ok(()) } else { io.admit_new(bytes) }
    }

    /// As [`promise`](Self::promise), but leaves `reserved` bytes of the pool free.
    ///
    /// # Errors
    /// `NoSpace`, unless the hold may use the reserve.
    pub fn promise_beside(&self, bytes: u64, reserved: u64) -> Result<()> {
        let pool = self.pool;
        self.require(bytes.saturating_add(reserved))?;
        pool.io().promised.fetch_add(bytes, Ordering::Relaxed);
        pool.mark_dirty();
        Ok(())
    }

    /// Counts `bytes` as promised without checking for space.
    pub fn promise_anyway(&self, bytes: u64) {
        self.pool.io().promised.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases promised bytes: they were written, or will never be.
    pub fn fulfil(&self, bytes: u64) {
        let promised = &self.pool.io().promised;
        let _ = promised
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_sub(bytes)));
    }

    /// Refuses a write that would use the reserve, unless this hold may use it.
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        if self.frees { Ok(()) } else { self.pool.io().admit(bytes) }
    }

    /// Refuses a hold of another pool.
    pub(crate) fn check(&self, io: &Arc<Io>) -> Result<()> {
        if Arc::ptr_eq(io, self.pool.io()) {
            return Ok(());
        }
        Err(PoolError::Misuse("a hold of one pool was used with a tree of another"))
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.entered {
            self.pool.gate().leave();
        }
    }
}
