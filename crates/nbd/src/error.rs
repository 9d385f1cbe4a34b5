//! The errors of this crate: those of a server or its set-up, and those of one connection.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::endpoint::Endpoint;

/// Why a server stopped or could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An option has an invalid value.
    #[error("option {option} is {value}: it must be {expected}")]
    Option {
        /// The field of [`Options`](crate::Options).
        option: &'static str,
        /// Its value.
        value: u64,
        /// The valid values.
        expected: String,
    },
    /// Another server is using the socket.
    #[error("{path:?}: another server is listening there")]
    SocketInUse {
        /// The Unix socket.
        path: PathBuf,
    },
    /// The path of a Unix socket is another file, which is not changed.
    #[error("{path:?} exists and is not a socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Listening on the socket failed.
    #[error("listening on {endpoint}")]
    Listen {
        /// The address.
        endpoint: Endpoint,
        /// The error.
        source: io::Error,
    },
    /// The threads of the server could not be started.
    #[error("starting the server's threads")]
    Runtime(#[source] io::Error),
    /// After a shutdown, requests did not end within [`Options::drain_timeout`](crate::Options::drain_timeout).
    #[error("{connections} connections were still busy {waited:?} after shutdown")]
    Drain {
        /// Number of connections with requests in flight.
        connections: usize,
        /// How long the server has waited.
        waited: Duration,
    },
}

/// An error in the certificates of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("reading {path:?}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file is not PEM of the expected kind.
    #[error("{what}: not valid PEM: {reason}")]
    Pem {
        /// The part: certificate, key or authority.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// A required certificate is missing.
    #[error("{what}: no certificate in it")]
    Empty {
        /// The part.
        what: &'static str,
    },
    /// The certificate and the key do not belong together, or are of an unsupported kind.
    #[error("certificate and key")]
    Rustls(#[from] rustls::Error),
    /// The authorities for client certificates cannot be used for verification.
    #[error("authorities for client certificates: {reason}")]
    Verifier {
        /// The reason.
        reason: String,
    },
}

/// Why a connection was ended early. This is only for the log. The client only sees that the connection closes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("client broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("client was refused: {0}")]
    Refused(String),
    #[error("no completed handshake within {0:?}")]
    HandshakeTimeout(Duration),
    #[error("no data for {0:?} in the middle of a message")]
    Stalled(Duration),
    #[error("connection: {0}")]
    Io(#[from] io::Error),
}
