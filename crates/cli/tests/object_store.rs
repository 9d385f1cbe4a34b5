//! Pools in an object store: the real binary with a server in this process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::s3::{Lie, Server};
use common::{Said, Scratch, demo};

/// A simulated machine that uses the server.
struct Machine<'a> {
    scratch: Scratch,
    server: &'a Server,
    name: &'static str,
}

impl<'a> Machine<'a> {
    fn new(server: &'a Server, name: &'static str) -> Self {
        Self { scratch: Scratch::new(), server, name }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.scratch.command(line);
        command
            .env("AWS_ENDPOINT_URL", self.server.endpoint())
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .env("AWS_REGION", "us-east-1")
            .env("SNOWMELT_MACHINE", self.name);
        command
    }

    fn run(&self, line: &str) -> Said {
        Said::of(self.command(line))
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    }

    #[track_caller]
    fn fails(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{line}: {said:?}");
        said.err
    }

    #[track_caller]
    fn receive(&self, line: &str, stream: &Path) {
        let mut command = self.command(line);
        command.stdin(File::open(stream).unwrap());
        let said = Said::of(command);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
    }

    /// The stream of a dataset's snapshot.
    fn sent(&self, snapshot: &str) -> Vec<u8> {
        let output = self.command(&format!("send {snapshot}")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }
}

/// A stream with files of `len` random bytes from its own pool, and an empty incremental stream after it.
fn streams(len: usize) -> (Scratch, PathBuf, PathBuf) {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let mut seed = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 32).to_le_bytes()
    })
    .take(len / 8)
    .flatten()
    .collect();
    std::fs::write(source.join("file"), bytes).unwrap();
    scratch.run("import source tank/x@one");
    scratch.ok("snapshot tank/x@two");
    let full = scratch.to_file("send tank/x@one", "full");
    let empty = scratch.to_file("send -i @one tank/x@two", "empty");
    (scratch, full, empty)
}

#[test]
fn a_pool_lives_in_a_bucket() {
    let server = Server::start();
    let machine = Machine::new(&server, "a");
    machine.ok("pool create tank s3://bucket/some/where");
    machine.receive("receive tank/home", &demo("full.zstream"));
    machine.receive("receive tank/home", &demo("incremental.zstream"));
    assert!(machine.ok("list -H -o name -t snapshot").lines().count() >= 2);
    assert!(machine.ok("check tank").contains("no errors"));
    let status = machine.ok("pool status tank");
    assert!(status.contains("s3://bucket/some/where") && status.contains("requests: 0 put"), "{status}");
    assert!(server.keys().iter().all(|key| key.starts_with("bucket/some/where/")));
    let error = machine.fails("pool create other s3://bucket/some/where");
    assert!(error.contains("the pool 'tank'"), "{error}");
    machine.ok("pool export tank");
    assert_eq!(machine.run("list").out, "");
    machine.ok("pool import s3://bucket/some/where back");
    assert!(machine.ok("list -H -o name").contains("back/home"));
    machine.ok("pool destroy back");
    assert_eq!(server.keys(), [""; 0]);
    assert!(machine.fails("pool import s3://bucket/some/where").contains("is not a snowmelt pool"));
}

#[test]
fn a_pool_lives_in_a_bucket_of_google() {
    let server = Server::start();
    let scratch = Scratch::new();
    let run = |line: &str| {
        let mut command = scratch.command(line);
        command.env("STORAGE_EMULATOR_HOST", server.endpoint().trim_start_matches("http://"));
        if line.starts_with("receive") {
            command.stdin(File::open(demo("full.zstream")).unwrap());
        }
        let said = Said::of(command);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    };
    run("pool create tank gs://bucket/some/where");
    run("receive tank/home");
    assert!(run("check tank").contains("no errors"));
    assert!(run("list -H -o name").contains("tank/home"));
    assert!(server.keys().iter().all(|key| key.starts_with("bucket/some/where/")));
    run("pool destroy tank");
    assert_eq!(server.keys(), [""; 0]);

    // A bucket that does not exist, and an address where no server listens.
    let create = |place: &str, host: &str| {
        let mut command = scratch.command(&format!("pool create tank {place}"));
        let said = Said::of({
            command.env("STORAGE_EMULATOR_HOST", host);
            command
        });
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
        said.err
    };
    let error = create("gs://missing/pool", &server.endpoint());
    assert!(error.contains("there is no such bucket: make the bucket, or correct its name"), "{error}");
    // An address to which no request can be sent is refused at once, without minutes of retries.
    let error = create("gs://bucket/pool", "ftp://127.0.0.1:1");
    assert!(error.contains("STORAGE_EMULATOR_HOST"), "{error}");
}

