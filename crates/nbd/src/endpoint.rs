//! Addresses of servers.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An address on which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address, with the actual port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// The NBD URI of an export. Over TCP, `tls` selects the scheme that requires TLS.
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

/// Percent-encodes bytes for a URI (RFC 3986). Slashes are not encoded.
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
    /// Prints the NBD URI without an export.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri("", false))
    }
}
