//! Relocations: the new places of blocks that the cleaner moved. Pointers keep the old place.
//!
//! The records are in the meta tree under [`prefix::RELOCATION`](crate::prefix::RELOCATION). Reads look them up if
//! there are any. Bytes: `docs/format/pool.md`, "Relocations".

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use snowmelt_store::SegmentId;

use crate::error::Result;
use crate::format::bytes_io::Fields;
use crate::format::prefix;
use crate::ids::Txg;

const VERSION: u8 = 1;

/// The place of a block: segment and offset.
pub(crate) type Place = (SegmentId, u32);

/// Relocations of blocks that were freed while views may still read them. The record was removed with the block, but
/// pointers in an older root still have the old place. They are needed only as long as views exist, so they are kept in
/// memory only.
#[derive(Default)]
pub(crate) struct Retired {
    count: AtomicUsize,
    state: Mutex<RetiredState>,
}

#[derive(Default)]
struct RetiredState {
    places: HashMap<Place, Place>,
    /// The old places, by the txg that freed the blocks.
    freed: BTreeMap<Txg, Vec<Place>>,
}

impl Retired {
    /// Notes that a block written to `from` and moved to `to` is freed in `txg`. Must be called before its record is
    /// removed.
    pub(crate) fn note(&self, txg: Txg, from: Place, to: Place) {
        let mut state = self.state.lock();
        if state.places.insert(from, to).is_none() {
            state.freed.entry(txg).or_default().push(from);
        }
        self.count.store(state.places.len(), Ordering::Release);
    }

    /// The current place of a freed block that was written to `from`.
    pub(crate) fn find(&self, from: Place) -> Option<Place> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.state.lock().places.get(&from).copied()
    }

    /// Removes the relocations of blocks that were freed up to `limit`. No view may need them.
    pub(crate) fn forget(&self, limit: Txg) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let state = &mut *self.state.lock();
        while let Some(entry) = state.freed.first_entry().filter(|entry| *entry.key() <= limit) {
            for from in entry.remove() {
                state.places.remove(&from);
            }
        }
        self.count.store(state.places.len(), Ordering::Release);
    }

    /// Removes the relocations into deleted segments. No view can read them.
    pub(crate) fn forget_segments(&self, gone: &[SegmentId]) {
        if gone.is_empty() || self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let gone: HashSet<SegmentId> = gone.iter().copied().collect();
        let state = &mut *self.state.lock();
        state.places.retain(|_, (segment, _)| !gone.contains(segment));
        let places = &state.places;
        state.freed.retain(|_, freed| {
            freed.retain(|from| places.contains_key(from));
            !freed.is_empty()
        });
        self.count.store(state.places.len(), Ordering::Release);
    }
}

