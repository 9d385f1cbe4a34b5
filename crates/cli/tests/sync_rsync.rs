//! Syncs with stock rsync (Debian: rsync) as the server: its daemon, and over pipes instead of a remote shell. Tests
//! that need rsync are ignored by a plain `cargo test`: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::rsync::{StockDaemon, restored, snapshots};
use common::{Said, Scratch};
use trees::{Random, assert_same, assert_same_but_for_nanoseconds, disturb, grow, set_time};

/// Like the functions in `common::rsync`, but returns the command as a string.
fn script(scratch: &Scratch, name: &str, text: &str) -> String {
    common::rsync::script(scratch, name, text).display().to_string()
}

fn shell(scratch: &Scratch) -> String {
    common::rsync::stock_shell(scratch).display().to_string()
}

/// A command that lets only the first bytes of a server's output through.
fn cutting(bytes: u64) -> String {
    format!("sh -c \"$*\" 2>/dev/null | dd bs=64K count={bytes} iflag=count_bytes status=none")
}

fn sync(scratch: &Scratch, args: &[&str]) -> Said {
    let mut command = scratch.command("sync");
    command.args(args);
    Said::of(command)
}

/// A sync that must succeed without warnings. Returns its output.
fn synced(scratch: &Scratch, args: &[&str]) -> String {
    let said = sync(scratch, args);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}: {said:?}");
    said.out
}

fn figures(scratch: &Scratch, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&synced(scratch, &[&["--json"], args].concat())).unwrap()
}

/// With every connection and version, the dataset equals the directory. A second sync does nothing.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_are_pulled() {
    let scratch = Scratch::with_pool();
    let (shell, source) = (shell(&scratch), scratch.path().join("source"));
    grow(&source, 41);
    let daemon = StockDaemon::start(&scratch, &format!("[m]\npath = {}\n", source.display()));
    let there = format!("host:rsync:{}", source.display());
    let (module, by_shell) = (daemon.url("m"), ["-e", &shell]);
    let variants: &[(&[&str], &str)] = &[
        (&[], &module),
        (&["--compress", "-c"], &module),
        (&by_shell, &there),
        (&["-e", &shell, "--remote-command", "rsync --protocol=31"], &there),
        (&["-e", &shell, "--remote-command", "rsync --protocol=30"], &there),
        (&["-e", &shell, "--compress", "--timeout=0"], &there),
    ];
    for (at, (args, from)) in variants.iter().enumerate() {
        let dataset = format!("tank/new/d{at}");
        let args = [*args, &["-o", "acltype=posix", from, &dataset]].concat();
        let same = |what: &str| {
            let compare = if at == 4 { assert_same_but_for_nanoseconds } else { assert_same };
            compare(&source, &restored(&scratch, &dataset), &format!("{args:?}, {what}"));
        };
        assert_eq!(synced(&scratch, &args), "", "{args:?}");
        same("new");
        // The tree changes back from a different one.
        let other = restored(&scratch, &dataset);
        disturb(&other, at as u64);
        scratch.ok(&format!("import -F {} {dataset}", other.display()));
        synced(&scratch, &args);
        same("again");
        let before = snapshots(&scratch, &dataset);
        let told = figures(&scratch, &args);
        assert_eq!((&told["snapshot"], &told["files"]), (&serde_json::Value::Null, &0.into()), "{args:?}");
        assert_eq!(snapshots(&scratch, &dataset), before, "{args:?}: nothing to do");
    }
    scratch.ok("check tank");
}

/// Only the changed part of a large file is sent and written.
#[test]
#[ignore = "needs rsync"]
fn a_touched_file_costs_what_was_touched() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut content = Random(7).bytes(100 << 20);
    fs::write(source.join("big"), &content).unwrap();
    set_time(&source.join("big"), 1_000_000, 0);
    let daemon = StockDaemon::start(&scratch, &format!("[m]\npath = {}\n", source.display()));
    synced(&scratch, &[&daemon.url("m"), "tank/big"]);
    for at in [5 << 20, 50 << 20, 99 << 20] {
        content[at..at + 100].fill(1);
    }
    content.extend(b"more");
    fs::write(source.join("big"), &content).unwrap();
    let told = figures(&scratch, &[&daemon.url("m"), "tank/big"]);
    let newest = snapshots(&scratch, "tank/big").pop().unwrap();
    assert_eq!(told["snapshot"], newest.as_str());
    let written: u64 = scratch.ok(&format!("get -Hpo value written {newest}")).trim().parse().unwrap();
    assert!(written < 1 << 20, "{written} bytes");
    assert!(
        told["received"].as_u64().unwrap() < 300_000 && told["literal"].as_u64().unwrap() < 200_000,
        "{told}"
    );
    assert_eq!(fs::read(restored(&scratch, "tank/big").join("big")).unwrap(), content);
    scratch.ok("check tank");
}

