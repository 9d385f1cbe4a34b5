//! `sync` into directories, images and stream files: the result is the same as a fresh restore.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use common::Scratch;
use serde_json::Value;

const RECORD: &str = ".snowmelt-sync";

/// Everything that a restore sets in a tree, by path. Names of the same file have the same number.
fn tree(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(relative) = todo.pop() {
        let path = top.join(&relative);
        let stat = fs::symlink_metadata(&path).unwrap();
        let mut line = format!(
            "{:o} {}:{} {}.{} links {}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            if stat.is_dir() { 0 } else { stat.nlink() }
        );
        if stat.is_dir() {
            let mut names: Vec<_> =
                fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            let names = names.into_iter().filter(|name| *name != *RECORD).map(|name| relative.join(name));
            todo.extend(names.rev());
        } else {
            let same = first.entry(stat.ino()).or_insert_with(|| relative.clone());
            line += &format!(" as {}", same.display());
        }
        if stat.is_file() {
            let content = fs::read(&path).unwrap();
            let sum =
                content.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            line += &format!(" {} bytes {sum:x}", content.len());
        } else if stat.file_type().is_symlink() {
            line += &format!(" to {}", fs::read_link(&path).unwrap().display());
        }
        if !stat.file_type().is_symlink() && !stat.file_type().is_fifo() {
            for name in xattr::list(&path).unwrap() {
                if name.to_string_lossy().starts_with("user.") {
                    line += &format!(" {name:?}={:?}", xattr::get(&path, &name).unwrap());
                }
            }
        }
        found.insert(relative, line);
    }
    found
}

/// Random numbers, the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % below as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.roll(256) as u8).collect()
    }
}

/// Paths of a tree: either the directories or all other entries.
fn paths(top: &Path, wants_directories: bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let is_directory = fs::symlink_metadata(&path).unwrap().is_dir();
        if is_directory {
            let mut below: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
            below.sort();
            todo.extend(below);
        }
        if is_directory == wants_directories {
            found.push(path);
        }
    }
    found
}

/// Makes one random change in a tree.
fn change(top: &Path, dice: &mut Dice, number: usize) {
    let directories = paths(top, true);
    let files = paths(top, false);
    let directory = directories[dice.roll(directories.len())].clone();
    let file = (!files.is_empty()).then(|| files[dice.roll(files.len())].clone());
    let fresh = directory.join(format!("n{number}"));
    let set_time = |path: &Path, seconds: u64| {
        let time = UNIX_EPOCH + Duration::new(1_000_000_000 + seconds, 123_456_789);
        fs::File::open(path).unwrap().set_modified(time).unwrap();
    };
    match dice.roll(16) {
        0 | 1 => {
            let len = [0, 10, 3000, 200_000][dice.roll(4)];
            fs::write(&fresh, dice.bytes(len)).unwrap();
        }
        2 => fs::create_dir(&fresh).unwrap(),
        3 => symlink(format!("target{number}"), &fresh).unwrap(),
        4 => _ = rustix::fs::mkfifoat(rustix::fs::CWD, &fresh, rustix::fs::Mode::from_raw_mode(0o640)),
        5 => {
            if let Some(file) = file {
                fs::hard_link(file, &fresh).unwrap();
            }
        }
        6 => {
            if let Some(file) = file {
                fs::remove_file(file).unwrap();
            }
        }
        7 if directory != top => fs::remove_dir_all(directory).unwrap(),
        8 | 9 => {
            // Moves a file or a directory, also over an existing entry.
            let moved = if dice.roll(2) == 0 {
                file
            } else {
                Some(directories[dice.roll(directories.len())].clone())
            };
            if let Some(moved) = moved.filter(|moved| *moved != top && !fresh.starts_with(moved)) {
                fs::rename(moved, fresh).unwrap();
            }
        }
        10 => {
            // Two files, or a file and a directory, swap places.
            let other = directories[dice.roll(directories.len())].clone();
            if let Some(file) = file.filter(|file| other != top && !file.starts_with(&other)) {
                let between = top.join("between");
                fs::rename(&file, &between).unwrap();
                fs::rename(&other, &file).unwrap();
                fs::rename(between, &other).unwrap();
            }
        }
        11 => {
            if let Some(file) = file.filter(|file| fs::symlink_metadata(file).unwrap().is_file()) {
                let len = fs::metadata(&file).unwrap().len() as usize;
                let file = fs::File::options().write(true).open(file).unwrap();
                match dice.roll(3) {
                    0 => file.set_len(dice.roll(300_000) as u64).unwrap(),
                    _ => file.write_all_at(&dice.bytes(100), dice.roll(len + 1) as u64).unwrap(),
                }
            }
        }
        12 => {
            if let Some(file) = file.filter(|file| !file.is_symlink()) {
                fs::set_permissions(file, fs::Permissions::from_mode(0o400 + dice.roll(0o377) as u32))
                    .unwrap();
            }
        }
        13 => {
            let target =
                file.filter(|file| fs::symlink_metadata(file).unwrap().is_file()).unwrap_or(directory);
            match dice.roll(3) {
                0 => _ = xattr::remove(target, "user.a"),
                _ => xattr::set(target, "user.a", &dice.bytes(20)).unwrap(),
            }
        }
        14 => set_time(&directory, number as u64),
        _ => fs::set_permissions(directory, fs::Permissions::from_mode(0o700 + dice.roll(0o77) as u32))
            .unwrap(),
    }
}

