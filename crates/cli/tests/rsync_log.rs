//! The log files of `serve rsync`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::Scratch;

struct Server(Child, String);

impl Server {
    fn start(scratch: &Scratch) -> Self {
        let mut command = scratch.command("serve rsync --config rsyncd.conf --address 127.0.0.1 --port 0");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let address = said.trim().strip_prefix("serving rsync on ").unwrap().to_owned();
        Self(child, address)
    }

    /// A client that asks for a module and disconnects.
    fn ask(&self, module: &str) {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream.write_all(format!("@RSYNCD: 31.0 md5\n{module}\n").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }

    fn ended(mut self) -> String {
        self.0.kill().unwrap();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        self.0.wait().unwrap();
        said
    }
}

/// The lines of a log without their prefix, as soon as one contains `what`.
fn lines(scratch: &Scratch, name: &str, what: &str) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(scratch.path().join(name)).unwrap_or_default();
        if text.ends_with('\n') && text.contains(what) {
            let told = |line: &str| {
                let (stamp, told) = line.split_once("] ").unwrap();
                let (date, pid) = stamp.split_once(" [").unwrap();
                assert!(
                    pid.parse::<u32>().is_ok() && date.len() == 19 && date.matches('/').count() == 2,
                    "{line}"
                );
                told.to_owned()
            };
            return text.lines().map(told).collect();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: no {what}: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_said_is_in_the_files_that_are_named() {
    let scratch = Scratch::new();
    let config = "uid = 0\ngid = 0\nlog file = all.log\nsyslog facility = local5\n[a]\npath = /\n[b]\npath = /\nlog file = b.log\n\
                  [c]\npath = /\nlog file = no/c.log\n";
    fs::write(scratch.path().join("rsyncd.conf"), config).unwrap();
    fs::write(scratch.path().join("all.log"), "2026/11/22 14:50:01 [1] before\n").unwrap();
    let server = Server::start(&scratch);
    server.ask("nothing");
    server.ask("a");
    let all = lines(&scratch, "all.log", "module a");
    assert_eq!(all.first().unwrap(), "before");
    assert!(all.iter().any(|line| line.starts_with("unknown module 'nothing'")), "{all:?}");
    server.ask("b");
    let of_b = lines(&scratch, "b.log", "module b");
    assert!(of_b.iter().all(|line| line.contains("module b")), "{of_b:?}");
    // A rotated log is no longer written to.
    let before = fs::read(scratch.path().join("all.log")).unwrap();
    fs::rename(scratch.path().join("all.log"), scratch.path().join("all.log.1")).unwrap();
    server.ask("a");
    assert!(!lines(&scratch, "all.log", "module a").contains(&"before".to_owned()));
    assert_eq!(fs::read(scratch.path().join("all.log.1")).unwrap(), before);
    server.ask("c");
    std::thread::sleep(Duration::from_millis(300));
    let said = server.ended();
    assert!(said.contains("warning: cannot open the log file") && said.contains("no/c.log"), "{said}");
    assert!(said.contains("module c") && !said.contains("module a") && !said.contains("module b"), "{said}");
}

/// The client of a server that SSH starts gets its standard error. It must not see the addresses of others.
#[test]
fn a_server_for_one_client_writes_no_log_to_its_standard_error() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("rsyncd.conf"), "[files]\npath = /\n").unwrap();
    let mut command = scratch.command("serve rsync --config rsyncd.conf --stdio");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"@RSYNCD: 31.0 md5\nnothing\n").unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).contains("@ERROR: Unknown module 'nothing'"), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
}
