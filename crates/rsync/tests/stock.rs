//! Tests with stock rsync as the client: trees are equal afterwards, whatever the options.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use common::trees::{assert_same, assert_same_but_for_nanoseconds, disturb, grow, manifest, set_time};
use common::{Server, text};

const EVERYTHING: &[&str] = &["-aHAX", "--delete"];

/// How to compare the trees after a transfer with these options.
fn assert_same_for(args: &[&str]) -> fn(&Path, &Path, &str) {
    if args.contains(&"--protocol=30") { assert_same_but_for_nanoseconds } else { assert_same }
}

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_end_identical_whatever_the_options() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    grow(&source, 1);
    let server = Server::of(&source, "");
    let variants: &[&[&str]] = &[
        &[],
        &["--no-inc-recursive"],
        &["--numeric-ids"],
        &["-z"],
        &["--zc=lz4"],
        &["--zc=zlibx"],
        &["--zc=zlib"],
        &["-zz"],
        &["--zc=zstd", "--zl=9"],
        &["-c"],
        &["--cc=md5"],
        &["--cc=md4"],
        &["--cc=sha1"],
        &["--cc=xxh64"],
        &["--cc=xxh3", "-c"],
        &["--cc=xxh128", "--no-inc-recursive"],
        &["--inplace"],
        &["--inplace", "--no-W"],
        &["-W"],
        &["-S"],
        &["--partial"],
        &["--partial-dir=.p"],
        &["--protocol=30"],
        &["--protocol=31"],
        &["--protocol=30", "-z"],
        &["--protocol=30", "--no-inc-recursive", "-c"],
        &["-U"],
        &["--delay-updates"],
        &["-s"],
        &["-B", "700"],
        &["--bwlimit=100m"],
        &["--delete-after"],
        &["--timeout=20"],
        &["-y"],
        &["--checksum-seed=77"],
    ];
    for (at, variant) in variants.iter().enumerate() {
        let target = dir.path().join(format!("target{at}"));
        let args = [EVERYTHING, variant].concat();
        server.pull(&args, "m/", &target);
        assert_same_for(variant)(&source, &target, &format!("{variant:?}, new"));
        disturb(&target, at as u64);
        server.pull(&args, "m/", &target);
        assert_same_for(variant)(&source, &target, &format!("{variant:?}, again"));
        fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn random_trees_end_identical() {
    for seed in 2..8 {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        grow(&source, seed);
        let server = Server::of(&source, "");
        server.pull(EVERYTHING, "m/", &target);
        assert_same(&source, &target, &format!("seed {seed}"));
        disturb(&target, seed);
        server.pull(EVERYTHING, "m", &target);
        assert_same(&source, &target, &format!("seed {seed}, again"));
        // Nothing is left to do.
        let output = server.rsync(&["-aHAXi", "--delete"], "m/", &target);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}

/// A proxy between a client and the server that makes the client look as if it had only these abilities.
fn with_abilities(server: &Server, abilities: &'static str) -> (u16, JoinHandle<()>) {
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.port);
    let port = listener.local_addr().unwrap().port();
    let work = move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let (mut answers, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let back = std::thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Write);
        });
        // Two lines, each of which is waited for, and arguments, which end with an empty one.
        let (mut head, mut byte) = (Vec::new(), [0]);
        for _ in 0..2 {
            while !head.ends_with(b"\n") && client.read(&mut byte).unwrap() > 0 {
                head.push(byte[0]);
            }
            server.write_all(&std::mem::take(&mut head)).unwrap();
        }
        while !head.ends_with(b"\0\0") && client.read(&mut byte).unwrap() > 0 {
            head.push(byte[0]);
        }
        let text = String::from_utf8(head).unwrap();
        assert!(text.contains("LsfxCIvu\0"), "{text}");
        server.write_all(text.replace("LsfxCIvu\0", &format!("{abilities}\0")).as_bytes()).unwrap();
        let _ = std::io::copy(&mut client, &mut server);
        let _ = server.shutdown(Shutdown::Write);
        back.join().unwrap();
    };
    (port, std::thread::spawn(work))
}