fn newest(scratch: &Scratch, dataset: &str) -> String {
    scratch.ok(&format!("list -H -t snapshot -o name {dataset}")).lines().last().unwrap().to_owned()
}

/// Checks that a directory equals a fresh restore of the newest snapshot.
fn assert_fresh(scratch: &Scratch, dataset: &str, directory: &str, when: &str) {
    let fresh = scratch.path().join("fresh");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).unwrap();
    }
    scratch.ok(&format!("restore {} ./fresh", newest(scratch, dataset)));
    let (expected, found) = (tree(&fresh), tree(&scratch.path().join(directory)));
    for (path, line) in &expected {
        assert_eq!(found.get(path), Some(line), "{when}: {}", path.display());
    }
    assert_eq!(
        found.len(),
        expected.len(),
        "{when}: {:?}",
        found.keys().find(|path| !expected.contains_key(*path))
    );
}

/// A pool, and a directory `src` that was imported into tank/x.
fn with_source() -> Scratch {
    let scratch = Scratch::with_pool();
    fs::create_dir(scratch.path().join("src")).unwrap();
    scratch
}

fn rounds(seed: u64, rounds: usize) {
    let scratch = with_source();
    let source = scratch.path().join("src");
    let mut dice = Dice(seed);
    let mut number = 0;
    for round in 0..rounds {
        for _ in 0..1 + dice.roll(30) {
            number += 1;
            change(&source, &mut dice, number);
        }
        scratch.ok("import src tank/x");
        // Not every snapshot is synced.
        if dice.roll(3) > 0 {
            scratch.ok("sync tank/x ./copy");
            assert_fresh(&scratch, "tank/x", "copy", &format!("seed {seed}, round {round}"));
        }
    }
    scratch.ok("check tank");
}

#[test]
fn whatever_changes_the_directory_is_a_fresh_restore() {
    for seed in 1..=4 {
        rounds(seed, 8);
    }
}

