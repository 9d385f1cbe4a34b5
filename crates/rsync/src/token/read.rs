//! Reads the new content of a file, the inverse of [`TokenWriter`](super::TokenWriter).

use std::io::{self, BufRead};

use flate2::{Decompress, FlushDecompress, Status};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

use super::{
    BLOCK_LONG, BLOCK_RELATIVE, Compressor, DEFLATED, END, LITERAL_MAX, RELATIVE_MAX, RUN_LONG, RUN_RELATIVE,
    SYNC, zstd_error,
};
use crate::wire::ReadWire;

/// The most bytes that a piece compressed with LZ4 may have, as in rsync.
const LZ4_MAX: usize = LITERAL_MAX + LITERAL_MAX / 255 + 16;
/// The most bytes of a stored block of deflate.
const STORED_MAX: usize = 0xffff;

/// The next part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// Data, from [`TokenReader::literal`].
    Literal,
    /// A block that this side has.
    Block(u32),
    /// The end of the file.
    End,
}

enum Codec {
    Inflate { inflate: Decompress, with_blocks: bool },
    Zstd(Box<DCtx<'static>>),
    Lz4,
}

/// Reads the contents of files.
pub struct TokenReader {
    /// `None`: the simple form.
    codec: Option<Codec>,
    /// In the simple form: the bytes of the piece that are still to come.
    left: usize,
    /// The bytes of them that were returned last. They stay in the input until the next call.
    told: usize,
    /// Compressed data, of which the part from `at` on was not decompressed yet.
    packed: Vec<u8>,
    at: usize,
    out: Vec<u8>,
    out_len: usize,
    /// The decompressor may have further output for the input so far.
    has_more: bool,
    /// Data was inflated since the last flush.
    unflushed: bool,
    /// The last block that was returned, and the number of blocks that follow it.
    block: u32,
    run: u32,
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl TokenReader {
    /// A reader for one connection.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(compressor: Compressor) -> io::Result<Self> {
        let inflate = |with_blocks| Codec::Inflate { inflate: Decompress::new(false), with_blocks };
        let codec = match compressor {
            Compressor::None => None,
            Compressor::Zlib => Some(inflate(true)),
            Compressor::Zlibx => Some(inflate(false)),
            Compressor::Lz4 => Some(Codec::Lz4),
            Compressor::Zstd => {
                Some(Codec::Zstd(Box::new(DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?)))
            }
        };
        Ok(Self {
            codec,
            left: 0,
            told: 0,
            packed: Vec::new(),
            at: 0,
            out: vec![0; LZ4_MAX.max(2 * LITERAL_MAX)],
            out_len: 0,
            has_more: false,
            unflushed: false,
            block: 0,
            run: 0,
        })
    }

    /// Begins a file.
    pub fn begin(&mut self) {
        (self.left, self.told, self.at, self.unflushed, self.block, self.run) = (0, 0, 0, false, 0, 0);
        self.packed.clear();
        self.has_more = false;
        if let Some(Codec::Inflate { inflate, .. }) = &mut self.codec {
            inflate.reset(false);
        }
    }

    /// The data of the last [`Token::Literal`]. `from` must be the same input.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn literal<'a>(&'a self, from: &'a mut impl BufRead) -> io::Result<&'a [u8]> {
        match self.codec {
            None => from.fill_buf().map(|data| &data[..self.told.min(data.len())]),
            Some(_) => Ok(&self.out[..self.out_len]),
        }
    }

    /// The next part of the file.
    ///
    /// # Errors
    /// When the connection fails, or the data is invalid.
    pub fn next(&mut self, from: &mut impl BufRead) -> io::Result<Token> {
        if self.codec.is_none() {
            return self.next_simple(from);
        }
        loop {
            if self.run > 0 {
                self.run -= 1;
                self.block += 1;
                return Ok(Token::Block(self.block));
            }
            if self.at < self.packed.len() || self.has_more {
                self.unpack()?;
                if self.out_len > 0 {
                    return Ok(Token::Literal);
                }
                continue;
            }
            let flag = from.read_u8()?;
            if flag & 0xc0 == DEFLATED {
                let len = usize::from(flag & 0x3f) << 8 | usize::from(from.read_u8()?);
                self.packed.resize(len, 0);
                self.at = 0;
                from.read_exact(&mut self.packed)?;
                continue;
            }
            self.flushed()?;
            if flag == END {
                return Ok(Token::End);
            }
            self.read_block(flag, from)?;
            return Ok(Token::Block(self.block));
        }
    }