pub(crate) fn key(segment: SegmentId, offset: u32) -> Vec<u8> {
    let mut out = vec![prefix::RELOCATION];
    out.extend_from_slice(&segment.0.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out
}

pub(crate) fn encode(segment: SegmentId, offset: u32) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&segment.0.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Place> {
    let mut fields = Fields::new("relocation", bytes);
    let version = fields.u8()?;
    if version != VERSION {
        return fields.fail(format!("unknown version {version}"));
    }
    let place = (SegmentId(fields.u64()?), fields.u32()?);
    fields.end()?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockId;
    use crate::BlockPtr;
    use crate::NewPool;
    use crate::Pool;
    use crate::PoolOptions;
    use crate::Prepared;
    use crate::TreeId;
    use snowmelt_store::{MemoryStore, Store};
    use std::sync::atomic::Ordering;

    const ID: BlockId = BlockId { object: 1, blkid: 2 };

    /// Moves a block like the cleaner: copy, record, accounting.
    fn move_block(pool: &Pool, ptr: &BlockPtr) -> (SegmentId, u32) {
        let BlockPtr::Stored(old) = ptr else { panic!("an embedded block") };
        let hold = pool.begin().unwrap();
        let payload = pool.read_stored(ptr).unwrap().to_vec();
        let copy = Prepared::stored(payload, old.lsize, old.compression);
        let BlockPtr::Stored(new) = hold.write(TreeId(1), ID, copy).unwrap() else { panic!() };
        let value = encode(new.segment, new.offset);
        pool.meta().insert(&hold, &key(old.segment, old.offset), &value).unwrap();
        pool.io().relocations.store(true, Ordering::Release);
        pool.io().free(old.segment, old.asize(), false, hold.txg()).unwrap();
        (new.segment, new.offset)
    }

    #[test]
    fn a_view_reads_a_relocated_block_after_it_was_freed() {
        let store = MemoryStore::new();
        let options = PoolOptions { segment_bytes: 64 << 10, data_cache_bytes: 0, ..PoolOptions::default() };
        let pool = Pool::create(Box::new(store), &NewPool { name: "tank", guid: 1 }, options).unwrap();
        let data: Vec<u8> = (0..40_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let hold = pool.begin().unwrap();
        let ptr = hold.write(TreeId(1), ID, Prepared::stored(data.clone(), 40_000, 2)).unwrap();
        hold.write(TreeId(1), ID, Prepared::stored(data.clone(), 40_000, 2)).unwrap();
        drop(hold);
        pool.commit().unwrap();
        move_block(&pool, &ptr);
        pool.drain_frees().unwrap();
        let BlockPtr::Stored(old) = &ptr else { panic!() };
        let view = pool.meta().view();
        let hold = pool.begin_free().unwrap();
        pool.free(&hold, old.segment, old.offset, old.asize()).unwrap();
        drop(hold);
        pool.drain_frees().unwrap();
        assert_eq!(pool.read(&ptr).unwrap(), data[..], "while the view is there");
        drop(view);
        let hold = pool.begin().unwrap();
        hold.promise(0).unwrap();
        drop(hold);
        pool.drain_frees().unwrap();
        assert!(pool.read(&ptr).is_err(), "nothing is kept longer than the view");
    }

    #[test]
    fn a_relocated_block_is_read_and_freed_where_it_went() {
        let store = MemoryStore::new();
        let options = PoolOptions { segment_bytes: 64 << 10, data_cache_bytes: 0, ..PoolOptions::default() };
        let new = NewPool { name: "tank", guid: 1 };
        let pool = Pool::create(Box::new(store.clone()), &new, options.clone()).unwrap();
        let data: Vec<u8> = (0..40_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let hold = pool.begin().unwrap();
        let ptr = hold.write(TreeId(1), ID, Prepared::stored(data.clone(), 40_000, 2)).unwrap();
        // Fills the segment, so that the next block goes to another one.
        let filler = hold.write(TreeId(1), ID, Prepared::stored(data.clone(), 40_000, 2)).unwrap();
        drop(hold);
        pool.commit().unwrap();
        let (segment, _) = move_block(&pool, &ptr);
        pool.commit().unwrap();
        pool.drain_frees().unwrap();
        let BlockPtr::Stored(old) = &ptr else { panic!() };
        assert_ne!(segment, old.segment);
        let here = |id| store.segments().unwrap().iter().any(|info| info.id == id);
        assert!(!here(old.segment), "the segment it was moved out of is gone");
        assert_eq!(pool.read(&ptr).unwrap(), data[..]);
        drop(pool);
        // The relocation is found again after the pool was opened.
        let store = store.snapshot();
        let pool = Pool::open(Box::new(store.clone()), options).unwrap();
        assert_eq!(pool.read(&ptr).unwrap(), data[..]);
        let before = pool.space().unwrap().allocated;
        let hold = pool.begin_free().unwrap();
        pool.free(&hold, old.segment, old.offset, old.asize()).unwrap();
        assert_eq!(pool.meta().get(&key(old.segment, old.offset)).unwrap(), None);
        pool.free(
            &hold,
            {
                let BlockPtr::Stored(f) = &filler else { panic!() };
                f.segment
            },
            0,
            filler.asize(),
        )
        .unwrap();
        drop(hold);
        assert!(pool.space().unwrap().allocated <= before - 2 * old.asize() + 1000);
    }
}
