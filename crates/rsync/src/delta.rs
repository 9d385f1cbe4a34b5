//! The sender's delta search: finds the receiver's blocks in a file.

use std::io::{self, Read};

use crate::budget::{Budget, Share};
use crate::checksum::{DIGEST_MAX, FileSum, Rolling, Seeded};
use crate::error::{ExitCode, Result, RsyncError};
use crate::token::LITERAL_MAX;
use crate::wire::{ReadWire, WriteWire};

/// Length of the longest block. Before version 30 rsync's block length was the square root of the file size. The older
/// limit is the root of 256 TiB.
const BLOCK_MAX: usize = 1 << 17;
const OLD_BLOCK_MAX: usize = 1 << 24;
/// The most bytes of digests of one request: those of a file of 2 TiB.
const SUMS_MAX: usize = 512 << 20;
/// The bytes of block checksums that all connections may store together.
static ALL_SUMS: Budget = Budget::new(1 << 30);
/// The number of checksums that are read between two checks of that budget.
const SUMS_AT_ONCE: usize = 1024;
/// Bytes in memory for the rolling checksum of a block, and for its place in the hash table.
const ROLLING_LEN: usize = 12;
/// The number of bytes of a file that are read at once.
const CHUNK: usize = 256 << 10;
/// The most blocks with the same rolling checksum that are compared. A hostile receiver may send many.
const CHAIN_MAX: usize = 64;
/// Stands for no block.
const NONE: u32 = u32::MAX;

/// The checksums of the blocks of the receiver's file.
#[derive(Debug, Default)]
pub struct Sums {
    /// The number of blocks.
    pub count: usize,
    /// Length of each block but the last, in bytes.
    pub block_len: usize,
    /// Length of each digest, in bytes.
    pub digest_len: usize,
    /// Length of the last block in bytes, if it is shorter. Otherwise 0.
    pub remainder: usize,
    rolling: Vec<u32>,
    digests: Vec<u8>,
    share: Option<Share>,
}

impl Sums {
    /// Reads the header and the checksums. A request that only appends to the file has no checksums (`with_sums` is
    /// false).
    ///
    /// # Errors
    /// When the numbers are impossible, or the connection fails.
    pub fn read(from: &mut impl Read, protocol: u8, with_sums: bool) -> Result<Self> {
        let mut number = |what: &str, most: usize| -> Result<usize> {
            let value = from.read_i32()?;
            usize::try_from(value)
                .ok()
                .filter(|value| *value <= most)
                .ok_or_else(|| RsyncError::protocol(format!("a {what} of {value}")))
        };
        let count = number("number of blocks", i32::MAX as usize)?;
        let block_len = number("block length", if protocol < 30 { OLD_BLOCK_MAX } else { BLOCK_MAX })?;
        let digest_len = number("digest length", DIGEST_MAX)?;
        let remainder = number("last block's length", block_len)?;
        let mut sums = Self { count, block_len, digest_len, remainder, ..Self::default() };
        if count == 0 {
            return Ok(sums);
        }
        if block_len == 0 || with_sums && count.saturating_mul(digest_len + ROLLING_LEN) > SUMS_MAX {
            return Err(RsyncError::protocol(format!("{count} blocks of {block_len} bytes")));
        }
        if with_sums {
            // Memory grows as the checksums arrive, so that a peer cannot reserve more than it sends.
            let mut share = Share::of(&ALL_SUMS);
            for number in 0..count {
                let next = count.min(number + SUMS_AT_ONCE);
                if number.is_multiple_of(SUMS_AT_ONCE) && !share.grow(next * (digest_len + ROLLING_LEN)) {
                    let text = "no memory left for sums of blocks, which others have taken: try again later";
                    return Err(RsyncError::refused(ExitCode::Memory, text));
                }
                sums.rolling.push(from.read_i32()?.cast_unsigned());
                let at = sums.digests.len();
                sums.digests.resize(at + digest_len, 0);
                from.read_exact(&mut sums.digests[at..])?;
            }
            sums.share = Some(share);
        }
        Ok(sums)
    }

    /// Writes the header back, which begins the answer.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn write_head(&self, to: &mut impl io::Write) -> io::Result<()> {
        for value in [self.count, self.block_len, self.digest_len, self.remainder] {
            to.write_i32(value as i32)?;
        }
        Ok(())
    }

    /// Length of the receiver's file, in bytes.
    pub fn basis_len(&self) -> u64 {
        let short = if self.remainder == 0 { 0 } else { self.block_len - self.remainder };
        (self.count as u64 * self.block_len as u64).saturating_sub(short as u64)
    }

    fn len_of(&self, index: usize) -> usize {
        if index + 1 == self.count && self.remainder > 0 { self.remainder } else { self.block_len }
    }
}

/// A hash table of the blocks by their rolling checksum.
struct Table {
    heads: Vec<u32>,
    next: Vec<u32>,
    shift: u32,
}

