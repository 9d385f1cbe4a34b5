//! Addresses of servers.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An address that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP, with the port that was bound.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// The NBD URI of an export. Over TCP it asks for TLS if `tls`.
    pub fn uri(&self, export: &str, tls: bool) -> String {
        let export = escaped(export.as_bytes());
        match self {
            Self::Tcp(address) => format!("nbd{}://{address}/{export}", if tls { "s" } else { "" }),
            Self::Unix(path) => {
                format!("nbd+unix:///{export}?socket={}", escaped(path.as_os_str().as_bytes()))
            }
        }
    }
}

/// Bytes as a URI has them (RFC 3986), slashes as they are.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b'@' | b':' => {
                text.push(char::from(byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

impl fmt::Display for Endpoint {
    /// As an NBD URI without its export.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri("", false))
    }
}
