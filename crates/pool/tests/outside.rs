//! External blocks: blocks whose bytes are not in the pool.
#![allow(clippy::unwrap_used)]

mod common;

use std::io;
use std::sync::Arc;

use common::{Mini, MiniRoots, key, small};
use parking_lot::Mutex;
use snowmelt_pool::{
    BlockId, BlockPtr, CheckOptions, Outside, OutsidePlace, OutsidePtr, Pool, PoolError, PoolOptions,
    Prepared, Result,
};
use snowmelt_store::MemoryStore;

/// External sources, by number.
#[derive(Default)]
struct Things(Mutex<Vec<Vec<u8>>>);

impl Outside for Things {
    fn read(&self, ptr: &OutsidePtr, buf: &mut [u8], _: bool) -> io::Result<()> {
        let things = self.0.lock();
        let thing = things.get(ptr.place.source as usize).ok_or(io::ErrorKind::NotFound)?;
        let from = ptr.place.offset as usize;
        buf.copy_from_slice(thing.get(from..from + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn describe(&self, ptr: &OutsidePtr) -> String {
        format!("thing {}", ptr.place.source)
    }
}

const LEN: usize = 4096;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) + 1;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(byte).collect()
}

/// Writes an external block of a source under `key`, or removes the key.
fn refer(mini: &Mini, key: &[u8], thing: &[u8], place: Option<OutsidePlace>) -> Result<()> {
    let hold = mini.pool.begin()?;
    let old = match place {
        Some(place) => {
            let from = place.offset as usize;
            let block = Prepared::outside(thing[from..from + LEN].to_vec(), LEN as u32, 2, place);
            let ptr = hold.write(mini.head.id(), BlockId { object: 1, blkid: 0 }, block)?;
            mini.head.retain(&hold, &ptr)?;
            let mut value = Vec::new();
            ptr.encode(&mut value);
            mini.head.insert(&hold, key, &value)?
        }
        None => mini.head.remove(&hold, key)?,
    };
    match old {
        Some(old) => mini.head.release(&hold, &BlockPtr::decode(&mut &old.value[..])?),
        None => Ok(()),
    }
}

fn ptr(mini: &Mini, key: &[u8]) -> BlockPtr {
    BlockPtr::decode(&mut &mini.head.get(key).unwrap().unwrap().value[..]).unwrap()
}

fn findings(pool: &Pool, data: bool) -> Vec<String> {
    let mut found = Vec::new();
    pool.check(&MiniRoots, CheckOptions { data }, &mut |finding| found.push(finding.what)).unwrap();
    found
}

#[test]
fn what_is_outside_takes_no_space_and_is_verified() {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    let thing = noise(64 * LEN, 1);
    let place = |n: usize| OutsidePlace { source: 0, offset: (n * LEN) as u64 };
    let refused = refer(&mini, &key(1), &thing, Some(place(0)));
    assert!(matches!(refused, Err(PoolError::Record { .. })), "{refused:?}");
    mini.pool.allow_outside();
    let before = mini.pool.counters().blocks_written;
    (0..64).for_each(|n| refer(&mini, &key(n as u16), &thing, Some(place(n))).unwrap());
    mini.commit().unwrap();
    assert_eq!(mini.pool.counters().blocks_written, before);
    assert_eq!(findings(&mini.pool, true), Vec::<String>::new(), "nobody can read it, and it is sound");
    assert!(matches!(mini.pool.read(&ptr(&mini, &key(3))), Err(PoolError::Outside { .. })));

    let things = Arc::new(Things(Mutex::new(vec![thing.clone()])));
    mini.pool.set_outside(things.clone());
    for n in 0..64 {
        assert_eq!(mini.pool.read(&ptr(&mini, &key(n))).unwrap(), thing[usize::from(n) * LEN..][..LEN]);
    }
    assert_eq!(findings(&mini.pool, true), Vec::<String>::new());

    // Replaced and removed while a snapshot exists. Destroying the snapshot frees everything.
    let taken = mini.pool.open_txg();
    mini.snapshot().unwrap();
    (0..32).for_each(|n| refer(&mini, &key(n as u16), &thing, Some(place(n + 1))).unwrap());
    (32..64).for_each(|n| refer(&mini, &key(n as u16), &thing, None).unwrap());
    assert_eq!(findings(&mini.pool, true), Vec::<String>::new());
    assert!(mini.model.snapshots.contains_key(&taken));
    mini.destroy_snapshot(0).unwrap();
    assert_eq!(findings(&mini.pool, true), Vec::<String>::new());
    mini.clean().unwrap();

    // Changed, and removed.
    let moved = ptr(&mini, &key(7));
    things.0.lock()[0][8 * LEN + 5] ^= 1;
    let mut found = findings(&mini.pool, true);
    assert!(found.len() == 1 && found.remove(0).contains("thing 0 has changed"), "{found:?}");
    assert!(findings(&mini.pool, false).is_empty());
    let read = mini.pool.read_stored(&moved);
    assert!(matches!(read, Err(PoolError::OutsideChanged { ref place }) if place == "thing 0"), "{read:?}");
    things.0.lock().clear();
    let read = mini.pool.read_stored(&moved);
    assert!(matches!(read, Err(PoolError::Outside { ref place, .. }) if place == "thing 0"), "{read:?}");
}

#[test]
fn the_cache_knows_contents_and_not_places() {
    let store = MemoryStore::new();
    let mini = Mini::create(Box::new(store), PoolOptions::default()).unwrap();
    mini.pool.allow_outside();
    let (old, new) = (noise(LEN, 1), noise(LEN, 2));
    let things = Arc::new(Things(Mutex::new(vec![old.clone()])));
    mini.pool.set_outside(things.clone());
    let place = OutsidePlace { source: 0, offset: 0 };
    refer(&mini, &key(1), &old, Some(place)).unwrap();
    assert_eq!(mini.pool.read(&ptr(&mini, &key(1))).unwrap(), old);
    things.0.lock()[0].clone_from(&new);
    refer(&mini, &key(1), &new, Some(place)).unwrap();
    assert_eq!(mini.pool.read(&ptr(&mini, &key(1))).unwrap(), new);
}

#[test]
fn the_pool_remembers_that_it_may_refer_outside() {
    let store = MemoryStore::new();
    let mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    mini.pool.allow_outside();
    let thing = noise(LEN, 1);
    refer(&mini, &key(1), &thing, Some(OutsidePlace { source: 0, offset: 0 })).unwrap();
    let found = ptr(&mini, &key(1));
    mini.pool.clone().close().unwrap();
    drop(mini);
    let pool = Pool::open(Box::new(store), small()).unwrap();
    assert!(pool.allows_outside());
    pool.set_outside(Arc::new(Things(Mutex::new(vec![thing.clone()]))));
    assert_eq!(pool.read(&found).unwrap(), thing);
    // A pool that does not allow external blocks refuses the pointer.
    let other = Mini::create(Box::new(MemoryStore::new()), small()).unwrap();
    other.pool.set_outside(Arc::new(Things(Mutex::new(vec![thing]))));
    assert!(matches!(other.pool.read(&found), Err(PoolError::Record { .. })));
}
