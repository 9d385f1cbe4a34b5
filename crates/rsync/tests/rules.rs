//! Compares what is sent with stock rsync's daemon, for many arguments and rules.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::Server;
use common::trees::manifest;

/// A tree, and two daemons that serve it.
struct Pair {
    dir: tempfile::TempDir,
    ours: Server,
    count: std::cell::Cell<usize>,
    /// A description of the configuration.
    about: String,
}

impl Pair {
    /// The content of a file is its own path, except for files of rules.
    fn new(files: &[(&str, &str)], config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        for (path, content) in files {
            let path = source.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let ours = Server::of(&source, config);
        let text = format!(
            "uid = 0\ngid = 0\nuse chroot = no\nlog file = /dev/null\n[m]\npath = {}\n{config}\n",
            source.display()
        );
        fs::write(dir.path().join("rsyncd.conf"), text).unwrap();
        Self { dir, ours, count: std::cell::Cell::new(0), about: String::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pull(&self, stock: bool, args: &[&str], from: &[&str], to: &Path) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", "rsync"]).args(args);
        if stock {
            let config = self.path("rsyncd.conf");
            command.env("RSYNC_CONNECT_PROG", format!("rsync --daemon --config={}", config.display()));
        } else {
            command.args(["--port", &self.ours.port.to_string()]);
        }
        command.args(from.iter().map(|from| format!("localhost::{from}"))).arg(to).output().unwrap()
    }

    /// Asserts that both daemons send the same files with the same exit code.
    fn compare(&self, args: &[&str], from: &[&str]) -> BTreeSet<PathBuf> {
        let at = self.count.replace(self.count.get() + 1);
        let (ours, theirs) = (self.path(&format!("ours{at}")), self.path(&format!("theirs{at}")));
        let output = self.pull(false, args, from, &ours);
        let expected = self.pull(true, args, from, &theirs);
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let told = format!("{args:?} {from:?} in {}: {}, not {}", self.about, said(&output), said(&expected));
        assert_eq!(output.status.code(), expected.status.code(), "{told}");
        if !output.status.success() && expected.status.code() != Some(23) {
            // It is chance whether the client has begun to write by then.
            return BTreeSet::new();
        }
        assert_eq!(ours.is_dir(), theirs.is_dir(), "{told}");
        if !theirs.is_dir() {
            return BTreeSet::new();
        }
        let paths = |of: &Path| manifest(of).into_keys().collect::<BTreeSet<PathBuf>>();
        assert_eq!(paths(&ours), paths(&theirs), "{told}");
        paths(&ours)
    }
}

#[test]
#[ignore = "needs rsync and root"]
fn arguments_are_understood_as_stock_rsync_does() {
    let files = [
        ("a/b/c/d", ""),
        ("a/b/e", ""),
        ("f/g", ""),
        ("f/h.o", ""),
        ("f/i/k.o", ""),
        ("f/i/l", ""),
        ("x y/z", ""),
        ("top", ""),
        ("inside", "f/h.o\n"),
        ("f/.rsync-filter", "- g\n"),
        ("f/.cvsignore", "l\n"),
        ("secret/x", ""),
        ("f/hidden", ""),
    ];
    let pair = Pair::new(&files, "exclude = /secret/ hidden");
    symlink("f", pair.path("source/link")).unwrap();
    symlink("/etc/passwd", pair.path("source/away")).unwrap();
    fs::write(pair.path("names"), "a/b/c\nf/g\n./top\nsecret/x\n").unwrap();
    fs::write(pair.path("some"), "a/b/c\nf/g\n./top\n").unwrap();
    let names = format!("--files-from={}", pair.path("names").display());
    let some = format!("--files-from={}", pair.path("some").display());
    let cases: &[(&[&str], &[&str])] = &[
        (&["-a"], &["m"]),
        (&["-a"], &["m/a"]),
        (&["-a"], &["m/a/"]),
        (&["-a"], &["m/a/b/."]),
        (&["-aR"], &["m/a/b/c"]),
        (&["-aR"], &["m/a/./b/c"]),
        (&["-aR"], &["m/a/b/c", "m/f/i/"]),
        (&["-aR", "--no-implied-dirs"], &["m/a/b/c"]),
        (&["-a"], &["m/a", "m/f"]),
        (&["-a"], &["m/a/", "m/f/"]),
        (&["-a"], &["m/top"]),
        (&["-a"], &["m/x y"]),
        (&["-a", "-s"], &["m/x y"]),
        (&["-a", &some], &["m/"]),
        (&["-a", &names], &["m/"]),
        (&["-r", &some], &["m/"]),
        (&["-a", "--protocol=30", &some], &["m/"]),
        (&["-aF", &some], &["m/"]),
        (&["-a", "--exclude=g", &some], &["m/"]),
        (&["-a", "--files-from=:/inside"], &["m/"]),
        (&["-a", "--files-from=:inside"], &["m/"]),
        (&["-a"], &["m/[ft]*"]),
        (&["-a"], &["m/s*"]),
        (&["-d"], &["m/"]),
        (&["-d"], &["m/a"]),
        (&["-l"], &["m/link"]),
        (&["-a"], &["m/link/"]),
        (&["-aL"], &["m/f"]),
        (&["-ak"], &["m/link"]),
        (&["-rt"], &["m/"]),
        (&["-a"], &["m/secret"]),
        (&["-a"], &["m/secret/x"]),
        (&["-a"], &["m/f/hidden"]),
        (&["-a"], &["m/a/../secret"]),
        (&["-a"], &["m/nothing"]),
        (&["-a", "--ignore-missing-args"], &["m/nothing", "m/top"]),
        (&["-a", "--exclude=*.o"], &["m/f"]),
        (&["-aC"], &["m/f"]),
        (&["-a", "--include=*/", "--include=*.o", "--exclude=*"], &["m/"]),
        (&["-am", "--include=*/", "--include=*.o", "--exclude=*"], &["m/"]),
        (&["-a", "--exclude=/f/i"], &["m/"]),
        (&["-a", "--exclude=i/"], &["m/f/"]),
        (&["-a", "--filter=-! */", "--filter=- f"], &["m/"]),
        (&["-a", "--copy-unsafe-links", "--exclude=away"], &["m/"]),
        (&["-rx"], &["m/"]),
    ];
    for (args, from) in cases {
        pair.compare(args, from);
    }
    // Hidden files are not sent in any way.
    assert!(
        pair.compare(&["-a"], &["m/"]).iter().all(|path| !path.ends_with("x") && !path.ends_with("hidden"))
    );
}

/// Which rules of a module apply to the path in the module, and which to the path in the request.
#[test]
#[ignore = "needs rsync and root"]
fn modules_rules_apply_to_the_request_as_with_stock_rsync() {
    let files = ["c", "a/b/c", "a/b/ab", "a/c", "a/ab/b", "ab/b/a/c", "b/a"].map(|path| (path, ""));
    for rules in [
        "exclude = a**b",
        "exclude = **b",
        "exclude = a**b/",
        "exclude = a**/b",
        "exclude = **/a/b",
        "exclude = /a/**b",
        "filter = -! a**",
        "filter = -!/ a**",
        "filter = -! **b",
        "filter = + a** - **",
        "filter = P b",
        "filter = H b",
    ] {
        let pair = Pair { about: rules.to_owned(), ..Pair::new(&files, rules) };
        for from in ["m/", "m/a", "m/a/", "m/a/b", "m/ab/b/", "m/a/*"] {
            pair.compare(&["-r"], &[from]);
        }
        for from in ["m/a/b", "m/a/./b/", "m/a/./b/c"] {
            pair.compare(&["-rR"], &[from]);
        }
    }
}

#[test]
#[ignore = "needs rsync and root"]
fn rules_in_directories_mean_what_they_do_to_stock_rsync() {
    let tree = ["keep", "one", "two", "b/one", "b/two", "b/c/one", "b/c/two", "b/c/core"];
    let rules: &[&[(&str, &str)]] = &[
        &[(".rsync-filter", "- one\n")],
        &[("a/.rsync-filter", "- one\n")],
        &[("a/.rsync-filter", "- a/keep\n- a/b/one\n- b/two\n")],
        &[("a/.rsync-filter", "- /keep\n- /b/one\n")],
        &[("a/.rsync-filter", "-/ /a/keep\n-/ /a/b/one\n-/ b/two\n")],
        &[("a/.rsync-filter", "- two\n"), ("a/b/.rsync-filter", "!\n- one\n")],
        &[("a/.rsync-filter", "+ one\n- b/*\n"), ("a/b/.rsync-filter", "+ two\n")],
        &[("a/.rsync-filter", "# a\n; b\n\nexclude one\nhide two\r\nclear\nH keep\n")],
        &[("a/.rsync-filter", "P one\n-r two\n-s keep\nrisk b\n")],
        &[("a/.rsync-filter", ": .deep\n- keep\n"), ("a/b/.deep", "- two\n!\n- one\n")],
        &[("a/.rsync-filter", ":n .deep\n"), ("a/b/.deep", "- two\n")],
        &[("a/.rsync-filter", ". nothing\n")],
        &[("a/.rsync-filter", "-C\n- one\n")],
        &[("a/.rsync-filter", "one\n")],
        &[("a/.rsync-filter", "-\n")],
        &[("a/.rsync-filter", "-q one\n")],
        &[("a/.rsync-filter", "hide,s one\n")],
        &[("a/.cvsignore", "one t*\n"), ("a/b/.cvsignore", "c\n!\ntwo\n")],
    ];
    let filters: &[&[&str]] = &[
        &["-aF"],
        &["-aFF"],
        &["-aC"],
        &["-a", "--filter=: .rsync-filter"],
        &["-a", "--filter=:n .rsync-filter"],
        &["-a", "--filter=:e .rsync-filter"],
        &["-a", "--filter=:r .rsync-filter"],
        &["-a", "--filter=:s .rsync-filter"],
        &["-a", "--filter=:- .rsync-filter"],
        &["-a", "--filter=: .cvsignore"],
        &["-a", "--filter=:C", "--filter=+ two"],
        &["-aF", "--filter=+ one", "--filter=- two", "--no-inc-recursive"],
    ];
    let from: &[&[&str]] =
        &[&["m/"], &["m/a"], &["m/a/"], &["m/a/b"], &["m/a/b/"], &["m/a/keep", "m/a/b/one"]];
    for (at, rules) in rules.iter().enumerate() {
        let in_a: Vec<String> = tree.iter().map(|name| format!("a/{name}")).collect();
        let files = in_a.iter().map(|path| (path.as_str(), "")).chain(rules.iter().copied());
        let pair = Pair { about: format!("{rules:?}"), ..Pair::new(&files.collect::<Vec<_>>(), "") };
        // Each set of rules with some kinds of arguments, and each kind of arguments with some sets of rules.
        for (number, filter) in filters.iter().enumerate().skip(at % 3).step_by(3) {
            pair.compare(filter, from[(at + number / 3) % 3 + (at + number) % 2 * 3]);
        }
        pair.compare(&["-aRF"], &["m/a/b"]);
        pair.compare(&["-aR", "--filter=: .rsync-filter"], &["m/a/b/"]);
    }
}

#[test]
#[ignore = "needs rsync and root"]
fn attributes_are_left_out_by_name() {
    let pair = Pair::new(&[("f", "x")], "");
    let file = pair.path("source/f");
    for name in ["user.a", "user.b", "security.z", "trusted.long"] {
        xattr::set(&file, name, &[7; 40]).unwrap();
    }
    for filter in
        [&["-x user.a"][..], &["+x user.a", "-x *"], &["-xs user.*"], &["-x! user.*"], &["- user.a"]]
    {
        let filters: Vec<String> = filter.iter().map(|rule| format!("--filter={rule}")).collect();
        let args: Vec<&str> = ["-aX"].into_iter().chain(filters.iter().map(String::as_str)).collect();
        let names = |stock| {
            let target = pair.path(if stock { "theirs" } else { "ours" });
            let output = pair.pull(stock, &args, &["m/"], &target);
            assert!(output.status.success(), "{output:?}");
            let names: BTreeSet<_> = xattr::list(target.join("f")).unwrap().collect();
            fs::remove_dir_all(target).unwrap();
            names
        };
        assert_eq!(names(false), names(true), "{filter:?}");
    }
}
