//! `sync` of directories and images to another machine: only hashes are kept here.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::remote::{remote, rsh, with_remote};
use common::{Said, Scratch};
use serde_json::Value;

const RECORD: usize = 128 << 10;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(byte).collect()
}

/// A directory of files that were not changed recently, and another machine.
fn world() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let src = scratch.path().join("src");
    fs::create_dir_all(src.join("deep/er")).unwrap();
    fs::write(src.join("large"), noise(20 * RECORD + 77, 1)).unwrap();
    fs::write(src.join("empty"), b"").unwrap();
    for number in 0..30 {
        fs::write(src.join(format!("deep/{number}")), noise(number * 700, number as u64)).unwrap();
    }
    let sparse = fs::File::create(src.join("deep/er/sparse")).unwrap();
    sparse.set_len(12 << 20).unwrap();
    sparse.write_all_at(&noise(100, 2), 5 << 20).unwrap();
    sparse.write_all_at(&noise(9000, 3), (9 << 20) - 4500).unwrap();
    std::os::unix::fs::symlink("large", src.join("link")).unwrap();
    fs::hard_link(src.join("deep/7"), src.join("hard")).unwrap();
    settle(&src);
    let rsh = with_remote(&scratch);
    (scratch, rsh)
}

/// Sets old times for everything in `dir`.
fn settle(dir: &Path) {
    let args = ["-execdir", "touch", "-h", "-d", "2020-02-02 02:02:02", "{}", "+"];
    assert!(Command::new("find").arg(dir).args(args).status().unwrap().success());
}

/// A filter that runs a command at the first request: the source was read, and nothing of it was sent.
fn meanwhile(what: &str) -> String {
    const GREETING: usize = 16;
    format!("{{ dd bs=1 count={} status=none; {what} cat; }} |", GREETING + 1)
}

fn sync(scratch: &Scratch, rsh: &Path, source: &str) -> Said {
    scratch.run(&format!("sync --json -e {} {source} host:far/copy", rsh.display()))
}

/// The bytes that a sync sent. It must have succeeded.
fn sent(said: &Said) -> u64 {
    assert_eq!(said.code, 0, "{said:?}");
    let told: Value = serde_json::from_str(&said.out).unwrap();
    told["bytes"].as_u64().unwrap()
}

/// Checks that the copy's newest snapshot equals the source.
fn same(scratch: &Scratch, source: &str) {
    let newest = remote(scratch, "list -Ho name -t snapshot far/copy").lines().last().unwrap().to_owned();
    let out = scratch.path().join("out");
    let _ = fs::remove_dir_all(&out);
    let _ = fs::remove_file(&out);
    remote(scratch, &format!("restore {newest} {}", out.display()));
    let mut diff = Command::new("diff");
    let said = Said::of({
        diff.args(["-r", "--no-dereference"]).arg(scratch.path().join(source)).arg(&out);
        diff
    });
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
    remote(scratch, "check far");
    scratch.ok(&format!("check {}", shadow(scratch)));
}

fn shadows(scratch: &Scratch) -> PathBuf {
    scratch.path().join("state/snowmelt/shadow")
}

/// The name of the one shadow.
fn shadow(scratch: &Scratch) -> String {
    let entries = fs::read_dir(shadows(scratch)).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.find(|name| !name.contains('.')).expect("a shadow")
}

