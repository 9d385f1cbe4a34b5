//! Tests with hostile or broken clients. The server must not panic, hang, or exceed its limits, and must continue to
//! serve other clients.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::client::*;
use common::{Memory, Running, Shelf, quick};
use proptest::prelude::*;
use snowmelt_nbd::{Listener, Options, ServeError};

const SIZE: u64 = 1 << 20;

fn serve(options: Options) -> Running {
    Running::unix(Shelf::default().with("disk", Memory::filled(SIZE)), options)
}

/// Checks that another client is still served.
fn still_serves(server: &Running) {
    let expected = server.memory("disk").content();
    assert_eq!(Client::open(&server.endpoint, "disk", Style::Structured).read(0, 4096), expected[..4096]);
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let server = serve(quick());
    for flags in [4, 1 << 31, u32::MAX] {
        assert!(Client::greet(connect(&server.endpoint), flags).is_closed(), "{flags:#x}");
    }
}

#[test]
fn without_fixed_newstyle_there_is_only_export_name() {
    let server = serve(quick());
    let mut client = Client::greet(connect(&server.endpoint), 0);
    client.send_option(OPT_LIST, &[]);
    assert!(client.is_closed());
}

#[test]
fn options_of_a_gigabyte_end_the_connection() {
    let server = serve(quick());
    let mut client = Client::new(&server.endpoint);
    client.wire.write_all(&[&b"IHAVEOPT"[..], &[0, 0, 0, 7, 0x40, 0, 0, 0]].concat()).unwrap();
    assert!(client.is_closed());
    let mut client = Client::new(&server.endpoint);
    client.wire.write_all(&[b'x'; 16]).unwrap();
    assert!(client.is_closed(), "not an option at all");
}

#[test]
fn endless_haggling_ends() {
    let server = serve(quick());
    let mut client = Client::new(&server.endpoint);
    for _ in 0..1024 {
        assert_eq!(client.ask(99, &[]).0, ERR_UNSUP);
    }
    assert!(client.is_closed());
}

#[test]
fn silence_is_not_waited_for_for_ever() {
    let server = serve(Options { handshake_timeout: Duration::from_millis(100), ..quick() });
    let begun = Instant::now();
    // one client sends nothing, the other one stops within an option
    assert!(Client::new(&server.endpoint).is_closed());
    let mut client = Client::new(&server.endpoint);
    client.wire.write_all(b"IHAVEO").unwrap();
    assert!(client.is_closed());
    assert!(begun.elapsed() < Duration::from_secs(5));
    still_serves(&server);
}

#[test]
fn a_request_half_sent_is_not_waited_for_for_ever() {
    let server = serve(Options { stall_timeout: Duration::from_millis(100), ..quick() });
    let mut client = Client::open(&server.endpoint, "disk", Style::Simple);
    let head = client.head(WRITE, 0, 1, 0, 4096);
    client.wire.write_all(&head[..10]).unwrap();
    assert!(client.is_closed());
    let mut client = Client::open(&server.endpoint, "disk", Style::Simple);
    client.wire.write_all(&[&head[..], &[1; 100]].concat()).unwrap();
    assert!(client.is_closed());
    // but a client may be idle between requests
    let mut client = Client::open(&server.endpoint, "disk", Style::Simple);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.read(0, 512).len(), 512);
}

#[test]
fn half_a_write_changes_nothing() {
    let server = serve(quick());
    let before = server.memory("disk").content();
    for style in [Style::Simple, Style::Extended] {
        let mut client = Client::open(&server.endpoint, "disk", style);
        let flags = if style == Style::Extended { PAYLOAD_LEN } else { 0 };
        let head = client.head(WRITE, flags, 1, 0, 4096);
        client.wire.write_all(&[&head[..], &[0xee; 4000]].concat()).unwrap();
        drop(client);
    }
    still_serves(&server);
    let result = server.shelf.exports["disk"].content() == before;
    server.stop().unwrap();
    assert!(result);
}

#[test]
fn replies_that_nobody_takes_do_not_pile_up() {
    let options = Options {
        max_in_flight: 8,
        max_request: 64 << 10,
        connection_memory: 256 << 10,
        server_memory: 1 << 20,
        stall_timeout: Duration::from_millis(300),
        ..quick()
    };
    let server = serve(options);
    let mut client = Client::open(&server.endpoint, "disk", Style::Simple);
    let head = client.head(READ, 0, 1, 0, 64 << 10);
    // this is far more than the sockets hold: the server must stop reading, then close the connection
    let begun = Instant::now();
    while client.wire.write_all(&head).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(15), "the server takes requests without end");
    }
    still_serves(&server);
}

