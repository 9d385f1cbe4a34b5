//! Pools without uberblocks: the states found in their segments are either committed states, or recognized as
//! incomplete.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, Model, key, small};
use snowmelt_pool::{CheckOptions, Kind, Pool, PoolOptions, Salvage, Txg, scan};
use snowmelt_store::{MemoryStore, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

const GUID: u64 = 42;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Changes in many txgs, with snapshots, destroys and cleaning.
fn worked(seed: u64) -> (MemoryStore, BTreeMap<Txg, Model>) {
    let store = MemoryStore::new();
    let mut mini = Mini::create(Box::new(store.clone()), small()).unwrap();
    let mut rng = Rng(seed);
    for _ in 0..30 {
        for _ in 0..rng.below(30) {
            let at = rng.below(150) as u16;
            match rng.below(8) {
                0..=5 => {
                    let data: Vec<u8> = (0..=rng.below(2000)).map(|_| rng.below(256) as u8).collect();
                    mini.put(&key(at), &data).unwrap();
                }
                _ => mini.remove(&key(at)).unwrap(),
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
        mini.commit().unwrap();
    }
    (store, mini.committed)
}

/// The same segments on a store with an empty ring.
fn without_ring(store: &MemoryStore) -> MemoryStore {
    let bare = MemoryStore::new();
    for info in store.segments().unwrap() {
        let mut bytes = vec![0; usize::try_from(info.len).unwrap()];
        store.read(info.id, 0, &mut bytes).unwrap();
        bare.create_segment(info.id).unwrap();
        bare.append(info.id, 0, &bytes).unwrap();
    }
    bare
}

fn find(store: &MemoryStore) -> Salvage {
    Salvage::find(store, GUID, &mut |done, total| done <= total).unwrap().unwrap()
}

/// The newest state that passes its check.
fn newest_whole(store: &MemoryStore, salvage: &Salvage) -> Option<Txg> {
    salvage.states.iter().find_map(|state| {
        let options = PoolOptions { read_only: true, ..small() };
        let pool = Pool::open_lost(Box::new(store.clone()), salvage, state, options).ok()?;
        let report = pool.check(&common::MiniRoots, CheckOptions { data: false }, &mut |_| {}).ok()?;
        (report.errors == 0).then_some(state.txg())
    })
}

fn open(store: &MemoryStore, salvage: &Salvage, txg: Txg) -> Arc<Pool> {
    let state = salvage.states.iter().find(|state| state.txg() == txg).unwrap();
    Pool::open_lost(Box::new(store.clone()), salvage, state, small()).unwrap()
}

#[test]
fn without_a_ring_the_newest_txg_is_found() {
    for seed in 1..8 {
        let (store, committed) = worked(seed);
        let bare = without_ring(&store);
        let salvage = find(&bare);
        let newest = committed.values().next_back().unwrap();
        let found = newest_whole(&bare, &salvage).unwrap();
        // A txg without changes is equal to the one before it.
        assert_eq!(committed.get(&found), Some(newest), "seed {seed}");

        let mut mini = Mini::of(open(&bare, &salvage, found), &committed).unwrap().unwrap();
        mini.verify().unwrap();
        mini.check().unwrap();
        // After its first txg it is an ordinary pool.
        mini.put(&key(3), b"after the salvage").unwrap();
        mini.commit().unwrap();
        let committed = mini.committed.clone();
        drop(mini);
        let mut mini = Mini::open(Box::new(bare), small(), &committed).unwrap().unwrap();
        mini.verify().unwrap();
        mini.put(&key(4), b"and again").unwrap();
        mini.commit().unwrap();
        mini.check().unwrap();
    }
}

#[test]
fn damage_to_the_newest_meta_trees_costs_only_their_txgs() {
    for seed in 1..8 {
        let (store, committed) = worked(seed);
        let bare = without_ring(&store);
        let (newest, mut rng) = (*committed.keys().next_back().unwrap(), Rng(seed));
        // Some nodes of the meta tree of the last txgs: roots, inner nodes, leaves.
        let frames = bare
            .segments()
            .unwrap()
            .into_iter()
            .flat_map(|info| scan(&bare, info).map(Result::unwrap).collect::<Vec<_>>());
        let hit: Vec<_> = frames
            .filter(|frame| frame.header.kind == Kind::Node && frame.header.owner.0 == 0)
            .filter(|frame| frame.header.birth + 3 > newest && rng.below(2) == 0)
            .collect();
        for frame in &hit {
            bare.corrupt(frame.segment, u64::from(frame.offset) + 100, 0x40).unwrap();
        }
        let salvage = find(&bare);
        assert_eq!(salvage.damaged, hit.len() as u64);
        let found = newest_whole(&bare, &salvage).unwrap();
        assert!(found + 4 > newest, "seed {seed}: {found} of {newest}");
        let mini = Mini::of(open(&bare, &salvage, found), &committed).unwrap().unwrap();
        mini.verify().unwrap();
        mini.check().unwrap();
    }
}

#[test]
fn a_search_can_be_given_up() {
    let (store, _) = worked(1);
    assert!(Salvage::find(&store, GUID, &mut |_, _| false).unwrap().is_none());
}

#[test]
fn frames_of_another_pool_are_not_taken() {
    let (store, _) = worked(1);
    let salvage = Salvage::find(&store, GUID + 1, &mut |_, _| true).unwrap().unwrap();
    assert_eq!((salvage.states.len(), salvage.frames), (0, 0));
}
