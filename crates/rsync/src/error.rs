//! What can go wrong with a connection.

use std::io;

/// rsync's exit codes (rsync(1), "EXIT VALUES"), as far as a server tells them.
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
    /// Files that were in the list were gone.
    Vanished = 24,
    /// The limit on how much may be deleted stopped deletions.
    DeleteLimit = 25,
    /// Timeout in data send or receive.
    Timeout = 30,
}

impl ExitCode {
    /// As rsync's own last line words it.
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

/// Why a connection ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RsyncError {
    /// The connection failed.
    #[error("connection: {}", in_words(.0))]
    Connection(#[source] io::Error),
    /// The peer sent what the protocol does not allow.
    #[error("protocol: {what}")]
    Protocol {
        /// What it did.
        what: String,
    },
    /// The peer asks for what is not done here.
    #[error("{message}")]
    Refused {
        /// Told to the peer, as it is.
        message: String,
        /// Ends the connection with it.
        code: ExitCode,
    },
    /// The peer says that it ends because of an error of its own.
    #[error("the peer ended with code {code}")]
    PeerExit {
        /// Its exit code.
        code: u32,
    },
}

/// Of a connection that others end or let be, what that is.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "closed by the other end".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "nothing came or went in time".to_owned(),
        _ => error.to_string(),
    }
}

/// What a reader of messages finds out comes through as it is.
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

    /// Whether the peer has gone, without a word about why.
    pub fn is_departure(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Self::Connection(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }

    /// The code that a peer is told, if it can still be told.
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

/// What fails with [`RsyncError`].
pub type Result<T> = std::result::Result<T, RsyncError>;
