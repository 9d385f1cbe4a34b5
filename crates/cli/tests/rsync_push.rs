//! Pushes by stock rsync (Debian: rsync) into a dataset, with this program as the server. Tests that need rsync are
//! ignored by a plain `cargo test`: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::Scratch;
use common::rsync::{own_shell, restored, snapshots};
use trees::{Random, assert_same, disturb, grow, set_time};

/// A command that replaces ssh.
fn shell(scratch: &Scratch) -> PathBuf {
    own_shell(scratch, "exec sh -c \"$*\"")
}

fn client(shell: &Path) -> Command {
    let mut command = Command::new("timeout");
    let server = ["-e", shell.to_str().unwrap(), "--rsync-path", "snowmelt rsync"];
    command.args(["120", "rsync"]).args(server).stdin(Stdio::null());
    command
}

fn run(shell: &Path, args: &[&str], from: &str, to: &str) -> Output {
    client(shell).args(args).arg(from).arg(format!("host:{to}")).output().unwrap()
}

/// A push that must succeed without warnings. Returns the client's output.
fn push(shell: &Path, args: &[&str], from: &str, to: &str) -> String {
    let output = run(shell, args, from, to);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?} {from} {to}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// With all options, the trees are identical in the end. A second push changes nothing.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_are_pushed_over_a_remote_shell() {
    let scratch = Scratch::with_pool();
    let (shell, source) = (shell(&scratch), scratch.path().join("source"));
    grow(&source, 31);
    let from = format!("{}/", source.display());
    let variants: &[&[&str]] = &[
        &[],
        &["-c"],
        &["-z", "--delete-before"],
        &["--zc=lz4", "--cc=md5", "--delete-after"],
        &["--zc=zlibx", "--delete-delay"],
        &["--zc=zlib"],
        &["--inplace"],
        &["--numeric-ids", "--cc=sha1"],
        &["-W"],
        &["-S", "--delay-updates"],
        &["-s"],
        &["--protocol=31", "--partial"],
        &["-B1000", "--timeout=30"],
        &["--ignore-times"],
    ];
    for (at, variant) in variants.iter().enumerate() {
        let dataset = format!("tank/d{at}");
        scratch.ok(&format!("create -o acltype=posix {dataset}"));
        let args = [&["-aHAX", "--delete"], *variant].concat();
        push(&shell, &args, &from, &dataset);
        assert_same(&source, &restored(&scratch, &dataset), &format!("{variant:?}, new"));
        // The tree changes back from a different one.
        let other = restored(&scratch, &dataset);
        disturb(&other, at as u64);
        push(&shell, &["-aHAX", "--delete"], &format!("{}/", other.display()), &format!("{dataset}/"));
        assert_same(&other, &restored(&scratch, &dataset), &format!("{variant:?}, disturbed"));
        push(&shell, &args, &from, &dataset);
        assert_same(&source, &restored(&scratch, &dataset), &format!("{variant:?}, again"));
        let before = snapshots(&scratch, &dataset);
        let told = push(&shell, &["-aHAX", "--delete", "-i"], &from, &dataset);
        assert_eq!(
            (told.as_str(), snapshots(&scratch, &dataset)),
            ("", before),
            "{variant:?}, nothing to do"
        );
    }
    scratch.ok("check tank");
}

