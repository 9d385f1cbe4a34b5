//! Fletcher-4: the running checksum of a stream (`module/zcommon/zfs_fletcher.c`, `fletcher_4_incremental_*`).
//!
//! It consists of four 64-bit sums over 32-bit words, modulo 2^64: `a` sums the words, `b` the `a`s, `c` the `b`s, `d`
//! the `c`s. The words of a stream are in its sender's byte order.
//!
//! SIMD computes the sums of a block from zero in several lanes. Lane *l* of *L* takes every *L*-th word. Then the
//! lanes are combined: the weight of a word in `b`, `c`, `d` is a polynomial of its distance from the end. In a lane
//! that distance is `L·k - l`. The sums of the whole are therefore fixed linear combinations of the sums of the lanes
//! (`LaneWeights`).

mod simd;

#[cfg(test)]
mod tests;

use crate::byte_order::ByteOrder;

/// Below this many bytes the scalar loop is faster than setting up and combining lanes.
const SIMD_MIN: usize = 512;
/// Bytes per step of a long update. Keeps the weights of [`Fletcher4::append`] within `u128`.
const STEP: usize = 16 << 20;

/// A running fletcher-4 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fletcher4 {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
}

impl Fletcher4 {
    /// The checksum of an empty stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { a: 0, b: 0, c: 0, d: 0 }
    }

    /// The four words, as in streams.
    #[must_use]
    pub const fn state(&self) -> [u64; 4] {
        [self.a, self.b, self.c, self.d]
    }

    /// Adds little-endian words. Bytes after the last whole word are ignored, as in OpenZFS.
    pub fn update(&mut self, bytes: &[u8]) {
        self.update_in(ByteOrder::Little, bytes);
    }

    /// Adds big-endian words, for streams of the other byte order.
    pub fn update_swapped(&mut self, bytes: &[u8]) {
        self.update_in(ByteOrder::Big, bytes);
    }

    /// Adds words in the given byte order.
    pub fn update_in(&mut self, order: ByteOrder, bytes: &[u8]) {
        if bytes.len() < SIMD_MIN {
            return self.scalar(order, bytes);
        }
        for step in bytes.chunks(STEP) {
            let done = match simd::sums(order, step) {
                Some((sums, done)) => {
                    self.append(&sums, (done / 4) as u64);
                    done
                }
                None => 0,
            };
            self.scalar(order, &step[done..]);
        }
    }

    fn scalar(&mut self, order: ByteOrder, bytes: &[u8]) {
        match order {
            ByteOrder::Little => self.words(bytes, u32::from_le_bytes),
            ByteOrder::Big => self.words(bytes, u32::from_be_bytes),
        }
    }

    #[inline]
    fn words(&mut self, bytes: &[u8], word: impl Fn([u8; 4]) -> u32) {
        let Self { mut a, mut b, mut c, mut d } = *self;
        for w in bytes.as_chunks::<4>().0 {
            a = a.wrapping_add(u64::from(word(*w)));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        *self = Self { a, b, c, d };
    }

    /// Appends `words` words, whose checksum from zero is `tail`.
    fn append(&mut self, tail: &Self, words: u64) {
        let n = u128::from(words);
        // The weights of the old sums in the new ones: binomial coefficients, reduced modulo 2^64 like everything else.
        let n2 = (n * (n + 1) / 2) as u64;
        let n3 = (n * (n + 1) * (n + 2) / 6) as u64;
        let n1 = words;
        let Self { a, b, c, d } = *self;
        self.a = a.wrapping_add(tail.a);
        self.b = b.wrapping_add(tail.b).wrapping_add(n1.wrapping_mul(a));
        self.c = c.wrapping_add(tail.c).wrapping_add(n1.wrapping_mul(b)).wrapping_add(n2.wrapping_mul(a));
        self.d = (d.wrapping_add(tail.d))
            .wrapping_add(n1.wrapping_mul(c))
            .wrapping_add(n2.wrapping_mul(b))
            .wrapping_add(n3.wrapping_mul(a));
    }

    /// Combines the sums of `L` lanes. Each lane is `[a, b, c, d]` of its own words.
    fn from_lanes<const L: usize>(lanes: &[[u64; 4]; L]) -> Self {
        let mut out = Self::new();
        for (l, &[a, b, c, d]) in lanes.iter().enumerate() {
            let w = LaneWeights::of(L as i64, l as i64);
            let mul = |weight: i64, sum: u64| sum.wrapping_mul(weight as u64);
            out.a = out.a.wrapping_add(a);
            out.b = out.b.wrapping_add(mul(w.bb, b)).wrapping_add(mul(w.ba, a));
            out.c = out.c.wrapping_add(mul(w.cc, c)).wrapping_add(mul(w.cb, b)).wrapping_add(mul(w.ca, a));
            out.d = (out.d.wrapping_add(mul(w.dd, d)))
                .wrapping_add(mul(w.dc, c))
                .wrapping_add(mul(w.db, b))
                .wrapping_add(mul(w.da, a));
        }
        out
    }
}

/// The weights of a lane's sums in the sums of the whole.
///
/// In lane `l` of `n` lanes, the word at distance `k` from the lane's end has distance `t = n·k - l` from the end of
/// the whole. Its weight in `b`, `c`, `d` is `t`, `t(t+1)/2`, `t(t+1)(t+2)/6`. These are expressed here in terms of the
/// same polynomials of `k`.
struct LaneWeights {
    bb: i64,
    ba: i64,
    cc: i64,
    cb: i64,
    ca: i64,
    dd: i64,
    dc: i64,
    db: i64,
    da: i64,
}

impl LaneWeights {
    const fn of(n: i64, l: i64) -> Self {
        let n2 = n * n;
        let n3 = n2 * n;
        Self {
            bb: n,
            ba: -l,
            cc: n2,
            cb: (n - n2 - 2 * n * l) / 2,
            ca: l * (l - 1) / 2,
            dd: n3,
            dc: n2 * (1 - l) - n3,
            db: (n3 - 3 * n2 * (1 - l) + 3 * n * l * l - 6 * n * l + 2 * n) / 6,
            da: -(l * (l - 1) * (l - 2)) / 6,
        }
    }
}
