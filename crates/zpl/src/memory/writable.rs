//! A writable objset in memory, for tests of code that writes.

use super::{MemoryObject, MemoryObjects};
use crate::source::{Dnode, NewObject, Objects, ObjectsMut, Room, SourceError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects in memory behind a lock. A transaction is only a txg number and never waits.
#[derive(Debug)]
pub struct MemoryObjset {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    objects: MemoryObjects,
    next: u64,
    /// The number of the next object, if a test has chosen it.
    given: Option<u64>,
    txg: u64,
    /// Largest number of bytes that a transaction may reserve.
    room: u64,
    read_only: bool,
}

/// A transaction on a [`MemoryObjset`].
#[derive(Debug)]
pub struct MemoryTx<'a> {
    txg: u64,
    objset: &'a MemoryObjset,
}

impl Drop for MemoryTx<'_> {
    fn drop(&mut self) {
        // Each transaction has its own txg, so that tests can distinguish them.
        self.objset.lock().txg += 1;
    }
}

impl Default for MemoryObjset {
    fn default() -> Self {
        Self::new(MemoryObjects::default())
    }
}

impl MemoryObjset {
    /// Creates an objset that contains `objects`.
    pub fn new(objects: MemoryObjects) -> Self {
        let next = past(&objects);
        Self {
            state: Mutex::new(State { objects, next, given: None, txg: 4, room: u64::MAX, read_only: false }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of the next created object. It must be free. Pools also reuse numbers.
    pub fn give_next(&self, object: u64) {
        self.lock().given = Some(object);
    }

    /// A copy of the current content.
    pub fn snapshot(&self) -> MemoryObjects {
        self.lock().objects.clone()
    }

    /// Replaces the content, like a rollback.
    pub fn replace(&self, objects: MemoryObjects) {
        let next = past(&objects);
        let mut state = self.lock();
        (state.objects, state.next) = (objects, next);
    }

    /// Sets the limit of bytes. From now on, larger transactions are refused.
    pub fn set_room(&self, room: u64) {
        self.lock().room = room;
    }

    /// Sets whether transactions are refused.
    pub fn set_read_only(&self, read_only: bool) {
        self.lock().read_only = read_only;
    }

    fn change<T>(
        &self,
        object: u64,
        change: impl FnOnce(&mut MemoryObject) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let mut state = self.lock();
        let found = state.objects.objects.get_mut(&object);
        change(found.ok_or_else(|| misuse(object, "there is no such object"))?)
    }
}

/// The first number after those of all objects.
fn past(objects: &MemoryObjects) -> u64 {
    let last = objects.objects.iter().next_back();
    last.map_or(1, |(number, object)| number + u64::from(object.dnode.slots.max(1)))
}

fn misuse(object: u64, why: &str) -> SourceError {
    SourceError::Other(format!("object {object}: {why}").into())
}

/// `DN_BONUS_SIZE`: largest size of a bonus buffer.
fn bonus_room(slots: u8) -> usize {
    usize::from(slots) * 512 - 192
}

impl State {
    fn put_new(&mut self, object: u64, new: NewObject) -> Result<(), SourceError> {
        let NewObject { object_type, bonus_type, block_size, slots, bonus } = new;
        if slots == 0 || slots > 32 || block_size == 0 || !block_size.is_multiple_of(512) {
            return Err(misuse(object, "impossible sizes"));
        }
        if bonus.len() > bonus_room(slots) {
            return Err(misuse(object, "its bonus does not fit its slots"));
        }
        let dnode = Dnode { object, object_type, bonus_type, block_size, slots, bonus, ..Dnode::default() };
        self.objects.objects.insert(object, MemoryObject { dnode, ..MemoryObject::default() });
        self.next = self.next.max(object + u64::from(slots));
        Ok(())
    }
}

impl Objects for MemoryObjset {
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
        self.lock().objects.dnode(object)
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.lock().objects.read(object, offset, buf)
    }

    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        self.lock().objects.spill(object)
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.lock().objects.next_data(object, offset)
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.lock().objects.next_hole(object, offset)
    }
}

impl ObjectsMut for MemoryObjset {
    type Tx<'a> = MemoryTx<'a>;

