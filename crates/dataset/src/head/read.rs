//! Reads a head: first the layers of changes, then the tree.

use std::sync::Arc;

use snowmelt_pool::BlockPtr;

use super::Head;
use super::overlay::BlockState;
use crate::error::DatasetError;
use crate::objset::view::blocks_end;
use crate::objset::{Block, Dnode, ObjsetKey};

impl Head {
    pub(super) fn dnode(&self, object: u64) -> Result<Option<Arc<Dnode>>, DatasetError> {
        if let Some(known) = self.layers.lock().dnode(object) {
            return Ok(known);
        }
        Ok(self.stored(object)?.map(|(dnode, _)| dnode))
    }

    /// The dnode in the tree, and whether there is a spill block, which is in the entry after the dnode.
    fn stored(&self, object: u64) -> Result<Option<(Arc<Dnode>, bool)>, DatasetError> {
        let begun = match self.known.object(object) {
            Ok(known) => return Ok(Some(known)),
            Err(begun) => begun,
        };
        let from = ObjsetKey::Dnode { object }.encode();
        let entries = self.tree().view().range(&from, Some(&ObjsetKey::Block { object, blkid: 0 }.encode()));
        let (mut dnode, mut has_spill) = (None, false);
        for item in entries {
            let (key, entry) = item?;
            match ObjsetKey::decode(&key)? {
                ObjsetKey::Dnode { .. } => dnode = Some(Arc::new(Dnode::decode(&entry.value)?)),
                ObjsetKey::Spill { .. } => has_spill = true,
                _ => break,
            }
        }
        let found = dnode.map(|dnode| (dnode, has_spill));
        if let Some(found) = &found {
            self.known.learn_object(begun, object, found);
        }
        Ok(found)
    }

    pub(super) fn existing(&self, object: u64) -> Result<Arc<Dnode>, DatasetError> {
        self.dnode(object)?
            .ok_or_else(|| DatasetError::corrupt(format!("object {object}"), "it does not exist"))
    }

    /// The bytes of a block; `None` for a hole.
    pub(super) fn block(&self, object: u64, blkid: u64) -> Result<Option<bytes::Bytes>, DatasetError> {
        let state = self.layers.lock().block(object, blkid);
        match state {
            BlockState::Data(data) => Ok(Some(bytes::Bytes::from_owner(Shared(data)))),
            BlockState::Hole => Ok(None),
            BlockState::Below => match self.tree().get(&ObjsetKey::Block { object, blkid }.encode())? {
                Some(entry) => {
                    let ptr = Block::decode(&entry.value)?.ptr;
                    match self.is_unread(&ptr) {
                        true => Ok(Some(vec![0; ptr.lsize() as usize].into())),
                        false => Ok(Some(self.pool.read(&ptr)?)),
                    }
                }
                None => Ok(None),
            },
        }
    }

    /// The bytes of a block that will be changed; `None` for a hole.
    pub(super) fn block_to_change(&self, object: u64, blkid: u64) -> Result<Option<Vec<u8>>, DatasetError> {
        let state = self.layers.lock().block(object, blkid);
        match state {
            BlockState::Data(data) => Ok(Some(data.to_vec())),
            BlockState::Hole => Ok(None),
            BlockState::Below => match self.tree().get(&ObjsetKey::Block { object, blkid }.encode())? {
                Some(entry) => {
                    let ptr = Block::decode(&entry.value)?.ptr;
                    match self.is_unread(&ptr) {
                        true => Ok(Some(vec![0; ptr.lsize() as usize])),
                        false => Ok(Some(self.pool.read_once(&ptr)?.into())),
                    }
                }
                None => Ok(None),
            },
        }
    }

    /// Whether a block is external in a shadow, so that its content is neither available nor needed: see
    /// [`Head::refer_outside`].
    fn is_unread(&self, ptr: &BlockPtr) -> bool {
        self.shadow.is_some() && matches!(ptr, BlockPtr::Outside(_))
    }

    pub(super) fn read_spill(&self, object: u64) -> Result<Option<Vec<u8>>, DatasetError> {
        if let Some(known) = self.layers.lock().spill(object) {
            return Ok(known.map(|data| data.to_vec()));
        }
        match self.tree().get(&ObjsetKey::Spill { object }.encode())? {
            Some(entry) => Ok(Some(self.pool.read(&Block::decode(&entry.value)?.ptr)?.to_vec())),
            None => Ok(None),
        }
    }

