//! Applies records to the tree. The rules are those of `receive_object` and similar functions in OpenZFS's
//! `module/zfs/dmu_recv.c`.

use std::sync::Arc;

use snowmelt_pool::{BlockId, BlockPtr, Hold, Pool, Prepared, Tree, View};
use snowmelt_stream::Compression;
use snowmelt_stream::features::Features;
use snowmelt_stream::record::{
    Free, FreeObjects, Object, ObjectRange, Record, Redact, Spill, Write, WriteByRef, WriteEmbedded,
};

use super::begin::{Session, data_end};
use super::pipeline::{Data, Item};
use super::prepare::{Codec, pack, prepare_embedded};
use super::{byteswap, meaning};
use crate::catalog::{Content, Kind, Snapshot, keys};
use crate::error::{DatasetError, ReceiveError};
use crate::limits::Side;
use crate::objset::fill::put_block;
use crate::objset::key::{OBJECT_MAX, ObjsetKey, SLOTS_PER_BLOCK, object_end, object_start};
use crate::objset::types::{self, PLAIN_FILE_CONTENTS};
use crate::objset::value::{Block, BlockCrypt, Dnode, RawDnode};
use crate::objset::view::{encode_redaction, last_block, redaction_len};

/// Maximal number of slots of a dnode.
const SLOTS_MAX: u64 = 32;

/// Writes the records of a session to its tree.
pub(super) struct Applier<'s, 'd> {
    session: &'s mut Session<'d>,
    pool: Arc<Pool>,
    tree: Arc<Tree>,
    /// The current object of the records, and its dnode.
    current: Option<(u64, Dnode)>,
    /// The dnodes that the last OBJECT_RANGE covers.
    range: Option<(u64, u64)>,
    /// The place from which the receive can be resumed.
    reached: (u64, u64),
    bytes: u64,
    bytes_before: u64,
    moved: bool,
    /// Whether the stream is of the other byte order.
    swapped: bool,
    /// Whether there may be records of omitted ranges.
    redacted: bool,
}

impl<'s, 'd> Applier<'s, 'd> {
    pub(super) fn new(session: &'s mut Session<'d>, swapped: bool) -> Result<Self, ReceiveError> {
        let pool = session.datasets.pool().clone();
        let tree = session.tree.clone();
        let reached = (session.state.object, session.state.offset);
        let base = session.base.map(|base| session.datasets.catalog().snapshot_by_id(base)).transpose()?;
        let is_redacted = |features: Features| features.contains(Features::REDACTED);
        let redacted = is_redacted(session.begin.features)
            || base.is_some_and(|base| is_redacted(base.record.content.features));
        let bytes_before = if session.resumed { session.state.bytes } else { 0 };
        Ok(Self {
            session,
            pool,
            tree,
            current: None,
            range: None,
            reached,
            bytes: 0,
            bytes_before,
            moved: false,
            swapped,
            redacted,
        })
    }

