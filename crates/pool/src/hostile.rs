//! Tests with forged pools: all hashes and checksums are correct, but the records are wrong. All operations on them
//! must end soon and use little memory.

use bytes::Bytes;
use std::sync::Arc;

use snowmelt_store::{MemoryStore, SegmentId, Store};
use snowmelt_stream::compress::Compression;

use crate::BlockId;
use crate::Change;
use crate::block::Prepared;
use crate::check::{CheckOptions, CheckReport, Finding, Roots};
use crate::deadlist::{Dead, Deadlist};
use crate::error::{PoolError, Result};
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::segment::{FRAME_HEADER, FrameHeader, Kind};
use crate::format::tree_record::{TreeRecord, TreeStats};
use crate::ids::TreeId;
use crate::io::Outgoing;
use crate::pool::{NewPool, Pool, PoolOptions};
use crate::scan::scan;
use crate::space::SegmentRecord;
use crate::tree::{Child, Inner, Key, Leaf, LeafEntry, Link, Node, Tree, View, codec};
use crate::txg::Hold;

/// More than the number of anything in a small pool.
const MANY: usize = 10_000;

struct NoRoots;

impl Roots for NoRoots {
    fn frozen(&self, _: &View, _: &mut dyn FnMut(&str, Option<StoredPtr>) -> Result<()>) -> Result<()> {
        Ok(())
    }
    fn is_deadlist(&self, _: &View, _: TreeId) -> Result<bool> {
        Ok(false)
    }
    fn pointers(
        &self,
        _: Option<TreeId>,
        _: &[u8],
        value: &[u8],
        each: &mut dyn FnMut(&BlockPtr),
    ) -> Result<()> {
        if value.len() > 60 {
            each(&BlockPtr::decode(&mut &*value)?);
        }
        Ok(())
    }
}

fn options() -> PoolOptions {
    PoolOptions { segment_bytes: 1 << 20, ..PoolOptions::default() }
}

fn pool() -> (MemoryStore, Arc<Pool>) {
    let store = MemoryStore::new();
    let pool = Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 1 }, options()).unwrap();
    (store, pool)
}

fn check(pool: &Pool) -> (CheckReport, Vec<Finding>) {
    let mut found = Vec::new();
    let report =
        pool.check(&NoRoots, CheckOptions { data: true }, &mut |finding| found.push(finding)).unwrap();
    (report, found)
}

/// Writes a node without checks.
fn write(hold: &Hold<'_>, owner: TreeId, node: &Node) -> StoredPtr {
    let mut block = Prepared::compress(codec::encode(node).unwrap(), Compression::Lz4);
    block.hash = *blake3::hash(&block.payload).as_bytes();
    let out = Outgoing { kind: Kind::Node, owner, object: 0, blkid: 0, block: &block };
    hold.pool().io().write(&out, hold.txg()).unwrap()
}

fn leaf(birth: u64, keys: &[&[u8]]) -> Node {
    let entry = |key: &&[u8]| LeafEntry { key: Key::from(*key), birth, value: Bytes::from_static(b"v") };
    let mut leaf = Leaf { entries: keys.iter().map(entry).collect(), bytes: 0 };
    leaf.recount();
    Node::Leaf(leaf)
}

fn inner(level: u8, children: Vec<(Vec<u8>, StoredPtr)>) -> Node {
    let child = |(key, ptr): (Vec<u8>, StoredPtr)| Child { key: Key::from(&key[..]), link: Link::Disk(ptr) };
    let mut inner = Inner { level, entries: children.into_iter().map(child).collect(), bytes: 0 };
    inner.recount();
    Node::Inner(inner)
}

/// A tree of 16 nodes. Each is the child of the one above it 100 times, so the tree has 10^30 leaves.
fn endless(pool: &Pool) -> Arc<Tree> {
    let hold = pool.begin().unwrap();
    let tree = pool.create_tree(&hold).unwrap();
    let mut ptr = write(&hold, tree.id(), &leaf(hold.txg(), &[b"a", b"b"]));
    for level in 1..=15 {
        let key = |n: u8| if n == 0 { Vec::new() } else { vec![n] };
        ptr = write(&hold, tree.id(), &inner(level, (0..100).map(|n| (key(n), ptr.clone())).collect()));
    }
    tree.reset(&hold, Some(ptr), TreeStats::default()).unwrap();
    drop(hold);
    pool.commit().unwrap();
    tree
}

