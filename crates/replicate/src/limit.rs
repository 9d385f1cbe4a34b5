//! A limit on bytes a second, shared by all streams of a sync (`--bwlimit`).

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long bytes may be let through at once after a pause.
const BURST: Duration = Duration::from_millis(100);

/// A limit on bytes a second.
pub struct Limit {
    rate: u64,
    /// When the next byte may go.
    next: Mutex<Instant>,
}

impl Limit {
    /// Of so many bytes a second, at least one.
    pub fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), next: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` more may go.
    pub fn pass(&self, bytes: usize) {
        let nanos = (bytes as u128).saturating_mul(1_000_000_000) / u128::from(self.rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let now = Instant::now();
        let begin = {
            let mut next = self.next.lock();
            let begin = (*next).max(now.checked_sub(BURST).unwrap_or(now));
            *next = begin + takes;
            begin
        };
        if let Some(wait) = (begin + takes).checked_duration_since(now) {
            std::thread::sleep(wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabyte_at_ten_a_second_takes_a_tenth_whoever_asks() {
        let limit = Limit::new(10_000_000);
        std::thread::sleep(2 * BURST);
        let begun = Instant::now();
        // After a pause, a limited burst is sent at once.
        limit.pass(1_000_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        limit.pass(50_000);
                    }
                });
            }
        });
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(195), "{took:?}");
    }
}
