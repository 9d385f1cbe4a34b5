//! Sends objects in order, for plain and raw streams.
//!
//! A plain stream contains the objects that changed. A raw stream contains, for every changed block of dnodes, all its
//! dnodes, because they are encrypted together: OBJECT_RANGE, then each object, or FREEOBJECTS for free slots.

use std::sync::atomic::{AtomicBool, Ordering};

use snowmelt_pool::{Entry, View};
use snowmelt_stream::features::Features;

use super::entries::Entries;
use super::recorder::Recorder;
use crate::error::{DatasetError, SendError};
use crate::objset::key::{OBJECT_MAX, ObjsetKey, SLOTS_PER_BLOCK, object_end};
use crate::objset::value::{Block, BlockCrypt, Dnode};
use crate::objset::view::{blocks_end, last_block, redaction_len};

/// An object after its OBJECT record and before the next object.
pub(super) struct Current {
    pub(super) object: u64,
    pub(super) dnode: Dnode,
    /// Blocks from here on are free, and were sent as free.
    pub(super) tail: u64,
    /// A changed spill block. It is sent after the data, as in ZFS.
    spill: Option<Block>,
}

/// An object's spill block, and whether the receiver already has it.
pub(super) struct SpillBlock {
    pub(super) block: Block,
    pub(super) unmodified: bool,
}

impl SpillBlock {
    pub(super) fn decode(entry: &Entry, unmodified: bool) -> Result<Self, DatasetError> {
        Ok(Self { block: Block::decode(&entry.value)?, unmodified })
    }
}

/// The current block of dnodes in a raw stream.
struct RawBlock {
    first: u64,
    /// Slots from here on were not sent yet.
    next: u64,
}

/// Sends objects in ascending order.
pub(super) struct Objects<'a> {
    pub(super) view: &'a View,
    recorder: Recorder<'a>,
    raw: bool,
    raw_block: Option<RawBlock>,
    redacted: bool,
    current: Option<Current>,
    cancelled: &'a AtomicBool,
}

impl<'a> Objects<'a> {
    pub(super) fn new(recorder: Recorder<'a>, features: Features, cancelled: &'a AtomicBool) -> Self {
        Self {
            view: &recorder.target().view,
            recorder,
            raw: features.contains(Features::RAW),
            raw_block: None,
            redacted: features.contains(Features::REDACTED),
            current: None,
            cancelled,
        }
    }

    pub(super) fn is_raw(&self) -> bool {
        self.raw
    }

    pub(super) fn corrupt(&self, object: u64, why: impl Into<String>) -> SendError {
        self.recorder.target().corrupt(object, why)
    }

