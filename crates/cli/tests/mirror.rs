//! Mirrors: creating them, degraded operation, resilvering, and the output of `pool status`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::Scratch;
use common::mounting::{Mounting, wait_for};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

/// Incompressible bytes.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Takes a snapshot with a file of incompressible bytes.
fn fill(scratch: &Scratch, snapshot: &str, len: usize, seed: u64) {
    let top = scratch.path().join("src");
    fs::create_dir_all(&top).unwrap();
    fs::write(top.join("file"), noise(len, seed)).unwrap();
    scratch.ok(&format!("import src tank/home@{snapshot}"));
}

fn holds(scratch: &Scratch, snapshot: &str, len: usize, seed: u64) {
    let out = scratch.to_file(&format!("cat tank/home@{snapshot}:/file"), "out");
    assert!(fs::read(out).unwrap() == noise(len, seed), "other bytes in {snapshot}");
}

/// The lines of the configuration in `pool status`, without the heading and without the scratch path.
fn config(scratch: &Scratch) -> Vec<String> {
    let status = scratch.ok("pool status tank");
    let at = status.find("\tNAME").unwrap_or_else(|| panic!("{status}"));
    let lines = status[at..].lines().skip(1).take_while(|line| !line.is_empty());
    let top = format!("{}/", scratch.path().canonicalize().unwrap().display());
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.join(" ").replace(&top, "")
        })
        .collect()
}

/// Waits until the resilver in the background has finished.
fn settled(scratch: &Scratch) {
    scratch.ok("pool resilver -w tank");
    assert!(config(scratch).iter().all(|line| !line.contains("resilver")));
}

fn check(scratch: &Scratch) {
    scratch.ok("pool scrub -w tank");
    let out = scratch.ok("check tank");
    assert!(!out.contains("warning"), "{out}");
}