/// Wherever a connection is cut, files are complete or unchanged. The next sync continues.
#[test]
#[ignore = "needs rsync"]
fn what_is_cut_off_goes_on_where_it_was() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    for at in 0..30 {
        let path = source.join(format!("{at:02}"));
        fs::write(&path, Random(at).bytes(100_000)).unwrap();
        set_time(&path, 1_600_000_000, 7);
    }
    set_time(&source, 1_600_000_000, 7);
    let from = format!("host:rsync:{}", source.display());
    let mut random = Random(99);
    for at in 0..12 {
        // For the first three datasets the cuts together are shorter than the data. New datasets are cut anywhere.
        let new = format!("tank/n{at}");
        let (dataset, end) = [
            ("tank/c0", random.below(600)),
            ("tank/c1", random.below(4000)),
            ("tank/c2", random.below(900_000)),
            (new.as_str(), random.below(2_900_000)),
        ][at % 4];
        let cut = script(&scratch, "cut", &cutting(end));
        let said = sync(&scratch, &["-e", &cut, "--retries=0", "--timeout=3", &from, dataset]);
        assert!(said.code == 1 && said.err.contains("cannot sync"), "{end}: {said:?}");
        if scratch.run(&format!("list {dataset}")).code != 0 {
            continue;
        }
        let Some(newest) = snapshots(&scratch, dataset).pop() else { continue };
        assert!(newest.ends_with("_partial"), "{newest}");
        for entry in fs::read_dir(restored(&scratch, dataset)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            assert_eq!(fs::read(&path).unwrap(), fs::read(source.join(name)).unwrap(), "{end} {name:?}");
        }
    }
    let shell = shell(&scratch);
    for dataset in ["tank/c0", "tank/c1", "tank/c2", "tank/n3", "tank/n7", "tank/n11"] {
        synced(&scratch, &["-e", &shell, &from, dataset]);
        assert_same(&source, &restored(&scratch, dataset), dataset);
        assert!(snapshots(&scratch, dataset).iter().all(|name| !name.ends_with("_partial")));
    }
    // The sync connects again by itself.
    let once = format!(
        "test -e {0}/cut-once || {{ touch {0}/cut-once; {1}; exit; }}\nexec sh -c \"$*\"",
        scratch.path().display(),
        cutting(500_000)
    );
    let once = script(&scratch, "once", &once);
    let said = sync(&scratch, &["-e", &once, "--timeout=3", &from, "tank/again"]);
    assert!(said.code == 0 && said.err.contains("trying again in 1 s"), "{said:?}");
    assert_same(&source, &restored(&scratch, "tank/again"), "again");
    scratch.ok("check tank");
}

