//! Blocks, txgs, views, space: one test for each guarantee of the pool.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, MiniRoots, golden, key, small};
use snowmelt_pool::{
    BlockId, BlockPtr, CheckOptions, Dead, DeadSpace, Deadlist, EMBEDDED_MAX, NewPool, Pool, PoolError,
    PoolOptions, Prepared, REWIND_TXGS, TreeId, View, scan,
};
use snowmelt_store::{MemoryStore, SegmentId, Store};
use snowmelt_stream::compress::Compression;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ID: BlockId = BlockId { object: 7, blkid: 9 };

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) + 1;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(byte).collect()
}

fn pool(store: &MemoryStore) -> Arc<Pool> {
    Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 42 }, small()).unwrap()
}

/// Buffered bytes are passed to the store in whole sectors, wherever a block ends.
#[test]
fn blocks_read_back_that_are_half_in_the_store() {
    let store = MemoryStore::new();
    let options = PoolOptions { data_cache_bytes: 0, buffer_bytes: 64 << 10, ..PoolOptions::default() };
    let pool = Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 42 }, options).unwrap();
    let hold = pool.begin().unwrap();
    let mut written: Vec<(BlockPtr, Vec<u8>)> = Vec::new();
    let mut half = 0;
    for (seed, len) in
        (0..).zip([200, 5000, 9000, 33_000, 40_000, 70_000, 131_072].into_iter().cycle().take(70))
    {
        let data = noise(len, seed);
        let ptr = hold.write(TreeId(1), ID, Prepared::compress(&data, Compression::Off)).unwrap();
        written.push((ptr, data));
        for (ptr, data) in &written {
            let BlockPtr::Stored(stored) = ptr else { panic!("a block of {} bytes is stored", data.len()) };
            let in_store = store.segments().unwrap().iter().find(|it| it.id == stored.segment).unwrap().len;
            let begin = u64::from(stored.offset);
            half += u32::from(begin < in_store && in_store < begin + u64::from(stored.psize));
            assert_eq!(pool.read(ptr).unwrap(), data[..]);
        }
    }
    assert!(half > 10, "{half}");
}

#[test]
fn blocks_read_back_from_buffer_store_cache_and_pointer() {
    let store = MemoryStore::new();
    let pool = Pool::create(
        Box::new(store.clone()),
        &NewPool { name: "tank", guid: 42 },
        PoolOptions { data_cache_bytes: 0, ..PoolOptions::default() },
    )
    .unwrap();
    let contents = [
        vec![0x11; 1],
        noise(EMBEDDED_MAX, 1),
        noise(EMBEDDED_MAX + 1, 2),
        vec![0x22; 128 << 10],
        noise(128 << 10, 3),
        noise(16 << 20, 4),
    ];
    let hold = pool.begin().unwrap();
    let write =
        |data: &Vec<u8>| hold.write(TreeId(1), ID, Prepared::compress(data, Compression::Lz4)).unwrap();
    let ptrs: Vec<BlockPtr> = contents.iter().map(write).collect();
    assert!(matches!(ptrs[1], BlockPtr::Embedded { .. }));
    assert!(matches!(ptrs[2], BlockPtr::Stored(_)));
    assert!(matches!(&ptrs[3], BlockPtr::Stored(ptr) if ptr.psize < 2048 && ptr.compression == 15));
    assert_eq!(ptrs[4].psize(), 128 << 10);
    let verify = || {
        for (ptr, data) in ptrs.iter().zip(&contents) {
            assert_eq!(pool.read(ptr).unwrap(), data[..]);
            assert_eq!(ptr.lsize() as usize, data.len());
            let mut encoded = Vec::new();
            ptr.encode(&mut encoded);
            assert_eq!(BlockPtr::decode(&mut &encoded[..]).unwrap(), *ptr);
        }
    };
    verify();
    // A record of a compressed stream is stored unchanged.
    let packed = pool.read_stored(&ptrs[3]).unwrap();
    let again = hold.write(TreeId(1), ID, Prepared::stored(packed.to_vec(), 128 << 10, 15)).unwrap();
    assert_eq!(pool.read(&again).unwrap(), contents[3][..]);
    drop(hold);
    pool.commit().unwrap();
    verify();
    // Every frame is found without a tree.
    let data = match &ptrs[4] {
        BlockPtr::Stored(ptr) => ptr.clone(),
        _ => unreachable!(),
    };
    let info = store.segments().unwrap().into_iter().find(|info| info.id == data.segment).unwrap();
    let frames: Vec<_> = scan(&store, info).map(Result::unwrap).collect();
    let frame = frames.iter().find(|frame| frame.offset == data.offset).unwrap();
    assert_eq!(frame.payload.as_deref(), Some(&contents[4][..]));
    assert_eq!((frame.header.object, frame.header.blkid, frame.header.pool), (7, 9, 42));
    assert!(frames.iter().all(|frame| frame.payload.is_some()));
    // A damaged block is reported, and the scan continues after it.
    store.corrupt(data.segment, u64::from(data.offset) + 1000, 4).unwrap();
    match pool.read(&ptrs[4]) {
        Err(PoolError::Corrupt { segment, offset, .. }) => {
            assert_eq!((segment, offset), (data.segment, data.offset));
        }
        other => panic!("{other:?}"),
    }
    let damaged: Vec<_> = scan(&store, info).map(Result::unwrap).filter(|f| f.payload.is_none()).collect();
    assert_eq!(damaged.iter().map(|f| f.offset).collect::<Vec<_>>(), [data.offset]);
    assert_eq!(scan(&store, info).count(), frames.len());
}