#[test]
fn a_mirror_lives_through_the_loss_of_any_member() {
    let scratch = Scratch::new();
    let out = scratch.ok("pool create -n --size 96M tank mirror a b.img");
    assert!(out.starts_with("would create 'tank' in a mirror of ") && out.contains(" and "), "{out}");
    scratch.ok("pool create --size 96M tank mirror b.img c.img");
    let health = |state: &str, lines: &[&str]| {
        let first = [format!("tank {state} 0 0 0"), format!("mirror-0 {state} 0 0 0")];
        first.into_iter().chain(lines.iter().map(|line| (*line).to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(config(&scratch), health("ONLINE", &["b.img ONLINE 0 0 0", "c.img ONLINE 0 0 0"]));
    fill(&scratch, "one", 3_000_000, 1);
    // A member goes offline, the pool is written to, and the member comes back.
    scratch.ok("pool offline tank c.img");
    assert_eq!(config(&scratch), health("DEGRADED", &["b.img ONLINE 0 0 0", "c.img OFFLINE 0 0 0"]));
    let status = scratch.ok("pool status -x");
    assert!(status.contains("taken offline by the administrator"), "{status}");
    assert_eq!(scratch.ok("pool list -H -o health").trim(), "DEGRADED");
    let said = scratch.fails(1, "pool offline tank b.img");
    assert!(said.contains("cannot offline b.img") && said.contains("no valid replicas"), "{said}");
    fill(&scratch, "two", 5_000_000, 2);
    scratch.ok("pool online tank c.img");
    settled(&scratch);
    let status = scratch.ok("pool status tank");
    assert!(status.contains("  scan: resilvered ") && status.contains(" with 0 errors on "), "{status}");
    assert_eq!(scratch.ok("pool status -x"), "all pools are healthy\n");
    check(&scratch);
    // A member is missing: the pool is found through the other member and reports that it is degraded.
    fs::create_dir(scratch.path().join("away")).unwrap();
    fs::rename(scratch.path().join("b.img"), scratch.path().join("away/b.img")).unwrap();
    holds(&scratch, "two", 5_000_000, 2);
    let lines = config(&scratch);
    assert!(lines[2].starts_with("b.img UNAVAIL 0 0 0 cannot open"), "{lines:?}");
    let status = scratch.ok("pool status -x");
    assert!(status.contains("One or more devices could not be opened."), "{status}");
    // A blank member replaces it and receives all data.
    let said = scratch.fails(1, "pool replace tank nothing d");
    assert!(said.contains("no such device in pool"), "{said}");
    scratch.ok("pool replace -w --size 128M tank b.img d.img");
    settled(&scratch);
    assert_eq!(config(&scratch), health("ONLINE", &["c.img ONLINE 0 0 0", "d.img ONLINE 0 0 0"]));
    check(&scratch);
    // A third member is attached. Then the others are detached.
    scratch.ok("pool attach -w tank d.img third");
    assert_eq!(config(&scratch).len(), 5);
    scratch.ok("pool detach tank c.img");
    scratch.ok("pool detach tank d.img");
    let lines = config(&scratch);
    assert_eq!(lines, ["tank ONLINE 0 0 0", "third ONLINE 0 0 0"]);
    let said = scratch.fails(1, "pool detach tank third");
    assert!(said.contains("only applicable to mirror"), "{said}");
    holds(&scratch, "one", 3_000_000, 1);
    holds(&scratch, "two", 5_000_000, 2);
    check(&scratch);
    // A detached member is no longer a pool.
    assert!(scratch.run("pool import -d c.img").code != 0);
    let history = scratch.ok("pool history tank");
    for verb in ["offline", "online", "replace", "attach", "detach"] {
        assert!(history.contains(&format!("pool {verb} ")), "{verb}: {history}");
    }
}

#[test]
fn a_pool_on_one_device_gets_a_second() {
    let scratch = Scratch::new();
    scratch.ok("pool create tank one");
    fill(&scratch, "a", 2_000_000, 7);
    for line in ["pool detach tank one", "pool offline tank one"] {
        let said = scratch.fails(1, line);
        assert!(said.contains("only applicable to mirror and replacing vdevs"), "{said}");
    }
    let said = scratch.fails(1, "pool resilver -w tank");
    assert!(said.contains("it has no mirror"), "{said}");
    let said = scratch.fails(1, "pool attach tank two three");
    assert!(said.contains("no such device in pool"), "{said}");
    scratch.ok("pool attach -w tank one two");
    assert_eq!(config(&scratch)[1..], ["mirror-0 ONLINE 0 0 0", "one ONLINE 0 0 0", "two ONLINE 0 0 0"]);
    check(&scratch);
    fs::remove_dir_all(scratch.path().join("one")).unwrap();
    holds(&scratch, "a", 2_000_000, 7);
    // The pool is found, exported and imported through the remaining member.
    scratch.ok("pool export tank");
    assert!(scratch.run("list tank").code != 0);
    scratch.ok("pool import -d two tank");
    holds(&scratch, "a", 2_000_000, 7);
    scratch.ok("pool destroy tank");
    assert!(!scratch.path().join("two/label").exists());
}

#[test]
fn members_moved_together_are_found_and_apart_are_refused() {
    let scratch = Scratch::new();
    scratch.ok("pool create tank mirror a b");
    fill(&scratch, "a", 500_000, 3);
    scratch.ok("pool export tank");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("new")).unwrap();
    for name in ["a", "b"] {
        fs::rename(at(name), at("new").join(name)).unwrap();
    }
    scratch.ok("pool import -d new tank");
    holds(&scratch, "a", 500_000, 3);
    assert_eq!(config(&scratch)[2..], ["new/a ONLINE 0 0 0", "new/b ONLINE 0 0 0"]);
    scratch.ok("pool export tank");
    // Each member is written to without the other.
    for (kept, away) in [("a", "b"), ("b", "a")] {
        fs::rename(at("new").join(away), at(away)).unwrap();
        scratch.ok("pool import -d new tank");
        scratch.ok(&format!("create tank/{kept}"));
        scratch.ok("pool export tank");
        fs::rename(at(away), at("new").join(away)).unwrap();
    }
    let said = scratch.fails(1, "pool import -d new tank");
    assert!(said.contains("were written to separately"), "{said}");
    // After one member is removed, the pool is the other one.
    fs::remove_dir_all(at("new/a")).unwrap();
    scratch.ok("pool import -d new tank");
    scratch.ok("list tank/b");
    holds(&scratch, "a", 500_000, 3);
}

#[test]
fn vdevs_that_make_no_mirror_are_refused() {
    let scratch = Scratch::new();
    for (line, why) in [
        ("pool create tank mirror", "mirror requires at least 2 devices"),
        ("pool create tank mirror a", "mirror requires at least 2 devices"),
        ("pool create tank a b", "put 'mirror' before the names"),
        ("pool create tank mirror a b mirror c d", "only one mirror"),
        ("pool create tank mirror a a", "all of them different"),
    ] {
        let said = scratch.fails(1, line);
        assert!(said.contains(why), "{line}: {said}");
    }
    fs::create_dir(scratch.path().join("full")).unwrap();
    fs::write(scratch.path().join("full/x"), "mine").unwrap();
    let said = scratch.fails(1, "pool create tank mirror a full");
    assert!(said.contains("full"), "{said}");
    // The failed command left nothing in the usable vdev.
    scratch.ok("pool create tank mirror a b");
    fill(&scratch, "a", 100_000, 1);
    let small = scratch.fails(1, "pool attach --size 64M tank a c.img");
    assert!(small.contains("device is too small"), "{small}");
    assert!(!scratch.path().join("c.img").exists() || scratch.run("pool import -d c.img").code != 0);
}

/// In each file of a member's segments, finds the first 64 bytes of `content` and flips a bit there.
fn damage(member: &Path, content: &[u8]) {
    let needle = &content[..64];
    let mut pending = vec![member.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
                continue;
            }
            let mut bytes = fs::read(entry.path()).unwrap();
            if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
                bytes[at + 10] ^= 4;
                fs::write(entry.path(), bytes).unwrap();
                return;
            }
        }
    }
    panic!("no segment holds it");
}