#[test]
fn payloads_beyond_all_bounds_end_the_connection() {
    let server = serve(quick());
    for (style, length) in [
        (Style::Simple, (32 << 20) + 1),
        (Style::Structured, u64::from(u32::MAX)),
        (Style::Extended, u64::MAX),
    ] {
        let mut client = Client::open(&server.endpoint, "disk", style);
        let flags = if style == Style::Extended { PAYLOAD_LEN } else { 0 };
        let head = client.head(WRITE, flags, 1, 0, length);
        client.wire.write_all(&head).unwrap();
        assert!(client.is_closed(), "{style:?}");
    }
    still_serves(&server);
}

#[test]
fn a_head_of_the_wrong_style_ends_the_connection() {
    let server = serve(quick());
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    client.style = Style::Extended;
    client.send(READ, 0, 1, 0, 512, &[]);
    assert!(client.is_closed());
    still_serves(&server);
}

#[test]
fn what_was_asked_before_the_protocol_was_broken_is_answered() {
    let server = serve(quick());
    let mut client = Client::open(&server.endpoint, "disk", Style::Simple);
    server.memory("disk").gate.set(true);
    client.send(READ, 0, 7, 0, 512, &[]);
    client.wire.write_all(&[0; 28]).unwrap();
    server.memory("disk").gate.set(false);
    assert_eq!(client.reply().unwrap().cookie, 7);
    assert!(client.is_closed());
}

#[test]
fn too_many_connections_are_closed_and_make_room_again() {
    let server = serve(Options { max_connections: 3, ..quick() });
    let mut open: Vec<_> = (0..3).map(|_| Client::open(&server.endpoint, "disk", Style::Simple)).collect();
    assert_eq!(connect(&server.endpoint).read(&mut [0]).unwrap(), 0);
    let mut last = open.pop().unwrap();
    last.send(DISC, 0, 0, 0, 0, &[]);
    assert!(last.is_closed());
    let begun = Instant::now();
    // the place becomes free shortly after the client sees the end
    while connect(&server.endpoint).read(&mut [0]).unwrap() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}

/// Nobody may connect before the socket has its permissions, so the umask never matters.
#[test]
fn sockets_never_have_other_permissions() {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let (path, beside) = (dir.path().join("socket"), dir.path().join("socket~"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut modes = std::collections::BTreeSet::new();
            while !is_done.load(Ordering::Relaxed) {
                let found = [&path, &beside].map(std::fs::symlink_metadata).into_iter().flatten();
                modes.extend(found.map(|metadata| metadata.permissions().mode() & 0o777));
            }
            modes
        });
        for _ in 0..3000 {
            drop(Listener::unix_mode(&path, 0o600).unwrap());
        }
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(looking.join().unwrap(), [0o600].into());
        assert!(!path.exists() && !beside.exists());
    });
}

#[test]
fn sockets_are_private_replaced_and_removed() {
    use std::os::unix::fs::PermissionsExt;
    let server = serve(quick());
    let path = server.socket();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::unix(&path), Err(ServeError::SocketInUse { .. })));
    let other = path.with_file_name("other");
    std::fs::write(&other, "precious").unwrap();
    assert!(matches!(Listener::unix(&other), Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    let dead = path.with_file_name("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    drop(Listener::unix_mode(&dead, 0o666).unwrap());
    assert!(!dead.exists());
    let shelf = std::sync::Arc::clone(&server.shelf);
    server.stop().unwrap();
    assert!(!path.exists());
    drop(shelf);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Random bytes instead of options, of requests, and after the valid beginning of a request.
    #[test]
    fn any_bytes_do_no_harm(
        style in prop_oneof![
            Just(None),
            Just(Some(Style::Simple)),
            Just(Some(Style::Structured)),
            Just(Some(Style::Extended))
        ],
        heads in proptest::collection::vec(
            (
                0u16..12,
                0u16..128,
                prop_oneof![0..SIZE, any::<u64>()],
                prop_oneof![0..10_000u64, 0..u64::from(u32::MAX)]
            ),
            0..6
        ),
        junk in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let server = Running::unix(Shelf::default().with("disk", Memory::filled(SIZE).read_only()), quick());
        let mut client = match style {
            None => Client::new(&server.endpoint),
            Some(style) => Client::open(&server.endpoint, "disk", style),
        };
        let mut bytes = Vec::new();
        for (kind, flags, offset, length) in heads {
            if style.is_none() {
                bytes.extend_from_slice(b"IHAVEOPT");
                bytes.extend_from_slice(&u32::from(kind).to_be_bytes());
                bytes.extend_from_slice(&u32::try_from(length % 30).unwrap().to_be_bytes());
                bytes.extend_from_slice(&junk[..junk.len().min(usize::from(flags) % 40)]);
            } else {
                bytes.extend(client.head(kind, flags, offset, offset, length));
            }
        }
        bytes.extend(junk);
        // the server may close the connection or wait for more bytes; both are correct
        let _ = client.wire.write_all(&bytes);
        drop(client);
        still_serves(&server);
    }
}