/// More files than a sender lists in advance, in directories with incremental lists. There are hard links across the
/// whole tree, and files are deleted in every way.
#[test]
#[ignore = "needs rsync"]
fn lists_come_one_by_one() {
    let scratch = Scratch::with_pool();
    let (shell, source) = (shell(&scratch), scratch.path().join("source"));
    for at in 0..6000 {
        let directory = source.join(format!("{}/{}/{}", at % 7, at % 11, at % 13));
        fs::create_dir_all(&directory).unwrap();
        match at {
            // In another directory, which comes earlier or later.
            5900.. => fs::hard_link(
                source.join(format!("{}/{}/{}/{}", at % 70 % 7, at % 70 % 11, at % 70 % 13, at % 70)),
                directory.join(at.to_string()),
            )
            .unwrap(),
            _ => fs::write(directory.join(at.to_string()), at.to_string()).unwrap(),
        }
    }
    for (at, path) in trees::manifest(&source).into_keys().enumerate() {
        set_time(&source.join(path), 1_700_000_000 + at as i64, 0);
    }
    let from = format!("{}/", source.display());
    for (at, delete) in
        ["--delete", "--delete-delay", "--delete-after", "--delete-excluded"].into_iter().enumerate()
    {
        let dataset = format!("tank/d{at}");
        scratch.ok(&format!("create {dataset}"));
        let told = push(&shell, &["-aHv", delete], &from, &dataset);
        assert_eq!(told.contains("sending incremental file list"), delete != "--delete-after", "{told:.200}");
        assert_same(&source, &restored(&scratch, &dataset), &format!("{delete}, new"));
        // Deletes files and whole directories. A directory becomes a file, and a file becomes a directory. Of linked
        // files one name is deleted.
        let other = restored(&scratch, &dataset);
        fs::remove_dir_all(other.join("3")).unwrap();
        fs::write(other.join("3"), "no directory").unwrap();
        fs::create_dir_all(other.join("4/more/and/more")).unwrap();
        fs::write(other.join("4/more/and/more/file"), "more").unwrap();
        fs::remove_file(other.join("0/0/0/0")).unwrap();
        fs::create_dir_all(other.join("0/0/0/0/x")).unwrap();
        fs::remove_file(other.join(format!("{}/{}/{}/5950", 5950 % 7, 5950 % 11, 5950 % 13))).unwrap();
        fs::write(other.join("5/5/5/extra"), "extra").unwrap();
        let before = format!("{}/", other.display());
        push(&shell, &["-aH", "--delete", "--force"], &before, &dataset);
        assert_same(&other, &restored(&scratch, &dataset), &format!("{delete}, another"));
        push(&shell, &["-aH", delete, "--force"], &from, &dataset);
        assert_same(&source, &restored(&scratch, &dataset), &format!("{delete}, again"));
        let told = push(&shell, &["-aHi", delete], &from, &dataset);
        assert_eq!(told, "", "{delete}: nothing to do");
    }
    scratch.ok("check tank");
}

/// Only the changed part of a large file is written.
#[test]
#[ignore = "needs rsync"]
fn a_touched_file_costs_what_was_touched() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let file = scratch.path().join("big");
    let mut content = Random(7).bytes(100 << 20);
    fs::write(&file, &content).unwrap();
    scratch.ok("create tank/big");
    push(&shell, &["-a"], file.to_str().unwrap(), "tank/big/");
    for at in [5 << 20, 50 << 20, 99 << 20] {
        content[at..at + 100].fill(1);
    }
    content.extend(b"more");
    fs::write(&file, &content).unwrap();
    push(&shell, &["-a", "--no-W"], file.to_str().unwrap(), "tank/big/");
    let newest = snapshots(&scratch, "tank/big").pop().unwrap();
    let written: u64 = scratch.ok(&format!("get -Hpo value written {newest}")).trim().parse().unwrap();
    assert!(written < 1 << 20, "{written} bytes");
    assert_eq!(fs::read(restored(&scratch, "tank/big").join("big")).unwrap(), content);
    // The file may grow at its end. Only the end is sent.
    content.extend(Random(8).bytes(300_000));
    fs::write(&file, &content).unwrap();
    push(&shell, &["-a", "--append-verify"], file.to_str().unwrap(), "tank/big/");
    assert_eq!(fs::read(restored(&scratch, "tank/big").join("big")).unwrap(), content);
    scratch.ok("check tank");
}