#[test]
fn nothing_is_lost_on_a_bad_line() {
    let server = Server::start();
    let (machine, good) = (Machine::new(&server, "a"), Scratch::with_home());
    server.set_faults(5);
    machine.ok("pool create tank s3://bucket/tank");
    machine.receive("receive tank/home", &demo("full.zstream"));
    machine.receive("receive tank/home", &demo("incremental.zstream"));
    assert!(machine.ok("check tank").contains("no errors"));
    let names = good.ok("list -H -o name -t snapshot -r tank/home");
    for snapshot in names.lines() {
        let expected = std::fs::read(good.to_file(&format!("send {snapshot}"), "stream")).unwrap();
        assert!(machine.sent(snapshot) == expected, "{snapshot}");
    }
}

#[test]
fn a_writer_that_is_killed_loses_nothing_that_was_acknowledged() {
    let server = Server::start();
    let machine = Machine::new(&server, "a");
    let (source, full, _) = streams(24 << 20);
    machine.ok("pool create tank s3://bucket/tank");
    machine.receive("receive tank/home", &demo("full.zstream"));
    let before = machine.ok("list -H -o name,guid -t all");
    for _ in 0..3 {
        let mut command = machine.command("receive tank/x");
        let mut receive =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The receiver has most of the stream and waits for the rest.
        let stream = std::fs::read(&full).unwrap();
        let mut input = receive.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, &stream[..stream.len() - 4096]).unwrap();
        receive.kill().unwrap();
        receive.wait().unwrap();
        assert_eq!(machine.ok("list -H -o name,guid -t all"), before);
        assert!(machine.ok("check tank").contains("no errors"));
    }
    machine.receive("receive tank/x", &full);
    let expected = std::fs::read(source.to_file("send tank/x@one", "again")).unwrap();
    assert!(machine.sent("tank/x@one") == expected);
}

#[test]
fn another_pool_at_a_known_address_is_not_followed() {
    let server = Server::start();
    let (first, second) = (Machine::new(&server, "first"), Machine::new(&server, "second"));
    first.ok("pool create tank s3://bucket/tank");
    second.ok("pool import -o readonly=on s3://bucket/tank");
    second.ok("list -o name tank");
    first.ok("pool destroy tank");
    first.ok("pool create tank s3://bucket/tank");
    let error = second.fails("pool import -o readonly=on s3://bucket/tank");
    assert!(error.contains("is not the known one"), "{error}");
    second.ok("pool import -o readonly=on --accept-new s3://bucket/tank");
    second.ok("list -o name tank");
}

#[test]
fn one_machine_writes_and_others_follow_or_take_over() {
    let server = Server::start();
    let (first, second) = (Machine::new(&server, "first"), Machine::new(&server, "second"));
    first.ok("pool create tank s3://bucket/tank");
    first.receive("receive tank/home", &demo("full.zstream"));
    second.ok("pool import -o readonly=on s3://bucket/tank");
    let seen = second.ok("list -H -o name -t all");
    assert_eq!(seen, first.ok("list -H -o name -t all"));
    first.ok("snapshot tank/home@new");
    assert!(second.ok("list -H -o name -t snapshot").contains("tank/home@new"));
    let error = second.fails("snapshot tank/home@mine");
    assert!(error.contains("open read-only: it was imported with readonly=on"), "{error}");
    let error = second.fails("pool import s3://bucket/tank");
    assert!(error.contains("belongs to first") && error.contains("import -f"), "{error}");
    second.ok("pool import -f s3://bucket/tank");
    second.ok("snapshot tank/home@mine");
    // The first machine checks the owner before it writes. It may still read.
    let error = first.fails("snapshot tank/home@late");
    assert!(error.contains("read-only: s3://bucket/tank belongs to second, which last wrote"), "{error}");
    assert!(first.ok("list -H -o name -t snapshot").contains("tank/home@mine"));
}

