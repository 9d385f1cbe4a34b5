//! Block contents: cheap to make, different in every block, the same in every run.

use clap::ValueEnum;
use snowmelt_stream::compress::{Compression, compress, pad_to_sector};

/// Length of the pool from which blocks are cut, in bytes. Larger than CPU caches, which would make readers look too
/// fast.
const POOL: usize = 64 << 20;

/// The content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Does not compress.
    Random,
    /// Words: LZ4 halves the size.
    Text,
}

/// Makes blocks.
pub struct Source {
    pool: Vec<u8>,
    compressed: bool,
    squeezed: Vec<u8>,
    block: Vec<u8>,
}

impl Source {
    /// A source of blocks. With `compressed`, blocks are compressed with LZ4 if that saves space.
    pub fn new(kind: Kind, compressed: bool) -> Self {
        let pool = match kind {
            Kind::Random => random(POOL),
            Kind::Text => text(POOL),
        };
        Self { pool, compressed, squeezed: Vec::new(), block: Vec::new() }
    }

    /// Block `number` in `version`, and its compression (0: none).
    pub fn block(&mut self, number: u64, version: u64, len: usize) -> (&[u8], u8) {
        let mixed = mix(number ^ version.rotate_left(40));
        let at = (mixed as usize % (self.pool.len() - len)) & !7;
        self.block.clear();
        self.block.extend_from_slice(&self.pool[at..at + len]);
        // so that no two blocks are the same, wherever they were cut
        let mark = mixed.to_le_bytes();
        let marked = len.min(mark.len());
        self.block[..marked].copy_from_slice(&mark[..marked]);
        if self.compressed && compress(Compression::Lz4, 0, &self.block, &mut self.squeezed).is_some() {
            pad_to_sector(&mut self.squeezed);
            if self.squeezed.len() < len {
                return (&self.squeezed, Compression::Lz4.id());
            }
        }
        (&self.block, 0)
    }
}

/// One step of splitmix64.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn random(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| mix(i).to_le_bytes()).collect()
}

fn text(len: usize) -> Vec<u8> {
    const LETTERS: &[u8] = b"etaoinshrdlucmfwyp";
    let words: Vec<Vec<u8>> = (0..400)
        .map(|w| {
            (0..2 + mix(w) % 8).map(|i| LETTERS[(mix(w << 8 | i) % LETTERS.len() as u64) as usize]).collect()
        })
        .collect();
    let mut out = Vec::with_capacity(len + 16);
    let mut n = 0;
    while out.len() < len {
        out.extend_from_slice(&words[(mix(n << 20) % 400) as usize]);
        out.push(if n % 12 == 11 { b'\n' } else { b' ' });
        n += 1;
    }
    out.truncate(len);
    out
}