    /// Takes a hold, with space for `bytes`.
    pub(super) fn begin<'p>(&self, pool: &'p Pool, bytes: u64) -> Result<Hold<'p>, ReceiveError> {
        let Session { datasets, id, .. } = &*self.session;
        let ask = |hold: &Hold<'_>, reserved: u64| hold.require(bytes.saturating_add(reserved));
        Ok(datasets.limits.begin(pool, *id, Side::Beside, bytes, ask)?)
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Stores the place to resume from, in the same txg as the applied records.
    pub(super) fn save_state(&mut self, hold: &Hold<'_>) -> Result<(), ReceiveError> {
        if !std::mem::take(&mut self.moved) || !self.session.state.resumable {
            return Ok(());
        }
        let state = &mut self.session.state;
        (state.object, state.offset) = self.reached;
        state.bytes = self.bytes_before + self.bytes;
        self.pool.meta().insert(hold, &keys::receive(self.session.id), &state.encode())?;
        Ok(())
    }

    /// Applies one record.
    pub(super) fn apply(&mut self, hold: &Hold<'_>, mut item: Item) -> Result<(), ReceiveError> {
        let record = item.record.clone();
        match &*record {
            Record::Object(object) => {
                let Data::Bytes(bonus) = std::mem::replace(&mut item.data, Data::Bytes(Vec::new())) else {
                    return Err(item.error("no bonus"));
                };
                self.object(hold, &item, object, bonus)?;
                self.reach(object.object, 0);
            }
            Record::FreeObjects(free) => self.free_objects(hold, free)?,
            Record::Write(write) => {
                // BEGIN does not always announce this feature.
                if write.compression == Compression::Zstd.id() {
                    self.session.state.content.features |= Features::ZSTD;
                }
                let block = prepared(&item)?;
                self.write(hold, &item, write, block)?;
                self.reach(write.object, write.offset);
            }
            Record::WriteEmbedded(embedded) => {
                let block = match std::mem::replace(&mut item.data, Data::Bytes(Vec::new())) {
                    Data::Bytes(payload) => {
                        let object_type = self.dnode_for(&item, embedded.object)?.object_type;
                        // System attributes show their byte order themselves.
                        let turn = (!embedded.is_spill()).then_some(object_type);
                        prepare_embedded(embedded, payload, turn).map_err(|why| item.error(why))?
                    }
                    block @ Data::Block(_) => {
                        item.data = block;
                        prepared(&item)?
                    }
                };
                if embedded.is_spill() {
                    self.put_spill(hold, &item, embedded.object, block, None)?;
                } else {
                    self.write_embedded(hold, &item, embedded, block)?;
                    self.reach(embedded.object, embedded.offset);
                }
            }
            Record::Spill(spill) => {
                let block = prepared(&item)?;
                self.spill(hold, &item, spill, block)?;
            }
            Record::Free(free) => self.free(hold, &item, free)?,
            Record::WriteByRef(by_ref) => self.write_by_ref(hold, &item, by_ref)?,
            Record::ObjectRange(range) => self.object_range(hold, &item, range)?,
            Record::Redact(redact) => self.redact(hold, &item, redact)?,
            Record::Begin(_) | Record::End(_) => return Err(item.error("out of place")),
        }
        self.bytes = item.place.bytes;
        Ok(())
    }

    fn reach(&mut self, object: u64, offset: u64) {
        if (object, offset) > self.reached {
            self.reached = (object, offset);
        }
        self.moved = true;
    }

    fn raw(&self) -> bool {
        self.session.is_raw()
    }

    /// A raw record's flags as in a little-endian stream. Raw bytes are never byte-swapped. So bytes in the order of
    /// their own stream count as swapped in streams that are sent from here, and the other way round.
    fn raw_flags(&self, flags: u8) -> u8 {
        if self.swapped { flags ^ Write::RAW_BYTESWAP } else { flags }
    }

    fn get_dnode(&self, object: u64) -> Result<Option<Dnode>, ReceiveError> {
        match self.tree.get(&ObjsetKey::Dnode { object }.encode())? {
            Some(entry) => Ok(Some(Dnode::decode(&entry.value)?)),
            None => Ok(None),
        }
    }

    /// The dnode for a data record.
    fn dnode_for(&mut self, item: &Item, object: u64) -> Result<&Dnode, ReceiveError> {
        if self.current.as_ref().is_none_or(|(current, _)| *current != object) {
            let dnode = self.get_dnode(object)?;
            let dnode = dnode.ok_or_else(|| item.error(format!("there is no object {object}")))?;
            self.current = Some((object, dnode));
        }
        match &self.current {
            Some((_, dnode)) => Ok(dnode),
            None => Err(item.error(format!("there is no object {object}"))),
        }
    }

    fn object(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        record: &Object,
        mut bonus: Vec<u8>,
    ) -> Result<(), ReceiveError> {
        let object = record.object;
        let slots = record.slots();
        let narrow = |number: u32| u8::try_from(number).map_err(|_| item.error("object type out of range"));
        let (object_type, bonus_type) = (narrow(record.object_type)?, narrow(record.bonus_type)?);
        self.check_range(item, object)?;
        self.check_first_object(item, object, object_type)?;
        let wanted = if self.raw() { record.raw_bonus_len.max(record.bonus_len) } else { record.bonus_len };
        bonus.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        if !self.raw() {
            let turned = match self.swapped {
                true => byteswap::to_little_endian(bonus_type, &mut bonus),
                false => Ok(()),
            };
            turned
                .and_then(|()| meaning::bonus(bonus_type, &bonus))
                .map_err(|why| item.error(format!("object {object}: {why}")))?;
        }
        let raw = self.raw().then_some(RawDnode {
            max_blkid: record.max_blkid,
            indirect_block_shift: record.indirect_block_shift,
            nlevels: record.nlevels,
            nblkptr: record.nblkptr,
            flags: self.raw_flags(record.flags),
        });
        let mut dnode = Dnode {
            object_type,
            bonus_type,
            checksum: record.checksum_type,
            compress: record.compress,
            slots,
            block_size: record.block_size,
            bonus_len: record.bonus_len,
            raw,
            bonus,
        };
        self.check_not_interior(item, object)?;
        let existing = self.get_dnode(object)?;
        if let Some(existing) = &existing {
            self.replace_object(hold, item, object, existing, &mut dnode, record)?;
        }
        for slot in object + 1..object + u64::from(slots) {
            if self.get_dnode(slot)?.is_some() {
                self.remove_object(hold, slot)?;
            }
        }
        if existing.as_ref() != Some(&dnode) {
            self.tree.insert(hold, &ObjsetKey::Dnode { object }.encode(), &dnode.encode())?;
        }
        self.current = Some((object, dnode));
        Ok(())
    }

    /// Object 1 shows the kind of an objset: a filesystem's master node, or a volume's data.
    fn check_first_object(&self, item: &Item, object: u64, object_type: u8) -> Result<(), ReceiveError> {
        let expected = match self.session.kind {
            Kind::Filesystem => types::MASTER_NODE,
            Kind::Volume => types::ZVOL,
        };
        if object == 1 && object_type != expected {
            return Err(
                item.error(format!("object 1 of a {} is of type {object_type}", self.session.kind.name()))
            );
        }
        Ok(())
    }

    /// Checks that an OBJECT of a raw stream belongs to the last OBJECT_RANGE.
    fn check_range(&self, item: &Item, object: u64) -> Result<(), ReceiveError> {
        if !self.raw() {
            return Ok(());
        }
        match self.range {
            Some((first, count)) if object >= first && object - first < count => Ok(()),
            _ => Err(item.error(format!("object {object} is outside the last OBJECT_RANGE"))),
        }
    }

    /// Checks that an object does not begin inside another object's slots.
    fn check_not_interior(&self, item: &Item, object: u64) -> Result<(), ReceiveError> {
        for back in 1..SLOTS_MAX.min(object) {
            let before = object - back;
            if before / SLOTS_PER_BLOCK != object / SLOTS_PER_BLOCK {
                break;
            }
            if let Some(dnode) = self.get_dnode(before)? {
                if u64::from(dnode.slots) > back {
                    return Err(
                        item.error(format!("object {object} lies inside the slots of object {before}"))
                    );
                }
                break;
            }
        }
        Ok(())
    }

    /// Handles an OBJECT record for an existing object: either it changed, or another object replaces it.
    fn replace_object(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        object: u64,
        existing: &Dnode,
        dnode: &mut Dnode,
        record: &Object,
    ) -> Result<(), ReceiveError> {
        let mut replaced = false;
        if dnode.block_size != existing.block_size {
            let last = last_block(&self.tree.view(), object)?;
            let one_block = last.is_none_or(|last| last == 0);
            let files =
                dnode.object_type == PLAIN_FILE_CONTENTS && existing.object_type == PLAIN_FILE_CONTENTS;
            if self.raw() || self.session.begin.from_guid == 0 || !files || one_block {
                replaced = true;
            } else if meaning::generation(dnode.bonus_type, &dnode.bonus)
                == meaning::generation(existing.bonus_type, &existing.bonus)
            {
                if dnode.block_size < existing.block_size {
                    return Err(item.error(format!(
                        "object {object} has blocks of {} bytes here; the stream, sent without -L, has {}",
                        existing.block_size, dnode.block_size
                    )));
                }
                // Sent with -L for the first time: the file keeps its block size.
                dnode.block_size = existing.block_size;
            } else {
                replaced = true;
            }
        }
        let pointers = |dnode: &Dnode| Dnode::block_pointers(dnode.slots, dnode.bonus_type, dnode.bonus_len);
        replaced |= pointers(dnode) < pointers(existing) || dnode.slots != existing.slots;
        if let (Some(new), Some(old)) = (&dnode.raw, &existing.raw) {
            replaced |= new.indirect_block_shift != old.indirect_block_shift || new.nlevels < old.nlevels;
        }
        if replaced {
            self.remove_blocks(hold, object, 0)?;
        } else if let Some(raw) = &dnode.raw {
            let past = raw.max_blkid.checked_add(1).ok_or_else(|| item.error("maxblkid overflows"))?;
            self.remove_blocks(hold, object, past)?;
        }
        let reclaimed = replaced
            || dnode.object_type != existing.object_type
            || dnode.bonus_type != existing.bonus_type
            || dnode.bonus_len != existing.bonus_len;
        let has_spill = record.flags & Object::SPILL != 0;
        if if self.session.has_spill_flags() { !has_spill } else { reclaimed } {
            self.remove_entry(hold, &ObjsetKey::Spill { object }.encode())?;
        }
        Ok(())
    }

    fn remove_entry(&self, hold: &Hold<'_>, key: &[u8]) -> Result<(), ReceiveError> {
        if let Some(old) = self.tree.remove(hold, key)? {
            self.tree.release(hold, &Block::decode(&old.value)?.ptr)?;
        }
        Ok(())
    }

    /// Removes data blocks from `blkid` on; for `blkid` 0 also the records of omitted ranges.
    fn remove_blocks(&self, hold: &Hold<'_>, object: u64, blkid: u64) -> Result<(), ReceiveError> {
        let from = ObjsetKey::Block { object, blkid }.encode();
        let end = if blkid == 0 { object_end(object) } else { data_end(object) };
        self.remove_keys(hold, &from, &end)
    }

    fn remove_keys(&self, hold: &Hold<'_>, from: &[u8], end: &[u8]) -> Result<(), ReceiveError> {
        let mut released = Vec::new();
        self.tree.remove_range(hold, from, end, &mut |key, entry| {
            if let Ok(ObjsetKey::Block { .. } | ObjsetKey::Spill { .. }) = ObjsetKey::decode(key)
                && let Ok(block) = Block::decode(&entry.value)
            {
                released.push(block.ptr);
            }
            Ok(())
        })?;
        for ptr in released {
            self.tree.release(hold, &ptr)?;
        }
        Ok(())
    }

    fn remove_object(&mut self, hold: &Hold<'_>, object: u64) -> Result<(), ReceiveError> {
        self.current = None;
        // The entry of an object range belongs to the whole dnode block, so it stays.
        self.remove_keys(hold, &ObjsetKey::Dnode { object }.encode(), &object_end(object))
    }

    fn free_objects(&mut self, hold: &Hold<'_>, free: &FreeObjects) -> Result<(), ReceiveError> {
        let first = free.first.max(1);
        let end = free.first.saturating_add(free.count).min(OBJECT_MAX);
        let mut next = first;
        while next < end {
            let Some(item) = self.tree.view().range(&object_start(next), Some(&object_start(end))).next()
            else {
                break;
            };
            let object = ObjsetKey::decode(&item?.0)?.object();
            self.remove_object(hold, object)?;
            let block = object / SLOTS_PER_BLOCK * SLOTS_PER_BLOCK;
            if block >= free.first && block + SLOTS_PER_BLOCK <= end {
                self.tree.remove(hold, &ObjsetKey::Range { object: block }.encode())?;
            }
            next = object + 1;
        }
        Ok(())
    }

    fn write(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        write: &Write,
        block: Prepared,
    ) -> Result<(), ReceiveError> {
        let raw = self.raw();
        let dnode = self.dnode_for(item, write.object)?;
        let block_size = u64::from(dnode.block_size);
        let object_type = dnode.object_type;
        if u32::from(object_type) != write.object_type && types::is_metadata(object_type) {
            return Err(item.error(format!(
                "object {} is of type {object_type}, the data of type {}",
                write.object, write.object_type
            )));
        }
        if write.offset.is_multiple_of(block_size) && write.logical_size == block_size {
            let crypt = raw.then_some(BlockCrypt {
                salt: write.crypt.salt,
                iv: write.crypt.iv,
                mac: write.crypt.mac,
                flags: self.raw_flags(write.flags) & Write::RAW_BYTESWAP,
            });
            return self.put_block(hold, write.object, write.offset / block_size, block, crypt);
        }
        if raw {
            return Err(item.error(format!(
                "a raw block of {} bytes in an object of blocks of {block_size}",
                write.logical_size
            )));
        }
        let data = self.unprepare(hold, block)?;
        self.write_range(hold, item, write.object, write.offset, &data)
    }

    fn write_embedded(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        embedded: &WriteEmbedded,
        block: Prepared,
    ) -> Result<(), ReceiveError> {
        let block_size = u64::from(self.dnode_for(item, embedded.object)?.block_size);
        if embedded.offset.is_multiple_of(block_size) && embedded.length == block_size {
            return self.put_block(hold, embedded.object, embedded.offset / block_size, block, None);
        }
        let data = self.unprepare(hold, block)?;
        self.write_range(hold, item, embedded.object, embedded.offset, &data)
    }

    /// Stores a block and releases the one that it replaces.
    fn put_block(
        &mut self,
        hold: &Hold<'_>,
        object: u64,
        blkid: u64,
        block: Prepared,
        crypt: Option<BlockCrypt>,
    ) -> Result<(), ReceiveError> {
        let key = ObjsetKey::Block { object, blkid }.encode();
        let size = match self.unchanged(&key, BlockId { object, blkid }, &block, crypt)? {
            Some(kept) => u64::from(kept.lsize()),
            None => {
                let ptr = hold.write(self.tree.id(), BlockId { object, blkid }, block)?;
                let size = u64::from(ptr.lsize());
                self.put_pointer(hold, &key, ptr, crypt)?;
                size
            }
        };
        if self.redacted {
            let from = blkid.saturating_mul(size);
            self.unmark_redacted(hold, object, from, from.saturating_add(size))?;
        }
        Ok(())
    }

    /// The existing block, if a full stream on top of an origin (`-o origin=`) contains it again (nopwrite).
    fn unchanged(
        &self,
        key: &[u8],
        id: BlockId,
        block: &Prepared,
        crypt: Option<BlockCrypt>,
    ) -> Result<Option<BlockPtr>, ReceiveError> {
        if crypt.is_some() || self.session.begin.from_guid != 0 || self.session.base.is_none() {
            return Ok(None);
        }
        let Some(old) = self.tree.get(key)? else { return Ok(None) };
        let old = Block::decode(&old.value)?;
        let is_same = old.crypt.is_none() && self.pool.is_at(block, id, &old.ptr);
        Ok(is_same.then_some(old.ptr))
    }

    fn put_pointer(
        &self,
        hold: &Hold<'_>,
        key: &[u8],
        ptr: BlockPtr,
        crypt: Option<BlockCrypt>,
    ) -> Result<(), ReceiveError> {
        let old = put_block(hold, &self.tree, key, &Block { ptr, crypt })?;
        if let Some(old) = old {
            self.tree.release(hold, &Block::decode(&old.value)?.ptr)?;
        }
        Ok(())
    }

    /// The plain bytes of a block that does not fit the object's block size. This is rare: streams of one dataset sent
    /// alternately with and without `-L`.
    fn unprepare(&self, hold: &Hold<'_>, block: Prepared) -> Result<bytes::Bytes, ReceiveError> {
        let ptr = hold.write(self.tree.id(), BlockId { object: 0, blkid: 0 }, block)?;
        let data = self.pool.read(&ptr)?;
        if let BlockPtr::Stored(ptr) = &ptr {
            self.pool.free(hold, ptr.segment, ptr.offset, ptr.asize())?;
        }
        Ok(data)
    }

    /// Writes bytes across blocks, and keeps the other bytes of these blocks.
    fn write_range(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        object: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ReceiveError> {
        let block_size = u64::from(self.dnode_for(item, object)?.block_size);
        let mut done = 0;
        while done < data.len() {
            let at =
                offset.checked_add(done as u64).ok_or_else(|| item.error("offset and length overflow"))?;
            let within = usize::try_from(at % block_size).unwrap_or(0);
            let size = usize::try_from(block_size).unwrap_or(usize::MAX);
            let len = (data.len() - done).min(size - within);
            let mut block = self.read_block(object, at / block_size, size)?;
            block[within..within + len].copy_from_slice(&data[done..done + len]);
            self.put_block(hold, object, at / block_size, pack(block, Codec::of_property("on")), None)?;
            done += len;
        }
        Ok(())
    }

    fn read_block(&self, object: u64, blkid: u64, size: usize) -> Result<Vec<u8>, ReceiveError> {
        match self.tree.get(&ObjsetKey::Block { object, blkid }.encode())? {
            Some(entry) => {
                let mut data = self.pool.read(&Block::decode(&entry.value)?.ptr)?.to_vec();
                data.resize(size, 0);
                Ok(data)
            }
            None => Ok(vec![0; size]),
        }
    }

    fn spill(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        spill: &Spill,
        block: Prepared,
    ) -> Result<(), ReceiveError> {
        let key = ObjsetKey::Spill { object: spill.object }.encode();
        if self.session.has_spill_flags()
            && spill.flags & Spill::UNMODIFIED != 0
            && self.tree.get(&key)?.is_some()
        {
            return Ok(());
        }
        let crypt = self.raw().then_some(BlockCrypt {
            salt: spill.crypt.salt,
            iv: spill.crypt.iv,
            mac: spill.crypt.mac,
            flags: self.raw_flags(spill.flags) & Write::RAW_BYTESWAP,
        });
        self.put_spill(hold, item, spill.object, block, crypt)
    }

    fn put_spill(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        object: u64,
        block: Prepared,
        crypt: Option<BlockCrypt>,
    ) -> Result<(), ReceiveError> {
        self.dnode_for(item, object)?;
        let ptr = hold.write(self.tree.id(), BlockId { object, blkid: u64::MAX }, block)?;
        self.put_pointer(hold, &ObjsetKey::Spill { object }.encode(), ptr, crypt)
    }

    fn free(&mut self, hold: &Hold<'_>, item: &Item, free: &Free) -> Result<(), ReceiveError> {
        let object = free.object;
        let block_size = u64::from(self.dnode_for(item, object)?.block_size);
        let end = free.offset.saturating_add(free.length);
        let to_end = free.length == Free::TO_END || end == u64::MAX;
        let first_whole = free.offset.div_ceil(block_size);
        let zero = |this: &mut Self, from: u64, to: u64| -> Result<(), ReceiveError> {
            let key = ObjsetKey::Block { object, blkid: from / block_size }.encode();
            if from >= to || this.tree.get(&key)?.is_none() {
                return Ok(());
            }
            let start = from / block_size * block_size;
            let size = usize::try_from(block_size).unwrap_or(0);
            let mut block = this.read_block(object, start / block_size, size)?;
            let within = |at: u64| usize::try_from(at - start).unwrap_or(size).min(size);
            let part = &mut block[within(from)..within(to)];
            // A block that does not change must keep its birth: otherwise every incremental stream from here would
            // contain it.
            if part.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            part.fill(0);
            this.put_block(hold, object, start / block_size, pack(block, Codec::of_property("on")), None)
        };
        let first_end = first_whole.saturating_mul(block_size).min(if to_end { u64::MAX } else { end });
        if self.raw()
            && (!free.offset.is_multiple_of(block_size) || (!to_end && !end.is_multiple_of(block_size)))
        {
            return Err(item.error("a raw stream frees part of a block"));
        }
        zero(self, free.offset, first_end)?;
        if to_end {
            self.remove_keys(
                hold,
                &ObjsetKey::Block { object, blkid: first_whole }.encode(),
                &data_end(object),
            )?;
        } else if end / block_size >= first_whole {
            let past = end / block_size;
            if past > first_whole {
                let from = ObjsetKey::Block { object, blkid: first_whole }.encode();
                self.remove_keys(hold, &from, &ObjsetKey::Block { object, blkid: past }.encode())?;
            }
            zero(self, past.saturating_mul(block_size), end)?;
        }
        if self.redacted {
            self.unmark_redacted(hold, object, free.offset, end)?;
        }
        Ok(())
    }

    /// Notes that the bytes `[from, to)` of an object exist now: shortens the records of omitted ranges.
    fn unmark_redacted(&self, hold: &Hold<'_>, object: u64, from: u64, to: u64) -> Result<(), ReceiveError> {
        let key = |offset| ObjsetKey::Redaction { object, offset }.encode();
        let view = self.tree.view();
        // The last range before may extend into it.
        let before = view.last_before(&key(from))?;
        let inside = view.range(&key(from), Some(&key(to)));
        for item in before.map(Ok).into_iter().chain(inside) {
            let (old, entry) = item?;
            let start = match ObjsetKey::decode(&old)? {
                ObjsetKey::Redaction { object: found, offset } if found == object => offset,
                _ => continue,
            };
            let end = start.saturating_add(redaction_len(&entry.value)?);
            if end <= from {
                continue;
            }
            self.tree.remove(hold, &old)?;
            for (start, end) in [(start, from), (to, end)] {
                if start < end {
                    self.tree.insert(hold, &key(start), &encode_redaction(end - start))?;
                }
            }
        }
        Ok(())
    }

    fn redact(&mut self, hold: &Hold<'_>, item: &Item, redact: &Redact) -> Result<(), ReceiveError> {
        let object = redact.object;
        let block_size = u64::from(self.dnode_for(item, object)?.block_size);
        let end = redact
            .offset
            .checked_add(redact.length)
            .ok_or_else(|| item.error("offset and length overflow"))?;
        let first = ObjsetKey::Block { object, blkid: redact.offset / block_size }.encode();
        let past = ObjsetKey::Block { object, blkid: end.div_ceil(block_size) }.encode();
        self.remove_keys(hold, &first, &past)?;
        self.unmark_redacted(hold, object, redact.offset, end)?;
        let key = ObjsetKey::Redaction { object, offset: redact.offset }.encode();
        self.tree.insert(hold, &key, &encode_redaction(redact.length))?;
        self.reach(object, redact.offset);
        Ok(())
    }

    /// Writes a block that an earlier record or another snapshot already has (deduplicated streams from before ZFS
    /// 2.0).
    fn write_by_ref(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        by_ref: &WriteByRef,
    ) -> Result<(), ReceiveError> {
        let block_size = u64::from(self.dnode_for(item, by_ref.object)?.block_size);
        let view = self.referred(item, by_ref.ref_guid)?;
        if self.raw() {
            let (ptr, crypt) = raw_block(&view, by_ref, block_size).map_err(|why| item.error(why))?;
            let block = Prepared::stored(self.pool.read_stored(&ptr)?, ptr.lsize(), ptr.compression());
            self.put_block(hold, by_ref.object, by_ref.offset / block_size, block, Some(crypt))?;
            self.reach(by_ref.object, by_ref.offset);
            return Ok(());
        }
        let mut data = vec![0; usize::try_from(by_ref.length).unwrap_or(0)];
        let content = Content::default();
        let source = crate::objset::Objset::new(
            self.pool.clone(),
            view,
            "deduplicated stream",
            self.session.kind,
            content,
        );
        source
            .read(by_ref.ref_object, by_ref.ref_offset, &mut data)
            .map_err(|error| item.error(format!("what it refers to cannot be read: {error}")))?;
        self.write_range(hold, item, by_ref.object, by_ref.offset, &data)?;
        self.reach(by_ref.object, by_ref.offset);
        Ok(())
    }

    /// The snapshot that a deduplicated stream refers to: itself, or one that the same input contained before. The
    /// sender must not read other snapshots.
    fn referred(&self, item: &Item, guid: u64) -> Result<View, ReceiveError> {
        if guid == self.session.begin.to_guid {
            return Ok(self.tree.view());
        }
        let catalog = self.session.datasets.catalog();
        let brought = |snapshot: &Snapshot| self.session.brought.contains(&snapshot.full_name());
        let found = catalog.snapshots_by_guid(guid)?.into_iter().find(brought);
        let found = found.ok_or_else(|| {
            item.error(format!("it refers to snapshot {guid:#x}, which this stream has not brought"))
        })?;
        Ok(catalog.objset(&found).view().clone())
    }

    fn object_range(
        &mut self,
        hold: &Hold<'_>,
        item: &Item,
        range: &ObjectRange,
    ) -> Result<(), ReceiveError> {
        if !self.raw() {
            return Err(item.error("only raw streams have object ranges"));
        }
        if range.count != SLOTS_PER_BLOCK || !range.first.is_multiple_of(SLOTS_PER_BLOCK) {
            return Err(item.error(format!("a range of {} objects from {}", range.count, range.first)));
        }
        self.range = Some((range.first, range.count));
        let value = BlockCrypt {
            salt: range.crypt.salt,
            iv: range.crypt.iv,
            mac: range.crypt.mac,
            flags: self.raw_flags(range.flags) & Write::RAW_BYTESWAP,
        }
        .encode_range();
        let key = ObjsetKey::Range { object: range.first }.encode();
        if self.tree.get(&key)?.is_none_or(|entry| *entry.value != *value) {
            self.tree.insert(hold, &key, &value)?;
        }
        Ok(())
    }
}

