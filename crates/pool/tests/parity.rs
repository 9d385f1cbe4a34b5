//! A pool on one store with parity: bad bytes are repaired, and damage that cannot be repaired is reported.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Mini, MiniRoots, golden, key, small};
use snowmelt_pool::{
    CheckOptions, CleanOptions, FRAME_HEADER, Pool, PoolError, PoolOptions, ScrubOptions, ScrubState,
    ScrubStatus, Severity, scan,
};
use snowmelt_store::{
    Access, Capacity, FaultStore, MemoryStore, MirrorMember, MirrorStore, RawUberblock, SegmentId,
    SegmentInfo, Store,
};

/// No caches, so that every read comes from the store. A segment has room for some wide frames.
fn options() -> PoolOptions {
    PoolOptions {
        segment_bytes: 8 << 20,
        data_cache_bytes: 0,
        node_cache_bytes: 0,
        node_bytes: 4096,
        ..small()
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

/// A number below `n`.
fn below(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

/// 16 MiB in some large and small txgs, with snapshots.
fn filled(store: Box<dyn Store>, percent: u8) -> Mini {
    let mut mini = Mini::create(store, options()).unwrap();
    mini.pool.set_parity(percent).unwrap();
    for round in 0..4u64 {
        for n in 0..60u16 {
            mini.put(&key(n), &noise(u64::from(n) + round * 100, 66_000 + usize::from(n) * 70)).unwrap();
            if n % 20 == 3 {
                mini.commit().unwrap();
            }
        }
        mini.snapshot().unwrap();
    }
    mini.put(&key(77), &noise(77, 500)).unwrap();
    mini.commit().unwrap();
    mini
}

fn scrub(pool: &Pool) -> ScrubStatus {
    let options = ScrubOptions { rate: None, batch_bytes: 4 << 20, cancelled: &|| false, progress: &|_| {} };
    pool.scrub(&MiniRoots, &options, &mut |_| {}).unwrap()
}

fn findings(pool: &Pool) -> Vec<(Severity, String)> {
    let mut found = Vec::new();
    pool.check(&MiniRoots, CheckOptions { data: true }, &mut |finding| {
        found.push((finding.severity, format!("{}: {}", finding.place, finding.what)));
    })
    .unwrap();
    found
}

fn flip(store: &MemoryStore, segments: &[SegmentInfo], flips: usize, seed: u64) {
    let total: u64 = segments.iter().map(|info| info.len).sum();
    let mut state = seed;
    for _ in 0..flips {
        let mut at = below(&mut state, total);
        for info in segments {
            if at < info.len {
                store.corrupt(info.id, at, 1 << below(&mut state, 8)).unwrap();
                break;
            }
            at -= info.len;
        }
    }
}

/// The bytes of each segment.
fn contents(store: &MemoryStore) -> BTreeMap<SegmentId, Vec<u8>> {
    let read = |info: SegmentInfo| {
        let mut bytes = vec![0; info.len as usize];
        store.read(info.id, 0, &mut bytes).unwrap();
        (info.id, bytes)
    };
    store.segments().unwrap().into_iter().map(read).collect()
}

/// The places of parity frames, found by their magic.
fn parity_frames(store: &MemoryStore) -> Vec<(SegmentId, u64)> {
    let mut out = Vec::new();
    for (id, bytes) in contents(store) {
        let at = bytes.chunks_exact(8).enumerate().filter(|(_, word)| word.starts_with(b"SMpa"));
        out.extend(at.map(|(number, _)| (id, number as u64 * 8)));
    }
    out
}

#[test]
fn a_hundred_flips_anywhere_are_mended_while_the_pool_is_in_use() {
    for seed in 0..3 {
        let store = MemoryStore::new();
        let mut mini = filled(Box::new(store.clone()), 5);
        assert_eq!(findings(&mini.pool), []);
        let good = contents(&store);
        flip(&store, &store.segments().unwrap(), 100, seed);
        // No reader gets a wrong byte.
        mini.verify().unwrap();
        mini.put(&key(90), &noise(90, 70_000)).unwrap();
        mini.commit().unwrap();
        mini.verify().unwrap();
        let counters = mini.pool.damage_counters().unwrap();
        // When one damaged block is found, others in the same stripe are repaired too.
        assert!(counters.checksum > 5 && counters.read == 0, "{counters:?}");
        // Afterwards nothing is wrong, including parity itself.
        let status = scrub(&mini.pool);
        assert_eq!((status.state, status.errors), (ScrubState::Finished, 0), "seed {seed}");
        assert_eq!(findings(&mini.pool), [], "seed {seed}");
        let now = contents(&store);
        // All bytes, except those from before parity was on, and padding after the last frame.
        for (id, good) in &good {
            let wrong = now[id].iter().zip(good).enumerate().skip(16 << 10);
            let wrong: Vec<_> = wrong.filter(|(_, (now, good))| now != good && **good != 0).collect();
            assert_eq!(wrong, [], "seed {seed}, segment {id}");
        }
        assert_eq!(mini.pool.damage().unwrap(), []);
        mini.verify().unwrap();
        let again = scrub(&mini.pool);
        assert_eq!((again.errors, again.repaired), (0, 0));
        // Without caches, in a pool that is opened again.
        drop(mini);
        let pool = Pool::open(Box::new(store.snapshot()), options()).unwrap();
        assert_eq!(pool.open_report().passed_over, []);
        assert_eq!((findings(&pool), pool.parity()), (vec![], 5));
    }
}

#[test]
fn without_parity_each_is_named() {
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), 0);
    assert_eq!(parity_frames(&store), []);
    // The tail of each segment holds the newest nodes, which are needed to find anything.
    let blocks = store
        .segments()
        .unwrap()
        .into_iter()
        .flat_map(|info| scan(&store, info).map(Result::unwrap).collect::<Vec<_>>());
    let blocks: Vec<_> = blocks.filter(|frame| frame.header.psize > 60_000).step_by(7).take(20).collect();
    for frame in &blocks {
        store.corrupt(frame.segment, u64::from(frame.offset) + 5000, 4).unwrap();
    }
    let status = scrub(&mini.pool);
    assert_eq!((status.errors, status.repaired), (20, 0));
    let named: Vec<_> =
        mini.pool.damage().unwrap().iter().map(|damage| (damage.segment, damage.offset)).collect();
    assert_eq!(named, blocks.iter().map(|frame| (frame.segment, frame.offset)).collect::<Vec<_>>());
}

#[test]
fn a_lost_run_of_sectors_is_mended() {
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), 5);
    let good = contents(&store);
    let data =
        good.iter().find(|(_, bytes)| bytes.len() > 6 << 20).map(|(id, bytes)| (*id, bytes.len())).unwrap();
    for at in [0, 100_000, 3 << 20, (4 << 20) + 4096] {
        store.rewrite(data.0, at, &[0; 64 << 10]).unwrap();
        mini.verify().unwrap();
        let status = scrub(&mini.pool);
        assert_eq!(status.errors, 0, "at {at}");
        assert_eq!(findings(&mini.pool), [], "at {at}");
        assert!(contents(&store)[&data.0] == good[&data.0], "at {at}");
    }
}

