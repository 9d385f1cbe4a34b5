//! The protocol versions of rsync 2.6: stock rsync (Debian: rsync) pushes with them into datasets, and serves with them
//! as a daemon. Ignored by a plain `cargo test`: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::io::{Read, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use common::rsync::{Server, StockDaemon, restored, snapshots};
use common::{Said, Scratch};
use trees::{assert_same_but_for_nanoseconds, disturb, grow_old, manifest};

const VERSIONS: [u8; 3] = [27, 28, 29];

/// The port of a proxy for a daemon. It replaces both greetings, so that each side believes that the other has this
/// version.
fn older(daemon: u16, version: u8) -> u16 {
    fn pass_on(mut from: TcpStream, mut to: TcpStream, version: u8) {
        std::thread::spawn(move || {
            // The greeting is one line.
            let mut byte = [0];
            while from.read_exact(&mut byte).is_ok() && byte != [b'\n'] {}
            let _ = to.write_all(format!("@RSYNCD: {version}\n").as_bytes());
            let _ = copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", daemon)).unwrap();
            pass_on(client.try_clone().unwrap(), server.try_clone().unwrap(), version);
            pass_on(server, client, version);
        }
    });
    port
}

fn names(root: &Path) -> String {
    let names = manifest(root).into_keys().map(|path| path.display().to_string());
    names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" ")
}

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn pushes_of_old_versions_are_received() {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    grow_old(&source, 41);
    let from = format!("{}/", source.display());
    scratch.ok("create tank/m");
    let server = Server::start(&scratch, "[m]\npath = tank/m\nread only = no\nkeep snapshots = 1\n");
    let variants: &[&[&str]] = &[
        &[],
        &["-c"],
        &["-z", "--delete-before"],
        &["--inplace", "--no-W"],
        &["-I", "--no-W", "-z", "-B", "700", "--delete-after"],
        &["-S", "--delete-excluded", "--exclude=/nothing"],
        &["--numeric-ids", "--partial", "--timeout=20", "--bwlimit=100m"],
    ];
    for version in VERSIONS {
        let dialect = format!("--protocol={version}");
        for (at, variant) in variants.iter().enumerate() {
            let args = [&["-aH", "--delete", &dialect][..], variant].concat();
            let (to, place) = (format!("m/{version}-{at}/"), format!("{version}-{at}"));
            let same = |tree: &Path, what: &str| {
                let copy = restored(&scratch, "tank/m").join(&place);
                assert_same_but_for_nanoseconds(tree, &copy, &format!("{args:?}, {what}"));
            };
            server.push(&args, &from, &to);
            same(&source, "new");
            // The tree changes back from a different one.
            let other = scratch.path().join("other");
            fs::rename(restored(&scratch, "tank/m").join(&place), &other).unwrap();
            disturb(&other, at as u64);
            server.push(&["-aH", "--delete"], &format!("{}/", other.display()), &to);
            fs::remove_dir_all(&other).unwrap();
            server.push(&args, &from, &to);
            same(&source, "again");
            let before = snapshots(&scratch, "tank/m");
            server.push(&["-aH", "--delete", &dialect], &from, &to);
            assert_eq!(snapshots(&scratch, "tank/m"), before, "{args:?}: nothing to do");
        }
    }
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs rsync and root"]
fn old_versions_have_their_ways() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    let source = home.join("source");
    fs::create_dir_all(source.join("a/empty")).unwrap();
    fs::create_dir_all(source.join("a-b")).unwrap();
    for name in ["-first", "a/x.o", "a/x.c", "a-b/y.o", "z"] {
        fs::write(source.join(name), name.repeat(50_000)).unwrap();
    }
    let from = format!("{}/", source.display());
    scratch.ok("create tank/m");
    let server = Server::start(&scratch, "[m]\npath = tank/m\nread only = no\n");
    for version in VERSIONS {
        let (dialect, to) = (format!("--protocol={version}"), format!("m/{version}/"));
        let push = |args: &[&str]| server.push(&[args, &["-a", &dialect]].concat(), &from, &to);
        let there = || names(&restored(&scratch, "tank/m").join(version.to_string()));
        if version == 29 {
            push(&["--prune-empty-dirs"]);
            assert_eq!(there(), "-first a a/x.c a/x.o a-b a-b/y.o z");
        }
        fs::write(source.join("new"), "new").unwrap();
        push(&["--exclude=/new"]);
        let before = snapshots(&scratch, "tank/m");
        push(&["-n"]);
        assert_eq!(snapshots(&scratch, "tank/m"), before, "{version}");
        // Excluded files are protected, or with `--delete-excluded` not.
        push(&["--delete", "--exclude=*.o"]);
        assert_eq!(there(), "-first a a/empty a/x.c a/x.o a-b a-b/y.o new z", "{version}");
        push(&["--delete-excluded", "--exclude=*.o"]);
        assert_eq!(there(), "-first a a/empty a/x.c a-b new z", "{version}");
        // An interrupted file is continued.
        fs::write(source.join("new"), "newer").unwrap();
        push(&["--append"]);
        assert_eq!(fs::read(restored(&scratch, "tank/m").join(format!("{version}/new"))).unwrap(), b"newer");
        // A file that the client may not read is skipped, and the push continues.
        fs::write(source.join("a/secret"), "secret").unwrap();
        fs::set_permissions(source.join("a/secret"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(source.join("a-b/y.o"), "changed").unwrap();
        let to = format!("localhost::{to}");
        let mut command = server.client(&["-rt", &dialect, &from, &to]);
        let said = Said::of({
            command.uid(65534).gid(65534);
            command
        });
        assert!(said.code == 23 && said.err.contains("a/secret"), "{version}: {said:?}");
        assert_eq!(there(), "-first a a/empty a/x.c a/x.o a-b a-b/y.o new z", "{version}");
        fs::remove_file(source.join("a/secret")).unwrap();
        fs::remove_file(source.join("new")).unwrap();
    }
    // Version 29 has messages for deleted files and for files that may be removed.
    let gone = home.join("gone");
    fs::create_dir(&gone).unwrap();
    fs::write(gone.join("f"), "f").unwrap();
    let from = format!("{}/", gone.display());
    server.push(&["-a", "--protocol=29", "--remove-source-files"], &from, "m/gone/");
    assert!(!gone.join("f").exists());
    let told = server.push(&["-ai", "--protocol=29", "--delete"], &from, "m/gone/");
    assert!(told.contains("*deleting   f"), "{told}");
    scratch.ok("check tank");
}

/// In both directions and with every version, the trees are identical in the end.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn old_daemons_are_synced_with() {
    let scratch = Scratch::with_pool();
    let (source, copies) = (scratch.path().join("source"), scratch.path().join("copies"));
    grow_old(&source, 43);
    fs::create_dir(&copies).unwrap();
    let modules = format!(
        "[m]\npath = {}\n[w]\npath = {}\nread only = no\nuse chroot = yes\n",
        source.display(),
        copies.display()
    );
    let daemon = StockDaemon::start(&scratch, &modules);
    for version in VERSIONS {
        let url = |path: &str| format!("rsync://127.0.0.1:{}/{path}", older(daemon.port, version));
        for (at, args) in [&[][..], &["--compress", "-c"]].iter().enumerate() {
            let (dataset, place) = (format!("tank/v{version}-{at}"), format!("{version}-{at}"));
            let sync = |more: &[&str]| {
                let mut command = scratch.command("sync");
                command.args(*args).args(more);
                let said = Said::of(command);
                assert_eq!((said.code, said.err.as_str()), (0, ""), "{version} {more:?}: {said:?}");
                said.out
            };
            sync(&[&url("m"), &dataset]);
            let same = |a: &Path, b: &Path, what: &str| {
                assert_same_but_for_nanoseconds(a, b, &format!("{version} {args:?}, {what}"));
            };
            same(&source, &restored(&scratch, &dataset), "pulled");
            sync(&["--delete", &dataset, &url(&format!("w/{place}"))]);
            same(&source, &copies.join(&place), "pushed");
            disturb(&copies.join(&place), at as u64);
            let other = restored(&scratch, &dataset);
            disturb(&other, at as u64 + 9);
            scratch.ok(&format!("import -F {} {dataset}", other.display()));
            sync(&[&url("m"), &dataset]);
            same(&source, &restored(&scratch, &dataset), "pulled again");
            sync(&["--delete", &dataset, &url(&format!("w/{place}"))]);
            same(&source, &copies.join(&place), "pushed again");
            let before = snapshots(&scratch, &dataset);
            sync(&[&url("m"), &dataset]);
            assert_eq!(snapshots(&scratch, &dataset), before, "{version}: nothing to do");
        }
    }
    scratch.ok("check tank");
}

/// A replacement for ssh to a machine whose rsync has this version. With `None` it is newer but lacks some options: it
/// supports neither `-s` nor ACLs nor extended attributes. Before version 29 it also lacks some options for deletion.
fn old_shell(scratch: &Scratch, version: Option<u8>) -> String {
    let unknown = if version.is_none_or(|version| version >= 29) {
        ""
    } else {
        " | *--delete-during* | *--log-format*"
    };
    let dialect = version.map(|version| format!(" --protocol={version}")).unwrap_or_default();
    let text = format!(
        "case \" $* \" in\n*' -s '* | *HAX*{unknown}) echo 'rsync: -s: unknown option' >&2; exit 1;;\nesac\n\
         line=\"$*\"\nexec sh -c \"rsync --server{dialect}${{line#rsync --server}}\""
    );
    let name = format!("shell-{}", version.unwrap_or_default());
    common::rsync::script(scratch, &name, &text).display().to_string()
}

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn old_machines_are_synced_with() {
    let scratch = Scratch::with_pool();
    let (source, copies) = (scratch.path().join("it's $HOME; a  source"), scratch.path().join("copies"));
    grow_old(&source, 47);
    fs::create_dir(&copies).unwrap();
    let there = |path: &Path| format!("host:rsync:{}", path.display());
    for version in VERSIONS {
        let shell = old_shell(&scratch, Some(version));
        for (at, args) in [&[][..], &["--compress", "-c", "-v"]].iter().enumerate() {
            let (dataset, copy) = (format!("tank/v{version}-{at}"), copies.join(format!("{version}-{at}")));
            let sync = |more: &[&str]| {
                let mut command = scratch.command("sync");
                command.args(["-e", &shell]).args(*args).args(more);
                let said = Said::of(command);
                let told =
                    "the rsync of 'host' is older than 3.0: continuing without ACLs, extended attributes";
                assert!(said.code == 0 && said.err.contains(told), "{version} {more:?}: {said:?}");
            };
            let same = |a: &Path, b: &Path, what: &str| {
                assert_same_but_for_nanoseconds(a, b, &format!("{version} {args:?}, {what}"));
            };
            sync(&[&there(&source), &dataset]);
            same(&source, &restored(&scratch, &dataset), "pulled");
            sync(&["--delete", &dataset, &there(&copy)]);
            same(&source, &copy, "pushed");
            disturb(&copy, at as u64);
            sync(&["--delete", &dataset, &there(&copy)]);
            same(&source, &copy, "pushed again");
            let before = snapshots(&scratch, &dataset);
            sync(&[&there(&source), &dataset]);
            assert_eq!(snapshots(&scratch, &dataset), before, "{version}: nothing to do");
        }
    }
    // A server that refuses options but could use a newer version is not treated as old.
    for shell in
        [old_shell(&scratch, None), common::rsync::script(&scratch, "no", "exit 1").display().to_string()]
    {
        for ends in [[there(&source), "tank/no".to_owned()], ["tank/v29-0".to_owned(), there(&copies)]] {
            let mut command = scratch.command("sync");
            command.args(["-e", &shell]).args(ends);
            let said = Said::of(command);
            assert!(
                said.code == 1 && said.err.contains("'rsync' there does not support the required options"),
                "{said:?}"
            );
        }
    }
    scratch.ok("check tank");
}
