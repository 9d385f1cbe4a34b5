//! ZFS's framing of zstd (`module/zstd/zfs_zstd.c`, `include/sys/zstd/zstd.h`).
//!
//! A block consists of the frame's length, a word with the library's version and ZFS's number for the level, and the
//! frame. Both words are big-endian with 32 bits. The frame has no magic number, content size or checksum.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::CompressError;

const NAME: &str = "zstd";
const HEADER_LEN: usize = 8;

/// ZFS's number for the level of `compression=zstd`.
pub const ZSTD_LEVEL_DEFAULT: u8 = 3;
/// `ZIO_ZSTD_LEVEL_FAST_1`.
const FAST_1: u8 = 103;
/// The fast levels from [`FAST_1`] on. zstd's own numbers are their negatives.
const FAST: [i32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

/// zstd's own level for ZFS's number (`zio_zstd_levels`), if it exists. 0 and 255 are the default.
#[must_use]
pub fn zstd_level(cookie: u8) -> Option<i32> {
    match cookie {
        0 | 255 => Some(i32::from(ZSTD_LEVEL_DEFAULT)),
        1..=19 => Some(i32::from(cookie)),
        _ => FAST.get(usize::from(cookie.checked_sub(FAST_1)?)).map(|n| -n),
    }
}

/// ZFS's number for zstd's own level, if ZFS has that level (`zstd-7` is 7, `zstd-fast-20` is -20).
#[must_use]
pub fn zstd_cookie(level: i32) -> Option<u8> {
    match level {
        1..=19 => u8::try_from(level).ok(),
        _ => {
            let fast = FAST.iter().position(|n| level.checked_neg() == Some(*n))?;
            u8::try_from(fast).ok()?.checked_add(FAST_1)
        }
    }
}

/// The header before a zstd frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZstdHeader {
    /// Length of the frame in bytes.
    pub frame_len: u32,
    /// zstd's version, such as 10405.
    pub version: u32,
    /// ZFS's number for the level.
    pub level: u8,
}

impl ZstdHeader {
    /// Reads a header.
    ///
    /// Big-endian machines wrote the version and level in the opposite order. Versions are below 65536, so a zero byte
    /// distinguishes the two orders (`zfs_get_hdrmeta`).
    ///
    /// # Errors
    /// `src` has fewer than 8 bytes.
    pub fn parse(src: &[u8]) -> Result<Self, CompressError> {
        let available = src.len() as u64;
        let short = CompressError::Framing { name: NAME, framed: HEADER_LEN as u64, available };
        let (len, rest) = src.split_first_chunk::<4>().ok_or(short.clone())?;
        let meta = rest.first_chunk::<4>().ok_or(short)?;
        let (level, version) = match *meta {
            [level, 0, mid, low] => (level, [0, 0, mid, low]),
            [0, mid, low, level] => (level, [0, 0, mid, low]),
            [level, high, mid, low] => (level, [0, high, mid, low]),
        };
        Ok(Self { frame_len: u32::from_be_bytes(*len), version: u32::from_be_bytes(version), level })
    }
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static COMPRESSOR: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

fn decompressor() -> Option<DCtx<'static>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
    Some(context)
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), CompressError> {
    let header = ZstdHeader::parse(src)?;
    let available = src.len() as u64;
    let frame = usize::try_from(header.frame_len)
        .ok()
        .and_then(|len| src.get(HEADER_LEN..)?.get(..len))
        .ok_or(CompressError::Framing { name: NAME, framed: u64::from(header.frame_len) + 8, available })?;
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let damaged = CompressError::Damaged { name: NAME };
        if slot.is_none() {
            *slot = decompressor();
        }
        let context = slot.as_mut().ok_or(damaged.clone())?;
        let expected = dst.len() as u64;
        match context.decompress(dst, frame) {
            Ok(n) if n as u64 == expected => Ok(()),
            Ok(n) => Err(CompressError::Length { name: NAME, expected, found: n as u64 }),
            Err(_) => {
                // After a failed frame the decompressor is in an undefined state. The next block gets a new one.
                *slot = None;
                Err(damaged)
            }
        }
    })
}

pub(super) fn compress(cookie: u8, src: &[u8], dst: &mut Vec<u8>, max: usize) -> Option<usize> {
    let level = zstd_level(cookie)?;
    let cookie = zstd_cookie(level)?;
    let room = max.checked_sub(HEADER_LEN)?;
    COMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = CCtx::try_create();
        }
        let context = slot.as_mut()?;
        context.reset(ResetDirective::SessionAndParameters).ok()?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
        ] {
            context.set_parameter(parameter).ok()?;
        }
        dst.resize(HEADER_LEN + room, 0);
        let n = context.compress2(&mut dst[HEADER_LEN..], src).ok()?;
        let version = zstd_safe::version_number() & 0x00ff_ffff;
        dst[..4].copy_from_slice(&u32::try_from(n).ok()?.to_be_bytes());
        dst[4..HEADER_LEN].copy_from_slice(&(u32::from(cookie) << 24 | version).to_be_bytes());
        dst.truncate(HEADER_LEN + n);
        Some(dst.len())
    })
}
