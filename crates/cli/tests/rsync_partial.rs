//! Transfers that are cut off within a file: what is kept of it, and what of that need not be sent again, beside stock rsync (Debian: rsync) at the
//! other end. What needs rsync is ignored by a plain `cargo test`: `.ci/run clients` runs it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::rsync::{own_shell, restored, script, snapshots};
use common::{Said, Scratch};
use trees::{Random, assert_same, set_time};

const NEW_LEN: usize = 4 << 20;
const OLD_LEN: usize = 3 << 20;
/// Bytes after which connections are cut, and what of a file has come at least by then.
const CUT: usize = 1_500_000;
const CAME: usize = 1 << 20;
/// Passes on so many bytes as they come, and ends. Servers have sockets not wait.
const FIRST: &str = r#"perl -e 'sub nap { select undef, undef, undef, 0.01 }
    for ($n = 1500000; $n; ) { $r = sysread STDIN, $b, $n < 65536 ? $n : 65536; defined $r or nap, next; $r or last; $n -= $r;
    while ($b ne "") { $w = syswrite STDOUT, $b; defined $w ? substr($b, 0, $w, "") : nap } }'"#;

/// What runs a server, of which it cuts off what it is told if there is a file `cut`.
fn cutting(scratch: &Scratch) -> String {
    let cut = scratch.path().join("cut");
    format!("if [ -e {} ]; then {FIRST} | sh -c \"$*\"\nelse exec sh -c \"$*\"; fi", cut.display())
}

/// Stock rsync as the client, and at the other end it or this program.
struct Pusher<'s> {
    scratch: &'s Scratch,
    shell: PathBuf,
    program: &'static str,
}

impl Pusher<'_> {
    fn run(&self, args: &[&str], from: &Path, to: &str) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", "rsync", "-e", self.shell.to_str().unwrap(), "--rsync-path", self.program]);
        command.args(["-a", "--stats", "--timeout=20"]).args(args).arg(format!("{}/", from.display()));
        command.arg(format!("host:{to}/")).stdin(Stdio::null()).output().unwrap()
    }

    fn cut(&self, args: &[&str], from: &Path, to: &str) {
        let cut = self.scratch.path().join("cut");
        fs::write(&cut, "").unwrap();
        let output = self.run(args, from, to);
        fs::remove_file(&cut).unwrap();
        assert!(!output.status.success(), "{args:?}: {output:?}");
    }

    /// Bytes that were sent of files' content.
    fn push(&self, args: &[&str], from: &Path, to: &str) -> usize {
        let output = self.run(args, from, to);
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix("Literal data: ")).unwrap();
        line.split(' ').next().unwrap().replace(',', "").parse().unwrap()
    }
}

/// Options, what was there before, and what is left of a push that is cut off: files, and what they are.
type Case<'a> = (&'a [&'a str], &'a Path, &'a [(&'a str, &'a str)]);

/// What a file may be.
struct Contents {
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Contents {
    /// What each file of a tree is.
    fn tell(&self, tree: &Path) -> BTreeMap<String, String> {
        let mut told = BTreeMap::new();
        let mut left = vec![tree.to_owned()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                    continue;
                }
                let has = fs::read(&path).unwrap();
                let same = has.iter().zip(&self.new).take_while(|(a, b)| a == b).count();
                let rest = has.len() - same;
                let is_marked = path.metadata().unwrap().mtime() == 0;
                let what = match same {
                    _ if has == self.old => "old",
                    NEW_LEN => "new",
                    CAME..CUT if rest == 0 && is_marked => "begun and marked",
                    CAME..CUT if rest == 0 => "begun",
                    CAME..CUT if has.len() == OLD_LEN && has[same..] == self.old[same..] => "begun, then old",
                    CUT.. if rest == 0 => "begun twice",
                    _ => panic!("{}: {} bytes, {same} of them new", path.display(), has.len()),
                };
                told.insert(path.strip_prefix(tree).unwrap().display().to_string(), what.to_owned());
            }
        }
        told
    }
}

