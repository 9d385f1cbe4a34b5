//! Pushes by stock rsync (Debian: rsync) to modules that are datasets. Tests that need rsync are ignored by a plain
//! `cargo test`: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::Scratch;
use common::rsync::{Server, await_text, restored, snapshots};
use trees::{Random, assert_same, disturb, grow, set_time};

/// Space of replaced data is freed while the module is served, not only when the server ends.
#[test]
#[ignore = "needs rsync"]
fn what_is_replaced_is_given_back() {
    const SIZE: usize = 32 << 20;
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/m");
    let server = Server::start(&scratch, "[m]\npath = tank/m\nread only = no\nkeep snapshots = 1\n");
    let source = scratch.path().join("source");
    let mut data = Random(7).bytes(SIZE);
    for _ in 0..16 {
        data.rotate_left(5000);
        fs::write(&source, &data).unwrap();
        server.push(&["-W", "--ignore-times"], source.to_str().unwrap(), "m/");
    }
    fs::remove_file(&source).unwrap();
    let stored = scratch.stored();
    assert!(stored < 9 * SIZE as u64, "{stored} bytes for {SIZE}");
}

/// With all options, the trees are identical in the end. Each push gives a snapshot, and the module states how many of
/// them stay.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_are_pushed_to_modules() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    grow(&source, 41);
    let from = format!("{}/", source.display());
    scratch.ok("create -o acltype=posix tank/m");
    scratch.ok("set snowmelt:rsync-keep=1 tank/m");
    let server =
        Server::start(&scratch, "[m]\npath = tank/m\nread only = no\nkeep snapshots = 3\ntimeout = 60\n");
    let variants: &[&[&str]] = &[
        &[],
        &["-z", "--delete-before"],
        &["-c", "--delete-after"],
        &["--inplace", "-s"],
        &["--protocol=31"],
    ];
    for (at, variant) in variants.iter().enumerate() {
        let args = [&["-aHAX", "--delete"], *variant].concat();
        server.push(&args, &from, &format!("m/{at}/"));
        assert_same(&source, &restored(&scratch, "tank/m").join(at.to_string()), &format!("{variant:?}"));
        disturb(&source, at as u64);
        server.push(&args, &from, &format!("m/{at}"));
        assert_same(&source, &restored(&scratch, "tank/m").join(at.to_string()), &format!("{variant:?}"));
        let before = snapshots(&scratch, "tank/m");
        assert_eq!(server.push(&["-aHAX", "--delete", "-i"], &from, &format!("m/{at}")), "");
        assert_eq!(snapshots(&scratch, "tank/m"), before);
    }
    assert_eq!(snapshots(&scratch, "tank/m").len(), 3);
    // The pushed files can be pulled again.
    let back = scratch.path().join("back");
    let pulled = server.run(&["-aHAX"], "localhost::m/4/", back.to_str().unwrap());
    assert!(pulled.status.success(), "{pulled:?}");
    assert_same(&source, &back, "pulled");
    drop(server);
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs rsync"]
fn modules_say_who_may_write() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    fs::write(home.join("f"), b"f").unwrap();
    fs::write(home.join("secrets"), "ann:a\nbob:b\neve:e\n").unwrap();
    fs::set_permissions(home.join("secrets"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(home.join("password"), "a\n").unwrap();
    fs::set_permissions(home.join("password"), fs::Permissions::from_mode(0o600)).unwrap();
    scratch.ok("create tank/a");
    scratch.ok("snapshot tank/a@monday");
    scratch.ok("create -o readonly=on tank/still");
    let users = "auth users = ann:rw, bob:ro, eve:deny";
    let server = Server::start(
        &scratch,
        &format!(
            "[default]\npath = tank/a\n[open]\npath = tank/a\nread only = no\n\
             [monday]\npath = tank/a@monday\nread only = no\n[newest]\npath = tank/a@\nread only = no\n\
             [drop]\npath = tank/a\nread only = no\nwrite only = yes\nrefuse options = delete\n\
             [users]\npath = tank/a\nsecrets file = {home}/secrets\n{users}\n\
             [still]\npath = tank/still\nread only = no\n[one]\npath = tank/a\nread only = no\nmax connections = -1\n\
             [secret]\npath = tank/a\nread only = no\nexclude = /kept\n",
            home = home.display()
        ),
    );
    let f = home.join("f").display().to_string();
    for module in ["default", "monday", "newest"] {
        server.fails(&["-a"], &f, &format!("localhost::{module}/"), 1, "ERROR: module is read only");
    }
    server.push(&["-a"], &f, "open/");
    assert_eq!(fs::read(restored(&scratch, "tank/a").join("f")).unwrap(), b"f");
    server.fails(&["-a"], "localhost::drop/", home.to_str().unwrap(), 1, "ERROR: module is write only");
    server.push(&["-a"], &f, "drop/g");
    for delete in ["--delete", "--delete-after", "--delete-excluded"] {
        let message = "The server is configured to refuse --delete";
        server.fails(&["-r", delete], home.to_str().unwrap(), "localhost::drop/", 4, message);
    }
    let password = format!("--password-file={}", home.join("password").display());
    for (user, secret, code) in [("ann", "a", 0), ("bob", "b", 1), ("eve", "e", 5), ("ann", "x", 5)] {
        fs::write(home.join("password"), format!("{secret}\n")).unwrap();
        let output = server.run(&["-a", &password], &f, &format!("{user}@localhost::users/{user}"));
        assert_eq!(output.status.code(), Some(code), "{user}: {output:?}");
    }
    let result = restored(&scratch, "tank/a");
    assert!(result.join("ann").exists() && !result.join("bob").exists() && result.join("g").exists());
    server.fails(&["-a"], &f, "localhost::still/", 11, "Read-only file system (30)");
    server.fails(&["-a"], &f, "localhost::one/", 5, "@ERROR: module is disabled");
    // Files that the module hides are neither written nor deleted, and no path leads out of it.
    server.push(&["-a"], &f, "open/kept");
    server.fails(&["-a"], &f, "localhost::secret/kept", 3, "ERROR: daemon has excluded destination \"kept\"");
    fs::create_dir(home.join("void")).unwrap();
    server.push(&["-r", "--delete"], &format!("{}/", home.join("void").display()), "secret/");
    assert!(restored(&scratch, "tank/a").join("kept").exists());
    server.push(&["-a"], &f, "open/../../../up");
    assert!(restored(&scratch, "tank/a").join("up").exists());
    drop(server);
    scratch.ok("check tank");
}

#[test]
fn trees_of_attributes_are_not_received_into() {
    let scratch = Scratch::new();
    for text in ["read only = no", "secrets file = /s\nauth users = joe:rw"] {
        let text = format!("[d]\npath = /srv/attributes\nreal file prefix = /srv/files\n{text}\n");
        fs::write(scratch.path().join("rsyncd.conf"), text).unwrap();
        let config = scratch.path().join("rsyncd.conf");
        let said = scratch.fails(1, &format!("serve rsync --config {}", config.display()));
        assert!(said.contains("module 'd': a tree of attributes is read only"), "{said}");
    }
}

/// The module determines owners, permissions and links. The log lists the received files.
#[test]
#[ignore = "needs rsync and root"]
fn what_comes_is_made_what_the_module_says() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/f"), b"content").unwrap();
    fs::write(source.join("x"), b"x").unwrap();
    fs::set_permissions(source.join("x"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("../../etc/passwd", source.join("link")).unwrap();
    scratch.ok("create tank/m");
    let server = Server::start(
        &scratch,
        "[m]\npath = tank/m\nread only = no\nuid = 1234\ngid = 4321\nincoming chmod = D2770,F640\nmunge symlinks = yes\n\
         transfer logging = yes\nlog format = %o %m %f %l %u|\n\
         [n]\npath = tank/m\noutgoing chmod = Fo=r,Fg+w,D755\n",
    );
    let from = format!("{}/", source.display());
    server.push(&["-a"], &from, "m/");
    let result = restored(&scratch, "tank/m");
    let shown = |path: &str| {
        let it = result.join(path).symlink_metadata().unwrap();
        (it.mode() & 0o7777, it.uid(), it.gid())
    };
    assert_eq!(shown("d"), (0o2770, 1234, 4321));
    assert_eq!(shown("d/f"), (0o640, 1234, 4321));
    assert_eq!(shown("x"), (0o640, 1234, 4321));
    let target = fs::read_link(result.join("link")).unwrap();
    assert_eq!(target.to_str().unwrap(), "/rsyncd-munged/../../etc/passwd");
    // Everything is up to date: nothing to do.
    let count = snapshots(&scratch, "tank/m").len();
    assert_eq!(server.push(&["-ai"], &from, "m/"), "");
    assert_eq!(snapshots(&scratch, "tank/m").len(), count);
    fs::remove_file(source.join("x")).unwrap();
    server.push(&["-a", "--delete"], &from, "m/");
    let log = await_text(&scratch.path().join("log"), "del. m x 1 |");
    assert!(log.contains("recv m d/f 7 |") && log.contains("rsync to m/ from 127.0.0.1"), "{log}");
    let back = scratch.path().join("back");
    let pulled = server.run(&["-rlp"], "localhost::n/", back.to_str().unwrap());
    assert!(pulled.status.success(), "{pulled:?}");
    let mode = |path: &str| back.join(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("d/f")), (0o755, 0o664));
}

/// Nothing can be written into or deleted from a directory that a module hides.
#[test]
#[ignore = "needs rsync"]
fn hidden_directories_are_not_written_to() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    scratch.ok("create tank/a");
    let modules = ["/excluded/", "/excluded", "excluded/", "**/excluded"]
        .iter()
        .enumerate()
        .map(|(at, pattern)| format!("[m{at}]\npath = tank/a\nread only = no\nexclude = {pattern}\n"));
    let modules: String = modules.collect();
    let server = Server::start(&scratch, &format!("[open]\npath = tank/a\nread only = no\n{modules}"));
    fs::create_dir_all(home.join("y/excluded/sub")).unwrap();
    fs::create_dir(home.join("void")).unwrap();
    fs::write(home.join("y/excluded/secret"), "old").unwrap();
    fs::write(home.join("y/f"), "old").unwrap();
    server.push(&["-a"], &format!("{}/", home.join("y").display()), "open/");
    fs::write(home.join("hosts"), "new").unwrap();
    fs::write(home.join("y/excluded/secret"), "new").unwrap();
    fs::write(home.join("y/f"), "new content").unwrap();
    let at = |path: &str| home.join(path).display().to_string();
    for module in 0..4 {
        let cases: [(&[&str], String, &str); 9] = [
            (&["-a"], at("hosts"), "excluded/new"),
            (&["-a"], at("hosts"), "excluded/secret"),
            (&["-a"], at("hosts"), "excluded/"),
            (&["-a"], at("hosts"), "excluded/sub/"),
            (&["-a", "--mkpath"], at("hosts"), "excluded/made/"),
            (&["-aR", "--no-implied-dirs"], at("y/./excluded/secret"), ""),
            (&["-r", "--delete"], at("void/"), "excluded/"),
            (&["-a", "--backup", "--backup-dir=/excluded"], at("y/f"), ""),
            (&["-a", "--inplace", "--partial-dir=/excluded"], at("y/f"), "excluded/sub/f"),
        ];
        for (args, from, to) in cases {
            let output = server.run(args, &from, &format!("localhost::m{module}/{to}"));
            assert!(!output.status.success(), "{args:?} {to} m{module}: {output:?}");
        }
        let result = restored(&scratch, "tank/a");
        let mut names: Vec<_> =
            fs::read_dir(result.join("excluded")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["secret", "sub"], "m{module}");
        assert_eq!(fs::read(result.join("excluded/secret")).unwrap(), b"old", "m{module}");
        assert_eq!(fs::read_dir(result.join("excluded/sub")).unwrap().count(), 0, "m{module}");
    }
}

