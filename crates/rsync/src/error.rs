//! The errors of a connection, and rsync's exit codes.

use std::io;

/// The exit codes of rsync (rsync(1), "EXIT VALUES") that a server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Syntax or usage error.
    Syntax = 1,
    /// Protocol incompatibility.
    Protocol = 2,
    /// Errors selecting input files.
    FileSelect = 3,
    /// Requested action not supported.
    Unsupported = 4,
    /// Error starting the client-server protocol.
    StartClient = 5,
    /// Error in file I/O.
    FileIo = 11,
    /// Error in rsync protocol data stream.
    Stream = 12,
    /// Error allocating core memory buffers.
    Memory = 22,
    /// Partial transfer due to error.
    Partial = 23,
    /// Files vanished between listing and sending.
    Vanished = 24,
    /// The limit of deletions (`--max-delete`) was reached.
    DeleteLimit = 25,
    /// Timeout in data send or receive.
    Timeout = 30,
}

impl ExitCode {
    /// The meaning in the words of rsync's last line.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Syntax => "syntax or usage error",
            Self::Protocol => "protocol incompatibility",
            Self::FileSelect => "errors selecting input/output files, dirs",
            Self::Unsupported => "requested action not supported",
            Self::StartClient => "error starting client-server protocol",
            Self::FileIo => "error in file IO",
            Self::Stream => "error in rsync protocol data stream",
            Self::Memory => "error allocating core memory buffers",
            Self::DeleteLimit => "the --max-delete limit stopped deletions",
            Self::Partial => "some files/attrs were not transferred (see previous errors)",
            Self::Vanished => "some files vanished before they could be transferred",
            Self::Timeout => "timeout in data send/receive",
        }
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RsyncError {
    /// The connection failed.
    #[error("connection: {}", in_words(.0))]
    Connection(#[source] io::Error),
    /// The peer violated the protocol.
    #[error("protocol: {what}")]
    Protocol {
        /// What the peer did.
        what: String,
    },
    /// The peer asked for something that is not supported or not allowed.
    #[error("{message}")]
    Refused {
        /// The text for the peer.
        message: String,
        /// The exit code for the peer.
        code: ExitCode,
    },
    /// The peer reports that it ends because of an error of its own.
    #[error("the peer ended with code {code}")]
    PeerExit {
        /// The exit code of the peer.
        code: u32,
    },
}

/// A text for an error of the connection: closed by the peer, timed out, or the system's words.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "closed by the other end".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "nothing came or went in time".to_owned(),
        _ => error.to_string(),
    }
}

/// An error inside the I/O error, from the message reader, is returned unchanged.
impl From<io::Error> for RsyncError {
    fn from(error: io::Error) -> Self {
        error.downcast::<Self>().unwrap_or_else(Self::Connection)
    }
}

impl RsyncError {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }

    pub(crate) fn refused(code: ExitCode, message: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), code }
    }

    /// Whether the peer disconnected without a reason.
    pub fn is_departure(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Self::Connection(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }

    /// The exit code for the peer.
    pub fn code(&self) -> ExitCode {
        match self {
            Self::Connection(error)
                if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) =>
            {
                ExitCode::Timeout
            }
            Self::Refused { code, .. } => *code,
            _ => ExitCode::Stream,
        }
    }
}

/// A result with [`RsyncError`].
pub type Result<T> = std::result::Result<T, RsyncError>;
