//! Tests of all commands of the transmission phase, in every style, with the tests' own client, and of a model of all
//! commands.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::client::*;
use common::{BLOCK, Memory, Running, Shelf, quick};
use proptest::prelude::*;
use snowmelt_nbd::{Log, Options, ServeError};

const SIZE: u64 = 1 << 20;
const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

fn serve(memory: Memory) -> Running {
    Running::unix(Shelf::default().with("disk", memory), quick())
}

#[test]
fn reads_what_was_written() {
    let server = serve(Memory::new(SIZE));
    for (index, style) in STYLES.into_iter().enumerate() {
        let mut client = Client::open(&server.endpoint, "disk", style);
        let data: Vec<u8> = (0..70_001u32).map(|i| (i % 250) as u8 + 1).collect();
        let offset = 12_345 + 100_000 * index as u64;
        assert_eq!(client.write(offset, &data).error, 0);
        assert_eq!(client.read(offset, 70_001), data);
        assert_eq!(client.read(offset - 5, 10), [&[0; 5], &data[..5]].concat());
        let whole = client.call(
            READ,
            if style == Style::Simple { 0 } else { DF },
            offset - 90_000 % offset,
            500_000,
            &[],
        );
        assert_eq!((whole.data.len(), whole.holes.len(), whole.error), (1, 0, 0));
    }
}

#[test]
fn holes_are_told_and_not_sent() {
    let server = serve(Memory::new(SIZE));
    for style in [Style::Structured, Style::Extended] {
        let mut client = Client::open(&server.endpoint, "disk", style);
        assert_eq!(client.write(256 << 10, &[7; 4096]).error, 0);
        let reply = client.call(READ, 0, 0, SIZE, &[]);
        assert_eq!(reply.data, [(256 << 10, vec![7; 4096])]);
        assert_eq!(reply.holes, [(0, 256 << 10), (260 << 10, (SIZE - (260 << 10)) as u32)]);
        let whole = client.call(READ, DF, 0, SIZE, &[]);
        assert_eq!((whole.data.len(), whole.holes.len()), (1, 0));
        assert_eq!(whole.content(0, SIZE as u32), reply.content(0, SIZE as u32));
        let small = client.call(READ, 0, 0, 4096, &[]);
        assert_eq!((small.data, small.holes), (vec![], vec![(0, 4096)]));
    }
}

#[test]
fn requests_of_nothing_succeed() {
    let server = serve(Memory::new(SIZE));
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        for command in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES] {
            let reply = client.call(command, 0, SIZE, 0, &[]);
            assert_eq!((reply.error, reply.holes.len()), (0, 0), "{style:?} {command}");
        }
    }
}

#[test]
fn beyond_the_end() {
    let server = serve(Memory::new(SIZE));
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        for (command, error) in
            [(READ, EINVAL), (WRITE, ENOSPC), (TRIM, EINVAL), (CACHE, EINVAL), (WRITE_ZEROES, ENOSPC)]
        {
            let payload = if command == WRITE { &[1; 512][..] } else { &[] };
            for offset in [SIZE - 511, SIZE, 1 << 63, u64::MAX, u64::MAX - 511] {
                assert_eq!(
                    client.call(command, 0, offset, 512, payload).error,
                    error,
                    "{style:?} {command} {offset}"
                );
            }
            assert_eq!(client.call(command, 0, SIZE - 512, 512, payload).error, 0);
        }
    }
}

#[test]
fn flush_and_fua_reach_the_export() {
    let server = serve(Memory::new(SIZE));
    let flushes = || server.memory("disk").flushes.load(Ordering::SeqCst);
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        for (command, flags, length, expected) in [
            (FLUSH, 0, 0, 1),
            (FLUSH, FUA, 0, 1),
            (WRITE, 0, 512, 0),
            (WRITE, FUA, 512, 1),
            (TRIM, FUA, 4096, 1),
            (WRITE_ZEROES, FUA, 4096, 1),
            (READ, FUA, 512, 0),
            (CACHE, FUA, 512, 0),
        ] {
            let before = flushes();
            let payload = if command == WRITE { &[1; 512][..] } else { &[] };
            assert_eq!(client.call(command, flags, 0, length, payload).error, 0, "{command}");
            assert_eq!(flushes() - before, expected, "{style:?} {command} {flags}");
        }
        assert_eq!(client.call(FLUSH, 0, 512, 0, &[]).error, EINVAL);
        assert_eq!(client.call(FLUSH, 0, 0, 512, &[]).error, EINVAL);
    }
}

