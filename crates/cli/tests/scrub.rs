//! Scrubs, and how `pool status` reports damage.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::Scratch;

/// Incompressible bytes.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Flips a bit at the first place in any segment that holds these bytes.
fn damage(pool: &Path, content: &[u8]) {
    let needle = &content[..64];
    for entry in walk(pool) {
        let mut bytes = fs::read(&entry).unwrap();
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            bytes[at + 10] ^= 4;
            fs::write(&entry, bytes).unwrap();
            return;
        }
    }
    panic!("no segment holds it");
}

fn walk(top: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => pending.push(entry.path()),
                kind if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// A pool with two snapshots of a few files, and its path.
fn filled(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.path().join("src");
    fs::create_dir_all(top.join("docs")).unwrap();
    for at in 0..4 {
        fs::write(top.join(format!("docs/{at}.bin")), noise(300_000, at)).unwrap();
    }
    scratch.ok("import src tank/home@one");
    fs::write(top.join("docs/3.bin"), noise(300_000, 33)).unwrap();
    scratch.ok("import src tank/home@two");
    scratch.path().join("data/snowmelt/tank")
}

#[test]
fn damaged_files_are_named_as_zpool_names_them() {
    let scratch = Scratch::with_pool();
    let pool = filled(&scratch);
    let out = scratch.ok("pool scrub -w tank");
    assert!(out.starts_with("  scan: scrub repaired 0B in 00:00:0"), "{out}");
    assert!(out.contains(" with 0 errors on "), "{out}");
    damage(&pool, &noise(300_000, 1));
    damage(&pool, &noise(300_000, 3));
    // Nothing was read since, so no damage is known.
    assert_eq!(scratch.ok("pool status -x"), "all pools are healthy\n");
    let said = scratch.run("pool scrub -w tank");
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    assert!(said.out.contains(" with 2 errors on "), "{said:?}");
    let status = scratch.ok("pool status -x");
    assert!(status.contains("\nerrors: 2 data errors, use '-v' for a list\n"), "{status}");
    assert!(status.contains("see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-8A\n"), "{status}");
    let row = status.lines().find(|line| line.starts_with("\ttank")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["tank", "ONLINE", "0", "0", "2"]);
    let status = scratch.ok("pool status -v tank");
    let (_, named) = status.split_once("in the following files:\n\n").unwrap();
    let expected = "        tank/home:/docs/1.bin\n        \
        tank/home@one:/docs/1.bin\n        tank/home@one:/docs/3.bin\n        tank/home@two:/docs/1.bin\n";
    assert_eq!(named, expected);
    let json: serde_json::Value = serde_json::from_str(&scratch.ok("pool status -vj")).unwrap();
    let tank = &json["pools"]["tank"];
    assert_eq!((&tank["error_count"], &tank["scan_stats"]["errors"]), (&"2".into(), &"2".into()));
    assert_eq!(tank["errlist"].as_array().unwrap().len(), 4);
    // A destroyed snapshot is no longer named. The next scrub forgets it.
    scratch.ok("destroy tank/home@one");
    assert!(!scratch.ok("pool status -v tank").contains("3.bin"));
    // The same after the damage is undone.
    damage_back(&pool, &noise(300_000, 1));
    assert!(scratch.ok("pool scrub -w tank").contains(" with 0 errors on "));
    let status = scratch.ok("pool status -x tank");
    assert!(
        status.contains("msg/ZFS-8000-9P\n") && status.contains("errors: No known data errors\n"),
        "{status}"
    );
    scratch.ok("pool clear tank");
    assert_eq!(scratch.ok("pool status -x tank"), "pool 'tank' is healthy\n");
    scratch.ok("check tank");
}

/// Undoes [`damage`].
fn damage_back(pool: &Path, content: &[u8]) {
    let mut hurt = content.to_vec();
    hurt[10] ^= 4;
    damage(pool, &hurt);
}

#[test]
fn what_a_reader_meets_is_known_at_once() {
    let scratch = Scratch::with_pool();
    let pool = filled(&scratch);
    damage(&pool, &noise(300_000, 2));
    assert_ne!(scratch.run("cat tank/home@two:/docs/2.bin").code, 0);
    let status = scratch.ok("pool status tank");
    assert!(status.contains("errors: 1 data errors, use '-v' for a list\n"), "{status}");
    // A scrub finds out which files the block belongs to now.
    assert_eq!(scratch.run("pool scrub -w tank").code, 1);
    let status = scratch.ok("pool status -v tank");
    assert!(status.contains("        tank/home@two:/docs/2.bin\n"), "{status}");
    assert!(status.contains("        tank/home@one:/docs/2.bin\n"), "{status}");
}

#[test]
fn damage_to_metadata_is_named_too() {
    let scratch = Scratch::with_pool();
    let pool = filled(&scratch);
    // Nodes of trees are frames of kind 2. They are recognised by their headers.
    let mut hurt = 0;
    for file in walk(&pool) {
        let mut bytes = fs::read(&file).unwrap();
        let frames: Vec<usize> = (0..bytes.len().saturating_sub(96))
            .step_by(8)
            .filter(|at| {
                &bytes[*at..at + 4] == b"SMfr" && bytes[at + 5] == 2 && bytes[at + 24..at + 32] != [0; 8]
            })
            .collect();
        for at in &frames {
            bytes[at + 100] ^= 1;
            hurt += 1;
        }
        if !frames.is_empty() {
            fs::write(&file, bytes).unwrap();
        }
    }
    assert!(hurt > 0);
    let said = scratch.run("pool scrub -w tank");
    assert_eq!(said.code, 1, "{said:?}");
    let status = scratch.ok("pool status -v tank");
    assert!(status.contains("        tank/home@one:") && status.contains("        tank/home:"), "{status}");
}

#[test]
fn in_the_background_and_the_words_of_zpool() {
    let scratch = Scratch::with_pool();
    filled(&scratch);
    let fails = |code, line: &str| scratch.fails(code, line);
    assert_eq!(fails(1, "pool scrub nope"), "cannot open 'nope': no such pool\n");
    assert_eq!(fails(1, "pool scrub -p tank"), "cannot pause scrubbing tank: there is no active scrub\n");
    assert_eq!(fails(1, "pool scrub -s tank"), "cannot cancel scrubbing tank: there is no active scrub\n");
    assert!(fails(2, "pool scrub -s -p tank").contains("-s and -p are mutually exclusive"));
    assert!(fails(2, "pool scrub").contains("missing pool name argument"));
    // Slowly, in the background: the command returns long before the scrub ends.
    assert_eq!(scratch.ok("pool scrub --rate 200K tank"), "");
    let status = scratch.ok("pool status tank");
    assert!(status.contains("  scan: scrub in progress since "), "{status}");
    assert!(status.contains("% done, no estimated completion time\n"), "{status}");
    let busy = "cannot scrub tank: currently scrubbing; use 'snowmelt pool scrub -s' to cancel scrub\n";
    assert_eq!(fails(1, "pool scrub tank"), busy);
    assert_eq!(fails(1, "pool scrub -w tank"), busy);
    // Other commands work at the same time.
    scratch.ok("create tank/other");
    scratch.ok("pool scrub -p tank");
    assert_eq!(
        fails(1, "pool scrub -p tank"),
        "cannot pause scrubbing tank: scrub is paused; use 'snowmelt pool scrub' to resume scrub\n"
    );
    assert!(scratch.ok("pool status tank").contains("  scan: scrub paused since "));
    assert!(scratch.ok("pool scrub -w tank").contains("scrub repaired 0B in "));
    assert_eq!(scratch.ok("pool scrub --rate 200K tank"), "");
    scratch.ok("pool scrub -s tank");
    let status = scratch.ok("pool status tank");
    assert!(status.contains("  scan: scrub canceled on "), "{status}");
    assert_eq!(scratch.ok("pool scrub tank"), "");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !scratch.ok("pool status tank").contains("scrub repaired 0B in ") {
        assert!(Instant::now() < deadline, "it never ended");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_stream_mends_what_is_damaged() {
    let scratch = Scratch::with_pool();
    let pool = filled(&scratch);
    let full = scratch.to_file("send -c tank/home@one", "full");
    let plain = scratch.to_file("send -i @one tank/home@two", "plain");
    damage(&pool, &noise(300_000, 0));
    damage(&pool, &noise(300_000, 3));
    damage(&pool, &noise(300_000, 33));
    assert_eq!(scratch.run("pool scrub -w tank").code, 1);
    assert!(scratch.ok("pool status tank").contains("errors: 3 data errors"));
    // A stream of another snapshot repairs nothing.
    let said = scratch.run_with_input("receive -c tank/home@two", &full);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("no snapshot of 'tank/home' is what the stream is of"), "{said:?}");
    assert_eq!(
        scratch.receive("receive -cv tank/home@one", &full),
        "2 blocks (256K) of tank/home@one repaired\n"
    );
    assert!(scratch.ok("pool status tank").contains("errors: 1 data errors"));
    assert_eq!(
        scratch.receive("receive -cv tank/home", &plain),
        "1 blocks (128K) of tank/home@two repaired\n"
    );
    assert_eq!(scratch.receive("receive -cv tank/home", &plain), "0 blocks (0B) of tank/home@two repaired\n");
    assert!(scratch.ok("pool status tank").contains("errors: No known data errors"));
    assert!(scratch.ok("pool scrub -w tank").contains(" with 0 errors on "));
    scratch.ok("check tank");
    for (file, seed) in [("0", 0), ("3", 33)] {
        let copy = scratch.to_file(&format!("cat tank/home@two:/docs/{file}.bin"), "copy");
        assert_eq!(fs::read(copy).unwrap(), noise(300_000, seed));
    }
    assert!(scratch.ok("pool history tank").contains("receive -cv tank/home@one"));
}

#[test]
fn a_copy_mends_exactly_what_is_damaged() {
    let scratch = Scratch::with_pool();
    let pool = filled(&scratch);
    scratch.ok("pool create other");
    scratch.ok("sync --no-snapshot tank/home other/copy");
    // This snapshot is not in the copy.
    fs::write(scratch.path().join("src/docs/new.bin"), noise(100_000, 77)).unwrap();
    scratch.ok("import src tank/home@three");
    damage(&pool, &noise(300_000, 0));
    damage(&pool, &noise(300_000, 3));
    assert_eq!(scratch.ok("heal -v other/copy tank/home"), "0 blocks (0B) of tank/home repaired\n");
    assert_eq!(scratch.run("pool scrub -w tank").code, 1);
    // The block is damaged in the copy too.
    damage(&scratch.path().join("data/snowmelt/other"), &noise(300_000, 3));
    let said = scratch.run("heal -v other/copy tank/home");
    assert_eq!((said.code, said.out.as_str()), (1, "1 blocks (128K) of tank/home repaired\n"), "{said:?}");
    assert!(said.err.contains("1 damaged blocks were not repaired"), "{said:?}");
    damage_back(&scratch.path().join("data/snowmelt/other"), &noise(300_000, 3));
    assert_eq!(scratch.ok("heal -v other/copy tank/home"), "1 blocks (128K) of tank/home repaired\n");
    assert!(scratch.ok("pool scrub -w tank").contains(" with 0 errors on "));
    damage(&pool, &noise(100_000, 77));
    assert_eq!(scratch.run("pool scrub -w tank").code, 1);
    assert_eq!(scratch.run("heal other/copy tank/home").code, 1);
    scratch.ok("check --metadata-only tank");
    assert!(scratch.fails(1, "heal nope/x tank/home").contains("nope"));
    assert!(scratch.fails(1, "heal other/nope tank/home").contains("'other/nope' does not exist"));
}

#[test]
fn a_pool_with_parity_mends_itself() {
    let scratch = Scratch::new();
    scratch.ok("pool create -o parity=5% tank");
    assert_eq!(scratch.ok("pool get -H -o value,source parity tank"), "5%\tlocal\n");
    assert!(!scratch.ok("pool get all tank").contains("parity"));
    let pool = filled(&scratch);
    for at in 0..3 {
        damage(&pool, &noise(300_000, at));
    }
    // Reading a block repairs it. A scrub finds the others.
    scratch.ok("restore tank/home@two to");
    for at in 0..3 {
        assert_eq!(fs::read(scratch.path().join(format!("to/docs/{at}.bin"))).unwrap(), noise(300_000, at));
    }
    damage(&pool, &noise(300_000, 33));
    let out = scratch.ok("pool scrub -w tank");
    assert!(out.contains(" with 0 errors on ") && !out.contains("repaired 0B"), "{out}");
    let status = scratch.ok("pool status tank");
    let row = status.lines().find(|line| line.starts_with("\ttank")).unwrap();
    // Repairing a block repairs its whole stripe, so not every damaged block was counted.
    let [_, "ONLINE", "0", "0", wrong] = row.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{row}")
    };
    assert!((2..=4).contains(&wrong.parse::<u32>().unwrap()), "{row}");
    assert!(status.contains("errors: No known data errors\n"), "{status}");
    scratch.ok("check tank");
    scratch.ok("pool set parity=off tank");
    assert_eq!(scratch.ok("pool get -H -o value,source parity tank"), "off\tdefault\n");
    for bad in ["parity=51", "parity=-1", "parity=5.5%", "parity="] {
        let said = scratch.run(&format!("pool set {bad} tank"));
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.contains("'parity' must be 'off', or a percentage from 0% to 50%"), "{said:?}");
    }
}
