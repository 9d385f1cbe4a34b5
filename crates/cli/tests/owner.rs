//! Several processes that use one pool at the same time.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Scratch, demo};

/// Waits until a condition holds. Fails if that takes too long.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a process has a pool's lock file open. No other process wants the pool at that time, so it is the owner.
fn wait_for_owner(process: u32) {
    wait_for("ownership", || {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        descriptors
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|file| file.ends_with("lock")))
    });
}

#[test]
fn commands_are_done_while_a_receive_goes_on() {
    let scratch = Scratch::with_pool();
    let stream = fs::read(demo("full.zstream")).unwrap();
    let mut receive = scratch
        .command("receive tank/home")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = receive.stdin.take().unwrap();
    let (first, rest) = stream.split_at(1000);
    input.write_all(first).unwrap();
    wait_for_owner(receive.id());
    let binary = scratch.command("").get_program().to_string_lossy().into_owned();
    let user: String = format!("{binary} receive tank/home").chars().take(120).collect();
    let user = format!("pool is busy\nprocess {} uses it: {user}\n", receive.id());
    assert_eq!(scratch.fails(1, "pool export tank"), format!("cannot export 'tank': {user}"));
    assert_eq!(scratch.fails(1, "pool destroy tank"), format!("cannot destroy 'tank': {user}"));
    scratch.ok("create tank/other");
    assert!(scratch.ok("list -Ho name").contains("tank/other\n"));
    assert_eq!(scratch.ok("pool list -Ho name,health"), "tank\tONLINE\n");
    assert_eq!(scratch.fails(1, "create tank/other"), "cannot create 'tank/other': dataset already exists\n");
    assert_eq!(scratch.fails(2, "list -Z").lines().next(), Some("invalid option 'Z'"));
    // With several pools, the owner handles its own.
    scratch.ok("pool create dozer dozer.img --size 64M");
    scratch.ok("pool sync tank");
    scratch.ok("pool sync");
    assert_eq!(scratch.ok("check tank dozer").matches("no errors").count(), 2);
    scratch.receive("receive tank/third", &demo("full.zstream"));
    let copy = scratch.to_file("send tank/third@monday", "copy");
    assert!(fs::metadata(copy).unwrap().len() > 100_000);
    input.write_all(rest).unwrap();
    drop(input);
    let output = receive.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(scratch.ok("manifest tank/home@monday"), scratch.ok("manifest tank/third@monday"));
    assert!(scratch.ok("check tank").contains("tank: no errors"));
}

#[test]
fn the_owner_uses_the_places_of_the_caller() {
    let scratch = Scratch::new();
    scratch.ok("pool create tank mirror one two");
    let mut receive =
        scratch.command("receive tank/home").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for_owner(receive.id());
    // The list of known pools is below the caller's XDG_CONFIG_HOME, not below that of the owner.
    let config = scratch.path().join("config-of-the-caller");
    let mut attach = scratch.command("--pool-dir one pool attach -w tank one third");
    let output = attach.env("XDG_CONFIG_HOME", &config).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let listed = fs::read_to_string(config.join("snowmelt/pools")).unwrap();
    assert!(listed.contains("third"), "{listed}");
    drop(receive.stdin.take());
    receive.wait().unwrap();
}