#[test]
fn what_is_more_than_can_be_mended_is_named_and_nothing_is_made_worse() {
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), 5);
    let good = contents(&store);
    let data = good.iter().find(|(_, bytes)| bytes.len() > 6 << 20).map(|(id, _)| *id).unwrap();
    // Every second piece of half a wide stripe is lost, and some single pieces elsewhere.
    store.rewrite(data, 4096, &vec![0; 1 << 20]).unwrap();
    store.corrupt(data, (5 << 20) + 12345, 8).unwrap();
    let status = scrub(&mini.pool);
    assert!(status.errors > 10, "{status:?}");
    let damage = mini.pool.damage().unwrap();
    assert_eq!(damage.len() as u64, status.errors);
    assert!(damage.iter().all(|damage| damage.segment == data && damage.offset < (1 << 20) + 8192));
    assert!(findings(&mini.pool).iter().any(|(_, what)| what.contains("more than can be mended")));
    // Bytes that are not zero are unchanged.
    let now = contents(&store);
    let same = |(at, (now, good)): (usize, (&u8, &u8))| {
        now == good || (*now == 0 && (4096..(1 << 20) + 4096).contains(&at))
    };
    assert!(now[&data].iter().zip(&good[&data]).enumerate().all(same));
}

#[test]
fn damage_of_parity_is_found_and_mended() {
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), 5);
    let good = contents(&store);
    let frames = parity_frames(&store);
    assert!(frames.len() > 10);
    // A head, and a parity piece after it.
    for (segment, at) in [frames[0], frames[(frames.len() / 2) & !1]] {
        store.corrupt(segment, at + 9, 1).unwrap();
        store.corrupt(segment, at + 60, 1).unwrap();
    }
    let found = findings(&mini.pool);
    assert!(!found.is_empty());
    assert!(
        found.iter().all(|(_, what)| what.contains("parity") && what.contains("a scrub mends it")),
        "{found:?}"
    );
    assert!(found.iter().any(|(severity, _)| *severity == Severity::Error));
    let status = scrub(&mini.pool);
    assert!(status.errors == 0 && status.repaired > 0);
    assert_eq!(findings(&mini.pool), []);
    let now = contents(&store);
    assert!(good.iter().all(|(id, bytes)| now[id].starts_with(bytes)));
}