impl Table {
    fn new(sums: &Sums) -> Self {
        let bits = (usize::BITS - sums.rolling.len().leading_zeros()).clamp(10, 24) + 1;
        let mut table =
            Self { heads: vec![NONE; 1 << bits], next: vec![NONE; sums.rolling.len()], shift: 32 - bits };
        // Starts with the last block, so that each chain begins with the first one.
        for (index, rolling) in sums.rolling.iter().enumerate().rev() {
            let slot = table.slot(*rolling);
            table.next[index] = std::mem::replace(&mut table.heads[slot], index as u32);
        }
        table
    }

    fn slot(&self, rolling: u32) -> usize {
        (rolling.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }
}

/// A part of a file.
pub enum Piece<'a> {
    /// Data that the receiver does not have.
    Literal(&'a [u8]),
    /// A block that the receiver has: its number and content.
    Block(u32, &'a [u8]),
}

/// A file that is read from start to end, with the window that is compared.
struct Window<'r> {
    read: &'r mut dyn Read,
    /// The bytes before `end` are from the file. The rest is free space.
    buffer: &'r mut Vec<u8>,
    /// The start of the bytes that were not reported yet, and of the window. Both are offsets in the buffer.
    told: usize,
    at: usize,
    end: usize,
    is_end: bool,
}

impl Window<'_> {
    /// Reads on until the window can have `len` bytes, or to the end of the file.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        if self.is_end || self.end - self.at >= len {
            return Ok(());
        }
        self.buffer.copy_within(self.told..self.end, 0);
        self.at -= self.told;
        self.end -= self.told;
        self.told = 0;
        while !self.is_end && self.end - self.at < len {
            let past = self.end + CHUNK;
            if self.buffer.len() < past {
                self.buffer.resize(past, 0);
            }
            let read = self.read.read(&mut self.buffer[self.end..past])?;
            self.end += read;
            self.is_end = read == 0;
        }
        Ok(())
    }

    fn tell_literal(&mut self, sum: &mut FileSum, each: &mut EachPiece<'_>) -> Result<()> {
        let literal = &self.buffer[self.told..self.at];
        if !literal.is_empty() {
            sum.update(literal);
            each(Piece::Literal(literal))?;
        }
        self.told = self.at;
        Ok(())
    }
}

/// Called with the parts of a file, in order.
pub type EachPiece<'a> = dyn FnMut(Piece<'_>) -> Result<()> + 'a;

/// How blocks are compared.
#[derive(Debug, Clone, Copy)]
pub struct Matching {
    /// The digest of blocks.
    pub seeded: Seeded,
    /// The receiver writes into the same file that has the blocks. Blocks before the position of writing are
    /// overwritten.
    pub in_place: bool,
}

/// Reads a file to its end, calls `each` with its parts, and adds its content to `sum`. `buffer` can be reused for the
/// next file, with any content.
///
/// # Errors
/// When the file cannot be read, and the errors of `each`.
pub fn find(
    (read, buffer): (&mut dyn Read, &mut Vec<u8>),
    sums: &Sums,
    matching: Matching,
    sum: &mut FileSum,
    each: &mut EachPiece<'_>,
) -> Result<()> {
    let mut window = Window { read, buffer, told: 0, at: 0, end: 0, is_end: false };
    if sums.rolling.is_empty() {
        return whole(&mut window, sum, each);
    }
    let table = Table::new(sums);
    let mut done = 0_u64;
    let mut wanted = 0_u32;
    let mut rolling = None;
    loop {
        window.fill(sums.block_len + 1)?;
        let rest = &window.buffer[window.at..window.end];
        let len = rest.len().min(sums.block_len);
        // Only the last block can be shorter.
        if len == 0 || len < sums.len_of(sums.count - 1).min(sums.block_len) {
            break;
        }
        let data = &rest[..len];
        let now = *rolling.get_or_insert_with(|| Rolling::new(data));
        let position = done + (window.at - window.told) as u64;
        match block_like(sums, &table, matching, now, data, position, wanted) {
            Some(index) => {
                done = position + len as u64;
                window.tell_literal(sum, each)?;
                let data = &window.buffer[window.at..window.at + len];
                sum.update(data);
                each(Piece::Block(index, data))?;
                window.at += len;
                window.told = window.at;
                wanted = index + 1;
                rolling = None;
            }
            None => {
                let next = now.pop(rest[0], len);
                rolling = Some(rest.get(len).map_or(next, |byte| next.push(*byte)));
                window.at += 1;
                if window.at - window.told >= LITERAL_MAX {
                    done += (window.at - window.told) as u64;
                    window.tell_literal(sum, each)?;
                }
            }
        }
    }
    window.at = window.end;
    window.tell_literal(sum, each)
}

/// The receiver has no blocks, so all data is literal.
fn whole(window: &mut Window<'_>, sum: &mut FileSum, each: &mut EachPiece<'_>) -> Result<()> {
    loop {
        window.fill(1)?;
        if window.end == window.at {
            return Ok(());
        }
        window.at = window.end;
        window.tell_literal(sum, each)?;
    }
}