fn disk_usage(path: &Path) -> u64 {
    let said = Said::of({
        let mut command = Command::new("du");
        command.arg("-sb").arg(path);
        command
    });
    said.out.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_directory_goes_over_without_a_copy_here() {
    let (scratch, rsh) = world();
    let first = sent(&sync(&scratch, &rsh, "src"));
    assert!(first > 20 * RECORD as u64, "{first}");
    same(&scratch, "src");
    let size = disk_usage(&shadows(&scratch));
    assert!(size < 1 << 20, "the shadow takes {size} bytes");
    assert_eq!(scratch.ok("pool list -H"), "", "it is no pool of anybody");
    // Nothing changed.
    let again = sent(&sync(&scratch, &rsh, "src"));
    assert!(again < 10_000, "{again}");
    // One changed block, a longer, a shorter and a new file, a renamed file, and a removed file.
    let src = scratch.path().join("src");
    let large = fs::OpenOptions::new().write(true).open(src.join("large")).unwrap();
    large.write_all_at(b"changed", 5 * RECORD as u64 + 5).unwrap();
    fs::write(src.join("deep/20"), noise(3 * RECORD, 99)).unwrap();
    large.set_len(17 * RECORD as u64 + 12_345).unwrap();
    fs::write(src.join("deep/er/new"), noise(5000, 98)).unwrap();
    fs::rename(src.join("deep/9"), src.join("nine")).unwrap();
    fs::remove_file(src.join("deep/10")).unwrap();
    settle(&src);
    let changed = sent(&sync(&scratch, &rsh, "src"));
    assert!((5 * RECORD as u64..7 * RECORD as u64).contains(&changed), "{changed}");
    same(&scratch, "src");
    // The shadow keeps the newest snapshot only.
    let kept = scratch.ok(&format!("list -Hr -t snapshot -o name {}", shadow(&scratch)));
    assert_eq!(kept.lines().count(), 1, "{kept}");
    // The shadow can be listed, and explains what it is.
    let said = scratch.run(&format!("restore {}:nine nine", kept.trim()));
    assert!(said.code == 0 && said.err.contains("is the shadow of /"), "{said:?}");
    assert_eq!(fs::read(scratch.path().join("nine")).unwrap(), noise(9 * 700, 9));
    fs::write(src.join("nine"), noise(9 * 700, 10)).unwrap();
    let said = scratch.run(&format!("restore {}:nine ten", kept.trim()));
    assert!(said.code != 0 && said.err.contains("src/nine has changed"), "{said:?}");
}

#[test]
fn what_changes_meanwhile_is_taken_in_again_and_never_sent_wrong() {
    let (scratch, _) = world();
    let large = scratch.path().join("src/large");
    // After the shadow was made and before it is sent, without a change of times.
    let touch = format!(
        "[ -e {0}/done ] || {{ touch {0}/done; touch -r {1} {0}/stamp; printf changed | \
         dd of={1} bs=1 seek=1500000 conv=notrunc status=none; rm -f {0}/src/hard; touch -r {0}/stamp {1}; }};",
        scratch.path().display(),
        large.display()
    );
    let rsh = rsh(&scratch, "changing", &meanwhile(&touch));
    let said = sync(&scratch, &rsh, "src");
    assert!(said.err.contains("has changed") && said.err.contains("reading it again"), "{said:?}");
    sent(&said);
    same(&scratch, "src");
    let suspects = shadows(&scratch).join(format!("{}.suspects", shadow(&scratch)));
    assert!(!suspects.exists(), "all is as it should be");
    // Only the difference is kept here.
    let size = disk_usage(&shadows(&scratch));
    assert!(size < 1 << 20, "the shadow takes {size} bytes");
}

#[test]
fn a_file_that_changes_all_the_time_goes_over() {
    let (scratch, _) = world();
    let log = scratch.path().join("src/log");
    fs::write(&log, noise(3 * RECORD, 4)).unwrap();
    settle(&scratch.path().join("src"));
    // The file grows at each connection, also in a block that was sent before.
    let grow = format!("echo another line >> {};", log.display());
    let rsh = rsh(&scratch, "growing", &meanwhile(&grow));
    for _ in 0..3 {
        let said = sync(&scratch, &rsh, "src");
        sent(&said);
    }
    let newest = remote(&scratch, "list -Ho name -t snapshot far/copy").lines().last().unwrap().to_owned();
    let copy = remote(&scratch, &format!("restore {newest} {}", scratch.path().join("out").display()));
    assert_eq!(copy, "");
    let (copy, now) = (fs::read(scratch.path().join("out/log")).unwrap(), fs::read(&log).unwrap());
    assert!(now.starts_with(&copy) && copy.len() > 3 * RECORD, "{} of {}", copy.len(), now.len());
}

#[test]
fn files_that_go_while_they_are_sent_are_left_out() {
    let (scratch, _) = world();
    let rm = format!("rm -f {}/src/large;", scratch.path().display());
    let rsh = rsh(&scratch, "removing", &meanwhile(&rm));
    let said = sync(&scratch, &rsh, "src");
    assert!(said.err.contains("reading it again"), "{said:?}");
    sent(&said);
    same(&scratch, "src");
}

#[test]
fn an_interrupted_sync_goes_on_where_it_was() {
    let (scratch, rsh) = world();
    fs::write(scratch.path().join("src/larger"), noise(80 * RECORD, 8)).unwrap();
    settle(&scratch.path().join("src"));
    let cut = rsh_cut(&scratch);
    let said = scratch.run(&format!("sync --json --retries 0 -e {} src host:far/copy", cut.display()));
    assert_ne!(said.code, 0, "{said:?}");
    assert_ne!(remote(&scratch, "get -Ho value receive_resume_token far/copy"), "-\n");
    let rest = sent(&sync(&scratch, &rsh, "src"));
    let passed = fs::metadata(scratch.path().join("passed")).unwrap().len();
    let whole = (100 * RECORD + 30 * 29 / 2 * 700) as u64;
    assert!(passed > 2_000_000, "{passed}");
    // Only the bytes in flight at the interruption are sent twice, and the few for the second snapshot.
    assert!(rest + passed < whole + 1_500_000, "{rest} bytes after {passed} of {whole}");
    same(&scratch, "src");
}

/// A connection to the other machine that breaks off in the middle.
fn rsh_cut(scratch: &Scratch) -> PathBuf {
    let passed = scratch.path().join("passed");
    let filter =
        format!("dd bs=64k count=8000000 iflag=count_bytes status=none | tee {} |", passed.display());
    rsh(scratch, "cut", &filter)
}

#[test]
fn images_go_over_the_same_way() {
    let (scratch, rsh) = world();
    let image = scratch.path().join("disk.img");
    let mut bytes = noise(4 << 20, 5);
    bytes[1 << 20..2 << 20].fill(0);
    bytes.extend_from_slice(b"an odd end");
    fs::write(&image, &bytes).unwrap();
    let first = sent(&sync(&scratch, &rsh, "./disk.img"));
    assert!((3 << 20..7 << 19).contains(&first), "{first}");
    let restored = |scratch: &Scratch| {
        let newest = remote(scratch, "list -Ho name -t snapshot far/copy").lines().last().unwrap().to_owned();
        let out = scratch.path().join("restored");
        let _ = fs::remove_file(&out);
        remote(scratch, &format!("restore {newest} {}", out.display()));
        fs::read(&out).unwrap()
    };
    assert!(restored(&scratch).starts_with(&bytes));
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(b"changed", 3_000_000).unwrap();
    bytes[3_000_000..3_000_007].copy_from_slice(b"changed");
    let second = sent(&sync(&scratch, &rsh, "./disk.img"));
    assert!(second < 60_000, "{second}");
    assert!(restored(&scratch).starts_with(&bytes));
    let size = disk_usage(&shadows(&scratch));
    assert!(size < 1 << 20, "the shadow takes {size} bytes");
}

#[test]
fn it_can_only_be_told_what_would_be_taken_in() {
    let (scratch, rsh) = world();
    let said = scratch.run(&format!("sync -n -e {} src host:far/copy", rsh.display()));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("; would be ") && said.out.contains(" created"), "{said:?}");
    assert_eq!(scratch.ok("shadow list -H"), "", "nothing is kept of that");
    assert_eq!(remote(&scratch, "list -Ho name -r far"), "far\n");
}

