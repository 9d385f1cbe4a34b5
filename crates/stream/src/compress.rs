//! ZFS's compression formats: how a compressed block is framed on disk and in a stream.
//!
//! Compressed blocks are padded with zeros to whole sectors. Each framing therefore marks its own end: LZ4 and zstd
//! begin with their length. zlib streams and the others end by themselves or when the block is full. Algorithms are
//! numbered by `enum zio_compress` (`include/sys/zio_compress.h`).

mod lzjb;
mod zle;
mod zstd;

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

pub use zstd::{ZSTD_LEVEL_DEFAULT, ZstdHeader, zstd_cookie, zstd_level};

/// Compressed blocks are padded to a multiple of this many bytes (`SPA_MINBLOCKSIZE`).
pub const SECTOR: usize = 512;
/// Size of the largest possible block, in bytes (`SPA_MAXBLOCKSIZE`).
const MAX_BLOCK: usize = 16 << 20;

/// Blocks of at least this many bytes are sampled before LZ4 compresses them.
const SAMPLED_MIN: usize = 32 << 10;
/// Number of samples, spread over the whole block.
const SAMPLES: usize = 16;
/// Length of a sample, in bytes.
const SAMPLE_LEN: usize = 256;
/// Step by which the samples' positions within their parts differ, in bytes: a prime, used modulo the free length.
const STRAY: usize = 7919;
const _: () = assert!(SAMPLES * SAMPLE_LEN < SAMPLED_MIN);

/// From this zstd level on (`zstd_cutoff_level`), large blocks are first tried with faster algorithms.
const ZSTD_EARLY_ABORT_LEVEL: i32 = 3;
/// Length from which blocks are tried first (`zstd_abort_size`). If neither LZ4 nor zstd-1 makes the block smaller, the
/// level asked for is not tried.
const ZSTD_EARLY_ABORT_SIZE: usize = 128 << 10;

/// `enum zio_compress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// As a property: the value of the parent. In a WRITE: not compressed.
    Inherit,
    /// As a property: the default algorithm.
    On,
    /// Not compressed.
    Off,
    /// LZJB, the default of old pools.
    Lzjb,
    /// All zeros (never in a stream).
    Empty,
    /// A zlib stream, compressed at level 1 to 9.
    Gzip(u8),
    /// Zero-length encoding: only runs of zeros are compressed.
    Zle,
    /// A 4-byte big-endian length, then an LZ4 block.
    Lz4,
    /// An 8-byte header, then a zstd frame without magic number.
    Zstd,
}

impl Compression {
    /// The algorithm with this number, if it exists.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Inherit,
            1 => Self::On,
            2 => Self::Off,
            3 => Self::Lzjb,
            4 => Self::Empty,
            5..=13 => Self::Gzip(id - 4),
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            _ => return None,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Inherit => 0,
            Self::On => 1,
            Self::Off => 2,
            Self::Lzjb => 3,
            Self::Empty => 4,
            Self::Gzip(level) => {
                if level < 1 {
                    5
                } else if level > 9 {
                    13
                } else {
                    4 + level
                }
            }
            Self::Zle => 14,
            Self::Lz4 => 15,
            Self::Zstd => 16,
        }
    }

    /// The algorithm of a property value: `on` is LZ4 (`ZIO_COMPRESS_LZ4_ON_VALUE`). Values that do not compress are
    /// `off`.
    #[must_use]
    pub const fn algorithm(self) -> Self {
        match self {
            Self::On => Self::Lz4,
            Self::Inherit | Self::Empty => Self::Off,
            other => other,
        }
    }

    /// Its name as a property value, for example `gzip-6`. The level of zstd is not part of the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "off",
            Self::Lzjb => "lzjb",
            Self::Empty => "empty",
            Self::Gzip(0 | 1) => "gzip-1",
            Self::Gzip(2) => "gzip-2",
            Self::Gzip(3) => "gzip-3",
            Self::Gzip(4) => "gzip-4",
            Self::Gzip(5) => "gzip-5",
            Self::Gzip(6) => "gzip-6",
            Self::Gzip(7) => "gzip-7",
            Self::Gzip(8) => "gzip-8",
            Self::Gzip(_) => "gzip-9",
            Self::Zle => "zle",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Why a payload cannot be decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// There is no such algorithm.
    #[error("unknown compression {id}")]
    UnknownAlgorithm {
        /// The number.
        id: u8,
    },
    /// The number is a property value and not an algorithm.
    #[error("compression {name} is not an algorithm")]
    NotAnAlgorithm {
        /// Its name.
        name: &'static str,
    },
    /// The length in the framing is greater than the length of the data.
    #[error("{name}: the framing says {framed} bytes, of {available}")]
    Framing {
        /// The algorithm.
        name: &'static str,
        /// Length according to the framing.
        framed: u64,
        /// Length of the data.
        available: u64,
    },
    /// A header that the algorithm never writes.
    #[error("{name}: bad header")]
    Header {
        /// The algorithm.
        name: &'static str,
    },
    /// The data is damaged.
    #[error("{name}: damaged data")]
    Damaged {
        /// The algorithm.
        name: &'static str,
    },
    /// The data decompresses to a wrong length.
    #[error("{name}: {found} bytes decompressed where {expected} were expected")]
    Length {
        /// The algorithm.
        name: &'static str,
        /// Expected length.
        expected: u64,
        /// Decompressed length, or a lower bound of it.
        found: u64,
    },
}