#[test]
fn zeroes_with_and_without_holes_fast_and_slow() {
    let server = serve(Memory::filled(SIZE));
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    let hole =
        |client: &mut Client, offset| client.call(BLOCK_STATUS, REQ_ONE, offset, BLOCK, &[]).extents[0].1;
    assert_eq!(client.call(WRITE_ZEROES, NO_HOLE, 0, BLOCK, &[]).error, 0);
    assert_eq!((client.read(0, 4096), hole(&mut client, 0)), (vec![0; 4096], 0));
    assert_eq!(client.call(WRITE_ZEROES, 0, BLOCK, BLOCK, &[]).error, 0);
    assert_eq!((client.read(BLOCK, 4096), hole(&mut client, BLOCK)), (vec![0; 4096], 3));
    let before = client.read(2 * BLOCK, 4096);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 2 * BLOCK, BLOCK, &[]).error, ENOTSUP);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO, 2 * BLOCK + 1, BLOCK, &[]).error, ENOTSUP);
    assert_eq!(client.read(2 * BLOCK, 4096), before);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO, 2 * BLOCK, BLOCK, &[]).error, 0);
    assert_eq!(client.read(2 * BLOCK, 4096), vec![0; 4096]);
}

#[test]
fn trim_and_cache() {
    let server = serve(Memory::filled(SIZE));
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    assert_eq!(client.call(TRIM, 0, 0, SIZE / 2, &[]).error, 0);
    assert_eq!(client.call(BLOCK_STATUS, 0, 0, SIZE, &[]).extents, [(SIZE / 2, 3), (SIZE / 2, 0)]);
    assert_eq!(client.call(CACHE, 0, 4096, 8192, &[]).error, 0);
    assert_eq!(server.memory("disk").cached.load(Ordering::SeqCst), 8192);
}

#[test]
fn block_status_of_parts() {
    let server = serve(Memory::new(SIZE));
    for style in [Style::Structured, Style::Extended] {
        let mut client = Client::open(&server.endpoint, "disk", style);
        assert_eq!(client.write(8192, &[1; 4096]).error, 0);
        let mut ask = |flags, offset, length| client.call(BLOCK_STATUS, flags, offset, length, &[]);
        assert_eq!(ask(0, 0, SIZE).extents, [(8192, 3), (4096, 0), (SIZE - 12288, 3)]);
        assert_eq!(ask(REQ_ONE, 0, SIZE).extents, [(8192, 3)]);
        assert_eq!(ask(REQ_ONE, 100, 200).extents, [(200, 3)]);
        assert_eq!(ask(0, 8000, 1000).extents, [(192, 3), (808, 0)]);
        assert_eq!(ask(0, 0, 0).error, EINVAL);
        assert_eq!(ask(0, 1, SIZE).error, EINVAL);
    }
    let mut simple = Client::open(&server.endpoint, "disk", Style::Simple);
    assert_eq!(simple.call(BLOCK_STATUS, 0, 0, 4096, &[]).error, EINVAL);
}