#[test]
#[ignore = "takes minutes"]
fn whatever_changes_the_directory_is_a_fresh_restore_at_length() {
    for seed in 100..140 {
        rounds(seed, 20);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn what_is_written_is_what_changed() {
    let scratch = with_source();
    let source = scratch.path().join("src");
    fs::create_dir(source.join("films")).unwrap();
    fs::write(source.join("films/one"), Dice(1).bytes(8 << 20)).unwrap();
    scratch.ok("import src tank/x");
    let first = json(&scratch.ok("sync --json tank/x ./copy"));
    assert_eq!(first["bytes"], 8 << 20, "{first}");
    let inode = fs::metadata(scratch.path().join("copy/films/one")).unwrap().ino();
    // A renamed file: nothing is written, and the inode is the same.
    fs::rename(source.join("films"), source.join("cinema")).unwrap();
    scratch.ok("import src tank/x");
    let renamed = json(&scratch.ok("sync --json tank/x ./copy"));
    assert_eq!((renamed["bytes"].as_u64(), renamed["moved"].as_u64()), (Some(0), Some(1)), "{renamed}");
    let file = scratch.path().join("copy/cinema/one");
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    // A few changed bytes of a large file: only their blocks are written.
    let large = fs::File::options().write(true).open(source.join("cinema/one")).unwrap();
    large.write_all_at(b"changed", 5 << 20).unwrap();
    scratch.ok("import src tank/x");
    let changed = json(&scratch.ok("sync --json tank/x ./copy"));
    assert!((1..=1 << 20).contains(&changed["bytes"].as_u64().unwrap()), "{changed}");
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    assert_fresh(&scratch, "tank/x", "copy", "changed in place");
    let nothing = json(&scratch.ok("sync --json tank/x ./copy"));
    assert_eq!(nothing["bytes"], 0);
    // Only one snapshot is kept for this directory.
    let kept = scratch.ok("list -H -t snapshot -o name tank/x");
    assert_eq!(kept.lines().filter(|name| name.contains("@snowmelt-sync_d")).count(), 1, "{kept}");
}

#[test]
fn what_others_put_there_is_not_lost() {
    let scratch = with_source();
    let source = scratch.path().join("src");
    for name in ["a", "b", "c"] {
        fs::write(source.join(name), name).unwrap();
    }
    fs::create_dir(source.join("d")).unwrap();
    scratch.ok("import src tank/x");
    let copy = scratch.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("mine"), "mine").unwrap();
    let said = scratch.fails(1, "sync tank/x ./copy");
    assert!(said.contains("was not made by a sync") && said.contains("--force"), "{said}");
    assert!(!copy.join(RECORD).exists());
    fs::remove_file(copy.join("mine")).unwrap();
    scratch.ok("sync tank/x ./copy");
    // Entries were changed, removed and added where the next sync has changes too.
    fs::write(copy.join("a"), "changed here").unwrap();
    fs::remove_file(copy.join("b")).unwrap();
    fs::write(copy.join("new"), "made here").unwrap();
    fs::write(copy.join("d/mine"), "in a directory that goes").unwrap();
    fs::write(copy.join("bystander"), "of no concern").unwrap();
    fs::write(source.join("a"), "changed there").unwrap();
    fs::remove_file(source.join("b")).unwrap();
    fs::write(source.join("new"), "made there").unwrap();
    fs::remove_dir(source.join("d")).unwrap();
    scratch.ok("import src tank/x");
    let before = tree(&copy);
    let said = scratch.fails(1, "sync tank/x ./copy");
    for expected in
        ["4 places", "a: it was changed", "b: it is gone", "new: it is new", "d/mine: it is new", "--force"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!said.contains("bystander"), "{said}");
    assert_eq!(tree(&copy), before);
    scratch.fails(1, "sync -n tank/x ./copy");
    scratch.ok("sync --force tank/x ./copy");
    assert_fresh(&scratch, "tank/x", "copy", "forced");
    // Another dataset as the source is refused.
    scratch.ok("create tank/y");
    let said = scratch.fails(1, "sync tank/y ./copy");
    assert!(said.contains("a copy of 'tank/x'"), "{said}");
}

#[test]
fn without_the_snapshot_it_held_everything_is_compared() {
    let scratch = with_source();
    let source = scratch.path().join("src");
    fs::write(source.join("stays"), Dice(3).bytes(3 << 20)).unwrap();
    fs::write(source.join("changes"), "before").unwrap();
    scratch.ok("import src tank/x");
    scratch.ok("sync tank/x ./copy");
    let held = newest(&scratch, "tank/x");
    fs::write(source.join("changes"), "afterwards").unwrap();
    fs::write(source.join("comes"), "new").unwrap();
    scratch.ok("import src tank/x");
    scratch.ok(&format!("destroy {held}"));
    let said = json(&scratch.ok("sync --json tank/x ./copy"));
    assert_eq!(said["bytes"], 13, "what stays is not written: {said}");
    assert_fresh(&scratch, "tank/x", "copy", "compared");
}

#[test]
fn killed_at_any_moment_the_next_sync_repairs() {
    let scratch = with_source();
    let source = scratch.path().join("src");
    let mut dice = Dice(77);
    let mut number = 0;
    fs::write(source.join("large"), dice.bytes(4 << 20)).unwrap();
    for round in 0..12 {
        for _ in 0..60 {
            number += 1;
            change(&source, &mut dice, number);
        }
        scratch.ok("import src tank/x");
        for _ in 0..2 {
            let mut child = scratch.command("sync tank/x ./copy").spawn().unwrap();
            std::thread::sleep(Duration::from_millis(dice.roll(120) as u64));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        if dice.roll(3) == 0 {
            // The next sync is of a later snapshot.
            change(&source, &mut dice, 100_000 + round);
            scratch.ok("import src tank/x");
        }
        scratch.ok("sync tank/x ./copy");
        assert_fresh(&scratch, "tank/x", "copy", &format!("round {round}"));
    }
}

#[test]
fn a_volume_goes_into_an_image() {
    let scratch = Scratch::with_pool();
    let mut content = Dice(5).bytes(4 << 20);
    content[1 << 20..2 << 20].fill(0);
    fs::write(scratch.path().join("disk"), &content).unwrap();
    scratch.ok("import disk tank/v");
    let first = json(&scratch.ok("sync --json tank/v ./copy.img"));
    assert_eq!(first["bytes"], 3 << 20, "{first}");
    let image = scratch.path().join("copy.img");
    assert_eq!(fs::read(&image).unwrap(), content);
    content[100_000..100_010].fill(9);
    content[3 << 20..].fill(0);
    fs::write(scratch.path().join("disk"), &content).unwrap();
    scratch.ok("import disk tank/v");
    let second = json(&scratch.ok("sync --json tank/v ./copy.img"));
    assert!(second["bytes"].as_u64().unwrap() <= 128 << 10, "{second}");
    assert_eq!(fs::read(&image).unwrap(), content);
    // The image was changed by another program: the sync is refused. With force only the difference is written.
    let other = fs::File::options().write(true).open(&image).unwrap();
    other.write_all_at(b"not from a sync", 2 << 20).unwrap();
    drop(other);
    let said = scratch.fails(1, "sync tank/v ./copy.img");
    assert!(said.contains("it was changed"), "{said}");
    let third = json(&scratch.ok("sync -F --json tank/v ./copy.img"));
    assert_eq!(third["bytes"], 4096, "{third}");
    assert_eq!(fs::read(&image).unwrap(), content);
    let said = scratch.fails(1, "sync tank/v ./src-directory/");
    assert!(said.contains("cannot sync"), "{said}");
}

#[test]
fn a_stream_goes_into_a_file_at_one_stroke() {
    let scratch = Scratch::with_home();
    scratch.ok("sync tank/home ./home.zstream");
    let file = scratch.path().join("home.zstream");
    scratch.receive("receive tank/again", &file);
    let inode = fs::metadata(&file).unwrap().ino();
    scratch.ok("sync tank/home ./home.zstream");
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode, "it holds the newest snapshot already");
    scratch.ok("snapshot tank/home@later");
    scratch.ok("sync tank/home ./home.zstream");
    assert_ne!(fs::metadata(&file).unwrap().ino(), inode);
    scratch.to_file("sync tank/home -", "standard");
    assert_eq!(fs::read(scratch.path().join("standard")).unwrap(), fs::read(&file).unwrap());
    let said = scratch.fails(1, "sync -r tank ./all.zstream");
    assert!(said.contains("send -R"), "{said}");
}
