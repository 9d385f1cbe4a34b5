//! Listing, showing, finding, comparing and restoring files of snapshots.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;

use common::{Scratch, demo};

/// Paths in a demonstration manifest, with their types.
fn paths(day: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(demo(&format!("manifest/tank+home@{day}.jsonl"))).unwrap();
    text.lines()
        .map(|line| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            (json["path"].as_str().unwrap().to_owned(), json["type"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn find_tells_every_path() {
    let scratch = Scratch::with_home();
    let out = scratch.ok("find -0 tank/home@tuesday");
    let mut found: Vec<&str> = out.split_terminator('\0').collect();
    let expected = paths("tuesday");
    let mut expected: Vec<&str> = expected.iter().map(|(path, _)| path.as_str()).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let directories = scratch.ok("find --type d tank/home@tuesday").lines().count();
    assert_eq!(directories, paths("tuesday").iter().filter(|(_, kind)| kind == "d").count());
    assert_eq!(scratch.ok("find --maxdepth 0 tank/home@tuesday"), ".\n");
    assert_eq!(scratch.fails(2, "find --type x tank/home@tuesday").lines().next(), Some("invalid type 'x'"));
}

#[test]
fn files_are_shown_and_restored() {
    let scratch = Scratch::with_home();
    let (file, _) = paths("tuesday").into_iter().find(|(_, kind)| kind == "f").unwrap();
    let shown = scratch.to_file("restore -q --setuid --devices tank/home@tuesday whole", "nothing");
    assert_eq!(fs::read(shown).unwrap(), b"");
    for (path, kind) in paths("tuesday") {
        let restored = fs::symlink_metadata(scratch.path().join("whole").join(&path)).unwrap();
        match kind.as_str() {
            "d" => assert!(restored.is_dir(), "{path}"),
            "f" => assert!(restored.is_file(), "{path}"),
            "l" => assert!(restored.is_symlink(), "{path}"),
            _ => {}
        }
    }
    let name = file.rsplit('/').next().unwrap().to_owned();
    fs::create_dir(scratch.path().join("into")).unwrap();
    scratch.ok(&format!("restore tank/home@tuesday:/{file} into"));
    scratch.ok(&format!("restore tank/home@tuesday:{file} other-name"));
    let whole = fs::read(scratch.path().join("whole").join(&file)).unwrap();
    assert_eq!(fs::read(scratch.path().join("into").join(&name)).unwrap(), whole);
    assert_eq!(fs::read(scratch.path().join("other-name")).unwrap(), whole);
    let shown = scratch.to_file(&format!("cat tank/home@tuesday:{file}"), "shown");
    assert_eq!(fs::read(shown).unwrap(), whole);
    // An existing file is kept and reported, unless `-f` is given.
    fs::write(scratch.path().join("other-name"), b"mine").unwrap();
    let said = scratch.run(&format!("restore tank/home@tuesday:{file} other-name"));
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("other-name: cannot "), "{said:?}");
    assert_eq!(fs::read(scratch.path().join("other-name")).unwrap(), b"mine");
    scratch.ok(&format!("restore -f tank/home@tuesday:{file} other-name"));
    assert_eq!(fs::read(scratch.path().join("other-name")).unwrap(), whole);
}

#[test]
fn ls_lists() {
    let scratch = Scratch::with_home();
    let top: Vec<String> = paths("tuesday")
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| !path.contains('/') && path != "." && !path.starts_with('.'))
        .collect();
    let mut listed: Vec<String> = scratch.ok("ls tank/home@tuesday").lines().map(str::to_owned).collect();
    listed.sort();
    let mut top = top;
    top.sort();
    assert_eq!(listed, top);
    let long = scratch.ok("ls -ld tank/home@tuesday");
    assert!(long.starts_with('d') && long.ends_with(" .\n"), "{long}");
    assert!(scratch.fails(1, "ls tank/home@tuesday:/none").contains("no such file or directory"));
    assert_eq!(
        scratch.fails(1, "ls tank/home@none"),
        "cannot open 'tank/home@none': dataset does not exist\n"
    );
}

#[test]
fn diff_tells_changes() {
    let scratch = Scratch::with_home();
    let out = scratch.ok("diff tank/home@monday tank/home@tuesday");
    assert!(!out.is_empty());
    for line in out.lines() {
        let (change, path) = line.split_once('\t').unwrap();
        assert!(["M", "+", "-", "R"].contains(&change), "{line}");
        assert!(path.starts_with("/tank/home/"), "{line}");
    }
    assert_eq!(scratch.ok("diff tank/home@monday @tuesday"), out);
    let same = scratch.fails(1, "diff tank/home@tuesday tank/home@tuesday");
    assert!(same.contains("is not an earlier snapshot from the same fs"), "{same}");
    assert!(
        scratch.ok("diff -Ft tank/home@monday @tuesday").lines().all(|line| line.split('\t').count() >= 4)
    );
    assert_eq!(
        scratch.fails(1, "diff tank/home@none @tuesday"),
        "cannot open 'tank/home@none': dataset does not exist\n"
    );
}

#[test]
fn names_with_colons_are_not_paths() {
    let scratch = Scratch::with_home();
    scratch.ok("rename tank/home@tuesday tank/home@2026-11-21:01:30");
    let listed = scratch.ok("ls tank/home@2026-11-21:01:30");
    assert_eq!(scratch.ok("ls tank/home@2026-11-21:01:30:/"), listed);
    assert_eq!(scratch.ok("ls tank/home@2026-11-21:01:30:"), listed);
}