#[test]
fn extended_requests_of_more_than_4_gib() {
    // the size needs no memory: trims and status requests of a sparse export touch none
    let memory = Memory::new(SIZE);
    let server = serve(memory);
    let mut client = Client::open(&server.endpoint, "disk", Style::Extended);
    assert_eq!(client.call(TRIM, 0, 0, 1 << 40, &[]).error, EINVAL);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, u64::MAX, &[]).error, ENOSPC);
    let filter = |length: u64, ids: &[u32]| {
        let mut payload = length.to_be_bytes().to_vec();
        ids.iter().for_each(|id| payload.extend_from_slice(&id.to_be_bytes()));
        payload
    };
    for (payload, error) in [
        (filter(SIZE, &[1]), 0),
        (filter(SIZE, &[2]), EINVAL),
        (filter(SIZE, &[1, 1]), EINVAL),
        (filter(SIZE, &[]), EINVAL),
        (filter(SIZE + 1, &[1]), EINVAL),
        (vec![0; 3], EINVAL),
        (vec![0; 100_000], EINVAL),
    ] {
        let length = payload.len() as u64;
        assert_eq!(client.call(BLOCK_STATUS, PAYLOAD_LEN, 0, length, &payload).error, error, "{length}");
    }
    // payloads of commands that have none are skipped
    assert_eq!(client.call(TRIM, PAYLOAD_LEN, 0, 4096, &[1; 4096]).error, EINVAL);
    assert_eq!(client.call(TRIM, 0, 0, 4096, &[]).error, 0);
}

#[test]
fn refused_writes_leave_the_stream_in_step() {
    let server = serve(Memory::filled(SIZE).read_only());
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        let before = server.memory("disk").content();
        for (command, flags) in [(WRITE, 0), (WRITE, FUA), (TRIM, 0), (WRITE_ZEROES, 0)] {
            let payload = if command == WRITE { vec![9; 100_000] } else { vec![] };
            assert_eq!(client.call(command, flags, 0, 100_000, &payload).error, EPERM, "{style:?} {command}");
        }
        assert_eq!(client.read(0, 512), before[..512]);
    }
}

#[test]
fn unknown_commands_and_flags() {
    let server = serve(Memory::new(SIZE));
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        for command in [8, 100, u16::MAX] {
            assert_eq!(client.call(command, 0, 0, 512, &[]).error, EINVAL);
        }
        for flags in [1 << 6, 1 << 15, NO_HOLE] {
            assert_eq!(client.call(READ, flags, 0, 512, &[]).error, EINVAL);
            assert_eq!(client.call(WRITE, flags, 0, 512, &[1; 512]).error, EINVAL);
        }
        assert_eq!(client.read(0, 512), vec![0; 512]);
    }
}

#[test]
fn errors_of_the_export_become_the_protocols() {
    use rustix::io::Errno;
    let server = serve(Memory::new(SIZE));
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        for (errno, expected) in [
            (Errno::IO, EIO),
            (Errno::NOSPC, ENOSPC),
            (Errno::DQUOT, ENOSPC),
            (Errno::ROFS, EPERM),
            (Errno::OPNOTSUPP, EINVAL),
            (Errno::ILSEQ, EIO),
        ] {
            *server.memory("disk").fail.lock() = Some(errno);
            for (command, payload) in [(READ, &[][..]), (WRITE, &[1; 512]), (WRITE_ZEROES, &[])] {
                let reply = client.call(command, 0, 1024, 512, payload);
                assert_eq!(reply.error, expected, "{style:?} {command} {errno:?}");
                assert_eq!(reply.at, (command == READ && style != Style::Simple).then_some(1024));
                assert_eq!(reply.message.is_empty(), style == Style::Simple);
            }
            assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, expected);
        }
        *server.memory("disk").fail.lock() = None;
        assert_eq!(client.read(0, 512), vec![0; 512]);
    }
}

/// The log lists the connection, the failure and the disconnection in this order.
#[test]
fn the_log_is_told() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = lines.clone();
    let log = Log::new(move |event| kept.lock().unwrap().push(event.to_string()));
    let shelf = Shelf::default().with("disk", Memory::new(SIZE));
    let server = Running::unix(shelf, Options { log, ..quick() });
    let mut client = Client::open(&server.endpoint, "disk", Style::Extended);
    *server.memory("disk").fail.lock() = Some(rustix::io::Errno::IO);
    assert_ne!(client.write(0, &[1; 512]).error, 0);
    drop(client);
    drop(Client::greet(connect(&server.endpoint), 3));
    server.stop().unwrap();
    let lines = lines.lock().unwrap();
    let at = |text: &str| {
        lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:?}"))
    };
    let connected = at(": connected to \"disk\" (1048576 bytes, read-write)");
    let failed = at(": request to \"disk\" failed: ");
    let gone = at(": disconnected from \"disk\"");
    at(": left without choosing an export");
    assert!(connected < failed && failed < gone, "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn a_panicking_export_fails_its_requests_only() {
    let server = serve(Memory::new(SIZE));
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    server.memory("disk").panics.store(true, Ordering::Relaxed);
    assert_eq!(client.call(READ, 0, 0, 512, &[]).error, EIO);
    server.memory("disk").panics.store(false, Ordering::Relaxed);
    assert_eq!(client.read(0, 512), vec![0; 512]);
}

