//! Limits the work of applying the rules that a client sent.
//!
//! Work is counted in steps of the matcher, each of some nanoseconds. So the limit does not depend on the load of the
//! machine. A connection has some steps at the start, and gets more for each name that is checked. Lists of thousands
//! of rules stay within the limit. No list costs more than a small multiple of reading the names from a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{ExitCode, Result, RsyncError};
use crate::wire::Patience;

/// The steps of a connection at its start.
const STEPS: u64 = 100_000_000;
/// The further steps for each name.
const STEPS_PER_NAME: u64 = 10_000;
/// The steps after which the connection to the client is checked.
const STEPS_PER_LOOK: u64 = 20_000_000;

/// The steps that may be done now.
#[derive(Debug)]
pub struct Work {
    left: u64,
    done: u64,
    is_over: bool,
}

impl Work {
    pub(super) fn of(left: u64) -> Self {
        Self { left, done: 0, is_over: false }
    }

    /// No limit. For cases where rules and texts are not both from a client.
    pub fn unlimited() -> Self {
        Self::of(u64::MAX)
    }

    /// Uses some steps. Returns `false` if fewer are left.
    #[inline]
    pub fn spend(&mut self, steps: u64) -> bool {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                self.done += steps;
                true
            }
            None => {
                self.is_over = true;
                false
            }
        }
    }

    /// Whether there were too few steps.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

/// The steps of one connection. Without [`Meter::of`] there is no limit.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter(Option<Arc<Account>>);

#[derive(Debug)]
struct Account {
    left: AtomicU64,
    until_look: AtomicU64,
    is_over: AtomicBool,
    client: Patience,
}

impl Meter {
    /// A limit for the rules of a client.
    pub(super) fn of(client: Patience) -> Self {
        Self(Some(Arc::new(Account {
            left: AtomicU64::new(STEPS),
            until_look: AtomicU64::new(STEPS_PER_LOOK),
            is_over: AtomicBool::new(false),
            client,
        })))
    }

    /// The steps that are left, with those for one more name.
    pub(super) fn begin(&self) -> Work {
        match &self.0 {
            None => Work::unlimited(),
            Some(account) => {
                let left = account.left.fetch_add(STEPS_PER_NAME, Ordering::Relaxed);
                Work::of(left.saturating_add(STEPS_PER_NAME))
            }
        }
    }

    /// The steps that are left, without those for another name.
    pub(super) fn rest(&self) -> Work {
        self.0.as_ref().map_or_else(Work::unlimited, |account| Work::of(account.left.load(Ordering::Relaxed)))
    }

    /// Subtracts the steps that were used.
    ///
    /// # Errors
    /// When there were too few, or the client is gone.
    pub(super) fn end(&self, work: &Work) -> Result<()> {
        let Some(account) = &self.0 else { return Ok(()) };
        let take = |from: &AtomicU64, steps: u64| {
            let less = |left: u64| Some(left.saturating_sub(steps));
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default()
        };
        take(&account.left, work.done);
        if take(&account.until_look, work.done) <= work.done {
            account.until_look.store(STEPS_PER_LOOK, Ordering::Relaxed);
            if account.client.is_gone() {
                return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
            }
        }
        if work.is_over() || account.is_over.load(Ordering::Relaxed) {
            account.is_over.store(true, Ordering::Relaxed);
            return Err(RsyncError::refused(ExitCode::Syntax, "the filter rules take too long to apply"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_names_may_cost_more() {
        let meter = Meter::of(Patience::default());
        let spend = |steps: u64| {
            let mut work = meter.begin();
            let _ = work.spend(steps);
            meter.end(&work).is_ok()
        };
        assert!(spend(STEPS) && (0..1000).all(|_| spend(STEPS_PER_NAME)));
        assert!(spend(STEPS_PER_NAME) && !spend(3 * STEPS_PER_NAME));
        // Once the limit was exceeded, everything is refused.
        assert!(!spend(1));
        let free = Meter::default();
        let mut work = free.begin();
        assert!(work.spend(1 << 60) && free.end(&work).is_ok());
    }
}
