//! Tests directories that are served from their index, with stock rsync.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::trees::{assert_same, disturb, grow, manifest, set_time};
use common::{Server, text};
use snowmelt_rsync::index::{Builder, Index, Replacement, changed_paths, scan, update};
use snowmelt_rsync::source::Time;

fn put(builder: Builder, file: &Path) {
    Replacement::begin(file).unwrap().commit(&builder.finish(Time::default()).unwrap()).unwrap();
}

fn index(tree: &Path) -> PathBuf {
    let file = tree.with_extension("index");
    let (builder, unread) = scan(tree, 2).unwrap();
    assert!(unread.is_empty(), "{unread:?}");
    put(builder, &file);
    file
}

fn serve(tree: &Path) -> Server {
    Server::of(tree, &format!("index = {}", index(tree).display()))
}

#[test]
#[ignore = "needs rsync, setfacl and root"]
fn trees_end_identical_from_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    grow(&source, 31);
    let server = serve(&source);
    let variants: &[&[&str]] = &[
        &[],
        &["--no-inc-recursive"],
        &["--numeric-ids", "-z"],
        &["-c"],
        &["--inplace", "--no-W"],
        &["-S", "--delete-after"],
        &["-s", "--protocol=31"],
        &["-x"],
    ];
    for (at, variant) in variants.iter().enumerate() {
        let target = dir.path().join(format!("target{at}"));
        let args = [&["-aHAX", "--delete"][..], variant].concat();
        for round in ["new", "again"] {
            server.pull(&args, "m/", &target);
            assert_same(&source, &target, &format!("{variant:?}, {round}"));
            disturb(&target, at as u64);
        }
        fs::remove_dir_all(&target).unwrap();
    }
}

/// The tree is moved away, so it cannot have been read.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn lists_need_no_tree() {
    let dir = tempfile::tempdir().unwrap();
    let (source, moved) = (dir.path().join("source"), dir.path().join("moved"));
    grow(&source, 32);
    let server = serve(&source);
    let target = dir.path().join("target");
    server.pull(&["-aHAX"], "m/", &target);
    fs::rename(&source, &moved).unwrap();
    for args in
        [&["-aHAXi", "--delete"][..], &["-aHAXi", "--no-inc-recursive", "-F"], &["-aHAXin", "--delete"]]
    {
        let (stdout, stderr, code) = text(&server.rsync(args, "m/", &target));
        assert_eq!((stdout.as_str(), stderr.as_str(), code), ("", "", Some(0)), "{args:?}");
    }
    assert_same(&moved, &target, "with no tree");
    let (_, stderr, code) = text(&server.rsync(&["-a"], "m/", &dir.path().join("other")));
    assert!(code == Some(24) && stderr.contains("file has vanished: "), "{code:?} {stderr}");
}

#[test]
#[ignore = "needs rsync and root"]
fn what_changed_since_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target, secret) =
        (dir.path().join("source"), dir.path().join("target"), dir.path().join("secret"));
    fs::create_dir_all(source.join("d/e")).unwrap();
    for name in ["kept", "gone", "longer", "later", "link", "d/e/f"] {
        fs::write(source.join(name), name).unwrap();
        set_time(&source.join(name), 1_600_000_000, 5);
    }
    let server = serve(&source);
    fs::remove_file(source.join("gone")).unwrap();
    fs::write(source.join("longer"), "longer by some").unwrap();
    set_time(&source.join("later"), 1_600_000_000, 6);
    // Links out of the tree, to a file with the size and time in the index.
    fs::write(&secret, "link").unwrap();
    set_time(&secret, 1_600_000_000, 5);
    fs::remove_file(source.join("link")).unwrap();
    symlink(&secret, source.join("link")).unwrap();
    fs::rename(source.join("d"), dir.path().join("d")).unwrap();
    symlink("../d", source.join("d")).unwrap();
    let (_, stderr, code) = text(&server.rsync(&["-a"], "m/", &target));
    assert_eq!(code, Some(24), "{stderr}");
    assert!(stderr.contains("file has vanished: \"gone\" (in m)"), "{stderr}");
    for name in ["longer", "later", "link", "d/e/f"] {
        let expected = format!("file has changed since it was indexed: \"{name}\" (in m)");
        assert!(stderr.contains(&expected) && !target.join(name).exists(), "{name}: {stderr}");
    }
    assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "kept");
    // The next client is served from the new index.
    fs::remove_file(source.join("d")).unwrap();
    fs::rename(dir.path().join("d"), source.join("d")).unwrap();
    // No time is within the present second, which is the time of files that the client makes.
    manifest(&source).keys().for_each(|path| set_time(&source.join(path), 1_650_000_000, 7));
    index(&source);
    server.pull(&["-a", "--delete"], "m/", &target);
    assert_same(&source, &target, "with a new index");
}

