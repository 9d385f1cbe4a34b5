//! A volume compared with an array of bytes, over snapshots, changes of size and crashes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use proptest::prelude::*;
use snowmelt_dataset::{CheckOptions, CreateOptions, Datasets, Name, NewVolume};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;
use snowmelt_volume::{Volume, VolumeError};

const BLOCK: u32 = 4096;

fn new_volume(store: &MemoryStore, size: u64) -> Arc<Datasets> {
    let new = NewPool { name: "tank", guid: 1 };
    let options = PoolOptions { node_bytes: 2 << 10, ..PoolOptions::default() };
    let datasets = Datasets::create(Pool::create(Box::new(store.clone()), &new, options).unwrap()).unwrap();
    let volume = NewVolume { size, block_size: BLOCK };
    datasets.create_volume("tank/v", &volume, &CreateOptions::default()).unwrap();
    datasets
}

fn check(datasets: &Datasets) {
    let mut faults = Vec::new();
    datasets.check(CheckOptions { data: true }, &mut |finding| faults.push(format!("{finding:?}"))).unwrap();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[derive(Debug, Clone)]
enum Op {
    Write { offset: u32, len: u16, byte: u8 },
    Zero { offset: u32, len: u32 },
    Flush,
    Snapshot,
    Resize { blocks: u8 },
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..300_000, 0u16..20_000, any::<u8>()).prop_map(|(offset, len, byte)| Op::Write { offset, len, byte }),
        3 => (0u32..300_000, 0u32..60_000).prop_map(|(offset, len)| Op::Zero { offset, len }),
        2 => Just(Op::Flush),
        1 => Just(Op::Snapshot),
        1 => (1u8..80).prop_map(|blocks| Op::Resize { blocks }),
        1 => Just(Op::Crash),
    ]
}

fn compare(volume: &Volume, model: &[u8]) {
    assert_eq!(volume.size().unwrap(), model.len() as u64);
    let mut data = vec![1; model.len()];
    volume.read(0, &mut data).unwrap();
    assert!(data == model);
    let mut at = 0;
    for extent in volume.extents(0, model.len() as u64, usize::MAX).unwrap() {
        let end = at + extent.length as usize;
        assert!(extent.length > 0);
        assert!(extent.data || model[at..end].iter().all(|byte| *byte == 0));
        at = end;
    }
    assert_eq!(at, model.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn is_an_array_of_bytes(ops in proptest::collection::vec(op(), 1..40)) {
        let mut store = MemoryStore::new();
        let mut datasets = new_volume(&store, 64 * u64::from(BLOCK));
        let mut volume = Volume::open(&datasets, "tank/v").unwrap();
        let mut model = vec![0; 64 * BLOCK as usize];
        let mut durable = model.clone();
        let mut snapshots: Vec<Vec<u8>> = Vec::new();
        for op in ops {
            match op {
                Op::Write { offset, len, byte } => {
                    let data = vec![byte; usize::from(len)];
                    let end = offset as usize + data.len();
                    let done = volume.write(u64::from(offset), &data);
                    if end <= model.len() {
                        done.unwrap();
                        model[offset as usize..end].copy_from_slice(&data);
                    } else {
                        let is_range = matches!(done, Err(VolumeError::Range { .. }));
                        prop_assert!(is_range);
                    }
                }
                Op::Zero { offset, len } => {
                    let end = (offset as usize + len as usize).min(model.len());
                    let from = (offset as usize).min(end);
                    volume.zero(from as u64, (end - from) as u64).unwrap();
                    model[from..end].fill(0);
                }
                Op::Flush => {
                    volume.flush().unwrap();
                    durable = model.clone();
                }
                Op::Snapshot => {
                    let name = Name::parse(&format!("tank/v@{}", snapshots.len())).unwrap();
                    datasets.snapshot(&[name], &[]).unwrap();
                    snapshots.push(model.clone());
                    durable = model.clone();
                }
                Op::Resize { blocks } => {
                    let size = usize::from(blocks) * BLOCK as usize;
                    datasets.resize_volume("tank/v", size as u64).unwrap();
                    model.resize(size, 0);
                    durable = model.clone();
                }
                Op::Crash => {
                    store = store.snapshot();
                    let pool = Pool::open(Box::new(store.clone()), PoolOptions::default()).unwrap();
                    datasets = Datasets::open(pool).unwrap();
                    volume = Volume::open(&datasets, "tank/v").unwrap();
                    model = durable.clone();
                }
            }
            compare(&volume, &model);
        }
        for (index, content) in snapshots.iter().enumerate() {
            let snapshot = Volume::open(&datasets, &format!("tank/v@{index}")).unwrap();
            compare(&snapshot, content);
            let refused = matches!(snapshot.write(0, &[1]), Err(VolumeError::ReadOnly));
            prop_assert!(refused);
        }
        volume.flush().unwrap();
        check(&datasets);
    }
}

#[test]
fn writers_of_one_block_do_not_undo_one_another() {
    let store = MemoryStore::new();
    let datasets = new_volume(&store, 16 * u64::from(BLOCK));
    let volume = Volume::open(&datasets, "tank/v").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8u64 {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..64u64 {
                    volume.write(round * 1024 + writer * 128, &[writer as u8 + 1; 128]).unwrap();
                    if round % 16 == writer {
                        volume.flush().unwrap();
                    }
                }
            });
        }
    });
    let mut data = vec![0; 64 * 1024];
    volume.read(0, &mut data).unwrap();
    for (at, byte) in data.iter().enumerate() {
        assert_eq!(usize::from(*byte), at % 1024 / 128 + 1, "byte {at}");
    }
    volume.flush().unwrap();
    check(&datasets);
}

#[test]
fn impossible_volumes_are_refused() {
    let store = MemoryStore::new();
    let datasets = new_volume(&store, 1 << 20);
    for (size, block_size) in
        [(0, 4096), (4097, 4096), (1 << 20, 1000), (1 << 20, 256), (u64::MAX - 4095, 4096)]
    {
        let made =
            datasets.create_volume("tank/w", &NewVolume { size, block_size }, &CreateOptions::default());
        assert!(made.is_err(), "{size} bytes in blocks of {block_size}");
    }
    assert!(Volume::open(&datasets, "tank").is_err());
}
