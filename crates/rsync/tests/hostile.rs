//! Tests hostile and broken clients: each ends only its own connection, and the daemon serves the next one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use common::Server;
use common::trees::Random;

const MINUTE: Duration = Duration::from_secs(60);

/// A daemon with a module that allows one connection at a time.
fn server(patience: Duration) -> (tempfile::TempDir, Server) {
    server_with(patience, 20)
}

fn server_with(patience: Duration, timeout_seconds: u32) -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/f"), vec![7; 100_000]).unwrap();
    fs::write(dir.path().join("outside"), b"outside").unwrap();
    symlink("../outside", source.join("near")).unwrap();
    symlink("/etc/hostname", source.join("far")).unwrap();
    symlink("..", source.join("d/up")).unwrap();
    symlink("../..", source.join("d/out")).unwrap();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let path = source.display();
    let config = format!("[m]\npath = {path}\nuid = {uid}\ngid = {gid}\nmax connections = 1\n");
    let config = format!("{config}timeout = {timeout_seconds}\n");
    let server = Server::patient(&config, patience);
    (dir, server)
}

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(("127.0.0.1", server.port)).unwrap()
}

/// Reads to the end of a connection. The other side may also reset it.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    read
}

/// The bytes before the arguments.
const GREETING: &[u8] = b"@RSYNCD: 31.0 md5\nm\n";

fn words(args: &[&str]) -> Vec<u8> {
    let mut said: Vec<u8> = args.iter().flat_map(|arg| [arg.as_bytes(), b"\0"].concat()).collect();
    said.push(0);
    said
}

/// The greeting of a client and these arguments.
fn hello(args: &[&str]) -> Vec<u8> {
    [GREETING, &words(args)].concat()
}

/// A data message.
fn message(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32 | 7 << 24).to_le_bytes()[..], data].concat()
}

const ARGS: &[&str] = &["--server", "--sender", "-logDtpre.iLsfxCIvu", ".", "m/"];

/// Asserts that the module has no client any more, and that a client with a proper request gets its file list.
fn assert_served(server: &Server) {
    // The only place in the module is free as soon as its client is gone.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut stream = BufReader::new(connect(server));
        stream.get_mut().write_all(GREETING).unwrap();
        // A refused client is told so before it has to send more.
        let mut answer = String::new();
        for _ in 0..2 {
            answer.clear();
            stream.read_line(&mut answer).unwrap();
        }
        if !answer.starts_with("@ERROR: max connections") {
            assert_eq!(answer, "@RSYNCD: OK\n");
            // The choice of a checksum and no rules. Nothing more is needed for the lists.
            let said = [words(ARGS), b"\x03md5".to_vec(), message(&[0; 4])].concat();
            stream.get_mut().write_all(&said).unwrap();
            stream.get_mut().shutdown(Shutdown::Write).unwrap();
            let mut read = Vec::new();
            let _ = stream.read_to_end(&mut read);
            assert!(read.windows(4).any(|name| name == b"near"), "{}", String::from_utf8_lossy(&read));
            return;
        }
        assert!(Instant::now() < deadline, "the module is never free");
    }
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let (_dir, server) = server(MINUTE);
    let mut random = Random(5);
    for begin in [vec![], b"@RSYNCD: 31.0 md5\n".to_vec(), b"@RSYNCD: 31.0 md5\nm\n".to_vec(), hello(ARGS)] {
        for len in [0, 1, 100, 200_000] {
            let mut stream = connect(&server);
            // The server may close the connection before it has read everything.
            let _ = stream.write_all(&[&begin[..], &random.bytes(len)].concat());
            let _ = stream.shutdown(Shutdown::Write);
            rest(&mut stream);
        }
    }
    // Random bytes in messages, from the rules on.
    for round in 0..40 {
        let mut stream = connect(&server);
        let _ = stream.write_all(&[hello(ARGS), b"\x03md5".to_vec()].concat());
        for _ in 0..4 {
            let len = random.below(300) as usize;
            let mut data = random.bytes(len);
            if round % 2 == 0 {
                data.splice(..0, [0; 4]);
            }
            let _ = stream.write_all(&message(&data));
        }
        let _ = stream.shutdown(Shutdown::Write);
        rest(&mut stream);
    }
    assert_served(&server);
}

