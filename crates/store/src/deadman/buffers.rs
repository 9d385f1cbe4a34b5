//! Buffers for reuse: allocating memory costs more than copying into it.

use parking_lot::Mutex;

/// Maximum number of buffers that are kept.
const KEPT_MAX: usize = 8;
/// Maximum capacity of a buffer that is kept, in bytes.
const LEN_MAX: usize = 8 << 20;

/// Buffers that are not in use.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Returns an empty buffer.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut buffer = self.idle.lock().pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Returns a buffer of `len` bytes with arbitrary contents.
    pub(super) fn take_filled(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.idle.lock().pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// Keeps a buffer for reuse, unless it is too large or there are enough.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT_MAX && buffer.capacity() <= LEN_MAX {
            idle.push(buffer);
        }
    }
}
