//! Limits log lines that strangers can cause in great number. The first one is logged, then the number of further ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The shortest time between two lines of the same kind.
const QUIET: Duration = Duration::from_secs(10);

/// The event that a line reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The daemon has its maximum of connections.
    Full,
    /// An address has its maximum of connections.
    AddressFull,
    /// A client sent nothing.
    Silent,
}

/// The lines that were logged recently.
#[derive(Debug, Default)]
pub struct Bursts(Mutex<HashMap<Kind, Burst>>);

#[derive(Debug)]
struct Burst {
    until: Instant,
    unsaid: u64,
}

impl Bursts {
    /// The line to log for an event, if one is due now.
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
