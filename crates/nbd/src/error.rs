//! The crate's errors: what stops a server or its set-up, and what ends one connection.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::endpoint::Endpoint;

/// What stops a server, or keeps it from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An option has a value that cannot work.
    #[error("option {option} is {value}: it must be {expected}")]
    Option {
        /// The field of [`Options`](crate::Options).
        option: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        expected: String,
    },
    /// Another server answers on the socket.
    #[error("{path:?}: another server is listening there")]
    SocketInUse {
        /// The Unix socket.
        path: PathBuf,
    },
    /// A path for a Unix socket is taken by something else, which is left alone.
    #[error("{path:?} exists and is not a socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket cannot be listened on.
    #[error("listening on {endpoint}")]
    Listen {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        source: io::Error,
    },
    /// The threads of the server could not be started.
    #[error("starting the server's threads")]
    Runtime(#[source] io::Error),
    /// After shutdown, requests were still running when [`Options::drain_timeout`](crate::Options::drain_timeout) was over.
    #[error("{connections} connections were still busy {waited:?} after shutdown")]
    Drain {
        /// How many connections had requests running.
        connections: usize,
        /// How long they were waited for.
        waited: Duration,
    },
}

/// What is wrong with the certificates of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("reading {path:?}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file's text is not PEM of the kind it should be.
    #[error("{what}: not valid PEM: {reason}")]
    Pem {
        /// Which part: certificate, key or authority.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// There is no certificate where one is needed.
    #[error("{what}: no certificate in it")]
    Empty {
        /// Which part.
        what: &'static str,
    },
    /// The certificate and the key do not work together, or are of an unknown kind.
    #[error("certificate and key")]
    Rustls(#[from] rustls::Error),
    /// The authorities for client certificates do not make a verifier.
    #[error("authorities for client certificates: {reason}")]
    Verifier {
        /// Why.
        reason: String,
    },
}

/// What ends one connection before its time. For the log: the client only sees the connection close.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("client broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("client was refused: {0}")]
    Refused(String),
    #[error("no agreement within {0:?}")]
    HandshakeTimeout(Duration),
    #[error("no byte moved for {0:?} in the middle of a message")]
    Stalled(Duration),
    #[error("connection: {0}")]
    Io(#[from] io::Error),
}
