//! The connection to a client, in lines as long as nothing else is agreed on, and how long each direction may take.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::wire::{Patience, Prompt, ReadWire};

/// Longest line of the greeting.
const LINE_MAX: usize = 1024;
/// What is taken of a client that was told that all is over.
const DRAIN_MAX: u64 = 16 << 20;
const DRAIN_LEN: usize = 16 << 10;
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// Sets how long writes may take.
type SetTimeout = dyn Fn(Option<Duration>) -> io::Result<()> + Send;

/// A connection: both directions, and how long each may take.
pub struct Link {
    pub(super) reader: BufReader<Box<dyn Read + Send>>,
    pub(super) writer: Box<dyn Write + Send>,
    pub(super) set_timeout: Box<SetTimeout>,
    pub(super) patience: Patience,
}

/// A socket that is read for as long as there is patience.
struct Timed {
    stream: Prompt<TcpStream>,
    patience: Patience,
    /// The timeout that the socket has.
    set: Option<Duration>,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.patience.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // By the second, so that the socket is seldom told another one.
        let timeout = left.map(|left| Duration::from_secs(left.as_secs() + 1));
        if timeout != self.set {
            self.stream.socket().set_read_timeout(timeout)?;
            self.set = timeout;
        }
        let begun = Instant::now();
        let read = self.stream.read(buffer);
        self.patience.spend(begun.elapsed(), *read.as_ref().unwrap_or(&0));
        read
    }
}

impl Link {
    /// Over TCP.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        let (writer, control) = (stream.try_clone()?, stream.try_clone()?);
        let set_timeout = Box::new(move |timeout| control.set_write_timeout(timeout));
        let patience = Patience::default();
        stream.set_read_timeout(None)?;
        let reader: Box<dyn Read + Send> =
            Box::new(Timed { stream: Prompt::new(stream), patience: patience.clone(), set: None });
        Ok(Self { reader: BufReader::new(reader), writer: Box::new(writer), set_timeout, patience })
    }

    /// Over anything, without a timeout.
    pub fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        let reader: Box<dyn Read + Send> = Box::new(reader);
        let set_timeout = Box::new(|_| Ok(()));
        Self {
            reader: BufReader::new(reader),
            writer: Box::new(writer),
            set_timeout,
            patience: Patience::default(),
        }
    }

    /// A line, without its end.
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

    /// Takes what the client still sends: a connection closed before that may lose what the client was told last.
    pub(super) fn drain(&mut self) {
        let begun = Instant::now();
        self.patience.begin(DRAIN_PATIENCE, None);
        let is_patient = (self.set_timeout)(Some(DRAIN_PATIENCE)).is_ok();
        let mut rest = (&mut self.reader).take(DRAIN_MAX);
        let mut buffer = [0; DRAIN_LEN];
        if is_patient && self.writer.flush().is_ok() {
            while begun.elapsed() < DRAIN_PATIENCE && rest.read(&mut buffer).is_ok_and(|len| len > 0) {}
        }
    }

    /// Sends a line.
    pub(super) fn say(&mut self, line: &str) -> io::Result<()> {
        self.writer.write_all(line.as_bytes())?;
        self.writer.write_all(b"\n")?;
        self.writer.flush()
    }
}
