//! Memory that all connections of a process may have together for what clients can make them keep.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a connection has for itself, so that no others can take them from it.
const OWN: usize = 1 << 20;

/// So many bytes for all.
#[derive(Debug)]
pub struct Budget {
    left: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes, besides what each connection has for itself.
    pub const fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }
}

/// A part of this machine's memory, between bounds that are sensible for any.
#[derive(Debug)]
pub struct MemoryBudget(LazyLock<Budget>);

impl MemoryBudget {
    /// A quarter of the memory.
    pub const fn quarter() -> Self {
        Self(LazyLock::new(|| Budget::new(quarter_of_memory())))
    }

    /// Nothing of it yet.
    pub fn share(&'static self) -> Share {
        Share::of(&self.0)
    }
}

/// Bytes that a quarter of the memory is at least, and at most.
const QUARTER_MIN: u64 = 256 << 20;
const QUARTER_MAX: u64 = 8 << 30;

/// Bytes that a quarter of this machine's memory is, between bounds.
pub fn quarter_of_memory() -> usize {
    let info = rustix::system::sysinfo();
    let bytes = u64::from(info.mem_unit).saturating_mul(info.totalram as u64);
    usize::try_from((bytes / 4).clamp(QUARTER_MIN, QUARTER_MAX)).unwrap_or(usize::MAX)
}

/// What one connection has of it; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: &'static Budget,
    bytes: usize,
}

impl Share {
    /// Nothing yet.
    pub fn of(budget: &'static Budget) -> Self {
        Self { budget, bytes: 0 }
    }

    fn shared(bytes: usize) -> usize {
        bytes.saturating_sub(OWN)
    }

    /// Gives back what is beyond so many bytes in all.
    pub fn shrink(&mut self, bytes: usize) {
        if bytes < self.bytes {
            let less = Self::shared(self.bytes) - Self::shared(bytes);
            self.budget.left.fetch_add(less, Ordering::AcqRel);
            self.bytes = bytes;
        }
    }

    /// Makes it so many bytes in all, if there are as many; it gets no smaller so.
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
