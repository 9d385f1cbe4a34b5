//! A simulation of a pool with random operations in an order that a seed decides: writers, snapshots, clones,
//! rollbacks, delayed sends, receives that are interrupted and resumed, imports, the cleaner; power failures, killed
//! processes, failing disks, and disks of mirrors that are unplugged, plugged in again and resilvered. After each crash
//! the pool must have its state of some moment after the last operation that was reported as durable.
//!
//! Seed, clock and guids are simulated, so a seed can be replayed exactly: `SNOWMELT_SEEDS=17..18 cargo test -p
//! snowmelt-dataset --lib simulation -- --nocapture`.
//!
//! - `machine`: the process and its disk; every fourth seed has a mirror of two. `disk`: the order of the operations on
//!   them
//! - `model`, `observe`: the expected content of the pool, and the actual one
//! - `operations`, `replicate`: the operations
//! - `world`: their order, the crashes, and the possible states after one

mod disk;
mod machine;
mod model;
mod observe;
mod operations;
mod replicate;
mod rng;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use self::operations::system_attributes;
use self::world::World;

/// Object numbers above those of a new filesystem.
const FIRST_OBJECT: u64 = 1000;
const OBJECTS: u64 = 6;

/// Operations and crashes of one seed.
const STEPS: usize = 120;

/// Seeds of an ordinary run.
const SEEDS: Range<u64> = 0..300;

/// `SNOWMELT_SEEDS=FIRST..END` sets other seeds.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("SNOWMELT_SEEDS") else { return SEEDS };
    let range = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    range.unwrap_or_else(|| panic!("SNOWMELT_SEEDS is FIRST..END, not {text}"))
}

/// Runs a seed, and returns what happened.
fn run(seed: u64) -> World {
    crate::random::simulate(seed);
    let mut world = World::new(seed);
    if let Err(error) = world.run(STEPS) {
        let journal = world.journal.join("\n  ");
        panic!("seed {seed}, after\n  {journal}\n{error}");
    }
    world
}

#[test]
fn nothing_that_was_acknowledged_is_lost() {
    let next = AtomicU64::new(seeds().start);
    let counts = Mutex::new(BTreeMap::<String, usize>::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds().contains(&seed) {
                break;
            }
            let world = run(seed);
            let mut counts = counts.lock();
            for line in &world.journal {
                let what = line.split([' ', ':']).next().unwrap_or_default();
                let refused = if line.contains(": refused") { ", refused" } else { "" };
                *counts.entry(format!("{what}{refused}")).or_default() += 1;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    println!("{:#?}", counts.lock());
}

#[test]
fn a_seed_replays_exactly() {
    for seed in seeds().take(100) {
        let (first, second) = (run(seed), run(seed));
        let lines = || first.journal.iter().zip(&second.journal).enumerate();
        let differ = lines().find(|(_, (first, second))| first != second);
        assert_eq!(differ, None, "seed {seed}");
        assert!(first.model == second.model, "seed {seed}");
    }
}