#[test]
fn illegal_blocks_keys_and_values_are_refused() {
    let store = MemoryStore::new();
    let pool = pool(&store);
    let hold = pool.begin().unwrap();
    let write = |payload: Vec<u8>, lsize, compression| {
        hold.write(TreeId(1), ID, Prepared::stored(payload, lsize, compression))
    };
    let size = |result| matches!(result, Err(PoolError::Size { .. }));
    assert!(size(write(vec![1; 200], 300, 2)), "uncompressed sizes differ");
    assert!(size(write(Vec::new(), 300, 15)));
    assert!(size(write(vec![1; 200], 0, 15)));
    assert!(size(write(vec![1; 200], (16 << 20) + 1, 15)));
    assert!(size(write(noise(70 << 10, 1), 70 << 10, 2)), "larger than a segment");
    let tree = pool.create_tree(&hold).unwrap();
    assert!(tree.insert(&hold, b"", b"v").is_err());
    assert!(tree.insert(&hold, &[1; 1025], b"v").is_err());
    assert!(tree.insert(&hold, b"k", &[0; (16 << 10) + 1]).is_err());
    drop(hold);
    // Many keys and values of the maximal length.
    let roomy = PoolOptions { node_bytes: 32 << 10, ..PoolOptions::default() };
    let store = MemoryStore::new();
    let pool = Pool::create(Box::new(store.clone()), &NewPool { name: "t", guid: 1 }, roomy.clone()).unwrap();
    let hold = pool.begin().unwrap();
    let tree = pool.create_tree(&hold).unwrap();
    for n in 0..100u8 {
        tree.insert(&hold, &[n; 1024], &noise(16 << 10, u64::from(n))).unwrap();
    }
    drop(hold);
    pool.commit().unwrap();
    let id = tree.id();
    drop((tree, pool));
    let pool = Pool::open(Box::new(store.snapshot()), roomy).unwrap();
    let tree = pool.tree(id).unwrap();
    for n in 0..100u8 {
        assert_eq!(tree.get(&[n; 1024]).unwrap().unwrap().value, noise(16 << 10, u64::from(n))[..]);
    }
}

#[test]
fn a_frozen_tree_takes_no_change_in_its_txg() {
    let store = MemoryStore::new();
    let pool = pool(&store);
    let hold = pool.begin().unwrap();
    let tree = pool.create_tree(&hold).unwrap();
    tree.insert(&hold, b"a", b"1").unwrap();
    tree.freeze(&hold).unwrap().unwrap();
    let frozen = |result| matches!(result, Err(PoolError::Frozen { .. }));
    assert!(frozen(tree.insert(&hold, b"b", b"2").map(drop)));
    assert!(frozen(tree.remove(&hold, b"a").map(drop)));
    drop(hold);
    pool.commit().unwrap();
    let hold = pool.begin().unwrap();
    tree.insert(&hold, b"b", b"2").unwrap();
}