#[test]
fn nodes_that_many_parents_share_are_not_gone_through_again_and_again() {
    let (_, pool) = pool();
    let tree = endless(&pool);
    let corrupt = |error: &PoolError| error.is_corruption();
    let before = pool.counters().node_reads;
    let ends = |mut items: Box<dyn Iterator<Item = Result<()>>>| {
        let last = items.by_ref().take(MANY).find(Result::is_err);
        assert!(last.is_some_and(|item| item.is_err_and(|error| error.is_corruption())));
        assert!(items.next().is_none(), "after an error it ends");
    };
    ends(Box::new(tree.view().range(&[], None).map(|item| item.map(drop))));
    ends(Box::new(tree.view().nodes_since(0).map(|item| item.map(drop))));
    ends(Box::new(tree.view().changes_since(0, &[]).map(|item| item.map(|_: Change| ()))));
    let empty = pool.view(None);
    ends(Box::new(View::diff(&empty, &tree.view(), &[]).map(|item| item.map(drop))));
    for key in [&[1][..], &[99], &[99, 99]] {
        assert!(tree.get(key).is_err_and(|error| corrupt(&error)));
        assert!(tree.view().last_before(key).is_err_and(|error| corrupt(&error)));
    }
    let hold = pool.begin().unwrap();
    assert!(tree.insert(&hold, &[50], b"v").is_err_and(|error| corrupt(&error)));
    assert!(tree.remove(&hold, &[50]).is_err_and(|error| corrupt(&error)));
    drop(hold);
    let (report, found) = check(&pool);
    assert!(report.errors >= 100 && report.errors < MANY as u64, "{report:?}");
    assert!(found.iter().any(|it| it.what.contains("belong")), "{:?}", found.first());
    assert!(pool.counters().node_reads - before < MANY as u64, "{:?}", pool.counters());
    let hold = pool.begin_free().unwrap();
    assert!(pool.destroy_tree(&hold, tree.id(), 0).is_err_and(|error| corrupt(&error)));
}

/// How the trees of a test share nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    /// All have the same root.
    Roots,
    /// Each has a root of its own.
    Nodes,
    /// All have the same root, and are deadlists of other trees.
    Deadlists,
}

/// Many short records can lead to the same nodes. `check` used to read them once for each record.
#[test]
fn nodes_that_many_trees_share_are_not_gone_through_for_each() {
    const TREES: u64 = 500;
    for sharing in [Sharing::Roots, Sharing::Nodes, Sharing::Deadlists] {
        let (_, pool) = pool();
        let hold = pool.begin().unwrap();
        let tree = pool.create_tree(&hold).unwrap();
        (0..30_000u32).for_each(|n| drop(tree.insert(&hold, &n.to_be_bytes(), &[7; 40]).unwrap()));
        drop(hold);
        pool.commit().unwrap();
        let root = tree.view().root_ptr().unwrap();
        let nodes = tree.view().nodes_since(0).count() as u64;
        let level = pool.io().read_node(&root, false).unwrap().level();
        let hold = pool.begin().unwrap();
        for n in 0..TREES {
            let other = pool.create_tree(&hold).unwrap();
            let own = match sharing {
                Sharing::Nodes => {
                    let high = [&[0xf0], &n.to_be_bytes()[..]].concat();
                    let mut right = write(&hold, tree.id(), &leaf(hold.txg(), &[&high]));
                    for level in 1..=level {
                        right = write(&hold, tree.id(), &inner(level, vec![(high.clone(), right)]));
                    }
                    let children = vec![(Vec::new(), root.clone()), (high, right)];
                    write(&hold, tree.id(), &inner(level + 1, children))
                }
                _ => root.clone(),
            };
            other.reset(&hold, Some(own), tree.stats()).unwrap();
            if sharing == Sharing::Deadlists {
                let user = pool.create_tree(&hold).unwrap();
                user.set_sharing(&hold, 1, Some(other.id())).unwrap();
            }
        }
        drop(hold);
        pool.commit().unwrap();
        let reads = || pool.counters().node_reads + pool.counters().node_misses;
        let before = reads();
        let (report, _) = check(&pool);
        let read = reads() - before;
        assert!(report.trees >= TREES, "{report:?}");
        assert!(read < 10 * (nodes + TREES), "{sharing:?}: {read} reads of {nodes} nodes");
        assert_eq!(report.errors > 0, sharing != Sharing::Roots, "{report:?}");
    }
}

