//! Requests that a store has not answered yet, and how long they may take.

use std::time::Duration;

/// How long a member of a mirror may take to answer, if nobody said otherwise.
pub const DEADMAN: Duration = Duration::from_secs(60);
/// It cannot be less than this.
pub const DEADMAN_MIN: Duration = Duration::from_secs(1);
/// Nor more than this.
pub const DEADMAN_MAX: Duration = Duration::from_secs(86_400);

/// Something that a store has not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// What was attempted, as a verb.
    pub op: &'static str,
    /// For how long.
    pub since: Duration,
    /// How long it may take: see [`Store::set_deadman`].
    pub deadman: Duration,
}

impl Unanswered {
    /// Whether it has taken half of what it may: nobody should be given up in favour of a store that may be hanging, too.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.since >= self.deadman / 2
    }
}

/// Says whether what a store has not answered can be done without. It is asked again and again.
pub type MayGiveUp = Box<dyn Fn(&Unanswered) -> bool + Send + Sync>;
