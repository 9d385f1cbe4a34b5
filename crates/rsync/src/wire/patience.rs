//! How long a peer is waited for: what is slow is, but not what comes a byte now and then.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Time for each byte that comes, beyond what there is for none: large messages over slow lines take theirs.
const PER_BYTE: Duration = Duration::from_millis(1);

/// The time that is left for a peer, which whoever waits spends and whoever understands renews. Without one set it never ends. Clones
/// are the same one.
#[derive(Debug, Clone, Default)]
pub struct Patience(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    left: Option<Duration>,
    /// What each message has, once the peer has said what it wants.
    each: Option<Duration>,
    has_begun: bool,
}

impl Patience {
    /// From here on there is so much time to say what is wanted, all together; afterwards each message has `each`, or as long as it takes.
    pub fn begin(&self, together: Duration, each: Option<Duration>) {
        *self.0.lock() = State { left: Some(together), each, has_begun: false };
    }

    /// The peer has said what it wants.
    pub fn begun(&self) {
        let mut state = self.0.lock();
        (state.has_begun, state.left) = (true, state.each);
    }

    /// A whole message has come.
    pub fn renew(&self) {
        let mut state = self.0.lock();
        if state.has_begun {
            state.left = state.each;
        }
    }

    /// How long may be waited now; `None` is forever.
    pub fn left(&self) -> Option<Duration> {
        self.0.lock().left
    }

    /// It was waited so long, and so much came.
    pub fn spend(&self, waited: Duration, bytes: usize) {
        if let Some(left) = &mut self.0.lock().left {
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
}
