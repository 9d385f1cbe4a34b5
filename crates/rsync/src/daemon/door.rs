//! Connections from when they are accepted until their client sends something, and connections that are refused.
//!
//! A client that has sent nothing yet has no thread. A refused client is told the reason, and its connection stays open
//! for a moment. If it were closed with unread data, the client might never see the message.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::addresses::AddressPlace;
use super::bursts::Kind;
use super::connection::greeting;
use super::{Daemon, Link};
use crate::error::ExitCode;

/// The most refused connections that stay open, and for how long.
const REFUSED_MAX: usize = 256;
const REFUSED_TIME: Duration = Duration::from_secs(2);
/// When there is no room, a connection that has been silent for this long makes way for a new one.
const GIVES_WAY: Duration = Duration::from_secs(1);
/// The number of bytes that are discarded at a time.
const DISCARD_LEN: usize = 4096;

/// A connection whose client has sent nothing yet.
struct Waiting {
    stream: TcpStream,
    address: IpAddr,
    since: Instant,
    /// Its place among the connections of its address. `None` behind a proxy, where the address is not known yet.
    place: Option<AddressPlace>,
    is_greeted: bool,
}

/// A connection that was refused.
struct Refused {
    stream: TcpStream,
    until: Instant,
}

/// A connection that has a thread. It counts until this is dropped, also when the thread panics.
struct Served(Arc<AtomicUsize>);

impl Served {
    fn begin(serving: &Arc<AtomicUsize>) -> Self {
        serving.fetch_add(1, Ordering::AcqRel);
        Self(serving.clone())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All connections that have no thread.
pub(super) struct Door {
    daemon: Arc<Daemon>,
    most: usize,
    serving: Arc<AtomicUsize>,
    waiting: VecDeque<Waiting>,
    refused: VecDeque<Refused>,
}

impl Door {
    /// Room for `most` connections.
    pub(super) fn new(daemon: Arc<Daemon>, most: usize) -> Self {
        let serving = Arc::new(AtomicUsize::new(0));
        Self { daemon, most, serving, waiting: VecDeque::new(), refused: VecDeque::new() }
    }

    /// The sockets that wake the server up, besides those of the listeners.
    pub(super) fn sockets(&self) -> impl Iterator<Item = PollFd<'_>> {
        let waiting = self.waiting.iter().map(|one| &one.stream);
        let refused = self.refused.iter().map(|one| &one.stream);
        waiting.chain(refused).map(|stream| PollFd::new(stream, PollFlags::IN))
    }

    /// Handles a new connection.
    pub(super) fn take(&mut self, stream: TcpStream, address: IpAddr) {
        let config = self.daemon.last_config();
        let address = address.to_canonical();
        let most = config.max_connections_per_address;
        let place = match config.proxy_protocol {
            true => None,
            false => match self.daemon.addresses.enter(address, most) {
                None => {
                    let text = || format!("{address}: more than {most} connections of one address");
                    return self.refuse(stream, most, Kind::AddressFull, text);
                }
                place => place,
            },
        };
        if self.serving.load(Ordering::Acquire) + self.waiting.len() >= self.most && !self.make_room() {
            let most = self.most;
            return self
                .refuse(stream, most, Kind::Full, || format!("{address}: more than {most} connections"));
        }
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        for option in &config.socket_options {
            // The client is served without an option that the socket does not have.
            let _ = option.apply(&stream);
        }
        // Nothing was sent on this socket yet, so there is room for a line.
        let is_greeted = !config.proxy_protocol;
        if !is_greeted || say(&stream, &greeting()) {
            self.waiting.push_back(Waiting { stream, address, since: Instant::now(), place, is_greeted });
        }
    }

    /// Closes the connection that has been silent the longest. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let is_silent = |one: &Waiting| one.since.elapsed() >= GIVES_WAY && !has_said_something(&one.stream);
        match self.waiting.front().is_some_and(is_silent) {
            true => self.waiting.pop_front().is_some(),
            false => false,
        }
    }

    fn refuse(&mut self, stream: TcpStream, most: usize, kind: Kind, text: impl FnOnce() -> String) {
        self.daemon.say_once(kind, text);
        let line = format!("{}@ERROR: max connections ({most}) reached -- try again later\n", greeting());
        let is_told = stream.set_nonblocking(true).is_ok()
            && say(&stream, &line)
            && stream.shutdown(Shutdown::Write).is_ok();
        if is_told && self.refused.len() < REFUSED_MAX {
            self.refused.push_back(Refused { stream, until: Instant::now() + REFUSED_TIME });
        }
    }

    /// Serves the clients that have sent something. Closes connections that were silent too long, and refused ones
    /// whose time is over.
    pub(super) fn look(&mut self) {
        for one in std::mem::take(&mut self.waiting) {
            if has_said_something(&one.stream) {
                self.serve(one);
            } else if one.since.elapsed() < self.daemon.greeting_patience() {
                self.waiting.push_back(one);
            } else {
                self.daemon.say_once(Kind::Silent, || format!("{}: nothing was said in time", one.address));
            }
        }
        self.refused.retain_mut(|one| Instant::now() < one.until && is_open(&mut one.stream));
    }

    fn serve(&self, one: Waiting) {
        let (daemon, address) = (self.daemon.clone(), one.address);
        let served = Served::begin(&self.serving);
        let work = move || {
            daemon.serve_stream(one.stream, one.address, one.is_greeted);
            drop((one.place, served));
        };
        if let Err(error) = std::thread::Builder::new().name("rsync".to_owned()).spawn(work) {
            self.daemon.say_once(Kind::Full, || format!("no thread for {address}: {error}"));
        }
    }
}

impl Daemon {
    /// Serves a client that has sent something, until it is done.
    fn serve_stream(&self, stream: TcpStream, address: IpAddr, is_greeted: bool) {
        let served = Link::tcp(stream).map_err(Into::into).and_then(|link| {
            let link = if is_greeted { link.greeted() } else { link };
            self.serve_link(link, address)
        });
        match served {
            // A client that only checks whether the server is there disconnects at once.
            Err(error) if error.is_departure() => {}
            Err(error) if error.code() == ExitCode::Timeout => {
                self.say_once(Kind::Silent, || format!("{address}: {error}"));
            }
            Err(error) => self.say(format!("{address}: {error}")),
            Ok(()) => {}
        }
    }
}

fn say(mut stream: &TcpStream, text: &str) -> bool {
    stream.write_all(text.as_bytes()).is_ok()
}

/// Whether there is something to read. The end of the connection counts too.
fn has_said_something(stream: &TcpStream) -> bool {
    !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Reads and discards what there is. Returns whether more may come.
fn is_open(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; DISCARD_LEN]) {
        Ok(len) => len > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_keeps_no_place() {
        let serving = Arc::new(AtomicUsize::new(0));
        let served = Served::begin(&serving);
        assert_eq!(serving.load(Ordering::Acquire), 1);
        let thread = std::thread::spawn(move || {
            let _served = served;
            panic!("as a bug would");
        });
        assert!(thread.join().is_err());
        assert_eq!(serving.load(Ordering::Acquire), 0);
    }
}