#[test]
fn floods_are_cut_off() {
    let (_dir, server) = server(MINUTE);
    let line = vec![b'a'; 8 << 20];
    let args = [b"@RSYNCD: 31.0 md5\nm\n".to_vec(), b"-v\0".repeat(4 << 20)].concat();
    let long = [b"@RSYNCD: 31.0 md5\nm\n".to_vec(), vec![b'-'; 8 << 20]].concat();
    // A rule of 2 GiB, endless rules, and a message of 16 MiB that is not data.
    let to_rules = [hello(ARGS), b"\x03md5".to_vec()].concat();
    let rule = [to_rules.clone(), message(&i32::MAX.to_le_bytes())].concat();
    let rules =
        [to_rules.clone(), message(&[&3_i32.to_le_bytes()[..], b"- a"].concat()).repeat(300_000)].concat();
    let long_rule = [&8000_i32.to_le_bytes()[..], b"- ", &[b'a'; 7998]].concat();
    let long_rules = [to_rules.clone(), message(&long_rule).repeat(3000)].concat();
    let note =
        [to_rules.clone(), (0xff_ffff_u32 | 9 << 24).to_le_bytes().to_vec(), vec![b'x'; 1 << 20]].concat();
    // A request for the file of index 4 with checksums of 2^31 blocks.
    let ask = [&[0; 4][..], &[3, 0, 0x80], &i32::MAX.to_le_bytes(), &[0, 4, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]]
        .concat();
    let sums = [to_rules, message(&ask)].concat();
    for flood in [line, args, long, rule, rules, long_rules, note, sums] {
        let mut stream = connect(&server);
        let mut writer = stream.try_clone().unwrap();
        // The two sides must not wait for each other: more may be sent than anybody reads.
        let sending = std::thread::spawn(move || {
            let _ = writer.write_all(&flood);
            let _ = writer.shutdown(Shutdown::Write);
        });
        rest(&mut stream);
        sending.join().unwrap();
    }
    assert_served(&server);
}

#[test]
fn who_says_nothing_keeps_nobody_else_waiting() {
    let (_dir, server) = server(MINUTE);
    // Each client stops at another point of the greeting, and none is in the module. Another one then leaves with its
    // half of the connection open.
    let begin = hello(ARGS);
    let silent: Vec<TcpStream> = [0, 1, 10, 18]
        .map(|len| {
            let mut stream = connect(&server);
            stream.write_all(&begin[..len]).unwrap();
            stream
        })
        .into();
    assert_served(&server);
    let mut stream = connect(&server);
    stream.write_all(&begin).unwrap();
    stream.shutdown(Shutdown::Read).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_served(&server);
    drop(silent);
}

/// A client that sends a byte now and then gets no more time than one that sends none.
#[test]
fn slow_greetings_are_cut_off() {
    let (_dir, server) = server(Duration::from_secs(3));
    let mut stream = connect(&server);
    let mut writer = stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let mut sent = 0;
        // It ends when the server does not read any more.
        while writer.write_all(b"@").is_ok() && sent < 900 {
            sent += 1;
            std::thread::park_timeout(Duration::from_millis(50));
        }
        sent
    });
    rest(&mut stream);
    drop(stream);
    assert!(dripping.join().unwrap() < 900);
    assert_served(&server);
}

/// The same holds later: in the choice of algorithms, in rules, in a message, and without messages. Rules have the time
/// limit of the greeting.
#[test]
fn what_drips_in_later_is_cut_off() {
    let (_dir, server) = server_with(Duration::from_secs(2), 2);
    let begun = [hello(ARGS), b"\x03md5".to_vec()].concat();
    let to_requests = [begun.clone(), message(&[0; 4])].concat();
    let lines = b"@RSYNCD: 29.0\nm\n--server\n--sender\n-logDtpr\n.\nm/\n\n";
    let drips = [
        ("algorithms", hello(ARGS), vec![b"\xc0".to_vec(), b"m".to_vec()], 100),
        ("rules", begun.clone(), vec![message(&[100, 0, 0, 0]), message(b"a")], 100),
        ("whole rules", begun, vec![message(b"\x03\0\0\0- a")], 100),
        (
            "a message",
            [to_requests.clone(), (1000_u32 | 7 << 24).to_le_bytes().to_vec()].concat(),
            vec![vec![9]],
            100,
        ),
        ("a header", to_requests, vec![vec![232]], 700),
        ("no messages", [&lines[..], &[0; 4]].concat(), vec![vec![0]], 700),
    ];
    for (what, begin, drops, millis) in drips {
        let mut stream = connect(&server);
        stream.write_all(&begin).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let dripping = std::thread::spawn(move || {
            let mut drops = drops.iter().chain(std::iter::repeat(&drops[drops.len() - 1]));
            let begun = Instant::now();
            while begun.elapsed() < MINUTE && writer.write_all(drops.next().unwrap()).is_ok() {
                std::thread::park_timeout(Duration::from_millis(millis));
            }
            begun.elapsed()
        });
        rest(&mut stream);
        drop(stream);
        assert!(dripping.join().unwrap() < MINUTE / 2, "{what}");
        assert_served(&server);
    }
}

