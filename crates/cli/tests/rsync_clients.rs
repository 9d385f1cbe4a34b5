//! How `serve rsync` treats different clients: variables in its configuration, host names, proxies, digests, and
//! changes of the configuration. Tests that need rsync are ignored by a plain `cargo test`: `.ci/run clients` runs
//! them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use common::Scratch;
use common::rsync::{Server, await_text, restored};

/// Writes a file that only its owner may read.
fn secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Runs rsync as a user with a password.
fn as_user(server: &Server, (user, password): (&str, &str), args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", "rsync", "--port", &server.port.to_string()]).args(args);
    command.env("USER", user).env("RSYNC_PASSWORD", password).output().unwrap()
}

/// Lists the contents of a module, or the modules.
fn list(server: &Server, from: &str) -> Output {
    as_user(server, ("", ""), &[from])
}

/// Each user has a dataset, and sees no other.
#[test]
#[ignore = "needs rsync"]
fn modules_are_what_their_users_have() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    for dataset in ["tank/home", "tank/home/ann", "tank/home/bob"] {
        scratch.ok(&format!("create {dataset}"));
    }
    secret(&home.join("secrets"), "ann:a\nbob:b\ncarl:c\n../ann:d\n");
    fs::write(home.join("f"), b"f").unwrap();
    let server = Server::start(
        &scratch,
        &format!(
            "[home]\npath = tank/home/%RSYNC_USER_NAME%\nread only = no\nauth users = *\n\
             secrets file = {home}/secrets\ncomment = for %RSYNC_USER_NAME%\nlog file = {home}/%RSYNC_USER_NAME%.log\n\
             pre-xfer exec = echo %RSYNC_USER_NAME% in %RSYNC_MODULE_PATH% >> {home}/told\n\
             [anybody]\npath = tank/home/%RSYNC_USER_NAME%\n",
            home = home.display()
        ),
    );
    let f = home.join("f").display().to_string();
    for (user, password, code) in
        [("ann", "a", 0), ("bob", "b", 0), ("carl", "c", 5), ("ann", "b", 5), ("../ann", "d", 5)]
    {
        let output =
            as_user(&server, (user, password), &["-a", &f, &format!("localhost::home/of-{password}")]);
        assert_eq!(output.status.code(), Some(code), "{user}: {output:?}");
    }
    let of_ann = restored(&scratch, "tank/home/ann");
    assert!(of_ann.join("of-a").exists() && !of_ann.join("of-b").exists());
    assert!(restored(&scratch, "tank/home/bob").join("of-b").exists());
    let told = fs::read_to_string(home.join("told")).unwrap();
    assert_eq!(told, "ann in tank/home/ann\nbob in tank/home/bob\n");
    // A configured command needs the name of the client, so the name is looked up and logged.
    let log = fs::read_to_string(home.join("bob.log")).unwrap();
    assert!(log.contains("rsync to home/of-b from bob@") && log.contains(" (127.0.0.1)\n"), "{log}");
    // This module needs no login: there is no user name, and so no dataset.
    let output = list(&server, "localhost::anybody/");
    assert!(!output.status.success(), "{output:?}");
    let log = fs::read_to_string(home.join("log")).unwrap();
    assert!(log.contains("'path': %RSYNC_USER_NAME% is '', which is no name"), "{log}");
    // A wildcard does not match a slash.
    assert!(log.contains("for ../ann: no matching rule"), "{log}");
}

/// In a directory, each user sees the files that this user may read on this machine.
#[test]
#[ignore = "needs rsync and root"]
fn directories_are_read_as_who_logs_in() {
    let scratch = Scratch::new();
    let (home, tree) = (scratch.path(), scratch.path().join("tree"));
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&tree).unwrap();
    // Users that exist on every machine.
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let number = |user: &str| -> u32 {
        let line = passwd.lines().find(|line| line.starts_with(&format!("{user}:"))).unwrap();
        line.split(':').nth(2).unwrap().parse().unwrap()
    };
    for user in ["daemon", "bin"] {
        let file = tree.join(user);
        secret(&file, user);
        std::os::unix::fs::chown(&file, Some(number(user)), None).unwrap();
    }
    assert_ne!(fs::metadata(tree.join("bin")).unwrap().uid(), 0);
    secret(&home.join("secrets"), "daemon:d\nbin:b\n");
    let server = Server::start(
        &scratch,
        &format!(
            "[m]\npath = {home}/tree\nuid = %RSYNC_USER_NAME%\ngid = *\nignore nonreadable = yes\n\
             auth users = , daemon, bin\nsecrets file = {home}/secrets\n",
            home = home.display()
        ),
    );
    for (user, password) in [("daemon", "d"), ("bin", "b")] {
        let to = home.join(format!("of-{user}"));
        let output = as_user(&server, (user, password), &["-r", "localhost::m/", to.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [user]);
    }
}

