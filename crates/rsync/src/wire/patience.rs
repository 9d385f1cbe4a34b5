//! How long a peer is waited for: what is slow is, but not what comes a byte now and then.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time for each byte that comes, beyond what there is for none: large messages over slow lines take theirs.
const PER_BYTE: Duration = Duration::from_millis(1);
/// Until it is said what is wanted, what comes slowly has so many times as long as what does not come.
const SLOW: u32 = 2;

/// The time that is left for a peer, which whoever waits spends and whoever understands renews. Without one set it never ends. Clones
/// are the same one.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    state: Arc<Mutex<State>>,
    /// The peer's connection.
    socket: Option<Arc<OwnedFd>>,
}

#[derive(Debug, Default)]
struct State {
    left: Option<Duration>,
    /// Time that may be waited until the peer has said what it wants, whatever comes meanwhile.
    most: Option<Duration>,
    /// What each message has, once the peer has said what it wants.
    each: Option<Duration>,
    has_begun: bool,
}

impl Patience {
    /// With a peer at the other end of this socket.
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

    /// From here on there is so much time to say what is wanted, all together; afterwards each message has `each`, or as long as it takes.
    pub fn begin(&self, together: Duration, each: Option<Duration>) {
        self.begin_within((together, together.saturating_mul(SLOW)), each);
    }

    /// The same, with no more than `most` whatever comes.
    pub fn begin_within(&self, (together, most): (Duration, Duration), each: Option<Duration>) {
        *self.state.lock() = State { left: Some(together), most: Some(most), each, has_begun: false };
    }

    /// The peer has said what it wants.
    pub fn begun(&self) {
        let mut state = self.state.lock();
        (state.has_begun, state.left, state.most) = (true, state.each, None);
    }

    /// A whole message has come.
    pub fn renew(&self) {
        let mut state = self.state.lock();
        if state.has_begun {
            state.left = state.each;
        }
    }

    /// How long may be waited now; `None` is forever.
    pub fn left(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.left.map(|left| state.most.map_or(left, |most| left.min(most)))
    }

    /// It was waited so long, and so much came.
    pub fn spend(&self, waited: Duration, bytes: usize) {
        let mut state = self.state.lock();
        state.most = state.most.map(|most| most.saturating_sub(waited));
        if let Some(left) = &mut state.left {
            let earned = PER_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
            // What comes too late earns nothing.
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
        // Not before it is said what is wanted.
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