#[test]
fn several_targets_keep_their_bases() {
    let (scratch, rsh) = world();
    let to =
        |target: &str| sent(&scratch.run(&format!("sync --json -e {} src host:far/{target}", rsh.display())));
    to("copy");
    to("other");
    let src = scratch.path().join("src");
    for (round, name) in [(1, "one"), (2, "two"), (3, "three")] {
        fs::write(src.join(name), noise(RECORD, round)).unwrap();
        settle(&src);
        // The first copy is behind by all of these changes, and gets just them.
        assert!((RECORD as u64..2 * RECORD as u64).contains(&to("other")));
    }
    assert!((3 * RECORD as u64..4 * RECORD as u64).contains(&to("copy")));
    same(&scratch, "src");
    let told = scratch.ok("shadow list -H");
    let row: Vec<_> = told.trim_end().split('\t').collect();
    assert_eq!(row[0], shadow(&scratch));
    assert_eq!(row[3..], [src.to_str().unwrap(), "host:far/other,host:far/copy"], "{told}");
}

#[test]
fn only_one_sync_takes_a_directory_in() {
    let (scratch, rsh) = world();
    sent(&sync(&scratch, &rsh, "src"));
    let lock = shadows(&scratch).join(format!("{}.lock", shadow(&scratch)));
    let held = fs::File::options().write(true).open(lock).unwrap();
    held.lock().unwrap();
    let said = sync(&scratch, &rsh, "src");
    assert!(said.code == 1 && said.err.contains("src': another sync of it is running"), "{said:?}");
    let said = scratch.run("shadow destroy src");
    assert!(said.code == 1 && said.err.contains("another sync of it is running"), "{said:?}");
    drop(held);
    sent(&sync(&scratch, &rsh, "src"));
}