    /// Ends the walk if it was cancelled.
    pub(super) fn check_cancelled(&self) -> Result<(), SendError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(DatasetError::Interrupted.into()) } else { Ok(()) }
    }

    /// The dnode of an object.
    pub(super) fn dnode(&self, object: u64) -> Result<Option<Dnode>, SendError> {
        match self.view.get(&ObjsetKey::Dnode { object }.encode())? {
            Some(entry) => Ok(Some(self.decode(object, &entry)?)),
            None => Ok(None),
        }
    }

    pub(super) fn decode(&self, object: u64, entry: &Entry) -> Result<Dnode, SendError> {
        Dnode::decode(&entry.value).map_err(|error| self.corrupt(object, error.to_string()))
    }

    /// The current object, to which records belong.
    pub(super) fn current(&self) -> Option<&Current> {
        self.current.as_ref()
    }

    /// Begins an object. Blocks from `tail` on are known to be free.
    pub(super) fn begin(
        &mut self,
        object: u64,
        dnode: Dnode,
        spill: Option<SpillBlock>,
        tail: Option<u64>,
    ) -> Result<(), SendError> {
        self.check_cancelled()?;
        self.end_object()?;
        if self.raw {
            if !self.raw_touch(object)? {
                return Err(self.corrupt(object, "its block of dnodes has no encryption parameters"));
            }
            self.raw_fill(object)?;
            if let Some(block) = &mut self.raw_block {
                block.next = end_of(object, &dnode);
            }
        }
        self.start(object, dnode, spill, tail)
    }

    fn start(
        &mut self,
        object: u64,
        dnode: Dnode,
        spill: Option<SpillBlock>,
        tail: Option<u64>,
    ) -> Result<(), SendError> {
        let tail = match tail {
            Some(tail) => tail,
            None => self.tail(object, &dnode)?,
        };
        self.recorder.object(object, &dnode, spill.is_some(), tail)?;
        let mut late = None;
        if let Some(SpillBlock { block, unmodified }) = spill {
            if unmodified {
                self.recorder.spill(object, &block, true)?;
            } else {
                late = Some(block);
            }
        }
        self.current = Some(Current { object, dnode, tail, spill: late });
        Ok(())
    }

    /// Ends the current object, if any.
    pub(super) fn end_object(&mut self) -> Result<(), SendError> {
        if let Some(Current { object, spill: Some(spill), .. }) = self.current.take() {
            self.recorder.spill(object, &spill, false)?;
        }
        Ok(())
    }

    /// The number of the first block after the last one of an object. It is 1 if the object has no blocks, because the
    /// `dn_maxblkid` of ZFS is never negative. Data omitted from a redacted dataset counts as present.
    fn tail(&self, object: u64, dnode: &Dnode) -> Result<u64, SendError> {
        if let Some(raw) = &dnode.raw {
            return Ok(raw.max_blkid.saturating_add(1));
        }
        let last = last_block(self.view, object)?.map_or(1, |last| last.saturating_add(1));
        if !self.redacted {
            return Ok(last);
        }
        let Some((key, entry)) = self.view.last_before(&object_end(object))? else { return Ok(last) };
        match ObjsetKey::decode(&key)? {
            ObjsetKey::Redaction { object: found, offset } if found == object => {
                let end = offset.saturating_add(redaction_len(&entry.value)?);
                Ok(last.max(end.div_ceil(u64::from(dnode.block_size))))
            }
            _ => Ok(last),
        }
    }

    /// Sends a block of the current object.
    pub(super) fn block(&mut self, blkid: u64, entry: &Entry) -> Result<(), SendError> {
        self.check_cancelled()?;
        let Some(Current { object, dnode, .. }) = &self.current else { return Ok(()) };
        let block = Block::decode(&entry.value)
            .map_err(|error| self.recorder.target().corrupt(*object, format!("block {blkid}: {error}")))?;
        self.recorder.block(*object, dnode, blkid, &block)
    }

    /// Sends a hole of the current object: the blocks `[from, to)` that are not beyond its end.
    pub(super) fn hole(&mut self, from: u64, to: u64) -> Result<(), SendError> {
        let Some(Current { object, dnode, tail, .. }) = &self.current else { return Ok(()) };
        let (object, block_size) = (*object, u64::from(dnode.block_size));
        let to = to.min(*tail);
        if from >= to {
            return Ok(());
        }
        let (start, end) = (from.saturating_mul(block_size), to.saturating_mul(block_size));
        if !self.redacted {
            return self.recorder.free(object, start, end - start);
        }
        self.partly_redacted(object, start, end)
    }

    /// Sends a hole of a redacted dataset. Omitted data in it is not free.
    fn partly_redacted(&mut self, object: u64, start: u64, end: u64) -> Result<(), SendError> {
        let mut at = start;
        // The last range before the hole may extend into it.
        let from = match self.view.last_before(&ObjsetKey::Redaction { object, offset: start }.encode())? {
            Some((key, _))
                if matches!(
                    ObjsetKey::decode(&key)?,
                    ObjsetKey::Redaction { object: found, .. } if found == object
                ) =>
            {
                key
            }
            _ => blocks_end(object),
        };
        let to = ObjsetKey::Redaction { object, offset: end }.encode();
        for item in self.view.range(&from, Some(&to)) {
            let (key, entry) = item?;
            let ObjsetKey::Redaction { offset, .. } = ObjsetKey::decode(&key)? else { continue };
            let stop = offset.saturating_add(redaction_len(&entry.value)?).min(end);
            let offset = offset.max(at);
            if stop <= offset {
                continue;
            }
            self.recorder.free(object, at, offset - at)?;
            self.recorder.redact(object, offset, stop - offset)?;
            at = stop;
        }
        self.recorder.free(object, at, end - at)
    }

    /// Sends a range of the current object that was or is omitted from the dataset. The parts without data are holes or
    /// omitted. A marked range may contain data that was written later.
    pub(super) fn redaction(&mut self, offset: u64, entry: &Entry) -> Result<(), SendError> {
        let Some(Current { object, dnode, .. }) = &self.current else { return Ok(()) };
        let (object, block_size) = (*object, u64::from(dnode.block_size));
        let end = offset.saturating_add(redaction_len(&entry.value)?).div_ceil(block_size);
        let mut expected = offset / block_size;
        let from = ObjsetKey::Block { object, blkid: expected }.encode();
        let mut entries =
            Entries::new(self.view, &from, Some(&ObjsetKey::Block { object, blkid: end }.encode()));
        while let Some((key, _)) = entries.next()? {
            if let ObjsetKey::Block { blkid, .. } = key {
                self.hole(expected, blkid)?;
                expected = blkid.saturating_add(1);
            }
        }
        self.hole(expected, end)
    }

    /// Sends that the object numbers `[first, end)` do not exist.
    pub(super) fn free_objects(&mut self, first: u64, end: u64) -> Result<(), SendError> {
        if first >= end {
            return Ok(());
        }
        self.end_object()?;
        if !self.raw {
            return self.recorder.free_objects(first, end - first);
        }
        // Free slots in a block with dnodes are sent with that block. There is no block with dnodes between two such
        // blocks.
        let within = end.min(block_of(first).saturating_add(SLOTS_PER_BLOCK));
        self.raw_free(first, within)?;
        let last = block_of(end).max(within);
        if within < last {
            self.raw_leave()?;
            self.recorder.free_objects(within, last - within)?;
        }
        self.raw_free(last, end)
    }

    /// Sends the free slots `[first, end)` of one dnode block.
    fn raw_free(&mut self, first: u64, end: u64) -> Result<(), SendError> {
        if first >= end {
            Ok(())
        } else if self.raw_touch(first)? {
            self.raw_fill(end)
        } else {
            self.recorder.free_objects(first, end - first)
        }
    }

    /// Continues in the middle of a stream: everything before `object` was sent.
    pub(super) fn resume_at(&mut self, object: u64) -> Result<(), SendError> {
        if self.raw
            && self.raw_touch(object)?
            && let Some(block) = &mut self.raw_block
        {
            block.next = object;
        }
        Ok(())
    }

    /// Makes the dnode block of `object` the current one in a raw stream. Returns `false` when the block has no object
    /// left.
    pub(super) fn raw_touch(&mut self, object: u64) -> Result<bool, SendError> {
        let first = block_of(object);
        if self.raw_block.as_ref().is_some_and(|block| block.first == first) {
            return Ok(true);
        }
        self.raw_leave()?;
        let Some(entry) = self.view.get(&ObjsetKey::Range { object: first }.encode())? else {
            return Ok(false);
        };
        let crypt =
            BlockCrypt::decode_range(&entry.value).map_err(|error| self.corrupt(first, error.to_string()))?;
        self.recorder.range(first, &crypt)?;
        // Object 0 is the meta-dnode itself, and is never in a stream.
        self.raw_block = Some(RawBlock { first, next: first.max(1) });
        Ok(true)
    }

    /// Sends the slots of the current dnode block before `until`. None of their objects changed.
    fn raw_fill(&mut self, until: u64) -> Result<(), SendError> {
        while let Some(RawBlock { next, .. }) = self.raw_block
            && next < until
        {
            let mut after = next.saturating_add(1);
            match self.dnode(next)? {
                Some(dnode) => {
                    after = end_of(next, &dnode);
                    let spill = match self.view.get(&ObjsetKey::Spill { object: next }.encode())? {
                        Some(entry) => Some(SpillBlock::decode(&entry, true)?),
                        None => None,
                    };
                    self.start(next, dnode, spill, None)?;
                    self.end_object()?;
                }
                None => self.recorder.free_objects(next, 1)?,
            }
            if let Some(block) = &mut self.raw_block {
                block.next = after;
            }
        }
        Ok(())
    }

    /// Sends the rest of the current dnode block.
    fn raw_leave(&mut self) -> Result<(), SendError> {
        self.end_object()?;
        if let Some(RawBlock { first, .. }) = self.raw_block {
            self.raw_fill(first.saturating_add(SLOTS_PER_BLOCK))?;
            self.raw_block = None;
        }
        Ok(())
    }

    /// Sends all data of the current object from block `from` on, taken from `entries`.
    pub(super) fn whole(&mut self, entries: &mut Entries, from: u64) -> Result<(), SendError> {
        let Some((object, tail)) = self.current.as_ref().map(|current| (current.object, current.tail)) else {
            return Ok(());
        };
        let mut expected = from;
        while let Some((key, entry)) = entries.next_of(object)? {
            if let ObjsetKey::Block { blkid, .. } = key
                && blkid >= from
            {
                self.hole(expected, blkid)?;
                self.block(blkid, &entry)?;
                expected = blkid.saturating_add(1);
            }
        }
        self.hole(expected, tail)?;
        self.end_object()
    }

    /// Ends the walk.
    pub(super) fn finish(mut self) -> Result<(), SendError> {
        self.end_object()?;
        self.raw_leave()?;
        self.recorder.finish()
    }
}

/// The first object of a dnode block.
pub(super) fn block_of(object: u64) -> u64 {
    object - object % SLOTS_PER_BLOCK
}

/// The slot after an object's last one.
pub(super) fn end_of(object: u64, dnode: &Dnode) -> u64 {
    object.saturating_add(u64::from(dnode.slots)).min(OBJECT_MAX + 1)
}
