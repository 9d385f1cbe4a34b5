//! Writes the new content of a file: literal data, and blocks that the receiver has (docs/format/rsync.md, "Content").

mod read;

pub use read::{Token, TokenReader};

use std::io::{self, Write};

use flate2::{Compress, Compression, FlushCompress};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use crate::wire::WriteWire;

/// The most bytes of literal data in one piece.
pub const LITERAL_MAX: usize = 32 << 10;
/// The most bytes of compressed data in one piece, whose length has 14 bits.
const DEFLATED_MAX: usize = 0x3fff;

/// The lowest level of any compressor.
pub const LEAST: i32 = i32::MIN;

const END: u8 = 0;
const BLOCK_LONG: u8 = 0x20;
const RUN_LONG: u8 = 0x21;
const DEFLATED: u8 = 0x40;
const BLOCK_RELATIVE: u8 = 0x80;
const RUN_RELATIVE: u8 = 0xc0;
/// The greatest distance of a block in the relative form.
const RELATIVE_MAX: u32 = 63;
/// The end of each flush of deflate, which is not sent.
const SYNC: [u8; 4] = [0, 0, 0xff, 0xff];

/// The compression of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// zstd, with one frame for the whole connection.
    Zstd,
    /// LZ4, with each piece on its own.
    Lz4,
    /// Deflate of the literal data.
    Zlibx,
    /// Deflate of the literal data and of the matching blocks.
    Zlib,
    /// No compression.
    None,
}

impl Compressor {
    /// All of them, in the order in which they are offered.
    pub const ALL: [Self; 5] = [Self::Zstd, Self::Lz4, Self::Zlibx, Self::Zlib, Self::None];

    /// The name on the wire and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Zlibx => "zlibx",
            Self::Zlib => "zlib",
            Self::None => "none",
        }
    }

    /// The compressor with this name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name().as_bytes() == name)
    }
}

enum Codec {
    Deflate { compress: Compress, with_blocks: bool },
    Zstd(Box<CCtx<'static>>),
    Lz4,
}

/// Writes the contents of files.
pub struct TokenWriter {
    /// `None`: nothing is compressed, and the simple form is used.
    codec: Option<Codec>,
    /// Compressed data that was not sent yet.
    pending: Vec<u8>,
    /// Literal data was compressed since the last flush.
    unflushed: bool,
    /// The first and last of consecutive matching blocks that were not sent yet.
    run: Option<(u32, u32)>,
    /// The last block of the previous run.
    last: u32,
}

fn zstd_error(code: usize) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}

impl TokenWriter {
    /// A writer for one connection. `level` is in the compressor's own scale.
    ///
    /// # Errors
    /// When there is no memory for the compressor.
    pub fn new(compressor: Compressor, level: Option<i32>) -> io::Result<Self> {
        let deflate = |with_blocks| {
            let level = Compression::new(level.unwrap_or(6).clamp(0, 9).cast_unsigned());
            Codec::Deflate { compress: Compress::new(level, false), with_blocks }
        };
        let codec = match compressor {
            Compressor::None => None,
            Compressor::Zlib => Some(deflate(true)),
            Compressor::Zlibx => Some(deflate(false)),
            Compressor::Lz4 => Some(Codec::Lz4),
            Compressor::Zstd => {
                let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
                let level = level.unwrap_or(3).clamp(zstd_safe::min_c_level(), zstd_safe::max_c_level());
                context.set_parameter(CParameter::CompressionLevel(level)).map_err(zstd_error)?;
                Some(Codec::Zstd(Box::new(context)))
            }
        };
        Ok(Self { codec, pending: Vec::new(), unflushed: false, run: None, last: 0 })
    }

    /// Whether literal data is sent uncompressed, in pieces with their lengths.
    pub fn is_simple(&self) -> bool {
        self.codec.is_none()
    }

    /// Begins a file.
    pub fn begin(&mut self) {
        (self.run, self.last, self.unflushed) = (None, 0, false);
        self.pending.clear();
        if let Some(Codec::Deflate { compress, .. }) = &mut self.codec {
            compress.reset();
        }
    }