/// Keys outside the bounds that the parent gives: a lookup by key and a listing would differ.
#[test]
fn keys_out_of_their_place_are_damage() {
    for (low, high) in [(&b"a"[..], &b"k"[..]), (b"l", b"z")] {
        let (_, pool) = pool();
        let hold = pool.begin().unwrap();
        let tree = pool.create_tree(&hold).unwrap();
        let left = write(&hold, tree.id(), &leaf(hold.txg(), &[b"b", b"j"]));
        let right = write(&hold, tree.id(), &leaf(hold.txg(), &[low, high]));
        let root = inner(1, vec![(Vec::new(), left), (b"k".to_vec(), right)]);
        let root = write(&hold, tree.id(), &root);
        tree.reset(&hold, Some(root), TreeStats::default()).unwrap();
        drop(hold);
        assert_eq!(tree.get(b"x").is_err(), low < b"k".as_slice(), "{low:?}");
        assert_eq!(tree.view().range(&[], None).any(|item| item.is_err()), low < b"k".as_slice());
    }
}

/// The record of a tree names the tree as its own deadlist, or two trees name each other. Released blocks would be
/// passed on until the stack overflows.
#[test]
fn deadlists_that_lead_to_one_another_are_refused() {
    for other in [0, 1] {
        let (store, pool) = pool();
        let hold = pool.begin().unwrap();
        let trees = [pool.create_tree(&hold).unwrap(), pool.create_tree(&hold).unwrap()];
        for tree in &trees {
            tree.insert(&hold, b"key", b"value").unwrap();
        }
        drop(hold);
        pool.commit().unwrap();
        let hold = pool.begin().unwrap();
        for (tree, deadlist) in [(&trees[0], &trees[other]), (&trees[1], &trees[0])] {
            let key = TreeRecord::key(tree.id());
            let mut record = TreeRecord::decode(&pool.meta().get(&key).unwrap().unwrap().value).unwrap();
            record.shared_until = hold.txg();
            record.deadlist = Some(deadlist.id());
            pool.meta().insert(&hold, &key, &record.encode()).unwrap();
        }
        drop(hold);
        pool.commit().unwrap();
        drop(pool);
        let pool = Pool::open(Box::new(store.snapshot()), options()).unwrap();
        assert!(pool.tree(trees[0].id()).unwrap().sharing().1.is_some());
        let hold = pool.begin().unwrap();
        let done = pool.tree(trees[0].id()).unwrap().insert(&hold, b"key", b"other");
        assert!(done.is_err_and(|error| error.is_corruption()));
        drop(hold);
        for id in [TreeId::META, trees[0].id()] {
            assert!(Deadlist::open(&pool, id).is_err());
        }
    }
}

/// An entry that is longer than any block. `check` used to allocate that much memory.
#[test]
fn dead_blocks_of_impossible_sizes_are_damage() {
    let (_, pool) = pool();
    let hold = pool.begin().unwrap();
    let deadlist = pool.create_tree(&hold).unwrap();
    let user = pool.create_tree(&hold).unwrap();
    user.set_sharing(&hold, 1, Some(deadlist.id())).unwrap();
    let dead = Dead { birth: 1, segment: SegmentId(1), offset: 0, asize: 104, psize: 8, lsize: 512 };
    let wrong = [
        Dead { asize: u64::MAX, ..dead },
        Dead { asize: 8 * u64::from(u32::MAX), offset: 8, ..dead },
        Dead { psize: u32::MAX, asize: crate::format::segment::frame_len(u32::MAX), offset: 16, ..dead },
        Dead { lsize: u32::MAX, offset: 24, ..dead },
    ];
    for dead in &wrong {
        deadlist.insert(&hold, &dead.encode_key(), &dead.encode_value()).unwrap();
    }
    drop(hold);
    let (_, found) = check(&pool);
    let of_sizes = found.iter().filter(|it| it.what.contains("deadlist entry")).count();
    assert_eq!(of_sizes, wrong.len(), "{found:?}");
}