#[test]
fn what_is_wrong_in_one_member_is_healed_and_counted() {
    let scratch = Scratch::new();
    scratch.ok("pool create tank mirror a b");
    fill(&scratch, "a", 400_000, 9);
    damage(&scratch.path().join("a"), &noise(400_000, 9));
    let said = scratch.run("check tank");
    assert!(said.code != 0 && format!("{said:?}").contains(" on "), "{said:?}");
    let out = scratch.ok("pool scrub -w tank");
    assert!(out.contains(" with 0 errors on ") && !out.contains("repaired 0B"), "{out}");
    assert_eq!(config(&scratch)[2..], ["a ONLINE 0 0 1", "b ONLINE 0 0 0"]);
    let status = scratch.ok("pool status -x");
    assert!(status.contains("An\n\tattempt was made to correct the error."), "{status}");
    check(&scratch);
    scratch.ok("pool clear tank");
    assert_eq!(scratch.ok("pool status -x"), "all pools are healthy\n");
    // A read repairs in the same way.
    damage(&scratch.path().join("b"), &noise(400_000, 9));
    damage(&scratch.path().join("a"), &noise(400_000, 9)[131_072..]);
    holds(&scratch, "a", 400_000, 9);
    let json = scratch.ok("pool status -j tank");
    assert!(
        json.contains("\"vdev_type\": \"mirror\"") || json.contains("\"vdev_type\":\"mirror\""),
        "{json}"
    );
    check(&scratch);
}