/// Servers that are not rsync, send nothing, or send too much: the sync ends with a clear message, and nothing is
/// received.
#[test]
fn servers_are_hostile() {
    let scratch = Scratch::with_pool();
    let daemon = |says: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(says);
            // Until the client closes the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        format!("rsync://127.0.0.1:{port}/m")
    };
    for (says, why) in [
        (&b"SSH-2.0-x\r\n"[..], "this is no rsync daemon"),
        (b"@RSYNCD: 32.0 md5\n@ERROR: \x1b[31mgo away\n", "?[31mgo away"),
        (b"@RSYNCD: 26.0\n", "older than"),
        (b"@RSYNCD: 32.0 md5\n@RSYNCD: AUTHREQD abc\n", "needs a password"),
        (b"@RSYNCD: 32.0 md5\n", "sent nothing"),
        (b"@RSYNCD: 32.0 md5\n@RSYNCD: OK\n", "sent nothing for 1 s"),
        // The server would use something that the client did not ask for.
        (b"@RSYNCD: 32.0 md5\n@RSYNCD: OK\n\x83\xff\x06xxh128\0\0\0\0", "not asked for"),
        // A list with a file that leads out of the tree.
        (
            b"@RSYNCD: 31.0 md5\n@RSYNCD: OK\n\x00\0\0\0\0\x20\0\0\x07\x01\x07../evil\0\0\x05\0\0\0\0\0\xa4\x81\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            "unsafe pathname",
        ),
        // A message of an unknown kind.
        (b"@RSYNCD: 31.0 md5\n@RSYNCD: OK\n\x00\0\0\0\0\x20\0\0\x01zzzz", "cannot sync"),
    ] {
        let url = daemon(says);
        let said = sync(&scratch, &["--retries=0", "--timeout=1", &url, "tank/evil"]);
        assert!(said.code == 1 && said.err.contains(why) && !said.err.contains('\x1b'), "{why}: {said:?}");
        assert_ne!(scratch.run("list tank/evil").code, 0, "{why}");
    }
    for (does, why) in [
        ("echo Welcome to this machine; exec cat > /dev/null", "is your shell clean"),
        ("yes", "is your shell clean"),
        ("exit 255", "could not connect"),
        ("exit 127", "'rsync' is not in its PATH"),
        ("exec sleep 30", "sent nothing for 1 s"),
        ("cat", "cannot sync"),
    ] {
        let rsh = script(&scratch, "evil", does);
        let begun = Instant::now();
        let said = sync(&scratch, &["--retries=0", "--timeout=1", "-e", &rsh, "host:rsync:/", "tank/evil"]);
        assert!(said.code == 1 && said.err.contains(why), "{does}: {said:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{does}");
        assert_ne!(scratch.run("list tank/evil").code, 0, "{does}");
    }
    scratch.ok("check tank");
}

/// Invalid arguments are reported before anything is done.
#[test]
fn what_cannot_be_is_told() {
    let scratch = Scratch::with_pool();
    for (args, code, why) in [
        (&["rsync://a/m", "rsync://b/m"][..], 1, "the other must be a dataset of this machine"),
        (&["rsync://a/m", "./dir"], 1, "the other must be a dataset of this machine"),
        (&["rsync://a/m", "host:tank/x"], 1, "the other must be a dataset of this machine"),
        (&["rsync://a/m", "zfs:tank/x"], 1, "the other must be a dataset of this machine"),
        (&["rsync://a/m", "tank/x@y"], 1, "not a snapshot"),
        (&["rsync://a/m", "lake/x"], 1, "no such pool"),
        (&["rsync://a", "tank/x"], 2, "the module is missing"),
        (&["-r", "rsync://a/m", "tank/x"], 2, "--recursive is not supported for rsync servers"),
        (&["-F", "rsync://a/m", "tank/x"], 2, "--force is not supported for rsync servers"),
        (&["--filter=nonsense", "rsync://a/m", "tank/x"], 2, "Unknown filter rule"),
        (&["--delete", "tank/a", "tank/b"], 2, "--delete is only for rsync servers"),
        (&["--filter=- x", "tank/a", "/srv/b"], 2, "--filter is only for rsync servers"),
    ] {
        let said = sync(&scratch, args);
        assert!(said.code == code && said.err.contains(why), "{args:?}: {said:?}");
    }
}