/// The same arguments give the same tree, exit code and itemized changes with stock rsync and with this program.
#[test]
#[ignore = "needs rsync and root"]
fn options_mean_what_they_mean_to_stock_rsync() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let home = scratch.path();
    let write = |root: &str, path: &str, text: &str, time: i64| {
        let path = home.join(root).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        set_time(&path, time, 5);
    };
    for (path, text, time) in [
        ("a/one", "new one", 3000),
        ("a/two", "two", 2000),
        ("b/three", "3333", 4000),
        ("b/x.o", "o", 1),
        ("z", "z", 9),
    ] {
        write("src", path, text, time);
    }
    fs::create_dir(home.join("src/void")).unwrap();
    symlink("z", home.join("src/link")).unwrap();
    fs::hard_link(home.join("src/a/two"), home.join("src/second")).unwrap();
    for (path, text, time) in [
        ("a/one", "old one", 2500),
        ("a/two", "two", 2000),
        ("b/three", "three", 5000),
        ("b/keep.o", "keep", 1),
        ("b/old/deep", "deep", 1),
        ("link", "a file", 7),
        ("void", "a file too", 7),
        ("z/is/a/directory", "", 8),
    ] {
        write("dst", path, text, time);
    }
    // Symbolic links and directories get fixed times. Otherwise they would have the current time.
    for (root, time) in [("src", 6000), ("dst", 7000)] {
        for path in trees::manifest(&home.join(root)).into_keys() {
            let path = home.join(root).join(path);
            if path.is_symlink() || path.is_dir() {
                set_time(&path, time, 5);
            }
        }
    }
    let cases: &[&[&str]] = &[
        &["-a"],
        &["-aH", "--delete"],
        &["-aH", "--delete-excluded", "--exclude=*.o"],
        &["-a", "--delete", "--exclude=*.o"],
        &["-a", "--delete", "--filter=P keep.o", "--filter=H x.o"],
        &["-a", "--delete-after", "--max-delete=1"],
        &["-rt", "--update", "--force"],
        &["-rl", "--existing", "--force"],
        &["-a", "--ignore-existing"],
        &["-a", "--size-only", "--delete"],
        &["-ac", "--delete"],
        &["-aI", "--delete"],
        &["-am", "--delete"],
        &["-aO", "--delete"],
        &["-an", "--delete"],
        &["-rE", "--delete"],
        &["-a", "--max-size=5", "--delete"],
        &["-dlt", "--delete"],
    ];
    for (at, options) in cases.iter().enumerate() {
        let stock = home.join(format!("stock{at}"));
        assert!(
            Command::new("cp").args(["-a", "dst"]).arg(&stock).current_dir(home).status().unwrap().success()
        );
        let dataset = format!("tank/o{at}");
        scratch.ok(&format!("import {} {dataset}@before", home.join("dst").display()));
        let from = format!("{}/src/", home.display());
        let args = [&["-i"], *options].concat();
        // Over the same kind of connection, so that stock rsync does not copy whole files either.
        let theirs = Command::new("rsync")
            .args(["-e", shell.to_str().unwrap()])
            .args(&args)
            .arg(&from)
            .arg(format!("host:{}/", stock.display()))
            .output()
            .unwrap();
        let ours = run(&shell, &args, &from, &format!("{dataset}/"));
        assert_eq!(theirs.status.code(), ours.status.code(), "{options:?}: {theirs:?} {ours:?}");
        let lines = |output: &Output| {
            let mut lines: Vec<String> =
                String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        if !options.contains(&"--max-delete=1") {
            assert_eq!(lines(&theirs), lines(&ours), "{options:?}");
            let result = restored(&scratch, &dataset);
            // Stock rsync gives an entry that replaces a directory the directory's time.
            let now = ["-rE", "-rl", "-rt", "-aO", "-dlt"].contains(&options[0])
                || options.contains(&"--ignore-existing");
            for root in [&stock, &result] {
                // Current times are not chosen by either program.
                for path in trees::manifest(root).into_keys().filter(|_| now) {
                    set_time(&root.join(path), 1, 0);
                }
            }
            assert_same(&stock, &result, &format!("{options:?}"));
        }
    }
    scratch.ok("check tank");
}

