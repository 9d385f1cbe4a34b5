//! `socket options`: options for the sockets of clients (rsyncd.conf(5), "GLOBAL PARAMETERS"; socket(7), tcp(7),
//! ip(7)).

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// A socket option with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketOption {
    /// `SO_KEEPALIVE`.
    Keepalive(bool),
    /// `TCP_NODELAY`.
    NoDelay(bool),
    /// `SO_SNDBUF`, in bytes.
    SendBuffer(usize),
    /// `SO_RCVBUF`, in bytes.
    ReceiveBuffer(usize),
    /// `IPTOS_LOWDELAY` and `IPTOS_THROUGHPUT`: bits of `IP_TOS`.
    TypeOfService(u8),
}

impl SocketOption {
    /// Parses a list in the form of the manual: `TCP_NODELAY, SO_SNDBUF=65536`. Unknown options are added to
    /// `warnings`.
    pub(super) fn parse_all(text: &str, warnings: &mut Vec<String>) -> Vec<Self> {
        let words = text.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let parsed = words.filter_map(|word| {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            match Self::parse(name, value) {
                // Listening sockets have these in any case, and the sockets of clients do not need them.
                _ if matches!(name, "SO_REUSEADDR" | "SO_BROADCAST") => None,
                Some(option) => Some(option),
                None => {
                    warnings.push(format!("Unknown socket option {word}"));
                    None
                }
            }
        });
        parsed.collect()
    }

    fn parse(name: &str, value: Option<&str>) -> Option<Self> {
        let flag = || value.map_or(Some(true), |value| value.parse::<i32>().ok().map(|value| value != 0));
        let size = || value?.parse().ok();
        Some(match name {
            "SO_KEEPALIVE" => Self::Keepalive(flag()?),
            "TCP_NODELAY" => Self::NoDelay(flag()?),
            "SO_SNDBUF" => Self::SendBuffer(size()?),
            "SO_RCVBUF" => Self::ReceiveBuffer(size()?),
            "IPTOS_LOWDELAY" => Self::TypeOfService(0x10),
            "IPTOS_THROUGHPUT" => Self::TypeOfService(0x08),
            _ => return None,
        })
    }

    /// Sets the option.
    ///
    /// # Errors
    /// When this socket has no such option.
    pub(super) fn apply(self, socket: &impl AsFd) -> io::Result<()> {
        match self {
            Self::Keepalive(on) => sockopt::set_socket_keepalive(socket, on)?,
            Self::NoDelay(on) => sockopt::set_tcp_nodelay(socket, on)?,
            Self::SendBuffer(len) => sockopt::set_socket_send_buffer_size(socket, len)?,
            Self::ReceiveBuffer(len) => sockopt::set_socket_recv_buffer_size(socket, len)?,
            Self::TypeOfService(bits) => sockopt::set_ip_tos(socket, bits)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_as_the_manual_has_them() {
        let mut warnings = Vec::new();
        let text =
            "TCP_NODELAY, SO_KEEPALIVE=0 SO_SNDBUF=65536,SO_RCVBUF IPTOS_LOWDELAY SO_REUSEADDR,SO_NONE=1";
        let parsed = SocketOption::parse_all(text, &mut warnings);
        let expected = [
            SocketOption::NoDelay(true),
            SocketOption::Keepalive(false),
            SocketOption::SendBuffer(65536),
            SocketOption::TypeOfService(0x10),
        ];
        assert_eq!(parsed, expected);
        assert_eq!(warnings, ["Unknown socket option SO_RCVBUF", "Unknown socket option SO_NONE=1"]);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for option in parsed {
            option.apply(&socket).unwrap();
        }
        assert!(!sockopt::socket_keepalive(&socket).unwrap() && sockopt::tcp_nodelay(&socket).unwrap());
    }
}
