//! Mending: damaged blocks are written anew from good copies that others have.
//!
//! As the cleaner moves blocks: copy, relocation and accounting are of one txg, so after a crash a block is damaged as
//! before or well, and a block that was freed meanwhile is left alone. What is offered counts only if it is, byte for byte,
//! what the pointer's hash is of.

use std::sync::Arc;

use bytes::Bytes;

use crate::block::{BlockId, Prepared};
use crate::cleaner::Live;
use crate::error::Result;
use crate::io::Freed;
use crate::pool::Pool;
use crate::ptr::StoredPtr;
use crate::seal::Class;
use crate::segment::{FrameHeader, Kind};
use crate::tree::TreeId;

/// Bytes written in one txg, while everybody else waits.
const BATCH_BYTES: u64 = 8 << 20;

/// What was mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MendReport {
    /// Blocks that were damaged and are well.
    pub blocks: u64,
    /// Their stored bytes.
    pub bytes: u64,
}

/// A mending at work. Look for what refers to damaged blocks after it was begun: what is freed from then on is noticed.
#[derive(Debug)]
pub struct Mending<'a> {
    pool: &'a Pool,
    freed: Option<Arc<Freed>>,
    batch: Vec<(StoredPtr, TreeId, BlockId, Bytes)>,
    bytes: u64,
    report: MendReport,
}

impl Pool {
    /// Begins to mend.
    pub fn mending(&self) -> Mending<'_> {
        let freed = Some(self.io().watch_frees());
        Mending { pool: self, freed, batch: Vec::new(), bytes: 0, report: MendReport::default() }
    }

    /// Whether the stored bytes of a block are there and what they were.
    ///
    /// # Errors
    /// When the pool's own records cannot be read.
    pub fn is_sound(&self, ptr: &StoredPtr) -> Result<bool> {
        match self.io().fetch_frame(ptr, false) {
            Ok(_) => Ok(true),
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Mending<'_> {
    /// Offers good bytes for a data block that is damaged, and says whether they are those. `tree` and `id` are for the
    /// header of the new frame. Not to be called with a hold.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn offer(&mut self, ptr: &StoredPtr, tree: TreeId, id: BlockId, good: &Prepared) -> Result<bool> {
        if good.outside.is_some() || good.payload.len() != ptr.payload_len() as usize {
            return Ok(false);
        }
        let stored = self.pool.io().stored_form(Class::Data, ptr.birth, id, good)?;
        let is_it = stored.hash == ptr.hash
            && stored.compression == ptr.compression
            && crate::io::verify(&stored.payload, ptr).is_ok();
        if !is_it {
            return Ok(false);
        }
        self.bytes += ptr.asize();
        self.batch.push((ptr.clone(), tree, id, stored.payload.clone()));
        if self.bytes >= BATCH_BYTES {
            self.write()?;
        }
        Ok(true)
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// When the pool cannot be written; what was written by then stays.
    pub fn finish(mut self) -> Result<MendReport> {
        self.write()?;
        Ok(self.report)
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let (pool, freed) = (self.pool, self.freed.as_ref());
        let done = pool.sync_task(|hold| {
            let mut report = MendReport::default();
            for (ptr, tree, id, payload) in batch {
                let origin = (ptr.segment, ptr.offset);
                if freed.is_none_or(|freed| freed.has(origin)) || pool.is_sound(&ptr)? {
                    continue;
                }
                let header = FrameHeader {
                    kind: Kind::Data,
                    compression: ptr.compression,
                    lsize: ptr.lsize,
                    psize: ptr.psize,
                    birth: ptr.birth,
                    owner: tree,
                    object: id.object,
                    blkid: id.blkid,
                    pool: pool.guid(),
                    hash: ptr.hash,
                };
                let place = pool.io().locate_at(ptr.segment, ptr.offset)?;
                let live = Live { place, origin, asize: ptr.asize() };
                pool.put_elsewhere(hold, &live, &header, payload)?;
                pool.forget_damage(hold, origin)?;
                report.blocks += 1;
                report.bytes += u64::from(ptr.psize);
            }
            Ok::<_, crate::error::PoolError>(report)
        })?;
        self.report.blocks += done.blocks;
        self.report.bytes += done.bytes;
        Ok(())
    }
}

impl Drop for Mending<'_> {
    fn drop(&mut self) {
        if let Some(freed) = self.freed.take() {
            self.pool.io().unwatch_frees(freed);
        }
    }
}
