//! Damaged blocks are written again from good copies, and nothing else is written.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, MiniRoots, key, small};
use snowmelt_pool::{
    BlockId, BlockPtr, FRAME_HEADER, MendReport, PoolOptions, Prepared, ScrubOptions, StoredPtr,
};
use snowmelt_store::{FaultStore, MemoryStore, Store};

const ID: BlockId = BlockId { object: 1, blkid: 2 };

/// Bytes that do not compress.
fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn options() -> PoolOptions {
    PoolOptions { data_cache_bytes: 0, ..small() }
}

fn filled(store: Box<dyn Store>) -> Mini {
    let mut mini = Mini::create(store, options()).unwrap();
    for at in 0..30 {
        mini.put(&key(at), &noise(1000, at.into())).unwrap();
    }
    mini.snapshot().unwrap();
    mini
}

fn pointer(mini: &Mini, at: u16) -> StoredPtr {
    let entry = mini.head.get(&key(at)).unwrap().unwrap();
    match BlockPtr::decode(&mut &entry.value[..]).unwrap() {
        BlockPtr::Stored(ptr) => ptr,
        other => panic!("{other:?}"),
    }
}

fn good(mini: &Mini, at: u16) -> Prepared {
    let ptr = pointer(mini, at);
    Prepared::stored(noise(1000, at.into()), ptr.lsize, ptr.algorithm())
}

fn is_damaged(store: &MemoryStore, mini: &Mini, at: u16) {
    let ptr = pointer(mini, at);
    store.corrupt(ptr.segment, u64::from(ptr.offset) + FRAME_HEADER as u64 + 7, 1).unwrap();
    assert!(!mini.pool.is_sound(&ptr).unwrap());
}

#[test]
fn only_what_is_damaged_and_only_what_it_was() {
    let store = MemoryStore::new();
    let mut mini = filled(Box::new(store.clone()));
    for at in [3, 4, 5] {
        is_damaged(&store, &mini, at);
        assert!(mini.pool.read(&BlockPtr::Stored(pointer(&mini, at))).is_err());
    }
    mini.commit().unwrap();
    assert_eq!(mini.pool.damage().unwrap().len(), 3);
    let tree = mini.head.id();
    let pool = mini.pool.clone();
    let mut mending = pool.mending();
    let wrong = Prepared::stored(noise(1000, 77), 1000, 2);
    assert!(!mending.offer(&pointer(&mini, 3), tree, ID, &wrong).unwrap());
    for at in [3, 4, 8] {
        assert!(mending.offer(&pointer(&mini, at), tree, ID, &good(&mini, at)).unwrap());
    }
    let (third, fresh) = (pointer(&mini, 3), pointer(&mini, 8));
    let bytes = u64::from(third.psize + pointer(&mini, 4).psize);
    assert_eq!(mending.finish().unwrap(), MendReport { blocks: 2, bytes });
    assert!(mini.pool.is_sound(&third).unwrap() && mini.pool.is_sound(&fresh).unwrap());
    assert_eq!(mini.pool.damage().unwrap().len(), 1);
    // A block that was freed meanwhile is not needed any more.
    let mut mending = pool.mending();
    assert!(mending.offer(&pointer(&mini, 5), tree, ID, &good(&mini, 5)).unwrap());
    mini.remove(&key(5)).unwrap();
    mini.destroy_snapshot(0).unwrap();
    assert_eq!(mending.finish().unwrap(), MendReport::default());
    mini.commit().unwrap();
    mini.verify().unwrap();
    mini.check().unwrap();
    let options = ScrubOptions {
        rate: None,
        batch_bytes: ScrubOptions::BATCH_BYTES,
        cancelled: &|| false,
        progress: &|_| {},
    };
    assert_eq!(mini.pool.scrub(&MiniRoots, &options, &mut |_| {}).unwrap().errors, 0);
}

/// After a crash, a block is either still damaged or repaired, and everything else is unchanged.
#[test]
fn a_crash_leaves_either() {
    let store = FaultStore::new(7);
    let mini = filled(Box::new(store.clone()));
    let ptr = pointer(&mini, 9);
    store.corrupt(ptr.segment, u64::from(ptr.offset) + FRAME_HEADER as u64, 1).unwrap();
    let from = store.position();
    let pool = mini.pool.clone();
    let mut mending = pool.mending();
    assert!(mending.offer(&ptr, mini.head.id(), ID, &good(&mini, 9)).unwrap());
    assert_eq!(mending.finish().unwrap().blocks, 1);
    let until = store.position();
    let mut seen = (false, false);
    for image in store.crash_points(from..=until, 3) {
        let pool = snowmelt_pool::Pool::open(Box::new(image.store), options()).unwrap();
        match pool.read(&BlockPtr::Stored(ptr.clone())) {
            Ok(data) => {
                assert_eq!(data, noise(1000, 9));
                seen.1 = true;
            }
            Err(error) => {
                assert!(error.is_corruption());
                seen.0 = true;
            }
        }
        for at in (0..30).filter(|at| *at != 9) {
            assert_eq!(pool.read(&BlockPtr::Stored(pointer(&mini, at))).unwrap(), noise(1000, at.into()));
        }
    }
    assert_eq!(seen, (true, true));
}