#[test]
fn a_shadow_that_is_lost_or_damaged_is_told() {
    let (scratch, rsh) = world();
    sent(&sync(&scratch, &rsh, "src"));
    let pool = shadows(&scratch).join(shadow(&scratch));
    fs::remove_dir_all(&pool).unwrap();
    let said = sync(&scratch, &rsh, "src");
    assert!(
        said.code == 1 && said.err.contains("is lost, and with it the state that host:far/copy was made"),
        "{said:?}"
    );
    assert!(said.err.contains("have no snapshot in common"), "{said:?}");
    let elsewhere = format!("sync --json -e {} src host:far/anew", rsh.display());
    sent(&scratch.run(&elsewhere));
    // Overwrites the files at the top of the pool, which locate everything else.
    for entry in fs::read_dir(&pool).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.to_string_lossy().ends_with("lock") {
            let len = fs::metadata(&path).unwrap().len() as usize;
            fs::write(&path, vec![0x55; len]).unwrap();
        }
    }
    let said = scratch.run(&elsewhere);
    assert!(said.code == 1 && said.err.contains("'snowmelt shadow destroy shadow-"), "{said:?}");
    assert_eq!(scratch.ok("shadow list -Hp").lines().count(), 1);
    scratch.ok("shadow destroy src");
    assert_eq!(scratch.ok("shadow list -Hp"), "");
    assert_eq!(fs::read_dir(shadows(&scratch)).unwrap().count(), 0);
    assert!(scratch.run("shadow destroy src").err.contains("no such shadow"));
    sent(&scratch.run(&format!("sync --json -e {} src host:far/again", rsh.display())));
}

#[test]
fn another_directory_in_its_place_is_told() {
    let (scratch, rsh) = world();
    sent(&sync(&scratch, &rsh, "src"));
    let src = scratch.path().join("src");
    fs::rename(&src, scratch.path().join("old")).unwrap();
    fs::create_dir(&src).unwrap();
    fs::write(src.join("large"), noise(20 * RECORD + 77, 6)).unwrap();
    settle(&src);
    let said = sync(&scratch, &rsh, "src");
    assert!(said.err.contains("src' is a different directory than at the last sync"), "{said:?}");
    sent(&said);
    same(&scratch, "src");
    // A file instead of a directory is refused.
    fs::remove_dir_all(&src).unwrap();
    fs::write(&src, noise(RECORD, 7)).unwrap();
    let said = sync(&scratch, &rsh, "src");
    assert!(said.code == 1 && said.err.contains("was a directory at the last sync"), "{said:?}");
}

