//! Requests over a pair of sockets, and others that break the rules.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::frame::{self, Greeting, Kind};
use super::{Channel, Connection, Handler, Manners, Patience, WireError, serve};
use crate::error::Failure;
use crate::request::{Action, Answer, Describe, ReceiveRequest, Request, SendRequest};

/// `describe` sends its root back this many times, `receive` counts bytes, `apply` fails, `sizes` waits for a
/// cancellation.
struct Echo {
    cancelled: AtomicBool,
}

impl Handler for Echo {
    fn handle(&self, request: Request, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        match request {
            Request::Describe(describe) => {
                let mut out = channel.outgoing();
                for _ in 0..1000 {
                    out.write_all(describe.root.as_bytes()).map_err(|e| Failure::lost(e.to_string()))?;
                }
                out.finish().map_err(|e| Failure::lost(e.to_string()))?;
                Ok(Answer::Done)
            }
            Request::Receive(_) => {
                let count = std::io::copy(&mut channel.incoming(), &mut std::io::sink())
                    .map_err(|e| Failure::lost(e.to_string()))?;
                Ok(Answer::Sizes(vec![Ok(count)]))
            }
            Request::Sizes { .. } => {
                while !channel.is_broken() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.cancelled.store(true, Ordering::Relaxed);
                Ok(Answer::Done)
            }
            _ => Err(Failure::other("no")),
        }
    }
}

/// A client that waits for ever, and packs.
const MANNERS: Manners = Manners { patience: None, level: 3 };
/// What the other side of a test says of itself.
const LIVELY: Greeting = Greeting { shows_life: true, packs: true, level: 0 };

/// Long for a test, and for no person.
fn quick() -> Patience {
    Patience { interval: Duration::from_millis(50), timeout: Duration::from_millis(400) }
}

fn with_server<T>(client: impl FnOnce(Arc<Connection>, &Echo) -> T) -> T {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let echo = Echo { cancelled: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let (input, output) = (theirs.try_clone().expect("a socket"), theirs);
        let server = scope.spawn(|| serve(input, output, quick(), &echo));
        let input = ours.try_clone().expect("a socket");
        let connection =
            Connection::open(input, ours.try_clone().expect("a socket"), MANNERS).expect("a server");
        let result = client(connection, &echo);
        ours.shutdown(std::net::Shutdown::Write).expect("shutting down");
        server.join().expect("no panic").expect("rules kept");
        result
    })
}

fn describe(root: &str) -> Request {
    Request::Describe(Describe { root: root.to_owned(), recursive: true, tag: String::new() })
}

fn receive() -> Request {
    Request::Receive(ReceiveRequest { target: "tank/a".to_owned(), ..ReceiveRequest::default() })
}

#[test]
fn many_requests_share_a_connection() {
    with_server(|connection, _| {
        std::thread::scope(|scope| {
            for at in 0..100 {
                let connection = connection.clone();
                scope.spawn(move || {
                    let root = format!("tank/{at}");
                    let call = connection.request(&describe(&root)).expect("sent");
                    let mut text = String::new();
                    call.channel().incoming().read_to_string(&mut text).expect("a stream");
                    assert_eq!(text, root.repeat(1000));
                    assert_eq!(call.channel().result(), Ok(Answer::Done));
                });
            }
        });
    });
}

#[test]
fn streams_longer_than_the_window_arrive_whole_beside_one_nobody_reads() {
    with_server(|connection, _| {
        let idle = connection.request(&describe(&"x".repeat(100_000))).expect("sent");
        let call = connection.request(&receive()).expect("sent");
        let mut out = call.channel().outgoing();
        let block = vec![7; 1 << 20];
        for _ in 0..33 {
            out.write_all(&block).expect("room");
        }
        out.finish().expect("an end");
        assert_eq!(call.channel().result(), Ok(Answer::Sizes(vec![Ok(33 << 20)])));
        assert_eq!(idle.channel().result(), Ok(Answer::Done));
    });
}

