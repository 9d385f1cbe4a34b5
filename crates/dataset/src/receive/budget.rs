//! Bounds the bytes that are between reading and applying, whatever the size of records.

use parking_lot::{Condvar, Mutex};

/// Bytes that may be under way at once. One record may always be, however large.
pub(super) struct Budget {
    limit: u64,
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    used: u64,
    closed: bool,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, state: Mutex::new(State { used: 0, closed: false }), freed: Condvar::new() }
    }

    /// Waits for room; `false` when the other side has given up.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.used > 0 && state.used + bytes > self.limit {
            self.freed.wait(&mut state);
        }
        state.used += bytes;
        !state.closed
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.state.lock().used -= bytes;
        self.freed.notify_all();
    }

    /// Wakes whoever waits: nobody will give anything back any more.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.freed.notify_all();
    }
}
