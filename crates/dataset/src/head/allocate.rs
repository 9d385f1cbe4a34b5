//! Allocates object numbers.

use std::collections::VecDeque;

use crate::error::DatasetError;
use crate::objset::key::{OBJECT_MAX, SLOTS_PER_BLOCK};

/// Maximal number of freed object numbers that are kept for reuse.
const FREED_MAX: usize = 1 << 16;

/// Allocates numbers after all used ones, and numbers that were freed since the head was opened.
///
/// A number is not reused in the txg that freed it: both files would have the same number and generation.
#[derive(Debug)]
pub(super) struct Allocator {
    next: u64,
    freed: VecDeque<Freed>,
}

#[derive(Debug)]
struct Freed {
    object: u64,
    slots: u8,
    txg: u64,
}

impl Allocator {
    /// `past` is the first number after all used ones.
    pub(super) fn new(past: u64) -> Self {
        Self { next: past.max(1), freed: VecDeque::new() }
    }

    pub(super) fn take(&mut self, slots: u8, txg: u64) -> Result<u64, DatasetError> {
        let reusable = |freed: &Freed| freed.txg < txg && freed.slots == slots;
        if self.freed.front().is_some_and(reusable)
            && let Some(freed) = self.freed.pop_front()
        {
            return Ok(freed.object);
        }
        let slots = u64::from(slots);
        let mut object = self.next;
        // A dnode must lie within one block of dnodes.
        if object % SLOTS_PER_BLOCK + slots > SLOTS_PER_BLOCK {
            object = object.next_multiple_of(SLOTS_PER_BLOCK);
        }
        if object + slots > OBJECT_MAX {
            return Err(DatasetError::refused("dataset", "all object numbers are in use"));
        }
        self.next = object + slots;
        Ok(object)
    }

    /// Marks a given number as used.
    pub(super) fn claim(&mut self, object: u64, slots: u8) {
        self.next = self.next.max(object + u64::from(slots));
    }

    pub(super) fn free(&mut self, object: u64, slots: u8, txg: u64) {
        if self.freed.len() < FREED_MAX {
            self.freed.push_back(Freed { object, slots, txg });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dnodes_stay_in_their_block_and_numbers_rest_a_txg() {
        let mut numbers = Allocator::new(30);
        assert_eq!(numbers.take(1, 5).unwrap(), 30);
        assert_eq!(numbers.take(2, 5).unwrap(), 32);
        assert_eq!(numbers.take(31, 5).unwrap(), 64);
        numbers.free(30, 1, 5);
        assert_eq!(numbers.take(1, 5).unwrap(), 95);
        assert_eq!(numbers.take(1, 6).unwrap(), 30);
        numbers.claim(1000, 4);
        assert_eq!(numbers.take(1, 6).unwrap(), 1004);
    }
}