#[test]
fn the_newest_root_is_mended_when_the_pool_is_opened() {
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), 5);
    let txg = mini.pool.committed_txg();
    drop(mini);
    // The last written node is the root of the meta tree.
    let frames = store
        .segments()
        .unwrap()
        .into_iter()
        .flat_map(|info| scan(&store, info).map(Result::unwrap).collect::<Vec<_>>());
    let root = frames
        .filter(|frame| frame.header.owner.0 == 0)
        .max_by_key(|frame| (frame.header.birth, frame.header.object))
        .unwrap();
    store.corrupt(root.segment, u64::from(root.offset) + 100, 2).unwrap();
    let before = contents(&store);
    // Opened for reading: it is rebuilt from parity, and nothing is written.
    let read_only = PoolOptions { read_only: true, ..options() };
    let pool = Pool::open(Box::new(store.clone()), read_only).unwrap();
    assert_eq!(pool.open_report().txg, txg);
    assert_eq!(findings(&pool).iter().filter(|(severity, _)| *severity == Severity::Error).count(), 1);
    drop(pool);
    assert!(contents(&store) == before);
    let pool = Pool::open(Box::new(store.clone()), options()).unwrap();
    assert_eq!((pool.open_report().txg, pool.open_report().passed_over.len()), (txg, 0));
    assert_eq!(scrub(&pool).errors, 0);
    assert_eq!(findings(&pool), []);
}

