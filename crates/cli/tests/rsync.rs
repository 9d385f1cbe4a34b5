//! Pulls by stock rsync (Debian: rsync) over a remote shell, with this program as the server. Tests that need rsync are
//! ignored by a plain `cargo test`: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::rsync::own_shell;
use common::{Said, Scratch};
use trees::{assert_same, disturb, grow, manifest, set_time};

const OURS: &str = "snowmelt rsync";
const STOCK: &str = "rsync";

/// A command that replaces ssh. It writes the exit code of the remote command to the file `ended`.
fn shell(scratch: &Scratch) -> PathBuf {
    let home = scratch.path().display();
    own_shell(
        scratch,
        &format!("trap : USR1 TERM HUP\nsh -c \"$*\"\ncode=$?\necho $code >> {home}/ended\nexit $code"),
    )
}

/// A client that runs `server` on the remote side.
fn client(shell: &Path, server: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", "rsync", "-e", shell.to_str().unwrap(), "--rsync-path", server]).stdin(Stdio::null());
    command
}

fn pull(shell: &Path, args: &[&str], from: &str, to: &Path) {
    let output = client(shell, OURS).args(args).arg(format!("host:{from}")).arg(to).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?} {from}: {output:?}");
}

fn told(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// With all options, both trees are identical in the end: from a directory, a snapshot, the newest snapshot and a head.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_come_over_a_remote_shell() {
    let scratch = Scratch::with_pool();
    let (shell, source, target) =
        (shell(&scratch), scratch.path().join("source"), scratch.path().join("target"));
    grow(&source, 31);
    scratch.ok(&format!("import {} tank/a@monday", source.display()));
    let directory = format!("{}/", source.display());
    let variants: &[&[&str]] = &[
        &[],
        &["--no-inc-recursive"],
        &["-c"],
        &["-z"],
        &["--zc=lz4", "--cc=md5"],
        &["--zc=zlibx"],
        &["--inplace"],
        &["--numeric-ids"],
        &["-W"],
        &["-S"],
        &["-s"],
        &["--protocol=31"],
        &["--partial", "--timeout=30"],
        &["--old-args"],
    ];
    for (at, variant) in variants.iter().enumerate() {
        let args = [&["-aHAX", "--delete"], *variant].concat();
        let from = [&directory, "tank/a@monday/", "tank/a@/", "tank/a/"][at % 4];
        pull(&shell, &args, from, &target);
        assert_same(&source, &target, &format!("{from} {variant:?}, new"));
        disturb(&target, at as u64);
        pull(&shell, &args, &directory, &target);
        assert_same(&source, &target, &format!("{variant:?}, again"));
        fs::remove_dir_all(&target).unwrap();
    }
    // For a file that grew at its end, only the end is sent.
    let grown = Scratch::new();
    let (from, to) = (grown.path().join("from"), grown.path().join("to"));
    for args in [&["-a", "--append"][..], &["-a", "--append-verify"]] {
        fs::write(&to, vec![7; 100_000]).unwrap();
        fs::write(&from, vec![7; 150_000]).unwrap();
        pull(&shell, args, from.to_str().unwrap(), &to);
        assert_eq!(fs::read(&to).unwrap(), fs::read(&from).unwrap(), "{args:?}");
    }
    let codes = fs::read_to_string(scratch.path().join("ended")).unwrap();
    assert!(codes.lines().all(|code| code == "0"), "{codes}");
}