#[test]
fn a_failure_ends_the_stream_of_the_client() {
    with_server(|connection, _| {
        let call = connection.request(&Request::Apply { actions: Vec::<Action>::new() }).expect("sent");
        let mut out = call.channel().outgoing();
        let block = vec![7; 1 << 20];
        let refused = (0..64).find_map(|_| out.write_all(&block).err()).expect("a refusal");
        assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(call.channel().result(), Err(Failure::other("no")));
    });
}

#[test]
fn a_call_that_is_dropped_is_cancelled() {
    with_server(|connection, echo| {
        let call = connection.request(&Request::Sizes { sends: Vec::<SendRequest>::new() }).expect("sent");
        drop(call);
        while !echo.cancelled.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!connection.is_lost());
    });
}

#[test]
fn a_lost_connection_fails_what_is_under_way_and_what_comes_after() {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    frame::write_hello(&mut theirs, LIVELY).expect("a greeting");
    let connection = Connection::open(ours.try_clone().expect("a socket"), ours, MANNERS).expect("a server");
    let call = connection.request(&receive()).expect("sent");
    drop(theirs);
    let lost = call.channel().result().expect_err("nobody answers");
    assert!(lost.may_pass(), "{lost:?}");
    let refused = connection.request(&receive()).err().expect("nobody is there");
    assert!(refused.may_pass(), "{refused:?}");
}

#[test]
fn what_a_login_script_says_is_quoted() {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(b"Welcome to host").expect("room");
    let error =
        Connection::open(ours.try_clone().expect("a socket"), ours, MANNERS).err().expect("no server");
    assert!(matches!(&error, WireError::NotSync { said } if said.starts_with("Welcome")), "{error}");
}

#[test]
fn another_version_is_refused() {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(b"SNOWSYNC\x02\0\0\0\0\0\0\0").expect("room");
    let error =
        Connection::open(ours.try_clone().expect("a socket"), ours, MANNERS).err().expect("no server");
    assert!(matches!(error, WireError::Version { theirs: 2, ours: 1 }), "{error}");
}

/// What the server makes of these frames from a client that then goes away.
fn served(frames: &[(Kind, u32, &[u8])]) -> Result<(), WireError> {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut client = ours;
    frame::write_hello(&mut client, LIVELY).expect("a greeting");
    for (kind, channel, payload) in frames {
        client.write_all(&frame::encode_frame(*kind, *channel, payload).expect("a frame")).expect("room");
    }
    client.shutdown(std::net::Shutdown::Write).expect("shutting down");
    let echo = Echo { cancelled: AtomicBool::new(false) };
    let input = theirs.try_clone().expect("a socket");
    serve(input, theirs, quick(), &echo)
}

#[test]
fn broken_rules_end_the_connection() {
    let request = serde_json::to_vec(&receive()).expect("json");
    let open = (Kind::Open, 1, &request[..]);
    assert!(served(&[open]).is_ok());
    let credit = 1u32.to_le_bytes();
    for (what, frames) in [
        ("a channel that was never opened", vec![(Kind::Data, 9, &b"x"[..])]),
        ("a channel opened twice", vec![open, open]),
        ("data after the end", vec![open, (Kind::End, 1, &[][..]), (Kind::Data, 1, &b"x"[..])]),
        ("credit for nothing", vec![open, (Kind::Credit, 1, &credit[..])]),
        ("a result from a client", vec![open, (Kind::Result, 1, &b"null"[..])]),
    ] {
        // The first request may have ended before the next frame is read: then it is skipped.
        let ended = served(&frames);
        let skipped = frames.len() > 1 && frames.first() == Some(&open) && what != "a channel opened twice";
        assert!(
            matches!(ended, Err(WireError::Protocol { .. })) || skipped && ended.is_ok(),
            "{what}: {ended:?}"
        );
    }
}

