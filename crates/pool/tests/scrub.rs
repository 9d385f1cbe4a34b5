//! Scrubs: every kind of damage is found, each block is read once, other work can continue, and an interrupted scrub
//! continues where it stopped.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use common::{Mini, MiniRoots, key, small};
use snowmelt_pool::{
    BlockId, BlockPtr, CheckOptions, DamageOwner, FRAME_HEADER, FrozenRoot, Kind, MetaScan, Pool, PoolError,
    PoolOptions, Result, Roots, ScrubOptions, ScrubPlan, ScrubRefused, ScrubRoots, ScrubState, ScrubStatus,
    SegmentId, StoredPtr, TreeId, Txg, View, scan,
};
use snowmelt_store::{MemoryStore, Store};

const NEVER: &dyn Fn() -> bool = &|| false;
const SILENT: &dyn Fn(&ScrubStatus) = &|_| {};

/// Batches so small that there are many.
fn bits() -> ScrubOptions<'static> {
    ScrubOptions { rate: None, batch_bytes: 4 << 10, cancelled: NEVER, progress: SILENT }
}

fn scrub(pool: &Pool) -> ScrubStatus {
    pool.scrub(&MiniRoots, &bits(), &mut |_| {}).unwrap()
}

/// Deterministic numbers.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn noise(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// A few snapshots, and a head that differs from all of them.
fn filled(store: &MemoryStore, rng: &mut Rng) -> Mini {
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    for round in 0..5 {
        for _ in 0..60 {
            let at = rng.below(120) as u16;
            let len = 200 + rng.below(1500);
            let data = rng.noise(len);
            mini.put(&key(at), &data).unwrap();
        }
        if round < 4 {
            mini.snapshot().unwrap();
        }
    }
    mini.commit().unwrap();
    mini
}

/// The frames of live blocks. `check` counts them; blocks that it does not know are dead.
fn frames(store: &MemoryStore) -> Vec<(SegmentId, u32, Kind, TreeId, u32)> {
    let mut out = Vec::new();
    for info in store.segments().unwrap() {
        for frame in scan(store, info) {
            let frame = frame.unwrap();
            let header = frame.header;
            out.push((frame.segment, frame.offset, header.kind, header.owner, header.psize));
        }
    }
    out
}

fn errors_of_check(pool: &Pool) -> u64 {
    let options = CheckOptions { data: true };
    pool.check(&MiniRoots, options, &mut |_| {}).unwrap().errors
}

#[test]
fn a_sound_pool_is_read_once_and_nothing_is_found() {
    let store = MemoryStore::new();
    let mini = filled(&store, &mut Rng(1));
    let total = mini.pool.space().unwrap().allocated;
    let status = scrub(&mini.pool);
    assert_eq!((status.state, status.errors, status.repaired), (ScrubState::Finished, 0, 0));
    assert_eq!(status.total, total);
    // The nodes of the meta tree are written again with every batch, so some of them are read in addition.
    let slack = total / 20 + (64 << 10);
    assert!(status.issued.abs_diff(total) < slack, "{} of {total} bytes read", status.issued);
    assert!(mini.pool.damage().unwrap().is_empty());
    assert!(!status.is_running);
    mini.check().unwrap();
    // In a single batch every block is read exactly once.
    let whole = ScrubOptions { batch_bytes: u64::MAX, ..bits() };
    let status = mini.pool.scrub(&MiniRoots, &whole, &mut |_| {}).unwrap();
    let report = mini.pool.check(&MiniRoots, CheckOptions::default(), &mut |_| {}).unwrap();
    assert!(status.issued.abs_diff(report.bytes) < 4096, "{} of {} bytes", status.issued, report.bytes);
}

/// Claims that the blocks of each snapshot belong to many snapshots.
struct SharedRoots {
    copies: u64,
}

impl Roots for SharedRoots {
    fn frozen(&self, meta: &View, each: &mut dyn FnMut(&str, Option<StoredPtr>) -> Result<()>) -> Result<()> {
        MiniRoots.frozen(meta, each)
    }

    fn is_deadlist(&self, meta: &View, tree: TreeId) -> Result<bool> {
        MiniRoots.is_deadlist(meta, tree)
    }

    fn pointers(
        &self,
        tree: Option<TreeId>,
        key: &[u8],
        value: &[u8],
        each: &mut dyn FnMut(&BlockPtr),
    ) -> Result<()> {
        MiniRoots.pointers(tree, key, value, each)
    }
}

impl ScrubRoots for SharedRoots {
    fn plan(&self, meta: &MetaScan<'_>, frozen_until: Txg) -> Result<ScrubPlan> {
        let mut plan = MiniRoots.plan(meta, frozen_until)?;
        let copies = plan.frozen.iter().flat_map(|root| {
            (0..self.copies).map(|copy| FrozenRoot { guid: copy, since: 0, ..root.clone() })
        });
        plan.frozen = copies.collect();
        Ok(plan)
    }

