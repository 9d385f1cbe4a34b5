//! A batch of a scrub: gathers blocks, then reads them in the order of their places.

use std::sync::atomic::Ordering;

use snowmelt_store::SegmentId;

use super::Scrubbing;
use crate::cleaner::Live;
use crate::damage::{Damage, DamageOwner};
use crate::error::{PoolError, Result};
use crate::format::ptr::StoredPtr;
use crate::format::segment::{FRAME_HEADER, FrameHeader, Kind};
use crate::ids::{BlockId, TreeId};
use crate::io::{Freed, frame_header, verify};
use crate::pool::Pool;
use crate::txg::Hold;

/// Maximal number of gathered blocks. Each takes about 200 bytes of memory.
const BLOCKS_MAX: usize = 64 << 10;
/// A batch ends after this many damaged blocks, so that one commit does not log too many.
const FINDS_MAX: usize = 1000;
/// Neighbouring blocks are read together, up to this many bytes.
const RUN_BYTES: u64 = 1 << 20;
/// Blocks are neighbours if at most this many bytes lie between them.
const GAP_BYTES: u64 = 16 << 10;

/// A gathered block and its owner.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) ptr: StoredPtr,
    pub(super) kind: Kind,
    pub(super) tree: TreeId,
    pub(super) id: BlockId,
    pub(super) owner: DamageOwner,
}

/// The blocks of a scrub between two commits.
pub(super) struct Batch {
    blocks: Vec<((SegmentId, u32), Found)>,
    bytes: u64,
    bytes_max: u64,
    /// Bytes of nodes read while gathering.
    pub(super) read: u64,
    /// Bytes of bad copies that were overwritten.
    pub(super) healed: u64,
    /// Damaged blocks, and for each whether the store failed to read it.
    pub(super) damaged: Vec<(Damage, bool)>,
    /// Blocks of which only the frame's header is damaged.
    torn: Vec<Found>,
    time: u64,
}

impl Batch {
    pub(super) fn new(bytes_max: u64, time: u64) -> Self {
        Batch {
            blocks: Vec::new(),
            bytes: 0,
            bytes_max,
            read: 0,
            healed: 0,
            damaged: Vec::new(),
            torn: Vec::new(),
            time,
        }
    }

    pub(super) fn push(&mut self, found: Found) {
        self.bytes += found.ptr.asize();
        self.blocks.push(((found.ptr.segment, found.ptr.offset), found));
    }