#[test]
fn replies_overtake_each_other() {
    let server = serve(Memory::new(SIZE));
    for style in STYLES {
        let mut client = Client::open(&server.endpoint, "disk", style);
        server.memory("disk").gate.set(true);
        client.send(READ, 0, 1, 0, 512, &[]);
        for cookie in 2..20 {
            client.send(READ, 0, cookie, BLOCK, 512, &[]);
        }
        let mut cookies: Vec<u64> = (2..20).map(|_| client.reply().unwrap().cookie).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (2..20).collect::<Vec<_>>());
        server.memory("disk").gate.set(false);
        assert_eq!(client.reply().unwrap().cookie, 1);
    }
}

#[test]
fn disconnecting_waits_for_what_is_in_flight() {
    let server = serve(Memory::new(SIZE));
    let mut client = Client::open(&server.endpoint, "disk", Style::Simple);
    server.memory("disk").gate.set(true);
    client.send(READ, 0, 1, 0, 512, &[]);
    client.send(WRITE, 0, 2, 8192, 3, b"abc");
    client.send(DISC, 0, 3, 0, 0, &[]);
    assert_eq!(client.reply().unwrap().cookie, 2);
    server.memory("disk").gate.set(false);
    assert_eq!(client.reply().unwrap().cookie, 1);
    assert!(client.is_closed());
    assert_eq!(server.memory("disk").content()[8192..8195], *b"abc");
}

#[test]
fn shutdown_answers_what_is_in_flight() {
    let server = serve(Memory::new(SIZE));
    let socket = server.socket();
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    server.memory("disk").gate.set(true);
    client.send(READ, 0, 1, 0, 512, &[]);
    client.send(CACHE, 0, 2, 0, 512, &[]);
    assert_eq!(client.reply().unwrap().cookie, 2, "the read before it has begun");
    server.shutdown.trigger();
    let shelf = std::sync::Arc::clone(&server.shelf);
    let stopping = std::thread::spawn(move || server.stop());
    while socket.exists() {
        std::thread::yield_now();
    }
    shelf.exports["disk"].gate.set(false);
    assert_eq!(client.reply().unwrap().cookie, 1);
    assert!(client.is_closed());
    stopping.join().unwrap().unwrap();
}

#[test]
fn shutdown_gives_up_on_what_does_not_end() {
    let options = Options { drain_timeout: Duration::from_millis(50), ..quick() };
    let server = Running::unix(Shelf::default().with("disk", Memory::new(SIZE)), options);
    let shelf = std::sync::Arc::clone(&server.shelf);
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    shelf.exports["disk"].gate.set(true);
    client.send(READ, 0, 1, 0, 512, &[]);
    client.send(CACHE, 0, 2, 0, 512, &[]);
    assert_eq!(client.reply().unwrap().cookie, 2);
    let result = server.stop();
    assert!(matches!(result, Err(ServeError::Drain { connections: 1, .. })), "{result:?}");
    shelf.exports["disk"].gate.set(false);
}

#[test]
fn connections_share_an_export() {
    let server = Running::tcp(Shelf::default().with("disk", Memory::new(SIZE)), quick());
    let mut clients: Vec<_> = STYLES.map(|style| Client::open(&server.endpoint, "disk", style)).into();
    for index in 0..30 {
        let offset = 1000 * index as u64;
        assert_eq!(clients[index % 3].write(offset, &[index as u8 + 1; 1000]).error, 0);
        assert_eq!(clients[(index + 1) % 3].read(offset, 1000), vec![index as u8 + 1; 1000]);
    }
}