    fn next_simple(&mut self, from: &mut impl BufRead) -> io::Result<Token> {
        from.consume(self.told);
        self.left -= std::mem::take(&mut self.told);
        if self.left == 0 {
            let value = from.read_i32()?;
            match usize::try_from(value) {
                Ok(0) => return Ok(Token::End),
                Ok(len) => self.left = len,
                Err(_) => return Ok(Token::Block((-1 - value).cast_unsigned())),
            }
        }
        self.told = self.left.min(from.fill_buf()?.len());
        if self.told == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Token::Literal)
    }

    fn read_block(&mut self, flag: u8, from: &mut impl BufRead) -> io::Result<()> {
        let is_run = if flag & BLOCK_RELATIVE != 0 {
            self.block = self.block.saturating_add(u32::from(flag) & RELATIVE_MAX);
            flag & RUN_RELATIVE == RUN_RELATIVE
        } else {
            if !matches!(flag, BLOCK_LONG | RUN_LONG) {
                return Err(bad("a token of no kind"));
            }
            self.block = u32::try_from(from.read_i32()?).map_err(|_| bad("a block before the first"))?;
            flag == RUN_LONG
        };
        if is_run {
            self.run = u32::from(from.read_u16()?);
        }
        match self.block.checked_add(self.run).filter(|last| *last < i32::MAX.cast_unsigned()) {
            Some(_) => Ok(()),
            None => Err(bad("a block beyond the last")),
        }
    }

    /// Decompresses as much as the buffer can hold.
    fn unpack(&mut self) -> io::Result<()> {
        let packed = &self.packed[self.at..];
        match &mut self.codec {
            Some(Codec::Inflate { inflate, .. }) => {
                let (taken, made) = inflate_some(inflate, packed, &mut self.out)?;
                (self.at, self.out_len, self.unflushed) = (self.at + taken, made, true);
            }
            Some(Codec::Zstd(context)) => {
                let mut input = InBuffer::around(packed);
                let mut output = OutBuffer::around(self.out.as_mut_slice());
                context.decompress_stream(&mut output, &mut input).map_err(zstd_error)?;
                (self.at, self.out_len) = (self.at + input.pos(), output.pos());
                if input.pos() == 0 && self.out_len == 0 && !packed.is_empty() {
                    return Err(bad("compressed data that is none"));
                }
            }
            Some(Codec::Lz4) => {
                let len = lz4_flex::block::decompress_into(packed, &mut self.out[..LZ4_MAX])
                    .map_err(|_| bad("compressed data that is none"))?;
                (self.at, self.out_len) = (self.packed.len(), len);
            }
            None => {}
        }
        self.has_more = self.out_len == self.out.len();
        Ok(())
    }

    /// Adds the end of a flush to the data, which is not sent.
    fn flushed(&mut self) -> io::Result<()> {
        let Some(Codec::Inflate { inflate, .. }) = &mut self.codec else { return Ok(()) };
        if !std::mem::take(&mut self.unflushed) {
            return Ok(());
        }
        match inflate_some(inflate, &SYNC, &mut self.out)? {
            (taken, 0) if taken == SYNC.len() => Ok(()),
            _ => Err(bad("compressed data that is cut off")),
        }
    }

    /// Passes on the content of the block that was returned last. Some compressors need it.
    ///
    /// # Errors
    /// When the compressed data before it was invalid.
    pub fn see(&mut self, content: &[u8]) -> io::Result<()> {
        let Some(Codec::Inflate { inflate, with_blocks: true }) = &mut self.codec else { return Ok(()) };
        for stored in content.chunks(STORED_MAX) {
            let len = (stored.len() as u16).to_le_bytes();
            let mut left = &[&[0, len[0], len[1], !len[0], !len[1]], stored].concat()[..];
            while !left.is_empty() {
                let (taken, _) = inflate_some(inflate, left, &mut self.out)?;
                left = &left[taken..];
            }
            // All output must come out now.
            while inflate_some(inflate, &[], &mut self.out)?.1 > 0 {}
        }
        Ok(())
    }
}

