use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tempfile::TempDir;

use super::wire::Answer;
use super::*;

fn socket() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("control.sock");
    (dir, path)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Calls with /dev/null as all standard streams.
fn call_quietly(path: &Path, args: &[OsString]) -> Result<Option<u8>> {
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let cwd = File::open(path.parent().unwrap()).unwrap();
    let null = null.as_fd();
    let cancelled = &AtomicBool::new(false);
    Call { args, env: &[], cwd: cwd.as_fd(), stdin: null, stdout: null, stderr: null, cancelled }
        .send(path)
        .map(code)
}

/// The exit status. The owner is this process itself.
fn code(done: Option<Done>) -> Option<u8> {
    done.map(|done| {
        assert_eq!(done.owner, std::process::id());
        done.code
    })
}

/// Serves until the listener is closed. Each request runs in its own thread.
fn serve(
    listener: Arc<Listener>,
    work: impl Fn(Request) + Send + Sync + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::scope(|scope| {
            while let Some(request) = listener.accept().unwrap() {
                let work = &work;
                scope.spawn(move || work(request));
            }
        });
    })
}

#[test]
fn a_command_is_done_with_the_callers_streams() {
    let (dir, path) = socket();
    let listener = Arc::new(Listener::bind(&path).unwrap());
    let server = serve(Arc::clone(&listener), |request| {
        let mut input = String::new();
        File::from(request.stdin.try_clone().unwrap()).read_to_string(&mut input).unwrap();
        let env: Vec<_> =
            request.env.iter().map(|(k, v)| format!("{}={}", k.display(), v.display())).collect();
        let mut out = File::from(request.stdout.try_clone().unwrap());
        write!(out, "{:?} {env:?} {input}", request.args).unwrap();
        File::from(request.stderr.try_clone().unwrap()).write_all(b"warning").unwrap();
        let here = rustix::fs::statat(&request.cwd, "marker", rustix::fs::AtFlags::empty());
        request.reply(if here.is_ok() { 42 } else { 1 }).unwrap();
    });
    std::fs::write(dir.path().join("marker"), "").unwrap();
    let file = |name: &str| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.path().join(name))
            .unwrap()
    };
    std::fs::write(dir.path().join("in"), "hello").unwrap();
    let (stdin, stdout, stderr) = (file("in"), file("out"), file("err"));
    let cwd = rustix::fs::open(dir.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let mut args = words(&["zfs", "", "receive"]);
    args.push(OsString::from_vec(vec![0xff, b'x']));
    let call = Call {
        args: &args,
        env: &[("TZ".into(), "UTC".into())],
        cwd: cwd.as_fd(),
        stdin: stdin.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        cancelled: &AtomicBool::new(false),
    };
    assert_eq!(code(call.send(&path).unwrap()), Some(42));
    let out = std::fs::read_to_string(dir.path().join("out")).unwrap();
    assert_eq!(out, r#"["zfs", "", "receive", "\xFFx"] ["TZ=UTC"] hello"#);
    assert_eq!(std::fs::read_to_string(dir.path().join("err")).unwrap(), "warning");
    listener.close();
    server.join().unwrap();
}

#[test]
fn nobody_there_is_none() {
    let (_dir, path) = socket();
    assert_eq!(call_quietly(&path, &words(&["x"])).unwrap(), None);
    // A stale socket: its owner died without closing it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert_eq!(call_quietly(&path, &words(&["x"])).unwrap(), None);
    // The next owner replaces it.
    let listener = Listener::bind(&path).unwrap();
    listener.close();
    assert!(!path.exists());
    assert_eq!(call_quietly(&path, &words(&["x"])).unwrap(), None);
}

#[test]
fn only_the_owner_may_touch_the_socket() {
    let (_dir, path) = socket();
    let _listener = Listener::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_caller_that_goes_away_cancels() {
    let (_dir, path) = socket();
    let listener = Listener::bind(&path).unwrap();
    let caller = raw_call(&path, &request_bytes(&["zfs", "send"]), 4);
    let request = listener.accept().unwrap().unwrap();
    let watch = request.watch().unwrap();
    assert!(!request.wait_cancelled(Duration::ZERO) && !watch.cancelled());
    assert!(!request.wait_cancelled(Duration::from_millis(20)));
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(caller);
    });
    assert!(request.wait_cancelled(Duration::from_secs(20)));
    later.join().unwrap();
    assert!(request.wait_cancelled(Duration::ZERO) && watch.cancelled());
    assert!(request.reply(0).is_err());
}