/// Bytes of all files below `top`.
fn size_below(top: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(top) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

#[test]
fn a_resilver_that_is_killed_goes_on() {
    const LEN: usize = 48 << 20;
    let scratch = Scratch::new();
    let at = |name: &str| scratch.path().join(name);
    scratch.ok("pool create tank mirror one two");
    // One member is away. More is written than is copied at once when the pool is opened.
    fs::create_dir(at("away")).unwrap();
    fs::rename(at("two"), at("away/two")).unwrap();
    fill(&scratch, "a", LEN, 5);
    fs::rename(at("away/two"), at("two")).unwrap();
    assert!(size_below(&at("two/segments")) < 1 << 20);
    for part in [4 << 20, 20 << 20] {
        let mut child = scratch.command("pool resilver -w tank").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while size_below(&at("two/segments")) < part
            && child.try_wait().unwrap().is_none()
            && Instant::now() < deadline
        {
            std::thread::yield_now();
        }
        // The resilver is killed in the middle, or after its end.
        child.kill().unwrap();
        child.wait().unwrap();
        holds(&scratch, "a", LEN, 5);
    }
    settled(&scratch);
    assert_eq!(config(&scratch)[1..], ["mirror-0 ONLINE 0 0 0", "one ONLINE 0 0 0", "two ONLINE 0 0 0"]);
    check(&scratch);
    // The member that was away has everything on its own.
    fs::remove_dir_all(at("one")).unwrap();
    holds(&scratch, "a", LEN, 5);
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// The other member has lost a segment while one was away. The member that returns has the only copy.
#[test]
fn a_member_that_returns_keeps_what_the_other_has_lost() {
    const LEN: usize = 3 << 20;
    for takes_offline in [true, false] {
        let scratch = Scratch::new();
        let at = |name: &str| scratch.path().join(name);
        scratch.ok("pool create tank mirror one two");
        fill(&scratch, "a", LEN, 5);
        let (gone, kept) = (at("two"), at("away"));
        if takes_offline {
            scratch.ok("pool offline tank two");
        } else {
            fs::rename(&gone, &kept).unwrap();
        }
        // Only nodes are written, so that the segment with the data is complete on both.
        scratch.ok("pool set comment=later tank");
        let len = |path: &PathBuf| fs::metadata(path).unwrap().len();
        let largest = files_below(&at("one/segments")).into_iter().max_by_key(len).unwrap();
        assert!(len(&largest) > LEN as u64 / 2);
        fs::remove_file(largest).unwrap();
        if takes_offline {
            scratch.ok("pool online tank two");
        } else {
            fs::rename(&kept, &gone).unwrap();
            scratch.ok("list");
        }
        holds(&scratch, "a", LEN, 5);
        scratch.ok("pool scrub -w tank");
        settled(&scratch);
        check(&scratch);
        // Now both members have it.
        fs::remove_dir_all(at("two")).unwrap();
        holds(&scratch, "a", LEN, 5);
    }
}

#[test]
fn a_file_that_missed_little_is_brought_that_as_soon_as_it_is_back() {
    let scratch = Scratch::new();
    let at = |name: &str| scratch.path().join(name);
    scratch.ok("pool create --size 512M tank mirror one.img two.img");
    fill(&scratch, "a", 3 << 20, 1);
    fs::create_dir(at("away")).unwrap();
    fs::rename(at("two.img"), at("away/two.img")).unwrap();
    scratch.ok("create tank/missed");
    fs::rename(at("away/two.img"), at("two.img")).unwrap();
    assert_eq!(config(&scratch)[2..], ["one.img ONLINE 0 0 0", "two.img ONLINE 0 0 0"]);
    check(&scratch);
    settled(&scratch);
    let status = scratch.ok("pool status tank");
    let copied = status.split("resilvered ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let kib: f64 = copied.strip_suffix('K').unwrap_or_else(|| panic!("{copied}")).parse().unwrap();
    assert!(kib < 512.0, "{status}");
}

#[test]
fn members_are_listed() {
    let scratch = Scratch::new();
    scratch.ok("pool create --size 96M tank mirror a.img b.img");
    scratch.ok("pool offline tank b.img");
    let top = scratch.path().canonicalize().unwrap();
    let listed = scratch.ok("pool list -v -H -o name,health");
    let expected = format!(
        "tank\tDEGRADED\n  mirror-0\tDEGRADED\n    {0}/a.img\tONLINE\n    {0}/b.img\tOFFLINE\n",
        top.display()
    );
    assert_eq!(listed, expected);
}

#[test]
fn how_long_a_member_is_waited_for_can_be_set() {
    let scratch = Scratch::new();
    scratch.ok("pool create --size 96M tank mirror a.img b.img");
    let get = || scratch.ok("pool get -H -o value,source deadman tank");
    assert_eq!(get(), "60s\tdefault\n");
    scratch.ok("pool set deadman=5s tank");
    assert_eq!(get(), "5s\tlocal\n");
    for text in ["0", "86401", "soon", "5m"] {
        let said = scratch.fails(1, &format!("pool set deadman={text} tank"));
        assert!(said.contains("'deadman' must be a number of seconds from 1s to 86400s"), "{said}");
    }
    assert_eq!(scratch.ok("pool get -H -p -o value deadman tank"), "5\n");
    scratch.ok("pool create -o deadman=7 --size 96M other c.img");
    assert_eq!(scratch.ok("pool get -H -o value deadman other"), "7s\n");
    check(&scratch);
}

/// A disk that can be made to hang: a mount of another pool, whose process is stopped.
struct Disk {
    world: Mounting,
    server: Pid,
}

impl Disk {
    fn new() -> Self {
        let world = Mounting::new(Scratch::with_pool());
        world.scratch.ok("create tank/disk");
        world.scratch.ok("mount tank/disk mnt");
        let server = Pid::from_raw(world.owner().unwrap().cast_signed()).unwrap();
        Self { world, server }
    }

    fn path(&self, name: &str) -> String {
        self.world.dir().join(name).display().to_string()
    }

    fn hang(&self) {
        kill_process(self.server, Signal::STOP).unwrap();
    }

    fn answer(&self) {
        let _ = kill_process(self.server, Signal::CONT);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.answer();
    }
}

#[test]
fn a_label_that_is_a_pipe_keeps_nobody_waiting() {
    let scratch = Scratch::new();
    scratch.ok("pool create solo one");
    scratch.ok("pool create tank two");
    let label = scratch.path().join("one/label");
    fs::remove_file(&label).unwrap();
    mknodat(CWD, &label, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let said = scratch.run("pool list -H -o name,health");
    assert_eq!((said.code, said.out.as_str()), (1, "solo\tUNAVAIL\ntank\tONLINE\n"), "{said:?}");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_pool_that_hangs_keeps_no_other_and_is_told_of() {
    let (disk, scratch) = (Disk::new(), Scratch::new());
    scratch.ok(&format!("pool create solo {}", disk.path("one")));
    scratch.ok("pool create tank two");
    disk.hang();
    let begun = Instant::now();
    scratch.ok("create tank/x");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let said = scratch.run("pool list -H -o name,health");
    assert_eq!((said.code, said.out.as_str()), (1, "solo\tUNAVAIL\ntank\tONLINE\n"), "{said:?}");
    assert!(said.err.contains("one for 30 s: the pool there cannot be identified"), "{said:?}");
}

/// The mount's process copies the data as long as it owns the pool, and the process of `pool replace` afterwards.
#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_replacement_goes_on_after_the_mount_that_began_it() {
    const LEN: usize = 64 << 20;
    // The new member is in a filesystem of another pool, so that copying takes longer than the unmount.
    let (disk, world) = (Disk::new(), Mounting::new(Scratch::new()));
    let (scratch, three) = (&world.scratch, disk.path("three"));
    let list = || fs::read_to_string(scratch.path().join("config/snowmelt/pools")).unwrap();
    scratch.ok("pool create tank mirror one two");
    fill(scratch, "a", LEN, 5);
    scratch.ok("mount tank/home mnt");
    scratch.ok(&format!("pool replace tank two {three}"));
    scratch.ok("unmount tank/home");
    wait_for("the end of the resilver", || config(scratch).iter().all(|line| !line.contains("two ")));
    world.wait_until_closed();
    let new = format!("{three} ONLINE 0 0 0");
    assert_eq!(config(scratch)[1..], ["mirror-0 ONLINE 0 0 0", "one ONLINE 0 0 0", &new]);
    // The old member is not listed any more.
    assert!(!list().contains("/two\n") && list().contains("/three\n"), "{}", list());
    check(scratch);
    fs::remove_dir_all(scratch.path().join("one")).unwrap();
    holds(scratch, "a", LEN, 5);
}

/// The owner already has the hung member open. Commands that start now would have to open it.
#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn commands_that_begin_while_a_member_hangs_find_the_pool_and_its_owner() {
    let (disk, scratch) = (Disk::new(), Scratch::new());
    let one = disk.path("one");
    scratch.ok(&format!("pool create -o deadman=2s tank mirror {one} two"));
    let mut owner =
        scratch.command("receive tank/x").stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("an owner that listens", || {
        let files = fs::read_dir(format!("/proc/{}/fd", owner.id())).unwrap().flatten();
        files
            .flat_map(|file| fs::read_link(file.path()))
            .any(|file| file.to_string_lossy().starts_with("socket:"))
    });
    disk.hang();
    let begun = Instant::now();
    assert_eq!(scratch.ok("list -H -o name"), "tank\n");
    let faulted = config(&scratch);
    assert!(faulted[1].starts_with("mirror-0 DEGRADED "), "{faulted:?}");
    assert!(faulted[2].starts_with(&format!("{one} FAULTED ")), "{faulted:?}");
    assert!(faulted[3].starts_with("two ONLINE "), "{faulted:?}");
    scratch.ok(&format!("pool offline tank {one}"));
    let said = scratch.fails(1, &format!("pool online tank {one}"));
    assert!(said.contains("no answer for 2 s"), "{said}");
    fill(&scratch, "a", 1 << 20, 1);
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    disk.answer();
    scratch.ok(&format!("pool online tank {one}"));
    drop(owner.stdin.take());
    owner.wait().unwrap();
    settled(&scratch);
    check(&scratch);
    fs::remove_dir_all(scratch.path().join("two")).unwrap();
    holds(&scratch, "a", 1 << 20, 1);
}
