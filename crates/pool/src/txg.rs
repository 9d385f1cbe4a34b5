//! Txgs: everything done under one hold lands in one of them, and a commit makes it durable at once.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::block::{BlockId, Prepared};
use crate::error::{PoolError, Result};
use crate::io::{Io, Outgoing};
use crate::outside::OutsidePtr;
use crate::pool::Pool;
use crate::ptr::{BlockPtr, EMBEDDED_MAX, Txg};
use crate::segment::Kind;
use crate::tree::TreeId;

/// Lets holds in, and keeps them out while a commit collects what they did.
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
    /// Waits until the gate is open, and enters.
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

    /// Closes the gate and waits until everyone has left.
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

/// A share in the open txg: what is done under it is committed together.
///
/// A thread must neither begin a second hold nor commit while it has one: a commit that has begun waits for the first,
/// and the second waits for the commit.
#[derive(Debug)]
#[must_use]
pub struct Hold<'a> {
    pool: &'a Pool,
    txg: Txg,
    /// May use the reserve.
    frees: bool,
    /// Entered through the gate, as opposed to being the commit's own.
    entered: bool,
}

impl<'a> Hold<'a> {
    pub(crate) fn enter(pool: &'a Pool, frees: bool) -> Result<Self> {
        pool.io().writable()?;
        pool.claim()?;
        pool.gate().enter();
        // From here on drop leaves the gate again.
        let mut hold = Hold { pool, txg: 0, frees, entered: true };
        pool.io().writable()?;
        hold.txg = pool.io().open_txg.load(Ordering::Acquire);
        Ok(hold)
    }

    /// This hold, allowed to use the reserve: what records a free must not fail for want of space.
    pub(crate) fn for_frees(&self) -> Hold<'a> {
        Hold { pool: self.pool, txg: self.txg, frees: true, entered: false }
    }

    /// The commit's own, with the gate closed.
    pub(crate) fn of_commit(pool: &'a Pool) -> Self {
        let txg = pool.io().open_txg.load(Ordering::Acquire);
        Hold { pool, txg, frees: true, entered: false }
    }

    /// The txg in which everything under this hold lands.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// The pool held.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Writes a block of tree `owner`. The block is alive from now on; whoever puts the pointer into a tree also calls
    /// [`Tree::retain`](crate::Tree::retain), and whoever drops it instead, [`Pool::free`].
    ///
    /// # Errors
    /// `NoSpace` (the txg is sound, and may be committed or gone on with), `Size`, `Store` (the pool is suspended); for a block
    /// outside, `Misuse` where [`Pool::allow_outside`] was not called.
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

    /// Asks for room for `bytes` that will be written later in this txg, and counts them as dirty until then.
    ///
    /// # Errors
    /// `NoSpace`, unless the hold is one for frees.
    pub fn promise(&self, bytes: u64) -> Result<()> {
        self.promise_beside(bytes, 0)
    }

    /// Whether there is room for `bytes` besides all that was promised.
    ///
    /// # Errors
    /// `NoSpace`, unless the hold is one for frees.
    pub fn require(&self, bytes: u64) -> Result<()> {
        let io = self.pool.io();
        let bytes = bytes.saturating_add(io.promised.load(Ordering::Relaxed));
        if self.frees { Ok(()) } else { io.admit_new(bytes) }
    }

    /// As [`promise`](Self::promise), leaving `reserved` bytes of the pool to others.
    ///
    /// # Errors
    /// `NoSpace`, unless the hold is one for frees.
    pub fn promise_beside(&self, bytes: u64, reserved: u64) -> Result<()> {
        let pool = self.pool;
        self.require(bytes.saturating_add(reserved))?;
        pool.io().promised.fetch_add(bytes, Ordering::Relaxed);
        pool.mark_dirty();
        Ok(())
    }

    /// Counts bytes that are kept beyond what was asked for.
    pub fn promise_anyway(&self, bytes: u64) {
        self.pool.io().promised.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back promised bytes: they have been written, or never will be.
    pub fn fulfil(&self, bytes: u64) {
        let promised = &self.pool.io().promised;
        let _ = promised
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_sub(bytes)));
    }

    /// Refuses what would take the reserve, unless this hold may.
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        if self.frees { Ok(()) } else { self.pool.io().admit(bytes) }
    }

    /// Refuses the hold of another pool.
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