#[test]
fn a_size_that_changes() {
    let server = serve(Memory::new(SIZE));
    let mut client = Client::open(&server.endpoint, "disk", Style::Structured);
    server.memory("disk").shown_size.store(SIZE / 2, Ordering::Relaxed);
    assert_eq!(client.call(READ, 0, SIZE / 2, 512, &[]).error, EINVAL, "shrunk under the client");
    assert_eq!(client.call(READ, 0, SIZE / 2 - 512, 512, &[]).error, 0);
    let mut later = Client::open(&server.endpoint, "disk", Style::Structured);
    server.memory("disk").shown_size.store(SIZE, Ordering::Relaxed);
    assert_eq!(later.call(WRITE, 0, SIZE / 2, 512, &[1; 512]).error, ENOSPC, "more than it was told of");
    assert_eq!(client.call(READ, 0, SIZE - 512, 512, &[]).error, 0);
}

/// A request of the model: command, flags, offset, length.
fn any_request() -> impl Strategy<Value = (u16, u16, u64, u64)> {
    let command = prop_oneof![
        3 => Just(READ),
        4 => Just(WRITE),
        1 => Just(TRIM),
        2 => Just(WRITE_ZEROES),
        1 => Just(FLUSH)
    ];
    (command, 0u16..2, 0..SIZE, prop_oneof![0..5000u64, 0..SIZE / 2]).prop_map(
        |(command, fua, offset, length)| {
            if command == FLUSH {
                (command, 0, 0, 0)
            } else {
                (command, fua, offset, length.min(SIZE - offset))
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A device behaves like an array of bytes in every style. Trimmed bytes of this export are zeros.
    #[test]
    fn a_device_is_an_array_of_bytes(
        style in prop_oneof![Just(Style::Simple), Just(Style::Structured), Just(Style::Extended)],
        requests in proptest::collection::vec(any_request(), 1..40),
    ) {
        let server = serve(Memory::new(SIZE));
        let mut client = Client::open(&server.endpoint, "disk", style);
        let mut model = vec![0; SIZE as usize];
        for (index, (command, flags, offset, length)) in requests.into_iter().enumerate() {
            let range = offset as usize..(offset + length) as usize;
            let payload = if command == WRITE { vec![index as u8 + 1; length as usize] } else { vec![] };
            let reply = client.call(command, flags, offset, length, &payload);
            prop_assert_eq!(reply.error, 0);
            match command {
                READ if length > 0 => prop_assert!(reply.content(offset, length as u32) == model[range]),
                WRITE => model[range].copy_from_slice(&payload),
                TRIM | WRITE_ZEROES => model[range].fill(0),
                _ => {}
            }
        }
        prop_assert!(server.memory("disk").content() == model);
    }

    /// Many requests at once: each is answered once, and requests that do not overlap do not affect each other.
    #[test]
    fn requests_in_flight_are_each_answered(
        style in prop_oneof![Just(Style::Simple), Just(Style::Structured), Just(Style::Extended)],
        places in Just((0..64u64).collect::<Vec<_>>()).prop_shuffle(),
        length in 1u64..16_000,
        in_flight in 1usize..20,
    ) {
        let options = Options { max_in_flight: in_flight, ..quick() };
        let server = Running::unix(Shelf::default().with("disk", Memory::new(SIZE)), options);
        let mut client = Client::open(&server.endpoint, "disk", style);
        let data = |place: u64| vec![place as u8 + 1; length as usize];
        for place in &places {
            client.send(WRITE, 0, *place, place * 16_384, length, &data(*place));
        }
        let mut answers = BTreeMap::new();
        for _ in &places {
            let reply = client.reply().unwrap();
            prop_assert!(answers.insert(reply.cookie, reply.error).is_none());
        }
        prop_assert!(answers.into_iter().eq((0..64).map(|cookie| (cookie, 0))));
        places.iter().for_each(|place| client.send(READ, 0, *place, place * 16_384, length, &[]));
        for _ in &places {
            let reply = client.reply().unwrap();
            prop_assert!(reply.content(reply.cookie * 16_384, length as u32) == data(reply.cookie));
        }
    }
}
