//! Datasets and snapshots served to stock rsync (Debian: rsync). Ignored by a plain `cargo test`, which needs only
//! Rust: `.ci/run clients` runs it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use common::Scratch;
use common::rsync::Server;
use trees::{assert_same, disturb, grow};

/// The changes that stock rsync would still make to make the second tree like the first.
fn difference(a: &Path, b: &Path) -> String {
    let output = Command::new("rsync")
        .args(["-aHAXinc", "--delete"])
        .arg(format!("{}/", a.display()))
        .arg(b)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs rsync and root"]
fn clients_get_what_snapshots_hold() {
    let scratch = Scratch::with_pool();
    let (source, monday) = (scratch.path().join("source"), scratch.path().join("monday"));
    fs::create_dir_all(source.join("a/b")).unwrap();
    for (name, len) in [("one", 10), ("a/two", 300_000), ("a/b/three", 0), ("a/b/four", 70_000)] {
        let content: Vec<u8> = (0..len).map(|at: u32| (at.wrapping_mul(at) >> 5) as u8).collect();
        fs::write(source.join(name), content).unwrap();
    }
    fs::hard_link(source.join("one"), source.join("a/b/link")).unwrap();
    symlink("b/four", source.join("a/to-four")).unwrap();
    fs::File::create(source.join("sparse")).unwrap().set_len(5_000_000).unwrap();
    assert!(Command::new("mkfifo").arg(source.join("fifo")).status().unwrap().success());
    scratch.ok(&format!("import {} tank/a@monday", source.display()));
    assert!(Command::new("cp").arg("-a").args([&source, &monday]).status().unwrap().success());
    let server = Server::start(
        &scratch,
        "[monday]\npath = tank/a@monday\n[newest]\npath = tank/a@\n[head]\npath = tank/a\n",
    );
    let target = |name: &str| scratch.path().join("targets").join(name);
    fs::create_dir(scratch.path().join("targets")).unwrap();
    for module in ["monday", "newest", "head"] {
        server.pull(&["-aHAX"], &format!("{module}/"), &target(module));
        assert_eq!(difference(&source, &target(module)), "", "{module}");
    }
    // The next client gets the new snapshot. The old one stays unchanged.
    fs::write(source.join("a/two"), b"other").unwrap();
    fs::remove_file(source.join("sparse")).unwrap();
    scratch.ok(&format!("import {} tank/a@tuesday", source.display()));
    server.pull(&["-aHAX", "--delete", "-z"], "newest/", &target("newest"));
    assert_eq!(difference(&source, &target("newest")), "");
    server.pull(&["-aHAX", "--delete", "--no-inc-recursive", "-c"], "monday/", &target("newest"));
    assert_eq!(difference(&monday, &target("newest")), "");
    // Links that lead inside are followed, links that lead elsewhere are not.
    server.pull(&["-L"], "head/a/to-four", &target("four"));
    assert_eq!(fs::read(target("four")).unwrap(), fs::read(source.join("a/b/four")).unwrap());
}

/// With all options, the trees are identical in the end: from a directory, a head, a snapshot and the newest snapshot.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_end_identical_wherever_they_are_served_from() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    grow(&source, 21);
    scratch.ok(&format!("import {} tank/a@monday", source.display()));
    // A copy of the snapshot's state, because the head changes.
    let monday = scratch.path().join("monday");
    assert!(Command::new("cp").arg("-a").args([&source, &monday]).status().unwrap().success());
    assert_same(&source, &monday, "a copy");
    disturb(&source, 22);
    scratch.ok(&format!("import {} tank/a@tuesday", source.display()));
    let config = format!("uid = 0\ngid = 0\n[dir]\npath = {}\n", source.display());
    let directory = Server::start(&scratch, &config);
    let datasets = "[monday]\npath = tank/a@monday\n[newest]\npath = tank/a@\n[head]\npath = tank/a\n";
    let pool = Server::start(&scratch, datasets);
    let variants: &[&[&str]] = &[
        &["-aHAX"],
        &["-aHAX", "--no-inc-recursive", "-z"],
        &["-aHAX", "-c", "--inplace", "--zc=zlibx"],
        &["-aHAX", "--numeric-ids", "--protocol=31", "--zc=lz4"],
    ];
    for (server, module, expected) in [
        (&directory, "dir", &source),
        (&pool, "head", &source),
        (&pool, "newest", &source),
        (&pool, "monday", &monday),
    ] {
        let target = scratch.path().join("target");
        for (at, variant) in variants.iter().enumerate() {
            let args = [variant, &["--delete"][..]].concat();
            server.pull(&args, &format!("{module}/"), &target);
            assert_same(expected, &target, &format!("{module} {variant:?}"));
            disturb(&target, at as u64);
        }
        fs::remove_dir_all(&target).unwrap();
    }
}