    fn block_id(&self, key: &[u8]) -> BlockId {
        MiniRoots.block_id(key)
    }
}

#[test]
fn a_scrub_of_blocks_that_many_roots_claim_ends_with_an_error() {
    let store = MemoryStore::new();
    let mut rng = Rng(9);
    let mut mini = filled(&store, &mut rng);
    for at in 0..200 {
        mini.put(&key(at), &rng.noise(16 << 10)).unwrap();
    }
    mini.snapshot().unwrap();
    mini.commit().unwrap();
    let whole = ScrubOptions { batch_bytes: 1 << 20, ..bits() };
    let error = mini.pool.scrub(&SharedRoots { copies: 1000 }, &whole, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("share blocks"), "{error}");
    assert!(error.is_corruption());
    let status = mini.pool.scrub_status().unwrap().unwrap();
    assert!(status.issued < status.total * 5 + (65 << 20), "{status:?}");
    // It can be stopped, and a scrub of what is really there finds nothing.
    mini.pool.stop_scrub().unwrap();
    assert_eq!(scrub(&mini.pool).errors, 0);
}

#[test]
fn damage_to_any_frame_is_found_exactly_where_it_is() {
    let store = MemoryStore::new();
    let mini = filled(&store, &mut Rng(2));
    mini.pool.drain_frees().unwrap();
    drop(mini);
    let mut kinds = BTreeSet::new();
    let all = frames(&store);
    for (at, (segment, offset, kind, owner, psize)) in all.iter().enumerate() {
        // Only every eleventh frame, because each needs a scrub and a check.
        if at % 11 != 0 && *owner != TreeId::META {
            continue;
        }
        let store = store.snapshot();
        let flipped = u64::from(*offset) + FRAME_HEADER as u64 + at as u64 % u64::from(*psize);
        store.corrupt(*segment, flipped, 0x10).unwrap();
        let options = PoolOptions { node_cache_bytes: 0, data_cache_bytes: 0, ..small() };
        let Ok(pool) = Pool::open(Box::new(store.clone()), options) else { continue };
        if !pool.open_report().passed_over.is_empty() {
            // Damage in the newest meta tree's inner nodes is found when the pool is opened.
            continue;
        }
        let known_to_check = errors_of_check(&pool) > 0;
        pool.clear_damage().unwrap();
        let status = pool.scrub(&MiniRoots, &bits(), &mut |_| {}).unwrap();
        assert_eq!(status.state, ScrubState::Finished);
        let found = pool.damage().unwrap();
        if *owner == TreeId::META {
            // A leaf of the meta tree may have been written again or freed by commits meanwhile.
            assert!(found.len() <= 1 && found.iter().all(|d| d.owner == DamageOwner::Pool));
            continue;
        }
        assert_eq!(status.errors > 0, known_to_check, "segment {segment} offset {offset}");
        if status.errors == 0 {
            assert!(found.is_empty());
            continue;
        }
        assert_eq!(found.len(), 1, "{found:?}");
        let damage = &found[0];
        assert_eq!((damage.segment, damage.offset, damage.kind), (*segment, *offset, *kind));
        kinds.insert(format!("{kind:?} {}", matches!(damage.owner, DamageOwner::Pool)));
        // The scrub repaired nothing: the next one finds the same.
        assert_eq!(scrub(&pool).errors, 1);
        assert_eq!(pool.damage().unwrap().len(), 1);
    }
    let expected = ["Data false", "Node false", "Node true"].map(str::to_owned);
    assert_eq!(kinds, BTreeSet::from(expected), "classes of damage that were planted");
}

#[test]
fn torn_headers_are_written_anew() {
    let store = MemoryStore::new();
    let mini = filled(&store, &mut Rng(3));
    mini.pool.drain_frees().unwrap();
    let (committed, model) = (mini.committed.clone(), mini.model.clone());
    drop(mini);
    let mut mended = 0;
    for (at, (segment, offset, _, owner, _)) in frames(&store).iter().enumerate() {
        if at % 3 == 0 && *owner != TreeId::META {
            store.corrupt(*segment, u64::from(*offset) + at as u64 % 96, 0x10).unwrap();
            mended += 1;
        }
    }
    assert!(mended > 20);
    let mini = Mini::open(Box::new(store.clone()), small(), &committed).unwrap().unwrap();
    assert_eq!(mini.model, model);
    assert!(errors_of_check(&mini.pool) > 10);
    let status = scrub(&mini.pool);
    assert_eq!(status.errors, 0);
    assert!(status.repaired > 0);
    mini.verify().unwrap();
    mini.check().unwrap();
    assert_eq!(scrub(&mini.pool).repaired, 0);
}