/// The same arguments give the same tree and exit code with stock rsync and with this program.
#[test]
#[ignore = "needs rsync"]
fn paths_mean_what_they_mean_to_stock_rsync() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let home = scratch.path();
    for path in [
        "src/a/b/c/deep",
        "src/a/b/one.c",
        "src/a/two.c",
        "src/x y/f*",
        "src/x y/fgh",
        "src/keep/no.o",
        "more/one.c",
    ] {
        fs::create_dir_all(home.join(path).parent().unwrap()).unwrap();
        fs::write(home.join(path), path).unwrap();
    }
    symlink("a/b", home.join("src/link")).unwrap();
    fs::hard_link(home.join("src/a/two.c"), home.join("src/three")).unwrap();
    fs::write(home.join("src/a/.rsync-filter"), "- two.c\n").unwrap();
    fs::write(home.join("list"), "a/two.c\n# no name\n/a/./b/one.c\n../../list\nlink\n").unwrap();
    for directory in ["src", "more"] {
        let root = home.join(directory);
        manifest(&root).keys().for_each(|path| set_time(&root.join(path), 1_600_000_000, 7));
    }
    scratch.ok(&format!("import {} tank/src@monday", home.join("src").display()));
    let absolute = format!("host:{}/src/", home.display());
    let cases: &[(&[&str], &[&str])] = &[
        (&["-aH"], &["host:src"]),
        (&["-aH"], &["host:src/"]),
        (&["-a"], &[&absolute]),
        (&["-a"], &["host:~/src/a"]),
        (&["-as"], &["host:src/x y/f*"]),
        (&["-as"], &["host:src/a/t*"]),
        (&["-aRs"], &["host:src/./a/t*"]),
        (&["-a"], &["host:src/*/*.c"]),
        (&["-a"], &["host:src/x y/f\\*"]),
        (&["-a"], &["host:src/a", ":more", ":src/three"]),
        (&["-a"], &["host:src/", ":more/"]),
        (&["-aR"], &["host:src/a/b", ":more/one.c"]),
        (&["-aR"], &["host:src/./a/b"]),
        (&["-aR"], &[&absolute.replace("/src", "/./src")]),
        (&["-a"], &["host:src/link"]),
        (&["-a"], &["host:src/link/"]),
        (&["-aL"], &["host:src/link"]),
        (&["-a", "--files-from=:list"], &["host:src"]),
        (&["-a", "--files-from=LIST"], &["host:src"]),
        (&["-as", "--files-from=LIST"], &["host:src"]),
        (&["-a", "--exclude=*.c", "--include=*"], &["host:src"]),
        (&["-aF"], &["host:src/"]),
        (&["-am", "--include=*/", "--include=*.c", "--exclude=*"], &["host:src"]),
        (&["-dlt"], &["host:src/"]),
        (&["-a"], &["host:"]),
        (&["-a"], &["host:src/a", ":nowhere"]),
        (&["-a"], &["host:nowhere"]),
        (&["-a", "--ignore-missing-args"], &["host:src/a", ":nowhere"]),
        (&["-a", "-x", "-C"], &["host:src"]),
    ];
    let list = home.join("list").display().to_string();
    for (options, sources) in cases {
        // The home directory also contains other files of the tests.
        let everything = sources == &["host:"];
        let mut found = Vec::new();
        for server in [STOCK, OURS] {
            let target = Scratch::new();
            let to = target.path().join("to");
            fs::create_dir(&to).unwrap();
            let options = options.iter().map(|option| option.replace("LIST", &list));
            let mut command = client(&shell, server);
            command.args(options).args(if everything {
                &["--include=/src", "--exclude=/*"][..]
            } else {
                &[]
            });
            let output = command.args(*sources).arg(&to).output().unwrap();
            set_time(&to, 1, 0);
            found.push((output.status.code(), manifest(&to), output));
        }
        let (ours, stock) = (found.pop().unwrap(), found.pop().unwrap());
        assert_eq!(stock.0, ours.0, "{options:?} {sources:?}: {:?} {:?}", stock.2, ours.2);
        assert_eq!(stock.1, ours.1, "{options:?} {sources:?}: {:?} {:?}", stock.2, ours.2);
    }
}

/// Paths of datasets are their names. Another process may own the pool.
#[test]
#[ignore = "needs rsync"]
fn datasets_are_where_their_names_say() {
    let scratch = Scratch::with_home();
    let shell = shell(&scratch);
    scratch.ok("create tank/home/sub");
    scratch.ok("create -V 1M tank/volume");
    let snapshots = scratch.ok("list -Ht snapshot -o name");
    let newest = snapshots.lines().next_back().unwrap().to_owned();
    let restored = scratch.path().join("restored");
    scratch.ok(&format!("restore -q --setuid --devices {newest} {}", restored.display()));
    let check = |what: &str| {
        let target = scratch.path().join(format!("target-{what}"));
        fs::create_dir(&target).unwrap();
        pull(&shell, &["-rlt"], &newest, &target);
        pull(&shell, &["-rlt"], "tank/home@/", &target.join("newest"));
        let names = |path: &Path| manifest(path).into_keys().collect::<Vec<_>>();
        let place = target.join(newest.rsplit('/').next().unwrap());
        assert_eq!((names(&place), names(&target.join("newest"))), (names(&restored), names(&restored)));
        pull(&shell, &["-rltR"], "tank/home/./", &target.join("marked"));
        assert!(!target.join("marked/tank").exists());
        pull(&shell, &["-rltR"], &newest, &target.join("whole"));
        assert!(target.join("whole").join(&newest).is_dir());
        for (from, code, message) in [
            ("tank/none", 23, "link_stat \"tank/none\" failed: No such file or directory (2)"),
            ("tank/home@none/x", 23, "link_stat \"tank/home@none/x\" failed"),
            ("tank/volume", 3, "cannot open 'tank/volume'"),
            ("tank/home/sub@", 3, "has no snapshot"),
        ] {
            let output =
                client(&shell, OURS).args(["-a", &format!("host:{from}")]).arg(&target).output().unwrap();
            let (found, stderr) = told(&output);
            assert!(found == Some(code) && stderr.contains(message), "{from}: {found:?} {stderr}");
        }
        let mixed = ["-a", "host:tank/home@", ":/etc/hosts"];
        let (code, stderr) = told(&client(&shell, OURS).args(mixed).arg(&target).output().unwrap());
        assert!(
            code == Some(3) && stderr.contains("'/etc/hosts' is not in the pool 'tank'"),
            "{code:?} {stderr}"
        );
    };
    check("alone");
    // The server that owns the pool executes the command.
    fs::write(scratch.path().join("rsyncd.conf"), "[home]\npath = tank/home\n").unwrap();
    let mut owner = scratch.command("serve rsync --config rsyncd.conf --address 127.0.0.1 --port 0");
    let mut owner = owner.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(owner.stdout.as_mut().unwrap()), &mut line)
        .unwrap();
    check("owned");
    owner.kill().unwrap();
    owner.wait().unwrap();
}