/// Backups, directories beside the destination, mapped owners, and files removed at the source behave as with stock
/// rsync.
#[test]
#[ignore = "needs rsync and root"]
fn what_is_beside_the_destination_means_what_it_means_to_stock_rsync() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let home = scratch.path();
    let write = |path: &str, content: &[u8], time: i64| {
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        set_time(&path, time, 5);
    };
    let copy = |from: &str, to: &str| {
        assert!(Command::new("cp").args(["-a", from, to]).current_dir(home).status().unwrap().success());
    };
    let big = Random(9).bytes(90_000);
    write("src/same", b"same", 2000);
    write("src/mode", b"mode", 2000);
    write("src/changed", b"as it is now", 3000);
    write("src/deep/er/big.bin", &big, 4000);
    write("src/deep/new-name.bin", &[&big[..], b"end"].concat(), 4001);
    write("src/there", b"new", 3000);
    write("src/kind", b"a file", 3000);
    fs::hard_link(home.join("src/same"), home.join("src/deep/also")).unwrap();
    symlink("same", home.join("src/link")).unwrap();
    assert!(Command::new("mkfifo").arg(home.join("src/fifo")).status().unwrap().success());
    std::os::unix::fs::lchown(home.join("src/mode"), Some(12), Some(34)).unwrap();
    for path in ["src", "src/deep", "src/deep/er", "src/link", "src/fifo"] {
        set_time(&home.join(path), 6000, 5);
    }
    fs::create_dir(home.join("dst")).unwrap();
    copy("src", "dst/prev");
    copy("src", "dst/other");
    fs::remove_dir_all(home.join("dst/other/deep")).unwrap();
    write("dst/prev/changed", b"as it was once", 2500);
    write("dst/prev/deep/er/big.bin", &[b"begin", &big[..]].concat(), 3999);
    fs::set_permissions(home.join("dst/prev/mode"), fs::Permissions::from_mode(0o600)).unwrap();
    write("dst/sub/there", b"older", 2000);
    write("dst/sub/kind/of/directory", b"x", 2000);
    write("dst/sub/gone", b"gone", 2000);
    write("dst/sub/gone~", b"gone long ago", 1000);
    write("dst/sub/away/f", b"f", 2000);
    write("dst/sub/deep/old-name.bin", &big, 4001);
    symlink("elsewhere", home.join("dst/sub/link")).unwrap();
    set_time(&home.join("dst/sub/link"), 1, 0);
    for path in trees::manifest(&home.join("dst")).into_keys() {
        let path = home.join("dst").join(path);
        if path.is_dir() && !path.is_symlink() {
            set_time(&path, 7000, 5);
        }
    }
    for path in ["prev", "prev/deep", "other"] {
        set_time(&home.join("dst").join(path), 6000, 5);
    }
    let cases: &[&[&str]] = &[
        &["-ab"],
        &["-ab", "--suffix=.old", "--delete"],
        &["-ab", "--delete", "--force"],
        &["-ab", "--delete-after"],
        &["-ab", "--delete-excluded"],
        &["-a", "--backup-dir=../bak", "--delete"],
        &["-a", "--backup-dir=../bak/deep", "--suffix=.1", "--delete-delay"],
        &["-a", "--backup-dir=kept", "--force"],
        &["-ab", "--inplace"],
        &["-anb", "--delete"],
        &["-a", "--link-dest=../prev"],
        &["-aH", "--link-dest=../prev"],
        &["-aHi", "--link-dest=../prev", "--delete"],
        &["-a", "--link-dest=../prev", "--link-dest=../other"],
        &["-an", "--link-dest=../prev"],
        &["-a", "--copy-dest=../prev"],
        &["-aiH", "--copy-dest=../prev"],
        &["-aH", "--copy-dest=../other", "--copy-dest=../prev"],
        &["-a", "--compare-dest=../prev"],
        &["-ai", "--compare-dest=../prev", "--compare-dest=../other"],
        &["-ac", "--link-dest=../prev"],
        &["-rt", "--link-dest=../prev"],
        &["-a", "--link-dest=../nowhere"],
        &["-ay", "--no-W"],
        &["-ayy", "--link-dest=../prev", "--no-W"],
        &["-a", "-M--munge-links"],
        &["-a", "--chown=7:8"],
        &["-a", "--usermap=0-5:9,*:11", "--groupmap=root:10"],
        &["-a", "--remove-source-files"],
        &["-aH", "--remove-source-files", "--link-dest=../prev"],
        &["-an", "--remove-source-files"],
        &["-a", "--delete-missing-args"],
        &["-a", "--delete-missing-args", "--force"],
    ];
    for (at, options) in cases.iter().enumerate() {
        let (stock, dataset) = (format!("stock{at}"), format!("tank/b{at}"));
        copy("dst", &stock);
        scratch.ok(&format!("import {} {dataset}@before", home.join("dst").display()));
        let args = [&["-i"], *options].concat();
        let push = |source: &str, program: &[&str], to: &str| {
            copy("src", source);
            let from = format!("{}/", home.join(source).display());
            let sources = match options.contains(&"--delete-missing-args") {
                true => ["gone", "away", "same"].map(|name| format!("{from}{name}")).to_vec(),
                false => vec![from],
            };
            let mut command = Command::new("timeout");
            command.args(["120", "rsync", "-e", shell.to_str().unwrap()]).args(program).args(&args);
            command.args(sources).arg(format!("host:{to}/sub/")).stdin(Stdio::null()).output().unwrap()
        };
        let theirs = push(&format!("source{at}"), &[], &home.join(&stock).display().to_string());
        let ours = push(&format!("source{at}o"), &["--rsync-path=snowmelt rsync"], &dataset);
        assert_eq!(theirs.status.code(), ours.status.code(), "{options:?}: {theirs:?} {ours:?}");
        let lines = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&theirs), lines(&ours), "{options:?}: {theirs:?} {ours:?}");
        let result = restored(&scratch, &dataset);
        for root in [&home.join(&stock), &result] {
            // Backups change the times of directories, and without -t everything has a current time.
            for path in trees::manifest(root).into_keys() {
                let path = root.join(path);
                if path.is_dir() && !path.is_symlink() {
                    set_time(&path, 1, 0);
                }
            }
        }
        assert_same(&home.join(&stock), &result, &format!("{options:?}"));
        let (left, left_ours) = (home.join(format!("source{at}")), home.join(format!("source{at}o")));
        let names = |root: &Path| trees::manifest(root).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&left), names(&left_ours), "{options:?}");
        for path in [left, left_ours, home.join(&stock)] {
            fs::remove_dir_all(path).unwrap();
        }
    }
    scratch.ok("check tank");
}