    fn begin(&self, room: Room) -> Result<MemoryTx<'_>, SourceError> {
        let state = self.lock();
        match room {
            _ if state.read_only => return Err(SourceError::ReadOnly),
            Room::Write(bytes) if bytes > state.room => return Err(SourceError::NoSpace),
            Room::Write(_) | Room::Free => {}
        }
        Ok(MemoryTx { txg: state.txg, objset: self })
    }

    fn txg(&self, tx: &MemoryTx<'_>) -> u64 {
        tx.txg
    }

    fn create(&self, _tx: &MemoryTx<'_>, new: NewObject) -> Result<u64, SourceError> {
        let mut state = self.lock();
        let object = state.given.take().unwrap_or(state.next);
        state.put_new(object, new)?;
        Ok(object)
    }

    fn create_at(&self, _tx: &MemoryTx<'_>, object: u64, new: NewObject) -> Result<(), SourceError> {
        let mut state = self.lock();
        if state.objects.objects.contains_key(&object) {
            return Err(misuse(object, "it exists"));
        }
        state.put_new(object, new)
    }

    fn set_bonus(
        &self,
        _tx: &MemoryTx<'_>,
        object: u64,
        bonus_type: u8,
        bonus: Vec<u8>,
    ) -> Result<(), SourceError> {
        self.change(object, |found| {
            let spill_pointer = if found.spill.is_some() { 128 } else { 0 };
            if bonus.len() > bonus_room(found.dnode.slots) - spill_pointer {
                return Err(misuse(object, "its bonus does not fit its slots"));
            }
            (found.dnode.bonus_type, found.dnode.bonus) = (bonus_type, bonus);
            Ok(())
        })
    }

    fn set_block_size(&self, _tx: &MemoryTx<'_>, object: u64, block_size: u32) -> Result<(), SourceError> {
        self.change(object, |found| {
            if block_size == 0 || !block_size.is_multiple_of(512) {
                return Err(misuse(object, "impossible sizes"));
            }
            if found.dnode.block_size != block_size && found.blocks.keys().any(|number| *number > 0) {
                return Err(misuse(object, "it has more than one block"));
            }
            found.dnode.block_size = block_size;
            if let Some(first) = found.blocks.get_mut(&0) {
                first.truncate(block_size as usize);
            }
            Ok(())
        })
    }

    fn write(&self, _tx: &MemoryTx<'_>, object: u64, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        self.change(object, |found| {
            offset.checked_add(data.len() as u64).ok_or_else(|| misuse(object, "offset overflows"))?;
            found.write(offset, data);
            Ok(())
        })
    }

    fn free(&self, _tx: &MemoryTx<'_>, object: u64, offset: u64, length: u64) -> Result<(), SourceError> {
        self.change(object, |found| {
            found.free(offset, length);
            Ok(())
        })
    }

    fn set_spill(&self, _tx: &MemoryTx<'_>, object: u64, spill: Option<Vec<u8>>) -> Result<(), SourceError> {
        self.change(object, |found| {
            let len = spill.as_ref().map_or(512, Vec::len);
            if len == 0 || !len.is_multiple_of(512) || len > 128 << 10 {
                return Err(misuse(object, "an impossible spill block"));
            }
            if spill.is_some() && found.dnode.bonus.len() > bonus_room(found.dnode.slots) - 128 {
                return Err(misuse(object, "its bonus leaves no room for a pointer to a spill block"));
            }
            found.dnode.has_spill = spill.is_some();
            found.spill = spill;
            Ok(())
        })
    }

    fn destroy(&self, _tx: &MemoryTx<'_>, object: u64) -> Result<(), SourceError> {
        let gone = self.lock().objects.objects.remove(&object);
        gone.map(drop).ok_or_else(|| misuse(object, "there is no such object"))
    }
}
