//! `snowmelt index`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;

use common::Scratch;

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
    // Only what the log tells of is looked at.
    fs::write(scratch.path().join("tree/a/two"), b"2").unwrap();
    fs::write(scratch.path().join("tree/three"), b"3").unwrap();
    let log = scratch.path().join("log");
    fs::write(&log, "sending incremental file list\n>f+++++++++ a/two\n\nsent 1 bytes\n").unwrap();
    let said = scratch.ok(&format!("index --from-rsync-log {} {tree} {}", log.display(), file.display()));
    assert!(said.starts_with("3 files "), "{said}");
    assert_eq!(scratch.ok(&format!("index -q -j 1 {tree}")), "");
    let again = scratch.ok(&format!("index --from-rsync-log {} {tree}", log.display()));
    assert!(again.starts_with("4 files "), "{again}");
    // One that is damaged is not built upon, and stays what it is.
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