/// If a machine has no snowmelt, `host:/path` uses its rsync, in both directions.
#[test]
#[ignore = "needs rsync"]
fn machines_without_snowmelt_are_asked_through_their_rsync() {
    let scratch = Scratch::with_pool();
    let (shell, home) = (shell(&scratch), scratch.path());
    fs::create_dir_all(home.join("source/sub")).unwrap();
    fs::write(home.join("source/sub/f"), b"one").unwrap();
    let (there, copy) = (home.join("source").display().to_string(), home.join("copy"));
    let (from, to) = (format!("host:{there}"), format!("host:{}", copy.display()));
    let note = |said: &Said| {
        said.err.lines().filter(|line| line.ends_with("'host' has no snowmelt: using its rsync")).count()
    };
    let said = sync(&scratch, &["-e", &shell, "--json", &from, "tank/www"]);
    assert_eq!((said.code, note(&said)), (0, 1), "{said:?}");
    let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&told["through"], &told["source"]), (&"rsync".into(), &from.as_str().into()), "{told}");
    assert_eq!(told["snapshot"], snapshots(&scratch, "tank/www")[0].as_str());
    assert_eq!(fs::read(restored(&scratch, "tank/www").join("sub/f")).unwrap(), b"one");
    // The next sync works in this way, and with the explicit form.
    fs::write(home.join("source/sub/f"), b"other").unwrap();
    assert_eq!(sync(&scratch, &["-e", &shell, &from, "tank/www"]).code, 0);
    assert_eq!(snapshots(&scratch, "tank/www").len(), 2);
    synced(&scratch, &["-e", &shell, &format!("host:rsync:{there}"), "tank/www"]);
    assert_eq!(snapshots(&scratch, "tank/www").len(), 2);
    // The other direction: nothing is deleted without `--delete`.
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("kept"), b"kept").unwrap();
    let said = sync(&scratch, &["-e", &shell, "tank/www", &to]);
    assert_eq!((said.code, note(&said)), (0, 1), "{said:?}");
    assert_eq!(fs::read(copy.join("sub/f")).unwrap(), b"other");
    assert!(copy.join("kept").exists());
    assert_eq!(sync(&scratch, &["-e", &shell, "--delete", "tank/www", &to]).code, 0);
    assert!(!copy.join("kept").exists());
    // A dataset with an import is not overwritten by a sync with rsync.
    scratch.ok(&format!("import {there} tank/own@one"));
    let said = sync(&scratch, &["-e", &shell, &from, "tank/own"]);
    assert!(said.code == 1 && said.err.contains("cannot be mixed"), "{said:?}");
    assert!(said.err.contains(&format!("snowmelt sync host:rsync:{there} tank/own")), "{said:?}");
    assert_eq!(snapshots(&scratch, "tank/own").len(), 1);
    // rsync cannot transfer images.
    fs::write(home.join("disk.img"), [0; 4096]).unwrap();
    let image = format!("host:{}", home.join("disk.img").display());
    let said = sync(&scratch, &["-e", &shell, &image, "tank/disk"]);
    assert!(said.code == 1 && said.err.contains("Not a directory"), "{said:?}");
    assert_ne!(scratch.run("list tank/disk").code, 0);
    scratch.ok("check tank");
}

/// If rsync is missing too, the message names both programs, or only the one that was asked for.
#[test]
fn machines_that_have_neither_are_told() {
    let scratch = Scratch::with_home();
    let rsh = script(&scratch, "bare", "exit 127");
    let neither = "neither 'snowmelt' nor 'rsync' is in its PATH";
    let only = "'snowmelt' is not in its PATH";
    for (args, why) in [
        (&["host:/srv/www", "tank/www"][..], neither),
        (&["tank/home", "host:/srv/www"], neither),
        (
            &["-F", "host:/srv/www", "tank/www"],
            "its rsync failed too: --force is not supported for rsync servers",
        ),
        (
            &["-r", "tank/home", "host:/srv/www"],
            "its rsync failed too: --recursive is not supported for rsync servers",
        ),
        (
            &["--remote-command=/opt/snowmelt", "host:/srv/www", "tank/www"],
            "'/opt/snowmelt' is not in its PATH",
        ),
        (&["tank/home", "host:/srv/www.zstream"], only),
        (&["host:/srv/www", "zfs:rpool/www"], only),
        (&["host:/srv/www", "other:back/www"], only),
        (&["host:far/www", "tank/www"], only),
    ] {
        let said = sync(&scratch, &[&["-e", &rsh], args].concat());
        assert!(said.code == 1 && said.err.contains(why), "{args:?}: {said:?}");
        assert!(!said.err.contains("using its rsync") || why == neither, "{args:?}: {said:?}");
        assert_ne!(scratch.run("list tank/www").code, 0, "{args:?}");
    }
    scratch.ok("check tank");
}