#[test]
#[ignore = "needs rsync"]
fn what_is_not_done_is_refused_in_rsyncs_words() {
    let scratch = Scratch::new();
    let shell = shell(&scratch);
    fs::write(scratch.path().join("f"), b"f").unwrap();
    let target = scratch.path().join("target");
    for (options, code, message) in [
        (&["-M--frobnicate"][..], 1, "--frobnicate: unknown option"),
        (&["--remove-source-files"], 4, "--remove-source-files: nothing is removed here"),
        (&["--iconv=utf8,latin1"], 1, "unknown option"),
        (&["--copy-devices"], 1, "unknown option"),
        (&["--protocol=26"], 12, "protocol version mismatch -- 26 is older than 27"),
        (&["--files-from=:none"], 12, "failed to open files-from file"),
    ] {
        let output =
            client(&shell, OURS).arg("-a").args(options).arg("host:f").arg(&target).output().unwrap();
        let (found, stderr) = told(&output);
        assert!(found == Some(code) && stderr.contains(message), "{options:?}: {found:?} {stderr}");
    }
    // A path that is not a dataset is a directory or file, relative to the home directory.
    let f = scratch.path().join("f");
    let (code, stderr) = told(&client(&shell, OURS).arg("-a").arg(&f).arg("host:pushed").output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(fs::read(scratch.path().join("pushed")).unwrap(), fs::read(f).unwrap());
    let (code, stderr) = told(&client(&shell, OURS).args(["host::module", "x"]).output().unwrap());
    assert!(code == Some(5) && stderr.contains("rsyncd.conf: No such file"), "{code:?} {stderr}");
}

/// After a client disappears, its server ends. A client that connects again gets the rest.
#[test]
#[ignore = "needs rsync"]
fn a_client_that_goes_away_ends_the_server() {
    let scratch = Scratch::new();
    let shell = shell(&scratch);
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("big"), trees::Random(5).bytes(3_000_000)).unwrap();
    set_time(&from.join("big"), 1_600_000_000, 7);
    set_time(&from, 1_600_000_000, 7);
    let source = format!("host:{}/", from.display());
    let mut command = Command::new("rsync");
    command.args(["-e", shell.to_str().unwrap(), "--rsync-path", OURS, "-a", "--partial", "--bwlimit=500k"]);
    let mut first = command.arg(&source).arg(&to).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !to.exists() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(Command::new("kill").arg(first.id().to_string()).status().unwrap().success());
    assert!(!first.wait().unwrap().success());
    let ended = scratch.path().join("ended");
    while !ended.exists() && begun.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_ne!(fs::read_to_string(&ended).unwrap(), "0\n");
    pull(&shell, &["-a", "--partial", "--no-W"], &format!("{}/", from.display()), &to);
    assert_same(&from, &to, "again");
}

#[test]
fn only_the_other_end_of_rsync_is_here() {
    let scratch = Scratch::new();
    assert!(scratch.fails(4, "rsync -a a b").contains("rsync --rsync-path='snowmelt rsync'"));
    assert!(scratch.fails(4, "rsync").contains("is not an rsync client"));
    assert!(scratch.fails(1, "rsync --server --daemon --config=nowhere .").contains("nowhere: No such file"));
    // No client, one that sends something else, and one that breaks off.
    for (input, code, message) in [
        (&b""[..], 12, "connection"),
        (b"Welcome to host!\n", 2, "is your shell clean?"),
        (&[32, 0, 0, 0, 4], 12, "connection"),
        (&[26, 0, 0, 0], 2, "26 is older than 27"),
    ] {
        let mut command = scratch.command("rsync --server --sender -logDtpre.iLsfxCIvu . /");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let (found, stderr) = told(&child.wait_with_output().unwrap());
        assert!(found == Some(code) && stderr.contains(message), "{input:?}: {found:?} {stderr}");
    }
    let said: Said = scratch.run("rsync --help");
    assert_eq!(said.code, 0, "{said:?}");
}