/// Whatever the client wishes, what is left is what rsync's own server leaves, and as much of it is used the next time.
#[test]
#[ignore = "needs rsync and root"]
fn pushes_that_are_cut_within_a_file_leave_what_rsync_leaves() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    let contents = Contents { old: Random(1).bytes(OLD_LEN), new: Random(2).bytes(NEW_LEN) };
    let tree = |name: &str, content: &[u8]| {
        let path = home.join(name);
        fs::create_dir_all(path.join("d")).unwrap();
        fs::write(path.join("d/f"), content).unwrap();
        for name in ["d/f", "d", ""] {
            set_time(&path.join(name), 1_600_000_000, 0);
        }
        path
    };
    let [old, new, begun] =
        [("old", &contents.old[..]), ("new", &contents.new), ("begun", &contents.new[..CAME])]
            .map(|(name, content)| tree(name, content));
    fs::create_dir(home.join("empty")).unwrap();
    fs::create_dir(home.join("stock")).unwrap();
    let ours = Pusher {
        scratch: &scratch,
        shell: own_shell(&scratch, &cutting(&scratch)),
        program: "snowmelt rsync",
    };
    let stock = Pusher {
        scratch: &scratch,
        shell: script(&scratch, "stock-shell", &cutting(&scratch)),
        program: "rsync",
    };
    let nothing = &home.join("empty");
    let cases: &[Case<'_>] = &[
        (&[], &old, &[("d/f", "old")]),
        (&[], nothing, &[]),
        (&["--partial"], &old, &[("d/f", "begun and marked")]),
        (&["--partial"], nothing, &[("d/f", "begun and marked")]),
        (&["--partial", "-b"], &old, &[("d/f", "begun and marked"), ("d/f~", "old")]),
        (&["--inplace"], &old, &[("d/f", "begun, then old")]),
        (&["--append"], &begun, &[("d/f", "begun twice")]),
        (&["--partial-dir=.part", "--delete"], &old, &[("d/.part/f", "begun"), ("d/f", "old")]),
        (&["--partial-dir=.part"], nothing, &[("d/.part/f", "begun")]),
        (&["--partial-dir=.part", "--protocol=29"], &old, &[("d/.part/f", "begun"), ("d/f", "old")]),
    ];
    for (at, (args, before, left)) in cases.iter().enumerate() {
        let (dataset, place) = (format!("tank/d{at}"), home.join(format!("stock/{at}")));
        scratch.ok(&format!("create {dataset}"));
        fs::create_dir(&place).unwrap();
        let ends = [(&ours, dataset.clone()), (&stock, place.display().to_string())];
        let mut sent = Vec::new();
        for (pusher, to) in &ends {
            let what = format!("{} {args:?}", pusher.program);
            pusher.push(&[], before, to);
            pusher.cut(args, &new, to);
            let there = match pusher.program {
                "rsync" => place.clone(),
                _ if snapshots(&scratch, &dataset).is_empty() => nothing.clone(),
                _ => restored(&scratch, &dataset),
            };
            let mut told = contents.tell(&there);
            // What is written in place has another time here until it is whole.
            if args.iter().any(|arg| ["--inplace", "--append"].contains(arg)) {
                told.values_mut().for_each(|what| *what = what.replace(" and marked", ""));
            }
            let left: BTreeMap<_, _> =
                left.iter().map(|(name, what)| ((*name).to_owned(), (*what).to_owned())).collect();
            assert_eq!(told, left, "{what}");
            sent.push(pusher.push(args, &new, to));
        }
        let all = fs::read_dir(restored(&scratch, &dataset).join("d")).unwrap().count();
        assert_eq!(all, fs::read_dir(place.join("d")).unwrap().count(), "{args:?}");
        if !args.contains(&"-b") {
            assert_same(&new, &restored(&scratch, &dataset), &format!("{args:?}"));
        }
        let is_used = left.iter().any(|(_, what)| what.starts_with("begun"));
        assert!(sent[0] <= NEW_LEN - if is_used { CAME } else { 0 }, "{args:?}: {sent:?}");
        assert!(sent[0].abs_diff(sent[1]) < CUT - CAME, "{args:?}: {sent:?}");
    }
    scratch.ok("check tank");
}