#[test]
fn a_view_keeps_what_it_sees_through_any_number_of_txgs() {
    let store = MemoryStore::new();
    let mut options = small();
    options.node_cache_bytes = 0;
    options.data_cache_bytes = 0;
    let mut mini = Mini::create(Box::new(store.clone()), options).unwrap();
    (0..100).for_each(|n| mini.put(&key(n), &noise(3000, u64::from(n))).unwrap());
    mini.commit().unwrap();
    let view = mini.head.view();
    let content = mini.model.live.clone();
    let before = store.segments().unwrap();
    mini.remove_range(&[], &[0xff]).unwrap();
    mini.commit().unwrap();
    for n in 0..12 {
        (0..40).for_each(|k| mini.put(&key(k), &noise(3000, n * 100 + u64::from(k))).unwrap());
        mini.commit().unwrap();
        common::verify_view(&mini.pool, &view, &content).unwrap();
    }
    drop(view);
    mini.check().unwrap();
    mini.pool.drain_frees().unwrap();
    let after = store.segments().unwrap();
    let gone = before.iter().filter(|old| after.iter().all(|new| new.id != old.id)).count();
    assert!(gone > 2, "{} segments before, {gone} of them gone", before.len());
    mini.verify().unwrap();
    mini.check().unwrap();
}

#[test]
fn the_last_txgs_stay_readable() {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    for round in 0..30u64 {
        (0..30).for_each(|k| mini.put(&key(k), &noise(900, round * 50 + u64::from(k))).unwrap());
        mini.commit().unwrap();
    }
    let newest = mini.pool.committed_txg();
    let committed = mini.committed.clone();
    for back in 0..REWIND_TXGS as u64 {
        // A store on which the newest `back` uberblocks were never published.
        let image = store.snapshot();
        let cut = MemoryStore::new();
        for info in image.segments().unwrap() {
            let mut bytes = vec![0; info.len as usize];
            image.read(info.id, 0, &mut bytes).unwrap();
            cut.create_segment(info.id).unwrap();
            cut.append(info.id, 0, &bytes).unwrap();
            cut.seal_segment(info.id).unwrap();
        }
        for raw in image.uberblocks().unwrap().iter().filter(|raw| raw.txg <= newest - back) {
            cut.publish(raw.txg, &raw.bytes).unwrap();
        }
        let mini = Mini::open(Box::new(cut), small(), &committed).unwrap().unwrap();
        assert_eq!(mini.pool.open_report().txg, newest - back);
        mini.verify().unwrap();
        mini.check().unwrap();
    }
}

#[test]
fn reading_what_changed_costs_the_changes() {
    let store = MemoryStore::new();
    let reads = |keys: u32| {
        let options = PoolOptions { node_bytes: 4096, node_cache_bytes: 0, ..PoolOptions::default() };
        let pool =
            Pool::create(Box::new(MemoryStore::new()), &NewPool { name: "tank", guid: 1 }, options).unwrap();
        let hold = pool.begin().unwrap();
        let tree = pool.create_tree(&hold).unwrap();
        for n in 0..keys {
            tree.insert(&hold, &n.to_be_bytes(), &[7; 60]).unwrap();
        }
        let root = tree.freeze(&hold).unwrap();
        drop(hold);
        let since = pool.commit().unwrap();
        let hold = pool.begin().unwrap();
        for n in 0..100 {
            tree.insert(&hold, &(n * (keys / 100)).to_be_bytes(), &[8; 60]).unwrap();
        }
        drop(hold);
        pool.commit().unwrap();
        let (old, new) = (pool.view(root), tree.view());
        let start = pool.counters().node_reads;
        assert_eq!(View::diff(&old, &new, &[]).count(), 100);
        let diff = pool.counters().node_reads - start;
        new.changes_since(since, &[]).for_each(|item| drop(item.unwrap()));
        (diff, pool.counters().node_reads - start - diff)
    };
    let (small_diff, small_changes) = reads(20_000);
    let (large_diff, large_changes) = reads(320_000);
    // At most one more inner node per change if the tree has one more level.
    assert!(large_diff <= small_diff + 2 * 110, "{small_diff} and {large_diff} node reads");
    assert!(large_changes <= small_changes + 110, "{small_changes} and {large_changes} node reads");
    drop(store);
}

