//! Pools whose newest txg cannot be read: no data is given up without consent.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Scratch, demo};

/// The pool's segments and their lengths.
fn segments(pool: &Path) -> BTreeMap<PathBuf, u64> {
    let directories = fs::read_dir(pool.join("segments")).unwrap();
    let files = directories.flat_map(|directory| fs::read_dir(directory.unwrap().path()).unwrap());
    files.map(|file| file.unwrap()).map(|file| (file.path(), file.metadata().unwrap().len())).collect()
}

/// Damages everything that was written since `before`.
fn damage_since(pool: &Path, before: &BTreeMap<PathBuf, u64>) {
    for path in segments(pool).into_keys() {
        let mut bytes = fs::read(&path).unwrap();
        let from = usize::try_from(before.get(&path).copied().unwrap_or(0)).unwrap();
        bytes[from..].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&path, bytes).unwrap();
    }
}

fn txg(scratch: &Scratch) -> u64 {
    let json: serde_json::Value = serde_json::from_str(&scratch.ok("pool status -j tank")).unwrap();
    let txg = &json["pools"]["tank"]["txg"];
    txg.as_str().map_or_else(|| txg.as_u64(), |text| text.parse().ok()).unwrap()
}

#[test]
fn a_pool_goes_back_only_when_it_is_told_to() {
    let scratch = Scratch::with_pool();
    let pool = scratch.path().join("data/snowmelt/tank");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let before = segments(&pool);
    scratch.ok("create tank/lost");
    damage_since(&pool, &before);
    let said = scratch.fails(1, "list tank");
    assert!(said.contains("the newest, cannot be read: "), "{said}");
    assert!(said.contains("'snowmelt pool import -F tank' does it"), "{said}");
    assert_eq!(scratch.run("pool import tank").code, 1);

    let would = scratch.ok("pool import -Fn tank");
    assert!(would.starts_with("'tank' would be as of txg "), "{would}");
    assert_eq!(scratch.run("list tank").code, 1, "nothing has changed");
    let done = scratch.ok("pool import -F tank");
    assert_eq!(done, would.replace("would be", "is"));
    let listed = scratch.ok("list -H -o name -r tank");
    assert!(listed.contains("tank/home\n") && !listed.contains("tank/lost"), "{listed}");
    scratch.ok("check tank");
    assert!(scratch.ok("pool status tank").contains("errors: No known data errors"));
    assert!(scratch.ok("pool history tank").contains("snowmelt pool import -F tank"));
    scratch.ok("create tank/again");
    scratch.ok("check tank");
    assert_eq!(
        scratch.ok("pool import -Fn tank"),
        "'tank' can be imported without a rewind: nothing would be discarded\n"
    );
}

#[test]
fn a_txg_is_gone_back_to_by_its_number() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/first");
    let wanted = txg(&scratch);
    scratch.ok("create tank/second");
    let said = scratch.fails(1, "pool import -T 1000000 tank");
    assert!(said.contains("txg 1000000 cannot be gone back to: there are "), "{said}");
    scratch.ok(&format!("pool import -T {wanted} tank"));
    assert_eq!(scratch.ok("list -H -o name -r tank"), "tank\ntank/first\n");
    scratch.ok("check tank");
}

#[test]
fn words_that_make_no_sense_alone_are_refused() {
    let scratch = Scratch::with_pool();
    for line in ["pool import -n tank", "pool import -X tank", "pool import -T x tank"] {
        assert_eq!(scratch.run(line).code, 2, "{line}");
    }
}

#[test]
fn a_pool_without_uberblocks_is_found_again() {
    let scratch = Scratch::with_pool();
    let pool = scratch.path().join("data/snowmelt/tank");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let kept = scratch.ok("manifest tank/home@monday");
    assert_eq!(scratch.ok("salvage tank"), "'tank' can be opened: there is nothing to salvage\n");
    fs::write(pool.join("uberblocks"), vec![0; 512 << 10]).unwrap();
    let said = scratch.fails(1, "list tank");
    assert!(said.contains("no readable uberblock"), "{said}");
    assert!(said.contains("'snowmelt salvage tank' searches it"), "{said}");
    let would = scratch.ok("salvage -n tank");
    assert!(would.contains("'tank' would be as of txg "), "{would}");
    assert_eq!(scratch.run("list tank").code, 1, "nothing has changed");
    let done = scratch.ok("salvage tank");
    assert_eq!(done, would.replace("would be", "is"));
    assert!(done.contains("2 datasets, no errors in its metadata"), "{done}");
    assert_eq!(scratch.ok("manifest tank/home@monday"), kept);
    scratch.ok("check tank");
    scratch.ok("create tank/again");
    scratch.ok("check tank");
    assert!(scratch.ok("pool history tank").contains("snowmelt salvage tank"));
}

/// All of the last four txgs are damaged, so that none of their uberblocks is usable.
#[test]
fn what_import_cannot_bring_back_salvage_does() {
    let scratch = Scratch::with_pool();
    let pool = scratch.path().join("data/snowmelt/tank");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let before = segments(&pool);
    for name in ["a", "b", "c", "d"] {
        scratch.ok(&format!("create tank/{name}"));
    }
    damage_since(&pool, &before);
    let said = scratch.fails(1, "pool import -F tank");
    assert!(said.contains("none of the 4 newest uberblocks leads to a readable pool"), "{said}");
    assert!(said.contains("'snowmelt salvage tank' searches it"), "{said}");
    scratch.ok("salvage tank");
    let listed = scratch.ok("list -H -o name -r tank");
    assert_eq!(listed, "tank\ntank/home\n");
    scratch.ok("check tank");
}

#[test]
fn what_is_no_pool_is_not_salvaged() {
    let scratch = Scratch::new();
    assert!(scratch.fails(1, "salvage nowhere").starts_with("cannot salvage 'nowhere': no such pool\n"));
    fs::create_dir(scratch.path().join("empty")).unwrap();
    assert!(scratch.fails(1, "salvage ./empty").starts_with("cannot salvage './empty': no such pool\n"));
}
