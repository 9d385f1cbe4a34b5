//! A head as the storage of the ZPL: reads and writes objects.

use std::sync::Arc;

use snowmelt_pool::PoolError;
use snowmelt_stream::features::Features;
use snowmelt_zpl::{Dnode as ZplDnode, NewObject, Objects, ObjectsMut, Room, SourceError};

use super::overlay::{ObjectChange, cost};
use super::{Head, Tx, spare};
use crate::error::DatasetError;
use crate::objset::Dnode;
use crate::objset::view::{VOLUME_DATA, VOLUME_PROPERTIES, volume_size};
use std::sync::atomic::Ordering;

/// Maximal length of a block without the feature `large_blocks`.
const BLOCK_OLD_MAX: u32 = 128 << 10;
/// Maximal length of a block.
const BLOCK_MAX: u32 = 16 << 20;
/// Maximal number of slots of a dnode.
const SLOTS_MAX: u8 = 32;
/// A staging writer keeps this many bytes of large blocks before they are written out.
const STREAMED_MAX: usize = 8 << 20;

/// Classifies errors by what the filesystem can do about them.
pub(super) fn source_error(object: u64, offset: u64) -> impl Fn(DatasetError) -> SourceError {
    move |error| match error {
        DatasetError::Pool(PoolError::NoSpace { .. }) => SourceError::NoSpace,
        DatasetError::QuotaExceeded { .. } => SourceError::QuotaExceeded,
        DatasetError::Pool(PoolError::ReadOnly { .. }) => SourceError::ReadOnly,
        DatasetError::Pool(ref pool) if pool.is_corruption() => {
            SourceError::Unreadable { object, offset, source: Box::new(error) }
        }
        other => SourceError::Other(Box::new(other)),
    }
}

impl Objects for Head {
    fn dnode(&self, object: u64) -> Result<Option<ZplDnode>, SourceError> {
        let failed = source_error(object, 0);
        let Some((dnode, has_spill)) = self.dnode_and_spill(object).map_err(&failed)? else {
            return Ok(None);
        };
        Ok(Some(ZplDnode {
            object,
            object_type: dnode.object_type,
            bonus_type: dnode.bonus_type,
            block_size: dnode.block_size,
            slots: dnode.slots,
            has_spill,
            checksum: dnode.checksum,
            compress: dnode.compress,
            bonus: dnode.bonus.clone(),
        }))
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.read_at(object, offset, buf).map_err(source_error(object, offset))
    }

    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        self.read_spill(object).map_err(source_error(object, 0))
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        let failed = source_error(object, offset);
        let Some(dnode) = Head::dnode(self, object).map_err(&failed)? else { return Ok(None) };
        let size = u64::from(dnode.block_size);
        let next = self.data_blocks(object, offset / size).next().transpose().map_err(failed)?;
        Ok(next.map(|blkid| blkid.saturating_mul(size).max(offset)))
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.next_hole_before(object, offset, u64::MAX).map_err(source_error(object, offset))
    }
}

impl ObjectsMut for Head {
    type Tx<'a> = Tx<'a>;

