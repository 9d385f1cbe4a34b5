//! Buffers that are used again: fresh memory costs more than the copy.

use parking_lot::Mutex;

/// So many are kept.
const KEPT_MAX: usize = 8;
/// None that is longer, bytes.
const LEN_MAX: usize = 8 << 20;

/// Buffers that nobody uses at the moment.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// An empty one.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut buffer = self.idle.lock().pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// One of `len` bytes, whatever they are.
    pub(super) fn take_filled(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.idle.lock().pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// For the next who wants one.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT_MAX && buffer.capacity() <= LEN_MAX {
            idle.push(buffer);
        }
    }
}