/// The output of a mirror job is enough to update an index.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn what_rsync_says_that_it_did_brings_an_index_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let (upstream, mirror, log) =
        (dir.path().join("upstream"), dir.path().join("mirror"), dir.path().join("log"));
    grow(&upstream, 33);
    fs::create_dir(&mirror).unwrap();
    let file = index(&mirror);
    for round in 0..4 {
        let mut command = Command::new("rsync");
        command.args(["-aHAXi", "--delete", "--log-file"]).arg(&log);
        let output = command.arg(format!("{}/", upstream.display())).arg(&mirror).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = if round % 2 == 0 { output.stdout } else { fs::read(&log).unwrap() };
        let mut builder = Builder::from_index(&Index::load(&file).unwrap()).unwrap();
        let changed = said.split(|byte| *byte == b'\n').flat_map(changed_paths);
        assert!(update(&mut builder, &mirror, changed).unwrap().is_empty());
        put(builder, &file);
        let server = Server::of(&mirror, &format!("index = {}", file.display()));
        let target = dir.path().join("target");
        server.pull(&["-aHAX", "--delete"], "m/", &target);
        assert_same(&mirror, &target, &format!("round {round}"));
        // Files are added and removed, and one directory moves.
        disturb(&upstream, 50 + round);
        fs::remove_file(&log).unwrap();
        let moved = upstream.join(format!("moved{round}"));
        if round == 1 {
            fs::rename(upstream.join("0"), &moved).or_else(|_| fs::create_dir(&moved)).unwrap();
            set_time(&moved, 1_250_000_000, 0);
        } else {
            fs::write(&moved, b"x").unwrap();
            fs::hard_link(&moved, upstream.join(format!("linked{round}"))).unwrap();
            set_time(&moved, 1_260_000_000, 0);
        }
        set_time(&upstream, 1_200_000_000, 2 + round.cast_signed());
    }
}

#[test]
#[ignore = "needs rsync and root"]
fn what_a_module_may_not_read_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("shut")).unwrap();
    for name in ["open", "closed", "shut/f"] {
        fs::write(source.join(name), name).unwrap();
    }
    for (name, mode) in [("", 0o755), ("open", 0o644), ("closed", 0o600), ("shut", 0o700)] {
        fs::set_permissions(source.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (at, more) in [String::new(), format!("index = {}", index(&source).display())].iter().enumerate() {
        let target = dir.path().join(format!("target{at}"));
        let module = format!("[m]\npath = {}\nuid = 65534\ngid = 65534\n{more}\n", source.display());
        let (_, stderr, code) = text(&Server::new(&module).rsync(&["-r"], "m/", &target));
        assert!(code == Some(23) && stderr.contains("closed"), "{more}: {code:?} {stderr}");
        let server = Server::new(&format!("{module}ignore nonreadable = yes\n"));
        server.pull(&["-r", "--delete"], "m/", &target);
        let names: Vec<_> =
            manifest(&target).into_keys().filter(|path| !path.as_os_str().is_empty()).collect();
        assert_eq!(names, [Path::new("open")], "{more}");
    }
}