    pub(super) fn count_read(&mut self, bytes: u64) {
        self.read += bytes;
    }

    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= BLOCKS_MAX
            || self.bytes + self.read >= self.bytes_max
            || self.damaged.len() + self.torn.len() >= FINDS_MAX
    }

    pub(super) fn scanned(&self) -> u64 {
        self.bytes + self.read
    }

    pub(super) fn torn(&mut self, found: Found) {
        self.torn.push(found);
    }

    pub(super) fn damaged(&mut self, found: Found, error: &PoolError) {
        let Found { ptr: StoredPtr { segment, offset, psize, birth, .. }, kind, owner, .. } = found;
        let damage = Damage { segment, offset, psize, birth, time: self.time, kind, owner };
        self.damaged.push((damage, matches!(error, PoolError::Store { .. })));
    }

    /// Reads and verifies the gathered blocks. `pause` is called after every read with its length, and returns whether
    /// to continue. Returns `false` if it did not continue.
    pub(super) fn verify(
        &mut self,
        pool: &Pool,
        scrubbing: &Scrubbing,
        pause: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool> {
        let mut blocks = std::mem::take(&mut self.blocks);
        for (place, found) in &mut blocks {
            *place = pool.io().locate_at(found.ptr.segment, found.ptr.offset)?;
        }
        blocks.sort_by_key(|(place, _)| *place);
        let mut blocks = blocks.into_iter().peekable();
        let mut run: Vec<((SegmentId, u32), Found)> = Vec::new();
        let mut bytes = Vec::new();
        while let Some(first) = blocks.next() {
            let ((segment, offset), mut end) = (first.0, end_of(&first));
            let start = u64::from(offset);
            run.push(first);
            while let Some(next) = blocks.next_if(|next| {
                let ((other, at), until) = (next.0, end_of(next));
                other == segment
                    && u64::from(at).saturating_sub(end) <= GAP_BYTES
                    && until.saturating_sub(start) <= RUN_BYTES
            }) {
                end = end.max(end_of(&next));
                run.push(next);
            }
            bytes.resize(usize::try_from(end - start).unwrap_or(0), 0);
            // In a mirror, every copy is read.
            let mirror = pool.store().mirror();
            let copies: Vec<Option<usize>> = match mirror {
                Some(mirror) => mirror.copies(segment, start).into_iter().map(Some).collect(),
                None => vec![None],
            };
            let mut is_sound = vec![!copies.is_empty(); run.len()];
            for copy in copies {
                let read = match (mirror, copy) {
                    (Some(mirror), Some(copy)) => mirror.read_copy(copy, segment, start, &mut bytes),
                    _ => pool.store().read(segment, start, &mut bytes),
                };
                for ((place, found), is_sound) in run.iter().zip(&mut is_sound) {
                    *is_sound &= read.is_ok() && is_frame_in(&bytes, start, *place, found);
                }
            }
            let mut done = 0;
            for ((_, found), is_sound) in run.drain(..).zip(is_sound) {
                done += found.ptr.asize();
                if !is_sound {
                    self.judge(pool, found)?;
                }
            }
            scrubbing.issued.fetch_add(done, Ordering::Relaxed);
            if !pause(done) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a block that failed verification again by itself: it may have been moved since, the error may have been
    /// temporary, or another copy may be good.
    fn judge(&mut self, pool: &Pool, found: Found) -> Result<()> {
        match pool.io().fetch_copies(&found.ptr, false) {
            Ok(copies) => {
                self.healed += copies.repaired;
                if copies.header.is_none() {
                    self.torn(found);
                }
            }
            Err(error) if error.is_damage() => self.damaged(found, &error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes blocks again of which only the headers were damaged, unless they were freed meanwhile. Returns their
    /// bytes.
    pub(super) fn mend(&mut self, pool: &Pool, hold: &Hold<'_>, freed: &Freed) -> Result<u64> {
        let mut mended = 0;
        let mut nodes_of_meta = Vec::new();
        for found in std::mem::take(&mut self.torn) {
            let Found { ptr, kind, tree, id, .. } = &found;
            let origin = (ptr.segment, ptr.offset);
            if freed.has(origin) {
                continue;
            }
            if *tree == TreeId::META {
                nodes_of_meta.push(origin);
                mended += FRAME_HEADER as u64;
                continue;
            }
            let (header, payload) = match pool.io().fetch_frame(ptr, false) {
                Ok(read) => read,
                Err(error) if error.is_damage() => {
                    self.damaged(found, &error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if header.is_some() {
                continue;
            }
            let header = FrameHeader {
                kind: *kind,
                compression: ptr.compression,
                lsize: ptr.lsize,
                psize: ptr.psize,
                birth: ptr.birth,
                owner: *tree,
                object: id.object,
                blkid: id.blkid,
                pool: pool.guid(),
                hash: ptr.hash,
            };
            let place = pool.io().locate_at(ptr.segment, ptr.offset)?;
            let live = Live { place, origin, asize: ptr.asize() };
            pool.put_elsewhere(hold, &live, &header, payload)?;
            mended += ptr.asize();
        }
        if !nodes_of_meta.is_empty() {
            pool.meta().rewrite(hold, &|ptr| nodes_of_meta.contains(&(ptr.segment, ptr.offset)))?;
        }
        Ok(mended)
    }
}

/// Whether `bytes`, which begin at offset `start`, hold a block's valid frame.
fn is_frame_in(bytes: &[u8], start: u64, place: (SegmentId, u32), found: &Found) -> bool {
    let at = usize::try_from(u64::from(place.1).saturating_sub(start)).unwrap_or(usize::MAX);
    let end = at.checked_add(FRAME_HEADER + found.ptr.psize as usize);
    let Some(frame) = end.and_then(|end| bytes.get(at..end)) else { return false };
    verify(frame.get(FRAME_HEADER..).unwrap_or_default(), &found.ptr).is_ok()
        && frame_header(frame, &found.ptr, place).is_some()
}

fn end_of((place, found): &((SegmentId, u32), Found)) -> u64 {
    u64::from(place.1) + FRAME_HEADER as u64 + u64::from(found.ptr.psize)
}