#[test]
fn who_gives_a_command_up_learns_how_it_ended() {
    let (dir, path) = socket();
    let listener = Arc::new(Listener::bind(&path).unwrap());
    let cancelled = Arc::new(AtomicBool::new(false));
    let begun = cancelled.clone();
    let server = serve(Arc::clone(&listener), move |request| {
        assert!(!request.wait_cancelled(Duration::ZERO));
        begun.store(true, Ordering::Relaxed);
        assert!(request.wait_cancelled(Duration::from_secs(20)));
        request.reply(7).unwrap();
    });
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let cwd = File::open(dir.path()).unwrap();
    let (null, cwd) = (null.as_fd(), cwd.as_fd());
    let args = words(&["zfs", "receive"]);
    let call =
        Call { args: &args, env: &[], cwd, stdin: null, stdout: null, stderr: null, cancelled: &cancelled };
    assert_eq!(code(call.send(&path).unwrap()), Some(7));
    listener.close();
    server.join().unwrap();
}

#[test]
fn a_killed_process_cancels() {
    let (_dir, path) = socket();
    let listener = Listener::bind(&path).unwrap();
    // A process that has the connection as its stdin, like a caller, and is killed.
    let connection = raw_call(&path, &request_bytes(&["zfs", "send"]), 4);
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .stdin(std::os::fd::OwnedFd::from(connection))
        .spawn()
        .unwrap();
    let request = listener.accept().unwrap().unwrap();
    assert!(!request.wait_cancelled(Duration::ZERO));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(request.wait_cancelled(Duration::from_secs(20)));
}

#[test]
fn an_owner_that_dies_is_told_from_one_that_declines() {
    let (_dir, path) = socket();
    let listener = Arc::new(Listener::bind(&path).unwrap());
    let server = serve(Arc::clone(&listener), drop);
    assert!(matches!(call_quietly(&path, &words(&["x"])), Err(ControlError::OwnerDied)));
    listener.close();
    server.join().unwrap();
    // An owner that accepts the connection and dies before it accepts the command has begun nothing.
    let dying = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || drop(dying.accept().unwrap()));
    assert_eq!(call_quietly(&path, &words(&["x"])).unwrap(), None);
    server.join().unwrap();
}

#[test]
fn closing_sends_the_waiting_away_and_finishes_the_rest() {
    let (_dir, path) = socket();
    let listener = Listener::bind(&path).unwrap();
    let first = raw_call(&path, &request_bytes(&["first"]), 4);
    let request = listener.accept().unwrap().unwrap();
    // Waiting in the backlog, not yet accepted.
    let waiting = {
        let path = path.clone();
        std::thread::spawn(move || call_quietly(&path, &words(&["second"])).unwrap())
    };
    std::thread::sleep(Duration::from_millis(50));
    listener.close();
    assert_eq!(waiting.join().unwrap(), None);
    assert_eq!(call_quietly(&path, &words(&["third"])).unwrap(), None);
    assert!(listener.accept().unwrap().is_none());
    assert_eq!(listener.active(), 1);
    request.reply(7).unwrap();
    assert_eq!(listener.active(), 0);
    assert_eq!(answers(first), [Answer::Accepted, Answer::Exit(7)]);
}

#[test]
fn an_owner_that_would_end_turns_others_away_while_the_last_command_ends() {
    let (_dir, path) = socket();
    let listener = Arc::new(Listener::bind(&path).unwrap());
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, may_end) = std::sync::mpsc::channel();
    let may_end = parking_lot::Mutex::new(may_end);
    let server = serve(Arc::clone(&listener), move |request| {
        begun.send(()).unwrap();
        may_end.lock().recv().unwrap();
        request.reply(7).unwrap();
    });
    let last = raw_call(&path, &request_bytes(&["list"]), 4);
    has_begun.recv().unwrap();
    let closing = {
        let listener = Arc::clone(&listener);
        std::thread::spawn(move || listener.close_when_idle())
    };
    while !listener.is_turning_away() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(answers(raw_call(&path, &request_bytes(&["other"]), 4)), [Answer::Closing]);
    end.send(()).unwrap();
    closing.join().unwrap();
    server.join().unwrap();
    assert_eq!(answers(last), [Answer::Accepted, Answer::Exit(7)]);
    assert_eq!(call_quietly(&path, &words(&["later"])).unwrap(), None);
}

