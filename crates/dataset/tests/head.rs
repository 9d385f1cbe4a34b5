//! Compares a head open for writing with a model: through commits, snapshots, rollbacks and reopens, with any changes
//! in memory when the pool is lost.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{check, name, new_pool_on, options};
use proptest::prelude::*;
use snowmelt_dataset::{CreateOptions, DatasetError, Datasets, DestroyPlan, Head, OpenHead, RollbackOptions};
use snowmelt_pool::Pool;
use snowmelt_store::MemoryStore;
use snowmelt_stream::features::Features;
use snowmelt_zpl::{NewObject, Objects, ObjectsMut, Room};

const FILE: u8 = snowmelt_zpl::DMU_OT_PLAIN_FILE_CONTENTS;

/// The expected state of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    block_size: u32,
    bonus: Vec<u8>,
    data: Vec<u8>,
    spill: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
enum Op {
    Create { block_size: u32 },
    Write { pick: u8, offset: u32, len: u16, byte: u8 },
    Free { pick: u8, offset: u32, len: u32, to_end: bool },
    Bonus { pick: u8, byte: u8 },
    Spill { pick: u8, byte: Option<u8> },
    Resize { pick: u8, block_size: u32 },
    Destroy { pick: u8 },
    WriteOut,
    Commit,
    Snapshot,
    Rollback,
    Reopen,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![Just(512u32), Just(1024), Just(4096), Just(131_072)];
    prop_oneof![
        3 => size.clone().prop_map(|block_size| Op::Create { block_size }),
        12 => (any::<u8>(), 0u32..40_000, 1u16..9000, any::<u8>())
            .prop_map(|(pick, offset, len, byte)| Op::Write { pick, offset, len, byte }),
        5 => (any::<u8>(), 0u32..40_000, 0u32..20_000, any::<bool>())
            .prop_map(|(pick, offset, len, to_end)| Op::Free { pick, offset, len, to_end }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(pick, byte)| Op::Bonus { pick, byte }),
        2 => (any::<u8>(), any::<Option<u8>>()).prop_map(|(pick, byte)| Op::Spill { pick, byte }),
        1 => (any::<u8>(), size).prop_map(|(pick, block_size)| Op::Resize { pick, block_size }),
        2 => any::<u8>().prop_map(|pick| Op::Destroy { pick }),
        3 => Just(Op::WriteOut),
        3 => Just(Op::Commit),
        1 => Just(Op::Snapshot),
        1 => Just(Op::Rollback),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ]
}

type Objset = BTreeMap<u64, Model>;

struct World {
    store: MemoryStore,
    datasets: Arc<Datasets>,
    head: OpenHead,
    now: Objset,
    /// The state of the last commit.
    committed: Objset,
    /// The content of the newest snapshot.
    snapshot: Option<Objset>,
    snapshots: usize,
}

