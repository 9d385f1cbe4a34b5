//! What systemd is told of a command that goes on and on.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::context::Context;

/// Tells systemd (sd_notify(3)), if it is there.
pub(super) fn notify(context: &Context, what: &str) {
    let Some(path) = context.env("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        // It is not needed for anything else.
        let _ = socket.send_to_addr(what.as_bytes(), &address);
    }
}
