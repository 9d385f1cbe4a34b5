//! Other places at the server that pushes by stock rsync (Debian: rsync) use: links to directories, lists of names,
//! snapshots. Tests that need rsync are ignored by a plain `cargo test`: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::Scratch;
use common::rsync::{Server, own_shell, restored, snapshots};
use trees::{Random, assert_same, manifest, set_time};

/// A command that replaces ssh.
fn shell(scratch: &Scratch) -> PathBuf {
    own_shell(scratch, "exec sh -c \"$*\"")
}

fn write(root: &Path, path: &str, content: &[u8], time: i64) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    set_time(&path, time, 5);
}

/// Sets the times of everything except files.
fn settle_times(root: &Path, time: i64) {
    for path in manifest(root).into_keys().map(|path| root.join(path)) {
        if path.is_symlink() || !path.is_file() {
            set_time(&path, time, 5);
        }
    }
}

/// A push by stock rsync to stock rsync, or to this program.
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

/// Rules that protect the targets of links.
const KEPT: [&str; 3] = ["--filter=P /real", "--filter=P /hop", "--filter=P /other"];

/// With `-K`, links to directories are kept where the client has directories. Files are written into the targets of the
/// links, but never outside of the dataset.
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
            // Stock rsync gives the link the time of the client's directory. This program does not.
            for path in manifest(root).into_keys().map(|path| root.join(path)) {
                let has_none = ["-rlK", "--protocol=29"].iter().any(|option| options.contains(option));
                if path.is_dir() || path.is_symlink() || has_none {
                    set_time(&path, 1, 0);
                }
            }
        }
        assert_same(&stock, &result, &format!("{options:?}"));
    }
    // A link that leads out of the dataset ends at its root. No such directory exists there, so the link is treated as
    // without -K.
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
    // A link to something that a module hides is not followed.
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

/// The list of files to push may be at the server: in a file of its machine, or of a dataset.
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
    // In a module, lists are files of the module. Hidden files cannot be lists.
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

