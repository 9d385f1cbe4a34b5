//! Taking connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::door::Door;
use super::{Daemon, Shutdown};

/// How often it is looked at whether to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// After a failure, how long until it is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections taken from one address that is listened on before it is looked at the others.
const TAKEN_AT_ONCE: usize = 64;

/// A place where clients come.
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Listens on an address.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// Listens on a port of all addresses: of IPv6 and IPv4, or of IPv4 alone on machines without IPv6.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn any(port: u16) -> io::Result<Self> {
        Self::tcp(SocketAddr::from(([0_u16; 8], port))).or_else(|error| match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => {
                Self::tcp(SocketAddr::from(([0_u8; 4], port))).map_err(|_| error)
            }
            _ => Err(error),
        })
    }

    /// Has so many connections wait until they are taken.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn with_backlog(self, count: u16) -> io::Result<Self> {
        rustix::net::listen(&self.socket, count.into())?;
        Ok(self)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Until somebody comes or says something, or for [`LOOK`].
fn wait(listeners: &[Listener], door: &Door) {
    let listeners = listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN));
    let mut sockets: Vec<_> = listeners.chain(door.sockets()).collect();
    if poll(&mut sockets, Some(&LOOK)).is_err() {
        std::thread::sleep(PAUSE);
    }
}

impl Daemon {
    /// Takes connections until it is told to end, at most so many at once; those under way are finished or cut off with the
    /// process.
    ///
    /// # Errors
    /// When no thread can be had to listen with.
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
                // Of the one connection, or of a moment without descriptors.
                Err(error) => {
                    self.say(format!("accept: {error}"));
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }
}