/// For attributes that only root can set, a client that is not root may ask to store them beside the file
/// (`--fake-super`). A dataset stores them directly and returns them. A directory stores them in extended attributes.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn what_only_root_can_give_needs_no_other_place() {
    let scratch = Scratch::with_pool();
    let (shell, home) = (shell(&scratch), scratch.path());
    grow(&home.join("source"), 51);
    scratch.ok("create -o acltype=posix tank/f");
    push(&shell, &["-aHAX", "-M--fake-super"], &format!("{}/source/", home.display()), "tank/f");
    assert_same(&home.join("source"), &restored(&scratch, "tank/f"), "kept");
    let pull = |from: &str, to: &Path| {
        client(&shell)
            .args(["-aHAX", "-M--fake-super"])
            .arg(format!("host:{from}/"))
            .arg(to)
            .output()
            .unwrap()
    };
    let pulled = pull("tank/f@", &home.join("back"));
    assert!(pulled.status.success() && pulled.stderr.is_empty(), "{pulled:?}");
    assert_same(&home.join("source"), &home.join("back"), "given back");
    // A directory keeps it in extended attributes.
    let kept = home.join("kept");
    push(
        &shell,
        &["-aHAX", "-M--fake-super"],
        &format!("{}/source/", home.display()),
        kept.to_str().unwrap(),
    );
    let pulled = pull(kept.to_str().unwrap(), &home.join("from-kept"));
    assert!(pulled.status.success() && pulled.stderr.is_empty(), "{pulled:?}");
    assert_same(&home.join("source"), &home.join("from-kept"), "given back by a directory");
}