#[test]
fn a_crash_leaves_no_wrong_parity() {
    for seed in 0..2 {
        let store = FaultStore::new(seed);
        let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
        mini.pool.set_parity(10).unwrap();
        let mut state = seed;
        for round in 0..8 {
            for _ in 0..below(&mut state, 30) {
                let n = below(&mut state, 100) as u16;
                mini.put(&key(n), &noise(below(&mut state, 1 << 20), below(&mut state, 3000) as usize + 1))
                    .unwrap();
            }
            match round % 4 {
                1 => drop(mini.snapshot().unwrap()),
                3 => drop((mini.commit().unwrap(), mini.clean().unwrap())),
                _ => drop(mini.commit().unwrap()),
            }
        }
        let committed = mini.committed.clone();
        drop(mini);
        let mut images = 0;
        for image in store.crash_points(.., 2).step_by(3) {
            images += 1;
            let mini = match Mini::open(Box::new(image.store.clone()), small(), &committed) {
                Ok(Some(mini)) => mini,
                Ok(None) | Err(PoolError::NoUberblock { .. }) => continue,
                Err(error) => panic!("{error:?}"),
            };
            mini.verify().unwrap();
            let wrong: Vec<_> =
                findings(&mini.pool).into_iter().filter(|(_, what)| what.contains("parity")).collect();
            assert_eq!(wrong, [], "seed {seed}, image {images}");
            if images % 9 == 0 {
                // Appends after the torn bytes, and repairs there.
                let mut mini = mini;
                mini.put(&key(101), &noise(seed, 5000)).unwrap();
                mini.commit().unwrap();
                flip(&image.store, &image.store.segments().unwrap()[..1], 1, seed + images);
                mini.verify().unwrap();
                assert_eq!(scrub(&mini.pool).errors, 0);
                assert_eq!(findings(&mini.pool), [], "seed {seed}, image {images}");
            }
        }
        assert!(images > 60, "only {images} images");
    }
}

#[test]
fn a_mending_that_is_torn_is_done_again() {
    let memory = MemoryStore::new();
    drop(filled(Box::new(memory.clone()), 5));
    flip(&memory, &memory.segments().unwrap(), 40, 9);
    let store = FaultStore::over(9, &memory);
    let pool = Pool::open(Box::new(store.clone()), options()).unwrap();
    assert_eq!(scrub(&pool).errors, 0);
    drop(pool);
    for image in store.crash_points(.., 1).step_by(9) {
        let pool = Pool::open(Box::new(image.store), options()).unwrap();
        assert_eq!(pool.open_report().passed_over, []);
        assert_eq!(scrub(&pool).errors, 0);
        assert_eq!(findings(&pool).iter().filter(|(severity, _)| *severity == Severity::Error).count(), 0);
    }
}

#[test]
fn it_is_turned_on_and_off_and_told_by_a_feature() {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), options()).unwrap();
    mini.put(&key(1), &noise(1, 50_000)).unwrap();
    mini.commit().unwrap();
    let ro_compat = |store: &MemoryStore| store.uberblocks().unwrap().last().unwrap().bytes[20];
    assert_eq!((ro_compat(&store), mini.pool.parity(), parity_frames(&store).len()), (0, 0, 0));
    mini.pool.set_parity(0).unwrap();
    mini.commit().unwrap();
    assert_eq!(ro_compat(&store), 0);
    assert!(matches!(mini.pool.set_parity(51), Err(PoolError::Size { .. })));
    mini.pool.set_parity(20).unwrap();
    mini.put(&key(2), &noise(2, 50_000)).unwrap();
    mini.commit().unwrap();
    assert_eq!((ro_compat(&store), mini.pool.parity()), (1, 20));
    let with = parity_frames(&store).len();
    assert!(with > 0);
    mini.pool.set_parity(0).unwrap();
    mini.put(&key(3), &noise(3, 50_000)).unwrap();
    mini.commit().unwrap();
    // Existing parity stays, so older builds are refused for good.
    assert_eq!((ro_compat(&store), mini.pool.parity(), parity_frames(&store).len()), (1, 0, with));
    let (id, at) = parity_frames(&store)[0];
    store.corrupt(id, at - 1000, 1).unwrap();
    mini.verify().unwrap();
    assert_eq!((scrub(&mini.pool).errors, findings(&mini.pool)), (0, vec![]));
}

#[test]
fn parity_is_not_cleaned_for_ever_and_goes_with_its_segment() {
    let store = MemoryStore::with_segment_capacity(4 << 20);
    let mut mini = Mini::create(Box::new(store.clone()), options()).unwrap();
    mini.pool.set_parity(50).unwrap();
    for n in 0..120u16 {
        mini.put(&key(n), &noise(n.into(), 100_000)).unwrap();
    }
    mini.commit().unwrap();
    // Two thirds of each segment are data, and nothing is dead.
    assert!(!mini.pool.is_worth_cleaning(&CleanOptions::default()).unwrap());
    let space = mini.pool.space().unwrap();
    assert!(space.occupied > space.allocated + space.allocated / 3, "{space:?}");
    for n in 0..120u16 {
        mini.remove(&key(n)).unwrap();
    }
    mini.commit().unwrap();
    mini.pool.drain_frees().unwrap();
    assert!(mini.pool.space().unwrap().occupied < 4 << 20);
}