fn open(datasets: &Datasets) -> OpenHead {
    datasets.open_head(&datasets.catalog().dataset("tank/x").unwrap()).unwrap()
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::new();
        let datasets = new_pool_on(&store);
        datasets.create_filesystem("tank/x", &CreateOptions::default()).unwrap();
        let head = open(&datasets);
        let (now, committed) = (Objset::default(), Objset::default());
        Self { store, datasets, head, now, committed, snapshot: None, snapshots: 0 }
    }

    fn pick(&self, pick: u8) -> Option<u64> {
        let objects: Vec<u64> = self.now.keys().copied().collect();
        objects.get(usize::from(pick) % objects.len().max(1)).copied()
    }

    fn apply(&mut self, op: Op) {
        let head = self.head.clone();
        match op {
            Op::Create { block_size } => {
                let tx = head.begin(Room::Write(0)).unwrap();
                let bonus = vec![1; 40];
                let new = NewObject {
                    object_type: FILE,
                    bonus_type: 44,
                    block_size,
                    slots: 1,
                    bonus: bonus.clone(),
                };
                let object = head.create(&tx, new).unwrap();
                let old = self.now.insert(object, Model { block_size, bonus, ..Model::default() });
                assert_eq!(old, None, "object {object} was in use");
            }
            Op::Write { pick, offset, len, byte } => {
                let Some(object) = self.pick(pick) else { return };
                let tx = head.begin(Room::Write(1 << 20)).unwrap();
                let data = vec![byte; usize::from(len)];
                head.write(&tx, object, u64::from(offset), &data).unwrap();
                let model = self.now.get_mut(&object).unwrap();
                let end = offset as usize + data.len();
                if model.data.len() < end {
                    model.data.resize(end, 0);
                }
                model.data[offset as usize..end].copy_from_slice(&data);
            }
            Op::Free { pick, offset, len, to_end } => {
                let Some(object) = self.pick(pick) else { return };
                let tx = head.begin(Room::Free).unwrap();
                let length = if to_end { u64::MAX } else { u64::from(len) };
                head.free(&tx, object, u64::from(offset), length).unwrap();
                let data = &mut self.now.get_mut(&object).unwrap().data;
                let from = (offset as usize).min(data.len());
                let to = if to_end { data.len() } else { (from + len as usize).min(data.len()) };
                data[from..to].fill(0);
            }
            Op::Bonus { pick, byte } => {
                let Some(object) = self.pick(pick) else { return };
                let tx = head.begin(Room::Write(512)).unwrap();
                let bonus = vec![byte; usize::from(byte) + 8];
                head.set_bonus(&tx, object, 44, bonus.clone()).unwrap();
                self.now.get_mut(&object).unwrap().bonus = bonus;
            }
            Op::Spill { pick, byte } => {
                let Some(object) = self.pick(pick) else { return };
                let tx = head.begin(Room::Write(4096)).unwrap();
                let spill = byte
                    .map(|byte| (0..1024u32).map(|at| (at as u8).wrapping_mul(byte)).collect::<Vec<u8>>());
                head.set_spill(&tx, object, spill.clone()).unwrap();
                self.now.get_mut(&object).unwrap().spill = spill;
            }
            Op::Resize { pick, block_size } => {
                let Some(object) = self.pick(pick) else { return };
                let model = self.now.get_mut(&object).unwrap();
                let tx = head.begin(Room::Write(1 << 20)).unwrap();
                let last = head.next_data(object, u64::from(model.block_size)).unwrap();
                let keeps = block_size >= model.block_size;
                if !keeps {
                    return;
                }
                let changed = head.set_block_size(&tx, object, block_size);
                assert_eq!(changed.is_ok(), last.is_none() || block_size == model.block_size);
                if changed.is_ok() {
                    model.block_size = block_size;
                }
            }
            Op::Destroy { pick } => {
                let Some(object) = self.pick(pick) else { return };
                let tx = head.begin(Room::Free).unwrap();
                head.destroy(&tx, object).unwrap();
                self.now.remove(&object);
            }
            // As it happens in the background of writers. It does not commit.
            Op::WriteOut => self.datasets.pool().write_out().unwrap(),
            Op::Commit => {
                head.sync().unwrap();
                self.committed = self.now.clone();
            }
            Op::Snapshot => {
                let snapshot = name(&format!("tank/x@{}", self.snapshots));
                self.datasets.snapshot(&[snapshot], &[]).unwrap();
                self.snapshots += 1;
                self.snapshot = Some(self.now.clone());
                self.committed = self.now.clone();
            }
            Op::Rollback => {
                let Some(snapshot) = self.snapshot.clone() else { return };
                let newest = name(&format!("tank/x@{}", self.snapshots - 1));
                self.datasets.rollback(&newest, RollbackOptions::default()).unwrap();
                self.now = snapshot.clone();
                self.committed = snapshot;
            }
            Op::Reopen => {
                self.datasets.pool().commit().unwrap();
                self.committed = self.now.clone();
                self.reopen();
            }
            Op::Crash => {
                self.reopen();
                self.now = self.committed.clone();
            }
        }
    }

    fn reopen(&mut self) {
        let store = self.store.snapshot();
        let pool = Pool::open(Box::new(store.clone()), options()).unwrap();
        self.store = store;
        self.datasets = Datasets::open(pool).unwrap();
        self.head = open(&self.datasets);
    }

    fn compare(&self) {
        for (object, model) in &self.now {
            let dnode = Objects::dnode(&*self.head, *object).unwrap().unwrap();
            assert_eq!((dnode.block_size, &dnode.bonus), (model.block_size, &model.bonus), "object {object}");
            let mut data = vec![7; model.data.len() + 600];
            self.head.read(*object, 0, &mut data).unwrap();
            assert!(data[..model.data.len()] == model.data, "data of object {object}");
            assert!(data[model.data.len()..].iter().all(|byte| *byte == 0), "past the end of {object}");
            assert_eq!(self.head.spill(*object).unwrap(), model.spill, "spill of object {object}");
            assert_eq!(dnode.has_spill, model.spill.is_some());
            self.compare_holes(*object, model);
        }
        // A new filesystem has a few objects of its own.
        let past = 1 + self.now.keys().max().unwrap_or(&0).max(&64);
        assert!(Objects::dnode(&*self.head, past).unwrap().is_none());
    }

    /// Holes must read as zeros, and data and holes must alternate up to the end.
    fn compare_holes(&self, object: u64, model: &Model) {
        let mut at = 0;
        while let Some(data) = self.head.next_data(object, at).unwrap() {
            let end = (data as usize).min(model.data.len());
            assert!(model.data[(at as usize).min(end)..end].iter().all(|byte| *byte == 0));
            let hole = self.head.next_hole(object, data).unwrap().unwrap();
            assert!(hole > data && hole.is_multiple_of(u64::from(model.block_size)));
            at = hole;
        }
        let rest = model.data.get(at as usize..).unwrap_or_default();
        assert!(rest.iter().all(|byte| *byte == 0), "data past the last extent of {object}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn is_as_its_model(ops in proptest::collection::vec(op(), 1..70)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.compare();
        }
        // The first commit after a crash deletes the segments that the crash left, so one is needed.
        world.apply(Op::Create { block_size: 512 });
        world.datasets.pool().commit().unwrap();
        check(&world.datasets, "all of it");
        world.compare();
    }
}

