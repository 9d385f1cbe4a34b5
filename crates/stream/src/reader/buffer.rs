//! A buffered source that knows its position. It checksums each chunk while it is in the CPU cache.

use std::io::{ErrorKind, Read};

use super::PREFIX_LEN;
use super::checksum::Running;
use crate::error::StreamError;
use crate::record::RECORD_LEN;

/// Large enough to make system calls cheap, small enough to stay in the L2 cache between read and checksum.
const BUFFER_LEN: usize = 256 << 10;
/// If at least this many bytes of a payload are left, they are read directly into the caller's buffer.
const DIRECT_MIN: usize = 128 << 10;
/// The caller's buffer grows at most this much beyond the bytes that have arrived.
const GROWTH: usize = 1 << 20;

pub(super) struct Source<R> {
    inner: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes handed out so far.
    taken: u64,
    exact: bool,
}

/// Why a read stopped.
pub(super) enum ReadError {
    Io { offset: u64, source: std::io::Error },
    Ended { end: u64 },
}

impl ReadError {
    pub(super) fn at(self, index: u64, offset: u64, kind: &'static str) -> StreamError {
        match self {
            Self::Io { offset, source } => StreamError::Io { offset, source },
            Self::Ended { end } => StreamError::Truncated { index, offset, kind, end },
        }
    }
}

impl<R: Read> Source<R> {
    pub(super) fn new(inner: R, exact: bool) -> Self {
        Self { inner, buffer: vec![0; BUFFER_LEN].into_boxed_slice(), start: 0, end: 0, taken: 0, exact }
    }

    pub(super) fn position(&self) -> u64 {
        self.taken
    }

    pub(super) fn into_parts(self) -> (R, Vec<u8>) {
        let rest = self.buffer[self.start..self.end].to_vec();
        (self.inner, rest)
    }

    /// The next header's bytes.
    pub(super) fn header(&mut self) -> Result<[u8; RECORD_LEN], ReadError> {
        while self.end - self.start < RECORD_LEN {
            self.fill(RECORD_LEN)?;
        }
        let mut header = [0; RECORD_LEN];
        header.copy_from_slice(&self.buffer[self.start..self.start + RECORD_LEN]);
        self.start += RECORD_LEN;
        self.taken += RECORD_LEN as u64;
        Ok(header)
    }

    /// Reads `len` bytes into `out`, replacing its contents.
    pub(super) fn payload(
        &mut self,
        len: u64,
        out: &mut Vec<u8>,
        running: &mut Running,
    ) -> Result<(), ReadError> {
        out.clear();
        let mut left = len;
        while left > 0 {
            if self.start == self.end && left >= DIRECT_MIN as u64 {
                left -= self.direct(left, out, running)? as u64;
                continue;
            }
            let chunk = self.chunk(left)?;
            running.fold(chunk);
            out.extend_from_slice(chunk);
            let n = chunk.len();
            left -= self.consume(n);
        }
        Ok(())
    }

    /// Skips `len` bytes and keeps the first few.
    pub(super) fn skip(
        &mut self,
        len: u64,
        prefix: &mut [u8; PREFIX_LEN],
        running: &mut Running,
    ) -> Result<(), ReadError> {
        let mut left = len;
        let mut kept = 0;
        while left > 0 {
            let chunk = self.chunk(left)?;
            running.fold(chunk);
            let n = chunk.len();
            let keep = n.min(PREFIX_LEN - kept);
            prefix[kept..kept + keep].copy_from_slice(&chunk[..keep]);
            kept += keep;
            left -= self.consume(n);
        }
        Ok(())
    }

    /// Buffered bytes: at least 4 (so that words stay whole), at most `left`, which is a multiple of 4.
    fn chunk(&mut self, left: u64) -> Result<&[u8], ReadError> {
        while self.end - self.start < 4 {
            self.fill(usize::try_from(left).unwrap_or(usize::MAX))?;
        }
        let available = (self.end - self.start) & !3;
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(available);
        Ok(&self.buffer[self.start..self.start + n])
    }

    fn consume(&mut self, n: usize) -> u64 {
        self.start += n;
        self.taken += n as u64;
        n as u64
    }

    /// Reads a piece of a long payload directly into `out`. Returns the number of bytes read, a multiple of 4.
    fn direct(&mut self, left: u64, out: &mut Vec<u8>, running: &mut Running) -> Result<usize, ReadError> {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_LEN);
        let at = out.len();
        if out.capacity() - at < want {
            // Reserves all of a short payload. A long one is reserved in steps, so that a claimed length alone
            // allocates little.
            out.reserve_exact(usize::try_from(left).unwrap_or(usize::MAX).min(GROWTH.max(at)));
        }
        out.resize(at + want, 0);
        let mut got = 0;
        while got == 0 || got % 4 != 0 {
            match self.inner.read(&mut out[at + got..at + want]) {
                Ok(0) => return Err(ReadError::Ended { end: self.taken + got as u64 }),
                Ok(n) => got += n.min(want - got),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Io { offset: self.taken + got as u64, source }),
            }
        }
        out.truncate(at + got);
        running.fold(&out[at..]);
        self.taken += got as u64;
        Ok(got)
    }

    /// Reads more into the buffer. In exact mode it reads only until the buffer holds `need` bytes.
    fn fill(&mut self, need: usize) -> Result<(), ReadError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && BUFFER_LEN - self.start < RECORD_LEN.max(BUFFER_LEN / 2) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let limit = if self.exact { self.start.saturating_add(need).min(BUFFER_LEN) } else { BUFFER_LEN };
        loop {
            match self.inner.read(&mut self.buffer[self.end..limit]) {
                Ok(0) => return Err(ReadError::Ended { end: self.taken + (self.end - self.start) as u64 }),
                Ok(n) => {
                    self.end = limit.min(self.end + n);
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ReadError::Io {
                        offset: self.taken + (self.end - self.start) as u64,
                        source,
                    });
                }
            }
        }
    }
}
