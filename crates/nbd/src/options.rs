//! The options of a server: limits and time-outs.

use std::time::Duration;

use crate::error::ServeError;
use crate::event::Log;
use crate::tls::Tls;

/// The largest payload of any request, in bytes. The protocol requires servers to accept payloads up to this size and
/// not to treat them as an attack (proto.md, "Size constraints"). A client that announces more is disconnected.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The options of a server.
///
/// `connection_memory` limits the memory that one client can occupy, and `server_memory` the memory of all clients
/// together. In addition, each connection needs some hundred KiB.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether connections are encrypted.
    pub tls: Tls,
    /// Maximum number of connections. Further ones are closed immediately.
    pub max_connections: usize,
    /// Maximum number of TCP connections from one machine: from one IPv4 address, or from one IPv6 network of 64 bits.
    pub max_connections_per_machine: usize,
    /// The largest read or write in bytes, from 64 KiB to [`MAX_PAYLOAD`]. Clients are informed of it.
    pub max_request: u32,
    /// Maximum number of requests of one connection that run or whose replies wait to be sent. Further requests stay in
    /// the socket.
    pub max_in_flight: usize,
    /// Maximum size of the data in the requests and replies of one connection, in bytes; at least `max_request`.
    pub connection_memory: u64,
    /// Maximum size of the data in the requests and replies of all connections, in bytes; at least `connection_memory`.
    pub server_memory: u64,
    /// Maximum number of threads that run requests.
    pub workers: usize,
    /// Time limit from accepting a connection to the end of its negotiation, including TLS.
    pub handshake_timeout: Duration,
    /// How long a client may accept no byte of a reply, or send no byte of a request that it has begun.
    pub stall_timeout: Duration,
    /// How long requests in flight may take after a shutdown.
    pub drain_timeout: Duration,
    /// Receives the events of connections.
    pub log: Log,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tls: Tls::Off,
            max_connections: 256,
            max_connections_per_machine: 64,
            max_request: MAX_PAYLOAD,
            // the Linux kernel's client has at most 128 requests in flight on a connection
            max_in_flight: 128,
            connection_memory: 64 << 20,
            server_memory: 512 << 20,
            workers: 64,
            handshake_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(120),
            drain_timeout: Duration::from_secs(60),
            log: Log::default(),
        }
    }
}

impl Options {
    /// The smallest `max_request`. The protocol requires that unfragmented reads of 64 KiB always work.
    const MIN_MAX_REQUEST: u32 = 64 << 10;
    /// Limits that are larger than any machine needs, and that fit in every counter.
    const MAX_MEMORY: u64 = 1 << 40;
    const MAX_COUNT: usize = 1 << 20;

    /// Checks all options.
    ///
    /// # Errors
    /// [`ServeError::Option`] for the first option that is out of range.
    pub(crate) fn validate(&self) -> Result<(), ServeError> {
        let max_request = u64::from(self.max_request);
        let checks = [
            ("max_connections", self.max_connections as u64, 1, Self::MAX_COUNT as u64),
            (
                "max_connections_per_machine",
                self.max_connections_per_machine as u64,
                1,
                Self::MAX_COUNT as u64,
            ),
            ("max_request", max_request, u64::from(Self::MIN_MAX_REQUEST), u64::from(MAX_PAYLOAD)),
            ("max_in_flight", self.max_in_flight as u64, 1, Self::MAX_COUNT as u64),
            ("connection_memory", self.connection_memory, max_request, Self::MAX_MEMORY),
            ("server_memory", self.server_memory, self.connection_memory, Self::MAX_MEMORY),
            ("workers", self.workers as u64, 1, 4096),
        ];
        for (option, value, low, high) in checks {
            if !(low..=high).contains(&value) {
                return Err(ServeError::Option { option, value, expected: format!("{low} to {high}") });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        Options::default().validate().unwrap();
    }

    #[test]
    fn names_the_option_out_of_range() {
        type Spoil = fn(&mut Options);
        let cases: [(&str, Spoil); 7] = [
            ("max_connections", |o| o.max_connections = 0),
            ("max_connections_per_machine", |o| o.max_connections_per_machine = 0),
            ("max_request", |o| o.max_request = MAX_PAYLOAD + 1),
            ("max_in_flight", |o| o.max_in_flight = 0),
            ("connection_memory", |o| o.connection_memory = u64::from(o.max_request) - 1),
            ("server_memory", |o| o.server_memory = o.connection_memory - 1),
            ("workers", |o| o.workers = 0),
        ];
        for (name, spoil) in cases {
            let mut options = Options::default();
            spoil(&mut options);
            match options.validate() {
                Err(ServeError::Option { option, .. }) => assert_eq!(option, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
