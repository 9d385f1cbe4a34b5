//! The caller's end.

use std::ffi::OsString;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::wire::{self, ANSWER_LEN, Answer, DESCRIPTORS};
use super::{ControlError, Result};

/// The variables of the environment that go with a command: those that shape its output.
pub const PASSED_VARIABLES: &[&str] = &[
    "COLUMNS",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_TIME",
    "LINES",
    "NO_COLOR",
    "TERM",
    "TZ",
];

/// How soon it is noticed that a command is to be given up.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// A command to be done elsewhere, and everything that goes with it.
#[derive(Debug)]
pub struct Call<'a> {
    /// The command line, the program's name first.
    pub args: &'a [OsString],
    /// Variables of the environment.
    pub env: &'a [(OsString, OsString)],
    /// The working directory.
    pub cwd: BorrowedFd<'a>,
    /// Standard input.
    pub stdin: BorrowedFd<'a>,
    /// Standard output.
    pub stdout: BorrowedFd<'a>,
    /// Standard error.
    pub stderr: BorrowedFd<'a>,
    /// When it becomes true, the owner is asked to give the command up; what comes of that is still waited for.
    pub cancelled: &'a AtomicBool,
}

/// Has the owner that listens at `path` do the command line `args`, the program's name first, with this process's
/// directory, standard streams and [variables](PASSED_VARIABLES), and waits for its exit status.
///
/// `None` when nobody serves there, or the owner is closing and has not begun: try to become the owner. When this
/// process is killed the owner notices and gives the command up, so signals need no handling; who handles them has
/// [`Call::cancelled`].
///
/// # Errors
/// `OwnerDied` when the command was begun and its end is unknown; `Refused`, `Version`, `Stranger`, `TooLong`,
/// `Protocol`, `Io`.
pub fn call(path: &Path, args: &[OsString]) -> Result<Option<u8>> {
    let env: Vec<_> = PASSED_VARIABLES
        .iter()
        .filter_map(|&name| Some((OsString::from(name), std::env::var_os(name)?)))
        .collect();
    let cwd = open_directory(Path::new("."));
    let cwd = cwd.map_err(|e| ControlError::io("pass the working directory to", path, e))?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    Call {
        args,
        env: &env,
        cwd: cwd.as_fd(),
        stdin: stdin.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        cancelled: &AtomicBool::new(false),
    }
    .send(path)
}

/// Opens a working directory to pass it on. It need not be readable, and who gets it cannot list it with this descriptor.
///
/// # Errors
/// When there is no such directory.
pub fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl Call<'_> {
    /// As [`call`], with everything given.
    ///
    /// # Errors
    /// As [`call`].
    pub fn send(&self, path: &Path) -> Result<Option<u8>> {
        let body = wire::encode_body(self.args, self.env)?;
        let mut connection = match UnixStream::connect(path) {
            Ok(connection) => connection,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(ControlError::io("connect to", path, error)),
        };
        check_owner(&connection, path)?;
        // An owner that does not want us answers and closes, perhaps before it has read everything; its answer says
        // more than our failure to send.
        let sent = self.send_request(&connection, &body);
        let first = match read_answer(&mut connection) {
            Ok(Some(bytes)) => Answer::decode(bytes)?,
            // It went before it accepted, so it has not begun.
            Ok(None) => return Ok(None),
            Err(error) => {
                let error = sent.err().unwrap_or(error);
                return if is_gone(&error) {
                    Ok(None)
                } else {
                    Err(ControlError::io("call over", path, error))
                };
            }
        };
        if first != Answer::Accepted {
            return refusal(first);
        }
        self.wait(&connection);
        let Ok(Some(second)) = read_answer(&mut connection) else { return Err(ControlError::OwnerDied) };
        match Answer::decode(second)? {
            Answer::Exit(code) => Ok(Some(code)),
            _ => Err(ControlError::Protocol("a second answer that is no exit status")),
        }
    }

    /// Waits for the second answer. The owner takes it for our death that we shut our side, and answers all the same.
    fn wait(&self, connection: &UnixStream) {
        let interval = Timespec { tv_sec: 0, tv_nsec: WATCH_INTERVAL.subsec_nanos().into() };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        while !self.cancelled.load(Ordering::Relaxed) {
            match rustix::event::poll(&mut fds, Some(&interval)) {
                Ok(0) | Err(Errno::INTR) => {}
                // What has come, or why nothing comes, is told by reading.
                Ok(_) | Err(_) => return,
            }
        }
        let _ = connection.shutdown(Shutdown::Write);
    }

    fn send_request(&self, connection: &UnixStream, body: &[u8]) -> io::Result<()> {
        let header = wire::encode_header(body.len());
        let descriptors: [BorrowedFd<'_>; DESCRIPTORS] = [self.cwd, self.stdin, self.stdout, self.stderr];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let sent = loop {
            let iov = [IoSlice::new(&header)];
            match rustix::net::sendmsg(connection, &iov, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        send_all(connection, &header[sent..])?;
        send_all(connection, body)
    }
}

/// Writes everything; an owner that went away is an error, and no SIGPIPE.
fn send_all(connection: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(connection, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What an answer instead of `Accepted` means to the caller.
fn refusal(answer: Answer) -> Result<Option<u8>> {
    match answer {
        Answer::Closing => Ok(None),
        Answer::Refused => Err(ControlError::Refused),
        Answer::Version(theirs) => Err(ControlError::Version { theirs, ours: wire::VERSION }),
        Answer::Malformed => Err(ControlError::Protocol("it did not understand the request")),
        Answer::Accepted | Answer::Exit(_) => {
            Err(ControlError::Protocol("an exit status before the command began"))
        }
    }
}

/// Descriptors and the command go only to a process of this user or of root. That holds for root too: the process of
/// another user could read with them what only root may read.
fn check_owner(connection: &UnixStream, path: &Path) -> Result<()> {
    let owner = rustix::net::sockopt::socket_peercred(connection)
        .map_err(|e| ControlError::io("identify the owner at", path, e))?;
    if owner.uid.is_root() || owner.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(ControlError::Stranger { path: path.to_owned(), uid: owner.uid.as_raw() })
}

/// Whether the error means that there is no owner, or none any more.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
}

/// `None` when the owner hung up instead.
fn read_answer(connection: &mut UnixStream) -> io::Result<Option<[u8; ANSWER_LEN]>> {
    let mut answer = [0; ANSWER_LEN];
    match connection.read_exact(&mut answer) {
        Ok(()) => Ok(Some(answer)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
