//! Guids and the clock. Only this module of the crate uses random numbers and the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// A guid: random, never 0.
pub(crate) fn guid() -> u64 {
    #[cfg(test)]
    if let Some(guid) = simulated::guid() {
        return guid;
    }
    loop {
        let mut bytes = [0; 8];
        // getrandom(2) of 8 bytes neither fails nor returns fewer bytes once the system has booted. If it does, ids
        // from the clock still differ.
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

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds() -> u64 {
    #[cfg(test)]
    if let Some(now) = simulated::now() {
        return now.saturating_mul(1_000_000_000);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) use simulated::{simulate, time_passes as simulated_time_passes};

/// Guids and a clock that are derived from a seed, for threads that call `simulate`.
#[cfg(test)]
mod simulated {
    use std::cell::Cell;

    thread_local! {
        /// The last guid and the time.
        static STATE: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    }

    /// Turns the simulation on in this thread.
    pub(crate) fn simulate(seed: u64) {
        STATE.set(Some((seed, 1_700_000_000)));
    }

    /// Advances the clock.
    pub(crate) fn time_passes(seconds: u64) {
        STATE.set(STATE.get().map(|(last, now)| (last, now + seconds)));
    }

    pub(super) fn guid() -> Option<u64> {
        let (last, now) = STATE.get()?;
        let next = last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        STATE.set(Some((next, now)));
        Some((next ^ (next >> 29)).max(1))
    }

    pub(super) fn now() -> Option<u64> {
        STATE.get().map(|(_, now)| now)
    }
}