#[test]
fn who_waits_for_a_store_can_stop_waiting() {
    let server = Server::start();
    let machine = Machine::new(&server, "a");
    machine.ok("pool create tank s3://bucket/tank");
    server.refuse(503);
    for line in ["pool create other s3://bucket/other", "pool import s3://bucket/tank again", "list"] {
        let mut command = machine.command(line);
        let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let asked = Instant::now();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("interrupted"), "{line}: {error}");
        assert!(asked.elapsed() < Duration::from_secs(30), "{line}: {:?}", asked.elapsed());
    }
    server.refuse(0);
    assert!(machine.ok("check tank").contains("no errors"));
}

#[test]
fn a_writer_that_is_taken_over_stops_and_says_by_whom() {
    let server = Server::start();
    let (first, second) = (Machine::new(&server, "first"), Machine::new(&server, "second"));
    let (_source, full, _) = streams(8 << 20);
    first.ok("pool create tank s3://bucket/tank");
    let stream = std::fs::read(&full).unwrap();
    let mut command = first.command("receive tank/x");
    let mut receive = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = receive.stdin.take().unwrap();
    let half = stream.len() / 2;
    std::io::Write::write_all(&mut input, &stream[..half]).unwrap();
    second.ok("pool import -f s3://bucket/tank");
    // The process may have stopped by now.
    let _ = std::io::Write::write_all(&mut input, &stream[half..]);
    drop(input);
    let output = receive.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("taken over by second"), "{error}");
    assert!(second.ok("check tank").contains("no errors"));
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let server = Server::start();
    let machine = Machine::new(&server, "a");
    let error = machine.fails("pool create tank s3://missing/tank");
    assert!(error.contains("there is no such bucket"), "{error}");
    let error = machine.fails("pool import s3://bucket/nothing");
    assert!(error.contains("is not a snowmelt pool"), "{error}");
    let error = machine.fails("pool create tank s3://bucket");
    assert!(error.contains("names no prefix"), "{error}");
    let error = machine.fails("pool create --size 1G tank s3://bucket/tank");
    assert!(error.contains("--size is only for files, not for buckets"), "{error}");
    machine.ok("pool create tank s3://bucket/tank");
    server.refuse(403);
    let error = machine.fails("snapshot tank@x");
    assert!(error.contains("access is denied (403)"), "{error}");
    server.refuse(0);
    assert_eq!(machine.run("pool list -H -o name").out, "tank\n");
}

/// The number of requests for receiving a stream of `len` bytes, for receiving an empty incremental stream after it,
/// and for a listing. Each command is a new process.
fn costs(len: usize) -> [usize; 3] {
    let server = Server::start();
    let machine = Machine::new(&server, "a");
    let (_source, full, empty) = streams(len);
    machine.ok("pool create tank s3://bucket/tank");
    server.take_log();
    machine.receive("receive tank/x", &full);
    let received = server.take_log().count("PUT");
    machine.receive("receive tank/x", &empty);
    let incremental = server.take_log().count("PUT");
    assert!(machine.ok("list -H -o name").contains("tank/x"));
    let log = server.take_log();
    assert_eq!(log.count("PUT"), 0, "{log:?}");
    [received, incremental, log.count("GET")]
}

#[test]
fn requests_are_few() {
    let [received, incremental, listed] = costs(256 << 20);
    // A quarter of the limit for one GiB.
    assert!(received <= 10, "{received}");
    assert!(incremental <= 4, "{incremental}");
    assert!(listed <= 10, "{listed}");
}

