//! Tests what single clients can take from others: places, threads, time.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use common::Server;
use rustix::net::{AddressFamily, SocketType};

/// How long the server keeps a refused connection, and a margin for a busy machine.
const REFUSED_TIME: Duration = Duration::from_secs(5);
const MARGIN: Duration = Duration::from_secs(10);

fn server(more: &str) -> (tempfile::TempDir, Server) {
    patient(more, Duration::from_secs(60))
}

fn patient(more: &str, patience: Duration) -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..300 {
        fs::write(source.join(format!("{}b{number}", "a".repeat(120))), "").unwrap();
    }
    let config = format!("{more}\n[m]\npath = {}\nmax connections = 1\n", source.display());
    let server = Server::patient(&config, patience);
    (dir, server)
}

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(("127.0.0.1", server.port)).unwrap()
}

/// Connects from another address of this machine.
fn connect_from(address: [u8; 4], server: &Server) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(address.into(), 0)).unwrap();
    rustix::net::connect(&socket, &SocketAddrV4::new([127, 0, 0, 1].into(), server.port)).unwrap();
    socket.into()
}

/// The greeting of a client and these arguments.
fn hello(args: &[&str]) -> Vec<u8> {
    let words: Vec<u8> = args.iter().flat_map(|arg| [arg.as_bytes(), b"\0"].concat()).collect();
    [b"@RSYNCD: 31.0 md5\nm\n".as_slice(), &words, b"\0"].concat()
}

fn message(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32 | 7 << 24).to_le_bytes()[..], data].concat()
}

const PULL: &[&str] = &["--server", "--sender", "-re.LsfxCIvu", ".", "m/"];
const PUSH: &[&str] = &["--server", "-re.LsfxCIvu", ".", "m/"];

/// The lines of the server after a greeting and the name of the module.
fn lines(mut stream: TcpStream) -> Vec<String> {
    stream.write_all(b"@RSYNCD: 31.0 md5\nm\n").unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut found = Vec::new();
    for line in lines {
        let is_last = line.starts_with("@ERROR") || line == "@RSYNCD: OK";
        found.push(line);
        if is_last {
            break;
        }
    }
    found
}

/// Waits until a client gets into the module.
fn await_place(server: &Server) {
    let deadline = Instant::now() + MARGIN;
    while lines(connect(server)).last().unwrap() != "@RSYNCD: OK" {
        assert!(Instant::now() < deadline, "the module is never free");
        std::thread::yield_now();
    }
}

#[test]
fn who_is_refused_sees_the_end_at_once_and_keeps_no_place() {
    let (_dir, server) = server("");
    let mut stream = connect(&server);
    // Includes the choice of a checksum: only after it can the server send a reason.
    stream.write_all(&[hello(PUSH), b"\x03md5".to_vec()].concat()).unwrap();
    let begun = Instant::now();
    let mut told = Vec::new();
    stream.read_to_end(&mut told).unwrap();
    assert!(String::from_utf8_lossy(&told).contains("ERROR: module is read only"));
    assert!(begun.elapsed() < REFUSED_TIME, "{:?}", begun.elapsed());
    await_place(&server);
    drop(stream);
}

#[test]
fn who_is_refused_cannot_stay_by_sending_much() {
    let (_dir, server) = server("");
    let mut stream = connect(&server);
    stream.write_all(&[hello(PUSH), vec![0; 300_000]].concat()).unwrap();
    let begun = Instant::now();
    await_place(&server);
    // Writing fails once the connection is closed at the other end.
    while stream.write_all(b"x").is_ok() {
        assert!(begun.elapsed() < REFUSED_TIME + MARGIN);
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn long_arguments_earn_little_time() {
    let (_dir, server) = patient("", Duration::from_secs(3));
    let mut stream = connect(&server);
    let begun = Instant::now();
    stream.write_all(&hello(&["--server", "--sender", &"a".repeat(2_000_000)])[..1_900_000]).unwrap();
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    assert!(begun.elapsed() < Duration::from_secs(2 * 3) + REFUSED_TIME + MARGIN, "{:?}", begun.elapsed());
}

/// The number of threads that serve a client.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map_while(Result::ok);
    tasks
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "rsync\n"))
        .count()
}

#[test]
fn an_address_has_only_so_many_connections() {
    let (_dir, server) = server("max connections per address = 3");
    let before = threads();
    let idle: Vec<TcpStream> = (0..3).map(|_| connect(&server)).collect();
    for stream in &idle {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.starts_with("@RSYNCD: "));
    }
    // Other tests of this process may have some.
    assert!(threads() <= before + 2, "silent clients have threads");
    for _ in 0..20 {
        let told = lines(connect(&server));
        assert_eq!(told[1], "@ERROR: max connections (3) reached -- try again later", "{told:?}");
    }
    assert_eq!(lines(connect_from([127, 0, 0, 2], &server)).last().unwrap(), "@RSYNCD: OK");
    let log = server.log.lock().unwrap().clone();
    let told = log.iter().filter(|line| line.contains("connections of one address")).count();
    assert_eq!(told, 1, "{log:?}");
    drop(idle);
    await_place(&server);
}

