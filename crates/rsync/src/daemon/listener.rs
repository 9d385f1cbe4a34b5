//! Taking connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Daemon, Link, Shutdown};
use crate::error::RsyncError;

/// How often it is looked at whether to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// After a failure, how long until it is tried again.
const PAUSE: Duration = Duration::from_millis(50);

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

/// Until somebody comes, or for [`LOOK`].
fn wait(listeners: &[Listener]) {
    let mut sockets: Vec<_> =
        listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN)).collect();
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
        let connections = Arc::new(AtomicUsize::new(0));
        while !shutdown.is_triggered() {
            wait(listeners);
            for listener in listeners {
                match listener.socket.accept() {
                    Ok((stream, peer)) => self.take(stream, peer, max_connections, &connections),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // Of the one connection, or of a moment without descriptors.
                    Err(error) => {
                        self.say(format!("accept: {error}"));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
        Ok(())
    }

    fn take(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        most: usize,
        connections: &Arc<AtomicUsize>,
    ) {
        if connections.fetch_add(1, Ordering::AcqRel) >= most {
            connections.fetch_sub(1, Ordering::AcqRel);
            return self.say(format!("{}: more than {most} connections", peer.ip().to_canonical()));
        }
        let (daemon, count) = (self.clone(), connections.clone());
        let work = move || {
            let peer = peer.ip().to_canonical();
            let link = Link::tcp(stream).map_err(RsyncError::from);
            match link.and_then(|link| daemon.serve_link(link, peer)) {
                // Whoever looks whether the server is there goes at once.
                Err(error) if !error.is_departure() => daemon.say(format!("{peer}: {error}")),
                _ => {}
            }
            count.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = std::thread::Builder::new().name("rsync".to_owned()).spawn(work) {
            connections.fetch_sub(1, Ordering::AcqRel);
            self.say(format!("no thread for {}: {error}", peer.ip().to_canonical()));
        }
    }
}