#[test]
fn an_owner_that_would_end_serves_what_its_last_command_waits_for() {
    let (_dir, path) = socket();
    let listener = Arc::new(Listener::bind(&path).unwrap());
    let (send, receive) = std::sync::mpsc::channel();
    let receive = parking_lot::Mutex::new(receive);
    let (begun, has_begun) = std::sync::mpsc::channel();
    let server = serve(Arc::clone(&listener), move |request| {
        if request.args == words(&["receive"]) {
            begun.send(()).unwrap();
            receive.lock().recv().unwrap();
        } else {
            send.send(()).unwrap();
        }
        request.reply(0).unwrap();
    });
    let receiver = raw_call(&path, &request_bytes(&["receive"]), 4);
    has_begun.recv().unwrap();
    let closing = {
        let listener = Arc::clone(&listener);
        std::thread::spawn(move || listener.close_when_idle())
    };
    let started = Instant::now();
    // Like a command: as long as the owner is not closed, the lock is held, so the call is repeated.
    while call_quietly(&path, &words(&["send"])).unwrap().is_none() {
        assert!(!closing.is_finished() && started.elapsed() < Duration::from_secs(60), "never served");
        std::thread::sleep(Duration::from_millis(10));
    }
    closing.join().unwrap();
    server.join().unwrap();
    assert_eq!(answers(receiver), [Answer::Accepted, Answer::Exit(0)]);
}

