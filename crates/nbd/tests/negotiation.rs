//! Tests of all options of the negotiation, with the tests' own client.

#![allow(clippy::unwrap_used)]

mod common;

use common::client::*;
use common::{Memory, Running, Shelf, quick};

const SIZE: u64 = 1 << 20;
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const FLUSH_AND_FUA: u16 = 0b11 << 2;
const TRIM_AND_ZEROES: u16 = 0b11 << 5;
const SEND_DF: u16 = 1 << 7;
const MULTI_CONN: u16 = 1 << 8;
const SEND_CACHE: u16 = 1 << 10;
const FAST_ZERO: u16 = 1 << 11;
const STATUS_PAYLOAD: u16 = 1 << 12;
const ALWAYS: u16 = HAS_FLAGS | FLUSH_AND_FUA | MULTI_CONN | SEND_CACHE;
const WRITABLE: u16 = ALWAYS | TRIM_AND_ZEROES | FAST_ZERO;

fn server() -> Running {
    let described = Memory::new(SIZE).described("a disk for the tests");
    let shelf = Shelf { default: Some("tank/vm1".to_owned()), ..Shelf::default() }
        .with("tank/vm1", described)
        .with("tank/vm1@monday", Memory::new(SIZE / 2).read_only());
    Running::unix(shelf, quick())
}

/// The items of the answer to INFO or GO, by number.
fn items(replies: &[OptionReply]) -> Vec<(u16, Vec<u8>)> {
    let item = |reply: &OptionReply| {
        assert_eq!(reply.kind, INFO);
        (u16::from_be_bytes([reply.data[0], reply.data[1]]), reply.data[2..].to_vec())
    };
    let mut items: Vec<_> = replies.iter().map(item).collect();
    items.sort();
    items
}

fn export_item(size: u64, flags: u16) -> (u16, Vec<u8>) {
    (0, [&size.to_be_bytes()[..], &flags.to_be_bytes()].concat())
}

#[test]
fn export_name_with_and_without_zeroes() {
    let server = server();
    for (flags, padding) in [(3, 0), (1, 124), (0, 124), (2, 0)] {
        let mut client = Client::greet(connect(&server.endpoint), flags);
        client.send_option(OPT_EXPORT_NAME, b"tank/vm1");
        let mut answer = vec![0; 10 + padding];
        client.wire.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], SIZE.to_be_bytes());
        assert_eq!(answer[8..10], WRITABLE.to_be_bytes());
        assert!(answer[10..].iter().all(|&byte| byte == 0));
        assert_eq!(client.read(0, 512), vec![0; 512], "flags {flags}");
    }
}

#[test]
fn export_name_of_the_default_export() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    client.send_option(OPT_EXPORT_NAME, b"");
    let mut answer = [0; 10];
    client.wire.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], SIZE.to_be_bytes());
}

#[test]
fn export_name_that_cannot_be_served_ends_the_connection() {
    let server = server();
    for name in ["nothing", "deny", "broken", "a\0b"] {
        let mut client = Client::new(&server.endpoint);
        client.send_option(OPT_EXPORT_NAME, name.as_bytes());
        assert!(client.is_closed(), "{name:?}");
    }
}

#[test]
fn go_tells_size_and_flags() {
    let server = server();
    for (name, size, flags) in
        [("tank/vm1", SIZE, WRITABLE), ("tank/vm1@monday", SIZE / 2, ALWAYS | READ_ONLY)]
    {
        let mut client = Client::new(&server.endpoint);
        let (kind, replies) = client.ask(OPT_GO, &info_data(name, &[]));
        assert_eq!((kind, items(&replies)), (ACK, vec![export_item(size, flags)]));
        assert_eq!(client.read(0, 512), vec![0; 512]);
    }
}

#[test]
fn info_tells_what_was_asked_for_and_goes_nowhere() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    let (kind, replies) = client.ask(OPT_INFO, &info_data("", &[3, 2, 1, 77]));
    let sizes = [1u32, 16 << 10, 32 << 20].map(u32::to_be_bytes).as_flattened().to_vec();
    let expected = vec![
        export_item(SIZE, WRITABLE),
        (1, b"tank/vm1".to_vec()),
        (2, b"a disk for the tests".to_vec()),
        (3, sizes),
    ];
    assert_eq!((kind, items(&replies)), (ACK, expected));
    // the name is sent without a request if it differs from the given one
    let (_, replies) = client.ask(OPT_INFO, &info_data("", &[]));
    assert_eq!(items(&replies), vec![export_item(SIZE, WRITABLE), (1, b"tank/vm1".to_vec())]);
    let (kind, replies) = client.ask(OPT_INFO, &info_data("tank/vm1@monday", &[2]));
    assert_eq!((kind, items(&replies)), (ACK, vec![export_item(SIZE / 2, ALWAYS | READ_ONLY)]));
    assert_eq!(client.ask(OPT_GO, &info_data("tank/vm1", &[])).0, ACK);
}