/// A client that is slow, or that sends keep-alives, is not cut off.
#[test]
fn who_is_slow_is_waited_for() {
    let (_dir, server) = server_with(Duration::from_secs(2), 2);
    let noop = |body: &[u8]| [&(body.len() as u32 | 49 << 24).to_le_bytes()[..], body].concat();
    // Reads the content of d/f, after a message that arrives with 1,250 bytes per second, and after keep-alives.
    let request = [message(&[5, 0, 0x80]), message(&[0; 16])].concat();
    for (piece, millis, pieces) in [(250, 200, noop(&[0; 5000])), (4, 800, noop(&[]).repeat(6))] {
        let mut stream = connect(&server);
        let args = ["--server", "--sender", "-logDtpre.LsfxCIvu", ".", "m/"];
        stream.write_all(&[hello(&args), b"\x03md5".to_vec(), message(&[0; 4])].concat()).unwrap();
        for piece in pieces.chunks(piece) {
            std::thread::park_timeout(Duration::from_millis(millis));
            stream.write_all(piece).unwrap();
        }
        stream.write_all(&request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let came = rest(&mut stream);
        assert!(came.len() > 100_000, "{} {}", came.len(), String::from_utf8_lossy(&came));
    }
}

#[test]
fn paths_lead_nowhere_else() {
    let (_dir, server) = server(MINUTE);
    for path in [
        "m/../outside",
        "m/d/../../outside",
        "m/d/out/outside",
        "m/d/up/../../outside",
        "m/near",
        "m/far/",
        "m//etc/hostname",
        "../outside",
        "/etc/hostname",
        "n/d/f",
    ] {
        let mut stream = connect(&server);
        // -L follows links.
        stream.write_all(&hello(&["--server", "--sender", "-Lre.LsfxCIvu", ".", path])).unwrap();
        stream.write_all(b"\x03md5").unwrap();
        stream.write_all(&message(&[0; 4])).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let read = String::from_utf8_lossy(&rest(&mut stream)).into_owned();
        assert!(read.contains("failed: No such file") || read.contains("no referent"), "{path}: {read}");
    }
}

/// Sessions up to the requests of files, in the form of each version.
fn sessions() -> [Vec<u8>; 3] {
    let lines = |version: u8| {
        let args = ARGS.join("\n").replace("e.iLsfxCIvu", "");
        format!("@RSYNCD: {version}\nm\n{args}\n\n").into_bytes()
    };
    let request = |flags: &[u8]| [&[2, 0, 0, 0][..], flags, &[0; 16]].concat();
    [
        [hello(ARGS), b"\x03md5".to_vec(), message(&[0; 4]), message(&[2, 0, 0x80]), message(&[0; 16])]
            .concat(),
        [lines(29), vec![0; 4], request(&[0, 0x80])].concat(),
        [lines(27), vec![0; 4], request(&[])].concat(),
    ]
}

#[test]
fn who_stops_in_the_middle_is_gone() {
    let (_dir, server) = server(MINUTE);
    for session in sessions() {
        for len in (0..=session.len()).step_by(3) {
            let mut stream = connect(&server);
            stream.write_all(&session[..len]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            rest(&mut stream);
        }
        assert_served(&server);
    }
}

#[test]
fn garbage_in_the_middle_ends_a_connection_and_nothing_else() {
    let (_dir, server) = server(MINUTE);
    let mut random = Random(9);
    for session in sessions() {
        for _ in 0..60 {
            let mut said = session.clone();
            let at = random.below(session.len() as u64) as usize;
            said.truncate(at);
            said.extend(random.bytes(300));
            let mut stream = connect(&server);
            // The server may close the connection before everything was sent.
            let _ = stream.write_all(&said);
            let _ = stream.shutdown(Shutdown::Write);
            rest(&mut stream);
        }
        assert_served(&server);
    }
}
