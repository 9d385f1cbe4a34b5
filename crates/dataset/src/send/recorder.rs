//! Makes records from the entries of an objset (`dump_free`, `dump_freeobjects`, `dump_redact`, `dump_dnode`,
//! `dmu_dump_write`, `dump_spill`, `dump_write_embedded`, `dump_object_range` of `module/zfs/dmu_send.c`).

use bytes::Bytes;
use snowmelt_pool::BlockPtr;
use snowmelt_stream::compress::{Compression, SECTOR};
use snowmelt_stream::features::Features;
use snowmelt_stream::record::{
    Crypt, Free, FreeObjects, Object, ObjectRange, Record, Redact, Spill, Write, WriteEmbedded,
};

use super::fetch::SPILL;
use super::step::Target;
use crate::error::SendError;
use crate::objset::key::SLOTS_PER_BLOCK;
use crate::objset::types;
use crate::objset::value::{Block, BlockCrypt, Dnode};

/// Maximal length of a block in a stream without LARGE_BLOCKS (`SPA_OLD_MAXBLOCKSIZE`).
pub(super) const OLD_BLOCK_MAX: u64 = 128 * 1024;

/// `ZIO_CHECKSUM_OFF`: the record has no checksum of its block for deduplication at the receiver.
const CHECKSUM_OFF: u8 = 2;

/// The source of a record's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Payload {
    /// No payload.
    None,
    /// These bytes.
    Bytes(Bytes),
    /// A block as it is stored, padded with zeros to `len`.
    Stored { ptr: BlockPtr, object: u64, offset: u64, len: usize },
    /// A part of a block's plain bytes, padded with zeros to `len`.
    Plain { ptr: BlockPtr, object: u64, offset: u64, from: usize, len: usize },
}

/// Receives records in stream order.
pub(super) type Output<'a> = dyn FnMut(Record, Payload) -> Result<(), SendError> + 'a;