#[test]
fn owners_come_and_go_and_no_command_is_lost_or_done_twice() {
    use std::sync::atomic::{AtomicU64, Ordering};
    const CALLERS: u64 = 4;
    const COMMANDS: u64 = 25;
    let (_dir, path) = socket();
    // A substitute for the pool's lock.
    let lock = Arc::new(parking_lot::Mutex::new(()));
    let done = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (path, lock, done) = (path.clone(), Arc::clone(&lock), Arc::clone(&done));
            std::thread::spawn(move || {
                for _ in 0..COMMANDS {
                    one_command(&path, &lock, &done);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), CALLERS * COMMANDS);
}

/// Does what the program does: becomes the owner, or calls the existing owner.
fn one_command(path: &Path, lock: &parking_lot::Mutex<()>, done: &Arc<std::sync::atomic::AtomicU64>) {
    use std::sync::atomic::Ordering;
    let started = Instant::now();
    loop {
        if let Some(_held) = lock.try_lock() {
            let listener = Arc::new(Listener::bind(path).unwrap());
            let theirs = Arc::clone(done);
            let server = serve(Arc::clone(&listener), move |request| {
                theirs.fetch_add(1, Ordering::SeqCst);
                request.reply(9).unwrap();
            });
            done.fetch_add(1, Ordering::SeqCst);
            listener.close_when_idle();
            server.join().unwrap();
            return;
        }
        match call_quietly(path, &words(&["work"])).unwrap() {
            Some(code) => {
                assert_eq!(code, 9);
                return;
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(started.elapsed() < Duration::from_secs(60), "starved");
    }
}

/// Sends `bytes` with `count` descriptors. The request may be invalid.
fn raw_call(path: &Path, bytes: &[u8], count: usize) -> UnixStream {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut connection = UnixStream::connect(path).unwrap();
    let null = File::open("/dev/null").unwrap();
    let descriptors = vec![null.as_fd(); count];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if count > 0 {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    let first = bytes.len().min(16);
    let iov = [std::io::IoSlice::new(&bytes[..first])];
    let sent = rustix::net::sendmsg(&connection, &iov, &mut control, SendFlags::NOSIGNAL).unwrap();
    // The owner may have closed the connection already.
    let _ = connection.write_all(&bytes[sent..]);
    connection
}

fn request_bytes(args: &[&str]) -> Vec<u8> {
    let body = wire::encode_body(&words(args), &[]).unwrap();
    [&wire::encode_header(body.len())[..], &body].concat()
}

fn answers(mut connection: UnixStream) -> Vec<Answer> {
    let mut bytes = Vec::new();
    // A reset after the answer does not matter.
    let _ = connection.read_to_end(&mut bytes);
    bytes.as_chunks().0.iter().map(|&chunk| Answer::decode(chunk).unwrap()).collect()
}

#[test]
fn nonsense_is_sent_away_and_the_next_is_served() {
    let good = request_bytes(&["ok"]);
    let mut newer = good.clone();
    newer[8] = 2;
    let mut long = good.clone();
    long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut many = good.clone();
    many[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut trailing = [&good[..], b"x"].concat();
    trailing[12] += 1;
    let none = request_bytes(&[]);
    let nul = request_bytes(&["a\0b"]);
    let cases: [(&[u8], usize, Answer); 9] = [
        (b"GET / HTTP/1.1\r\n", 4, Answer::Malformed),
        (&newer, 4, Answer::Version(1)),
        (&long, 4, Answer::Malformed),
        (&many, 4, Answer::Malformed),
        (&trailing, 4, Answer::Malformed),
        (&none, 4, Answer::Malformed),
        (&nul, 4, Answer::Malformed),
        (&good, 3, Answer::Malformed),
        (&good, 16, Answer::Malformed),
    ];
    let (_dir, path) = socket();
    let listener = Listener::bind(&path).unwrap();
    let before = open_descriptors();
    for (index, (bytes, descriptors, expected)) in cases.into_iter().enumerate() {
        let bad = raw_call(&path, bytes, descriptors);
        let served = raw_call(&path, &good, 4);
        let request = listener.accept().unwrap().unwrap();
        assert_eq!(request.args, words(&["ok"]));
        request.reply(0).unwrap();
        assert_eq!(answers(bad), [expected], "case {index}");
        assert_eq!(answers(served), [Answer::Accepted, Answer::Exit(0)]);
    }
    // Other tests of this process open and close some descriptors. A leak here would be a hundred.
    assert!(open_descriptors() < before + 50);
    // A caller without descriptors, and one that closes without sending anything.
    drop(raw_call(&path, &good, 0));
    drop(UnixStream::connect(&path).unwrap());
    let served = raw_call(&path, &good, 4);
    listener.accept().unwrap().unwrap().reply(0).unwrap();
    assert_eq!(answers(served).len(), 2);
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_command_line_that_is_too_long_is_refused_here() {
    let (_dir, path) = socket();
    let error = call_quietly(&path, &[OsString::from("x".repeat(wire::BODY_MAX))]).unwrap_err();
    assert!(matches!(error, ControlError::TooLong { .. }), "{error}");
}

#[test]
fn long_command_lines_get_through() {
    let (_dir, path) = socket();
    let listener = Arc::new(Listener::bind(&path).unwrap());
    let server = serve(Arc::clone(&listener), |request| {
        let total: usize = request.args.iter().map(|a| a.len()).sum();
        request.reply(u8::from(total == 3_000_000)).unwrap();
    });
    let args = vec![OsString::from("y".repeat(100_000)); 30];
    assert_eq!(call_quietly(&path, &args).unwrap(), Some(1));
    listener.close();
    server.join().unwrap();
}

#[test]
fn answers_are_what_the_page_says() {
    assert_eq!(Answer::Accepted.encode(), [0; 8]);
    assert_eq!(Answer::Exit(3).encode(), [1, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(Answer::Version(0x0102).encode(), [4, 0, 0, 0, 2, 1, 0, 0]);
    for answer in [Answer::Accepted, Answer::Exit(255), Answer::Closing, Answer::Refused, Answer::Malformed] {
        assert_eq!(Answer::decode(answer.encode()).unwrap(), answer);
    }
    assert!(Answer::decode([9; 8]).is_err());
    assert!(Answer::decode([1, 0, 0, 0, 0, 1, 0, 0]).is_err());
    let golden = b"SNOWCTRL\x01\0\0\0\x10\0\0\0\x01\0\0\0\0\0\0\0\x04\0\0\0list";
    assert_eq!(request_bytes(&["list"]), golden);
}

proptest! {
    #[test]
    fn bodies_come_back(
        args: Vec<Vec<u8>>,
        env: Vec<(Vec<u8>, Vec<u8>)>,
    ) {
        let os = |bytes: Vec<u8>| OsString::from_vec(bytes.into_iter().filter(|&b| b != 0).collect());
        let args: Vec<_> = args.into_iter().map(os).collect();
        let env: Vec<_> = env.into_iter().map(|(k, v)| (os(k), os(v))).collect();
        let body = wire::decode_body(&wire::encode_body(&args, &env).unwrap()).unwrap();
        prop_assert_eq!((body.args, body.env), (args, env));
    }

    #[test]
    fn any_bytes_are_taken_calmly(bytes: Vec<u8>) {
        if let Some(body) = wire::decode_body(&bytes) {
            prop_assert_eq!(wire::encode_body(&body.args, &body.env).unwrap(), bytes);
        }
    }
}