/// The number of a block that is equal to `data`. The successor of the last match is preferred.
fn block_like(
    sums: &Sums,
    table: &Table,
    matching: Matching,
    rolling: Rolling,
    data: &[u8],
    position: u64,
    wanted: u32,
) -> Option<u32> {
    let value = rolling.value();
    let mut digest = None;
    let mut is_like = |index: u32| {
        let at = index as usize;
        if sums.rolling.get(at) != Some(&value) || sums.len_of(at) != data.len() {
            return false;
        }
        if matching.in_place && at as u64 * (sums.block_len as u64) < position {
            return false;
        }
        let len = sums.digest_len.min(matching.seeded.algorithm.len());
        let digest = digest.get_or_insert_with(|| matching.seeded.block(data));
        sums.digests[at * sums.digest_len..][..len] == digest[..len]
    };
    if is_like(wanted) {
        return Some(wanted);
    }
    let mut index = table.heads[table.slot(value)];
    for _ in 0..CHAIN_MAX {
        if index == NONE {
            break;
        }
        if is_like(index) {
            return Some(index);
        }
        index = table.next[index as usize];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Algorithm;

    const SEEDED: Seeded =
        Seeded { algorithm: Algorithm::Xxh128, seed: 99, seed_first: true, files_too: false };

    fn sums_of(basis: &[u8], block_len: usize) -> Sums {
        let mut wire = Vec::new();
        let count = basis.len().div_ceil(block_len);
        for value in [count, block_len, 16, basis.len() % block_len] {
            wire.write_i32(value as i32).unwrap();
        }
        for block in basis.chunks(block_len) {
            wire.write_i32(Rolling::new(block).value().cast_signed()).unwrap();
            wire.extend(&SEEDED.block(block)[..16]);
        }
        Sums::read(&mut wire.as_slice(), 32, true).unwrap()
    }

    /// The file that the receiver would build, and the number of literal bytes.
    fn rebuilt(basis: &[u8], new: &[u8], block_len: usize, in_place: bool) -> (Vec<u8>, usize) {
        let sums = sums_of(basis, block_len);
        assert_eq!(sums.basis_len(), basis.len() as u64);
        let (mut out, mut literal) = (Vec::new(), 0);
        let mut sum = FileSum::new(Algorithm::Md5);
        let matching = Matching { seeded: SEEDED, in_place };
        // The content that an earlier file left in the buffer has no effect.
        let mut buffer = vec![b'x'; 300_000];
        find((&mut &new[..], &mut buffer), &sums, matching, &mut sum, &mut |piece| {
            match piece {
                Piece::Literal(data) => {
                    literal += data.len();
                    out.extend_from_slice(data);
                }
                Piece::Block(index, data) => {
                    let from = index as usize * block_len;
                    assert!(!in_place || from >= out.len());
                    assert_eq!(&basis[from..from + data.len()], data);
                    out.extend_from_slice(data);
                }
            }
            Ok(())
        })
        .unwrap();
        let mut whole = FileSum::new(Algorithm::Md5);
        whole.update(new);
        assert_eq!(sum.finish(), whole.finish());
        (out, literal)
    }

    #[test]
    fn blocks_are_found_wherever_they_are() {
        let mut state = 1_u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let basis: Vec<u8> = (0..100_050).map(|_| noise()).collect();
        let mut new = basis.clone();
        new.insert(40_000, 7);
        assert_eq!(rebuilt(&basis, &basis, 700, false), (basis.clone(), 0));
        let (out, literal) = rebuilt(&basis, &new, 700, false);
        assert!(out == new && literal <= 701, "{literal}");
        let turned = [&basis[50_000..], &basis[..50_000]].concat();
        let (out, literal) = rebuilt(&basis, &turned, 700, false);
        assert!(out == turned && literal < 1500, "{literal}");
        let (out, literal) = rebuilt(&basis, &turned, 700, true);
        assert!(out == turned && literal >= 49_000, "{literal}");
        for short in [0, 1, 699, 700, 701] {
            let (out, _) = rebuilt(&basis, &basis[..short], 700, false);
            assert_eq!(out, basis[..short]);
        }
    }

    #[test]
    fn impossible_sums_are_refused() {
        for head in [
            [-1, 700, 16, 0],
            [1, 1 << 18, 16, 0],
            [1, 700, 40, 0],
            [1, 700, 16, 701],
            [1, 0, 16, 0],
            [i32::MAX, 700, 16, 0],
        ] {
            let wire: Vec<u8> = head.iter().flat_map(|number: &i32| number.to_le_bytes()).collect();
            assert!(
                matches!(Sums::read(&mut wire.as_slice(), 32, true), Err(RsyncError::Protocol { .. })),
                "{head:?}"
            );
        }
    }
}
