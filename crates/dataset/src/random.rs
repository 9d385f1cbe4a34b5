//! Guids and the clock: the only places where this crate meets either.

use std::time::{SystemTime, UNIX_EPOCH};

/// A guid: random, never 0.
pub(crate) fn guid() -> u64 {
    loop {
        let mut bytes = [0; 8];
        // getrandom(2) of 8 bytes neither fails nor comes short once the system has booted; should it, the
        // clock still makes ids that differ.
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        if got != Ok(bytes.len()) {
            bytes = nanoseconds().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        }
        match u64::from_le_bytes(bytes) {
            0 => {}
            guid => return guid,
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    nanoseconds() / 1_000_000_000
}

fn nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