fn file(head: &Head, data: &[u8]) -> u64 {
    let tx = head.begin(Room::Write(1 << 20)).unwrap();
    let new = NewObject { object_type: FILE, bonus_type: 44, block_size: 4096, slots: 1, bonus: vec![0; 8] };
    let object = head.create(&tx, new).unwrap();
    head.write(&tx, object, 0, data).unwrap();
    object
}

/// Bytes that do not compress.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn what_does_not_change_is_not_written() {
    let world = World::new();
    let object = file(&world.head, &noise(64 << 10, 1));
    world.head.sync().unwrap();
    let snapshot = |short: &str| world.datasets.snapshot(&[name(&format!("tank/x@{short}"))], &[]).unwrap();
    snapshot("a");
    {
        let tx = world.head.begin(Room::Write(64 << 10)).unwrap();
        world.head.write(&tx, object, 0, &noise(64 << 10, 1)).unwrap();
    }
    snapshot("b");
    let catalog = world.datasets.catalog();
    let written = catalog.snapshot_space(&catalog.snapshot(&name("tank/x@b")).unwrap()).unwrap().written;
    assert_eq!(written, 0);
}

#[test]
fn one_that_is_open_is_not_destroyed_and_one_that_was_is() {
    let World { datasets, head, .. } = World::new();
    file(&head, b"kept back");
    let plan = |datasets: &Datasets| {
        let catalog = datasets.catalog();
        DestroyPlan::dataset(&catalog, &catalog.dataset("tank/x").unwrap(), false, false).unwrap()
    };
    assert!(matches!(datasets.destroy(&plan(&datasets)), Err(DatasetError::Busy { .. })));
    drop(head);
    datasets.destroy(&plan(&datasets)).unwrap();
    check(&datasets, "destroying what had been open");
}