#[test]
fn a_connection_that_is_served_counts_once() {
    let (_dir, server) = server("max connections per address = 2");
    let mut served = connect(&server);
    served.write_all(b"@RSYNCD: 31.0 md5\nm\n").unwrap();
    // It waits for arguments now, so it has a thread.
    let mut reader = BufReader::new(&served);
    let mut line = String::new();
    while line != "@RSYNCD: OK\n" {
        line.clear();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0);
    }
    let mut line = String::new();
    let (second, third) = (connect(&server), connect(&server));
    BufReader::new(&second).read_line(&mut line).unwrap();
    assert!(line.starts_with("@RSYNCD: "), "{line}");
    second.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(second.peek(&mut [0]).is_err(), "the second connection was turned away");
    let told = lines(third);
    assert_eq!(told[1], "@ERROR: max connections (2) reached -- try again later", "{told:?}");
}

#[test]
fn silent_clients_give_way() {
    let (_dir, server) = server("max connections per address = 0");
    // As many connections as the server of these tests accepts.
    let mut idle: Vec<TcpStream> = (0..64).map(|_| connect(&server)).collect();
    let deadline = Instant::now() + MARGIN;
    loop {
        let told = lines(connect(&server));
        if told.last().unwrap() == "@RSYNCD: OK" {
            break;
        }
        assert_eq!(told.last().unwrap(), "@ERROR: max connections (64) reached -- try again later");
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(Duration::from_millis(50));
    }
    // The first one got its line, and then the end.
    let mut told = String::new();
    let _ = idle[0].read_to_string(&mut told);
    assert_eq!(told.lines().count(), 1);
}

#[test]
fn silence_is_ended() {
    let (_dir, server) = patient("", Duration::from_secs(2));
    let mut stream = connect(&server);
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn rules_with_many_stars_cost_little() {
    let (_dir, server) = server("");
    let rule = |pattern: &str| {
        let rule = format!("- {pattern}");
        [&(rule.len() as u32).to_le_bytes()[..], rule.as_bytes()].concat()
    };
    let ask = |pattern: &str| {
        let mut stream = connect(&server);
        let rules = [rule(pattern).repeat(200), vec![0; 4]].concat();
        let rules: Vec<u8> = rules.chunks(30_000).flat_map(message).collect();
        stream.write_all(&[hello(PULL), b"\x03md5".to_vec(), rules].concat()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        String::from_utf8_lossy(&told).into_owned()
    };
    // The previous client may not be gone yet.
    let ask = |pattern: &str| loop {
        let told = ask(pattern);
        if !told.contains("@ERROR: max connections") {
            break told;
        }
    };
    let begun = Instant::now();
    // Only the first name is sent completely. Others are sent as differences.
    assert!(ask(&("*a".repeat(40) + "Z")).contains("ab0"));
    // This is one of the most expensive patterns: it is refused.
    let told = ask(&format!("{}*b?Z*", "**a".repeat(40)));
    assert!(told.contains("the filter rules take too long to apply") || told.contains("ab0"), "{told}");
    assert!(begun.elapsed() < 3 * MARGIN, "{:?}", begun.elapsed());
}

#[test]
fn wrong_passwords_are_answered_later_and_later() {
    let (dir, _) = server("");
    let secrets = dir.path().join("secrets");
    fs::write(&secrets, "ann:a\n").unwrap();
    let text = format!(
        "[m]\npath = {}\nstrict modes = no\nauth users = ann\nsecrets file = {}\n",
        dir.path().display(),
        secrets.display()
    );
    let server = Server::new(&text);
    let begun = Instant::now();
    for _ in 0..6 {
        let mut stream = connect(&server);
        stream.write_all(b"@RSYNCD: 31.0 md5\nm\nann wrong\n").unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        assert!(told.ends_with("@ERROR: auth failed on module m\n"), "{told}");
    }
    // The first three have no delay. Then the delays are 0.1, 0.2, and 0.4 seconds.
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
}

/// The user of a module can neither end the server nor affect it in another way.
#[test]
#[ignore = "needs root and setpriv"]
fn the_user_of_a_module_cannot_signal_the_server() {
    let (_dir, server) = server("uid = 65534\ngid = 65534");
    let mut stream = connect(&server);
    stream.write_all(&hello(PULL)).unwrap();
    let deadline = Instant::now() + MARGIN;
    let (task, status) = loop {
        let tasks = fs::read_dir("/proc/self/task").unwrap().map_while(Result::ok);
        let read = tasks.map(|task| (task, String::new())).filter_map(|(task, _)| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            status.contains("\nUid:\t0\t65534\t0\t65534\n").then_some((task, status))
        });
        if let Some(found) = read.last() {
            break found;
        }
        assert!(Instant::now() < deadline, "nobody has become the module's user");
    };
    for set in ["CapEff", "CapPrm", "CapInh"] {
        assert!(status.contains(&format!("\n{set}:\t0000000000000000\n")), "{status}");
    }
    let kill = |who: &str| {
        let id = task.file_name().into_string().unwrap();
        let ids = [format!("--reuid={who}"), "--clear-groups".to_owned()];
        let killed =
            std::process::Command::new("setpriv").args(ids).args(["kill", "-0", &id]).output().unwrap();
        killed.status.success()
    };
    assert!(!kill("65534") && kill("0"));
}