/// Inflates as much as the buffer can hold. Returns the number of input and output bytes.
fn inflate_some(inflate: &mut Decompress, data: &[u8], out: &mut [u8]) -> io::Result<(usize, usize)> {
    let (read, made) = (inflate.total_in(), inflate.total_out());
    let status = inflate.decompress(data, out, FlushDecompress::Sync).map_err(io::Error::other)?;
    let (read, made) = ((inflate.total_in() - read) as usize, (inflate.total_out() - made) as usize);
    if status == Status::StreamEnd || read == 0 && made == 0 && !data.is_empty() {
        return Err(bad("compressed data that is none"));
    }
    Ok((read, made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenWriter;

    /// The data and the blocks in the tokens of a file. All blocks have this content.
    fn read(reader: &mut TokenReader, mut wire: &[u8], block: &[u8]) -> io::Result<(Vec<u8>, Vec<u32>)> {
        let (mut data, mut blocks) = (Vec::new(), Vec::new());
        reader.begin();
        loop {
            match reader.next(&mut wire)? {
                Token::Literal => data.extend_from_slice(reader.literal(&mut wire)?),
                Token::Block(index) => {
                    reader.see(block)?;
                    blocks.push(index);
                }
                Token::End if wire.is_empty() => return Ok((data, blocks)),
                Token::End => panic!("{} bytes are left", wire.len()),
            }
        }
    }

    #[test]
    fn files_are_read_as_written() {
        let mut state = 1_u32;
        let noise: Vec<u8> = (0..150_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let even = vec![b'x'; 700_000];
        for compressor in Compressor::ALL {
            let mut writer = TokenWriter::new(compressor, None).unwrap();
            let mut reader = TokenReader::new(compressor).unwrap();
            // Data that deflate refers to in a block occurs again afterwards.
            let block = &noise[..100_000];
            for round in 0..3 {
                let mut wire = Vec::new();
                writer.begin();
                writer.literal(&noise[..10_000 * round], &mut wire).unwrap();
                for index in [0, 1, 2, 9, 70_000, 3] {
                    writer.block(index, block, &mut wire).unwrap();
                }
                writer.literal(&even, &mut wire).unwrap();
                writer.literal(block, &mut wire).unwrap();
                writer.block(4, block, &mut wire).unwrap();
                writer.end(&mut wire).unwrap();
                let (data, blocks) = read(&mut reader, &wire, block).unwrap();
                assert!(data == [&noise[..10_000 * round], &even, block].concat(), "{compressor:?} {round}");
                assert_eq!(blocks, [0, 1, 2, 9, 70_000, 3, 4], "{compressor:?}");
            }
        }
    }

    #[test]
    fn what_is_no_content_is_refused() {
        for (compressor, wire) in [
            (Compressor::Zlibx, &[0x40, 3, 1, 2, 3, 0][..]),
            (Compressor::Zlib, &[0x41]),
            (Compressor::Zlib, &[0x01]),
            (Compressor::Lz4, &[0x40, 2, 0xff, 0xff]),
            (Compressor::Zstd, &[0x40, 8, 1, 2, 3, 4, 5, 6, 7, 8]),
            (Compressor::Zstd, &[0x20, 0xff, 0xff, 0xff, 0xff]),
            (Compressor::Zstd, &[0x21, 0xff, 0xff, 0xff, 0x7f, 1, 0]),
            (Compressor::None, &[5, 0, 0, 0, 1]),
        ] {
            let mut reader = TokenReader::new(compressor).unwrap();
            assert!(read(&mut reader, wire, b"").is_err(), "{compressor:?} {wire:x?}");
        }
    }
}