#[test]
fn many_writers_at_once_lose_nothing() {
    let world = World::new();
    let objects: Vec<u64> = (0..4).map(|_| file(&world.head, b"")).collect();
    std::thread::scope(|scope| {
        for (index, object) in objects.iter().enumerate() {
            let head = &world.head;
            scope.spawn(move || {
                for round in 0..200u64 {
                    let tx = head.begin(Room::Write(4096)).unwrap();
                    head.write(&tx, *object, round * 1000, &[index as u8 + 1; 1000]).unwrap();
                    drop(tx);
                    if round % 50 == 49 {
                        head.sync().unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..10 {
                world.datasets.snapshot(&[name(&format!("tank/x@{round}"))], &[]).unwrap();
            }
        });
        scope.spawn(|| (0..100).for_each(|_| world.datasets.pool().write_out().unwrap()));
    });
    for (index, object) in objects.iter().enumerate() {
        let mut data = vec![0; 200_000];
        world.head.read(*object, 0, &mut data).unwrap();
        assert!(data.iter().all(|byte| *byte == index as u8 + 1), "object {object}");
    }
    world.head.sync().unwrap();
    check(&world.datasets, "concurrent writers");
}

/// Whole blocks that are overwritten while they are written out and read always have the content of one write.
#[test]
fn whole_blocks_are_not_mixed() {
    const LEN: usize = 128 << 10;
    let world = World::new();
    let head = &world.head;
    let object = {
        let tx = head.begin(Room::Write(0)).unwrap();
        let new = NewObject {
            object_type: FILE,
            bonus_type: 44,
            block_size: LEN as u32,
            slots: 1,
            bonus: vec![0; 8],
        };
        head.create(&tx, new).unwrap()
    };
    let patterns: Vec<Vec<u8>> = (1..=4).map(|seed| noise(LEN, seed)).collect();
    let is_one = |data: &[u8]| patterns.iter().any(|pattern| pattern == data);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..400u64 {
                let tx = head.begin(Room::Write(2 * LEN as u64)).unwrap();
                let at = (round % 8) * LEN as u64;
                head.write(&tx, object, at, &patterns[(round / 8 % 4) as usize]).unwrap();
                drop(tx);
                if round % 100 == 99 {
                    head.sync().unwrap();
                }
            }
        });
        let mut data = vec![0; LEN];
        for round in 0u64.. {
            world.datasets.pool().write_out().unwrap();
            head.read(object, (round % 8) * LEN as u64, &mut data).unwrap();
            assert!(is_one(&data) || data.iter().all(|byte| *byte == 0), "block {}", round % 8);
            if writer.is_finished() {
                break;
            }
        }
    });
    let expected = &patterns[399 / 8 % 4];
    let mut data = vec![0; LEN];
    for block in 0..8 {
        head.read(object, block * LEN as u64, &mut data).unwrap();
        assert!(data == *expected, "block {block}");
    }
    head.sync().unwrap();
    check(&world.datasets, "whole blocks");
}

/// New features of the content are recorded for streams, even if everything was written out before the commit.
#[test]
fn features_of_what_was_written_out_are_noted() {
    let world = World::new();
    let features = || {
        let catalog = world.datasets.catalog();
        let dataset = catalog.dataset("tank/x").unwrap();
        catalog.head(&dataset).unwrap().content().features
    };
    {
        let tx = world.head.begin(Room::Write(2 << 20)).unwrap();
        let new =
            NewObject { object_type: FILE, bonus_type: 44, block_size: 1 << 20, slots: 2, bonus: vec![0; 8] };
        let object = world.head.create(&tx, new).unwrap();
        world.head.write(&tx, object, 0, &noise(1 << 20, 1)).unwrap();
    }
    world.datasets.pool().write_out().unwrap();
    assert!(!features().contains(Features::LARGE_BLOCKS));
    world.head.sync().unwrap();
    assert!(features().contains(Features::LARGE_BLOCKS | Features::LARGE_DNODE));
    check(&world.datasets, "features");
}
