//! The memory budget of a process: for the caches of pools, unwritten changes, and pipelines.
//!
//! Without a budget, as in a program that uses this crate as a library, each pool and each pipeline has its own limits.
//! With a budget ([`limit`]), one eighth is for cached data, one eighth for cached tree nodes, half for changes, and a
//! quarter for data in pipelines. Open pools share the first three parts, pipelines the last. docs/memory.md says what
//! is not counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest budget with which a process can work.
pub const LIMIT_MIN: u64 = 64 << 20;
/// The budget that [`limit_for`] chooses on a machine with enough memory.
const LIMIT_DEFAULT: u64 = 512 << 20;
/// Bytes that every pipeline may always use, so that no pipeline waits for another.
const OWN_BYTES: u64 = 1 << 20;

/// The budget of the process; 0 if none was set.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Number of open pools.
static POOLS: AtomicU64 = AtomicU64::new(0);
/// Bytes in all pipelines.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);

/// Sets the budget of this process. A second call changes nothing. Must be called before a pool is opened.
pub fn limit(bytes: u64) {
    let _ = LIMIT.compare_exchange(0, bytes.max(LIMIT_MIN), Ordering::Relaxed, Ordering::Relaxed);
}

/// The budget of this process, if it was set.
pub fn limited_to() -> Option<u64> {
    Some(LIMIT.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
}

/// The budget for a machine with this much memory: 512 MiB, but at most a quarter of the memory.
pub fn limit_for(memory: u64) -> u64 {
    LIMIT_DEFAULT.min(memory / 4).max(LIMIT_MIN)
}

/// The budget divided by `parts`; `otherwise` if there is no budget.
pub(crate) fn share(parts: u64, otherwise: u64) -> u64 {
    limited_to().map_or(otherwise, |limit| limit / parts)
}

/// The share of one open pool in `bytes`. Without a budget, all of it.
pub(crate) fn for_one_pool(bytes: u64) -> u64 {
    match limited_to() {
        Some(_) => bytes / POOLS.load(Ordering::Relaxed).max(1),
        None => bytes,
    }
}

/// Counts a pool as open until it is dropped.
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

/// The bytes that one pipeline has in memory. They are limited by its own bound and by what is left of the common
/// budget of all pipelines. A small number of bytes, and one piece of any size, are always allowed.
#[derive(Debug)]
pub struct UnderWay {
    held: u64,
    bound: u64,
}

impl UnderWay {
    /// Starts empty, with `bound` as the upper limit.
    pub fn new(bound: u64) -> Self {
        Self { held: 0, bound }
    }

    /// Takes this many bytes. Returns `false` if the caller must wait until this pipeline has given some back.
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

    /// Gives bytes back.
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
        // Giving too much back does not reduce the bytes of other pipelines.
        under_way.give_back(10_000);
        assert_eq!(under_way.held, 0);
    }
}
