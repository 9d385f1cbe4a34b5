//! The owner's side of the control socket.
//!
//! Lock order: there is only `Shared::state`, and nothing blocks while it is held.

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::wire::{self, Answer, DESCRIPTORS, HEADER_LEN};
use super::{ControlError, Result};

/// How long a caller may take to send its request. It sends everything at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an owner that wants to end turns new callers away. A command that is still running after this time may be
/// waiting for one of those callers.
const TURN_AWAY: Duration = Duration::from_secs(1);

/// Callers that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The owner's side of a pool's control socket.
///
/// One thread calls [`accept`](Self::accept) in a loop. Any other thread may call
/// [`close_when_idle`](Self::close_when_idle).
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Wakes the accepting thread when the listener closes.
    wake: OwnedFd,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Closed for good: the socket's file is removed, or about to be removed.
    closed: bool,
    /// Temporary: callers are told to look for another owner, as if this one were closed.
    turning_away: bool,
    /// Number of accepted requests that have not ended.
    active: usize,
}

/// A command that a caller wants to run. If it is dropped without a [`reply`](Self::reply), the caller assumes that its
/// owner died.
#[derive(Debug)]
pub struct Request {
    /// The command line, the program's name first.
    pub args: Vec<OsString>,
    /// The environment variables that the caller passed.
    pub env: Vec<(OsString, OsString)>,
    /// The caller's working directory, opened with `O_PATH`: relative paths on the command line start here.
    pub cwd: OwnedFd,
    /// The caller's standard input.
    pub stdin: OwnedFd,
    /// The caller's standard output.
    pub stdout: OwnedFd,
    /// The caller's standard error.
    pub stderr: OwnedFd,
    connection: UnixStream,
    _active: Active,
}

/// Counts a request as active until it is dropped.
#[derive(Debug)]
struct Active(Arc<Shared>);

impl Drop for Active {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.active -= 1;
        if state.active == 0 {
            self.0.idle.notify_all();
        }
    }
}

impl Listener {
    /// Listens at `path`. The caller must hold the pool's lock. A socket that already exists at `path` therefore
    /// belongs to an owner that died, and is removed.
    ///
    /// # Errors
    /// `Io`.
    pub fn bind(path: &Path) -> Result<Self> {
        let io = |error| ControlError::io("listen on", path, error);
        let address = SocketAddrUnix::new(path).map_err(io)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(io)?;
        // On Linux the file inherits the mode of the socket, so other users cannot connect at any moment.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(io)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ControlError::io("replace", path, error));
            }
            _ => {}
        }
        rustix::net::bind(&socket, &address).map_err(io)?;
        rustix::net::listen(&socket, BACKLOG).map_err(io)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io)?;
        Ok(Self { socket, path: path.to_owned(), wake, shared: Arc::default() })
    }

    /// Waits for the next command; `None` when the listener was closed. Callers without permission and invalid requests
    /// are answered and skipped.
    ///
    /// # Errors
    /// `Io` when the socket itself fails, or the process has no free descriptors.
    pub fn accept(&self) -> Result<Option<Request>> {
        loop {
            if self.shared.state.lock().closed {
                return Ok(None);
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(ControlError::io("wait on", &self.path, error)),
            }
            let Some(connection) = self.next_connection()? else { continue };
            // A caller that is gone or sent an invalid request does not affect the owner.
            if let Ok(request) = self.receive(connection) {
                return Ok(Some(request));
            }
        }
    }

    /// Closes at once: no further request is accepted, and callers that are waiting are told to look for another owner.
    /// Requests accepted before continue.
    pub fn close(&self) {
        {
            let mut state = self.shared.state.lock();
            if state.closed {
                return;
            }
            state.closed = true;
        }
        self.leave();
    }

    /// Closes as soon as no accepted request is running. First it turns new callers away for a moment, so that many
    /// short commands do not keep the owner alive. A request that is still running after that may be waiting for one of
    /// the callers, as the receiver of a stream waits for its sender. So callers are then served again.
    pub fn close_when_idle(&self) {
        let until = Instant::now() + TURN_AWAY;
        {
            let mut state = self.shared.state.lock();
            state.turning_away = true;
            while state.active > 0 && !self.shared.idle.wait_until(&mut state, until).timed_out() {}
            state.turning_away = false;
            while state.active > 0 {
                self.shared.idle.wait(&mut state);
            }
            state.closed = true;
        }
        self.leave();
    }

    /// Removes the socket's file so that no new caller comes, then turns away the callers in the queue.
    fn leave(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        let _ = std::fs::remove_file(&self.path);
        while let Ok(Some(connection)) = self.next_connection() {
            let _ = send(&connection, Answer::Closing);
        }
    }

    /// Number of accepted requests that are running.
    #[cfg(test)]
    pub(super) fn active(&self) -> usize {
        self.shared.state.lock().active
    }

    #[cfg(test)]
    pub(super) fn is_turning_away(&self) -> bool {
        self.shared.state.lock().turning_away
    }

    /// Accepts a connection; `None` when no caller is waiting any more.
    fn next_connection(&self) -> Result<Option<UnixStream>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(connection) => Ok(Some(UnixStream::from(connection))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(ControlError::io("accept on", &self.path, error)),
        }
    }

    /// Receives a request on a new connection. Answers if it cannot be served.
    fn receive(&self, connection: UnixStream) -> Result<Request> {
        let peer = rustix::net::sockopt::socket_peercred(&connection)
            .map_err(|e| ControlError::io("identify the caller at", &self.path, e))?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            send(&connection, Answer::Refused)?;
            return Err(ControlError::Stranger { path: self.path.clone(), uid: peer.uid.as_raw() });
        }
        let deadline = Instant::now() + PATIENCE;
        let parts = match read_request(&connection, deadline, &self.path) {
            Err(ControlError::Protocol(what)) => {
                send(&connection, Answer::Malformed)?;
                return Err(ControlError::Protocol(what));
            }
            Err(ControlError::Version { theirs, ours }) => {
                send(&connection, Answer::Version(ours))?;
                return Err(ControlError::Version { theirs, ours });
            }
            other => other?,
        };
        let active = self.accept_request(&connection)?;
        let [cwd, stdin, stdout, stderr] = parts.descriptors;
        Ok(Request {
            args: parts.body.args,
            env: parts.body.env,
            cwd,
            stdin,
            stdout,
            stderr,
            connection,
            _active: active,
        })
    }

    /// Accepts the command. Before this point the caller may look for another owner. After it, the owner does not end
    /// before the command ends.
    fn accept_request(&self, connection: &UnixStream) -> Result<Active> {
        let active = {
            let mut state = self.shared.state.lock();
            if state.closed || state.turning_away {
                drop(state);
                send(connection, Answer::Closing)?;
                return Err(ControlError::Protocol("closing"));
            }
            state.active += 1;
            Active(Arc::clone(&self.shared))
        };
        send(connection, Answer::Accepted)?;
        Ok(active)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

impl Request {
    /// Waits until the caller is gone, at most for `timeout`. Returns whether it is gone.
    #[cfg(test)]
    pub(super) fn wait_cancelled(&self, timeout: Duration) -> bool {
        hung_up(&self.connection, timeout)
    }

    /// A [`Watch`](Watch::cancelled) for other threads that tells whether the caller is gone.
    ///
    /// # Errors
    /// `Io` when the process has no free descriptors.
    pub fn watch(&self) -> io::Result<Watch> {
        self.connection.try_clone().map(Watch)
    }

    /// Ends the request: the caller exits with this status.
    ///
    /// # Errors
    /// `Io` when the caller is gone.
    pub fn reply(self, exit_code: u8) -> Result<()> {
        send(&self.connection, Answer::Exit(exit_code))
    }
}

/// Tells whether the caller of a request is gone.
#[derive(Debug)]
pub struct Watch(UnixStream);

impl Watch {
    /// Whether the caller is gone.
    #[must_use]
    pub fn cancelled(&self) -> bool {
        hung_up(&self.0, Duration::ZERO)
    }
}

fn hung_up(connection: &UnixStream, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let mut fds = [PollFd::new(connection, PollFlags::RDHUP)];
    loop {
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            // After an error nothing is known about the caller, so the command is not cancelled.
            Err(_) => return false,
        }
    }
    fds.iter().any(|fd| fd.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR))
}