#[test]
fn directories_of_other_machines_leave_their_shadows_there() {
    let (scratch, rsh) = world();
    scratch.ok("pool create tank");
    let src = scratch.path().join("src");
    fs::rename(&src, scratch.path().join("it's a src")).unwrap();
    let src = scratch.path().join("it's a src");
    let there = format!("host:{}", src.display());
    let run = || {
        let mut command = scratch.command(&format!("sync --json -e {}", rsh.display()));
        command.args([&there, "tank/copy"]);
        Said::of(command)
    };
    assert!(sent(&run()) > 20 * RECORD as u64);
    fs::write(src.join("new"), noise(5000, 98)).unwrap();
    settle(&src.join("new"));
    let second = sent(&run());
    assert!((5000..20_000).contains(&second), "{second}");
    let newest = scratch.ok("list -Ho name -t snapshot tank/copy").lines().last().unwrap().to_owned();
    scratch.ok(&format!("restore {newest} out"));
    let mut diff = Command::new("diff");
    let said = Said::of({
        diff.args(["-r", "--no-dereference"]).arg(&src).arg(scratch.path().join("out"));
        diff
    });
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
    assert!(!shadows(&scratch).exists());
    assert!(scratch.path().join("remote/state/snowmelt/shadow").exists());
    let said = scratch.run(&format!("sync -e {} host:/not/there tank/copy", rsh.display()));
    assert!(said.code == 1 && said.err.contains("cannot serve '/not/there': No such file"), "{said:?}");
}

/// An entry of a manifest without the fields that may differ between two imports of one tree.
fn without_numbers(line: &str) -> Value {
    let mut entry: Value = serde_json::from_str(line).unwrap();
    for key in ["ino", "atime"] {
        entry.as_object_mut().unwrap().remove(key);
    }
    entry
}

#[test]
fn hostile_trees_go_over() {
    let (scratch, rsh) = world();
    let src = scratch.path().join("src");
    let script = r#"
        long=$(printf 'x%.0s' $(seq 255)); echo long > "$long"
        long=$(printf 'y%.0s' $(seq 255))
        (i=0; while [ $i -lt 40 ]; do mkdir "$long" && cd "$long" || exit 1; i=$((i+1)); done; echo deep > deep)
        ln -s loop loop; ln -s ../.. up; mkfifo fifo; ln fifo fifo2
        mkdir closed; echo closed > closed/file; chmod 0 closed/file closed
    "#;
    assert!(Command::new("bash").args(["-c", script]).current_dir(&src).status().unwrap().success());
    for byte in (1..=255u8).filter(|byte| *byte != b'/') {
        use std::os::unix::ffi::OsStrExt;
        let name = [b'n', byte];
        fs::write(src.join(std::ffi::OsStr::from_bytes(&name)), noise(300, u64::from(byte))).unwrap();
    }
    settle(&src);
    sent(&sync(&scratch, &rsh, "src"));
    scratch.ok("pool create tank");
    scratch.ok("import src tank/plain@1");
    let newest = remote(&scratch, "list -Ho name -t snapshot far/copy").lines().last().unwrap().to_owned();
    let (copy, plain) =
        (remote(&scratch, &format!("manifest {newest}")), scratch.ok("manifest tank/plain@1"));
    assert_eq!(copy.lines().count(), plain.lines().count());
    for (copy, plain) in copy.lines().map(without_numbers).zip(plain.lines().map(without_numbers)) {
        assert_eq!(copy, plain);
    }
    // As large as the filesystem allows.
    let huge = fs::File::create(src.join("huge")).unwrap();
    let size = (40..63).rev().map(|bits| (1u64 << bits) - 4096).find(|size| huge.set_len(*size).is_ok());
    let size = size.unwrap();
    huge.write_all_at(b"the end", size - 7).unwrap();
    settle(&src.join("huge"));
    let more = sent(&sync(&scratch, &rsh, "src"));
    assert!(more < 2 * RECORD as u64, "{more}");
    let newest = remote(&scratch, "list -Ho name -t snapshot far/copy").lines().last().unwrap().to_owned();
    let listed = remote(&scratch, &format!("ls -l {newest}:huge"));
    assert!(
        listed.lines().any(|line| line.contains(&size.to_string()) && line.ends_with("huge")),
        "{listed}"
    );
}

/// A small filesystem, which is removed at the end.
struct Small(PathBuf);

impl Small {
    fn mount(place: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&place).unwrap();
        let small = Self(place);
        small.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        small
    }

    fn resize(&self, size: &str) {
        self.run("mount", &["-o", &format!("remount,size={size}")]);
    }

    fn run(&self, program: &str, words: &[&str]) {
        assert!(Command::new(program).args(words).arg(&self.0).status().unwrap().success(), "{program}");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        self.run("umount", &[]);
    }
}