/// Write-back and removals release blocks of the same birth at the same time.
#[test]
fn many_threads_add_to_one_sum_of_a_deadlist() {
    const THREADS: u32 = 4;
    const EACH: u32 = 2000;
    let pool = pool(&MemoryStore::new());
    let deadlist = Deadlist::create(&pool.begin().unwrap()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, deadlist) = (&pool, &deadlist);
            scope.spawn(move || {
                for n in 0..EACH {
                    let hold = pool.begin().unwrap();
                    let (segment, offset) = (SegmentId(u64::from(thread) + 1), n * 8);
                    let dead = Dead { birth: 1, segment, offset, asize: 104, psize: 8, lsize: 512 };
                    deadlist.add(&hold, &dead).unwrap();
                    deadlist.add_embedded(&hold, 1, 7).unwrap();
                }
            });
        }
    });
    let blocks = u64::from(THREADS * EACH);
    let expected = DeadSpace { blocks, physical: 104 * blocks, logical: (512 + 7) * blocks };
    assert_eq!(deadlist.sum(0).unwrap(), expected);
    assert_eq!(deadlist.entries().count() as u64, blocks);
}

#[test]
fn many_threads_share_txgs_and_commits() {
    let store = MemoryStore::new();
    let pool = pool(&store);
    let trees: Vec<_> = {
        let hold = pool.begin().unwrap();
        (0..4).map(|_| pool.create_tree(&hold).unwrap()).collect()
    };
    let commits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (t, tree) in trees.iter().enumerate() {
            let (pool, commits) = (&pool, &commits);
            scope.spawn(move || {
                for n in 0..300u32 {
                    let hold = pool.begin().unwrap();
                    tree.insert(&hold, &n.to_be_bytes(), &[t as u8; 30]).unwrap();
                    // Both trees of a pair change in the same txg.
                    trees_pair(tree, &hold, n);
                    drop(hold);
                    if n % 10 == 0 {
                        let txg = pool.commit().unwrap();
                        commits.fetch_max(txg, Ordering::Relaxed);
                        assert!(pool.committed_txg() >= txg);
                    }
                    let view = tree.view();
                    let keys = view.range(&[0], Some(&[1])).count();
                    assert!(keys as u32 >= n / 2, "{keys} keys after {n}");
                }
            });
        }
    });
    let ids: Vec<_> = trees.iter().map(|tree| tree.id()).collect();
    let expected: Vec<Vec<_>> =
        trees.iter().map(|t| t.view().range(&[], None).map(|i| i.unwrap().0).collect()).collect();
    drop(trees);
    pool.clone().close().unwrap();
    drop(pool);
    let pool = Pool::open(Box::new(store.snapshot()), small()).unwrap();
    for (id, expected) in ids.iter().zip(expected) {
        let tree = pool.tree(*id).unwrap();
        let keys: Vec<_> = tree.view().range(&[], None).map(|item| item.unwrap().0).collect();
        assert_eq!(keys, expected);
        assert_eq!(keys.len(), 600);
    }
}

fn trees_pair(tree: &snowmelt_pool::Tree, hold: &snowmelt_pool::Hold<'_>, n: u32) {
    let key = [&[1u8][..], &n.to_be_bytes()].concat();
    tree.insert(hold, &key, b"pair").unwrap();
}

