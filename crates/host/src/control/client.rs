//! The caller's side of the control socket.

use std::ffi::OsString;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
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

/// How often a waiting caller checks whether its command is cancelled.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// A command for the owner, with everything that is passed along.
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
    /// When this becomes true, the owner is asked to cancel the command. The caller still waits for its result.
    pub cancelled: &'a AtomicBool,
}

/// Opens a working directory to pass it on. It need not be readable, and the receiver cannot list it with this
/// descriptor.
///
/// # Errors
/// When there is no such directory.
pub fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// What an owner reported about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Exit status of the command.
    pub code: u8,
    /// Process id of the owner, in the namespace of this process.
    pub owner: u32,
}

impl Call<'_> {
    /// Passes the command to the owner that listens at `path`, and waits for the command's exit status.
    ///
    /// Returns `None` when no owner listens there, or when the owner is closing and has not begun the command: the
    /// caller should then try to become the owner. When this process is killed, the owner notices it and cancels the
    /// command, so signals need no handling here. A program that handles signals uses [`Call::cancelled`].
    ///
    /// # Errors
    /// `OwnerDied` when the command was begun and its result is unknown; `Refused`, `Version`, `Stranger`, `TooLong`,
    /// `Protocol`, `Io`.
    pub fn send(&self, path: &Path) -> Result<Option<Done>> {
        let body = wire::encode_body(self.args, self.env)?;
        let mut connection = match UnixStream::connect(path) {
            Ok(connection) => connection,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(ControlError::io("connect to", path, error)),
        };
        let owner = check_owner(&connection, path)?;
        // An owner that refuses a request answers and closes, perhaps before it has read everything. Its answer is more
        // useful than the send error.
        let sent = self.send_request(&connection, &body);
        let first = match read_answer(&mut connection) {
            Ok(Some(bytes)) => Answer::decode(bytes)?,
            // The owner closed the connection before it accepted the command, so it has not begun it.
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
            Answer::Exit(code) => Ok(Some(Done { code, owner })),
            _ => Err(ControlError::Protocol("a second answer that is no exit status")),
        }
    }

    /// Waits for the second answer. On cancellation the write side is shut down: the owner treats that like the
    /// caller's death, but still answers.
    fn wait(&self, connection: &UnixStream) {
        let interval = Timespec { tv_sec: 0, tv_nsec: WATCH_INTERVAL.subsec_nanos().into() };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        while !self.cancelled.load(Ordering::Relaxed) {
            match rustix::event::poll(&mut fds, Some(&interval)) {
                Ok(0) | Err(Errno::INTR) => {}
                // The following read returns the answer or the error.
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

/// Sends all bytes. If the owner is gone, this is an error instead of a SIGPIPE.
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

/// The result for the caller of an answer other than `Accepted`.
fn refusal(answer: Answer) -> Result<Option<Done>> {
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

/// Checks that the owner is a process of this user or of root: only they may get descriptors and commands. This holds
/// also if the caller is root: a process of another user could use the descriptors to read what only root may read.
/// Returns the owner's process id.
fn check_owner(connection: &UnixStream, path: &Path) -> Result<u32> {
    let owner = rustix::net::sockopt::socket_peercred(connection)
        .map_err(|e| ControlError::io("identify the owner at", path, e))?;
    if owner.uid.is_root() || owner.uid == rustix::process::geteuid() {
        return Ok(owner.pid.as_raw_nonzero().get().unsigned_abs());
    }
    Err(ControlError::Stranger { path: path.to_owned(), uid: owner.uid.as_raw() })
}

/// Whether the error means that there is no owner, or that it is gone.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
}

/// Reads an answer; `None` when the owner closed the connection.
fn read_answer(connection: &mut UnixStream) -> io::Result<Option<[u8; ANSWER_LEN]>> {
    let mut answer = [0; ANSWER_LEN];
    match connection.read_exact(&mut answer) {
        Ok(()) => Ok(Some(answer)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