/// A rule that begins with `**/` also protects entries at the top.
#[test]
#[ignore = "needs rsync"]
fn what_is_excluded_everywhere_is_not_deleted_at_the_top() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    let server = Server::start(&scratch, "[m]\npath = tank/a\nread only = no\n");
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("bar")).unwrap();
    fs::create_dir_all(source.join("x/bar")).unwrap();
    fs::write(source.join("bar/keep"), "").unwrap();
    let from = format!("{}/", source.display());
    server.push(&["-a"], &from, "m/");
    fs::remove_dir_all(source.join("bar")).unwrap();
    fs::remove_dir_all(source.join("x/bar")).unwrap();
    server.push(&["-a", "--delete", "--exclude=**/bar"], &from, "m/");
    let result = restored(&scratch, "tank/a");
    assert!(result.join("bar/keep").exists() && result.join("x/bar").exists());
}

/// If the module's user is root, owners are the client's or those that it asks for. Options may come with or without
/// backslashes.
#[test]
#[ignore = "needs rsync and root"]
fn owners_are_those_that_are_asked_for() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    let module = |name: &str, more: &str| format!("[{name}]\npath = tank/a\nread only = no\n{more}\n");
    let root = "uid = root\ngid = root";
    let server = Server::start(&scratch, &[module("m", ""), module("root", root)].concat());
    let file = scratch.path().join("f");
    fs::write(&file, "").unwrap();
    std::os::unix::fs::chown(&file, Some(1234), Some(4321)).unwrap();
    let cases: &[(&str, &[&str], (u32, u32))] = &[
        ("m", &[], (1234, 4321)),
        ("root", &[], (1234, 4321)),
        ("m", &["--chown=1000:1001"], (1000, 1001)),
        ("m", &["-s", "--chown=1000:1001"], (1000, 1001)),
        ("root", &["--usermap=*:7", "--groupmap=4321:8"], (7, 8)),
    ];
    for (module, args, owner) in cases {
        server.push(
            &[&["-a", "--ignore-times"], *args].concat(),
            file.to_str().unwrap(),
            &format!("{module}/f"),
        );
        let it = restored(&scratch, "tank/a").join("f").metadata().unwrap();
        assert_eq!((it.uid(), it.gid()), *owner, "{module} {args:?}");
    }
}