    /// The dnode, and whether there is a spill block.
    pub(super) fn dnode_and_spill(&self, object: u64) -> Result<Option<(Arc<Dnode>, bool)>, DatasetError> {
        let (dnode, spill) = {
            let layers = self.layers.lock();
            (layers.dnode(object), layers.spill(object))
        };
        let spill = spill.map(|spill| spill.is_some());
        match (&dnode, spill) {
            (Some(None), _) => return Ok(None),
            (Some(Some(dnode)), Some(spill)) => return Ok(Some((dnode.clone(), spill))),
            _ => {}
        }
        let (stored, stored_spill) = self.stored(object)?.unzip();
        let dnode = dnode.flatten().or(stored);
        Ok(dnode.map(|dnode| (dnode, spill.or(stored_spill).unwrap_or(false))))
    }

    /// Reads bytes; holes read as zeros.
    pub(super) fn read_at(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), DatasetError> {
        let block_size = self.existing(object)?.block_size;
        let (size, mut done) = (u64::from(block_size), 0);
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let within = (at % size) as usize;
            let len = (buf.len() - done).min(block_size as usize - within);
            let target = &mut buf[done..done + len];
            if len == block_size as usize && self.read_whole(object, at / size, target)? {
                done += len;
                continue;
            }
            match self.block(object, at / size)? {
                Some(data) => {
                    let have = data.get(within..).unwrap_or_default();
                    let copied = have.len().min(len);
                    target[..copied].copy_from_slice(&have[..copied]);
                    target[copied..].fill(0);
                }
                None => target.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// Reads a whole block of the tree directly into `buf` without the cache, if possible: readers of whole blocks
    /// seldom read them again, or have their own cache.
    fn read_whole(&self, object: u64, blkid: u64, buf: &mut [u8]) -> Result<bool, DatasetError> {
        if !matches!(self.layers.lock().block(object, blkid), BlockState::Below) {
            return Ok(false);
        }
        match self.tree().get(&ObjsetKey::Block { object, blkid }.encode())? {
            Some(entry) => {
                let ptr = Block::decode(&entry.value)?.ptr;
                Ok(!self.is_unread(&ptr) && self.pool.read_plain(&ptr, buf)?)
            }
            None => {
                buf.fill(0);
                Ok(true)
            }
        }
    }

    /// Numbers of the blocks with data from `from` on, in order.
    pub(super) fn data_blocks(
        &self,
        object: u64,
        from: u64,
    ) -> impl Iterator<Item = Result<u64, DatasetError>> + '_ {
        let kept = self.layers.lock().blocks_from(object, from);
        let mut kept = kept.into_iter().peekable();
        let start = ObjsetKey::Block { object, blkid: from }.encode();
        let mut stored = self.tree().view().range(&start, Some(&blocks_end(object))).peekable();
        std::iter::from_fn(move || {
            loop {
                let next = match stored.peek() {
                    Some(Ok((key, _))) => match ObjsetKey::decode(key) {
                        Ok(ObjsetKey::Block { blkid, .. }) => Some(blkid),
                        Ok(_) => None,
                        Err(error) => return Some(Err(error)),
                    },
                    Some(Err(_)) => {
                        return stored.next().and_then(Result::err).map(|error| Err(error.into()));
                    }
                    None => None,
                };
                match (kept.peek().copied(), next) {
                    (Some(kept_next), Some(stored_next)) if kept_next <= stored_next => {
                        if kept_next == stored_next {
                            stored.next();
                        }
                        return kept.next().map(Ok);
                    }
                    (_, Some(stored_next)) => {
                        stored.next();
                        if !self.layers.lock().hides(object, stored_next) {
                            return Some(Ok(stored_next));
                        }
                    }
                    (_, None) => return kept.next().map(Ok),
                }
            }
        })
    }

    /// First hole at or after `offset`. Does not search past `end`; the result is then `end` or more.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn next_hole_before(&self, object: u64, offset: u64, end: u64) -> Result<Option<u64>, DatasetError> {
        let Some(dnode) = self.dnode(object)? else { return Ok(Some(offset)) };
        let size = u64::from(dnode.block_size);
        let mut expected = offset / size;
        for blkid in self.data_blocks(object, expected) {
            if blkid? != expected || expected.saturating_mul(size) >= end {
                break;
            }
            expected += 1;
        }
        Ok(Some(expected.saturating_mul(size).max(offset)))
    }

    /// The highest block number with data.
    pub(super) fn last_block(&self, object: u64) -> Result<Option<u64>, DatasetError> {
        let kept = self.layers.lock().blocks_from(object, 0).last().copied();
        let view = self.tree().view();
        let mut end = blocks_end(object);
        while let Some((key, _)) = view.last_before(&end)? {
            match ObjsetKey::decode(&key)? {
                ObjsetKey::Block { object: found, blkid } if found == object => {
                    if kept.is_some_and(|kept| kept >= blkid) {
                        break;
                    }
                    if !self.layers.lock().hides(object, blkid) {
                        return Ok(Some(blkid));
                    }
                    end = key;
                }
                _ => break,
            }
        }
        Ok(kept)
    }
}

/// Bytes that a layer and a reader share.
pub(super) struct Shared(pub(super) Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