/// All kinds of changes happen between the batches of a scrub. A block that was damaged before the scrub and is still
/// in use after it is found, wherever it was moved to.
#[test]
fn nothing_that_stays_is_missed_beside_work() {
    for seed in 0..12 {
        let store = MemoryStore::new();
        let mut rng = Rng(seed);
        let mini = filled(&store, &mut rng);
        mini.pool.drain_frees().unwrap();
        drop(mini.pool.clone());
        let data: Vec<_> = frames(&store).into_iter().filter(|frame| frame.2 == Kind::Data).collect();
        let mut hurt = BTreeSet::new();
        for _ in 0..20 {
            let (segment, offset, ..) = data[rng.below(data.len() as u64) as usize];
            if hurt.insert((segment, offset)) {
                store.corrupt(segment, u64::from(offset) + FRAME_HEADER as u64 + 3, 1).unwrap();
            }
        }
        let pool = mini.pool.clone();
        let state = RefCell::new((mini, rng));
        let batches = Cell::new(0);
        let work = |_: &ScrubStatus| {
            let (mini, rng) = &mut *state.borrow_mut();
            batches.set(batches.get() + 1);
            for _ in 0..rng.below(12) {
                let at = rng.below(120) as u16;
                match rng.below(8) {
                    0 => mini.remove(&key(at)).unwrap(),
                    1..=6 => {
                        let len = 200 + rng.below(900);
                        let data = rng.noise(len);
                        mini.put(&key(at), &data).unwrap();
                    }
                    _ => drop(mini.commit().unwrap()),
                }
            }
            match rng.below(6) {
                0 => drop(mini.snapshot().unwrap()),
                1 => mini.destroy_snapshot(rng.below(8) as usize).unwrap(),
                2 => {
                    mini.commit().unwrap();
                    mini.clean().unwrap();
                }
                _ => {}
            }
        };
        let options = ScrubOptions { progress: &work, ..bits() };
        let status = pool.scrub(&MiniRoots, &options, &mut |_| {}).unwrap();
        assert_eq!(status.state, ScrubState::Finished);
        assert!(batches.get() > 3, "seed {seed}");
        let found: BTreeSet<_> = pool.damage().unwrap().iter().map(|d| (d.segment, d.offset)).collect();
        assert!(found.is_subset(&hurt), "seed {seed}: what was never damaged is called so");
        let (mini, _) = state.into_inner();
        let mut alive = BTreeSet::new();
        let views = mini.model.snapshots.keys().map(|txg| mini.snapshot_view(*txg).unwrap());
        for view in views.chain([mini.head.view()]) {
            for item in view.range(&[], None) {
                if let BlockPtr::Stored(ptr) = BlockPtr::decode(&mut &item.unwrap().1.value[..]).unwrap() {
                    alive.insert((ptr.segment, ptr.offset));
                }
            }
        }
        let missed: Vec<_> = hurt.intersection(&alive).filter(|place| !found.contains(place)).collect();
        assert!(missed.is_empty(), "seed {seed}: {missed:?} were missed");
    }
}

#[test]
fn a_scrub_that_died_goes_on_where_it_was() {
    let store = MemoryStore::new();
    let mini = filled(&store, &mut Rng(5));
    let total = mini.pool.space().unwrap().allocated;
    drop(mini);
    let mut done = 0;
    let mut lives = 0;
    loop {
        lives += 1;
        let pool = Pool::open(Box::new(store.clone()), small()).unwrap();
        let left = Cell::new(3);
        let cancelled = || {
            left.set(left.get() - 1);
            left.get() < 0
        };
        let options = ScrubOptions { cancelled: &cancelled, ..bits() };
        let status = pool.scrub(&MiniRoots, &options, &mut |status| assert!(status.is_running)).unwrap();
        assert!(status.issued >= done, "it went back");
        done = status.issued;
        if status.state == ScrubState::Finished {
            break;
        }
        assert_eq!(status.state, ScrubState::Scanning);
        // Dropped without a close, as if the process had died.
        if lives % 2 == 0 {
            // It does not continue by itself.
            assert_eq!(pool.scrub_status().unwrap().unwrap().issued, done);
        }
        left.set(10_000);
        if lives > 3 {
            let whole = pool.scrub(&MiniRoots, &bits(), &mut |_| {}).unwrap();
            assert_eq!(whole.state, ScrubState::Finished);
            done = whole.issued;
            break;
        }
    }
    assert!(lives > 3);
    assert!(done < total + total / 10 + (64 << 10), "{done} bytes read of {total}");
}