    fn begin(&self, room: Room) -> Result<Tx<'_>, SourceError> {
        Head::begin(self, room)
    }

    fn txg(&self, tx: &Tx<'_>) -> u64 {
        tx.txg()
    }

    fn create(&self, tx: &Tx<'_>, new: NewObject) -> Result<u64, SourceError> {
        let object = self.allocator.lock().take(new.slots, tx.txg()).map_err(source_error(0, 0))?;
        self.put_new(object, new)?;
        Ok(object)
    }

    fn create_at(&self, _tx: &Tx<'_>, object: u64, new: NewObject) -> Result<(), SourceError> {
        if Head::dnode(self, object).map_err(source_error(object, 0))?.is_some() {
            return Err(misuse(object, "it exists"));
        }
        self.allocator.lock().claim(object, new.slots);
        self.put_new(object, new)
    }

    fn set_bonus(
        &self,
        _tx: &Tx<'_>,
        object: u64,
        bonus_type: u8,
        bonus: Vec<u8>,
    ) -> Result<(), SourceError> {
        self.alter(object, |dnode| {
            dnode.bonus_type = bonus_type;
            dnode.bonus_len = u32::try_from(bonus.len()).unwrap_or(u32::MAX);
            dnode.bonus = bonus;
        })
    }

    fn set_block_size(&self, tx: &Tx<'_>, object: u64, block_size: u32) -> Result<(), SourceError> {
        let failed = source_error(object, 0);
        let dnode = self.existing(object).map_err(&failed)?;
        if dnode.block_size == block_size {
            return Ok(());
        }
        if self.last_block(object).map_err(&failed)?.is_some_and(|last| last > 0) {
            return Err(misuse(object, "its block size cannot change: it has more than one block"));
        }
        let first = self.block_to_change(object, 0).map_err(&failed)?;
        self.alter(object, |dnode| dnode.block_size = block_size)?;
        if let Some(mut data) = first {
            data.resize(block_size as usize, 0);
            self.put_block(tx, object, 0, data);
        }
        Ok(())
    }

    fn write(&self, tx: &Tx<'_>, object: u64, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        let failed = source_error(object, offset);
        let block_size = self.existing(object).map_err(&failed)?.block_size;
        let size = u64::from(block_size);
        let mut done = 0;
        while done < data.len() {
            let at = offset
                .checked_add(done as u64)
                .ok_or_else(|| misuse(object, "offset and length overflow"))?;
            let within = (at % size) as usize;
            let len = (data.len() - done).min(block_size as usize - within);
            let piece = &data[done..done + len];
            if len == block_size as usize {
                self.put_block(tx, object, at / size, self.spare.copy(piece));
                self.stream(len);
            } else if !self.patch(object, at / size, within, piece) {
                let mut block = self.block_to_change(object, at / size).map_err(&failed)?.unwrap_or_default();
                block.resize(block_size as usize, 0);
                block[within..within + len].copy_from_slice(piece);
                self.put_block(tx, object, at / size, block);
            }
            done += len;
        }
        Ok(())
    }

    fn free(&self, tx: &Tx<'_>, object: u64, offset: u64, length: u64) -> Result<(), SourceError> {
        let failed = source_error(object, offset);
        let size = u64::from(self.existing(object).map_err(&failed)?.block_size);
        let end = offset.checked_add(length);
        let first = offset.div_ceil(size);
        let past = end.map_or(u64::MAX, |end| end / size);
        let zero = |from: u64, to: u64| -> Result<(), SourceError> {
            if from < to && self.block(object, from / size).map_err(&failed)?.is_some() {
                self.write(tx, object, from, &vec![0; (to - from) as usize])?;
            }
            Ok(())
        };
        let first_end = first.saturating_mul(size);
        zero(offset, end.map_or(first_end, |end| end.min(first_end)))?;
        if first < past {
            self.punch(tx, object, first, past);
        }
        match end {
            Some(end) if past >= first => zero(past.saturating_mul(size), end),
            _ => Ok(()),
        }
    }

    fn set_spill(&self, tx: &Tx<'_>, object: u64, spill: Option<Vec<u8>>) -> Result<(), SourceError> {
        self.existing(object).map_err(source_error(object, 0))?;
        let new = spill.as_ref().map_or(0, |data| cost(data));
        let mut layers = self.layers.lock();
        let change = layers.active.objects.entry(object).or_default();
        let old = change.spill.iter().flatten().map(|data| cost(data)).sum::<u64>();
        change.spill = Some(spill.map(Arc::new));
        layers.active.bytes = layers.active.bytes.saturating_sub(old) + new;
        drop(layers);
        settle(tx, old, new);
        Ok(())
    }

    fn destroy(&self, tx: &Tx<'_>, object: u64) -> Result<(), SourceError> {
        let dnode = self.existing(object).map_err(source_error(object, 0))?;
        let mut layers = self.layers.lock();
        let freed = layers.active.objects.entry(object).or_default().clear();
        layers.active.bytes = layers.active.bytes.saturating_sub(freed);
        drop(layers);
        settle(tx, freed, 0);
        self.allocator.lock().free(object, dnode.slots, tx.txg());
        Ok(())
    }
}

impl Head {
    /// Size of a volume in bytes.
    ///
    /// # Errors
    /// When its properties cannot be read.
    pub fn volume_size(&self) -> Result<u64, DatasetError> {
        let is_changing = self.layers.lock().changes(VOLUME_PROPERTIES).next().is_some();
        let begun = match self.known.volume_size() {
            Ok(size) if !is_changing => return Ok(size),
            Ok(_) => None,
            Err(begun) => Some(begun),
        };
        let dnode = self.existing(VOLUME_PROPERTIES)?;
        let mut block = vec![0; (dnode.block_size as usize).min(BLOCK_OLD_MAX as usize)];
        self.read_at(VOLUME_PROPERTIES, 0, &mut block)?;
        let size = volume_size(&block)?;
        if let Some(begun) = begun.filter(|_| !is_changing) {
            self.known.learn_volume_size(begun, size);
        }
        Ok(size)
    }

    /// Block size of a volume in bytes.
    ///
    /// # Errors
    /// When its dnode cannot be read.
    pub fn volume_block_size(&self) -> Result<u32, DatasetError> {
        Ok(self.existing(VOLUME_DATA)?.block_size)
    }

