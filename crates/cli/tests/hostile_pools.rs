//! The real binary on pools in directories with arbitrary trees and valid hashes and checksums.
//!
//! Every command ends soon, uses little memory, and fails with a message and not with a panic.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::Scratch;
use snowmelt_dataset::Datasets;
use snowmelt_dataset::fuzzing::whole;
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::{Access, CreateOptions, DirectoryStore, PoolLabel};

/// Address space of a command, including code and stacks, in bytes.
const MEMORY: &str = "--as=3000000000";
/// Maximum time of a command, in seconds.
const PATIENCE: &str = "60";
/// Seeds that are always tested.
const SEEDS: std::ops::Range<u64> = 176..184;

fn options() -> PoolOptions {
    PoolOptions { node_bytes: 2 << 10, segment_bytes: 1 << 20, ..PoolOptions::default() }
}

/// Makes a pool and changes it as the seed determines. Returns `false` if that failed.
fn make(at: &Path, seed: u64) -> bool {
    let label = PoolLabel { guid: 1, name: "tank".to_owned() };
    let create = CreateOptions { label, size: None, force: false };
    let store = DirectoryStore::create(at, &create).unwrap();
    let pool = Pool::create(Box::new(store), &NewPool { name: "tank", guid: 1 }, options()).unwrap();
    let datasets = Datasets::create(pool).unwrap();
    whole::fill(&datasets).unwrap();
    drop(datasets);
    let store = DirectoryStore::open(at, Access::ReadWrite).unwrap();
    let datasets = Datasets::open(Pool::open(Box::new(store), options()).unwrap()).unwrap();
    let mut data = vec![0; 6 * (1 + seed as usize % 4)];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut data);
    whole::spoil(&datasets, &data).is_ok()
}

/// Runs a command with little memory and time.
fn within_limits(scratch: &Scratch, line: &str, pool: &Path) -> Output {
    let plain = scratch.command(line);
    let mut command = Command::new("prlimit");
    command.args([MEMORY, "timeout", "-k", "1", PATIENCE]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let command = command.env("SNOWMELT_POOLS", pool).current_dir(scratch.path());
    command.stdin(Stdio::null()).output().unwrap()
}

/// Files that are holes take no room on a disk, and may have any length.
#[test]
fn a_pool_of_holes_is_searched_in_no_time() {
    let scratch = Scratch::new();
    let pool = scratch.path().join("pool");
    scratch.ok("pool create tank pool");
    scratch.ok("pool export tank");
    File::options().write(true).open(pool.join("uberblocks")).unwrap().set_len(0).unwrap();
    for id in 1..100 {
        let path = pool.join(format!("segments/00/{id:016x}.seg"));
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(1 << 43).unwrap();
    }
    let said = within_limits(&scratch, "salvage tank", &pool);
    let said = (said.status.code(), String::from_utf8_lossy(&said.stdout).into_owned());
    assert!(said.0 == Some(0) && said.1.contains("is as of txg"), "{said:?}");
}

/// `SNOWMELT_SEEDS=FIRST..END` chooses other seeds.
#[test]
fn commands_on_pools_that_say_anything_end_in_messages() {
    let text = std::env::var("SNOWMELT_SEEDS").unwrap_or_default();
    let seeds = text.split_once("..").map(|(first, end)| first.parse().unwrap()..end.parse().unwrap());
    let (mut failed, mut done) = (0, 0);
    for seed in seeds.unwrap_or(SEEDS) {
        let scratch = Scratch::new();
        let pool = scratch.path().join("pool");
        if !make(&pool, seed) {
            continue;
        }
        for line in [
            "list -t all -r tank",
            "get -r all tank",
            "check tank",
            "pool status tank",
            "pool list",
            "pool get all tank",
            "pool history tank",
            "send tank/a@1",
            "send -R tank/a@2",
            "restore tank/a@1 restored",
            "diff tank/a@1 tank/a@2",
            "snapshot -r tank@new",
            "rename tank/c tank/d",
            "destroy -R tank/a@2",
            "destroy -r tank",
            "pool scrub -w tank",
            "check tank",
            "pool export tank",
            "pool import -d pool tank",
        ] {
            let said = within_limits(&scratch, line, &pool);
            let (code, message) = (said.status.code(), String::from_utf8_lossy(&said.stderr));
            // 124: timeout(1) ended it. 101: a panic. None: a signal, for example after a failed allocation.
            assert!(
                code.is_some_and(|code| code < 100),
                "seed {seed}: {line}: {code:?}: {}",
                message.chars().take(4000).collect::<String>()
            );
            assert!(
                code == Some(0) || !said.stderr.is_empty() || !said.stdout.is_empty(),
                "seed {seed}: {line}"
            );
            failed += u32::from(code != Some(0));
            done += 1;
        }
    }
    assert!(done == 0 || failed > 0, "no pool was as bad as it should be");
    eprintln!("{failed} of {done} commands failed");
}