    /// Sends data that the receiver does not have.
    ///
    /// # Errors
    /// When the connection or the compressor fails.
    pub fn literal(&mut self, data: &[u8], out: &mut impl Write) -> io::Result<()> {
        for piece in data.chunks(LITERAL_MAX) {
            match self.codec {
                None => {
                    out.write_i32(piece.len() as i32)?;
                    out.write_all(piece)?;
                }
                Some(_) => {
                    self.send_run(out)?;
                    self.compress(piece, out)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a reference to a block of the receiver. `data` is its content.
    ///
    /// # Errors
    /// When the connection or the compressor fails.
    pub fn block(&mut self, index: u32, data: &[u8], out: &mut impl Write) -> io::Result<()> {
        if self.codec.is_none() {
            return out.write_i32(-1 - index.cast_signed());
        }
        self.flush(out)?;
        match &mut self.run {
            Some((first, last)) if *last + 1 == index && index - *first <= 0xffff => *last = index,
            _ => {
                self.send_run(out)?;
                self.run = Some((index, index));
            }
        }
        if let Some(Codec::Deflate { compress, with_blocks: true }) = &mut self.codec {
            let mut ignored = Vec::new();
            deflate(compress, data, FlushCompress::Sync, &mut ignored)?;
        }
        Ok(())
    }

    /// Ends a file.
    ///
    /// # Errors
    /// When the connection or the compressor fails.
    pub fn end(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.codec.is_none() {
            return out.write_i32(0);
        }
        self.flush(out)?;
        self.send_run(out)?;
        out.write_u8(END)
    }

    fn send_run(&mut self, out: &mut impl Write) -> io::Result<()> {
        let Some((first, last)) = self.run.take() else { return Ok(()) };
        let more = (last - first) as u16;
        match first.checked_sub(self.last).filter(|by| *by <= RELATIVE_MAX) {
            Some(by) => out.write_u8(by as u8 | if more == 0 { BLOCK_RELATIVE } else { RUN_RELATIVE })?,
            None => {
                out.write_u8(if more == 0 { BLOCK_LONG } else { RUN_LONG })?;
                out.write_i32(first.cast_signed())?;
            }
        }
        if more > 0 {
            out.write_u16(more)?;
        }
        self.last = last;
        Ok(())
    }

    fn compress(&mut self, data: &[u8], out: &mut impl Write) -> io::Result<()> {
        self.unflushed = true;
        match &mut self.codec {
            Some(Codec::Deflate { compress, .. }) => {
                deflate(compress, data, FlushCompress::None, &mut self.pending)?;
                // The last bytes stay, because they may be the end of a flush, which is not sent.
                return self.send_pending(SYNC.len(), out);
            }
            Some(Codec::Zstd(context)) => {
                zstd(context, data, ZSTD_EndDirective::ZSTD_e_continue, &mut self.pending)?;
            }
            Some(Codec::Lz4) => return lz4(data, out),
            None => {}
        }
        self.send_pending(0, out)
    }

    /// Sends all compressed data.
    fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        if !std::mem::take(&mut self.unflushed) {
            return Ok(());
        }
        match &mut self.codec {
            Some(Codec::Deflate { compress, .. }) => {
                deflate(compress, &[], FlushCompress::Sync, &mut self.pending)?;
                if self.pending.ends_with(&SYNC) {
                    self.pending.truncate(self.pending.len() - SYNC.len());
                }
            }
            Some(Codec::Zstd(context)) => {
                zstd(context, &[], ZSTD_EndDirective::ZSTD_e_flush, &mut self.pending)?;
            }
            Some(Codec::Lz4) | None => {}
        }
        self.send_pending(0, out)
    }

    /// Sends the pending data except the last `keep` bytes. If some are kept, only full pieces are sent.
    fn send_pending(&mut self, keep: usize, out: &mut impl Write) -> io::Result<()> {
        let mut sent = 0;
        loop {
            let left = self.pending.len() - sent;
            let len = match keep {
                0 => left.min(DEFLATED_MAX),
                _ if left >= keep + DEFLATED_MAX => DEFLATED_MAX,
                _ => 0,
            };
            if len == 0 {
                self.pending.drain(..sent);
                return Ok(());
            }
            send_piece(&self.pending[sent..sent + len], out)?;
            sent += len;
        }
    }
}

fn send_piece(piece: &[u8], out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[DEFLATED | (piece.len() >> 8) as u8, piece.len() as u8])?;
    out.write_all(piece)
}

/// Compresses all of `data` and appends it to `to`.
fn deflate(
    compress: &mut Compress,
    mut data: &[u8],
    flush: FlushCompress,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    loop {
        to.reserve(LITERAL_MAX / 2);
        let before = compress.total_in();
        compress.compress_vec(data, to, flush).map_err(io::Error::other)?;
        data = &data[(compress.total_in() - before) as usize..];
        if data.is_empty() && to.len() < to.capacity() {
            return Ok(());
        }
    }
}

fn zstd(
    context: &mut CCtx<'_>,
    data: &[u8],
    directive: ZSTD_EndDirective,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    let is_flush = directive as u32 == ZSTD_EndDirective::ZSTD_e_flush as u32;
    let mut input = InBuffer::around(data);
    loop {
        to.reserve(LITERAL_MAX);
        let at = to.len();
        let mut output = OutBuffer::around_pos(to, at);
        let left = context.compress_stream2(&mut output, &mut input, directive).map_err(zstd_error)?;
        if input.pos() == data.len() && (!is_flush || left == 0) {
            return Ok(());
        }
    }
}

/// LZ4 has no stream here. Data that does not fit into a piece is divided in two.
fn lz4(data: &[u8], out: &mut impl Write) -> io::Result<()> {
    let packed = lz4_flex::block::compress(data);
    if packed.len() <= DEFLATED_MAX {
        return send_piece(&packed, out);
    }
    let (first, second) = data.split_at(data.len() / 2);
    lz4(first, out)?;
    lz4(second, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(compressor: Compressor, blocks: &[u32]) -> Vec<u8> {
        let mut writer = TokenWriter::new(compressor, None).unwrap();
        writer.begin();
        let mut out = Vec::new();
        blocks.iter().for_each(|index| writer.block(*index, b"data", &mut out).unwrap());
        writer.end(&mut out).unwrap();
        out
    }

    #[test]
    fn runs_of_blocks_are_told_at_once() {
        assert_eq!(tokens(Compressor::Zstd, &[0, 1, 2, 3]), [0xc0, 3, 0, 0]);
        assert_eq!(
            tokens(Compressor::Zlibx, &[5, 6, 9, 100, 101]),
            [0xc5, 1, 0, 0x83, 0x21, 100, 0, 0, 0, 1, 0, 0]
        );
        assert_eq!(tokens(Compressor::Lz4, &[7, 3]), [0x87, 0x20, 3, 0, 0, 0, 0]);
        assert_eq!(tokens(Compressor::None, &[0, 7]), [255, 255, 255, 255, 248, 255, 255, 255, 0, 0, 0, 0]);
    }

    /// The pieces of compressed data in the tokens of a file without blocks.
    fn pieces(mut wire: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let [first, second, rest @ ..] = wire {
            assert_eq!(first & 0xc0, DEFLATED);
            let len = usize::from(first & 0x3f) << 8 | usize::from(*second);
            let (piece, rest) = rest.split_at(len);
            all.push(piece.to_vec());
            wire = rest;
        }
        assert_eq!(wire, [END]);
        all
    }

    #[test]
    fn what_is_compressed_can_be_had_back() {
        let mut state = 1_u32;
        let noise = (0..200_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let data: Vec<u8> = noise.chain(std::iter::repeat_n(b'x', 300_000)).collect();
        let all = [Compressor::Zstd, Compressor::Lz4, Compressor::Zlibx];
        for (compressor, level) in all.into_iter().flat_map(|one| [(one, None), (one, Some(LEAST))]) {
            let mut writer = TokenWriter::new(compressor, level).unwrap();
            for _ in 0..2 {
                let mut out = Vec::new();
                writer.begin();
                writer.literal(&data, &mut out).unwrap();
                writer.end(&mut out).unwrap();
                let pieces = pieces(&out);
                let back = match compressor {
                    Compressor::Lz4 => pieces
                        .iter()
                        .flat_map(|piece| lz4_flex::block::decompress(piece, LITERAL_MAX).unwrap())
                        .collect(),
                    Compressor::Zlibx => {
                        let mut back = Vec::with_capacity(data.len() + 1);
                        let packed = [&pieces.concat()[..], &SYNC].concat();
                        let mut inflate = flate2::Decompress::new(false);
                        inflate.decompress_vec(&packed, &mut back, flate2::FlushDecompress::Sync).unwrap();
                        back
                    }
                    // The second file continues the frame of the first one.
                    _ => {
                        assert!(!out.is_empty());
                        continue;
                    }
                };
                assert!(back == data, "{compressor:?}");
            }
        }
    }

    /// The content that a receiver with these blocks would build from the tokens.
    fn rebuilt(compressor: Compressor, mut wire: &[u8], blocks: &[&[u8]]) -> Vec<u8> {
        let mut inflate = flate2::Decompress::new(false);
        let mut feed = |packed: &[u8]| {
            let (mut out, mut buffer) = (Vec::<u8>::new(), vec![0; LITERAL_MAX]);
            let mut left = packed;
            loop {
                let (read, made) = (inflate.total_in(), inflate.total_out());
                inflate.decompress(left, &mut buffer, flate2::FlushDecompress::Sync).unwrap();
                left = &left[(inflate.total_in() - read) as usize..];
                let len = (inflate.total_out() - made) as usize;
                out.extend(&buffer[..len]);
                if left.is_empty() && len < buffer.len() {
                    return out;
                }
            }
        };
        let (mut out, mut last, mut is_inflated) = (Vec::<u8>::new(), 0, false);
        loop {
            let (flag, rest) = wire.split_first().unwrap();
            wire = rest;
            if flag & 0xc0 == DEFLATED {
                let len = usize::from(flag & 0x3f) << 8 | usize::from(wire[0]);
                out.extend(feed(&wire[1..=len]));
                wire = &wire[len + 1..];
                is_inflated = true;
                continue;
            }
            if std::mem::take(&mut is_inflated) {
                assert!(feed(&SYNC).is_empty(), "what was flushed came late");
            }
            if *flag == END {
                assert!(wire.is_empty());
                return out;
            }
            let first = match *flag {
                BLOCK_LONG | RUN_LONG => {
                    let index = u32::from_le_bytes(wire[..4].try_into().unwrap());
                    wire = &wire[4..];
                    index
                }
                relative => last + u32::from(relative & 0x3f),
            };
            let mut more = 0;
            if *flag == RUN_LONG || flag & 0xc0 == RUN_RELATIVE {
                more = u32::from(u16::from_le_bytes([wire[0], wire[1]]));
                wire = &wire[2..];
            }
            last = first + more;
            for block in first..=last {
                let data = blocks[block as usize];
                out.extend(data);
                if compressor == Compressor::Zlib {
                    // The block is added to the window as a stored block.
                    let len = data.len() as u16;
                    let head = [&[0][..], &len.to_le_bytes(), &(!len).to_le_bytes()].concat();
                    assert!(feed(&[&head, data].concat()) == data);
                }
            }
        }
    }

    #[test]
    fn receivers_can_follow_whatever_comes_between_blocks() {
        let mut state = 7_u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let noise: Vec<u8> = (0..300_000).map(|_| random() as u8).collect();
        let text = b"all work and no play ".repeat(10_000);
        let blocks: Vec<&[u8]> = noise.chunks(700).take(200).collect();
        let all = [Compressor::Zlib, Compressor::Zlibx];
        for (compressor, level) in all.into_iter().flat_map(|one| [(one, None), (one, Some(LEAST))]) {
            let mut writer = TokenWriter::new(compressor, level).unwrap();
            for round in 0..300 {
                let (mut wire, mut expected) = (Vec::new(), Vec::<u8>::new());
                writer.begin();
                let mut block = random() % 150;
                for _ in 0..random() % 20 {
                    if random() % 2 == 0 {
                        let from: &[u8] = if random() % 2 == 0 { &noise } else { &text };
                        let len =
                            [1, 7, 700, 5000, 40_000, 100_000][random() as usize % 6] + random() as usize % 9;
                        let at = random() as usize % (from.len() - len);
                        let data = &from[at..at + len];
                        writer.literal(data, &mut wire).unwrap();
                        expected.extend(data);
                    } else {
                        let data = blocks[block as usize];
                        writer.block(block, data, &mut wire).unwrap();
                        expected.extend(data);
                        block = if random() % 3 == 0 { random() % 200 } else { (block + 1) % 200 };
                    }
                }
                writer.end(&mut wire).unwrap();
                assert!(rebuilt(compressor, &wire, &blocks) == expected, "{compressor:?} {round}");
            }
        }
    }
}
