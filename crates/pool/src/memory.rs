//! One memory budget for a process: for the caches of pools, changes that are not written yet, and pipelines.
//!
//! Without a limit, as in a program that uses this crate as a library, each pool and each pipeline has bounds of its own. With
//! one ([`limit`]), an eighth of it is for cached data, an eighth for cached nodes of trees, half for changes, and a quarter
//! for what pipelines have under way. Pools that are open at the same time divide the first three among them, pipelines the
//! last. docs/memory.md says what is not counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// The least that a process can work with.
pub const LIMIT_MIN: u64 = 64 << 20;
/// The limit that [`limit_for`] chooses on a machine that has enough.
const LIMIT_DEFAULT: u64 = 512 << 20;
/// What a pipeline may have under way whatever the others have, so that none of them waits for another.
const OWN_BYTES: u64 = 1 << 20;

/// The process's budget; 0: none was set.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Pools that are open.
static POOLS: AtomicU64 = AtomicU64::new(0);
/// What pipelines have under way.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);

/// Gives this process a budget, for good: a second call changes nothing. To be called before a pool is opened.
pub fn limit(bytes: u64) {
    let _ = LIMIT.compare_exchange(0, bytes.max(LIMIT_MIN), Ordering::Relaxed, Ordering::Relaxed);
}

/// The budget of this process, if it has one.
pub fn limited_to() -> Option<u64> {
    Some(LIMIT.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
}

/// A budget for a machine with so much memory: 512 MiB, but no more than a quarter of the memory.
pub fn limit_for(memory: u64) -> u64 {
    LIMIT_DEFAULT.min(memory / 4).max(LIMIT_MIN)
}

/// One part in `parts` of the budget; `otherwise` without one.
pub(crate) fn share(parts: u64, otherwise: u64) -> u64 {
    limited_to().map_or(otherwise, |limit| limit / parts)
}

/// The part of a bound that is for one of the pools that are open now.
pub(crate) fn for_one_pool(bytes: u64) -> u64 {
    match limited_to() {
        Some(_) => bytes / POOLS.load(Ordering::Relaxed).max(1),
        None => bytes,
    }
}

/// Counts a pool as open.
#[derive(Debug)]
pub(crate) struct OpenPool(());

impl OpenPool {
    pub(crate) fn count() -> Self {
        POOLS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        POOLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one pipeline has under way: at most its own bound, and no more than is left of what all pipelines of the process may
/// have. A little it may always have, and one piece of any size.
#[derive(Debug)]
pub struct UnderWay {
    held: u64,
    bound: u64,
}

impl UnderWay {
    /// Nothing yet, and never more than `bound`.
    pub fn new(bound: u64) -> Self {
        Self { held: 0, bound }
    }

    /// Takes so many bytes. `false`: they have to wait until this pipeline has given something back.
    #[must_use]
    pub fn take(&mut self, bytes: u64) -> bool {
        let wanted = self.held.saturating_add(bytes);
        let is_own = self.held == 0 || wanted <= OWN_BYTES.min(self.bound);
        let allowed = if is_own { u64::MAX } else { share(4, u64::MAX) };
        let add = |all: u64| all.checked_add(bytes).filter(|all| *all <= allowed);
        let is_taken = (is_own || wanted <= self.bound)
            && UNDER_WAY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if is_taken {
            self.held = wanted;
        }
        is_taken
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        UNDER_WAY.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.give_back(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_fits_the_machine() {
        assert_eq!(limit_for(64 << 30), 512 << 20);
        assert_eq!(limit_for(1 << 30), 256 << 20);
        assert_eq!(limit_for(1 << 20), LIMIT_MIN);
    }

    #[test]
    fn a_pipeline_keeps_to_its_bound_and_may_always_have_one_piece() {
        let mut under_way = UnderWay::new(1000);
        assert!(under_way.take(5000), "one piece of any size");
        assert!(!under_way.take(1));
        under_way.give_back(5000);
        assert!(under_way.take(600) && under_way.take(400) && !under_way.take(1));
        under_way.give_back(400);
        assert!(under_way.take(300));
        // What is given back twice is not lent by others.
        under_way.give_back(10_000);
        assert_eq!(under_way.held, 0);
    }
}