/// The encrypted block that a record of a raw stream refers to, with its salt, IV and MAC. It can be copied only as a
/// whole, to an object with the same block size.
fn raw_block(view: &View, by_ref: &WriteByRef, block_size: u64) -> Result<(BlockPtr, BlockCrypt), String> {
    let WriteByRef { offset, length, ref_object, ref_offset, .. } = *by_ref;
    if length != block_size || !offset.is_multiple_of(block_size) || !ref_offset.is_multiple_of(block_size) {
        return Err(format!("a raw block of {length} bytes in an object of blocks of {block_size}"));
    }
    let get = |key: ObjsetKey| {
        let found =
            view.get(&key.encode()).map_err(|error| format!("what it refers to cannot be read: {error}"))?;
        found.ok_or_else(|| {
            format!("it refers to object {ref_object} at offset {ref_offset}, where there is no data")
        })
    };
    let unreadable = |error: DatasetError| format!("what it refers to cannot be read: {error}");
    let dnode = get(ObjsetKey::Dnode { object: ref_object })?;
    let dnode = Dnode::decode(&dnode.value).map_err(unreadable)?;
    if u64::from(dnode.block_size) != block_size {
        return Err(format!(
            "it refers to object {ref_object}, whose blocks are {} bytes long and not {block_size}",
            dnode.block_size
        ));
    }
    let block = get(ObjsetKey::Block { object: ref_object, blkid: ref_offset / block_size })?;
    match Block::decode(&block.value).map_err(unreadable)? {
        Block { ptr, crypt: Some(crypt) } => Ok((ptr, crypt)),
        Block { crypt: None, .. } => Err(format!("it refers to object {ref_object}, which is not encrypted")),
    }
}

/// Waits for the worker that prepares an item's block.
fn prepared(item: &Item) -> Result<Prepared, ReceiveError> {
    match &item.data {
        Data::Block(outcome) => match outcome.recv() {
            Ok(Ok(block)) => Ok(block),
            Ok(Err(why)) => Err(item.error(why)),
            Err(_) => Err(item.error("its worker failed")),
        },
        Data::Bytes(_) => Err(item.error("no data")),
    }
}
