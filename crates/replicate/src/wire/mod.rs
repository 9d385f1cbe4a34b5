//! Many requests over one pair of byte streams (docs/format/sync.md).
//!
//! - `frame`: what goes over the pair
//! - `channel`: one request: two byte streams and a result
//! - `sender`, `receiver`: where frames go out and come in, and how it is found out that they do no more
//! - `pack`: compression of what goes over
//! - `connection`: channels by number

mod channel;
mod connection;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod pack;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use channel::{Channel, Incoming, Outgoing};
pub use connection::{Call, Connection, Handler, Manners, serve};
pub use frame::{CHANNELS_MAX, LEVEL_MAX, VERSION};
pub use receiver::Patience;

use std::io;

/// Why a connection ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The other side is gone.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The first bytes are not a greeting.
    #[error(
        "the other side is not 'snowmelt serve sync': it said {said:?}. Login scripts there must print nothing if \
         there is no terminal"
    )]
    NotSync {
        /// The first bytes that came.
        said: String,
    },
    /// Another version.
    #[error(
        "the other side speaks version {theirs} of the sync protocol, this one {ours}: upgrade the older"
    )]
    Version {
        /// The other side's.
        theirs: u32,
        /// This side's.
        ours: u32,
    },
    /// Nothing arrived for too long.
    #[error("no data came from the other side for {} s: the connection is considered dead", timeout.as_secs_f32())]
    Silent {
        /// For so long.
        timeout: std::time::Duration,
    },
    /// It broke a rule.
    #[error("the other side broke the sync protocol: {why}")]
    Protocol {
        /// The rule.
        why: String,
    },
    /// The streams failed.
    #[error("the connection failed: {why}")]
    Io {
        /// The error of the system.
        why: String,
    },
}

impl WireError {
    fn protocol(why: impl Into<String>) -> Self {
        Self::Protocol { why: why.into() }
    }
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Closed
            }
            _ => Self::Io { why: error.to_string() },
        }
    }
}
