//! Pseudo-random numbers from a seed: SplitMix64 (Steele, Lea, Flood 2014).

#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    /// A sequence that depends on all of `seeds`.
    pub(super) fn new(seeds: &[u64]) -> Self {
        let mut rng = Self(0);
        for &seed in seeds {
            rng.0 = rng.next() ^ seed;
        }
        rng
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be zero. The small bias of the remainder does not matter here.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns true with a probability of `percent` / 100.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