#[test]
fn a_full_pool_refuses_writes_and_takes_frees() {
    let store = MemoryStore::with_capacity(8 << 20);
    let mut mini =
        Mini::create(Box::new(store.clone()), PoolOptions { segment_bytes: 256 << 10, ..small() }).unwrap();
    let mut written = 0;
    let refused = loop {
        match mini.put(&key(written), &noise(8000, u64::from(written))) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 2000, "never full");
        if written % 20 == 0 {
            mini.commit().unwrap();
        }
    };
    assert!(matches!(refused, PoolError::NoSpace { .. }), "{refused:?}");
    let space = mini.pool.space().unwrap();
    assert!(space.allocated > 4 << 20, "{space:?}");
    // The txg is valid and can be committed, and existing data is still there.
    mini.commit().unwrap();
    mini.verify().unwrap();
    mini.check().unwrap();
    // Deleting uses the reserve, and the freed space can be used again.
    let hold = mini.pool.begin_free().unwrap();
    for n in 0..written / 2 {
        let old = mini.head.remove(&hold, &key(n)).unwrap().unwrap();
        mini.head.release(&hold, &BlockPtr::decode(&mut &old.value[..]).unwrap()).unwrap();
        mini.model.live.remove(&key(n));
    }
    drop(hold);
    mini.commit().unwrap();
    mini.pool.drain_frees().unwrap();
    for n in 0..written / 4 {
        mini.put(&key(n), &noise(8000, u64::from(n) + 5)).unwrap();
    }
    mini.commit().unwrap();
    mini.verify().unwrap();
    mini.check().unwrap();
}

#[test]
fn check_finds_what_is_wrong() {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    (0..60).for_each(|n| mini.put(&key(n), &noise(500, u64::from(n))).unwrap());
    mini.snapshot().unwrap();
    (0..30).for_each(|n| mini.put(&key(n), &noise(500, u64::from(n) + 100)).unwrap());
    mini.commit().unwrap();
    mini.check().unwrap();
    let errors = |mini: &Mini, data: bool| {
        let mut found = Vec::new();
        mini.pool.check(&MiniRoots, CheckOptions { data }, &mut |f| found.push(f.what)).unwrap();
        found
    };
    // A leak: a block that nothing refers to.
    let hold = mini.pool.begin().unwrap();
    let leaked = hold.write(TreeId(1), ID, Prepared::stored(noise(400, 1), 400, 2)).unwrap();
    drop(hold);
    let found = errors(&mini, false);
    assert!(found.len() == 1 && found[0].contains("are reachable"), "{found:?}");
    let BlockPtr::Stored(leaked) = leaked else { unreachable!() };
    let hold = mini.pool.begin().unwrap();
    mini.pool.free(&hold, leaked.segment, leaked.offset, leaked.asize()).unwrap();
    drop(hold);
    mini.check().unwrap();
    // A double free.
    let hold = mini.pool.begin().unwrap();
    mini.pool.free(&hold, leaked.segment, leaked.offset, leaked.asize()).unwrap();
    drop(hold);
    assert!(errors(&mini, false)[0].contains("are reachable"));
    // A damaged data block is found only if data is read.
    let entry = mini.head.get(&key(50)).unwrap().unwrap();
    let BlockPtr::Stored(ptr) = BlockPtr::decode(&mut &entry.value[..]).unwrap() else { unreachable!() };
    let before = errors(&mini, true).len();
    store.corrupt(ptr.segment, u64::from(ptr.offset) + 200, 1).unwrap();
    let found = errors(&mini, true);
    assert_eq!(found.len(), before + 1, "{found:?}");
    // A damaged node is found.
    let root = mini.head.view().nodes_since(0).last().unwrap().unwrap();
    store.corrupt(root.segment, u64::from(root.offset) + 100, 1).unwrap();
    assert!(errors(&mini, false).iter().any(|what| what.contains("BLAKE3")));
}

