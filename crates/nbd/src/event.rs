//! Events of connections, for a log.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::error::ConnectionError;
use crate::identity::Certificate;

/// A client that has finished its negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its address, or its user on a Unix socket.
    pub peer: String,
    /// The full name of the export that it has chosen.
    pub export: String,
    /// Size in bytes as shown to the client.
    pub size: u64,
    /// Whether the client may only read.
    pub read_only: bool,
    /// Whether the connection uses TLS.
    pub encrypted: bool,
    /// Its verified certificate.
    pub certificate: Option<Certificate>,
}

/// An event. `Display` formats it in one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A client has chosen an export.
    Connected(&'a Client),
    /// A client has disconnected.
    Disconnected {
        /// The client.
        client: &'a Client,
        /// The error that ended the connection. `None` if the client disconnected properly or the server was stopped.
        why: Option<&'a dyn Error>,
    },
    /// A client has disconnected before choosing an export, for example after listing the exports.
    Left {
        /// The client.
        peer: &'a str,
        /// The error that ended the connection. `None` if the client disconnected properly or the server was stopped.
        why: Option<&'a dyn Error>,
    },
    /// A connection was refused because there were too many.
    TooMany {
        /// The refused client.
        peer: &'a str,
        /// The limit.
        limit: usize,
        /// Whether it is the limit for one machine.
        same_machine: bool,
    },
    /// A request of a client has failed.
    Failed {
        /// The client.
        client: &'a Client,
        /// The message sent to the client.
        why: &'a str,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = |f: &mut fmt::Formatter<'_>, why: &Option<&dyn Error>| match why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        };
        match self {
            Self::Connected(client) => {
                let Client { peer, export, size, read_only, encrypted, certificate } = client;
                let access = if *read_only { "read-only" } else { "read-write" };
                let tls = if *encrypted { ", TLS" } else { "" };
                write!(f, "{peer}: connected to {export:?} ({size} bytes, {access}{tls})")?;
                certificate.iter().try_for_each(|found| write!(f, ", certificate {found}"))
            }
            Self::Disconnected { client, why } => {
                write!(f, "{}: disconnected from {:?}", client.peer, client.export)?;
                because(f, why)
            }
            Self::Left { peer, why } => {
                write!(f, "{peer}: left without choosing an export")?;
                because(f, why)
            }
            Self::TooMany { peer, limit, same_machine } => {
                let whose = if *same_machine { " from this machine" } else { "" };
                write!(f, "{peer}: refused: there are {limit} connections{whose} already, which is the limit")
            }
            Self::Failed { client, why } => {
                write!(f, "{}: request to {:?} failed: {why}", client.peer, client.export)
            }
        }
    }
}

/// A function that receives events, from any thread. Clients wait while it runs.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&Event<'_>) + Send + Sync>);

impl Log {
    /// A log that calls `tell` for each event.
    pub fn new(tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}

impl Default for Log {
    /// A log that ignores all events.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// The error that ended a connection, for a log.
pub(crate) fn why(result: &Result<(), ConnectionError>) -> Option<&dyn Error> {
    result.as_ref().err().map(|error| error as &dyn Error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_forge_lines() {
        let client = Client {
            peer: "unix:uid=0".to_owned(),
            export: "a\n127.0.0.1: connected to \"b\"".to_owned(),
            size: 512,
            read_only: true,
            encrypted: true,
            certificate: None,
        };
        let said = Event::Connected(&client).to_string();
        assert_eq!(
            said,
            r#"unix:uid=0: connected to "a\n127.0.0.1: connected to \"b\"" (512 bytes, read-only, TLS)"#
        );
    }
}
