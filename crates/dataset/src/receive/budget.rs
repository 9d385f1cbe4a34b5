//! Limits the bytes between reading and applying, whatever the size of records.

use parking_lot::{Condvar, Mutex};
use snowmelt_pool::memory::UnderWay;

/// The bytes that may be in the pipeline at once. One record of any size is always allowed.
pub(super) struct Budget {
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    under_way: UnderWay,
    closed: bool,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        let state = State { under_way: UnderWay::new(limit), closed: false };
        Self { state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Waits for room. Returns `false` when the other side has ended.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        while !state.closed && !state.under_way.take(bytes) {
            self.freed.wait(&mut state);
        }
        !state.closed
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.state.lock().under_way.give_back(bytes);
        self.freed.notify_all();
    }

    /// Wakes waiting threads: no bytes will be given back any more.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.freed.notify_all();
    }
}