thread_local! {
    // Setting up a compressor or decompressor costs more than compressing a small block.
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(true));
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Decompresses `src` to exactly `dst`. Bytes of `src` after the end of the compressed data are ignored.
///
/// `id` is an `enum zio_compress`. Off (2) copies.
///
/// # Errors
/// `src` is not the output of the algorithm for `dst.len()` bytes. The contents of `dst` are then undefined.
pub fn decompress(id: u8, src: &[u8], dst: &mut [u8]) -> Result<(), CompressError> {
    let algorithm = Compression::from_id(id).ok_or(CompressError::UnknownAlgorithm { id })?;
    match algorithm {
        Compression::Off => {
            let found = src.len() as u64;
            let expected = dst.len() as u64;
            let src = src.get(..dst.len()).ok_or(CompressError::Length { name: "off", expected, found })?;
            dst.copy_from_slice(src);
            Ok(())
        }
        Compression::Lzjb => lzjb::decompress(src, dst),
        Compression::Zle => zle::decompress(src, dst),
        Compression::Lz4 => lz4_decompress(src, dst),
        Compression::Gzip(_) => gzip_decompress(src, dst),
        Compression::Zstd => zstd::decompress(src, dst),
        Compression::Inherit | Compression::On | Compression::Empty => {
            Err(CompressError::NotAnAlgorithm { name: algorithm.name() })
        }
    }
}

/// Compresses `src` into `dst` (replacing its contents) and returns the length without padding.
///
/// Only zstd uses `level`. It is numbered as in ZFS (`zio_zstd_levels`, see [`zstd_cookie`]); 0 and 255 mean the
/// default. Returns `None` when compression saves less than an eighth, or when the algorithm does not compress. The
/// contents of `dst` are then undefined. Property values such as on are not algorithms: see [`Compression::algorithm`].
pub fn compress(algorithm: Compression, level: u8, src: &[u8], dst: &mut Vec<u8>) -> Option<usize> {
    dst.clear();
    let max = src.len() - src.len() / 8;
    if src.is_empty() || src.len() > MAX_BLOCK {
        return None;
    }
    match algorithm {
        Compression::Lzjb => lzjb::compress(src, dst, max),
        Compression::Zle => zle::compress(src, dst, max),
        Compression::Lz4 => lz4_compress(src, dst, max),
        Compression::Gzip(level) => gzip_compress(level, src, dst, max),
        Compression::Zstd => zstd_compress(level, src, dst, max),
        Compression::Inherit | Compression::On | Compression::Off | Compression::Empty => None,
    }
}

/// Pads compressed data with zeros to whole sectors, as on disk and in streams.
pub fn pad_to_sector(data: &mut Vec<u8>) {
    data.resize(data.len().next_multiple_of(SECTOR), 0);
}

/// Checks the first bytes of a compressed payload without decompressing it.
///
/// `prefix` is the first 8 bytes of the payload, or all of it if it is shorter. `psize` is the payload's length.
/// `lsize` is the length after decompression.
///
/// # Errors
/// No block of ZFS begins with these bytes.
pub fn check_framing(id: u8, prefix: &[u8], psize: u64, lsize: u64) -> Result<(), CompressError> {
    let algorithm = Compression::from_id(id).ok_or(CompressError::UnknownAlgorithm { id })?;
    let name = algorithm.name();
    match algorithm {
        Compression::Off if psize != lsize => {
            Err(CompressError::Length { name, expected: lsize, found: psize })
        }
        Compression::Off | Compression::Lzjb | Compression::Zle => Ok(()),
        Compression::Lz4 => match prefix.first_chunk() {
            Some(len) => framed(name, u64::from(u32::from_be_bytes(*len)) + 4, psize),
            None => Err(CompressError::Framing { name, framed: 4, available: psize }),
        },
        Compression::Zstd => {
            let header = ZstdHeader::parse(prefix)?;
            framed(name, u64::from(header.frame_len) + 8, psize)
        }
        Compression::Gzip(_) => match prefix {
            // RFC 1950: deflate, a window of at most 32 KiB, no dictionary, and a check over both bytes.
            &[cmf, flg, ..]
                if cmf & 0x8f == 8 && flg & 0x20 == 0 && (u16::from(cmf) << 8 | u16::from(flg)) % 31 == 0 =>
            {
                Ok(())
            }
            _ => Err(CompressError::Header { name }),
        },
        Compression::Inherit | Compression::On | Compression::Empty => {
            Err(CompressError::NotAnAlgorithm { name })
        }
    }
}