/// Paths mean the same as with stock rsync, and impossible destinations are refused.
#[test]
#[ignore = "needs rsync"]
fn pushes_go_where_they_are_told() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let home = scratch.path();
    fs::create_dir_all(home.join("src/a")).unwrap();
    fs::write(home.join("src/a/f"), b"f").unwrap();
    scratch.ok("create tank/home");
    let src = home.join("src").display().to_string();
    push(&shell, &["-a"], &src, "tank/home");
    push(&shell, &["-a"], &format!("{src}/a/f"), "tank/home/g");
    push(&shell, &["-a"], &format!("{src}/a"), "tank/home/new/");
    push(&shell, &["-aR"], &format!("{}/./src/a/f", home.display()), "tank/home/relative/");
    push(&shell, &["-a", "--mkpath"], &format!("{src}/"), "tank/home/x/y/z");
    let restored = restored(&scratch, "tank/home");
    for path in ["src/a/f", "g", "new/a/f", "relative/src/a/f", "x/y/z/a/f"] {
        assert_eq!(fs::read(restored.join(path)).unwrap(), b"f", "{path}");
    }
    scratch.ok("create -o readonly=on tank/still");
    let newest = snapshots(&scratch, "tank/home").pop().unwrap();
    for (to, code, message) in [
        ("tank/home/q/r/s/", 11, "No such file or directory (2)"),
        ("tank/still", 11, "Read-only file system (30)"),
        (newest.as_str(), 11, "Read-only file system (30)"),
        ("tank/home/g/", 3, "destination must be a directory"),
        ("nowhere/else", 11, "No such file or directory (2)"),
    ] {
        let output = run(&shell, &["-a"], &format!("{src}/"), to);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && stderr.contains(message), "{to}: {output:?}");
    }
    let output = run(&shell, &["-a", "--write-devices"], &src, "tank/home");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    // The dataset's property limits the number of snapshots that stay.
    scratch.ok("set snowmelt:rsync-keep=2 tank/home");
    fs::write(home.join("src/b"), b"b").unwrap();
    push(&shell, &["-a"], &src, "tank/home");
    assert_eq!(snapshots(&scratch, "tank/home").len(), 2);
    scratch.ok("check tank");
}

/// A full dataset stays unchanged.
#[test]
#[ignore = "needs rsync"]
fn without_room_nothing_changes() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let file = scratch.path().join("f");
    fs::write(&file, b"small").unwrap();
    scratch.ok("create -o quota=20M tank/q");
    push(&shell, &["-a"], file.to_str().unwrap(), "tank/q/");
    fs::write(&file, Random(3).bytes(60 << 20)).unwrap();
    let output = run(&shell, &["-a"], file.to_str().unwrap(), "tank/q/");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(11) && stderr.contains("write failed on"), "{output:?}");
    assert_eq!(fs::read(restored(&scratch, "tank/q").join("f")).unwrap(), b"small");
    scratch.ok("check tank");
}

