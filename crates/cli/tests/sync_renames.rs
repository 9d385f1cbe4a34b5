//! `sync -r` into directories, after datasets were renamed.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::remote::with_remote;
use common::{Said, Scratch};
use serde_json::Value;

/// Each file below a directory with its content, without the records of targets.
fn contents(top: &Path) -> BTreeMap<String, String> {
    fn look(top: &Path, path: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(path).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            match entry.file_type().unwrap().is_dir() {
                _ if name.starts_with('.') => {}
                true => look(top, &entry.path(), found),
                false => {
                    let below = entry.path().strip_prefix(top).unwrap().display().to_string();
                    let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
                    found.insert(below, text.trim_end_matches('\0').to_owned());
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    look(top, top, &mut found);
    found
}

fn files(expected: &[(&str, &str)]) -> BTreeMap<String, String> {
    expected.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn put(scratch: &Scratch, path: &str, content: &str) {
    let path = scratch.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// t with t/a, t/a/deep, t/b and the volume t/disk. Each has one file that names its dataset.
fn with_tree() -> Scratch {
    let scratch = Scratch::with_pool();
    put(&scratch, "from/t/file", "top");
    // The directory on which it would be mounted.
    fs::create_dir_all(scratch.path().join("from/t/a")).unwrap();
    scratch.ok("import from/t tank/t");
    put(&scratch, "a/file", "of a");
    put(&scratch, "deep/file", "of deep");
    put(&scratch, "b/file", "of b");
    for (from, to) in [("a", "t/a"), ("deep", "t/a/deep"), ("b", "t/b")] {
        scratch.ok(&format!("import {from} tank/{to}"));
    }
    let mut disk = b"of disk".to_vec();
    disk.resize(1 << 20, 0);
    fs::write(scratch.path().join("disk"), disk).unwrap();
    scratch.ok("import disk tank/t/disk");
    scratch
}

const FIRST: [(&str, &str); 5] = [
    ("file", "top"),
    ("a/file", "of a"),
    ("a/deep/file", "of deep"),
    ("b/file", "of b"),
    ("disk", "of disk"),
];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The bytes that a sync wrote, and its datasets that had another name before.
fn synced(said: &Said) -> (u64, Vec<String>) {
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    let told = json(&said.out);
    let renamed = told["datasets"].as_array().unwrap().iter().filter(|row| !row["rename"].is_null());
    let renamed = renamed.map(|row| row["source"].as_str().unwrap().to_owned()).collect();
    (told["bytes"].as_u64().unwrap(), renamed)
}

fn copy(scratch: &Scratch) -> PathBuf {
    scratch.path().join("copy")
}

fn sync(scratch: &Scratch) -> (u64, Vec<String>) {
    synced(&scratch.run("sync -r --json tank/t ./copy"))
}

#[test]
fn copies_are_renamed_as_their_datasets() {
    let scratch = with_tree();
    sync(&scratch);
    assert_eq!(contents(&copy(&scratch)), files(&FIRST));
    let inode = |path: &str| fs::metadata(copy(&scratch).join(path)).unwrap().ino();
    let (a, deep, disk) = (inode("a/file"), inode("a/deep/file"), inode("disk"));
    // A filesystem with those below it, an image, and a move into a new dataset.
    for line in ["rename tank/t/a tank/t/alicia", "create tank/t/new", "rename tank/t/disk tank/t/new/disc"] {
        scratch.ok(line);
    }
    let told = scratch.ok("sync -rn tank/t ./copy");
    for expected in ["would rename ./copy/a to ./copy/alicia", "would rename ./copy/disk to ./copy/new/disc"]
    {
        assert!(told.contains(expected), "{told}");
    }
    assert!(!told.contains("would copy to ./copy/alicia"), "{told}");
    assert_eq!(contents(&copy(&scratch)), files(&FIRST));
    let (bytes, renamed) = sync(&scratch);
    assert_eq!(
        (bytes, renamed),
        (0, ["alicia", "alicia/deep", "new/disc"].map(|name| format!("tank/t/{name}")).to_vec())
    );
    let renamed = [
        ("file", "top"),
        ("alicia/file", "of a"),
        ("alicia/deep/file", "of deep"),
        ("b/file", "of b"),
        ("new/disc", "of disk"),
    ];
    assert_eq!(contents(&copy(&scratch)), files(&renamed));
    assert_eq!([inode("alicia/file"), inode("alicia/deep/file"), inode("new/disc")], [a, deep, disk]);
    assert!(!copy(&scratch).join(".snowmelt-sync/moving").exists());
    assert!(!copy(&scratch).join(".disk.snowmelt-sync").exists());
    // From then on each copy is known by its new name, also alone. Changes by other programs are still noticed.
    scratch.ok("sync tank/t/alicia ./copy/alicia");
    scratch.ok("sync tank/t/new/disc ./copy/new/disc");
    assert_eq!(sync(&scratch), (0, vec![]));
    put(&scratch, "a/file", "of alicia");
    scratch.ok("import a tank/t/alicia");
    scratch.ok("rename tank/t/alicia tank/t/c");
    fs::write(copy(&scratch).join("alicia/file"), "changed here").unwrap();
    let said = scratch.run("sync -r tank/t ./copy");
    assert!(said.code == 3 && said.err.contains("file: it was changed"), "{said:?}");
    assert_eq!(fs::read_to_string(copy(&scratch).join("c/file")).unwrap(), "changed here");
    scratch.ok("sync -rF tank/t ./copy");
    assert_eq!(fs::read_to_string(copy(&scratch).join("c/file")).unwrap(), "of alicia");
    scratch.ok("check tank");
}

#[test]
fn copies_change_places() {
    let scratch = with_tree();
    sync(&scratch);
    // A swap, and a chain: c was b, b was a, a is new. deep stays at its place below another dataset.
    for line in ["rename tank/t/b tank/t/c", "rename tank/t/a tank/t/b"] {
        scratch.ok(line);
    }
    put(&scratch, "x/file", "new a");
    scratch.ok("import x tank/t/a");
    scratch.ok("rename tank/t/b/deep tank/t/a/deep");
    let (bytes, renamed) = sync(&scratch);
    assert_eq!(bytes, "new a".len() as u64);
    assert_eq!(renamed, ["tank/t/b", "tank/t/c"]);
    let chained = [
        ("file", "top"),
        ("a/file", "new a"),
        ("a/deep/file", "of deep"),
        ("b/file", "of a"),
        ("c/file", "of b"),
        ("disk", "of disk"),
    ];
    assert_eq!(contents(&copy(&scratch)), files(&chained));
    for line in ["rename tank/t/b tank/t/x", "rename tank/t/c tank/t/b", "rename tank/t/x tank/t/c"] {
        scratch.ok(line);
    }
    assert_eq!(sync(&scratch).0, 0);
    let mut swapped = files(&chained);
    swapped.insert("b/file".to_owned(), "of b".to_owned());
    swapped.insert("c/file".to_owned(), "of a".to_owned());
    assert_eq!(contents(&copy(&scratch)), swapped);
    // Nested renames: the upper one becomes the lower one.
    for line in ["rename tank/t/a/deep tank/t/top", "rename tank/t/a tank/t/top/a"] {
        scratch.ok(line);
    }
    assert_eq!(sync(&scratch).0, 0);
    assert_eq!(fs::read_to_string(copy(&scratch).join("top/file")).unwrap(), "of deep");
    assert_eq!(fs::read_to_string(copy(&scratch).join("top/a/file")).unwrap(), "new a");
    assert_eq!(sync(&scratch), (0, vec![]));
}

#[test]
fn a_move_that_was_cut_off_goes_on() {
    let scratch = with_tree();
    sync(&scratch);
    for line in ["rename tank/t/a tank/t/c", "rename tank/t/disk tank/t/disc"] {
        scratch.ok(line);
    }
    // The state after a kill: some copies are in the waiting directory. The record of the image was copied but not yet
    // removed.
    let waiting = copy(&scratch).join(".snowmelt-sync/moving");
    fs::create_dir(&waiting).unwrap();
    fs::rename(copy(&scratch).join("a/deep"), waiting.join("w0")).unwrap();
    fs::copy(copy(&scratch).join(".disk.snowmelt-sync"), waiting.join(".w1.snowmelt-sync")).unwrap();
    fs::rename(copy(&scratch).join("disk"), waiting.join("w1")).unwrap();
    let told = scratch.ok("sync -rn tank/t ./copy");
    assert!(told.contains("would rename ./copy/.snowmelt-sync/moving/w0 to ./copy/c/deep"), "{told}");
    assert!(!told.contains("would copy all of"), "{told}");
    assert_eq!(sync(&scratch).0, 0);
    let expected = [
        ("file", "top"),
        ("c/file", "of a"),
        ("c/deep/file", "of deep"),
        ("b/file", "of b"),
        ("disc", "of disk"),
    ];
    assert_eq!(contents(&copy(&scratch)), files(&expected));
    assert!(!waiting.exists());
    assert!(!copy(&scratch).join(".disk.snowmelt-sync").exists());
    // A later moment: the image was already at its place, but its record at both places.
    fs::create_dir(&waiting).unwrap();
    fs::copy(copy(&scratch).join(".disc.snowmelt-sync"), waiting.join(".w0.snowmelt-sync")).unwrap();
    scratch.ok("rename tank/t/c tank/t/a");
    assert_eq!(sync(&scratch).0, 0);
    assert!(!waiting.exists());
    assert_eq!(sync(&scratch), (0, vec![]));
    // A waiting copy whose dataset no longer exists stays and is reported.
    fs::create_dir(&waiting).unwrap();
    fs::rename(copy(&scratch).join("b"), waiting.join("w0")).unwrap();
    scratch.ok("destroy -r tank/t/b");
    let said = scratch.run("sync -r tank/t ./copy");
    assert!(said.code == 0 && said.err.contains("moving/w0' is left from an interrupted move"), "{said:?}");
    assert_eq!(fs::read_to_string(waiting.join("w0/file")).unwrap(), "of b");
}

#[test]
fn what_is_in_the_way_is_left_alone() {
    let scratch = with_tree();
    sync(&scratch);
    // A file of the user, the copy of a destroyed dataset, and a copy that can move.
    put(&scratch, "copy/c", "mine");
    for line in ["rename tank/t/a tank/t/c", "destroy -r tank/t/b", "rename tank/t/disk tank/t/b"] {
        scratch.ok(line);
    }
    scratch.ok("create tank/t/e");
    let said = scratch.run("sync -r tank/t ./copy");
    assert_eq!(said.code, 3, "{said:?}");
    for expected in
        ["copy/a' is to be renamed", "copy/c' is in the way", "copy/b' is in the way", "1 dataset below"]
    {
        assert!(said.err.contains(expected), "{expected}: {said:?}");
    }
    let mut left = files(&FIRST);
    left.insert("c".to_owned(), "mine".to_owned());
    assert_eq!(contents(&copy(&scratch)), left);
    // After the obstacles are moved away, everything works.
    fs::rename(copy(&scratch).join("c"), scratch.path().join("kept")).unwrap();
    fs::rename(copy(&scratch).join("b"), scratch.path().join("kept b")).unwrap();
    assert_eq!(sync(&scratch).0, 0);
    let expected = [("file", "top"), ("c/file", "of a"), ("c/deep/file", "of deep"), ("b", "of disk")];
    assert_eq!(contents(&copy(&scratch)), files(&expected));
    // A sync that is running on one of the copies is not disturbed. The others are renamed.
    scratch.ok("rename tank/t/c tank/t/a");
    scratch.ok("rename tank/t/b tank/t/f");
    let held = fs::File::open(copy(&scratch).join("c/.snowmelt-sync")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let said = scratch.run("sync -r --retries 0 tank/t ./copy");
    assert!(said.code == 3 && said.err.contains("another sync is writing"), "{said:?}");
    let expected = [("file", "top"), ("c/file", "of a"), ("c/deep/file", "of deep"), ("f", "of disk")];
    assert_eq!(contents(&copy(&scratch)), files(&expected));
    drop(held);
    // A symbolic link below the target is not followed.
    fs::create_dir(scratch.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(scratch.path().join("elsewhere"), copy(&scratch).join("a")).unwrap();
    let said = scratch.run("sync -r tank/t ./copy");
    assert!(said.code == 3 && said.err.contains("copy/a' is in the way"), "{said:?}");
    assert_eq!(fs::read_dir(scratch.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn copies_of_another_machine_are_renamed_too() {
    let scratch = with_tree();
    let rsh = with_remote(&scratch);
    let there = scratch.path().join("remote/copy");
    let line = format!("sync -r --json -e {} tank/t host:{}", rsh.display(), there.display());
    synced(&scratch.run(&line));
    for line in ["rename tank/t/a tank/t/x", "rename tank/t/b tank/t/a", "rename tank/t/x tank/t/b"] {
        scratch.ok(line);
    }
    let (bytes, renamed) = synced(&scratch.run(&line));
    assert_eq!((bytes, renamed.len()), (0, 3));
    let swapped = [
        ("file", "top"),
        ("b/file", "of a"),
        ("b/deep/file", "of deep"),
        ("a/file", "of b"),
        ("disk", "of disk"),
    ];
    assert_eq!(contents(&there), files(&swapped));
    assert_eq!(synced(&scratch.run(&line)), (0, vec![]));
}