/// The abilities of the client decide what is sent. Clients of rsync 3.0 and 3.1 have fewer.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn clients_that_can_do_less_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    grow(&source, 9);
    let server = Server::of(&source, "");
    let cases: &[(&str, &[&str])] = &[
        ("Lsf", &["--protocol=30", "--no-inc-recursive"]),
        ("Lsf", &["--protocol=30", "-z"]),
        ("Lsf", &["--protocol=30", "-c", "--no-inc-recursive"]),
        ("Lsfx", &["--protocol=31", "--numeric-ids"]),
        ("LsfxC", &["-z"]),
        ("LsfxC", &["--protocol=31", "-c"]),
    ];
    for (at, (abilities, more)) in cases.iter().enumerate() {
        let target = dir.path().join(format!("target{at}"));
        for round in ["new", "again"] {
            let (port, proxy) = with_abilities(&server, abilities);
            let port = port.to_string();
            let mut command = Command::new("timeout");
            command.args(["60", "rsync", "--port", &port]).args(EVERYTHING).args(*more);
            let output = command.arg("localhost::m/").arg(&target).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{abilities} {more:?}: {output:?}");
            proxy.join().unwrap();
            assert_same_for(more)(&source, &target, &format!("{abilities} {more:?}, {round}"));
            disturb(&target, at as u64);
        }
    }
}

/// A directory with thousands of files in hundreds of directories, so that there are many lists.
#[test]
#[ignore = "needs rsync and root"]
fn large_trees_come_list_by_list() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for a in 0..40 {
        for b in 0..20 {
            let directory = source.join(format!("{a}/{b}/empty"));
            fs::create_dir_all(&directory).unwrap();
            for c in 0..5 {
                fs::write(source.join(format!("{a}/{b}/{c}")), format!("{a} {b} {c}")).unwrap();
            }
        }
    }
    fs::hard_link(source.join("1/1/1"), source.join("38/link")).unwrap();
    for directory in ["many", "more"] {
        fs::create_dir(source.join(directory)).unwrap();
        (0..3000).for_each(|at| fs::write(source.join(directory).join(at.to_string()), b"").unwrap());
    }
    // Not within the present second, in which the client writes too.
    manifest(&source).keys().for_each(|path| set_time(&source.join(path), 1_600_000_000, 7));
    let server = Server::of(&source, "");
    for args in [&["-aH"][..], &["-aH", "--no-inc-recursive"], &["-aH", "--delete", "-c"]] {
        server.pull(args, "m/", &target);
        assert_same(&source, &target, &format!("{args:?}"));
    }
}

/// A filesystem that is mounted on a directory until the end of a test.
struct Mounted(PathBuf);

impl Mounted {
    fn at(directory: PathBuf) -> Self {
        let args = ["-t", "tmpfs", "-o", "size=1m", "none"];
        assert!(Command::new("mount").args(args).arg(&directory).status().unwrap().success());
        Self(directory)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

/// Directories with another filesystem are sent without their content, or with `-xx` not at all, as stock rsync does.
#[test]
#[ignore = "needs rsync and root"]
fn other_filesystems_are_not_entered() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    for name in ["a/mounted", "a/z/deep", "b"] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("f"), name).unwrap();
    }
    let _mounted = Mounted::at(source.join("a/mounted"));
    fs::create_dir(source.join("a/mounted/d")).unwrap();
    fs::write(source.join("a/mounted/d/f"), b"elsewhere").unwrap();
    manifest(&source).keys().for_each(|path| set_time(&source.join(path), 1_600_000_000, 7));
    let server = Server::of(&source, "");
    let variants: &[&[&str]] =
        &[&["-aHx"], &["-aHxx"], &["-aHx", "--no-inc-recursive"], &["-aHxx", "--no-inc-recursive"]];
    for (at, variant) in variants.iter().enumerate() {
        let (own, target) = (dir.path().join(format!("own{at}")), dir.path().join(format!("target{at}")));
        // The receiver's own files in such a directory stay, whatever else is deleted.
        for root in [&own, &target] {
            fs::create_dir_all(root.join("a/mounted/kept")).unwrap();
            fs::write(root.join("extra"), b"").unwrap();
            set_time(&root.join("a/mounted/kept"), 1_500_000_000, 0);
        }
        let args = [*variant, &["--delete"]].concat();
        let mut command = Command::new("rsync");
        let output = command.args(&args).arg(source.join("")).arg(&own).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        server.pull(&args, "m/", &target);
        assert_same(&own, &target, &format!("{variant:?}"));
        assert!(!target.join("a/mounted/d").exists() && target.join("a/z/deep/f").exists(), "{variant:?}");
    }
}