#[test]
fn a_full_store_with_parity_can_be_emptied() {
    let store = MemoryStore::with_capacity(64 << 20);
    let mut mini = Mini::create(Box::new(store.clone()), options()).unwrap();
    mini.pool.set_parity(20).unwrap();
    let mut n = 0u16;
    let refused = loop {
        match mini.put(&key(n), &noise(n.into(), 100_000)) {
            Ok(()) => n += 1,
            Err(error) => break error,
        }
        if n.is_multiple_of(50) {
            mini.commit().unwrap();
        }
    };
    assert!(matches!(refused, PoolError::NoSpace { .. }), "{refused:?}");
    mini.commit().unwrap();
    // 64 MiB minus the reserve and parity.
    assert!(n > 350, "{n} blocks");
    mini.verify().unwrap();
    assert_eq!(findings(&mini.pool), []);
    let hold = mini.pool.begin_free().unwrap();
    drop(hold);
    for n in 0..n {
        mini.remove(&key(n)).unwrap();
    }
    mini.commit().unwrap();
    mini.pool.drain_frees().unwrap();
    assert!(mini.pool.space().unwrap().allocated < 1 << 20);
}

/// A small pool with 20 % parity, and its content.
fn small_with_parity(store: Box<dyn Store>) -> Mini {
    let mut mini = Mini::create(store, options()).unwrap();
    mini.pool.set_parity(20).unwrap();
    for n in 0..12u16 {
        mini.put(&key(n), &noise(n.into(), 300 + 50 * usize::from(n))).unwrap();
    }
    mini.snapshot().unwrap();
    mini.commit().unwrap();
    mini
}

/// Verifies the content, and repairs each block, one after the other.
fn is_golden(stored: &MemoryStore) {
    let made = small_with_parity(Box::new(MemoryStore::new()));
    let pool = Pool::open(Box::new(stored.snapshot()), options()).unwrap();
    assert_eq!((pool.parity(), findings(&pool)), (20, vec![]));
    let mini = Mini::of(pool, &made.committed).unwrap().unwrap();
    assert_eq!(mini.model, made.model);
    drop(mini);
    let mut mended = 0;
    for info in stored.segments().unwrap() {
        for frame in scan(stored, info).map(Result::unwrap).filter(|frame| frame.payload.is_some()) {
            let store = stored.snapshot();
            store.corrupt(frame.segment, u64::from(frame.offset) + FRAME_HEADER as u64, 1).unwrap();
            let pool = Pool::open(Box::new(store), options()).unwrap();
            let status = scrub(&pool);
            assert_eq!(
                (status.errors, findings(&pool)),
                (0, vec![]),
                "{} at {}",
                frame.segment,
                frame.offset
            );
            mended += usize::from(status.repaired > 0);
        }
    }
    assert!(mended >= 12, "{mended}");
}

#[test]
fn the_golden_pool_opens_and_mends_itself() {
    is_golden(&golden::of("parity-1.pool"));
}

/// The content of a golden pool. Another version has another one, and that of version 1 never changes.
#[test]
fn a_pool_made_as_the_golden_one_was_is_one() {
    let store = MemoryStore::new();
    drop(small_with_parity(Box::new(store.clone())));
    is_golden(&golden::unpacked(&golden::packed(&store)));
}

/// A parity frame that claims that everything it covers is zeros, with as many pieces of parity as of data. Parity of
/// zeros is zeros, so all its own checksums match.
#[derive(Clone, Copy)]
struct Forged {
    segment: SegmentId,
    at: u64,
    start: u64,
    len: u64,
    piece_shift: u8,
    parity: u32,
    sum: [u8; 8],
}