/// Makes the records of one substream between its BEGIN and END.
pub(super) struct Recorder<'a> {
    target: &'a Target,
    features: Features,
    out: &'a mut Output<'a>,
    /// A FREE, FREEOBJECTS or REDACT record that may still be extended.
    pending: Option<Record>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(target: &'a Target, features: Features, out: &'a mut Output<'a>) -> Self {
        Self { target, features, out, pending: None }
    }

    pub(super) fn target(&self) -> &'a Target {
        self.target
    }

    fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }

    fn put(&mut self, record: Record, payload: Payload) -> Result<(), SendError> {
        self.finish()?;
        (self.out)(record, payload)
    }

    /// Writes the record that was held back.
    pub(super) fn finish(&mut self) -> Result<(), SendError> {
        match self.pending.take() {
            Some(record) => (self.out)(record, Payload::None),
            None => Ok(()),
        }
    }

    /// Records object numbers that do not exist.
    pub(super) fn free_objects(&mut self, first: u64, count: u64) -> Result<(), SendError> {
        if count == 0 {
            return Ok(());
        }
        if let Some(Record::FreeObjects(pending)) = &mut self.pending
            && pending.first.saturating_add(pending.count) >= first
        {
            pending.count = pending.count.max(first.saturating_add(count) - pending.first);
            return Ok(());
        }
        self.finish()?;
        self.pending = Some(Record::FreeObjects(FreeObjects { first, count, to_guid: self.target.guid }));
        Ok(())
    }

    /// Records a hole.
    pub(super) fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<(), SendError> {
        if length == 0 {
            return Ok(());
        }
        if let Some(Record::Free(pending)) = &mut self.pending
            && pending.object == object
            && pending.offset.checked_add(pending.length) == Some(offset)
        {
            pending.length = pending.length.saturating_add(length);
            return Ok(());
        }
        self.finish()?;
        self.pending = Some(Record::Free(Free { object, offset, length, to_guid: self.target.guid }));
        Ok(())
    }

    /// Records a range that was omitted from the dataset.
    pub(super) fn redact(&mut self, object: u64, offset: u64, length: u64) -> Result<(), SendError> {
        if length == 0 {
            return Ok(());
        }
        if let Some(Record::Redact(pending)) = &mut self.pending
            && pending.object == object
            && pending.offset.checked_add(pending.length) == Some(offset)
        {
            pending.length = pending.length.saturating_add(length);
            return Ok(());
        }
        self.finish()?;
        self.pending = Some(Record::Redact(Redact { object, offset, length, to_guid: self.target.guid }));
        Ok(())
    }

    /// Records the encryption parameters of the dnodes from `first` on.
    pub(super) fn range(&mut self, first: u64, crypt: &BlockCrypt) -> Result<(), SendError> {
        let record = ObjectRange {
            first,
            count: SLOTS_PER_BLOCK,
            to_guid: self.target.guid,
            flags: crypt.flags & Write::RAW_BYTESWAP,
            crypt: wire_crypt(crypt),
        };
        self.put(Record::ObjectRange(record), Payload::None)
    }

    /// Records a dnode. All blocks from `tail` on are free.
    pub(super) fn object(
        &mut self,
        object: u64,
        dnode: &Dnode,
        has_spill: bool,
        tail: u64,
    ) -> Result<(), SendError> {
        // The slots of a removed object may belong to a new object.
        if let Some(Record::FreeObjects(pending)) = &mut self.pending {
            pending.count = pending.count.min(object.saturating_sub(pending.first));
            if pending.count == 0 {
                self.pending = None;
            }
        }
        let block_size = u64::from(dnode.block_size);
        let wire_block_size =
            if self.has(Features::LARGE_BLOCKS) { block_size } else { block_size.min(OLD_BLOCK_MAX) };
        let mut record = Object {
            object,
            object_type: u32::from(dnode.object_type),
            bonus_type: u32::from(dnode.bonus_type),
            block_size: u32::try_from(wire_block_size).unwrap_or(u32::MAX),
            bonus_len: dnode.bonus_len,
            checksum_type: dnode.checksum,
            compress: dnode.compress,
            dn_slots: dnode.slots,
            flags: if has_spill { Object::SPILL } else { 0 },
            to_guid: self.target.guid,
            ..Object::default()
        };
        let bonus = if self.has(Features::RAW) {
            let raw = dnode
                .raw
                .ok_or_else(|| self.target.corrupt(object, "its dnode lacks what a raw stream needs"))?;
            record.flags |= raw.flags & Object::RAW_BYTESWAP;
            record.max_blkid = raw.max_blkid;
            record.indirect_block_shift = raw.indirect_block_shift;
            record.nlevels = raw.nlevels;
            record.nblkptr = raw.nblkptr;
            record.raw_bonus_len = u32::try_from(dnode.bonus.len()).unwrap_or(u32::MAX);
            dnode.bonus.as_slice()
        } else {
            let len = usize::try_from(dnode.bonus_len).unwrap_or(usize::MAX);
            let bonus = dnode.bonus.get(..len);
            bonus.ok_or_else(|| self.target.corrupt(object, "its bonus is shorter than its length"))?
        };
        let payload =
            if bonus.is_empty() { Payload::None } else { Payload::Bytes(Bytes::copy_from_slice(bonus)) };
        self.put(Record::Object(record), payload)?;
        match tail.checked_mul(block_size) {
            Some(offset) => {
                let free = Free { object, offset, length: Free::TO_END, to_guid: self.target.guid };
                self.put(Record::Free(free), Payload::None)
            }
            // Nothing can follow the last block of the largest object.
            None => Ok(()),
        }
    }

    /// Records a data block.
    pub(super) fn block(
        &mut self,
        object: u64,
        dnode: &Dnode,
        blkid: u64,
        block: &Block,
    ) -> Result<(), SendError> {
        let size = u64::from(dnode.block_size);
        let offset = blkid
            .checked_mul(size)
            .filter(|offset| offset.checked_add(size).is_some())
            .ok_or_else(|| self.target.corrupt(object, format!("block {blkid} is beyond any offset")))?;
        let ptr = &block.ptr;
        let mut write = Write {
            object,
            object_type: u32::from(dnode.object_type),
            offset,
            logical_size: size,
            to_guid: self.target.guid,
            checksum_type: CHECKSUM_OFF,
            ..Write::default()
        };
        if self.has(Features::RAW) {
            let crypt = self.crypt(object, block)?;
            write.logical_size = u64::from(ptr.lsize());
            write.flags = crypt.flags & Write::RAW_BYTESWAP;
            write.crypt = wire_crypt(&crypt);
            write.compression = ptr.compression();
            write.compressed_size = u64::from(ptr.psize());
            let payload = stored(ptr, object, offset, u64::from(ptr.psize()));
            return self.put(Record::Write(write), payload);
        }
        if block.crypt.is_some() {
            return Err(SendError::NeedsRaw { name: self.target.name.clone() });
        }
        if size > OLD_BLOCK_MAX && !self.has(Features::LARGE_BLOCKS) {
            return self.split(&write, ptr);
        }
        if self.may_embed(ptr) && u64::from(ptr.lsize()) == size {
            return self.embedded(object, offset, ptr);
        }
        if let Some(len) = self.passes_through(dnode, ptr) {
            write.compression = ptr.compression();
            write.compressed_size = len;
            return self.put(Record::Write(write), stored(ptr, object, offset, len));
        }
        self.put(Record::Write(write), plain(ptr, object, offset, 0, size))
    }

    fn crypt(&self, object: u64, block: &Block) -> Result<BlockCrypt, SendError> {
        block.crypt.ok_or_else(|| self.target.corrupt(object, "a block lacks its encryption parameters"))
    }

    /// Splits a large block for a receiver without large blocks. The pieces are not compressed.
    fn split(&mut self, whole: &Write, ptr: &BlockPtr) -> Result<(), SendError> {
        let mut from = 0;
        while from < whole.logical_size {
            let size = OLD_BLOCK_MAX.min(whole.logical_size - from);
            let piece = Write { offset: whole.offset + from, logical_size: size, ..*whole };
            let payload = plain(ptr, whole.object, piece.offset, from, size);
            self.put(Record::Write(piece), payload)?;
            from += size;
        }
        Ok(())
    }

    /// `send_do_embed`
    fn may_embed(&self, ptr: &BlockPtr) -> bool {
        matches!(ptr, BlockPtr::Embedded { .. })
            && self.has(Features::EMBED_DATA)
            && self.knows_algorithm(ptr.compression())
    }

    /// Whether the stream announces the algorithm that expands a block.
    fn knows_algorithm(&self, id: u8) -> bool {
        match Compression::from_id(id) {
            Some(Compression::Zstd) => self.has(Features::ZSTD),
            Some(Compression::Lz4) => self.has(Features::LZ4),
            Some(_) => true,
            None => false,
        }
    }

    fn embedded(&mut self, object: u64, offset: u64, ptr: &BlockPtr) -> Result<(), SendError> {
        let record = WriteEmbedded {
            object,
            offset,
            length: u64::from(ptr.lsize()),
            to_guid: self.target.guid,
            compression: ptr.compression(),
            embedded_type: 0,
            lsize: ptr.lsize(),
            psize: ptr.psize(),
        };
        let payload = stored(ptr, object, offset, u64::from(ptr.psize()));
        self.put(Record::WriteEmbedded(record), payload)
    }

    /// The length in the stream of a block that is sent in its compressed form. `None` if it is sent uncompressed:
    /// metadata, which a receiver of the other byte order must be able to swap, and blocks that do not save a sector.
    fn passes_through(&self, dnode: &Dnode, ptr: &BlockPtr) -> Option<u64> {
        let len = u64::from(ptr.psize()).next_multiple_of(SECTOR as u64);
        let pass = self.has(Features::COMPRESSED)
            && !matches!(ptr, BlockPtr::Embedded { .. })
            && !types::is_metadata(dnode.object_type)
            && !matches!(Compression::from_id(ptr.compression()), None | Some(Compression::Off))
            && self.knows_algorithm(ptr.compression())
            && ptr.lsize() == dnode.block_size
            && len < u64::from(ptr.lsize());
        pass.then_some(len)
    }

    /// Records a spill block. `unmodified` means that the receiver already has it, if it supports that flag.
    pub(super) fn spill(&mut self, object: u64, block: &Block, unmodified: bool) -> Result<(), SendError> {
        let ptr = &block.ptr;
        let length = u64::from(ptr.lsize());
        let mut record = Spill {
            object,
            length,
            to_guid: self.target.guid,
            flags: if unmodified { Spill::UNMODIFIED } else { 0 },
            ..Spill::default()
        };
        if self.has(Features::RAW) {
            let crypt = self.crypt(object, block)?;
            record.flags |= crypt.flags & Write::RAW_BYTESWAP;
            record.crypt = wire_crypt(&crypt);
            record.compression = ptr.compression();
            record.compressed_size = u64::from(ptr.psize());
            let payload = stored(ptr, object, SPILL, record.compressed_size);
            return self.put(Record::Spill(record), payload);
        }
        if block.crypt.is_some() {
            return Err(SendError::NeedsRaw { name: self.target.name.clone() });
        }
        self.put(Record::Spill(record), plain(ptr, object, SPILL, 0, length))
    }
}

fn wire_crypt(crypt: &BlockCrypt) -> Crypt {
    Crypt { salt: crypt.salt, iv: crypt.iv, mac: crypt.mac }
}

/// The pool limits sizes: no block is larger than 16 MiB.
fn size(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

fn stored(ptr: &BlockPtr, object: u64, offset: u64, len: u64) -> Payload {
    Payload::Stored { ptr: ptr.clone(), object, offset, len: size(len) }
}

fn plain(ptr: &BlockPtr, object: u64, offset: u64, from: u64, len: u64) -> Payload {
    Payload::Plain { ptr: ptr.clone(), object, offset, from: size(from), len: size(len) }
}