#[test]
fn pausing_stopping_and_clearing() {
    let store = MemoryStore::new();
    let mini = filled(&store, &mut Rng(6));
    let pool = &mini.pool;
    let refused = |result: Result<(), PoolError>| match result {
        Err(PoolError::Scrub(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(pool.scrub_status().unwrap(), None);
    assert_eq!(refused(pool.pause_scrub()), ScrubRefused::NotRunning);
    assert_eq!(refused(pool.stop_scrub()), ScrubRefused::NotRunning);
    let pause = |_: &ScrubStatus| {
        assert_eq!(refused(pool.scrub(&MiniRoots, &bits(), &mut |_| {}).map(drop)), ScrubRefused::Running);
        pool.pause_scrub().unwrap();
    };
    let status = pool.scrub(&MiniRoots, &ScrubOptions { progress: &pause, ..bits() }, &mut |_| {}).unwrap();
    assert_eq!(status.state, ScrubState::Paused);
    assert!(status.issued > 0 && status.ended > 0);
    assert_eq!(refused(pool.pause_scrub()), ScrubRefused::Paused);
    let stop = |_: &ScrubStatus| pool.stop_scrub().unwrap();
    let options = ScrubOptions { progress: &stop, ..bits() };
    let resumed = |now: &ScrubStatus| assert_eq!((now.issued, now.ended), (status.issued, 0));
    let mut resumed = resumed;
    let status = pool.scrub(&MiniRoots, &options, &mut resumed).unwrap();
    assert_eq!(status.state, ScrubState::Canceled);
    assert_eq!(refused(pool.stop_scrub()), ScrubRefused::NotRunning);
    // A new scrub starts at the beginning.
    let status = pool.scrub(&MiniRoots, &bits(), &mut |now| assert_eq!(now.issued, 0)).unwrap();
    assert_eq!(status.state, ScrubState::Finished);
}

#[test]
fn what_readers_meet_is_logged_and_what_is_well_again_forgotten() {
    let store = MemoryStore::new();
    let mut mini =
        Mini::create(Box::new(store.clone()), PoolOptions { data_cache_bytes: 0, ..small() }).unwrap();
    for at in 0..10 {
        mini.put(&key(at), &Rng(at.into()).noise(1000)).unwrap();
    }
    mini.commit().unwrap();
    let pool = mini.pool.clone();
    let entry = mini.head.get(&key(4)).unwrap().unwrap();
    let ptr = BlockPtr::decode(&mut &entry.value[..]).unwrap();
    let BlockPtr::Stored(stored) = &ptr else { panic!() };
    let flip = || store.corrupt(stored.segment, u64::from(stored.offset) + 100, 1).unwrap();
    flip();
    for _ in 0..3 {
        assert!(pool.read(&ptr).unwrap_err().is_corruption());
    }
    let owner = DamageOwner::Written { tree: mini.head.id(), object: 1, blkid: 2 };
    let known = || pool.damage().unwrap();
    // At once, and also after the commit that logs it.
    for _ in 0..2 {
        assert_eq!(known().len(), 1);
        assert_eq!((known()[0].segment, known()[0].offset), (stored.segment, stored.offset));
        assert_eq!(known()[0].owner, owner);
        assert_eq!(pool.damage_counters().unwrap().checksum, 1);
        pool.commit().unwrap();
    }
    let reopened = Pool::open(Box::new(store.snapshot()), small()).unwrap();
    assert_eq!(reopened.damage().unwrap(), known());
    // A scrub knows the owner more precisely.
    assert_eq!(scrub(&pool).errors, 1);
    assert!(
        matches!(&known()[..], [one] if matches!(&one.owner, DamageOwner::Root { owner: 1, txg: 0, .. }))
    );
    // Intact again: the entry stays until a scrub does not find the damage.
    flip();
    assert_eq!(known().len(), 1);
    assert_eq!(scrub(&pool).errors, 0);
    assert!(known().is_empty());
    assert!(pool.damage_counters().unwrap().checksum > 0);
    // The same for a freed block.
    flip();
    assert_eq!(scrub(&pool).errors, 1);
    mini.remove(&key(4)).unwrap();
    mini.commit().unwrap();
    assert_eq!(scrub(&pool).errors, 0);
    assert!(known().is_empty());
    pool.clear_damage().unwrap();
    assert_eq!(pool.damage_counters().unwrap().checksum, 0);
    mini.check().unwrap();
}

#[test]
fn a_rate_is_kept_to() {
    let store = MemoryStore::new();
    let mini = filled(&store, &mut Rng(8));
    let total = mini.pool.space().unwrap().allocated;
    let began = std::time::Instant::now();
    let options = ScrubOptions { rate: Some(total * 4), ..bits() };
    mini.pool.scrub(&MiniRoots, &options, &mut |_| {}).unwrap();
    assert!(began.elapsed().as_millis() >= 230, "{:?} for a quarter of a second's worth", began.elapsed());
}