/// Commands run before and after a transfer, get information about it, and can stop it.
#[test]
#[ignore = "needs rsync and root"]
fn commands_run_around_transfers() {
    let scratch = Scratch::with_pool();
    let home = scratch.path().display().to_string();
    let f = format!("{home}/f");
    fs::write(&f, b"f").unwrap();
    fs::write(format!("{home}/secret"), b"for early").unwrap();
    fs::create_dir(format!("{home}/public")).unwrap();
    scratch.ok("create tank/m");
    let record = |kind: &str| {
        format!(
            "echo {kind} $RSYNC_MODULE_NAME $RSYNC_MODULE_PATH $RSYNC_HOST_ADDR $RSYNC_REQUEST $RSYNC_ARG0 \
             status=$RSYNC_EXIT_STATUS/$RSYNC_RAW_STATUS $(id -u) >> {home}/record"
        )
    };
    let server = Server::start(
        &scratch,
        &format!(
            "post-xfer exec = {post}\n[m]\npath = tank/m\nread only = no\nearly exec = cat > {home}/early\npre-xfer exec = {pre}\n\
             [no]\npath = tank/m\nread only = no\npre-xfer exec = echo not today; exit 3\n\
             [never]\npath = tank/m\nread only = no\nearly exec = exit 1\n\
             [public]\npath = {home}/public\npre-xfer exec = {pre}\n",
            pre = record("pre"),
            post = record("post")
        ),
    );
    let record = scratch.path().join("record");
    server.push(&["-a", &format!("--early-input={home}/secret")], &f, "m/sub/");
    let said = await_text(&record, "post m");
    let expected = "pre m tank/m 127.0.0.1 m/sub/ rsyncd status=/ 0\npost m tank/m 127.0.0.1 status=0/0 0\n";
    assert_eq!(said, expected);
    assert_eq!(fs::read(scratch.path().join("early")).unwrap(), b"for early");
    let before = snapshots(&scratch, "tank/m");
    server.fails(&["-a"], &f, "localhost::no/", 4, "pre-xfer exec returned failure (768):not today");
    await_text(&record, "post no tank/m 127.0.0.1 status=4/1024 0");
    server.fails(&["-a"], &f, "localhost::never/", 5, "@ERROR: early exec failed");
    await_text(&record, "post never tank/m 127.0.0.1 status=-1/-1 0");
    assert_eq!(snapshots(&scratch, "tank/m"), before);
    // A directory is read as nobody, but commands run as the server's user.
    let output = server.run(&["-a"], "localhost::public/", &format!("{home}/copy"));
    assert!(output.status.success(), "{output:?}");
    await_text(&record, "post public");
    assert!(fs::read_to_string(&record).unwrap().lines().all(|line| line.ends_with(" 0")));
}

