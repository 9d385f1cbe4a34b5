//! Locks for blocks: a write of a part of a block reads the rest of the block first.

use parking_lot::{Condvar, Mutex};

/// The ranges of blocks that are being changed.
#[derive(Debug, Default)]
pub(super) struct BlockLocks {
    held: Mutex<Vec<(u64, u64)>>,
    freed: Condvar,
}

/// A range of blocks that is locked until this is dropped.
pub struct LockedBlocks<'a> {
    locks: &'a BlockLocks,
    range: (u64, u64),
}

impl BlockLocks {
    /// Waits until no block of `first..past` is locked, and locks them.
    pub(super) fn lock(&self, first: u64, past: u64) -> LockedBlocks<'_> {
        let mut held = self.held.lock();
        while held.iter().any(|(from, to)| *from < past && first < *to) {
            self.freed.wait(&mut held);
        }
        held.push((first, past));
        LockedBlocks { locks: self, range: (first, past) }
    }
}

impl Drop for LockedBlocks<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        if let Some(at) = held.iter().position(|range| *range == self.range) {
            held.swap_remove(at);
        }
        self.locks.freed.notify_all();
    }
}
