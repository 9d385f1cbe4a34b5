//! Forged pools with arbitrary records and correct hashes: all operations must end, use little memory, and not panic.
//! The pools are created and used in a separate process with a memory limit.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read;
use std::ops::Range;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use snowmelt_dataset::fuzzing::whole;
use snowmelt_dataset::{CheckOptions, CreateOptions, Datasets};
use snowmelt_pool::{Dead, Deadlist, NewPool, Pool, PoolOptions};
use snowmelt_store::{MemoryStore, SegmentId};

/// Address space of the process, including its code and the stacks of its threads.
const MEMORY: u64 = 1 << 30;
/// Seeds that always run. One of them (181) has a dataset that is its own child.
const SEEDS: Range<u64> = 0..200;
/// Minimal time to wait for the process; two seconds are added for each seed.
const PATIENCE: Duration = Duration::from_secs(120);

fn options() -> PoolOptions {
    PoolOptions {
        node_bytes: 2 << 10,
        segment_bytes: 1 << 20,
        data_cache_bytes: 4 << 20,
        node_cache_bytes: 4 << 20,
        ..PoolOptions::default()
    }
}

fn filled() -> MemoryStore {
    let store = MemoryStore::new();
    let new = NewPool { name: "tank", guid: 1 };
    let pool = Pool::create(Box::new(store.clone()), &new, options()).unwrap();
    whole::fill(&Datasets::create(pool).unwrap()).unwrap();
    store
}

fn open(store: MemoryStore) -> Option<Arc<Datasets>> {
    Datasets::open(Pool::open(Box::new(store), options()).ok()?).ok()
}

/// A pool that was changed according to a seed; `None` if that failed.
fn spoiled(filled: &MemoryStore, seed: u64) -> Option<MemoryStore> {
    let store = filled.snapshot();
    let mut data = vec![0; 6 * (1 + seed as usize % 4)];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut data);
    whole::spoil(&open(store.clone()).unwrap(), &data).ok()?;
    Some(store.snapshot())
}

#[test]
fn a_pool_that_is_well_is_used_in_every_way() {
    let datasets = open(filled()).unwrap();
    whole::exercise(&datasets);
    let names: Vec<String> = whole::all(&datasets).into_iter().map(|dataset| dataset.name).collect();
    assert_eq!(names, ["tank"], "everything was destroyed");
    let report =
        datasets.check(CheckOptions { data: true }, &mut |finding| eprintln!("{finding:?}")).unwrap();
    assert_eq!(report.errors, 0);
}

/// Many short records can name the same deadlist, or lead to its nodes. `check` used to read it once for each of them.
#[test]
fn a_deadlist_that_many_datasets_have_is_read_once() {
    const ENTRIES: u32 = 5_000;
    let store = MemoryStore::new();
    let pool = Pool::create(Box::new(store), &NewPool { name: "tank", guid: 1 }, options()).unwrap();
    let datasets = Datasets::create(pool.clone()).unwrap();
    for number in 0..100 {
        datasets.create_filesystem(&format!("tank/{number}"), &CreateOptions::default()).unwrap();
    }
    let hold = pool.begin().unwrap();
    let deadlist = Deadlist::create(&hold).unwrap();
    for number in 0..ENTRIES {
        let offset = 104 * number;
        let dead = Dead { birth: 1, segment: SegmentId(1), offset, asize: 104, psize: 8, lsize: 512 };
        deadlist.add(&hold, &dead).unwrap();
    }
    let own = pool.tree(deadlist.id()).unwrap();
    let root = own.freeze(&hold).unwrap();
    drop(hold);
    pool.commit().unwrap();
    let hold = pool.begin().unwrap();
    for (number, dataset) in whole::all(&datasets).iter().enumerate() {
        let id = if number.is_multiple_of(2) {
            deadlist.id()
        } else {
            let other = pool.create_tree(&hold).unwrap();
            other.reset(&hold, root.clone(), own.stats()).unwrap();
            other.id()
        };
        pool.tree(dataset.record.head).unwrap().set_sharing(&hold, 1, Some(id)).unwrap();
    }
    drop(hold);
    let (mut found, before) = (0, pool.counters().node_reads);
    datasets.check(CheckOptions { data: true }, &mut |_| found += 1).unwrap();
    assert!(found > 100 && found < 2 * ENTRIES, "{found}");
    let read = pool.counters().node_reads - before;
    assert!(read < u64::from(ENTRIES), "{read}");
}

/// `SNOWMELT_SEEDS=FIRST..END` sets other seeds.
#[test]
fn pools_that_say_anything_end_in_errors() {
    let text = std::env::var("SNOWMELT_SEEDS").unwrap_or_default();
    let seeds = text.split_once("..").map(|(first, end)| first.parse().unwrap()..end.parse().unwrap());
    let seeds = seeds.unwrap_or(SEEDS);
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Each arena of the allocator reserves 64 MiB of address space.
    command.env("MALLOC_ARENA_MAX", "1").env("SNOWMELT_SEEDS", format!("{}..{}", seeds.start, seeds.end));
    command.args(["--exact", "within_the_limit", "--ignored", "--nocapture"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).map(|_| text)
    });
    let status = wait(&mut child, PATIENCE + Duration::from_secs(2 * (seeds.end - seeds.start)));
    let said = reader.join().unwrap().unwrap();
    let tail: Vec<&str> = said.lines().rev().take(40).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    assert!(status.is_some_and(|status| status.success()), "{status:?}:\n{}", tail.join("\n"));
}

/// Waits for a process; `None` if it had to be killed.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn within_the_limit() {
    // If it runs with all other ignored tests, it is not the child of the test above.
    let Ok(text) = std::env::var("SNOWMELT_SEEDS") else { return };
    let (first, end) = text.split_once("..").unwrap();
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::As, limit).unwrap();
    let filled = filled();
    let (mut opened, mut tried) = (0, 0);
    for seed in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        eprintln!("seed {seed}");
        tried += 1;
        if let Some(datasets) = spoiled(&filled, seed).and_then(open) {
            opened += 1;
            whole::exercise(&datasets);
        }
    }
    assert!(opened > tried / 4, "hardly any pool could be opened: {opened} of {tried}");
}