    fn put_new(&self, object: u64, new: NewObject) -> Result<(), SourceError> {
        let NewObject { object_type, bonus_type, block_size, slots, bonus } = new;
        if slots == 0 || slots > SLOTS_MAX || !block_size.is_multiple_of(512) || block_size == 0 {
            return Err(misuse(object, "impossible sizes"));
        }
        let bonus_len = u32::try_from(bonus.len()).unwrap_or(u32::MAX);
        let dnode = Dnode {
            object_type,
            bonus_type,
            checksum: 0,
            compress: 0,
            slots,
            block_size,
            bonus_len,
            raw: None,
            bonus,
        };
        self.check(object, &dnode)?;
        let mut layers = self.layers.lock();
        let change = layers.active.objects.entry(object).or_default();
        // The number may have belonged to another object, which is still in the tree.
        *change = ObjectChange { cleared: true, dnode: Some(Arc::new(dnode)), ..ObjectChange::default() };
        Ok(())
    }

    fn check(&self, object: u64, dnode: &Dnode) -> Result<(), SourceError> {
        if dnode.bonus.len() > Dnode::bonus_room(dnode.slots) {
            return Err(misuse(object, "its bonus does not fit its slots"));
        }
        if dnode.block_size > BLOCK_MAX {
            return Err(misuse(object, "its blocks are too large"));
        }
        let mut features = Features::NONE;
        if dnode.block_size > BLOCK_OLD_MAX {
            features |= Features::LARGE_BLOCKS;
        }
        if dnode.slots > 1 {
            features |= Features::LARGE_DNODE;
        }
        self.new_features.fetch_or(features.0, Ordering::Relaxed);
        Ok(())
    }

    fn alter(&self, object: u64, alter: impl FnOnce(&mut Dnode)) -> Result<(), SourceError> {
        let mut dnode = (*self.existing(object).map_err(source_error(object, 0))?).clone();
        alter(&mut dnode);
        self.check(object, &dnode)?;
        self.layers.lock().active.objects.entry(object).or_default().dnode = Some(Arc::new(dnode));
        Ok(())
    }

    fn put_block(&self, tx: &Tx<'_>, object: u64, blkid: u64, data: Vec<u8>) {
        let new = cost(&data);
        let mut layers = self.layers.lock();
        let change = layers.active.objects.entry(object).or_default();
        let old = change.blocks.insert(blkid, Arc::new(data)).map_or(0, |old| cost(&old));
        layers.active.bytes = layers.active.bytes.saturating_sub(old) + new;
        drop(layers);
        settle(tx, old, new);
    }

    /// Notes that a whole block was written. A staging writer writes each block once, in order. Large blocks belong to
    /// large files, so keeping many of them in memory has no benefit.
    fn stream(&self, len: usize) {
        if !self.staged || len < spare::LEN_MIN {
            return;
        }
        if self.streamed.fetch_add(len, Ordering::Relaxed) + len >= STREAMED_MAX {
            self.streamed.store(0, Ordering::Relaxed);
            self.pool.write_out_soon();
        }
    }

    /// Changes a part of a block in the newest layer. Returns `false` when the block is not there.
    fn patch(&self, object: u64, blkid: u64, within: usize, piece: &[u8]) -> bool {
        let mut layers = self.layers.lock();
        let Some(change) = layers.active.objects.get_mut(&object) else { return false };
        let Some(data) = change.blocks.get_mut(&blkid) else { return false };
        let data = Arc::make_mut(data);
        match data.get_mut(within..within + piece.len()) {
            Some(target) => target.copy_from_slice(piece),
            None => return false,
        }
        true
    }

    /// Makes whole blocks holes.
    fn punch(&self, tx: &Tx<'_>, object: u64, first: u64, past: u64) {
        let mut layers = self.layers.lock();
        let change = layers.active.objects.entry(object).or_default();
        change.holes.add(first, past);
        let gone: Vec<u64> = change.blocks.range(first..past).map(|(blkid, _)| *blkid).collect();
        let freed = gone.iter().filter_map(|blkid| change.blocks.remove(blkid)).map(|data| cost(&data));
        let freed: u64 = freed.sum();
        layers.active.bytes = layers.active.bytes.saturating_sub(freed);
        drop(layers);
        settle(tx, freed, 0);
    }
}

/// Accounts for bytes that are no longer kept, and bytes that are kept from now on.
fn settle(tx: &Tx<'_>, old: u64, new: u64) {
    tx.keep(new.saturating_sub(old));
    tx.fulfil(old.saturating_sub(new));
}

fn misuse(object: u64, why: &str) -> SourceError {
    SourceError::Other(Box::new(DatasetError::corrupt(format!("object {object}"), why)))
}