fn framed(name: &'static str, framed: u64, available: u64) -> Result<(), CompressError> {
    if framed <= available { Ok(()) } else { Err(CompressError::Framing { name, framed, available }) }
}

/// Splits `src` into a big-endian length and that many bytes.
fn length_prefixed<'a>(name: &'static str, src: &'a [u8]) -> Result<&'a [u8], CompressError> {
    let available = src.len() as u64;
    let (len, rest) = src.split_first_chunk().ok_or(CompressError::Framing { name, framed: 4, available })?;
    let len = u32::from_be_bytes(*len);
    usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or(CompressError::Framing {
        name,
        framed: u64::from(len) + 4,
        available,
    })
}

fn lz4_decompress(src: &[u8], dst: &mut [u8]) -> Result<(), CompressError> {
    let name = "lz4";
    let block = length_prefixed(name, src)?;
    let expected = dst.len() as u64;
    match lz4_flex::block::decompress_into(block, dst) {
        Ok(n) if n == dst.len() => Ok(()),
        Ok(n) => Err(CompressError::Length { name, expected, found: n as u64 }),
        Err(_) => Err(CompressError::Damaged { name }),
    }
}

/// Whether LZ4 gains nothing on a few hundred sampled bytes. Unlike ZFS's encoder, ours does not stop when the output
/// exceeds seven eighths of the input. Without this check it would process and copy incompressible blocks in full.
fn looks_like_noise(src: &[u8]) -> bool {
    if src.len() < SAMPLED_MIN {
        return false;
    }
    let mut sample = [0; SAMPLES * SAMPLE_LEN];
    let stride = src.len() / SAMPLES;
    for (number, from) in src.chunks_exact(stride).take(SAMPLES).enumerate() {
        // The samples are not at equal distances, so that alternating data is not sampled on one side only.
        let at = number * STRAY % (stride - SAMPLE_LEN);
        let into = number * SAMPLE_LEN;
        sample[into..into + SAMPLE_LEN].copy_from_slice(&from[at..at + SAMPLE_LEN]);
    }
    let mut packed = [0; lz4_flex::block::get_maximum_output_size(SAMPLES * SAMPLE_LEN)];
    lz4_flex::block::compress_into(&sample, &mut packed).is_ok_and(|n| n > sample.len())
}

fn lz4_compress(src: &[u8], dst: &mut Vec<u8>, max: usize) -> Option<usize> {
    if looks_like_noise(src) {
        return None;
    }
    SCRATCH.with_borrow_mut(|scratch| {
        // The encoder needs space for the worst case.
        let need = lz4_flex::block::get_maximum_output_size(src.len());
        if scratch.len() < need {
            scratch.resize(need, 0);
        }
        let n = lz4_flex::block::compress_into(src, scratch).ok()?;
        if n + 4 > max {
            return None;
        }
        dst.extend_from_slice(&u32::try_from(n).ok()?.to_be_bytes());
        dst.extend_from_slice(scratch.get(..n)?);
        Some(dst.len())
    })
}

/// Compresses with zstd. Gives up early under the same conditions as `zfs_zstd_compress_buf`.
fn zstd_compress(level: u8, src: &[u8], dst: &mut Vec<u8>, max: usize) -> Option<usize> {
    let is_slow = zstd_level(level).is_some_and(|level| level >= ZSTD_EARLY_ABORT_LEVEL);
    if is_slow && src.len() >= ZSTD_EARLY_ABORT_SIZE && lz4_compress(src, dst, max).is_none() {
        dst.clear();
        zstd::compress(1, src, dst, max)?;
    }
    dst.clear();
    zstd::compress(level, src, dst, max)
}

fn gzip_decompress(src: &[u8], dst: &mut [u8]) -> Result<(), CompressError> {
    let name = "gzip";
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(true);
        let expected = dst.len() as u64;
        let status = inflate.decompress(src, dst, FlushDecompress::Finish);
        match status {
            Ok(Status::StreamEnd) if inflate.total_out() == expected => Ok(()),
            Ok(Status::StreamEnd) => {
                Err(CompressError::Length { name, expected, found: inflate.total_out() })
            }
            Ok(_) if inflate.total_out() == expected => {
                Err(CompressError::Length { name, expected, found: expected.saturating_add(1) })
            }
            Ok(_) | Err(_) => Err(CompressError::Damaged { name }),
        }
    })
}

fn gzip_compress(level: u8, src: &[u8], dst: &mut Vec<u8>, max: usize) -> Option<usize> {
    let level = flate2::Compression::new(u32::from(level.clamp(1, 9)));
    let mut deflate = Compress::new(level, true);
    dst.resize(max, 0);
    match deflate.compress(src, dst, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => {
            dst.truncate(usize::try_from(deflate.total_out()).ok()?);
            Some(dst.len())
        }
        _ => None,
    }
}
