//! Clients that push invalid data, over pipes and to the daemon. Each ends its own session, and the dataset or
//! directory stays unchanged.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::Scratch;
use common::rsync::{Server, restored, snapshots};

const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;
/// Size of the existing file, and the header of the block sums in the server's request: number of blocks, block length,
/// digest length, length of the last block.
const SIZE: usize = 40_000;
const SUMS: [i32; 4] = [58, 700, 2, 100];
/// The index of the first file, and the code for the same index again.
const FIRST: &[u8] = &[1];
const SAME: &[u8] = &[0xfe, 0, 0];
/// Maximum memory of a server for any input of these tests, in KiB. It is built with debug checks.
const MEMORY_MAX: u64 = 400 << 10;

/// The bytes that a client sends after the handshake, as messages.
#[derive(Clone, Default)]
struct Client(Vec<u8>);

impl Client {
    fn message(mut self, tag: u8, bytes: &[u8]) -> Self {
        self.0.extend((bytes.len() as u32 | u32::from(tag.wrapping_add(7)) << 24).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    fn data(self, bytes: &[u8]) -> Self {
        self.message(0, bytes)
    }

    /// Adds an entry of a list: its name, size and mode.
    fn entry(self, name: &[u8], size: u64, mode: u32) -> Self {
        // With a long name (flag 6), without values from the previous entry.
        let mut bytes = vec![64];
        bytes.extend(varint(name.len() as u32));
        bytes.extend(name);
        // All eight bytes of a size, and a time of four.
        bytes.push(0xfc);
        bytes.extend(size.to_le_bytes());
        bytes.extend([0, 1, 0, 0]);
        bytes.extend(mode.to_le_bytes());
        self.data(&bytes)
    }

    fn end_of_list(self) -> Self {
        self.data(&[0, 0])
    }

    /// Adds the beginning of an answer: index, flags, and the header of the block sums.
    fn answer(self, index: &[u8], flags: u16, sums: [i32; 4]) -> Self {
        let mut bytes = index.to_vec();
        bytes.extend(flags.to_le_bytes());
        sums.iter().for_each(|sum| bytes.extend(sum.to_le_bytes()));
        self.data(&bytes)
    }

    fn token(self, token: i32, bytes: &[u8]) -> Self {
        self.data(&[&token.to_le_bytes()[..], bytes].concat())
    }
}

fn varint(value: u32) -> Vec<u8> {
    match value {
        0..0x80 => vec![value as u8],
        0x80..0x4000 => vec![0x80 | (value >> 8) as u8, value as u8],
        _ => [&[0xf0][..], &value.to_le_bytes()].concat(),
    }
}

/// A list of the one existing file, and the beginning of its content.
fn list() -> Client {
    Client::default().entry(b"f", SIZE as u64, FILE).end_of_list()
}

fn asked() -> Client {
    list().answer(FIRST, 0x8008, SUMS)
}

/// Sends the file: its first block and some other bytes, with a correct or wrong digest.
fn sent(is_right: bool) -> Client {
    let content = [&content()[..700], &[b'n'; 200]].concat();
    let digest = md5_of(&content);
    let digest = if is_right { digest } else { [7; 16] };
    asked().token(-1, &[]).token(200, &[b'n'; 200]).token(0, &digest)
}

fn content() -> Vec<u8> {
    (0..SIZE as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The digest from `md5sum`, so that the test does not depend on the tested code.
fn md5_of(content: &[u8]) -> [u8; 16] {
    let mut child =
        std::process::Command::new("md5sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    let said = child.wait_with_output().unwrap().stdout;
    let digit = |at: usize| char::from(said[at]).to_digit(16).unwrap() as u8;
    std::array::from_fn(|at| digit(2 * at) << 4 | digit(2 * at + 1))
}

/// The end of a correct session.
fn goodbye(client: Client) -> Client {
    client.data(&[0; 4])
}

/// Random bytes, the same each time.
fn garbage(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Invalid sessions, each of which must end with an error.
fn lies() -> Vec<(String, Client)> {
    let mut lies: Vec<(String, Client)> = Vec::new();
    let mut lie = |what: &str, client: Client| lies.push((what.to_owned(), client));
    let begin = Client::default;
    let many = b"x/".repeat(3000);
    let names: [&[u8]; 8] = [b"..", b"../f", b"a/../../f", b"/etc/f", b"", b"a\0b", b"d/..", &many];
    for name in names {
        let shown = String::from_utf8_lossy(&name[..name.len().min(9)]).into_owned();
        lie(&format!("the name {shown:?}"), goodbye(begin().entry(name, 5, FILE).end_of_list()));
    }
    for mode in [0, 0o170_000, 0o777, u32::MAX, 0o110_644] {
        lie(&format!("the mode {mode:o}"), goodbye(begin().entry(b"f", 5, mode).end_of_list()));
    }
    lie("a name like one before that there is not", begin().data(&[2, 200, 1, b'f', 0, 0, 0]));
    lie("a size below zero", goodbye(begin().entry(b"g", 1 << 63, FILE).end_of_list()));
    lie("a list that does not end", begin().entry(b"f", 5, FILE));
    lie("no list", begin());
    lie("rubbish for a list", begin().data(&garbage(5000)));
    lie("rubbish for messages", Client(garbage(5000)));
    lie("a message too long", Client([0xff, 0xff, 0xff, 9].to_vec()));
    for (what, index) in [("beyond all", vec![9]), ("far away", vec![0xfe, 0xff, 0xff, 0xff, 0x7f])] {
        lie(&format!("an answer {what}"), list().data(&[&index[..], &[8, 0x80]].concat()));
    }
    for index in [[0xff, 1], [0xff, 2], [0xff, 100], [0xff, 101]] {
        lie(&format!("an answer of {index:?}"), list().data(&[&index[..], &garbage(50)].concat()));
    }
    lie("an end before the answer", goodbye(list()));
    lie("an answer of other flags", list().answer(FIRST, 0xffff, SUMS));
    lie("an answer of other sums", list().answer(FIRST, 0x8008, [1 << 30, 700, 2, 0]));
    lie("an answer of no sums", list().answer(FIRST, 0x8008, [0; 4]));
    lie("a block that there is not", asked().token(-59, &[]));
    lie("a block far away", asked().token(i32::MIN, &[]));
    lie("content too long", asked().token(i32::MAX, &[b'x'; 5000]));
    lie("rubbish for content", asked().data(&garbage(3000)));
    lie("a digest that is none", asked().token(0, &[1; 3]));
    lie("a file answered twice", sent(true).answer(FIRST, 0x8008, SUMS));
    lie("rubbish after a phase", sent(true).data(&[0]).data(&garbage(100)));
    lie("rubbish after two", sent(true).data(&[0, 0]).data(&garbage(100)));
    lie("rubbish at the end", sent(true).data(&[0, 0, 0, 9]));
    // The second failure of a file is final.
    let again = sent(false).data(&[0]).answer(SAME, 0xa000, [0; 4]).token(0, &[7; 16]);
    lie("a digest that never fits, and no end", again);
    for tag in [1, 2, 3, 4, 5, 9, 22, 33, 42, 86, 93, 100, 101, 102, 103, 200, 248] {
        // Messages with a meaning change nothing either, because the session ends too early.
        for body in [&[][..], b"text", &garbage(300)] {
            lie(&format!("a message {tag} of {} bytes", body.len()), list().message(tag, body));
        }
    }
    lies
}

/// The first of two incremental lists: the existing file, and a directory with number 1.
fn one_by_one() -> Client {
    Client::default()
        .entry(b".", 0, DIRECTORY)
        .entry(b"d", 0, DIRECTORY)
        .entry(b"f", SIZE as u64, FILE)
        .end_of_list()
}

/// Invalid sessions with incremental lists. `ff 65` is the list of directory 1, `ff 01` the end of all lists.
fn lies_one_by_one() -> Vec<(String, Client)> {
    let mut lies: Vec<(String, Client)> = Vec::new();
    let mut lie = |what: &str, client: Client| lies.push((what.to_owned(), client));
    let begin = one_by_one;
    let of_d = || begin().data(&[0xff, 101]);
    let again = [0xff, 0xfe, 0, 0];
    lie("a list of the root, which has come", goodbye(begin().data(&[0xff, 100]).end_of_list()));
    lie("a list of no directory", goodbye(begin().data(&[0xff, 107]).end_of_list()));
    lie("a list of a directory far away", begin().data(&[0xff, 0xfe, 0xff, 0xff, 0xff, 0x7f]).end_of_list());
    lie("two lists of a directory", goodbye(of_d().end_of_list().data(&again).end_of_list()));
    let names: [&[u8]; 7] = [b"x", b"d", b".", b"d/e/x", b"de/x", b"d/../f", b"/d/x"];
    for name in names {
        let shown = String::from_utf8_lossy(name).into_owned();
        lie(&format!("{shown:?} in the list of d"), goodbye(of_d().entry(name, 5, FILE).end_of_list()));
    }
    lie("a name that is in no list", goodbye(Client::default().entry(b"d/x", 5, FILE).end_of_list()));
    lie("two ends of lists", goodbye(begin().data(&[0xff, 1]).data(&again)));
    lie("a list after the end", goodbye(begin().data(&[0xff, 1, 0xff, 100]).end_of_list()));
    lie("an end of a list before the answer", goodbye(of_d().end_of_list()));
    lie("no end of lists", of_d().end_of_list().answer(&[3], 0x8008, SUMS));
    for index in [1, 2, 4, 5, 6, 9] {
        lie(&format!("an answer of {index}"), of_d().end_of_list().answer(&[index], 0x8008, SUMS));
    }
    lie("rubbish for a list", of_d().data(&garbage(5000)));
    lie("rubbish after a list", of_d().end_of_list().data(&garbage(5000)));
    lies
}

/// A valid session with incremental lists. The file is sent as in [`sent`], then an empty file in the directory.
fn told_one_by_one() -> Client {
    let lists = one_by_one()
        .data(&[0xff, 101])
        .entry(b"d/g", 0, FILE)
        .end_of_list()
        .data(&[0xff, 0xfe, 0x80, 2, 0, 0]);
    let content = [&content()[..700], &[b'n'; 200]].concat();
    let file = lists.answer(&[3], 0x8008, SUMS).token(-1, &[]).token(200, &[b'n'; 200]);
    // Then the directory, which is created before its own list, and the file in it.
    let file = file.token(0, &md5_of(&content)).data(&[2, 0, 0x60]);
    goodbye(file.answer(&[1], 0xa000, [0; 4]).token(0, &md5_of(b"")).data(&[0]))
}

/// Nested directories, deeper than any path may be, and their lists.
fn deep() -> Client {
    let mut client = Client::default().entry(b"d", 0, DIRECTORY).end_of_list().data(&[0xff, 100]);
    for depth in 2..3000 {
        client = client.entry(&b"d/".repeat(depth), 0, DIRECTORY).end_of_list().data(&[0xff, 1]);
    }
    client
}

/// Odd names that are valid. Of two equal names the first counts, or the directory. Their content is not sent.
fn odd_lists() -> Vec<Client> {
    let begin = Client::default;
    vec![
        begin().entry(b"f", 5, FILE).entry(b"f", 6, FILE).end_of_list(),
        begin().entry(b"d", 5, FILE).entry(b"d", 0, DIRECTORY).entry(b"d/g", 1, FILE).end_of_list(),
        begin().entry(b"./f//", 5, FILE).entry(b"x/./y", 5, FILE).end_of_list(),
        begin().entry(b"huge", i64::MAX as u64, FILE).entry(b"huger", i64::MAX as u64, FILE).end_of_list(),
    ]
}

/// A session over pipes. Returns the exit code and the output.
fn over_pipes(scratch: &Scratch, client: &Client) -> (Option<i32>, String) {
    over_pipes_as(scratch, "-re.LsfxCIvu", client)
}

/// The same for a client with these capabilities.
fn over_pipes_as(scratch: &Scratch, letters: &str, client: &Client) -> (Option<i32>, String) {
    let mut command = scratch.command(&format!("rsync --server {letters} . tank/m"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let said = [&32_i32.to_le_bytes()[..], b"\x03md5", &client.0].concat();
    // The server may end before it has read everything.
    let sending = std::thread::spawn(move || drop(input.write_all(&said)));
    let output = child.wait_with_output().unwrap();
    sending.join().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

struct Daemon(Server);

impl Daemon {
    fn start(scratch: &Scratch) -> Self {
        Self(Server::start(scratch, "[m]\npath = tank/m\nread only = no\ntimeout = 3\n"))
    }

    /// The same for a directory. It is written to as the user of this test.
    fn of_directory(scratch: &Scratch, root: &Path) -> Self {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let path = root.display();
        let config = format!("[m]\npath = {path}\nuid = {uid}\ngid = {gid}\nread only = no\ntimeout = 3\n");
        Self(Server::start(scratch, &format!("{config}munge symlinks = no\n")))
    }

    fn connect(&self, client: &Client) -> TcpStream {
        self.connect_as("-re.LsfxCIvu", client)
    }

    fn connect_as(&self, letters: &str, client: &Client) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.0.port)).unwrap();
        let begin = format!("@RSYNCD: 32.0 md5\nm\n--server\0{letters}\0.\0m/\0\0\x03md5");
        // The server may end before it has read everything.
        let _ = stream.write_all(&[begin.as_bytes(), &client.0].concat());
        stream
    }

    /// Everything that the server sends, up to the end of the connection.
    fn served(&self, client: &Client) -> String {
        Self::heard(self.connect(client))
    }

    fn heard(mut stream: TcpStream) -> String {
        let _ = stream.shutdown(Shutdown::Write);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Peak memory of the server, in KiB.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

fn file(scratch: &Scratch, snapshot: &str) -> Vec<u8> {
    fs::read(restored(scratch, snapshot).join("f")).unwrap()
}

/// A pool in which `tank/m` has one file, with another time than in the lists.
fn scratch() -> Scratch {
    let scratch = Scratch::with_pool();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), content()).unwrap();
    scratch.ok(&format!("import {} tank/m@begin", source.display()));
    scratch
}

#[test]
fn a_new_file_is_there_when_it_has_come_right() {
    let scratch = scratch();
    let content = [b'g'; 300];
    let new = Client::default().entry(b"g", 300, FILE).end_of_list();
    let sent = |client: Client, index: &[u8], digest: &[u8; 16]| {
        client.answer(index, 0xa000, [0; 4]).token(300, &content).token(0, digest)
    };
    let in_newest = |name: &str| restored(&scratch, &snapshots(&scratch, "tank/m").pop().unwrap()).join(name);
    // After two wrong digests the file is given up and does not exist.
    let once = sent(new.clone(), FIRST, &[7; 16]);
    let wrong = sent(once.clone().data(&[0]), SAME, &[7; 16]);
    let (code, said) = over_pipes(&scratch, &wrong.data(&[0; 3]));
    assert!(code == Some(23) && said.contains("failed verification -- update discarded"), "{code:?} {said}");
    assert!(!in_newest("g").exists());
    // After a wrong and a correct digest it exists.
    let right = sent(once.data(&[0]), SAME, &md5_of(&content));
    let (code, said) = over_pipes(&scratch, &right.data(&[0; 3]));
    assert!(code == Some(0) && said.contains("will try again"), "{code:?} {said}");
    assert_eq!(fs::read(in_newest("g")).unwrap(), content);
    // A connection that breaks before the digest leaves nothing, as without `--partial`.
    let cut = Client::default().entry(b"h", 300, FILE).end_of_list();
    let (code, _) = over_pipes(&scratch, &cut.answer(FIRST, 0xa000, [0; 4]).token(300, &content));
    assert!(code.is_some_and(|code| code != 0));
    assert!(!in_newest("h").exists());
    scratch.ok("check tank");
}

#[test]
fn who_lies_over_pipes_changes_nothing() {
    let scratch = scratch();
    for (what, client) in lies() {
        let (code, said) = over_pipes(&scratch, &client);
        let is_error = code.is_some_and(|code| ![0, 101].contains(&code));
        assert!(is_error && !said.contains("panicked"), "{what}: {code:?} {said}");
    }
    // A client that sends a whole file before its error may have left that file in a partial snapshot.
    let left: Vec<_> =
        snapshots(&scratch, "tank/m").into_iter().filter(|name| !name.ends_with("_partial")).collect();
    assert_eq!(left, ["tank/m@begin"]);
    assert_eq!(file(&scratch, "tank/m@begin"), content());
    scratch.ok("check tank");
    // A digest that never matches is an error of that file alone, which stays unchanged.
    let wrong = sent(false).data(&[0]).answer(SAME, 0xa000, [0; 4]).token(0, &[7; 16]);
    let (code, said) = over_pipes(&scratch, &wrong.data(&[0; 3]));
    assert!(code == Some(23) && said.contains("failed verification -- update discarded"), "{code:?} {said}");
    // The same session with valid data.
    let (code, said) = over_pipes(&scratch, &goodbye(sent(true)));
    assert_eq!(code, Some(0), "{said}");
    let newest = snapshots(&scratch, "tank/m").pop().unwrap();
    assert_eq!(file(&scratch, &newest), [&content()[..700], &[b'n'; 200]].concat());
    scratch.ok("check tank");
}

/// The same with incremental lists.
#[test]
fn who_lies_of_directories_changes_nothing() {
    const LETTERS: &str = "-re.iLsfxCIvu";
    let scratch = scratch();
    for (what, client) in lies_one_by_one() {
        let (code, said) = over_pipes_as(&scratch, LETTERS, &client);
        let is_error = code.is_some_and(|code| ![0, 101].contains(&code));
        assert!(is_error && !said.contains("panicked"), "{what}: {code:?} {said}");
    }
    let left: Vec<_> =
        snapshots(&scratch, "tank/m").into_iter().filter(|name| !name.ends_with("_partial")).collect();
    assert_eq!(left, ["tank/m@begin"]);
    let (code, said) = over_pipes_as(&scratch, LETTERS, &deep());
    assert!(
        code.is_some_and(|code| ![0, 101].contains(&code)) && !said.contains("panicked"),
        "{code:?} {said}"
    );
    scratch.ok("check tank");

    let daemon = Daemon::start(&scratch);
    let whole = told_one_by_one().0;
    for end in (0..whole.len()).step_by(7) {
        Daemon::heard(daemon.connect_as(LETTERS, &Client(whole[..end].to_vec())));
    }
    let mut random = garbage(3 * 300).into_iter().map(usize::from);
    let mut next = || random.next().unwrap();
    for _ in 0..300 {
        let mut bytes = whole.clone();
        let at = (next() << 8 | next()) % bytes.len();
        bytes[at] ^= (next() as u8).max(1);
        Daemon::heard(daemon.connect_as(LETTERS, &Client(bytes)));
    }
    let memory = daemon.memory();
    assert!(memory < MEMORY_MAX, "{memory} KiB");
    drop(daemon);
    scratch.ok("check tank");
}

/// Valid incremental lists are accepted.
#[test]
fn who_tells_of_directories_one_by_one_is_heard() {
    let scratch = scratch();
    let (code, said) = over_pipes_as(&scratch, "-re.iLsfxCIvu", &told_one_by_one());
    assert_eq!(code, Some(0), "{said}");
    let newest = snapshots(&scratch, "tank/m").pop().unwrap();
    assert_eq!(file(&scratch, &newest), [&content()[..700], &[b'n'; 200]].concat());
    assert_eq!(fs::read(scratch.path().join("restored/d/g")).unwrap(), b"");
    scratch.ok("check tank");
}

#[test]
fn who_lies_to_the_daemon_changes_nothing() {
    let scratch = scratch();
    let daemon = Daemon::start(&scratch);
    for (what, client) in lies() {
        let said = daemon.served(&client);
        assert!(said.contains("@RSYNCD: OK"), "{what}: {said}");
    }
    for client in odd_lists() {
        daemon.served(&client);
    }
    // Cut off at any byte: the result is the old file or the complete new one.
    let whole = goodbye(sent(true)).0;
    for end in (0..whole.len()).step_by(7) {
        daemon.served(&Client(whole[..end].to_vec()));
    }
    let (old, new) = (content(), [&content()[..700], &[b'n'; 200]].concat());
    for snapshot in snapshots(&scratch, "tank/m") {
        let found = file(&scratch, &snapshot);
        assert!(found == old || snapshot.ends_with("_partial") && found == new, "{snapshot}");
    }
    // Changed at any byte: messages, lists, answers and content that are almost valid.
    let mut random = garbage(3 * 400).into_iter().map(usize::from);
    let mut next = || random.next().unwrap();
    for _ in 0..400 {
        let mut bytes = whole.clone();
        let at = (next() << 8 | next()) % bytes.len();
        bytes[at] ^= (next() as u8).max(1);
        daemon.served(&Client(bytes));
    }
    scratch.ok("list tank/m");
    // Clients that send nothing, or close one direction, do not delay the server.
    let begun = Instant::now();
    let mut silent: Vec<TcpStream> =
        [Client::default(), list(), asked()].iter().map(|client| daemon.connect(client)).collect();
    let gone = daemon.connect(&list());
    gone.shutdown(Shutdown::Read).unwrap();
    for stream in &mut silent {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let memory = daemon.memory();
    assert!(memory < MEMORY_MAX, "{memory} KiB");
    drop(gone);
    drop(daemon);
    scratch.ok("check tank");
}

/// A directory with the file, a symbolic link that leads out of it, and a directory outside.
fn directory() -> (Scratch, PathBuf, PathBuf) {
    let scratch = Scratch::new();
    let (root, outside) = (scratch.path().join("root"), scratch.path().join("outside"));
    fs::create_dir_all(root.join("d")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(root.join("f"), content()).unwrap();
    fs::write(outside.join("f"), "theirs").unwrap();
    symlink("../outside", root.join("link")).unwrap();
    symlink("../outside/f", root.join("file-link")).unwrap();
    (scratch, root, outside)
}

/// Checks that nothing outside has changed, and that no temporary name is left.
#[track_caller]
fn assert_unharmed(what: &str, root: &Path, outside: &Path) {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(outside), ["f"], "{what}");
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "theirs", "{what}");
    let scratch = names(root.parent().unwrap());
    let strange: Vec<_> =
        scratch.iter().filter(|name| ["f", "x", "y", "g"].contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "{what}: {strange:?}");
    let temporary: Vec<_> = names(root).into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(temporary.is_empty(), "{what}: {temporary:?}");
}

#[test]
fn who_lies_to_a_directory_changes_nothing_else() {
    let (scratch, root, outside) = directory();
    let daemon = Daemon::of_directory(&scratch, &root);
    let begin = Client::default;
    let mut lies = lies();
    // Ways out: through an existing link, and through a link in the same list that replaces a directory.
    for name in [&b"link/f"[..], b"link/new", b"link/../f", b"d/../../f", b"file-link/f"] {
        let client = begin().entry(name, 0, FILE).end_of_list();
        let client = client.answer(FIRST, 0xa000, [0; 4]).token(0, &md5_of(b""));
        lies.push((format!("{:?}", String::from_utf8_lossy(name)), client));
    }
    for (what, client) in lies {
        let said = daemon.served(&client);
        assert!(said.contains("@RSYNCD: OK"), "{what}: {said}");
        assert_unharmed(&what, &root, &outside);
    }
    assert_eq!(fs::read(root.join("f")).unwrap().len(), 900, "the one that was sent whole, among others");
    for client in odd_lists() {
        daemon.served(&client);
    }
    for name in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        assert!(name.symlink_metadata().unwrap().len() < 1 << 20, "{name:?}");
    }
    // Cut off at any byte: the result is the old file or the complete new one.
    let whole = goodbye(sent(true)).0;
    let (old, new) = (content(), [&content()[..700], &[b'n'; 200]].concat());
    for end in (0..whole.len()).step_by(7) {
        fs::write(root.join("f"), &old).unwrap();
        daemon.served(&Client(whole[..end].to_vec()));
        let found = fs::read(root.join("f")).unwrap();
        assert!(found == old || found == new, "{end}");
        assert_unharmed(&format!("cut at {end}"), &root, &outside);
    }
    // Changed at any byte, with one list and with incremental lists.
    let mut random = garbage(6 * 300).into_iter().map(usize::from);
    let mut next = || random.next().unwrap();
    for (letters, whole) in [("-re.LsfxCIvu", whole), ("-re.iLsfxCIvu", told_one_by_one().0)] {
        for _ in 0..300 {
            let mut bytes = whole.clone();
            let at = (next() << 8 | next()) % bytes.len();
            bytes[at] ^= (next() as u8).max(1);
            Daemon::heard(daemon.connect_as(letters, &Client(bytes)));
            assert_unharmed("changed", &root, &outside);
        }
    }
    for (what, client) in lies_one_by_one().into_iter().chain([("deep".to_owned(), deep())]) {
        Daemon::heard(daemon.connect_as("-re.iLsfxCIvu", &client));
        assert_unharmed(&what, &root, &outside);
    }
    let memory = daemon.memory();
    assert!(memory < MEMORY_MAX, "{memory} KiB");
    // The server still works.
    fs::write(root.join("f"), &old).unwrap();
    daemon.served(&goodbye(sent(true)));
    assert_eq!(fs::read(root.join("f")).unwrap(), new);
}

/// A name that the filesystem refuses is an error of that file. The other files arrive.
#[test]
fn a_name_too_long_is_an_error_of_that_file() {
    let (scratch, root, outside) = directory();
    let daemon = Daemon::of_directory(&scratch, &root);
    let long = [b'n'; 256];
    let client = Client::default().entry(b"g", 5, FILE).entry(&long, 5, FILE).end_of_list();
    let client = client.answer(FIRST, 0xa000, [0; 4]).token(5, b"hello").token(0, &md5_of(b"hello"));
    let said = daemon.served(&goodbye(client));
    assert!(said.contains("File name too long"), "{said}");
    assert_eq!(fs::read(root.join("g")).unwrap(), b"hello");
    // The longest valid name still gets a valid temporary name.
    let longest = [b'n'; 255];
    let client = Client::default().entry(&longest, 5, FILE).end_of_list();
    let client = client.answer(FIRST, 0xa000, [0; 4]).token(5, b"hello").token(0, &md5_of(b"hello"));
    let said = daemon.served(&goodbye(client));
    assert_eq!(fs::read(root.join(str::from_utf8(&longest).unwrap())).unwrap(), b"hello", "{said}");
    assert_unharmed("long names", &root, &outside);
}
