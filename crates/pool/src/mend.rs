//! Repairs damaged blocks by writing them again from good copies that others have.
//!
//! This works like moving blocks in the cleaner: copy, relocation and accounting are in one txg. After a crash a block
//! is either still damaged or repaired. Blocks that were freed meanwhile are skipped. An offered copy is used only if
//! it matches the hash in the block's pointer.

use std::sync::Arc;

use bytes::Bytes;

use crate::block::Prepared;
use crate::cleaner::Live;
use crate::error::Result;
use crate::format::ptr::StoredPtr;
use crate::format::seal::Class;
use crate::format::segment::{FrameHeader, Kind};
use crate::ids::{BlockId, TreeId};
use crate::io::Freed;
use crate::pool::Pool;

/// Bytes written in one txg. All other writers wait during that time.
const BATCH_BYTES: u64 = 8 << 20;

/// The numbers of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MendReport {
    /// Blocks that were repaired.
    pub blocks: u64,
    /// Their stored bytes.
    pub bytes: u64,
}

/// A repair under way. It must begin before the caller looks for references to damaged blocks: frees are noticed from
/// then on.
#[derive(Debug)]
pub struct Mending<'a> {
    pool: &'a Pool,
    freed: Option<Arc<Freed>>,
    batch: Vec<(StoredPtr, TreeId, BlockId, Bytes)>,
    bytes: u64,
    report: MendReport,
}

impl Pool {
    /// Begins a repair.
    pub fn mending(&self) -> Mending<'_> {
        let freed = Some(self.io().watch_frees());
        Mending { pool: self, freed, batch: Vec::new(), bytes: 0, report: MendReport::default() }
    }

    /// Whether the stored bytes of a block can be read and are correct.
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
    /// Offers bytes for a damaged data block. Returns whether they match. `tree` and `id` are for the header of the new
    /// frame. Must not be called with a hold.
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

    /// Writes the remaining blocks.
    ///
    /// # Errors
    /// When the pool cannot be written; blocks written before the error stay.
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
