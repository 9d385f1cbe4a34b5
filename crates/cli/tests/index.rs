//! Making, updating and watching indexes with `snowmelt index`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use common::Scratch;
use snowmelt_rsync::index::Index;

#[test]
fn an_index_is_made_and_brought_up_to_date() {
    let scratch = Scratch::new();
    let (tree, file) = (scratch.path().join("tree"), scratch.path().join("tree.index"));
    fs::create_dir_all(tree.join("a")).unwrap();
    fs::write(tree.join("a/one"), b"1").unwrap();
    let tree = tree.display();
    let said = scratch.ok(&format!("index {tree}/"));
    let size = fs::metadata(&file).unwrap().len();
    assert_eq!(said, format!("2 files in {}, {size} bytes\n", file.display()));
    // Only the files in the log are examined.
    fs::write(scratch.path().join("tree/a/two"), b"2").unwrap();
    fs::write(scratch.path().join("tree/three"), b"3").unwrap();
    let log = scratch.path().join("log");
    fs::write(&log, "sending incremental file list\n>f+++++++++ a/two\n\nsent 1 bytes\n").unwrap();
    let said = scratch.ok(&format!("index --from-rsync-log {} {tree} {}", log.display(), file.display()));
    assert!(said.starts_with("3 files "), "{said}");
    assert_eq!(scratch.ok(&format!("index -q -j 1 {tree}")), "");
    let again = scratch.ok(&format!("index --from-rsync-log {} {tree}", log.display()));
    assert!(again.starts_with("4 files "), "{again}");
    // A damaged index is not used as a start, and stays unchanged.
    let mut bytes = fs::read(&file).unwrap();
    bytes[90] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let output =
        scratch.command(&format!("index --from-rsync-log {} {tree}", log.display())).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("the index is damaged"), "{stderr}");
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let config = scratch.path().join("rsyncd.conf");
    fs::write(&config, format!("[m]\npath = {tree}\nindex = {}\n", file.display())).unwrap();
    let line = format!("serve rsync --config {} --address 127.0.0.1 --port 0", config.display());
    let output = scratch.command(&line).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = "cannot serve rsync: the index of module 'm': the index is damaged";
    assert!(output.status.code() == Some(1) && stderr.contains(expected), "{stderr}");
    let output = scratch.command(&format!("index {}/none", scratch.path().display())).output().unwrap();
    assert!(output.status.code() == Some(1), "{output:?}");
    let left: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".new")), "{left:?}");
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let scratch = Scratch::new();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let tree = tree.display();
    for (line, code, expected) in [
        (format!("index --watch {tree} {tree}/index"), 1, "is in it"),
        (format!("index --watch --from-rsync-log - {tree}"), 2, "cannot be used with"),
        (format!("index --watch {tree}/none"), 1, "No such file"),
    ] {
        let output = scratch.command(&line).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && stderr.contains(expected), "{line}: {stderr}");
    }
    assert!(!scratch.path().join("tree.index").exists());
}

/// A watched index exists from the start, follows changes, and is not written at the end.
#[test]
#[ignore = "needs root"]
fn an_index_follows_its_directory() {
    let scratch = Scratch::new();
    let (tree, file) = (scratch.path().join("tree"), scratch.path().join("tree.index"));
    fs::create_dir(&tree).unwrap();
    let mut child = scratch.command(&format!("index --watch --every 1 {}", tree.display())).spawn().unwrap();
    let wait_for = |files: u64| {
        for _ in 0..300 {
            if Index::load(&file).is_ok_and(|index| index.files() == files) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("an index of {files} files is not there");
    };
    wait_for(0);
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/c"), b"c").unwrap();
    wait_for(3);
    fs::rename(tree.join("a"), scratch.path().join("a")).unwrap();
    wait_for(0);
    // Changes beside the directory do not affect it.
    let before = fs::metadata(&file).unwrap().ino();
    fs::write(scratch.path().join("beside"), b"x").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(fs::metadata(&file).unwrap().ino(), before);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::metadata(&file).unwrap().ino(), before);
}