#[test]
fn requests_that_are_not_known_are_refused_and_the_rest_goes_on() {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut client = ours.try_clone().expect("a socket");
    frame::write_hello(&mut client, LIVELY).expect("a greeting");
    let dance = frame::encode_frame(Kind::Open, 1, br#"{"request":"dance"}"#).expect("a frame");
    client.write_all(&dance).expect("room");
    let echo = Echo { cancelled: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let input = theirs.try_clone().expect("a socket");
        let server = scope.spawn(|| serve(input, theirs, quick(), &echo));
        let mut input = ours.try_clone().expect("a socket");
        frame::read_hello(&mut input).expect("a greeting");
        let mut payload = Vec::new();
        let header = frame::read_frame(&mut input, &mut payload).expect("a frame").expect("one");
        assert_eq!(header.kind, Kind::Result);
        let text = String::from_utf8(payload).expect("json");
        assert!(text.contains("not known here"), "{text}");
        ours.shutdown(std::net::Shutdown::Write).expect("shutting down");
        server.join().expect("no panic").expect("rules kept");
    });
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_taken_without_a_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let mut payload = Vec::new();
        let mut input = &bytes[..];
        while let Ok(Some(_)) = frame::read_frame(&mut input, &mut payload) {}
        let _ = frame::read_hello(&mut &bytes[..]);
    }
}

#[test]
fn a_client_hears_that_its_server_is_gone_though_the_streams_are_open() {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    frame::write_hello(&mut theirs, LIVELY).expect("a greeting");
    let manners = Manners { patience: Some(quick()), level: 0 };
    let connection = Connection::open(ours.try_clone().expect("a socket"), ours, manners).expect("a server");
    // One that waits for an answer, and one that waits for its bytes to go out, into a socket that nobody empties.
    let (waits, writes) = (connection.request(&describe("tank")), connection.request(&receive()));
    let (waits, writes) = (waits.expect("a request"), writes.expect("a request"));
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut out = writes.channel().outgoing();
            let bytes = vec![7; 1 << 20];
            std::iter::repeat_with(|| out.write_all(&bytes)).take(100).find_map(Result::err)
        });
        let error = waits.channel().result().expect_err("no server");
        assert!(error.may_pass() && error.message.contains("no data came from"), "{error}");
        assert!(writer.join().expect("no panic").is_some());
    });
    assert!(connection.is_lost());
    assert!(connection.request(&describe("tank")).is_err());
    let took = begun.elapsed();
    assert!(took >= quick().timeout && took < 20 * quick().timeout, "{took:?}");
}

#[test]
fn a_server_lets_go_of_a_client_of_which_nothing_is_heard() {
    let (mut client, theirs) = UnixStream::pair().expect("a pair of sockets");
    let echo = Echo { cancelled: AtomicBool::new(false) };
    frame::write_hello(&mut client, LIVELY).expect("a greeting");
    let request = serde_json::to_vec(&Request::Sizes { sends: Vec::new() }).expect("a request");
    client.write_all(&frame::encode_frame(Kind::Open, 1, &request).expect("a frame")).expect("room");
    let input = theirs.try_clone().expect("a socket");
    let ended = serve(input, theirs, quick(), &echo);
    assert!(matches!(ended, Err(WireError::Silent { .. })), "{ended:?}");
    assert!(echo.cancelled.load(Ordering::Relaxed));
}

#[test]
fn signs_of_life_keep_a_connection_that_is_idle() {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let echo = Echo { cancelled: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let input = theirs.try_clone().expect("a socket");
        let server = scope.spawn(|| serve(input, theirs, quick(), &echo));
        let manners = Manners { patience: Some(quick()), level: 0 };
        let socket = ours.try_clone().expect("a socket");
        let connection = Connection::open(socket, ours.try_clone().expect("a socket"), manners);
        let connection = connection.expect("a server");
        std::thread::sleep(3 * quick().timeout);
        let call = connection.request(&describe("tank")).expect("a request");
        let mut text = String::new();
        call.channel().incoming().read_to_string(&mut text).expect("a stream");
        assert_eq!(text.len(), 4000);
        drop((call, connection));
        ours.shutdown(std::net::Shutdown::Write).expect("shutting down");
        server.join().expect("no panic").expect("rules kept");
    });
}