impl Forged {
    fn head_len(&self) -> u64 {
        56 + 8 * (self.len.div_ceil(1 << self.piece_shift) + u64::from(self.parity))
    }

    fn frame_len(&self) -> u64 {
        2 * self.head_len() + (u64::from(self.parity) << self.piece_shift)
    }

    /// As in docs/format/parity.md, "Head".
    fn head(&self, copy: u8) -> Vec<u8> {
        let mut out = b"SMpa".to_vec();
        out.extend_from_slice(&[1, copy, self.piece_shift, 0]);
        for number in [self.start as u32, self.len as u32, self.at as u32, self.parity] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&42u64.to_le_bytes());
        out.extend_from_slice(&self.segment.0.to_le_bytes());
        out.extend_from_slice(&[0; 16]);
        while (out.len() as u64) < self.head_len() {
            out.extend_from_slice(&self.sum);
        }
        let sum = blake3::hash(&[&out[..40], &out[56..]].concat());
        out[40..56].copy_from_slice(&sum.as_bytes()[..16]);
        out
    }

    fn write(&self, store: &MemoryStore) {
        let pieces = vec![0; (self.parity as usize) << self.piece_shift];
        let frame = [self.head(0), pieces, self.head(1)].concat();
        assert_eq!(frame.len() as u64, self.frame_len());
        store.rewrite(self.segment, self.at, &frame).unwrap();
    }
}

/// Forges all parity frames that have room for 8 pieces of 4096 bytes, and returns their number.
fn forge_all(store: &MemoryStore) -> usize {
    let zeros = blake3::hash(&[0; 4096]);
    let all = contents(store);
    let mut forged = 0;
    for (segment, at) in parity_frames(store) {
        let head = &all[&segment][at as usize..];
        let number = |at: usize| u64::from(u32::from_le_bytes(head[at..at + 4].try_into().unwrap()));
        if head[5] != 0 || number(16) != at {
            continue;
        }
        let (start, len, parity) = (number(8).next_multiple_of(4096), number(12), number(20));
        let room = 2 * (56 + 8 * (len.div_ceil(1 << head[6]) + parity)) + (parity << head[6]);
        let of = |pieces: u32| Forged {
            segment,
            at,
            start,
            len: u64::from(pieces) * 4096,
            piece_shift: 12,
            parity: pieces,
            sum: zeros.as_bytes()[..8].try_into().unwrap(),
        };
        let fits = |pieces: &u32| of(*pieces).frame_len() <= room && start + of(*pieces).len <= at;
        if let Some(pieces) = (8..100).rev().find(fits) {
            of(pieces).write(store);
            forged += 1;
        }
    }
    forged
}

/// The blocks that match the hashes in their headers.
fn sound_blocks(store: &MemoryStore) -> BTreeSet<(SegmentId, u32)> {
    let frames = store.segments().unwrap().into_iter().flat_map(|info| scan(store, info).map(Result::unwrap));
    frames.filter(|frame| frame.payload.is_some()).map(|frame| (frame.segment, frame.offset)).collect()
}

/// The place of the block of more than 60,000 bytes that was written last.
fn newest_large_block(store: &MemoryStore) -> (SegmentId, u64) {
    let frames = store.segments().unwrap().into_iter().flat_map(|info| scan(store, info).map(Result::unwrap));
    let large = frames.filter(|frame| frame.payload.is_some() && frame.header.psize > 60_000);
    large
        .map(|frame| (frame.header.birth, frame.segment, u64::from(frame.offset)))
        .max()
        .map(|(_, segment, at)| (segment, at))
        .unwrap()
}

fn mirror_of(stores: [&MemoryStore; 2]) -> Box<dyn Store> {
    let member = |(store, guid): (&MemoryStore, u64)| MirrorMember {
        guid,
        path: PathBuf::from(format!("/disk{guid}")),
        store: Ok(Box::new(store.clone())),
    };
    let members = stores.into_iter().zip(1..).map(member).collect();
    Box::new(MirrorStore::assemble(members, Access::ReadWrite).unwrap())
}