/// The root of a transfer has no entry in the list of another directory. Its long attributes are requested all the
/// same.
#[test]
#[ignore = "needs rsync and root"]
fn long_attributes_of_the_root_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/f"), b"x").unwrap();
    let server = Server::of(&source, "");
    for (round, len) in [33_usize, 1500, 100].into_iter().enumerate() {
        for (at, path) in ["", "d", "d/f"].iter().enumerate() {
            let value = [b'0' + round as u8, b'a' + at as u8].repeat(len);
            xattr::set(source.join(path), "user.long", &value).unwrap();
            set_time(&source.join(path), 1_600_000_000, 7);
        }
        for from in ["m/", "m"] {
            server.pull(&["-aX"], from, &target);
            assert_same(&source, &target, &format!("{from}, {len} twice"));
        }
        let changed = [b'?'].repeat(len);
        xattr::set(&target, "user.long", &changed).unwrap();
        server.pull(&["-aX", "--no-inc-recursive"], "m/", &target);
        assert_same(&source, &target, &format!("all at once, {len}"));
    }
}

#[test]
#[ignore = "needs rsync and root"]
fn failures_are_told_as_stock_rsync_tells_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("closed")).unwrap();
    fs::create_dir_all(source.join("hidden/sub")).unwrap();
    for (path, mode) in [("open", 0o644), ("secret", 0o600), ("closed/f", 0o644), ("hidden/sub/f", 0o644)] {
        fs::write(source.join(path), path).unwrap();
        fs::set_permissions(source.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secrets = dir.path().join("secrets");
    fs::write(&secrets, "# who\njoe:pw\nann:x y\n").unwrap();
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(dir.path().join("motd"), "welcome\n").unwrap();
    let (path, at) = (source.display(), dir.path().display());
    let server = Server::new(&format!(
        "motd file = {at}/motd\n[m]\npath = {path}\ncomment = a module\nexclude = /hidden\nrefuse options = checksum zip* hard-links\n\
         [secret]\npath = {path}\nauth users = joe ann bad:deny\nsecrets file = {secrets}\nlist = no\nuid = 0\ngid = 0\n\
         [closed]\npath = {path}\nhosts deny = *\n[gone]\npath = {path}/none\n[off]\npath = {path}\nmax connections = -1\n\
         [logged]\npath = {path}/open\n",
        secrets = secrets.display()
    ));
    let target = dir.path().join("target");
    // Listings of modules and directories.
    let (stdout, _, code) = text(
        &Command::new("rsync").args(["--port", &server.port.to_string(), "localhost::"]).output().unwrap(),
    );
    assert_eq!((stdout.as_str(), code), ("welcome\nm              \ta module\nclosed         \t\ngone           \t\noff            \t\nlogged         \t\n".replace("closed         \t\n", "").as_str(), Some(0)));
    // Files that cannot be read. The others are there.
    let (_, stderr, code) = text(&server.rsync(&["-a"], "m/", &target));
    assert_eq!(code, Some(23), "{stderr}");
    assert!(
        stderr.contains("rsync: [sender] opendir \"closed\" (in m) failed: Permission denied (13)"),
        "{stderr}"
    );
    assert!(
        stderr
            .contains("rsync: [sender] send_files failed to open \"secret\" (in m): Permission denied (13)"),
        "{stderr}"
    );
    assert!(
        target.join("open").is_file() && !target.join("secret").exists() && !target.join("hidden").exists()
    );
    // What could not be read is not deleted at the receiver.
    fs::write(target.join("kept"), b"x").unwrap();
    let (stdout, stderr, code) = text(&server.rsync(&["-a", "--delete-after"], "m/", &target));
    assert_eq!(code, Some(23), "{stderr}");
    assert!(target.join("kept").exists() && stdout.contains("IO error encountered"), "{stdout} {stderr}");
    for (args, from, code, message) in [
        (&["-a"][..], "none/", 5, "@ERROR: Unknown module 'none'"),
        (&["-a"], "closed/", 5, "@ERROR: access denied to closed from "),
        (&["-a"], "gone/", 5, "@ERROR: chdir failed"),
        (&["-a"], "off/", 5, "@ERROR: module is disabled"),
        (
            &["-a"],
            "m/missing",
            23,
            "rsync: [sender] link_stat \"missing\" (in m) failed: No such file or directory (2)",
        ),
        (
            &["-a"],
            "m/hidden/sub",
            23,
            "link_stat \"hidden/sub\" (in m) failed: No such file or directory (2)",
        ),
        (
            &["-a"],
            "m/../../etc/passwd",
            23,
            "link_stat \"etc/passwd\" (in m) failed: No such file or directory (2)",
        ),
        (&["-ac"], "m/", 4, "The server is configured to refuse --checksum (-c)"),
        (&["-aH"], "m/", 4, "The server is configured to refuse --hard-links (-H)"),
        (&["-M--frobnicate", "-a"], "m/", 1, "rsync: on remote machine: --frobnicate: unknown option"),
        (&["-a", "--remove-source-files"], "m/open", 1, "cannot be used with a read-only module"),
        (&["-a", "--protocol=26"], "m/", 5, "@ERROR: protocol version mismatch"),
        (&["-a"], "secret/", 5, "@ERROR: auth failed on module secret"),
    ] {
        let mut command = Command::new("timeout");
        command.env("RSYNC_PASSWORD", "wrong").env("USER", "joe").args([
            "60",
            "rsync",
            "--port",
            &server.port.to_string(),
        ]);
        let output = command.args(args).arg(format!("localhost::{from}")).arg(&target).output().unwrap();
        let (_, stderr, found) = text(&output);
        assert!(found == Some(code) && stderr.contains(message), "{args:?} {from}: {found:?} {stderr}");
    }
    for (user, password, is_right) in [
        ("joe", "pw", true),
        ("ann", "x y", true),
        ("ann", "pw", false),
        ("bad", "pw", false),
        ("who", "", false),
    ] {
        let mut command = Command::new("timeout");
        command.env("RSYNC_PASSWORD", password).args([
            "60",
            "rsync",
            "--port",
            &server.port.to_string(),
            "-a",
        ]);
        let output = command
            .arg(format!("{user}@localhost::secret/open"))
            .arg(dir.path().join("got"))
            .output()
            .unwrap();
        assert_eq!(output.status.success(), is_right, "{user}: {output:?}");
    }
    // A push is refused, not silently ignored.
    let mut command = Command::new("timeout");
    command.args(["60", "rsync", "-a", "--port", &server.port.to_string()]).arg(&secrets);
    let (_, stderr, code) = text(&command.arg("localhost::m/").output().unwrap());
    assert!(code == Some(1) && stderr.contains("ERROR: module is read only"), "{code:?} {stderr}");
}