#[test]
fn a_read_only_pool_reads_and_writes_nothing() {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    (0..60).for_each(|n| mini.put(&key(n), &noise(500, u64::from(n))).unwrap());
    mini.commit().unwrap();
    let committed = mini.committed.clone();
    drop(mini);
    let image = store.snapshot();
    let mini = Mini::open(Box::new(image.clone()), PoolOptions { read_only: true, ..small() }, &committed)
        .unwrap()
        .unwrap();
    mini.verify().unwrap();
    mini.check().unwrap();
    assert!(matches!(mini.pool.begin(), Err(PoolError::ReadOnly { .. })));
    mini.pool.commit().unwrap();
    mini.pool.clone().close().unwrap();
    assert_eq!(image.uberblocks().unwrap(), store.uberblocks().unwrap());
    assert_eq!(image.segments().unwrap(), store.segments().unwrap());
}

#[test]
fn sessions_go_on_in_the_segments_left_open() {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), PoolOptions::default()).unwrap();
    for n in 0..20 {
        mini.put(&key(n), &noise(500, u64::from(n))).unwrap();
        mini.commit().unwrap();
        let committed = std::mem::take(&mut mini.committed);
        mini.pool.clone().close().unwrap();
        drop(mini);
        mini = Mini::open(Box::new(store.clone()), PoolOptions::default(), &committed).unwrap().unwrap();
        mini.verify().unwrap();
    }
    mini.check().unwrap();
    assert_eq!(store.segments().unwrap().len(), 2);
}

#[test]
fn a_failed_sync_task_commits_nothing_of_its_own() {
    let store = MemoryStore::new();
    let pool = pool(&store);
    let before = pool.committed_txg();
    let result = pool.sync_task(|_| Err::<(), _>(PoolError::Misuse("no")));
    assert!(matches!(result, Err(PoolError::Misuse("no"))));
    assert_eq!(pool.committed_txg(), before);
    let txg = pool.sync_task(|hold| Ok::<_, PoolError>(hold.txg())).unwrap();
    assert_eq!(pool.committed_txg(), txg);
}

/// A small pool, and its content.
fn small_pool(store: Box<dyn Store>) -> Mini {
    let mut mini = Mini::create(store, small()).unwrap();
    for n in 0..12u16 {
        mini.put(&key(n), &vec![n as u8; 300 + 50 * usize::from(n)]).unwrap();
    }
    mini.snapshot().unwrap();
    mini.remove(&key(3)).unwrap();
    mini.put(&key(40), b"after").unwrap();
    mini.commit().unwrap();
    mini
}

fn is_golden(store: MemoryStore) {
    let made = small_pool(Box::new(MemoryStore::new()));
    let mini = Mini::open(Box::new(store), small(), &made.committed).unwrap().unwrap();
    assert_eq!(mini.model, made.model);
    mini.verify().unwrap();
    mini.check().unwrap();
}

#[test]
fn the_golden_pool_opens() {
    is_golden(golden::of("plain-1.pool"));
}

/// The content of a golden pool. Another version has another one, and that of version 1 never changes.
#[test]
fn a_pool_made_as_the_golden_one_was_is_one() {
    let store = MemoryStore::new();
    drop(small_pool(Box::new(store.clone())));
    is_golden(golden::unpacked(&golden::packed(&store)));
}

/// Anybody who can write to the store can add an entry to the ring. Txgs after an impossible one would not be valid,
/// and what is written in them would be lost without an error.
#[test]
fn an_entry_of_the_ring_with_an_impossible_txg_is_ignored() {
    for txg in [u64::MAX, 1 << 63, (1 << 63) - 1, (1 << 63) - 100] {
        let store = MemoryStore::new();
        let first = pool(&store);
        let before = first.committed_txg();
        drop(first);
        store.publish(txg, &[7; 40]).unwrap();
        let second = Pool::open(Box::new(store.clone()), small()).unwrap();
        let hold = second.begin().unwrap();
        let tree = second.create_tree(&hold).unwrap();
        tree.insert(&hold, b"key", b"value").unwrap();
        drop(hold);
        second.commit().unwrap();
        assert!(second.committed_txg() > before && second.committed_txg() < before + 100);
        let id = tree.id();
        drop((tree, second));
        let third = Pool::open(Box::new(store.clone()), small()).unwrap();
        assert_eq!(third.tree(id).unwrap().get(b"key").unwrap().unwrap().value, "value");
    }
}
