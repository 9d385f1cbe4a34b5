//! Lines of the log that strangers can cause by the thousand: the first one is said, then how many more there were.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// There is no more than one line of a kind in this time.
const QUIET: Duration = Duration::from_secs(10);

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// There are as many connections as there may be.
    Full,
    /// An address has as many connections as it may have.
    AddressFull,
    /// A client said nothing.
    Silent,
}

/// What was said lately.
#[derive(Debug, Default)]
pub struct Bursts(Mutex<HashMap<Kind, Burst>>);

#[derive(Debug)]
struct Burst {
    until: Instant,
    unsaid: u64,
}

impl Bursts {
    /// The line to be said of an event, if there is one now.
    pub fn line(&self, kind: Kind, text: impl FnOnce() -> String, now: Instant) -> Option<String> {
        let mut all = self.0.lock();
        match all.get_mut(&kind) {
            Some(burst) if now < burst.until => {
                burst.unsaid += 1;
                None
            }
            other => {
                let unsaid = other.map_or(0, |burst| burst.unsaid);
                all.insert(kind, Burst { until: now + QUIET, unsaid: 0 });
                let more = if unsaid == 0 { String::new() } else { format!(" ({unsaid} more before)") };
                Some(text() + &more)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_one_line() {
        let (bursts, begin) = (Bursts::default(), Instant::now());
        let line = |kind, after| bursts.line(kind, || "full".to_owned(), begin + after);
        assert_eq!(line(Kind::Full, Duration::ZERO).unwrap(), "full");
        assert!((0..1000).all(|_| line(Kind::Full, QUIET / 2).is_none()));
        assert_eq!(line(Kind::Silent, QUIET / 2).unwrap(), "full");
        assert_eq!(line(Kind::Full, QUIET).unwrap(), "full (1000 more before)");
        assert_eq!(line(Kind::Full, QUIET * 2).unwrap(), "full");
    }
}