/// Sends an answer. Answers are so short that they always fit into the socket's buffer.
fn send(connection: &UnixStream, answer: Answer) -> Result<()> {
    let bytes = answer.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::send(connection, &bytes, flags) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(ControlError::Protocol("it does not read its answers")),
        Err(error) => Err(ControlError::io("answer on", Path::new(""), error)),
    }
}

struct Parts {
    body: wire::Body,
    descriptors: [OwnedFd; DESCRIPTORS],
}

fn read_request(connection: &UnixStream, deadline: Instant, path: &Path) -> Result<Parts> {
    let io = |error| ControlError::io("read from", path, error);
    let mut header = [0; HEADER_LEN];
    set_deadline(connection, deadline).map_err(io)?;
    let (first, descriptors) = receive_with_descriptors(connection, &mut header).map_err(io)?;
    read_exact(connection, &mut header[first..], deadline).map_err(io)?;
    let (theirs, len) = wire::decode_header(header).ok_or(ControlError::Protocol("it is no request"))?;
    if theirs != wire::VERSION {
        return Err(ControlError::Version { theirs, ours: wire::VERSION });
    }
    let len = len as usize;
    if len > wire::BODY_MAX {
        return Err(ControlError::Protocol("the request is too long"));
    }
    let descriptors =
        descriptors.try_into().map_err(|_| ControlError::Protocol("it did not pass four descriptors"))?;
    let mut body = vec![0; len];
    read_exact(connection, &mut body, deadline).map_err(io)?;
    connection.set_read_timeout(None).map_err(io)?;
    let body = wire::decode_body(&body).ok_or(ControlError::Protocol("the request makes no sense"))?;
    if body.args.is_empty() {
        return Err(ControlError::Protocol("the request has no arguments"));
    }
    Ok(Parts { body, descriptors })
}

/// Receives the first bytes of a request and its descriptors. All descriptors are received, so that those of a
/// malformed request are closed.
fn receive_with_descriptors(connection: &UnixStream, buf: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut iov = [IoSliceMut::new(buf)];
        match rustix::net::recvmsg(connection, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        descriptors.clear();
    }
    match received.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok((bytes, descriptors)),
    }
}

/// Reads until `buf` is full, but not past the deadline, even if bytes arrive slowly.
fn read_exact(mut connection: &UnixStream, mut buf: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buf.is_empty() {
        set_deadline(connection, deadline)?;
        match connection.read(buf) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => buf = &mut buf[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn set_deadline(connection: &UnixStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    connection.set_read_timeout(Some(left))
}

impl AsFd for Watch {
    /// The connection: ready for `POLLRDHUP` when the caller is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