/// More pointers beyond the segments than there is space for. They must use no memory, and nothing is read for them.
#[test]
fn pointers_beyond_all_segments_are_named_and_left_alone() {
    let (_, pool) = pool();
    let hold = pool.begin().unwrap();
    let tree = pool.create_tree(&hold).unwrap();
    let block = Prepared::stored(vec![7; 4096], 4096, 2);
    let BlockPtr::Stored(ptr) = hold.write(tree.id(), BlockId { object: 1, blkid: 0 }, block).unwrap() else {
        panic!("a block of 4 KiB is embedded")
    };
    for n in 0..100u32 {
        let wrong = match n % 4 {
            0 => StoredPtr { segment: SegmentId(u64::MAX - u64::from(n)), ..ptr.clone() },
            1 => StoredPtr { offset: u32::MAX - 7 - 8 * n, ..ptr.clone() },
            2 => StoredPtr { psize: 16 << 20, lsize: 16 << 20, ..ptr.clone() },
            _ => StoredPtr { offset: ptr.offset + 8 * n, ..ptr.clone() },
        };
        let mut value = Vec::new();
        BlockPtr::Stored(wrong).encode(&mut value);
        tree.insert(&hold, &n.to_be_bytes(), &value).unwrap();
    }
    drop(hold);
    pool.commit().unwrap();
    let before = pool.counters().bytes_read;
    let (report, found) = check(&pool);
    assert!(report.errors >= 100, "{report:?}");
    for what in ["not of this pool's state", "beyond the segment's end"] {
        assert!(found.iter().any(|it| it.what.contains(what)), "{what}: {found:?}");
    }
    assert!(pool.counters().bytes_read - before < 1 << 20);
}

/// Short frames whose headers name the longest payload. A scan used to read and hash that payload for each of them.
#[test]
fn frames_that_say_they_are_long_are_not_read_one_by_one() {
    let store = MemoryStore::new();
    let id = SegmentId(7);
    store.create_segment(id).unwrap();
    for n in 0..20_000u32 {
        let header = FrameHeader {
            kind: Kind::Data,
            compression: 2,
            lsize: 16 << 20,
            psize: 16 << 20,
            birth: 1,
            owner: TreeId(1),
            object: 0,
            blkid: 0,
            pool: 1,
            hash: [7; 32],
        };
        let offset = n * FRAME_HEADER as u32;
        store.append(id, offset.into(), &header.encode(id, offset.into())).unwrap();
    }
    let info = store.segments().unwrap().remove(0);
    let found: Vec<_> = scan(&store, info).map(Result::unwrap).collect();
    assert!((2..10).contains(&found.len()), "{}", found.len());
}

/// Records of more segments than the store can have had.
#[test]
fn records_of_segments_that_never_were_are_refused() {
    let (store, pool) = pool();
    let record = SegmentRecord { kind: Kind::Data, len: 4096, live: 0 };
    let hold = pool.begin().unwrap();
    for id in 0..70_000u64 {
        let key = crate::commit::segment_key(SegmentId(1 << 40 | id));
        pool.meta().insert(&hold, &key, &record.encode()).unwrap();
    }
    drop(hold);
    pool.commit().unwrap();
    drop(pool);
    let error = Pool::open(Box::new(store.snapshot()), options()).unwrap_err();
    assert!(error.to_string().contains("cannot be read") || error.is_corruption(), "{error}");
}

#[test]
fn numbers_at_the_end_of_their_range_are_refused() {
    let full = SegmentRecord { kind: Kind::Data, len: u64::from(u32::MAX), live: u64::from(u32::MAX) };
    assert_eq!(SegmentRecord::decode(&full.encode()).unwrap(), full);
    for (len, live) in [(u64::MAX, 0), (1 << 32, 0), (4096, u64::MAX), (4096, 1 << 32)] {
        assert!(SegmentRecord::decode(&SegmentRecord { kind: Kind::Data, len, live }.encode()).is_err());
    }
    let (_, pool) = pool();
    let hold = pool.begin().unwrap();
    let tree = pool.create_tree(&hold).unwrap();
    let ptr = write(&hold, tree.id(), &leaf(hold.txg(), &[b"a"]));
    for wrong in [
        StoredPtr { birth: u64::MAX, ..ptr.clone() },
        StoredPtr { lsize: u32::MAX, ..ptr.clone() },
        StoredPtr { psize: u32::MAX, ..ptr.clone() },
    ] {
        let mut bytes = Vec::new();
        BlockPtr::Stored(wrong).encode(&mut bytes);
        assert!(BlockPtr::decode(&mut &bytes[..]).is_err());
    }
}
