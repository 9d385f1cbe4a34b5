//! What happens to connections, for whoever keeps a log of them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::error::ConnectionError;
use crate::identity::Certificate;

/// A client past its negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its address, or who it is on a Unix socket.
    pub peer: String,
    /// The export that it has chosen, by its full name.
    pub export: String,
    /// Bytes that it was told.
    pub size: u64,
    /// It may not write.
    pub read_only: bool,
    /// It speaks TLS.
    pub encrypted: bool,
    /// Its certificate, which was verified.
    pub certificate: Option<Certificate>,
}

/// Something that happened. `Display` tells it in a line of its own.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A client has chosen an export.
    Connected(&'a Client),
    /// A client has gone.
    Disconnected {
        /// Which.
        client: &'a Client,
        /// What ended the connection, unless the client said good-bye or the server was told to end.
        why: Option<&'a dyn Error>,
    },
    /// Somebody has gone who had not chosen an export: who lists exports does that.
    Left {
        /// Who.
        peer: &'a str,
        /// What ended the connection, unless the client said good-bye or the server was told to end.
        why: Option<&'a dyn Error>,
    },
    /// There were too many connections for one more.
    TooMany {
        /// Who was not let in.
        peer: &'a str,
        /// How many there may be.
        limit: usize,
        /// It is the limit of one machine.
        same_machine: bool,
    },
    /// An export could not do what a client asked for.
    Failed {
        /// Which client.
        client: &'a Client,
        /// What the client was told.
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

/// Who is told of events, from any thread. What it does keeps clients waiting.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&Event<'_>) + Send + Sync>);

impl Log {
    /// Tells `tell`.
    pub fn new(tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}

impl Default for Log {
    /// Nobody.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// Why a connection ended, for a log.
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