/// A change of the configuration takes effect for the next client. A wrong configuration takes no effect at all.
#[test]
#[ignore = "needs rsync"]
fn a_changed_configuration_counts_from_the_next_client_on() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    let server = Server::start(&scratch, "[a]\npath = tank/a\ncomment = one\n");
    let file = &server.config;
    let listed = || String::from_utf8(list(&server, "localhost::").stdout).unwrap();
    assert_eq!(listed(), "a              \tone\n");
    fs::write(file, "[a]\npath = tank/a\ncomment = two, now\n[b]\npath = tank/a\nlog file = b.log\n")
        .unwrap();
    assert_eq!(listed(), "a              \ttwo, now\nb              \t\n");
    assert!(list(&server, "localhost::b/").status.success());
    assert!(fs::read_to_string(scratch.path().join("b.log")).unwrap().contains("rsync on b/ from"));
    fs::write(file, "[a]\npath = tank/a\ncomment = three\nread only = perhaps, it is too early to say\n")
        .unwrap();
    assert!(listed().contains("two, now"));
    let log = || fs::read_to_string(scratch.path().join("log")).unwrap();
    assert!(
        log().contains("rsyncd-1.conf, line 4: 'perhaps, it is too early to say' is neither yes nor no"),
        "{}",
        log()
    );
    fs::remove_file(file).unwrap();
    assert!(listed().contains("two, now"));
}

/// A client that supports only old digests does not even get a challenge.
#[test]
#[ignore = "needs rsync"]
fn weak_digests_are_refused() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    secret(&home.join("secrets"), "ann:a\n");
    let server = Server::start(
        &scratch,
        &format!(
            "auth users = ann\nsecrets file = {}/secrets\npath = tank\n[strong]\nauth digest = sha256\n[any]\ncomment = old\n",
            home.display()
        ),
    );
    let output = as_user(&server, ("ann", "a"), &["localhost::strong/"]);
    assert!(output.status.success(), "{output:?}");
    for (module, digests, expected) in [
        ("strong", " sha1 md5", "@ERROR: auth failed on module strong"),
        ("strong", "", "@ERROR: auth failed on module strong"),
        ("strong", " md5 sha256", "@ERROR: auth failed"),
        ("strong", " sha256 md5", "@RSYNCD: AUTHREQD "),
        ("any", " md5", "@RSYNCD: AUTHREQD "),
        ("any", "", "@RSYNCD: AUTHREQD "),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        write!(stream, "@RSYNCD: 31.0{digests}\n{module}\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        lines.next().unwrap().unwrap();
        let answer = lines.next().unwrap().unwrap();
        assert!(answer.starts_with(expected), "{module}{digests}: {answer}");
    }
    let log = fs::read_to_string(home.join("log")).unwrap();
    assert!(
        log.contains(
            "auth failed on module strong from 127.0.0.1 (127.0.0.1): its digest sha1 is weaker than sha256"
        ),
        "{log}"
    );
}

/// The header of a trusted proxy determines the client's address. A header from any other host is refused.
#[test]
fn clients_behind_a_proxy_are_who_they_are() {
    let scratch = Scratch::with_pool();
    let config = |trusted: &str| {
        format!(
            "proxy protocol = yes\nproxy protocol hosts = {trusted}\n\
             [near]\npath = tank\nhosts allow = 10.0.0.0/8\n[all]\npath = tank\n"
        )
    };
    let server = Server::start(&scratch, &config("127.0.0.1"));
    let answers = |header: &[u8], module: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(header).unwrap();
        // The server may have closed the connection.
        let _ = write!(stream, "@RSYNCD: 31.0 md5\n{module}\n");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    };
    let near = answers(b"PROXY TCP4 10.1.2.3 127.0.0.1 4000 873\r\n", "near");
    assert!(near.contains("@RSYNCD: OK"), "{near}");
    let binary =
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[10, 1, 2, 4, 127, 0, 0, 1, 9, 9, 3, 105]].concat();
    assert!(answers(&binary, "near").contains("@RSYNCD: OK"));
    let far = answers(b"PROXY TCP4 11.1.2.3 127.0.0.1 4000 873\r\n", "near");
    assert!(far.contains("@ERROR: access denied to near from 11.1.2.3 (11.1.2.3)"), "{far}");
    assert!(answers(b"PROXY UNKNOWN\r\n", "near").contains("access denied to near from 127.0.0.1"));
    for wrong in [&b""[..], b"PROXY TCP4 10.1.2.3\r\n", b"PROXY", b"GET / HTTP/1.0\r\n\r\n"] {
        assert_eq!(answers(wrong, "all"), "", "{wrong:?}");
    }
    fs::write(&server.config, config("10.0.0.1")).unwrap();
    assert_eq!(answers(b"PROXY TCP4 10.1.2.3 127.0.0.1 4000 873\r\n", "all"), "");
    let log = scratch.path().join("log");
    await_text(&log, "127.0.0.1: connection: no header of a proxy");
    await_text(&log, "127.0.0.1: connection: proxy protocol rejected: not one of the 'proxy protocol hosts'");
}
