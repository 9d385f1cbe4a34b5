//! The memory that a process serving a mount keeps after many transfers at once.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use common::Scratch;
use common::mounting::{Mounting, wait_for};

/// Number of parallel transfers, and the bytes that each of them moves.
const PIPES: usize = 8;
const FILE_BYTES: usize = 96 << 20;
/// Resident memory that the process may keep. The pool's caches (128 MiB) may be full, and the process itself needs
/// some.
const KEPT_KIB_MAX: u64 = 192 << 10;

fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Writes incompressible bytes from a generator of pseudo-random numbers (xorshift).
fn write_random(mut file: File, length: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = vec![0; 1 << 20];
    for _ in 0..length / piece.len() {
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&piece).unwrap();
    }
    file.sync_all().unwrap();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn memory_goes_back_to_the_system() {
    let world = Mounting::new(Scratch::new());
    let scratch = &world.scratch;
    scratch.ok("pool create tank tank.img --size 2G");
    scratch.ok("create tank/fs");
    scratch.ok("mount tank/fs mnt");
    let owner = world.owner().unwrap();
    write_random(File::create(world.dir().join("file")).unwrap(), FILE_BYTES);
    scratch.ok("snapshot tank/fs@one");
    let receive = |number: usize| {
        let mut send: Command = scratch.command("send tank/fs@one");
        let mut send = send.stdout(Stdio::piped()).spawn().unwrap();
        let mut receive: Command = scratch.command(&format!("receive tank/copy{number}"));
        let receive = receive.stdin(send.stdout.take().unwrap()).stdout(Stdio::null()).spawn().unwrap();
        [send, receive]
    };
    let pipes: Vec<_> = (0..PIPES).flat_map(receive).collect();
    for mut process in pipes {
        assert!(process.wait().unwrap().success());
    }
    wait_for("the return of memory", || resident_kib(owner) <= KEPT_KIB_MAX);
    scratch.ok("unmount tank/fs");
    world.wait_until_closed();
}