#[test]
fn forged_parity_changes_no_block_that_is_right() {
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), 5);
    assert!(forge_all(&store) > 4);
    let before = sound_blocks(&store);
    let status = scrub(&mini.pool);
    assert_eq!((status.state, status.errors), (ScrubState::Finished, 0));
    assert!(before.is_subset(&sound_blocks(&store)));
    mini.verify().unwrap();
    let found = findings(&mini.pool);
    let is_of_parity = |(severity, what): &(Severity, String)| {
        *severity == Severity::Error && what.contains("of its own pieces are wrong")
    };
    assert!(found.iter().any(is_of_parity), "{found:?}");
}

#[test]
fn forged_parity_of_one_member_leaves_the_other_members_alone() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mini = filled(mirror_of([&a, &b]), 5);
    assert_eq!(findings(&mini.pool), []);
    assert!(forge_all(&a) > 4);
    let (good, before) = (contents(&b), sound_blocks(&a));
    let status = scrub(&mini.pool);
    assert_eq!((status.state, status.errors), (ScrubState::Finished, 0));
    let now = contents(&b);
    assert!(good.iter().all(|(id, bytes)| now[id].starts_with(bytes)));
    assert!(before.is_subset(&sound_blocks(&a)));
    mini.verify().unwrap();
    let found = findings(&mini.pool);
    assert!(
        !found.is_empty() && found.iter().all(|(_, what)| what.contains(" on /disk1: parity")),
        "{found:?}"
    );
    // The other member is still repaired.
    let (segment, at) = newest_large_block(&b);
    b.corrupt(segment, at + FRAME_HEADER as u64, 1).unwrap();
    assert_eq!(scrub(&mini.pool).errors, 0);
    let now = contents(&b);
    assert!(good.iter().all(|(id, bytes)| now[id].starts_with(bytes)));
    assert!(before.is_subset(&sound_blocks(&a)));
}

#[test]
fn a_block_that_is_damaged_on_all_members_is_mended_by_parity_of_any() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mini = filled(mirror_of([&a, &b]), 5);
    let (good, (segment, at)) = (contents(&a), newest_large_block(&a));
    // All parity of the first member is lost.
    for (segment, at) in parity_frames(&a) {
        a.corrupt(segment, at, 1).unwrap();
    }
    for store in [&a, &b] {
        store.corrupt(segment, at + FRAME_HEADER as u64, 1).unwrap();
    }
    assert_eq!(scrub(&mini.pool).errors, 0);
    assert_eq!(mini.pool.damage().unwrap(), []);
    let range = at as usize..at as usize + 60_000;
    for store in [&a, &b] {
        assert!(contents(store)[&segment][range.clone()] == good[&segment][range.clone()]);
    }
}

/// A store that counts the bytes that are read.
#[derive(Debug)]
struct Counting {
    store: MemoryStore,
    read: Arc<AtomicU64>,
}

