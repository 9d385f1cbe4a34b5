//! The block checksums of this side's files (docs/format/rsync.md, "The transfer").

use std::io::{self, Write};

use crate::checksum::{Rolling, Seeded};
use crate::wire::WriteWire;

/// The shortest block, unless the client chooses a length, and the longest one, in bytes.
const BLOCK_MIN: u64 = 700;
const BLOCK_MAX: u64 = 1 << 17;
/// Bits of a digest beyond the needed ones, and the shortest and longest digest in bytes.
const BIAS: u32 = 10;
const DIGEST_MIN: u32 = 2;
const DIGEST_MAX: u32 = 16;
/// The most blocks of a file. A larger file is sent as a whole.
const COUNT_MAX: u64 = 1 << 24;

/// The division of a file into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blocks {
    pub count: u32,
    pub len: u32,
    pub digest_len: u32,
    /// Length of the last block in bytes, if it is shorter. Otherwise 0.
    pub remainder: u32,
}

impl Blocks {
    /// The division of a file of `size` bytes. `chosen` is the block length that the client wants. An empty or too
    /// large file has no blocks.
    pub fn of(size: u64, chosen: Option<u32>, digest_max: usize) -> Self {
        let chosen = chosen.map(u64::from).filter(|len| *len > 0);
        // About the square root of the size, as a multiple of 8.
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

    /// The offset and length of a block.
    pub fn place(self, index: u32) -> Option<(u64, usize)> {
        let is_last = index + 1 == self.count && self.remainder > 0;
        let len = if is_last { self.remainder } else { self.len };
        (index < self.count).then(|| (u64::from(index) * u64::from(self.len), len as usize))
    }

    /// Writes the header.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn write_head(self, to: &mut impl Write) -> io::Result<()> {
        for value in [self.count, self.len, self.digest_len, self.remainder] {
            to.write_i32(value.cast_signed())?;
        }
        Ok(())
    }

    /// Writes the checksums of a block.
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