/// Files in a snapshot of the dataset need not be sent again. `--copy-dest` and similar options can name its
/// directories below `.zfs/snapshot`. Where stock rsync makes a link, this program makes a copy.
#[test]
#[ignore = "needs rsync and root"]
fn snapshots_are_looked_into_for_files() {
    let scratch = Scratch::with_pool();
    let (shell, home) = (shell(&scratch), scratch.path());
    let big = Random(9).bytes(90_000);
    for (path, content, time) in [
        ("same", &b"same"[..], 2000),
        ("mode", b"mode", 2000),
        ("changed", b"as it was once", 2500),
        ("deep/er/big.bin", &[b"begin", &big[..]].concat(), 3999),
        ("deep/er/also", &big, 4000),
        ("deep/old-name.bin", &big, 4001),
    ] {
        write(&home.join("prev"), path, content, time);
    }
    for link in ["link", "other-link"] {
        symlink("same", home.join("prev").join(link)).unwrap();
    }
    for fifo in ["prev/fifo", "prev/other-fifo"] {
        assert!(Command::new("mkfifo").arg(home.join(fifo)).status().unwrap().success());
    }
    xattr::set(home.join("prev/same"), "user.a", &[7; 100]).unwrap();
    let copy = |from: &str, to: &str| {
        assert!(Command::new("cp").args(["-a", from, to]).current_dir(home).status().unwrap().success());
    };
    settle_times(&home.join("prev"), 6000);
    copy("prev", "src");
    write(&home.join("src"), "changed", b"as it is now", 3000);
    fs::remove_file(home.join("src/other-link")).unwrap();
    symlink("changed", home.join("src/other-link")).unwrap();
    fs::set_permissions(home.join("src/other-fifo"), fs::Permissions::from_mode(0o700)).unwrap();
    write(&home.join("src"), "deep/er/big.bin", &big, 4000);
    fs::rename(home.join("src/deep/old-name.bin"), home.join("src/deep/new-name.bin")).unwrap();
    write(&home.join("src"), "deep/new-name.bin", &[&big[..], b"end"].concat(), 4002);
    write(&home.join("src"), "new", b"new", 4000);
    fs::hard_link(home.join("src/same"), home.join("src/deep/linked")).unwrap();
    std::os::unix::fs::chown(home.join("src/mode"), Some(12), Some(34)).unwrap();
    settle_times(&home.join("src"), 6000);
    fs::create_dir(home.join("void")).unwrap();
    let from = format!("{}/src/", home.display());
    // Options for this program, and the options with which stock rsync makes the same copies.
    let cases: &[(&[&str], &str, &str)] = &[
        (&["-a"], "--copy-dest", "--copy-dest"),
        (&["-aHX"], "--copy-dest", "--copy-dest"),
        (&["-a"], "--compare-dest", "--compare-dest"),
        (&["-acX"], "--compare-dest", "--compare-dest"),
        (&["-ac"], "--link-dest", "--copy-dest"),
        (&["-aH"], "--link-dest", "--copy-dest"),
        (&["-an"], "--link-dest", "--copy-dest"),
        (&["-rt"], "--link-dest", "--copy-dest"),
        (&["-ayy", "--no-W"], "--copy-dest", "--copy-dest"),
        // Everything is listed, even if it is up to date.
        (&["-ai"], "--copy-dest", "--copy-dest"),
        (&["-ai"], "--compare-dest", "--compare-dest"),
        (&["-ain"], "--copy-dest", "--copy-dest"),
    ];
    for (at, (options, option, theirs)) in cases.iter().enumerate() {
        let (stock, dataset) = (format!("stock{at}"), format!("tank/s{at}"));
        fs::create_dir_all(home.join(&stock).join("sub")).unwrap();
        copy("prev", &format!("{stock}/prev"));
        scratch.ok(&format!("import {} {dataset}@monday", home.join("prev").display()));
        let empty = push(&shell, true, &["-rd", "--delete"], &format!("{}/void/", home.display()), &dataset);
        assert!(empty.status.success(), "{empty:?}");
        let made =
            push(&shell, true, &["-rd"], &format!("{}/void/", home.display()), &format!("{dataset}/sub/"));
        assert!(made.status.success(), "{made:?}");
        let place = ["../.zfs/snapshot/monday", "/.zfs/snapshot/monday/"][at % 2];
        let both = |option: &str, place: &str| {
            [&["-i"], *options, &[&format!("{option}={place}")[..]]]
                .concat()
                .iter()
                .map(|one| (*one).to_owned())
                .collect::<Vec<_>>()
        };
        let run = |is_ours: bool, args: &[String], to: &str| {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            push(&shell, is_ours, &args, &from, to)
        };
        let theirs = run(false, &both(theirs, "../prev"), &format!("{}/sub/", home.join(&stock).display()));
        let ours = run(true, &both(option, place), &format!("{dataset}/sub/"));
        assert_eq!(theirs.status.code(), ours.status.code(), "{options:?}: {theirs:?} {ours:?}");
        assert_eq!(lines(&theirs), lines(&ours), "{options:?} {option}");
        let (stock, result) = (home.join(&stock).join("sub"), restored(&scratch, &dataset).join("sub"));
        for root in [&stock, &result] {
            for path in manifest(root).into_keys().map(|path| root.join(path)) {
                if path.is_dir() && !path.is_symlink() || options.contains(&"-rt") {
                    set_time(&path, 1, 0);
                }
            }
        }
        assert_same(&stock, &result, &format!("{options:?} {option}"));
    }
    // Files that exist there are not sent.
    scratch.ok(&format!("import {} tank/t@monday", home.join("prev").display()));
    let before = snapshots(&scratch, "tank/t").len();
    let prev = format!("{}/prev/", home.display());
    let told =
        push(&shell, true, &["-a", "--stats", "--link-dest=../.zfs/snapshot/monday"], &prev, "tank/t/again");
    let said = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success() && said.contains("Literal data: 0 bytes"), "{told:?}");
    assert_eq!(snapshots(&scratch, "tank/t").len(), before + 1);
    // The same in a module, except for hidden files, in the present and in snapshots.
    write(&home.join("m"), "hidden/f", b"secret", 2000);
    write(&home.join("m"), "open/f", b"open", 2000);
    scratch.ok(&format!("import {} tank/m@monday", home.join("m").display()));
    let server = Server::start(&scratch, "[m]\npath = tank/m\nread only = no\nexclude = /hidden\n");
    write(&home.join("guess"), "f", b"??????", 2000);
    write(&home.join("open"), "f", b"open", 2000);
    let guess = format!("{}/guess/", home.display());
    for place in ["/hidden", "/.zfs/snapshot/monday/hidden", "/.zfs/snapshot/tuesday", "/.zfs/snapshot"] {
        for option in ["--link-dest", "--copy-dest"] {
            let option = format!("{option}={place}");
            let output = server.run(&["-a", &option], &guess, "localhost::m/got/");
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("arg does not exist"), "{option}: {output:?}");
            assert_eq!(fs::read(restored(&scratch, "tank/m").join("got/f")).unwrap(), b"??????");
            server.push(&["-r", "--delete"], &format!("{}/void/", home.display()), "m/got/");
        }
    }
    let option = "--copy-dest=/.zfs/snapshot/monday/open";
    let told = server.push(&["-a", "--stats", option], &format!("{}/open/", home.display()), "m/got");
    assert!(told.contains("Literal data: 0 bytes"), "{told}");
    drop(server);
    scratch.ok("check tank");
}
