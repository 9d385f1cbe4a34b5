//! Requests that a store has not answered yet, and how long they may take.

use std::time::Duration;

/// How long a member of a mirror may take to answer, by default.
pub const DEADMAN: Duration = Duration::from_secs(60);
/// The minimum for [`Store::set_deadman`](crate::Store::set_deadman).
pub const DEADMAN_MIN: Duration = Duration::from_secs(1);
/// The maximum for [`Store::set_deadman`](crate::Store::set_deadman).
pub const DEADMAN_MAX: Duration = Duration::from_secs(86_400);

/// A request that a store has not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// The operation, as a verb.
    pub op: &'static str,
    /// How long the request has been waiting.
    pub since: Duration,
    /// How long an answer may take: see [`Store::set_deadman`](crate::Store::set_deadman).
    pub deadman: Duration,
}

impl Unanswered {
    /// Whether the request has waited for half of `deadman`. Such a store may hang too, so no other member should be
    /// given up in favour of it.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.since >= self.deadman / 2
    }
}

/// Decides whether a late answer is given up. It is called repeatedly while a caller waits.
pub type MayGiveUp = Box<dyn Fn(&Unanswered) -> bool + Send + Sync>;