#[test]
#[ignore = "mounts a tmpfs: needs root"]
fn a_full_disk_with_the_shadow_stops_the_sync_and_loses_nothing() {
    let (scratch, rsh) = world();
    let src = scratch.path().join("src");
    let many = |seed: u64| {
        for number in 0..4000 {
            fs::write(src.join(format!("deep/er/{number}")), noise(40, seed + number)).unwrap();
        }
        settle(&src);
    };
    many(0);
    let small = Small::mount(scratch.path().join("state"), "64k");
    let refused = || {
        let said = sync(&scratch, &rsh, "src");
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
        for expected in ["src' are stored in '", "state/snowmelt/shadow'", "XDG_STATE_HOME"] {
            assert!(said.err.contains(expected), "{expected}: {said:?}");
        }
    };
    // Space runs out while the shadow is made or filled: nothing of it stays.
    for size in ["64k", "1500k", "2m", "3m"] {
        small.resize(size);
        refused();
        assert_eq!(fs::read_dir(shadows(&scratch)).unwrap().count(), 0, "{size}");
        assert_eq!(remote(&scratch, "list -Hr -o name far"), "far\n");
    }
    small.resize("40m");
    sent(&sync(&scratch, &rsh, "src"));
    same(&scratch, "src");
    // Space runs out while it is updated: it stays unchanged, and continues when there is space.
    many(1_000_000);
    let ballast = scratch.path().join("state/ballast");
    let mut room = fs::File::create(&ballast).unwrap();
    while std::io::Write::write_all(&mut room, &[1; 4096]).is_ok() {}
    drop(room);
    refused();
    scratch.ok(&format!("check {}", shadow(&scratch)));
    let kept = scratch.ok(&format!("list -Hr -t snapshot -o name {}", shadow(&scratch)));
    assert_eq!(kept.lines().count(), 1, "{kept}");
    fs::remove_file(ballast).unwrap();
    sent(&sync(&scratch, &rsh, "src"));
    same(&scratch, "src");
}

#[test]
fn what_has_not_changed_costs_nothing() {
    let (scratch, rsh) = world();
    put_image(&scratch);
    for (source, target) in [("src", "copy"), ("./disk.img", "disk")] {
        let line = format!("sync -v -e {} {source} host:far/{target}", rsh.display());
        let said = scratch.run(&line);
        assert!(said.code == 0 && !said.out.contains("nothing changed"), "{said:?}");
        let listed = || remote(&scratch, &format!("list -Ho name -t snapshot far/{target}"));
        let before = listed();
        for _ in 0..2 {
            let said = scratch.run(&line);
            assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
            assert_eq!(
                said.out,
                format!("{source}: nothing changed\n1 of 1 datasets up to date, nothing changed\n")
            );
        }
        assert_eq!(listed(), before);
        // An unchanged source can be sent to a second target.
        let said = scratch.run(&format!("sync --json -e {} {source} host:far/{target}2", rsh.display()));
        assert!(sent(&said) > 10_000, "{said:?}");
    }
    fs::write(scratch.path().join("src/empty"), b"not any more").unwrap();
    assert!(sent(&sync(&scratch, &rsh, "src")) > 624);
    same(&scratch, "src");
    // Also into a pool of this machine. There 'import' takes a snapshot at every call.
    scratch.ok("pool create near");
    for (source, target) in [("src", "near/copy"), ("./disk.img", "near/disk")] {
        scratch.ok(&format!("sync {source} {target}"));
        let said = scratch.ok(&format!("sync -v {source} {target}"));
        assert!(said.starts_with(&format!("nothing changed since {target}@import_")), "{said}");
        let told: Value =
            serde_json::from_str(&scratch.ok(&format!("sync --json {source} {target}"))).unwrap();
        assert_eq!(told["unchanged"], Value::Bool(true), "{told}");
        let listed = || scratch.ok(&format!("list -Ho name -t snapshot {target}")).lines().count();
        assert_eq!(listed(), 1);
        scratch.ok(&format!("import {source} {target}"));
        assert_eq!(listed(), 2);
    }
    scratch.ok("check near");
}

fn put_image(scratch: &Scratch) {
    let image = scratch.path().join("disk.img");
    fs::write(&image, noise(1 << 20, 9)).unwrap();
    settle(&image);
}
