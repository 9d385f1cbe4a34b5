//! Transfers that are cut off within a file: which part is kept, and which part of it need not be sent again, compared
//! with stock rsync (Debian: rsync) as the server. Tests that need rsync are ignored by a plain `cargo test`: `.ci/run
//! clients` runs them.

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
/// Number of bytes after which connections are cut, and number of bytes of a file that have at least arrived by then.
const CUT: usize = 1_500_000;
const CAME: usize = 1 << 20;
/// Passes on the first 1,500,000 bytes as they arrive, and ends. It handles sockets that servers made non-blocking.
const FIRST: &str = r#"perl -e 'sub nap { select undef, undef, undef, 0.01 }
    for ($n = 1500000; $n; ) { $r = sysread STDIN, $b, $n < 65536 ? $n : 65536; defined $r or nap, next; $r or last; $n -= $r;
    while ($b ne "") { $w = syswrite STDOUT, $b; defined $w ? substr($b, 0, $w, "") : nap } }'"#;

/// A script that runs a server. If a file `cut` exists, it cuts off the server's input.
fn cutting(scratch: &Scratch) -> String {
    let cut = scratch.path().join("cut");
    format!("if [ -e {} ]; then {FIRST} | sh -c \"$*\"\nelse exec sh -c \"$*\"; fi", cut.display())
}

/// Stock rsync as the client, and stock rsync or this program as the server.
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

    /// Number of bytes of file content that were sent.
    fn push(&self, args: &[&str], from: &Path, to: &str) -> usize {
        let output = self.run(args, from, to);
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix("Literal data: ")).unwrap();
        line.split(' ').next().unwrap().replace(',', "").parse().unwrap()
    }
}

/// Options, the files before the push, and the files that remain after a push that is cut off.
type Case<'a> = (&'a [&'a str], &'a Path, &'a [(&'a str, &'a str)]);

/// The possible contents of a file.
struct Contents {
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Contents {
    /// Describes the content of each file of a tree.
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

/// With all options, a cut push leaves the same as with rsync's own server, and the next push uses as much of it.
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
            // With this server, a file that is written in place has another time until it is complete.
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

/// A file with several names still exists after a push that was to replace one of them.
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
        // So that at least one complete file is left in any case.
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

/// A sync with `--partial` keeps partial files, in both directions.
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
    // Its input is read to the end, so that all of its output arrives.
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
    // The server ends after its client.
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