/// After an upgrade, a process that was started before goes on owning its pool.
#[test]
fn a_command_that_fails_in_an_owner_of_another_version_says_so() {
    let scratch = Scratch::with_pool();
    let program = scratch.path().join("older");
    fs::copy(scratch.command("").get_program(), &program).unwrap();
    let current = scratch.command("receive tank/home");
    let mut receive = std::process::Command::new(&program);
    receive.args(current.get_args()).env_clear().current_dir(scratch.path());
    receive.envs(current.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut receive = receive.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for_owner(receive.id());
    // Nothing is said about a command that was carried out.
    scratch.ok("create tank/other");
    let said = scratch.fails(1, "create tank/other");
    let (first, warning) = said.split_once('\n').unwrap();
    assert_eq!(first, "cannot create 'tank/other': dataset already exists");
    let process = format!("warning: process {} owns the pool and carried out this command.", receive.id());
    assert!(warning.starts_with(&process), "{said}");
    assert!(warning.contains("another version of snowmelt") && warning.contains("/older receive"), "{said}");
    assert!(warning.contains(&format!("'kill {}'", receive.id())), "{said}");
    drop(receive.stdin.take());
    receive.wait().unwrap();
}

#[test]
fn many_commands_at_once_all_succeed() {
    let scratch = Scratch::with_pool();
    let children: Vec<_> = (0..12)
        .map(|number| {
            scratch.command(&format!("create tank/d{number}")).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(scratch.ok("list -Ho name -d 1 tank").lines().count(), 13);
    assert!(scratch.ok("check tank").contains("tank: no errors"));
}

#[test]
fn a_killed_owner_leaves_a_good_pool() {
    let scratch = Scratch::with_home();
    let stream = fs::read(demo("full.zstream")).unwrap();
    let mut receive =
        scratch.command("receive tank/again").stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = receive.stdin.take().unwrap();
    input.write_all(&stream[..60_000]).unwrap();
    wait_for_owner(receive.id());
    receive.kill().unwrap();
    receive.wait().unwrap();
    drop(input);
    assert!(scratch.ok("check tank").contains("tank: no errors"));
    assert_eq!(scratch.ok("list -Ho name"), "tank\ntank/home\n");
    scratch.receive("receive tank/again", &demo("full.zstream"));
}

#[test]
fn pools_of_several_owners_are_listed_together() {
    let scratch = Scratch::with_pool();
    scratch.ok("pool create other elsewhere");
    let mut receive =
        scratch.command("receive other/x").stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let input = receive.stdin.take().unwrap();
    wait_for_owner(receive.id());
    assert_eq!(scratch.ok("list -Ho name"), "other\ntank\n");
    assert_eq!(scratch.ok("pool list -Ho name"), "other\ntank\n");
    drop(input);
    receive.wait().unwrap();
}

/// Both ends of a pipe work on one pool, several times, while other processes read and change it. No deadlock may
/// occur.
#[test]
fn pipes_within_one_pool_do_not_wait_for_one_another() {
    let scratch = Scratch::with_home();
    let data = scratch.path().join("big");
    fs::create_dir(&data).unwrap();
    // More than fits into pipes, and for long enough that owners serve.
    let noise: Vec<u8> =
        (0..8_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(data.join("noise"), noise).unwrap();
    scratch.ok("import big tank/big@one");
    let mut ends = Vec::new();
    for number in 0..4 {
        let mut send = scratch
            .command("zfs send tank/big@one")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut receive = scratch.command(&format!("zfs receive -s tank/copy{number}"));
        let receive = receive.stdin(send.stdout.take().unwrap()).stderr(Stdio::piped()).spawn().unwrap();
        ends.extend([send, receive]);
    }
    for number in 0..20 {
        scratch.ok("zfs list -H -t all");
        scratch.ok(&format!("zfs snapshot tank/home@s{number}"));
        scratch.ok("zpool status");
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    for mut child in ends {
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "an end of a pipe hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let manifest = scratch.ok("manifest tank/big@one");
    for number in 0..4 {
        assert_eq!(scratch.ok(&format!("manifest tank/copy{number}@one")), manifest);
    }
    assert!(scratch.ok("check tank").contains("tank: no errors"));
}

/// The owner's own command ends while it receives for another process. The sender for that receive starts only then.
#[test]
fn an_owner_that_would_end_serves_the_sender_of_what_it_receives() {
    let scratch = Scratch::with_home();
    let receive = |name: &str| {
        let mut command = scratch.command(&format!("receive {name}"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut owner = receive("tank/first");
    wait_for_owner(owner.id());
    let socket = scratch.path().join("data/snowmelt/tank/control.sock");
    wait_for("service", || socket.exists());
    let mut served = receive("tank/second");
    let mut input = served.stdin.take().unwrap();
    // More than a pipe holds: when all is written, the command was accepted.
    let stream = scratch.to_file("send tank/home@monday", "stream");
    let stream = fs::read(stream).unwrap();
    assert!(stream.len() > 100_000);
    input.write_all(&stream[..100_000]).unwrap();
    // The owner's own command ends.
    owner.stdin.take().unwrap().write_all(&stream).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    let sent = scratch.to_file("send tank/home@monday", "again");
    assert!(began.elapsed() < Duration::from_secs(15), "turned away for {:?}", began.elapsed());
    assert!(owner.try_wait().unwrap().is_none(), "nothing was asked of an owner that would end");
    input.write_all(&fs::read(sent).unwrap()[100_000..]).unwrap();
    drop(input);
    for child in [served, owner] {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(scratch.ok("manifest tank/first@monday"), scratch.ok("manifest tank/second@monday"));
    assert!(!socket.exists());
}

/// Waits until a process has a copy of this pipe. The owner of a pool has one while it executes the command of another
/// process whose standard input is the pipe.
fn wait_for_pipe(process: u32, pipe: &impl std::os::fd::AsRawFd) {
    let own = fs::read_link(format!("/proc/self/fd/{}", pipe.as_raw_fd())).ok();
    wait_for("acceptance", || {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        own.is_some() && descriptors.flatten().any(|entry| fs::read_link(entry.path()).ok() == own)
    });
}

/// Like `zfs send | mbuffer | zfs receive`. The program in the middle passes on its last block when its input ends. The
/// sender's process serves the receiver, which ends when its own input ends.
#[test]
fn a_sender_that_serves_its_receiver_ends_its_stream() {
    let scratch = Scratch::with_home();
    let stream = fs::read(scratch.to_file("send tank/home@monday", "stream")).unwrap();
    assert!(stream.len() > 100_000);
    let mut send = scratch.command("send tank/home@monday");
    let mut send = send.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_owner(send.id());
    let mut receive = scratch.command("receive tank/copy");
    let mut receive = receive.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = receive.stdin.take().unwrap();
    wait_for_pipe(send.id(), &input);
    let mut output = send.stdout.take().unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut sent = Vec::new();
        output.read_to_end(&mut sent).unwrap();
        sender.send(sent).unwrap();
    });
    let sent = ended.recv_timeout(Duration::from_secs(60)).expect("the stream does not end");
    assert!(send.try_wait().unwrap().is_none(), "the sender's process did not serve the receiver");
    input.write_all(&sent).unwrap();
    drop(input);
    for child in [receive, send] {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(scratch.ok("manifest tank/copy@monday"), scratch.ok("manifest tank/home@monday"));
}

/// The receiver's process serves its sender and refuses the stream at its beginning.
#[test]
fn a_receiver_that_serves_its_sender_lets_go_of_the_stream() {
    let scratch = Scratch::with_home();
    let mut receive = scratch.command("receive tank/home");
    let mut receive = receive.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_owner(receive.id());
    let input = receive.stdin.take().unwrap();
    let mut send = scratch.command("send tank/home@monday");
    let mut send = send.stdout(input).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while send.try_wait().unwrap().is_none() || receive.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = (send.kill(), receive.kill());
            panic!("the pipe hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = receive.wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("exists"), "{refused:?}");
}
