//! `sync -r` into directories, and targets on other machines.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::remote::{remote, rsh, with_remote};
use common::{Said, Scratch};
use serde_json::Value;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(byte).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn bytes(text: &str) -> u64 {
    json(text)["bytes"].as_u64().unwrap()
}

/// Writes a file and creates all its parent directories.
fn put(scratch: &Scratch, path: &str, content: &[u8]) {
    let path = scratch.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn import(scratch: &Scratch, source: &str, dataset: &str) {
    scratch.ok(&format!("import {source} {dataset}"));
}

/// tank/home with tank/home/alice, tank/home/alice/old and the volume tank/home/disk.
fn with_tree() -> Scratch {
    let scratch = Scratch::with_pool();
    put(&scratch, "home/shared", b"for all");
    put(&scratch, "home/films/one", &noise(3 << 20, 1));
    // The directory on which the dataset would be mounted.
    fs::create_dir(scratch.path().join("home/alice")).unwrap();
    put(&scratch, "alice/letter", b"dear bob");
    put(&scratch, "old/letter", b"of long ago");
    put(&scratch, "disk", &noise(1 << 20, 2));
    for (source, dataset) in
        [("home", "home"), ("alice", "home/alice"), ("old", "home/alice/old"), ("disk", "home/disk")]
    {
        import(&scratch, source, &format!("tank/{dataset}"));
    }
    scratch
}

/// Checks that a directory equals a restore of the newest snapshot, except for the records of targets and `nested`.
fn assert_same(scratch: &Scratch, dataset: &str, directory: &Path, nested: &[&str]) {
    let listed = scratch.ok(&format!("list -H -t snapshot -o name {dataset}"));
    let newest = listed.lines().last().unwrap();
    let fresh = scratch.path().join("fresh");
    let _ = fs::remove_dir_all(&fresh);
    scratch.ok(&format!("restore {newest} {}", fresh.display()));
    let mut command = Command::new("diff");
    command.args(["-r", "--no-dereference", "-x", ".*snowmelt-sync"]);
    for name in nested {
        let _ = fs::remove_dir(fresh.join(name));
        command.args(["-x", name]);
    }
    command.args([&fresh, &directory.to_owned()]);
    let said = Said::of(command);
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{dataset}: {said:?}");
}

fn assert_tree(scratch: &Scratch, copy: &Path) {
    assert_same(scratch, "tank/home", copy, &["alice", "disk"]);
    assert_same(scratch, "tank/home/alice", &copy.join("alice"), &["old"]);
    assert_same(scratch, "tank/home/alice/old", &copy.join("alice/old"), &[]);
    assert_eq!(fs::read(copy.join("disk")).unwrap(), fs::read(scratch.path().join("disk")).unwrap());
}

#[test]
fn a_tree_becomes_directories_and_images() {
    let scratch = with_tree();
    let copy = scratch.path().join("copy");
    let told = scratch.ok("sync -rn tank/home ./copy");
    assert!(told.contains("would copy all of tank/home/alice/old to ./copy/alice/old"), "{told}");
    assert!(!copy.exists());
    let first = json(&scratch.ok("sync -r --json tank/home ./copy"));
    assert_eq!(first["datasets"].as_array().unwrap().len(), 4, "{first}");
    assert_tree(&scratch, &copy);
    // All snapshots were taken at one moment, and one snapshot of each dataset is kept.
    let kept = |dataset: &str| -> Vec<String> {
        let listed = scratch.ok(&format!("list -H -t snapshot -o name {dataset}"));
        let names = listed.lines().filter_map(|name| name.split_once('@')).map(|(_, short)| short.to_owned());
        names.filter(|name| name.starts_with("snowmelt-sync_")).collect()
    };
    assert_eq!(kept("tank/home").len(), 1);
    for dataset in ["tank/home/alice", "tank/home/alice/old", "tank/home/disk"] {
        assert_eq!(kept(dataset), kept("tank/home"), "{dataset}");
    }
    assert_eq!(bytes(&scratch.ok("sync -r --json tank/home ./copy")), 0);
    // Only the change in the tree is transferred.
    put(&scratch, "old/letter", b"of longer ago");
    fs::rename(scratch.path().join("home/films"), scratch.path().join("home/cinema")).unwrap();
    import(&scratch, "old", "tank/home/alice/old");
    import(&scratch, "home", "tank/home");
    assert_eq!(bytes(&scratch.ok("sync -r --json tank/home ./copy")), 13);
    assert_tree(&scratch, &copy);
    // A sync of the parent alone does not touch the others, even if it compares everything.
    put(&scratch, "home/shared", b"for everybody");
    import(&scratch, "home", "tank/home");
    scratch.ok("sync tank/home ./copy");
    assert_tree(&scratch, &copy);
    fs::remove_file(copy.join(".snowmelt-sync/record")).unwrap();
    scratch.ok("sync -F tank/home ./copy");
    assert_tree(&scratch, &copy);
    // A dataset that was destroyed at the source stays at the target.
    scratch.ok("destroy -r tank/home/alice/old");
    scratch.ok("sync -r tank/home ./copy");
    assert_eq!(fs::read(copy.join("alice/old/letter")).unwrap(), b"of longer ago");
    assert_same(&scratch, "tank/home/alice", &copy.join("alice"), &["old"]);
    scratch.ok("check tank");
}

#[test]
fn what_is_left_out_is_left_out_with_what_is_below() {
    let scratch = with_tree();
    scratch.ok("sync -r --exclude alice tank/home ./copy");
    let copy = scratch.path().join("copy");
    assert_same(&scratch, "tank/home", &copy, &["disk"]);
    // The directory there is the one from the parent dataset.
    assert_eq!(fs::read_dir(copy.join("alice")).unwrap().count(), 0);
    // A later sync adds it.
    scratch.ok("sync -r tank/home ./copy");
    assert_tree(&scratch, &copy);
    let said = scratch.fails(1, "sync -r tank/home ./tree.zstream");
    assert!(said.contains("send -R tank/home@SNAPSHOT"), "{said}");
}

#[test]
fn what_a_mount_would_hide_is_refused() {
    let scratch = with_tree();
    put(&scratch, "home/alice/hidden", b"below the mount");
    import(&scratch, "home", "tank/home");
    let said = scratch.fails(1, "sync -r tank/home ./copy");
    for expected in ["it has an entry 'alice'", "would hide it", "3 datasets below"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!scratch.path().join("copy/alice").exists());
    // With `--exclude` it is an ordinary directory. After that is removed, the dataset takes its place.
    scratch.ok("sync -r --exclude alice tank/home ./copy");
    assert_eq!(fs::read(scratch.path().join("copy/alice/hidden")).unwrap(), b"below the mount");
    fs::remove_file(scratch.path().join("home/alice/hidden")).unwrap();
    import(&scratch, "home", "tank/home");
    scratch.ok("sync -r tank/home ./copy");
    assert_tree(&scratch, &scratch.path().join("copy"));
    // A later sync is refused too, with any option.
    put(&scratch, "home/alice/hidden", b"below the mount");
    import(&scratch, "home", "tank/home");
    for line in ["sync tank/home ./copy", "sync -F tank/home ./copy", "sync -n tank/home ./copy"] {
        let said = scratch.fails(1, line);
        assert!(said.contains("it has an entry 'alice'"), "{line}: {said}");
    }
}

#[test]
fn one_dataset_of_a_tree_can_fail() {
    let scratch = with_tree();
    scratch.ok("sync -r tank/home ./copy");
    put(&scratch, "alice/letter", b"dear carol");
    put(&scratch, "home/shared", b"for everybody");
    import(&scratch, "alice", "tank/home/alice");
    import(&scratch, "home", "tank/home");
    let copy = scratch.path().join("copy");
    fs::write(copy.join("alice/letter"), "changed here").unwrap();
    let said = scratch.run("sync -r tank/home ./copy");
    assert_eq!(said.code, 3, "{said:?}");
    for expected in ["./copy/alice: cannot sync", "letter: it was changed", "1 dataset below one of these"] {
        assert!(said.err.contains(expected), "{expected}: {said:?}");
    }
    assert_same(&scratch, "tank/home", &copy, &["alice", "disk"]);
    scratch.ok("sync -rF tank/home ./copy");
    assert_tree(&scratch, &copy);
    // A symbolic link at that place is not followed.
    fs::remove_dir_all(copy.join("alice/old")).unwrap();
    std::os::unix::fs::symlink(scratch.path().join("home"), copy.join("alice/old")).unwrap();
    let said = scratch.run("sync -rF tank/home ./copy");
    assert!(said.code == 3 && said.err.contains("is in the way: remove it"), "{said:?}");
}

/// The local path of a file on the other machine.
fn there(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.path().join("remote").join(name)
}

fn over(scratch: &Scratch, rsh: &Path, words: &str, name: &str) -> Said {
    let target = there(scratch, name);
    scratch.run(&format!("sync -e {} {words} host:{}", rsh.display(), target.display()))
}

fn fine(said: &Said) -> &str {
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    &said.out
}

#[test]
fn targets_of_other_machines_are_as_those_of_this_one() {
    let scratch = with_tree();
    let rsh = with_remote(&scratch);
    let sync = |words: &str| over(&scratch, &rsh, words, "copy");
    let copy = there(&scratch, "copy");
    fine(&sync("-rn tank/home"));
    assert!(!copy.exists());
    fine(&sync("-r tank/home"));
    assert_tree(&scratch, &copy);
    assert_eq!(bytes(fine(&sync("-r --json tank/home"))), 0);
    // A renamed file is renamed. Of a large file only the change is written.
    let inode = fs::metadata(copy.join("films/one")).unwrap().ino();
    fs::rename(scratch.path().join("home/films"), scratch.path().join("home/cinema")).unwrap();
    let large = fs::File::options().write(true).open(scratch.path().join("home/cinema/one")).unwrap();
    large.write_all_at(b"changed", 2 << 20).unwrap();
    import(&scratch, "home", "tank/home");
    let told = fine(&sync("-n tank/home")).to_owned();
    assert!(told.contains("would update"), "{told}");
    let said = sync("--json --bwlimit 100M --compress tank/home");
    assert!((1..=1 << 20).contains(&bytes(fine(&said))), "{said:?}");
    assert_eq!(fs::metadata(copy.join("cinema/one")).unwrap().ino(), inode);
    assert_tree(&scratch, &copy);
    // Changes that others made there are not lost.
    fs::write(copy.join("shared"), "changed there").unwrap();
    put(&scratch, "home/shared", b"changed here");
    import(&scratch, "home", "tank/home");
    let said = sync("tank/home");
    assert!(said.code == 1 && said.err.contains("shared: it was changed") && said.err.contains("--force"));
    fine(&sync("-F tank/home"));
    assert_tree(&scratch, &copy);
    put(&scratch, "remote/theirs/file", b"not from a sync");
    let said = over(&scratch, &rsh, "tank/home", "theirs");
    assert!(said.code == 1 && said.err.contains("was not made by a sync"), "{said:?}");
    assert!(!there(&scratch, "theirs/.snowmelt-sync").exists());
    // An image, and a file with a stream.
    fine(&over(&scratch, &rsh, "tank/home/disk", "disk.img"));
    let mut disk = noise(1 << 20, 2);
    disk[70_000..70_010].fill(9);
    put(&scratch, "disk", &disk);
    import(&scratch, "disk", "tank/home/disk");
    let said = over(&scratch, &rsh, "--json tank/home/disk", "disk.img");
    assert!(bytes(fine(&said)) <= 128 << 10, "{said:?}");
    assert_eq!(fs::read(there(&scratch, "disk.img")).unwrap(), disk);
    fine(&over(&scratch, &rsh, "tank/home", "home.zstream"));
    scratch.receive("receive tank/again", &there(&scratch, "home.zstream"));
    let said = over(&scratch, &rsh, "-v tank/home", "home.zstream");
    assert!(fine(&said).contains("already"), "{said:?}");
    let said = over(&scratch, &rsh, "tank/home/disk", "copy");
    assert!(said.code == 1 && said.err.contains("not into a directory"), "{said:?}");
    let said = scratch.run(&format!("sync -e {} tank/home host:copy/x/y/", rsh.display()));
    assert_ne!(said.code, 0, "{said:?}");
}

#[test]
fn a_target_of_another_machine_goes_on_after_a_lost_connection() {
    let scratch = with_tree();
    with_remote(&scratch);
    // The first connection ends after some of the answers. The next ones do not.
    let state = scratch.path().join("lost");
    for (at, limit) in [5_000, 200_000, 1_500_000, 2_900_000].into_iter().enumerate() {
        let filter = format!(
            "if [ -e {0} ]; then cat; else touch {0}; dd bs=64k count={limit} iflag=count_bytes status=none; fi |",
            state.display()
        );
        let rsh = rsh(&scratch, "cut", &filter);
        let name = format!("copy{at}");
        let said = over(&scratch, &rsh, "tank/home", &name);
        assert!(
            said.code == 0 && said.err.lines().any(|line| line.ends_with("trying again in 1 s")),
            "{limit}: {said:?}"
        );
        assert_same(&scratch, "tank/home", &there(&scratch, &name), &[]);
        fs::remove_file(&state).unwrap();
        let stream = format!("{name}.zstream");
        let said = over(&scratch, &rsh, "tank/home", &stream);
        assert!(said.code == 0 && said.err.contains("trying again"), "{limit}: {said:?}");
        let left: Vec<_> = fs::read_dir(scratch.path().join("remote")).unwrap().flatten().collect();
        assert!(!left.iter().any(|entry| entry.file_name().to_string_lossy().contains("snowmelt-new")));
        fs::remove_file(&state).unwrap();
    }
    // The same for the connection to the source.
    remote(&scratch, &format!("import {} far/home", scratch.path().join("home").display()));
    let filter = format!(
        "if [ -e {0} ]; then cat; else touch {0}; dd bs=1 count=700 status=none; fi |",
        state.display()
    );
    let rsh = rsh(&scratch, "cut", &filter);
    let said = scratch.run(&format!("sync -e {} host:far/home ./near", rsh.display()));
    assert!(said.code == 0 && said.err.contains("trying again"), "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
    assert_eq!(fs::read(scratch.path().join("near/films/one")).unwrap(), noise(3 << 20, 1));
}

#[test]
fn a_key_for_a_target_gives_nothing_else() {
    let scratch = with_tree();
    with_remote(&scratch);
    let copy = there(&scratch, "copy");
    // Like authorized_keys with command="snowmelt serve sync --into …": the client's command is ignored.
    let forced = scratch.path().join("forced");
    let script = fs::read_to_string(scratch.path().join("rsh")).unwrap();
    let command = format!("exec snowmelt serve sync --into {}", copy.display());
    fs::write(&forced, script.replace("sh -c \"$2\"", &command)).unwrap();
    fs::set_permissions(&forced, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fine(&over(&scratch, &forced, "tank/home", "elsewhere"));
    assert_same(&scratch, "tank/home", &copy, &[]);
    assert!(!there(&scratch, "elsewhere").exists());
    let said = scratch.run(&format!("sync -e {} host:far/x tank/x", forced.display()));
    assert!(said.code == 1 && said.err.contains("is for the target of a sync, not for a pool"), "{said:?}");
    // The other direction.
    let command = "exec snowmelt serve sync far";
    fs::write(&forced, script.replace("sh -c \"$2\"", command)).unwrap();
    let said = over(&scratch, &forced, "tank/home", "copy2");
    assert!(said.code == 1 && said.err.contains("--into"), "{said:?}");
    assert_eq!(remote(&scratch, "list -Hr -o name far"), "far\n");
}

/// The expected result for a pair of kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Works,
    /// Refused, with the commands that reach the goal.
    Through,
}

/// The table of docs/sync.md.
#[test]
fn every_pair_works_or_says_how_to_get_there() {
    use Outcome::{Through, Works};
    let scratch = Scratch::with_pool();
    put(&scratch, "dir/file", b"content");
    put(&scratch, "image", &noise(1 << 20, 3));
    import(&scratch, "dir", "tank/fs");
    import(&scratch, "image", "tank/vol");
    scratch.ok("sync tank/fs ./fs.zstream");
    let rsh = with_remote(&scratch);
    scratch.ok("shims bin");
    remote(&scratch, &format!("shims {}", there(&scratch, "bin").display()));
    put(&scratch, "remote/dir/file", b"content there");
    put(&scratch, "remote/image", &noise(1 << 20, 4));
    remote(&scratch, &format!("import {} far/fs", there(&scratch, "dir").display()));
    remote(&scratch, &format!("import {} far/vol", there(&scratch, "image").display()));
    let far = |name: &str| format!("host:{}", there(&scratch, name).display());
    // Of each kind, one for a filesystem and one for a volume.
    let sources = [
        ["tank/fs".to_owned(), "tank/vol".to_owned()],
        ["host:far/fs".to_owned(), "host:far/vol".to_owned()],
        ["zfs:tank/fs".to_owned(), "zfs:tank/vol".to_owned()],
        ["host:zfs:far/fs".to_owned(), "host:zfs:far/vol".to_owned()],
        ["./dir".to_owned(), "./image".to_owned()],
        [far("dir"), far("image")],
        ["./fs.zstream".to_owned(), "-".to_owned()],
    ];
    let all = [Works; 8];
    let zfs = [Works, Works, Works, Works, Through, Through, Works, Works];
    let into_datasets = [Works, Works, Works, Works, Through, Through, Through, Through];
    let expected = [all, all, zfs, zfs, into_datasets, into_datasets, into_datasets];
    for (kind, (pair, row)) in sources.iter().zip(expected).enumerate() {
        for (of_volume, source) in pair.iter().enumerate() {
            for (column, expected) in row.into_iter().enumerate() {
                let name = format!("t{kind}{of_volume}{column}");
                let target = match column {
                    0 => format!("tank/{name}"),
                    1 => format!("host:far/{name}"),
                    2 => format!("zfs:tank/{name}"),
                    3 => format!("host:zfs:far/{name}"),
                    4 => format!("./{name}"),
                    5 => far(&name),
                    6 => format!("./{name}.zstream"),
                    _ => far(&format!("{name}.zstream")),
                };
                let line = format!("sync -e {} {source} {target}", rsh.display());
                let mut command = scratch.command(&line);
                command.env("PATH", format!("{}:/usr/bin:/bin", scratch.path().join("bin").display()));
                command.stdin(fs::File::open(scratch.path().join("fs.zstream")).unwrap());
                let said = Said::of(command);
                let wanted = if expected == Works { 0 } else { 1 };
                assert_eq!(said.code, wanted, "{source} to {target}: {said:?}");
                match expected {
                    Works => assert_eq!(said.err, "", "{source} to {target}"),
                    Through => assert!(
                        said.err.contains("snowmelt sync") && said.err.contains(&target),
                        "{source} to {target}: {said:?}"
                    ),
                }
                if column == 4 || column == 5 {
                    let place = if column == 4 { scratch.path().to_owned() } else { there(&scratch, "") };
                    assert_eq!(place.join(&name).exists(), expected == Works, "{source} to {target}");
                }
            }
        }
    }
    scratch.ok("check tank");
    remote(&scratch, "check far");
}
