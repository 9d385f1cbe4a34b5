//! Sums of the blocks that this side has (docs/format/rsync.md, "The transfer").

use std::io::{self, Write};

use crate::checksum::{Rolling, Seeded};
use crate::wire::WriteWire;

/// Shortest block, unless the client says otherwise, and longest one.
const BLOCK_MIN: u64 = 700;
const BLOCK_MAX: u64 = 1 << 17;
/// Bits that a digest has beyond what is needed, shortest and longest one, in bytes.
const BIAS: u32 = 10;
const DIGEST_MIN: u32 = 2;
const DIGEST_MAX: u32 = 16;
/// Blocks that a file is told as at most; what is larger is sent whole.
const COUNT_MAX: u64 = 1 << 24;

/// Into what blocks a file is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blocks {
    pub count: u32,
    pub len: u32,
    pub digest_len: u32,
    /// Bytes of the last one, if it is shorter.
    pub remainder: u32,
}

impl Blocks {
    /// A file of `size` bytes; `chosen` is the length that the client wants. None of an empty one, or one too large.
    pub fn of(size: u64, chosen: Option<u32>, digest_max: usize) -> Self {
        let chosen = chosen.map(u64::from).filter(|len| *len > 0);
        // About the root of the size, in multiples of 8.
        let len = chosen
            .unwrap_or(size.isqrt() / 8 * 8)
            .clamp(if chosen.is_some() { 1 } else { BLOCK_MIN }, BLOCK_MAX);
        let count = size.div_ceil(len);
        if size == 0 || count > COUNT_MAX {
            return Self::default();
        }
        let bits = (BIAS + 2 * size.ilog2()).saturating_sub(len.ilog2());
        let digest_len =
            (bits + 1).saturating_sub(32).div_ceil(8).clamp(DIGEST_MIN, DIGEST_MAX).min(digest_max as u32);
        Self { count: count as u32, len: len as u32, digest_len, remainder: (size % len) as u32 }
    }

    /// Where a block is, and its length.
    pub fn place(self, index: u32) -> Option<(u64, usize)> {
        let is_last = index + 1 == self.count && self.remainder > 0;
        let len = if is_last { self.remainder } else { self.len };
        (index < self.count).then(|| (u64::from(index) * u64::from(self.len), len as usize))
    }

    /// Writes the head.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn write_head(self, to: &mut impl Write) -> io::Result<()> {
        for value in [self.count, self.len, self.digest_len, self.remainder] {
            to.write_i32(value.cast_signed())?;
        }
        Ok(())
    }

    /// Writes the sums of a block.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn write_sums(self, data: &[u8], seeded: Seeded, to: &mut impl Write) -> io::Result<()> {
        to.write_i32(Rolling::new(data).value().cast_signed())?;
        to.write_all(&seeded.block(data)[..self.digest_len as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_about_the_root_of_the_file() {
        assert_eq!(Blocks::of(0, None, 16), Blocks::default());
        assert_eq!(Blocks::of(1, None, 16), Blocks { count: 1, len: 700, digest_len: 2, remainder: 1 });
        assert_eq!(Blocks::of(1400, None, 16), Blocks { count: 2, len: 700, digest_len: 2, remainder: 0 });
        let large = Blocks::of(100 << 20, None, 16);
        assert_eq!((large.len, large.count), (10_240, 10_240));
        assert_eq!(Blocks::of(1 << 40, None, 16).len, 1 << 17);
        assert_eq!(Blocks::of(1 << 42, None, 16), Blocks::default());
        assert_eq!(
            Blocks::of(5000, Some(1000), 1),
            Blocks { count: 5, len: 1000, digest_len: 1, remainder: 0 }
        );
        let blocks = Blocks::of(1500, None, 16);
        assert_eq!(
            (blocks.place(0), blocks.place(2), blocks.place(3)),
            (Some((0, 700)), Some((1400, 100)), None)
        );
    }
}
