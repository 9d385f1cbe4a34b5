//! The memory of a process that holds a key is not written to a core dump, and other processes of its user cannot read
//! it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{PipeWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{Said, Scratch, demo};

/// A user who is not root. Root can read everything.
const ALICE: u32 = 54_321;
/// Maximum time to wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A command that runs as a user who is not root.
fn command(scratch: &Scratch, line: &str) -> Command {
    let mut command = scratch.command(line);
    if is_root() {
        command.uid(ALICE).gid(ALICE);
    }
    command
}

/// A process that has the pool open. It keeps running until the returned writer is dropped.
fn owner(scratch: &Scratch, pool: &str) -> (Child, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let child = command(scratch, &format!("receive {pool}/slow")).stdin(reader).spawn().unwrap();
    let stream = fs::read(demo("full.zstream")).unwrap();
    writer.write_all(&stream[..stream.len() / 2]).unwrap();
    // The receive has begun when other processes see it.
    let (end, mut has_begun) = (Instant::now() + PATIENCE, false);
    while !has_begun && Instant::now() < end {
        let said = Said::of(command(scratch, &format!("list -H -o name -r {pool}")));
        has_begun = said.out.contains("slow");
    }
    assert!(has_begun, "{pool} receives nothing");
    (child, writer)
}

#[test]
fn a_process_that_holds_a_key_makes_no_core_dump() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("key"), [7; 32]).unwrap();
    fs::set_permissions(scratch.path().join("key"), fs::Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        for path in [scratch.path().to_owned(), scratch.path().join("key")] {
            chown(path, Some(ALICE), Some(ALICE)).unwrap();
        }
    }
    let ok = |line: &str| assert_eq!(Said::of(command(&scratch, line)).code, 0, "{line}");
    ok("pool create plain");
    ok("pool create --encrypt --key-file key tank");
    // For a process that cannot be dumped, the kernel makes root the owner of its files in /proc (proc(5)).
    let state = |pid: u32| {
        let proc = Path::new("/proc").join(pid.to_string());
        let limits = fs::read_to_string(proc.join("limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
        let core: Vec<String> = core.split_whitespace().skip(4).take(2).map(str::to_owned).collect();
        (fs::metadata(proc.join("mem")).unwrap().uid() == 0, core == ["0", "0"])
    };
    let (mut without, input) = owner(&scratch, "plain");
    assert!(!state(without.id()).0, "what has no key can be dumped");
    drop(input);
    without.wait().unwrap();
    let (mut holder, input) = owner(&scratch, "tank");
    assert_eq!(state(holder.id()), (true, true), "not dumpable, and no room for a dump");
    drop(input);
    holder.wait().unwrap();
}