/// Passwords, modules, paths and rules work as in rsync.
#[test]
#[ignore = "needs rsync"]
fn daemons_are_asked_as_rsync_asks_them() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    fs::create_dir_all(home.join("source/sub/deep")).unwrap();
    for name in ["a", "b.o", "sub/c", "sub/d.o", "sub/deep/e"] {
        fs::write(home.join("source").join(name), name).unwrap();
    }
    let secrets = home.join("secrets");
    fs::write(&secrets, "joe:open sesame\n").unwrap();
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).unwrap();
    let source = home.join("source").display().to_string();
    let daemon = StockDaemon::start(
        &scratch,
        &format!(
            "[m]\npath = {source}\n[locked]\npath = {source}\nauth users = joe\nsecrets file = {}\n[gone]\npath = \
             /nowhere/at/all\n",
            secrets.display()
        ),
    );
    let names = |dataset: &str| {
        let restored = restored(&scratch, dataset);
        let names = trees::manifest(&restored).into_keys().map(|path| path.display().to_string());
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" ")
    };
    synced(&scratch, &[&daemon.url("m/sub/"), "tank/sub"]);
    assert_eq!(names("tank/sub"), "c d.o deep deep/e");
    synced(&scratch, &["--exclude=*.o", "--filter=- /sub/deep/", &daemon.url("m"), "tank/some"]);
    assert_eq!(names("tank/some"), "a sub sub/c");
    let told = synced(&scratch, &["-v", &daemon.url("m"), "tank/some"]);
    assert!(told.contains(">f+++++++++ sub/deep/e\n") && told.contains("3 files transferred"), "{told}");
    fs::remove_file(home.join("source/a")).unwrap();
    let before = snapshots(&scratch, "tank/some");
    let told = synced(&scratch, &["-n", &daemon.url("m"), "tank/some"]);
    assert!(told.contains("*deleting   a\n"), "{told}");
    assert_eq!(snapshots(&scratch, "tank/some"), before);
    synced(&scratch, &[&daemon.url("m"), "tank/some"]);
    assert!(!names("tank/some").starts_with("a "));
    // Data that others wrote is kept.
    scratch.ok("set readonly=on tank/some");
    synced(&scratch, &[&daemon.url("m"), "tank/some"]);
    let locked = daemon.url("locked").replace("rsync://", "rsync://joe@");
    let file = home.join("password");
    fs::write(&file, "open sesame\n").unwrap();
    let with_file = format!("--password-file={}", file.display());
    let said = sync(&scratch, &[&with_file, &locked, "tank/locked"]);
    assert!(said.code == 1 && said.err.contains("other users can read it"), "{said:?}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    synced(&scratch, &[&with_file, &locked, "tank/locked"]);
    let mut command = scratch.command("sync");
    command.args([&locked, "tank/locked"]).env("RSYNC_PASSWORD", "open sesame");
    assert_eq!(Said::of(command).code, 0);
    let mut command = scratch.command("sync");
    command.args([&locked, "tank/locked"]).env("RSYNC_PASSWORD", "wrong");
    let said = Said::of(command);
    assert!(said.code == 1 && said.err.contains("auth failed"), "{said:?}");
    // The user at the terminal is asked, and the typed password is not shown.
    let line = format!("{} sync {locked} tank/locked", env!("CARGO_BIN_EXE_snowmelt"));
    let own = scratch.command("sync");
    let mut at_terminal = Command::new("script");
    at_terminal.args(["-qec", &line, "/dev/null"]).env_remove("RSYNC_PASSWORD");
    at_terminal.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    at_terminal.current_dir(scratch.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = at_terminal.spawn().unwrap();
    let (mut typed, mut shown) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"': ") && shown.read(&mut byte).unwrap() > 0 {
        text.push(byte[0]);
    }
    typed.write_all(b"open sesame\n").unwrap();
    shown.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(child.wait().unwrap().success() && text.contains("Password for"), "{text}");
    assert!(!text.contains("sesame"), "{text}");
    for (path, why) in [
        ("locked", "needs a password"),
        ("nothing", "Unknown module"),
        ("gone", "the daemon says"),
        ("m/nothing", "No such file or directory"),
        ("m/sub/c", "Not a directory"),
    ] {
        let said = sync(&scratch, &[&daemon.url(path), "tank/none"]);
        assert!(said.code == 1 && said.err.contains(why), "{path}: {said:?}");
        assert_ne!(scratch.run("list tank/none").code, 0, "{path}");
    }
    scratch.ok("check tank");
}

/// If another process owns the pool, that process receives.
#[test]
#[ignore = "needs rsync"]
fn the_owner_of_a_pool_goes_on() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), b"f").unwrap();
    // The owner waits for the rest of a stream.
    let stream = fs::read(common::demo("full.zstream")).unwrap();
    let mut owner = scratch.command("receive tank/home");
    let mut owner = owner.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = owner.stdin.take().unwrap();
    input.write_all(&stream[..1000]).unwrap();
    let begun = Instant::now();
    let owns = |process: u32| {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
        descriptors.into_iter().any(|one| fs::read_link(one.path()).is_ok_and(|file| file.ends_with("lock")))
    };
    while !owns(owner.id()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody owns the pool");
        std::thread::sleep(Duration::from_millis(20));
    }
    let from = format!("host:rsync:{}", source.display());
    let told = figures(&scratch, &["-e", &shell(&scratch), &from, "tank/owned"]);
    assert_eq!(told["files"], 1, "{told}");
    input.write_all(&stream[1000..]).unwrap();
    drop(input);
    assert!(owner.wait().unwrap().success());
    assert_eq!(fs::read(restored(&scratch, "tank/owned").join("f")).unwrap(), b"f");
    scratch.ok("check tank");
}

