//! Tests old versions of the protocol, back to rsync 2.6, with stock rsync and `--protocol`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::trees::{assert_same_but_for_nanoseconds, disturb, grow_old, manifest};
use common::{Server, text};

const DIALECTS: [&str; 3] = ["--protocol=27", "--protocol=28", "--protocol=29"];

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_end_identical_in_old_versions() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    grow_old(&source, 41);
    let server = Server::of(&source, "");
    let variants: &[&[&str]] = &[
        &[],
        &["-c"],
        &["-z"],
        &["--numeric-ids"],
        &["--inplace", "--no-W"],
        &["-I", "--no-W", "-z", "-B", "700"],
        &["-S", "--delete-after"],
        &["--partial", "--timeout=20", "--bwlimit=100m"],
        &["--checksum-seed=77"],
    ];
    for dialect in DIALECTS {
        for (at, variant) in variants.iter().enumerate() {
            let target = dir.path().join("target");
            let args = [&["-aH", "--delete", dialect][..], variant].concat();
            for round in ["new", "again"] {
                server.pull(&args, "m/", &target);
                assert_same_but_for_nanoseconds(&source, &target, &format!("{args:?}, {round}"));
                disturb(&target, at as u64);
            }
            fs::remove_dir_all(&target).unwrap();
        }
    }
}

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn random_trees_end_identical_in_old_versions() {
    for seed in 42..46 {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        grow_old(&source, seed);
        let server = Server::of(&source, "");
        for dialect in DIALECTS {
            server.pull(&["-aH", "--delete", dialect], "m/", &target);
            assert_same_but_for_nanoseconds(&source, &target, &format!("{dialect}, seed {seed}"));
            disturb(&target, seed);
        }
    }
}

#[test]
#[ignore = "needs rsync and root"]
fn old_versions_have_their_ways() {
    let dir = tempfile::tempdir().unwrap();
    let (source, list) = (dir.path().join("source"), dir.path().join("list"));
    fs::create_dir_all(source.join("a/b")).unwrap();
    for name in ["a/x.o", "a/x.c", "a/b/y.o", "z"] {
        fs::write(source.join(name), name.repeat(50_000)).unwrap();
    }
    fs::write(&list, "a/x.c\nz\n").unwrap();
    let server = Server::of(&source, "");
    let from = format!("--files-from={}", list.display());
    let names = |target: &Path| {
        let names = manifest(target).into_keys().map(|path| path.display().to_string());
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" ")
    };
    for dialect in DIALECTS {
        for (at, (args, expected)) in [
            (&["-a", "--exclude=*.o"][..], "a a/b a/x.c z"),
            (&["-a", "--include=y.o", "--exclude=*.o", "--exclude=/z"], "a a/b a/b/y.o a/x.c"),
            (&["-aR", "--exclude=- x"], "a a/b a/b/y.o a/x.c a/x.o z"),
            (&["-d"], "a z"),
            (&["-a", &from], "a a/x.c z"),
        ]
        .iter()
        .enumerate()
        {
            let target = dir.path().join(format!("{dialect}{at}"));
            server.pull(&[args, &[dialect][..]].concat(), "m/", &target);
            assert_eq!(names(&target), *expected, "{dialect} {args:?}");
        }
        // The present data is verified, and the rest is appended.
        let target = dir.path().join("target");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("z"), "z".repeat(1000)).unwrap();
        server.pull(&["--append", dialect], "m/z", &target);
        assert_eq!(fs::read(target.join("z")).unwrap(), fs::read(source.join("z")).unwrap());
        fs::write(target.join("z"), "y".repeat(1000)).unwrap();
        server.pull(&["--append", dialect], "m/z", &target);
        assert_eq!(fs::read(target.join("z")).unwrap(), fs::read(source.join("z")).unwrap());
        let (_, stderr, code) = text(&server.rsync(&["-a", dialect], "m/none", &target));
        assert!(code == Some(23) && stderr.contains("No such file or directory"), "{code:?} {stderr}");
    }
}
