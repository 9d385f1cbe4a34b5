//! Time limits for a peer. They allow slow connections, but not a byte now and then.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The further time for each byte that arrives. Large messages over slow connections need it.
const PER_BYTE: Duration = Duration::from_millis(1);
/// Until the peer has sent its request, data that arrives slowly has this many times the limit for silence.
const SLOW: u32 = 2;

/// The time that is left for a peer. Readers spend it by waiting, and renew it with each complete message. Without a
/// limit it never ends. Clones share the same time.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    state: Arc<Mutex<State>>,
    /// The connection of the peer.
    socket: Option<Arc<OwnedFd>>,
}

#[derive(Debug, Default)]
struct State {
    left: Option<Duration>,
    /// The time limit until the peer has sent its request, regardless of what arrives meanwhile.
    most: Option<Duration>,
    /// The time limit of each message, after the peer has sent its request.
    each: Option<Duration>,
    has_begun: bool,
}

impl Patience {
    /// A time limit for the peer at the other end of this socket.
    pub fn of(socket: OwnedFd) -> Self {
        Self { socket: Some(Arc::new(socket)), ..Self::default() }
    }

    /// Whether the peer has closed its connection, as far as that can be seen.
    pub fn is_gone(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
        let polled = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        polled.is_ok() && asked[0].revents().intersects(ends)
    }

    /// Sets the time for the whole request of the peer. Afterwards each message has `each`, or no limit.
    pub fn begin(&self, together: Duration, each: Option<Duration>) {
        self.begin_within((together, together.saturating_mul(SLOW)), each);
    }

    /// The same, with at most the time `most` for the request.
    pub fn begin_within(&self, (together, most): (Duration, Duration), each: Option<Duration>) {
        *self.state.lock() = State { left: Some(together), most: Some(most), each, has_begun: false };
    }

    /// Records that the peer has sent its request.
    pub fn begun(&self) {
        let mut state = self.state.lock();
        (state.has_begun, state.left, state.most) = (true, state.each, None);
    }

    /// Records that a complete message has arrived.
    pub fn renew(&self) {
        let mut state = self.state.lock();
        if state.has_begun {
            state.left = state.each;
        }
    }

    /// The time that may be waited now. `None` is no limit.
    pub fn left(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.left.map(|left| state.most.map_or(left, |most| left.min(most)))
    }

    /// Records that a reader waited this long, and received this many bytes.
    pub fn spend(&self, waited: Duration, bytes: usize) {
        let mut state = self.state.lock();
        state.most = state.most.map(|most| most.saturating_sub(waited));
        if let Some(left) = &mut state.left {
            let earned = PER_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
            // Data that arrives too late adds no time.
            *left = left.checked_sub(waited).map_or(Duration::ZERO, |left| left.saturating_add(earned));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_what_is_whole_renews_it() {
        let patience = Patience::default();
        patience.spend(100 * SECOND, 0);
        assert_eq!(patience.left(), None);
        patience.begin(10 * SECOND, Some(20 * SECOND));
        patience.spend(9 * SECOND, 2);
        // The time is not renewed before the request was sent.
        patience.renew();
        assert_eq!(patience.left(), Some(SECOND + 2 * PER_BYTE));
        patience.begun();
        patience.spend(15 * SECOND, 1000);
        assert_eq!(patience.left(), Some(6 * SECOND));
        patience.spend(7 * SECOND, 1000);
        assert_eq!(patience.left(), Some(Duration::ZERO));
        patience.renew();
        assert_eq!(patience.left(), Some(20 * SECOND));
        patience.begin(SECOND, None);
        patience.begun();
        assert_eq!(patience.left(), None);
    }

    #[test]
    fn what_comes_before_a_wish_earns_only_so_much() {
        let patience = Patience::default();
        patience.begin(10 * SECOND, None);
        patience.spend(SECOND, 1 << 20);
        assert_eq!(patience.left(), Some(19 * SECOND));
        patience.spend(19 * SECOND, 1 << 20);
        assert_eq!(patience.left(), Some(Duration::ZERO));
        patience.begin_within((SECOND, SECOND), None);
        patience.spend(SECOND, 1 << 20);
        assert_eq!(patience.left(), Some(Duration::ZERO));
    }

    #[test]
    fn a_peer_that_closes_its_connection_is_gone() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let patience = Patience::of(ours.into());
        assert!(!patience.is_gone() && !Patience::default().is_gone());
        drop(theirs);
        assert!(patience.is_gone());
    }
}
