//! Listening sockets, and the loop that accepts connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::door::Door;
use super::{Daemon, Shutdown};

/// The longest time between two checks for a shutdown.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The pause after a failure, before the next attempt.
const PAUSE: Duration = Duration::from_millis(50);
/// The most connections that one listener accepts before the others have their turn.
const TAKEN_AT_ONCE: usize = 64;

/// A listening socket.
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Listens on an address.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// Listens on a port of all addresses: of IPv6 and IPv4, or of IPv4 alone on machines without IPv6.
    ///
    /// # Errors
    /// When the port cannot be used.
    pub fn any(port: u16) -> io::Result<Self> {
        Self::tcp(SocketAddr::from(([0_u16; 8], port))).or_else(|error| match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => {
                Self::tcp(SocketAddr::from(([0_u8; 4], port))).map_err(|_| error)
            }
            _ => Err(error),
        })
    }

    /// Sets how many connections may wait to be accepted.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn with_backlog(self, count: u16) -> io::Result<Self> {
        rustix::net::listen(&self.socket, count.into())?;
        Ok(self)
    }

    /// The address of the socket.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Waits for a new connection or for data, at most for [`LOOK`].
fn wait(listeners: &[Listener], door: &Door) {
    let listeners = listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN));
    let mut sockets: Vec<_> = listeners.chain(door.sockets()).collect();
    if poll(&mut sockets, Some(&LOOK)).is_err() {
        std::thread::sleep(PAUSE);
    }
}

impl Daemon {
    /// Accepts connections until the shutdown, and serves at most `max_connections` at a time. Running transfers are
    /// finished, or end with the process.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn serve(
        self: &Arc<Self>,
        listeners: &[Listener],
        max_connections: usize,
        shutdown: &Shutdown,
    ) -> io::Result<()> {
        let mut door = Door::new(self.clone(), max_connections);
        while !shutdown.is_triggered() {
            wait(listeners, &door);
            for listener in listeners {
                self.take_from(listener, &mut door);
            }
            door.look();
        }
        Ok(())
    }

    fn take_from(&self, listener: &Listener, door: &mut Door) {
        for _ in 0..TAKEN_AT_ONCE {
            match listener.socket.accept() {
                Ok((stream, peer)) => door.take(stream, peer.ip()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The failure concerns this connection alone, or there are no descriptors for the moment.
                Err(error) => {
                    self.say(format!("accept: {error}"));
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }
}