/// A file of several names of which one was to become another one is there still.
#[test]
#[ignore = "needs rsync"]
fn names_of_files_that_have_others_stay() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    let contents = Contents { old: Random(1).bytes(OLD_LEN), new: Random(2).bytes(NEW_LEN) };
    let [old, new] = [("old", &contents.old), ("new", &contents.new)].map(|(name, content)| {
        let path = home.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("f"), content).unwrap();
        // So that something is left whole in any case.
        fs::write(path.join("a"), name.repeat(name.bytes().map(usize::from).sum())).unwrap();
        path
    });
    fs::hard_link(old.join("f"), old.join("other")).unwrap();
    let ours = Pusher {
        scratch: &scratch,
        shell: own_shell(&scratch, &cutting(&scratch)),
        program: "snowmelt rsync",
    };
    for (dataset, args, parts) in [
        ("tank/a", &[][..], None),
        ("tank/b", &["--partial-dir=.part"][..], Some(".part/f")),
        ("tank/c", &["--partial-dir=/parts"][..], Some("parts/f")),
    ] {
        scratch.ok(&format!("create {dataset}"));
        ours.push(&["-H"], &old, dataset);
        ours.cut(args, &new, dataset);
        let there = restored(&scratch, dataset);
        assert_eq!(fs::read(there.join("a")).unwrap(), fs::read(new.join("a")).unwrap());
        for name in ["f", "other"] {
            assert!(fs::read(there.join(name)).unwrap() == contents.old, "{args:?} {name}");
        }
        if let Some(parts) = parts {
            assert!(contents.new.starts_with(&fs::read(there.join(parts)).unwrap()), "{args:?}");
        }
        assert_eq!(there.join("f").metadata().unwrap().ino(), there.join("other").metadata().unwrap().ino());
        ours.push(&["--delete"], &new, dataset);
        assert_same(&new, &restored(&scratch, dataset), dataset);
    }
    scratch.ok("check tank");
}

/// A sync keeps what it is told to keep, both ways.
#[test]
#[ignore = "needs rsync"]
fn syncs_go_on_within_a_file() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    let new = Random(3).bytes(NEW_LEN);
    fs::write(source.join("f"), &new).unwrap();
    let cut_from =
        format!("sh -c \"$*\" 2>/dev/null | {FIRST}\nsleep 1; perl -e '1 while sysread STDIN, $b, 65536'");
    // What it was told is taken, so that what it has said arrives.
    let cut_from = script(&scratch, "cut-from", &cut_from);
    let cut_to = script(&scratch, "cut-to", &format!("{FIRST} | sh -c \"$*\""));
    let shell = script(&scratch, "whole", "exec sh -c \"$*\"");
    let sync = |shell: &Path, more: &[&str]| {
        let mut command = scratch.command("sync --json --retries=0 --timeout=5");
        command.arg("-e").arg(shell).args(more);
        Said::of(command)
    };
    let literal = |said: &Said| {
        assert_eq!(said.code, 0, "{said:?}");
        let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        usize::try_from(told["literal"].as_u64().unwrap()).unwrap()
    };
    let from = format!("host:rsync:{}", source.display());
    let partial = |path: PathBuf| fs::read(path).ok().filter(|has| new.starts_with(has)).map(|has| has.len());

    assert_eq!(sync(&cut_from, &[&from, "tank/no"]).code, 1);
    assert_eq!(partial(restored(&scratch, "tank/no").join("f")), None);
    assert_eq!(sync(&cut_from, &["--partial", &from, "tank/f"]).code, 1);
    let there = partial(restored(&scratch, "tank/f").join("f")).unwrap();
    assert!((CAME..CUT).contains(&there), "{there}");
    assert!(literal(&sync(&shell, &["--partial", &from, "tank/f"])) <= NEW_LEN - CAME);
    assert_same(&source, &restored(&scratch, "tank/f"), "pulled");

    let to = |name: &str| (home.join(name), format!("host:rsync:{}", home.join(name).display()));
    let ((no, to_no), (copy, to_copy)) = (to("no"), to("copy"));
    assert_eq!(sync(&cut_to, &["tank/f@", &to_no]).code, 1);
    assert_eq!(partial(no.join("f")), None);
    assert_eq!(sync(&cut_to, &["--partial", "tank/f@", &to_copy]).code, 1);
    // The server ends after the one who reached it.
    let begun = Instant::now();
    while !copy.join("f").exists() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let there = partial(copy.join("f")).unwrap();
    assert!((CAME..CUT).contains(&there), "{there}");
    assert!(literal(&sync(&shell, &["--partial", "tank/f@", &to_copy])) <= NEW_LEN - CAME);
    assert_same(&source, &copy, "pushed");
    scratch.ok("check tank");
}