#[test]
fn what_cannot_be_opened_is_refused_with_its_reason() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    for (name, expected, reason) in [
        ("nothing", ERR_UNKNOWN, "no such export"),
        ("deny", ERR_POLICY, "not for you"),
        ("broken", ERR_UNKNOWN, "pool is suspended"),
    ] {
        for option in [OPT_INFO, OPT_GO] {
            client.send_option(option, &info_data(name, &[3]));
            let reply = client.option_reply().unwrap();
            assert_eq!(reply.kind, expected, "{name}");
            assert!(String::from_utf8(reply.data).unwrap().contains(reason));
        }
    }
}

#[test]
fn no_default_export() {
    let server = Running::unix(Shelf::default().with("x", Memory::new(512)), quick());
    let mut client = Client::new(&server.endpoint);
    assert_eq!(client.ask(OPT_GO, &info_data("", &[])).0, ERR_UNKNOWN);
    assert_eq!(client.ask(OPT_GO, &info_data("x", &[])).0, ACK);
}

#[test]
fn list_names_all_exports() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    let (kind, replies) = client.ask(OPT_LIST, &[]);
    let names: Vec<_> = replies.iter().map(|reply| (reply.kind, reply.data.clone())).collect();
    assert_eq!(kind, ACK);
    assert_eq!(names, [(SERVER, counted(b"tank/vm1")), (SERVER, counted(b"tank/vm1@monday"))]);
    assert_eq!(client.ask(OPT_LIST, b"x").0, ERR_INVALID);
}

#[test]
fn a_long_list_arrives_whole() {
    let mut shelf = Shelf::default();
    for index in 0..5000 {
        shelf = shelf.with(&format!("tank/{}/{index:05}", "x".repeat(100)), Memory::new(512));
    }
    let server = Running::unix(shelf, quick());
    let (kind, replies) = Client::new(&server.endpoint).ask(OPT_LIST, &[]);
    assert_eq!((kind, replies.len()), (ACK, 5000));
}

#[test]
fn abort_is_acknowledged_and_ends_the_connection() {
    let server = server();
    for data in [&b""[..], b"whatever"] {
        let mut client = Client::new(&server.endpoint);
        assert_eq!(client.ask(OPT_ABORT, data).0, ACK);
        assert!(client.is_closed());
    }
}

#[test]
fn starttls_without_tls_is_against_policy() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    assert_eq!(client.ask(OPT_STARTTLS, &[]).0, ERR_POLICY);
    assert_eq!(client.ask(OPT_STARTTLS, b"x").0, ERR_INVALID);
    assert_eq!(client.ask(OPT_GO, &info_data("tank/vm1", &[])).0, ACK);
}

#[test]
fn unknown_options_are_refused_and_skipped() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    for (option, length) in [(4, 0), (12, 100), (u32::MAX, 65_536)] {
        assert_eq!(client.ask(option, &vec![7; length]).0, ERR_UNSUP, "{option}");
    }
    assert_eq!(client.ask(99, &vec![7; 65_537]).0, ERR_TOO_BIG);
    assert_eq!(client.ask(OPT_GO, &info_data("tank/vm1", &[])).0, ACK);
}

#[test]
fn structured_replies_and_extended_headers() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    assert_eq!(client.ask(OPT_STRUCTURED, b"x").0, ERR_INVALID);
    assert_eq!(client.ask(OPT_EXTENDED, b"x").0, ERR_INVALID);
    assert_eq!(client.ask(OPT_STRUCTURED, &[]).0, ACK);
    let flags = |client: &mut Client| items(&client.ask(OPT_INFO, &info_data("tank/vm1", &[])).1)[0].clone();
    assert_eq!(flags(&mut client), export_item(SIZE, WRITABLE | SEND_DF));
    assert_eq!(client.ask(OPT_EXTENDED, &[]).0, ACK);
    assert_eq!(client.ask(OPT_STRUCTURED, &[]).0, ERR_EXT_HEADER_REQD);
    assert_eq!(flags(&mut client), export_item(SIZE, WRITABLE | SEND_DF));
    assert_eq!(client.ask(OPT_SET_META, &meta_data("tank/vm1", &["base:allocation"])).0, ACK);
    assert_eq!(flags(&mut client), export_item(SIZE, WRITABLE | SEND_DF | STATUS_PAYLOAD));
    client.send_option(OPT_EXPORT_NAME, b"tank/vm1");
    assert!(client.is_closed(), "extended headers need GO");
}