#[test]
#[ignore = "writes some GiB: .ci/run clients"]
fn requests_of_a_gib_are_few() {
    let [received, incremental, listed] = costs(1 << 30);
    println!(
        "PUTs of 1 GiB: {received}, of an empty incremental: {incremental}; GETs of a listing: {listed}"
    );
    assert!(received <= 40, "{received}");
    assert!(incremental <= 4, "{incremental}");
    assert!(listed <= 10, "{listed}");
}

/// Files of a cache, without its locks.
fn cached(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return vec![directory.to_owned()] };
    let mut files: Vec<_> = entries.flat_map(|entry| cached(&entry.unwrap().path())).collect();
    files.retain(|path| !path.ends_with("lock"));
    files
}

#[test]
fn a_pool_has_a_cache_of_its_own() {
    let server = Server::start();
    let machine = Machine::new(&server, "a");
    let (source, full, _) = streams(8 << 20);
    let expected = std::fs::read(source.to_file("send tank/x@one", "again")).unwrap();
    let directory = machine.scratch.path().join("cache");
    for (words, why) in [
        ("--cache cache tank s3://bucket/tank", "is not a directory: create it first"),
        ("--cache s3://cache tank s3://bucket/tank", "is not a directory"),
        ("--cache cache --cache-size 5 tank s3://bucket/tank", "at least 1M"),
        ("--cache cache --cache-size much tank s3://bucket/tank", "cache size 'much'"),
        ("--cache cache tank pool", "only a pool in an object store has a cache"),
    ] {
        let said = machine.fails(&format!("pool create {words}"));
        assert!(said.contains("cannot create 'tank'") && said.contains(why), "{words}: {said}");
    }
    assert_eq!(server.keys(), [""; 0]);
    std::fs::create_dir(&directory).unwrap();
    machine.ok("pool create --cache cache --cache-size 64M tank s3://bucket/tank");
    machine.receive("receive tank/x", &full);
    let get = |pool: &str| machine.ok(&format!("pool get -H -o value,source cache,cachesize {pool}"));
    assert_eq!(get("tank"), format!("{}\tlocal\n64M\tlocal\n", directory.display()));
    let fill = || machine.sent("tank/x@one") == expected;
    assert!(fill());
    let status = machine.ok("pool status tank");
    assert!(status.contains(&format!("of 64M in {}\n", directory.display())), "{status}");
    server.take_log();
    assert!(fill());
    let with = server.take_log().count("GET");

    // Damage in the cache only costs requests.
    let mut files = cached(&directory);
    assert!(files.len() > 8, "{files:?}");
    for (at, path) in files.iter().enumerate() {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        match at % 3 {
            0 => bytes[middle] ^= 1,
            1 => bytes.truncate(middle),
            _ => bytes.fill(0),
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert!(fill());
    let without = server.take_log().count("GET");
    // Four requests open the pool: the label, the names of the uberblocks, the newest uberblock, the names of the
    // segments. Without the cache, the part with the metadata is read completely. The part with the content is read in
    // windows that double: 1, 2, 4, 8 and the rest of 6 MiB.
    assert_eq!(with, 4);
    assert!(without >= with + 6, "{without}");

    // Several pools share one directory. A pool without a cache of its own uses the one from the environment.
    machine.ok("pool create --cache cache other s3://bucket/other");
    machine.ok("pool create plain s3://bucket/plain");
    assert_eq!(get("plain"), "none\tdefault\n-\tdefault\n");
    let mut command = machine.command("pool status tank plain");
    let said = Said::of({
        command.env("SNOWMELT_CACHE", machine.scratch.path().join("by environment"));
        command
    });
    assert!(said.out.contains("of 64M in") && said.out.contains("of 10G in"), "{said:?}");
    assert!(
        machine
            .fails("pool set cachesize=5M plain")
            .contains("'snowmelt pool import --cache DIR s3://bucket/plain'")
    );
    machine.ok("pool destroy other");
    assert!(fill());

    // The cache shrinks at once, and stays small.
    machine.ok("pool set cachesize=2M tank");
    let bytes = || cached(&directory).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum::<u64>();
    assert!(bytes() <= 2 << 20 && fill() && bytes() <= 2 << 20);
    assert!(get("tank").contains("2M\tlocal"));
    assert!(machine.fails("pool set cachesize=0 tank").contains("at least 1M"));

    // A missing directory, for example when it is not mounted, is reported and not created.
    let away = machine.scratch.path().join("away");
    std::fs::rename(&directory, &away).unwrap();
    assert!(fill() && !directory.exists());
    let status = machine.ok("pool status tank");
    assert!(status.contains("No such file"), "{status}");
    std::fs::write(&directory, "in its place").unwrap();
    assert!(fill() && machine.ok("pool status tank").contains("Not a directory"));
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(&away, &directory).unwrap();

    // Importing keeps the cache, unless another one or none is named.
    machine.ok("pool import s3://bucket/tank");
    assert!(get("tank").contains("2M\tlocal"));
    std::fs::create_dir(&away).unwrap();
    machine.ok("pool import --cache away --cache-size 3M s3://bucket/tank");
    assert_eq!(get("tank"), format!("{}\tlocal\n3M\tlocal\n", away.display()));
    machine.ok("pool import --cache none s3://bucket/tank");
    assert!(get("tank").contains("none\tdefault"));
    files = cached(&directory);
    assert!(machine.fails("pool import --cache gone s3://bucket/tank").contains("create it first"));
    assert!(get("tank").contains("none\tdefault") && cached(&directory) == files);

    // A second machine, which only reads.
    let reader = Machine::new(&server, "b");
    std::fs::create_dir(reader.scratch.path().join("cache")).unwrap();
    reader.ok("pool import -o readonly=on --cache cache s3://bucket/tank");
    assert!(reader.sent("tank/x@one") == expected);
    assert!(!cached(&reader.scratch.path().join("cache")).is_empty());
    assert!(reader.ok("pool get -H -o value cache tank").ends_with("/cache\n"));
}

/// A store may be anybody's: whatever it says, a command ends soon, in little memory, with a message.
#[test]
fn a_store_that_lies_is_refused_in_words() {
    let server = Server::start();
    let machine = Machine::new(&server, "one");
    machine.ok("pool create tank s3://bucket/tank");
    let (_scratch, full, _) = streams(3 << 20);
    machine.receive("receive tank/x", &full);
    for lie in [
        Lie::EndlessObjects,
        Lie::HugeObjects,
        Lie::LongerRanges,
        Lie::ShorterRanges,
        Lie::EndlessPage,
        Lie::HugePages,
        Lie::EmptyPages,
        Lie::HugeParts,
        Lie::ManyParts,
        Lie::LastPublication,
    ] {
        server.lie(Some(lie));
        // That one takes its time.
        let lines = if lie == Lie::EmptyPages { 1 } else { 3 };
        for line in ["check tank", "snapshot tank/x@new", "salvage tank"].into_iter().take(lines) {
            let plain = machine.command(line);
            let mut command = Command::new("prlimit");
            command.args(["--as=4000000000", "timeout", "-k", "1", "100"]).arg(plain.get_program());
            command.args(plain.get_args()).current_dir(machine.scratch.path());
            for (name, value) in plain.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            let begun = Instant::now();
            let said = command.env("MALLOC_ARENA_MAX", "2").stdin(Stdio::null()).output().unwrap();
            let message = String::from_utf8_lossy(&said.stderr);
            eprintln!("{lie:?}: {line}: {:?} {:?} {message}", begun.elapsed(), said.status);
            // 124: timeout(1) ended it; 101: a panic; none: a signal, as of a failed allocation.
            let code = said.status.code();
            assert!(code.is_some_and(|code| code < 100), "{lie:?}: {line}: {code:?}: {message}");
            assert!(!message.contains("panicked"), "{lie:?}: {line}: {message}");
        }
        server.lie(None);
        machine.ok("check tank");
    }
}