impl Store for Counting {
    fn segment_capacity(&self) -> u64 {
        self.store.segment_capacity()
    }
    fn create_segment(&self, id: SegmentId) -> snowmelt_store::Result<()> {
        self.store.create_segment(id)
    }
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> snowmelt_store::Result<()> {
        self.store.append(id, offset, data)
    }
    fn sync(&self) -> snowmelt_store::Result<()> {
        self.store.sync()
    }
    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        self.store.start_writeback(id, offset, len);
    }
    fn reopen_segment(&self, id: SegmentId, len: u64) -> snowmelt_store::Result<()> {
        self.store.reopen_segment(id, len)
    }
    fn seal_segment(&self, id: SegmentId) -> snowmelt_store::Result<()> {
        self.store.seal_segment(id)
    }
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> snowmelt_store::Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.store.read(id, offset, buf)
    }
    fn segments(&self) -> snowmelt_store::Result<Vec<SegmentInfo>> {
        self.store.segments()
    }
    fn delete_segment(&self, id: SegmentId) -> snowmelt_store::Result<()> {
        self.store.delete_segment(id)
    }
    fn publish(&self, txg: u64, uberblock: &[u8]) -> snowmelt_store::Result<()> {
        self.store.publish(txg, uberblock)
    }
    fn uberblocks(&self) -> snowmelt_store::Result<Vec<RawUberblock>> {
        self.store.uberblocks()
    }
    fn capacity(&self) -> snowmelt_store::Result<Capacity> {
        self.store.capacity()
    }
    fn describe(&self) -> String {
        self.store.describe()
    }
    fn control_socket(&self) -> Option<PathBuf> {
        self.store.control_socket()
    }
    fn destroy(&self) -> snowmelt_store::Result<()> {
        self.store.destroy()
    }
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> snowmelt_store::Result<()> {
        self.store.rewrite(id, offset, data)
    }
}

/// A hundred damaged blocks, each covered by a hundred forged frames of 4 MiB, would be 40 GiB of reads.
#[test]
fn many_forged_heads_over_many_damaged_blocks_cost_a_bounded_number_of_reads() {
    const COVERED: u64 = 4 << 20;
    let store = MemoryStore::new();
    let options = || PoolOptions { segment_bytes: 16 << 20, ..options() };
    let mut mini = Mini::create(Box::new(store.clone()), options()).unwrap();
    mini.pool.set_parity(1).unwrap();
    (0..100u16).for_each(|n| mini.put(&key(n), &noise(n.into(), 700)).unwrap());
    mini.commit().unwrap();
    (100..200u16).for_each(|n| mini.put(&key(n), &noise(n.into(), 90_000)).unwrap());
    mini.commit().unwrap();
    drop(mini);
    let info = store.segments().unwrap().into_iter().max_by_key(|info| info.len).unwrap();
    assert!(info.len > 8 << 20);
    for (segment, at) in parity_frames(&store) {
        if segment == info.id {
            store.corrupt(segment, at, 1).unwrap();
        }
    }
    let frames: Vec<_> = scan(&store, info).map(Result::unwrap).collect();
    let small: Vec<_> = frames.iter().filter(|frame| frame.header.psize < 1000).collect();
    assert!(small.len() >= 100);
    for frame in small {
        store.corrupt(info.id, u64::from(frame.offset) + FRAME_HEADER as u64, 1).unwrap();
    }
    // The frames lie in place of the last blocks. Their checksums match nothing.
    let mut at = frames.iter().map(|frame| u64::from(frame.offset)).find(|at| *at > COVERED).unwrap();
    let mut forged = 0;
    loop {
        let frame =
            Forged { segment: info.id, at, start: 0, len: COVERED, piece_shift: 14, parity: 1, sum: [0; 8] };
        if forged == 100 || at + frame.frame_len() > info.len {
            break;
        }
        frame.write(&store);
        at += frame.frame_len();
        forged += 1;
    }
    assert_eq!(forged, 100);
    let read = Arc::new(AtomicU64::new(0));
    let counting = Counting { store: store.clone(), read: read.clone() };
    let pool = Pool::open(Box::new(counting), options()).unwrap();
    let all: u64 = store.segments().unwrap().iter().map(|info| info.len).sum();
    // The limit of READS_SHARE and READS_BASE in heal/known.rs, once for the blocks and once for the parity itself.
    let limit = 2 * (16 * all + (64 << 20)) + 16 * all;
    let status = scrub(&pool);
    assert!(status.errors >= 100, "{status:?}");
    let first = read.swap(0, Ordering::Relaxed);
    assert!(first < limit, "{first} bytes were read, and the segments have {all}");
    // A check in the same process does not try again what the scrub found hopeless.
    assert!(!findings(&pool).is_empty());
    let second = read.swap(0, Ordering::Relaxed);
    assert!(second < limit, "{second} bytes were read, and the segments have {all}");
}
