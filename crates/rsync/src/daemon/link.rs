//! The connection to a client: its text lines before the negotiation, and its time limits.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::wire::{Patience, Prompt, ReadWire};

/// Length of the longest line of the greeting, in bytes.
const LINE_MAX: usize = 1024;
/// Limits on what is still read from a client after the last message to it: bytes, buffer and time.
const DRAIN_MAX: u64 = 16 << 20;
const DRAIN_LEN: usize = 16 << 10;
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// A client that has sent nothing for this long is told that no more data will come.
const QUIET: Duration = Duration::from_millis(250);

/// Sets the time limit of writes.
type SetTimeout = dyn Fn(Option<Duration>) -> io::Result<()> + Send;

/// A connection: both directions, with their time limits.
pub struct Link {
    pub(super) reader: BufReader<Box<dyn Read + Send>>,
    pub(super) writer: Box<dyn Write + Send>,
    pub(super) set_timeout: Box<SetTimeout>,
    pub(super) patience: Patience,
    /// The socket for writing, if its direction can be shut down while the other one stays open.
    socket: Option<OwnedFd>,
    /// The client has received the server's first line.
    pub(super) is_greeted: bool,
}

/// A reader with a time limit.
struct Timed {
    stream: Prompt<File>,
    patience: Patience,
}

fn is_socket(fd: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::Socket)
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(left) = self.patience.left() {
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let begun = Instant::now();
            let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            let polled = poll(&mut [PollFd::new(self.stream.socket(), PollFlags::IN)], Some(&timeout));
            self.patience.spend(begun.elapsed(), 0);
            match polled {
                // The time may be over then.
                Err(rustix::io::Errno::INTR) | Ok(0) => {}
                polled => {
                    polled?;
                    break;
                }
            }
        }
        let read = self.stream.read(buffer);
        self.patience.spend(Duration::ZERO, *read.as_ref().unwrap_or(&0));
        read
    }
}

impl Link {
    /// A connection over TCP.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        let input = OwnedFd::from(stream);
        let output = input.try_clone()?;
        Self::over(input, output)
    }

    /// A connection over two descriptors, which may belong to the same socket.
    ///
    /// # Errors
    /// When a descriptor fails.
    pub fn over(input: OwnedFd, output: OwnedFd) -> io::Result<Self> {
        let patience = Patience::of(input.try_clone()?);
        let socket = if is_socket(&output)? { Some(output.try_clone()?) } else { None };
        let control = socket.as_ref().map(OwnedFd::try_clone).transpose()?;
        let set_timeout = Box::new(move |timeout: Option<Duration>| -> io::Result<()> {
            let Some(socket) = &control else { return Ok(()) };
            Ok(set_socket_timeout(socket, Timeout::Send, timeout)?)
        });
        let timed = Timed { stream: Prompt::new(File::from(input)), patience: patience.clone() };
        Ok(Self { set_timeout, patience, socket, ..Self::new(timed, File::from(output)) })
    }

    /// A connection over any reader and writer, without a time limit.
    pub fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        let reader: Box<dyn Read + Send> = Box::new(reader);
        let set_timeout = Box::new(|_| Ok(()));
        Self {
            reader: BufReader::new(reader),
            writer: Box::new(writer),
            set_timeout,
            patience: Patience::default(),
            socket: None,
            is_greeted: false,
        }
    }

    /// The same connection, whose client has received the server's first line.
    pub(super) fn greeted(self) -> Self {
        Self { is_greeted: true, ..self }
    }

    /// Reads a line, without its newline.
    pub(super) fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            match self.reader.read_u8()? {
                b'\n' => break,
                byte if line.len() < LINE_MAX => line.push(byte),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a line too long")),
            }
        }
        let end = if line.ends_with(b"\r") { line.len() - 1 } else { line.len() };
        String::from_utf8(line[..end].to_vec())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line that is no text"))
    }

    /// Reads and discards what the client still sends. If the connection were closed earlier, the client might lose the
    /// last message to it. A client that is still sending would see the end of the connection before it has read all
    /// messages. So the sending direction of a socket is shut down only when the client is quiet.
    pub(super) fn drain(&mut self) {
        let until = Instant::now() + DRAIN_PATIENCE;
        if (self.set_timeout)(Some(DRAIN_PATIENCE)).is_err() || self.writer.flush().is_err() {
            return;
        }
        let mut left = DRAIN_MAX;
        if self.socket.is_some() && !self.discard(&mut left, (QUIET, until)) {
            return;
        }
        if let Some(socket) = &self.socket {
            // A broken socket needs no shutdown.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        }
        self.discard(&mut left, (DRAIN_PATIENCE, until));
    }

    /// Discards at most `left` bytes, until nothing has come for `quiet`. Returns `false` if no more can come.
    fn discard(&mut self, left: &mut u64, (quiet, until): (Duration, Instant)) -> bool {
        let mut buffer = [0; DRAIN_LEN];
        loop {
            let time = quiet.min(until.saturating_duration_since(Instant::now()));
            if time.is_zero() || *left == 0 {
                return true;
            }
            self.patience.begin_within((time, time), None);
            match self.reader.read(&mut buffer) {
                Ok(0) => return false,
                Ok(len) => *left = left.saturating_sub(len as u64),
                Err(error) => return error.kind() == io::ErrorKind::TimedOut,
            }
        }
    }

    /// Sends a line.
    pub(super) fn say(&mut self, line: &str) -> io::Result<()> {
        self.writer.write_all(line.as_bytes())?;
        self.writer.write_all(b"\n")?;
        self.writer.flush()
    }
}