/// A push that is cut off keeps its complete files. Of two pushes at once, the second waits.
#[test]
#[ignore = "needs rsync"]
fn pushes_that_are_cut_off_go_on_where_they_were() {
    let scratch = Scratch::with_pool();
    let shell = shell(&scratch);
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    for at in 0..40 {
        let path = source.join(format!("{at:02}"));
        fs::write(&path, Random(at).bytes(200_000)).unwrap();
        set_time(&path, 1_600_000_000, 7);
    }
    set_time(&source, 1_600_000_000, 7);
    scratch.ok("create tank/cut");
    let from = format!("{}/", source.display());
    for wait in [300, 700, 1500] {
        let mut command = Command::new("rsync");
        command.args(["-e", shell.to_str().unwrap(), "--rsync-path", "snowmelt rsync", "-a", "--bwlimit=2M"]);
        let mut child = command.arg(&from).arg("host:tank/cut/").stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        child.wait().unwrap();
    }
    std::thread::sleep(Duration::from_secs(2));
    if let Some(newest) = snapshots(&scratch, "tank/cut").pop() {
        assert!(newest.ends_with("_partial"), "{newest}");
        let restored = restored(&scratch, "tank/cut");
        for entry in fs::read_dir(&restored).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            assert_eq!(fs::read(&path).unwrap(), fs::read(source.join(name)).unwrap(), "{name:?}");
        }
    }
    push(&shell, &["-a"], &from, "tank/cut/");
    assert_same(&source, &restored(&scratch, "tank/cut"), "after all");
    assert!(snapshots(&scratch, "tank/cut").iter().all(|name| !name.ends_with("_partial")));
    let children: Vec<_> = (0..2)
        .map(|at| {
            let to = format!("host:tank/cut/{at}/");
            client(&shell).args(["-a", &from, &to]).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let result = restored(&scratch, "tank/cut");
    assert_same(&source, &result.join("0"), "one");
    assert_same(&source, &result.join("1"), "the other");
    scratch.ok("check tank");
}

/// Two names that are one name in this dataset are both requested before either file exists. The last one stays.
#[test]
#[ignore = "needs rsync"]
fn names_that_differ_in_case_only_become_one_file() {
    let scratch = Scratch::with_pool();
    let (shell, source) = (shell(&scratch), scratch.path().join("source"));
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/NAME"), "first, and longer").unwrap();
    fs::write(source.join("d/name"), "second").unwrap();
    scratch.ok("create -o casesensitivity=insensitive tank/d");
    push(&shell, &["-a"], &format!("{}/", source.display()), "tank/d");
    let there = restored(&scratch, "tank/d").join("d");
    let found: Vec<_> = fs::read_dir(&there).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(found, ["NAME"]);
    assert_eq!(fs::read_to_string(there.join("NAME")).unwrap(), "second");
    scratch.ok("check tank");
}

/// Directories that are replaced by files, and files by directories, with the same names.
#[test]
#[ignore = "needs rsync"]
fn directories_that_were_replaced_are_not_written_to() {
    let scratch = Scratch::with_pool();
    let (shell, source) = (shell(&scratch), scratch.path().join("source"));
    scratch.ok("create tank/d");
    for round in 0..3 {
        let _ = fs::remove_dir_all(&source);
        for at in 0..40 {
            let (directory, file) = (source.join(format!("n{at}")), source.join(format!("n{}", at + 40)));
            let (directory, file) = if round % 2 == 0 { (directory, file) } else { (file, directory) };
            fs::create_dir_all(directory.join("below")).unwrap();
            fs::write(directory.join("below/file"), format!("{round} {at}")).unwrap();
            fs::write(file, format!("{round}, {at}")).unwrap();
        }
        push(&shell, &["-a", "--delete"], &format!("{}/", source.display()), "tank/d");
        assert_same(&source, &restored(&scratch, "tank/d"), &format!("round {round}"));
    }
    scratch.ok("check tank");
}