/// A push that is cut off keeps its complete files. Of two pushes at once, the second waits.
#[test]
#[ignore = "needs rsync"]
fn pushes_to_modules_that_are_cut_off_go_on_where_they_were() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    for at in 0..40 {
        let path = source.join(format!("{at:02}"));
        fs::write(&path, Random(at).bytes(200_000)).unwrap();
        set_time(&path, 1_600_000_000, 7);
    }
    set_time(&source, 1_600_000_000, 7);
    scratch.ok("create tank/cut");
    let server = Server::start(&scratch, "[m]\npath = tank/cut\nread only = no\ntimeout = 30\n");
    let from = format!("{}/", source.display());
    for wait in [300, 700, 1500] {
        let mut command = Command::new("rsync");
        command.args(["--port", &server.port.to_string(), "-a", "--bwlimit=2M", &from, "localhost::m/"]);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let children: Vec<_> = (0..2)
        .map(|at| {
            let to = format!("localhost::m/{at}/");
            server.client(&["-a", &from, &to]).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    server.push(&["-a"], &from, "m/");
    let result = restored(&scratch, "tank/cut");
    assert_same(&source, &result.join("0"), "one");
    assert_same(&source, &result.join("1"), "the other");
    assert!(snapshots(&scratch, "tank/cut").iter().all(|name| !name.ends_with("_partial")));
    drop(server);
    scratch.ok("check tank");
}
