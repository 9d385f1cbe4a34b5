//! What pushes of stock rsync (Debian: rsync) find at the server besides the destination: links to directories, lists of names. What needs
//! rsync is ignored by a plain `cargo test`: `.ci/run clients` runs it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, as the server's own tests have them.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::Scratch;
use common::rsync::{Server, own_shell, restored};
use trees::{assert_same, manifest, set_time};

/// A command in the place of ssh.
fn shell(scratch: &Scratch) -> PathBuf {
    own_shell(scratch, "exec sh -c \"$*\"")
}

fn write(root: &Path, path: &str, content: &[u8], time: i64) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    set_time(&path, time, 5);
}

/// Nothing but files has a time of its own.
fn settle_times(root: &Path, time: i64) {
    for path in manifest(root).into_keys().map(|path| root.join(path)) {
        if path.is_symlink() || path.is_dir() {
            set_time(&path, time, 5);
        }
    }
}

/// A push of stock rsync to stock rsync, or to this program.
fn push(shell: &Path, is_ours: bool, args: &[&str], from: &str, to: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", "rsync", "-e", shell.to_str().unwrap()]);
    if is_ours {
        command.args(["--rsync-path", "snowmelt rsync"]);
    }
    command.args(args).arg(from).arg(format!("host:{to}")).stdin(Stdio::null()).output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Rules that protect where links lead.
const KEPT: [&str; 3] = ["--filter=P /real", "--filter=P /hop", "--filter=P /other"];

/// With `-K`, links to directories are kept where the client has directories, and what is in these goes where they lead, which is never
/// out of the dataset.
#[test]
#[ignore = "needs rsync"]
fn links_to_directories_are_kept_and_end_at_the_root() {
    let scratch = Scratch::with_pool();
    let (shell, home) = (shell(&scratch), scratch.path());
    for (path, text, time) in [
        ("d/f", "new f", 3000),
        ("d/sub/g", "g", 3000),
        ("e/f", "e's f", 3000),
        ("file/x", "x", 3000),
        ("gone/x", "x", 3000),
        ("round/x", "x", 3000),
        ("same/s", "s", 2000),
        ("plain", "plain", 2000),
    ] {
        write(&home.join("src"), path, text.as_bytes(), time);
    }
    fs::create_dir(home.join("src/in")).unwrap();
    fs::hard_link(home.join("src/d/f"), home.join("src/in/linked")).unwrap();
    settle_times(&home.join("src"), 6000);
    for (path, text, time) in [
        ("t/real/f", "old f", 2500),
        ("t/real/extra", "extra", 2500),
        ("t/real/sub/old", "old", 2500),
        ("t/real/deeper/keep", "keep", 2500),
        ("t/other/f", "an older one", 2500),
        ("t/other/extra", "extra", 2500),
        ("t/a file", "file", 2500),
        ("t/same/s", "s", 2000),
    ] {
        write(&home.join("dst"), path, text.as_bytes(), time);
    }
    for (link, target) in [
        ("d", "hop"),
        ("hop", "./real/sub/.."),
        ("e", "other"),
        ("file", "a file"),
        ("gone", "nowhere"),
        ("round", "round"),
        ("in", "real/deeper"),
        ("extra", "real"),
    ] {
        symlink(target, home.join("dst/t").join(link)).unwrap();
    }
    settle_times(&home.join("dst"), 7000);
    let cases: &[&[&str]] = &[
        &["-aHK"],
        &["-aHK", "--force"],
        &["-aK", "--delete"],
        &["-aHK", "--delete", KEPT[0], KEPT[1], KEPT[2]],
        &["-aHK", "--delete-after", KEPT[0], KEPT[1], KEPT[2]],
        &["-aHK", "--delete-before", "--no-inc-recursive", KEPT[0], KEPT[1], KEPT[2]],
        &["-aHK", "--delete-delay", "--protocol=29", KEPT[0], KEPT[1], KEPT[2]],
        &["-anK", "--delete", KEPT[0], KEPT[1], KEPT[2]],
        &["-aK", "--existing"],
        &["-rlK", "--delete"],
        &["-aHKR", "--no-implied-dirs"],
        &["-a", "--delete"],
    ];
    for (at, options) in cases.iter().enumerate() {
        let stock = home.join(format!("stock{at}"));
        assert!(
            Command::new("cp").args(["-a", "dst"]).arg(&stock).current_dir(home).status().unwrap().success()
        );
        let dataset = format!("tank/k{at}");
        scratch.ok(&format!("import {} {dataset}@before", home.join("dst").display()));
        let from = format!("{}/src/{}", home.display(), if options.contains(&"-aHKR") { "./" } else { "" });
        let args = [&["-i"], *options].concat();
        let theirs = push(&shell, false, &args, &from, &format!("{}/t/", stock.display()));
        let ours = push(&shell, true, &args, &from, &format!("{dataset}/t/"));
        assert_eq!(theirs.status.code(), ours.status.code(), "{options:?}: {theirs:?} {ours:?}");
        assert_eq!(lines(&theirs), lines(&ours), "{options:?}");
        let result = restored(&scratch, &dataset);
        for root in [&stock, &result] {
            // Of the two, stock rsync gives the link the time of the client's directory.
            for path in manifest(root).into_keys().map(|path| root.join(path)) {
                let has_none = ["-rlK", "--protocol=29"].iter().any(|option| options.contains(option));
                if path.is_dir() || path.is_symlink() || has_none {
                    set_time(&path, 1, 0);
                }
            }
        }
        assert_same(&stock, &result, &format!("{options:?}"));
    }
    // What leads out of the dataset leads to its root, where there is no such directory; what is there instead is as without -K.
    let outside = home.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir_all(home.join("out/sub")).unwrap();
    symlink("../../../../../../outside", home.join("out/sub/up")).unwrap();
    symlink(&outside, home.join("out/sub/absolute")).unwrap();
    symlink("/inside", home.join("out/sub/root")).unwrap();
    write(&home.join("out"), "inside/f", b"old", 2500);
    scratch.ok(&format!("import {} tank/out@before", home.join("out").display()));
    for directory in ["up", "absolute", "root"] {
        write(&home.join("in/sub"), &format!("{directory}/f"), directory.as_bytes(), 3000);
    }
    let pushed = push(&shell, true, &["-aK"], &format!("{}/in/", home.display()), "tank/out");
    assert!(pushed.status.success(), "{pushed:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    let result = restored(&scratch, "tank/out");
    let is_dir = |name: &str| result.join(name).symlink_metadata().unwrap().is_dir();
    assert!(is_dir("sub/up") && is_dir("sub/absolute") && result.join("sub/root").is_symlink());
    assert_eq!(fs::read(result.join("inside/f")).unwrap(), b"root");
    // A link does not lead to what a module hides.
    fs::create_dir(home.join("m")).unwrap();
    fs::create_dir(home.join("m/hidden")).unwrap();
    symlink("hidden", home.join("m/way")).unwrap();
    scratch.ok(&format!("import {} tank/m@before", home.join("m").display()));
    let server = Server::start(&scratch, "[m]\npath = tank/m\nread only = no\nexclude = /hidden\n");
    write(&home.join("one"), "way/f", b"f", 3000);
    let from = format!("{}/one/", home.display());
    server.fails(
        &["-aK"],
        &from,
        "localhost::m/",
        23,
        "ERROR: daemon refused to receive directory \"hidden\"",
    );
    server.push(&["-a"], &from, "m/");
    let result = restored(&scratch, "tank/m");
    assert!(result.join("way/f").is_file() && fs::read_dir(result.join("hidden")).unwrap().count() == 0);
    drop(server);
    scratch.ok("check tank");
}

/// The list of what is pushed may be at the server: a file of its machine, or of a dataset.
#[test]
#[ignore = "needs rsync"]
fn lists_of_names_may_be_at_the_server() {
    let scratch = Scratch::with_pool();
    let (shell, home) = (shell(&scratch), scratch.path());
    for path in ["a/one", "a/two", "b/deep/three", "b/other", "c\nd", "z"] {
        write(&home.join("src"), path, path.as_bytes(), 3000);
    }
    settle_times(&home.join("src"), 6000);
    let list = "a/one\r\n\n# no name\n; nor this\n/b/./deep\nnowhere\nz";
    fs::write(home.join("list"), list).unwrap();
    fs::write(home.join("zeros"), "c\nd\0a/two\0").unwrap();
    fs::write(home.join("empty"), "\n\n").unwrap();
    fs::write(home.join("many"), "a/one\n".repeat(200_000)).unwrap();
    for name in ["list", "zeros"] {
        write(&home.join("lists"), &format!("x/{name}"), &fs::read(home.join(name)).unwrap(), 1);
    }
    scratch.ok(&format!("import {} tank/lists@monday", home.join("lists").display()));
    let from = format!("{}/src/", home.display());
    let absolute = format!("--files-from=host:{}/list", home.display());
    let cases: &[(&[&str], &str)] = &[
        (&["-a", "--files-from=:list"], "tank/lists/x/list"),
        (&["-ar", "--files-from=host:list"], "tank/lists@monday/x/list"),
        (&["-a", &absolute], "tank/lists@/x/../x/list"),
        (&["-a", "--from0", "--files-from=:zeros"], "tank/lists/x/zeros"),
        (&["-a", "--no-R", "--files-from=:list"], "tank/lists/x/list"),
        (&["-as", "--files-from=:list"], "tank/lists/x/list"),
        (&["-a", "--files-from=:empty"], ""),
        (&["-a", "--files-from=:many"], ""),
        (&["-a", "--files-from=:nowhere"], "tank/lists/nowhere"),
        (&["-ar", "--files-from=:list", "--delete", "--protocol=30"], "tank/lists/x/list"),
        (&["-a", "--files-from=:list", "--protocol=29"], "tank/lists/x/list"),
    ];
    for (at, (options, inside)) in cases.iter().enumerate() {
        let (stock, dataset) = (home.join(format!("stock{at}")), format!("tank/f{at}"));
        fs::create_dir(&stock).unwrap();
        set_time(&stock, 7000, 0);
        scratch.ok(&format!("create {dataset}"));
        let args = [&["-i"], *options].concat();
        let theirs = push(&shell, false, &args, &from, stock.to_str().unwrap());
        let ours = push(&shell, true, &args, &from, &dataset);
        assert_eq!(theirs.status.success(), ours.status.success(), "{options:?}: {theirs:?} {ours:?}");
        assert_eq!(lines(&theirs), lines(&ours), "{options:?}");
        let named: Vec<_> = options.iter().copied().filter(|option| !option.contains(':')).collect();
        let inside_option = format!("--files-from=:{inside}");
        let named = [&named[..], &["-i", &inside_option]].concat();
        if !inside.is_empty() {
            let again = push(&shell, true, &named, &from, &dataset);
            assert_eq!(again.status.code(), ours.status.code(), "{inside}: {again:?}");
            assert_eq!(lines(&again), Vec::<String>::new(), "{inside}: all is there");
        }
        let said = String::from_utf8_lossy(&ours.stderr).into_owned();
        let is_list = !options.iter().any(|option| option.ends_with(":nowhere"));
        assert_eq!(said.contains("failed to open files-from file"), !is_list, "{options:?}: {said}");
        if !is_list || lines(&ours).is_empty() {
            continue;
        }
        let result = restored(&scratch, &dataset);
        for root in [&stock, &result] {
            set_time(root, 1, 0);
        }
        assert_same(&stock, &result, &format!("{options:?}"));
    }
    for list in [":lists", ":tank/lists/x", ":tank/nowhere/list"] {
        let refused = push(&shell, true, &["-a", &format!("--files-from={list}")], &from, "tank/f0");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(12) && said.contains("failed to open files-from file"),
            "{said}"
        );
    }
    // Of a module, lists are in the module, and what it hides is none.
    write(&home.join("m"), "x/list", list.as_bytes(), 1);
    write(&home.join("m"), "hidden/list", list.as_bytes(), 1);
    scratch.ok(&format!("import {} tank/m@before", home.join("m").display()));
    let server = Server::start(&scratch, "[m]\npath = tank/m\nread only = no\nexclude = /hidden\n");
    for list in [":x/list", ":/x/list", "localhost:/../x/list"] {
        let (to, option) = (format!("localhost::m/{}", list.len()), format!("--files-from={list}"));
        server.fails(&["-a", "--no-implied-dirs", &option], &from, &to, 23, "nowhere");
        let result = restored(&scratch, "tank/m").join(list.len().to_string());
        assert!(result.join("a/one").is_file() && result.join("deep").is_dir() && result.join("z").is_file());
    }
    for list in [":hidden/list", ":/x", ":/etc/hostname"] {
        let option = format!("--files-from={list}");
        server.fails(&["-a", &option], &from, "localhost::m/no", 12, "failed to open files-from file");
    }
    drop(server);
    scratch.ok("check tank");
}