/// With every connection and version, the directory gets the contents of the snapshot. A second sync sends nothing.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_are_pushed() {
    let scratch = Scratch::with_pool();
    let (shell, source) = (shell(&scratch), scratch.path().join("source"));
    grow(&source, 43);
    scratch.ok("create -o acltype=posix tank/www");
    scratch.ok(&format!("import {} tank/www@one", source.display()));
    let copies = scratch.path().join("copies");
    fs::create_dir(&copies).unwrap();
    let daemon = StockDaemon::start(
        &scratch,
        &format!("[w]\npath = {}\nread only = no\nuse chroot = yes\n", copies.display()),
    );
    let variants: &[(&[&str], &str)] = &[
        (&[], "tank/www@"),
        (&["--compress", "-c"], "tank/www@one"),
        (&["-e", &shell], "tank/www"),
        (&["-e", &shell, "--remote-command", "rsync --protocol=31"], "tank/www@"),
        (&["-e", &shell, "--remote-command", "rsync --protocol=30"], "tank/www@"),
        (&["-e", &shell, "--compress"], "tank/www@one"),
    ];
    for (at, (args, from)) in variants.iter().enumerate() {
        let copy = copies.join(at.to_string());
        let to = match args.contains(&"-e") {
            true => format!("host:rsync:{}", copy.display()),
            false => daemon.url(&format!("w/{at}")),
        };
        let args = [*args, &["--delete", from, &to]].concat();
        let same = |what: &str| {
            let compare = if at == 4 { assert_same_but_for_nanoseconds } else { assert_same };
            compare(&source, &copy, &format!("{args:?}, {what}"));
        };
        assert_eq!(synced(&scratch, &args), "", "{args:?}");
        same("new");
        disturb(&copy, at as u64);
        let told = synced(&scratch, &[&["-v"], &args[..]].concat());
        assert!(told.contains("*deleting   superfluous\n"), "{told}");
        same("again");
        let told = figures(&scratch, &args);
        assert_eq!((&told["files"], &told["literal"]), (&0.into(), &0.into()), "{args:?}: {told}");
        // Without --delete nothing is deleted.
        fs::write(copy.join("kept"), b"x").unwrap();
        synced(&scratch, &[args[..args.len() - 3].to_vec(), args[args.len() - 2..].to_vec()].concat());
        assert!(copy.join("kept").exists(), "{args:?}");
    }
    scratch.ok("check tank");
}

/// Errors and restrictions of the other side are reported.
#[test]
#[ignore = "needs rsync and root"]
fn pushes_that_fail_are_told() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    fs::create_dir_all(home.join("source")).unwrap();
    fs::write(home.join("source/f"), b"f").unwrap();
    symlink("f", home.join("source/l")).unwrap();
    scratch.ok(&format!("import {} tank/www@one", home.join("source").display()));
    let open = home.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let path = open.display();
    let daemon = StockDaemon::start(
        &scratch,
        &format!("[poor]\nuid = 65534\ngid = 65534\npath = {path}\nread only = no\n[still]\npath = {path}\n"),
    );
    let said = sync(&scratch, &["tank/www@", &daemon.url("poor")]);
    assert!(said.code == 3 && said.err.contains("part of it was not transferred"), "{said:?}");
    assert_eq!(fs::read(open.join("f")).unwrap(), b"f");
    let said = sync(&scratch, &["tank/www@", &daemon.url("still")]);
    assert!(said.code == 1 && said.err.contains("read only"), "{said:?}");
    for (from, why) in [
        ("tank/www@two", "does not exist"),
        ("tank/none", "does not exist"),
        ("tank/none@", "does not exist"),
    ] {
        let said = sync(&scratch, &[from, &daemon.url("poor")]);
        assert!(said.code == 1 && said.err.contains(why), "{from}: {said:?}");
    }
    let cut = script(&scratch, "cut", &cutting(20));
    let to = format!("host:rsync:{}", Path::new(home).join("cut-copy").display());
    let said = sync(&scratch, &["-e", &cut, "--retries=0", "--timeout=3", "tank/www@", &to]);
    assert!(said.code == 1 && said.err.contains("cannot sync"), "{said:?}");
}