#[test]
fn meta_contexts_are_listed_and_set() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    let ask = |client: &mut Client, option, name: &str, queries: &[&str]| {
        let (kind, replies) = client.ask(option, &meta_data(name, queries));
        let found: Vec<_> = replies
            .iter()
            .map(|reply| {
                assert_eq!(reply.kind, META);
                (reply.data[..4].to_vec(), String::from_utf8(reply.data[4..].to_vec()).unwrap())
            })
            .collect();
        (kind, found)
    };
    for option in [OPT_LIST_META, OPT_SET_META] {
        assert_eq!(
            ask(&mut client, option, "tank/vm1", &["base:allocation"]).0,
            ERR_INVALID,
            "not before chunks"
        );
    }
    assert_eq!(client.ask(OPT_STRUCTURED, &[]).0, ACK);
    let listed = vec![(vec![0; 4], "base:allocation".to_owned())];
    let set = vec![(vec![0, 0, 0, 1], "base:allocation".to_owned())];
    let none = Vec::new();
    for (option, queries, expected) in [
        (OPT_LIST_META, &[][..], &listed),
        (OPT_LIST_META, &["base:"], &listed),
        (OPT_LIST_META, &["base:allocation"], &listed),
        (OPT_LIST_META, &["qemu:", "x-y:z"], &none),
        (OPT_LIST_META, &["base:other"], &none),
        (OPT_SET_META, &[], &none),
        (OPT_SET_META, &["base:"], &none),
        (OPT_SET_META, &["base:other", "base:allocation", "base:allocation"], &set),
    ] {
        assert_eq!(
            ask(&mut client, option, "tank/vm1", queries),
            (ACK, expected.clone()),
            "{option} {queries:?}"
        );
    }
    assert_eq!(ask(&mut client, OPT_SET_META, "nothing", &["base:allocation"]).0, ERR_UNKNOWN);
    assert_eq!(ask(&mut client, OPT_LIST_META, "tank/vm1", &["allocation"]).0, ERR_INVALID);
    assert_eq!(client.ask(OPT_SET_META, &[0, 0, 0, 9]).0, ERR_INVALID);
}

/// The error of a block status request after the given SET_META_CONTEXT requests and GO for `tank/vm1`.
fn status_after(server: &Running, sets: &[(&str, &str)]) -> u32 {
    let mut client = Client::new(&server.endpoint);
    assert_eq!(client.ask(OPT_STRUCTURED, &[]).0, ACK);
    for (name, query) in sets {
        client.ask(OPT_SET_META, &meta_data(name, &[query]));
    }
    assert_eq!(client.ask(OPT_GO, &info_data("tank/vm1", &[])).0, ACK);
    client.style = Style::Structured;
    client.call(BLOCK_STATUS, 0, 0, 4096, &[]).error
}

#[test]
fn block_status_needs_the_context_of_this_export() {
    let server = server();
    let allocation = "base:allocation";
    assert_eq!(status_after(&server, &[("tank/vm1", allocation)]), 0);
    assert_eq!(status_after(&server, &[("", allocation)]), 0, "the default export is this one");
    assert_eq!(status_after(&server, &[]), EINVAL);
    assert_eq!(status_after(&server, &[("tank/vm1@monday", allocation)]), EINVAL);
    assert_eq!(status_after(&server, &[("tank/vm1", allocation), ("tank/vm1", "base:other")]), EINVAL);
    assert_eq!(status_after(&server, &[("tank/vm1", allocation), ("nothing", allocation)]), EINVAL);
}

#[test]
fn malformed_names_are_refused() {
    let server = server();
    let mut client = Client::new(&server.endpoint);
    let mut beyond = info_data("tank/vm1", &[]);
    beyond[3] = 200;
    for data in [
        &b""[..],
        &beyond,
        &info_data("a\0b", &[]),
        &info_data(&"x".repeat(5000), &[]),
        &[0, 0, 0, 1, 0xff, 0, 0],
    ] {
        assert_eq!(client.ask(OPT_GO, data).0, ERR_INVALID, "{data:?}");
    }
    assert_eq!(client.ask(OPT_GO, &info_data("tank/vm1", &[])).0, ACK);
}
