//! Memory budgets: what all connections of a process together may store on behalf of clients.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that each connection has for itself. They are not taken from the budget, so other connections cannot use them
/// up.
const OWN: usize = 1 << 20;

/// A limit in bytes that several connections share.
#[derive(Debug)]
pub struct Budget {
    left: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes`. The bytes that each connection has for itself are not part of it.
    pub const fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }
}

/// A budget that is a share of this machine's memory, within fixed bounds.
#[derive(Debug)]
pub struct MemoryBudget(LazyLock<Budget>);

impl MemoryBudget {
    /// A quarter of the machine's memory.
    pub const fn quarter() -> Self {
        Self(LazyLock::new(|| Budget::new(quarter_of_memory())))
    }

    /// A new share that holds no bytes yet.
    pub fn share(&'static self) -> Share {
        Share::of(&self.0)
    }
}

/// Lower and upper bound of the quarter, in bytes.
const QUARTER_MIN: u64 = 256 << 20;
const QUARTER_MAX: u64 = 8 << 30;

/// A quarter of this machine's memory in bytes, within bounds.
pub fn quarter_of_memory() -> usize {
    let info = rustix::system::sysinfo();
    let bytes = u64::from(info.mem_unit).saturating_mul(info.totalram as u64);
    usize::try_from((bytes / 4).clamp(QUARTER_MIN, QUARTER_MAX)).unwrap_or(usize::MAX)
}

/// The bytes that one connection holds. They return to the budget when the share is dropped.
#[derive(Debug)]
pub struct Share {
    budget: &'static Budget,
    bytes: usize,
}

impl Share {
    /// A share of `budget` that holds no bytes yet.
    pub fn of(budget: &'static Budget) -> Self {
        Self { budget, bytes: 0 }
    }

    fn shared(bytes: usize) -> usize {
        bytes.saturating_sub(OWN)
    }

    /// Shrinks the share to `bytes` in total and returns the rest to the budget. Does nothing if the share is smaller.
    pub fn shrink(&mut self, bytes: usize) {
        if bytes < self.bytes {
            let less = Self::shared(self.bytes) - Self::shared(bytes);
            self.budget.left.fetch_add(less, Ordering::AcqRel);
            self.bytes = bytes;
        }
    }

    /// Grows the share to `bytes` in total. Returns false if the budget has too few bytes left. Never shrinks the
    /// share.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let more = Self::shared(bytes).saturating_sub(Self::shared(self.bytes));
        let left = &self.budget.left;
        let taken = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(more));
        if taken.is_ok() {
            self.bytes = self.bytes.max(bytes);
        }
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(Self::shared(self.bytes), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_has_others_have_not() {
        static BUDGET: Budget = Budget::new(1000);
        let (mut one, mut other) = (Share::of(&BUDGET), Share::of(&BUDGET));
        assert!(one.grow(OWN + 600) && one.grow(OWN + 700));
        assert!(!other.grow(OWN + 301) && other.grow(OWN) && other.grow(OWN + 300));
        assert!(!one.grow(OWN + 701) && one.grow(5));
        drop(other);
        assert!(one.grow(OWN + 1000) && !one.grow(OWN + 1001));
        one.shrink(OWN + 400);
        one.shrink(OWN + 500);
        let mut third = Share::of(&BUDGET);
        assert!(third.grow(OWN + 600) && !third.grow(OWN + 601) && !one.grow(OWN + 401));
        drop(third);
        drop(one);
        assert!(Share::of(&BUDGET).grow(OWN + 1000));
    }
}
