//! Writing a stream, byte for byte as OpenZFS would.
//!
//! The writer pads payloads and computes every checksum. It refuses records that a [`Reader`](crate::Reader) would
//! refuse, because a stream that breaks the rules can crash the receiver's kernel.

#[cfg(test)]
mod tests;

use std::io::{IoSlice, Write as IoWrite};

use crate::byte_order::ByteOrder;
use crate::error::{StreamError, Violation};
use crate::fletcher::Fletcher4;
use crate::grammar::{EndKind, Grammar};
use crate::record::{End, RECORD_LEN, Record};
use crate::wire::{HeaderMut, OFF_CHECKSUM};

/// Headers and small payloads are collected up to this many bytes.
const BUFFER_LEN: usize = 128 << 10;
/// Payloads of at least this many bytes are not copied.
const DIRECT_MIN: usize = 16 << 10;

/// Writes one stream (or package of streams).
pub struct Writer<W: IoWrite> {
    sink: W,
    buffer: Vec<u8>,
    order: ByteOrder,
    grammar: Grammar,
    sum: Fletcher4,
    index: u64,
    /// Bytes of the stream, including buffered ones.
    written: u64,
    /// Bytes that the sink has accepted.
    sent: u64,
    failed: bool,
}

impl<W: IoWrite> Writer<W> {
    /// A writer to `sink`. It buffers: call [`flush`](Self::flush) or [`into_inner`](Self::into_inner) at the end.
    pub fn new(sink: W) -> Self {
        Self::with_order(sink, ByteOrder::Little)
    }

    /// A writer for a stream of a sender with this byte order. The payloads must have the same order.
    pub fn with_order(sink: W, order: ByteOrder) -> Self {
        Self {
            sink,
            order,
            buffer: Vec::with_capacity(BUFFER_LEN + RECORD_LEN),
            grammar: Grammar::new(),
            sum: Fletcher4::new(),
            index: 0,
            written: 0,
            sent: 0,
            failed: false,
        }
    }

    /// A writer for a stream that was read, maybe with changes. It accepts everything that a [`Reader`](crate::Reader)
    /// accepts.
    pub(crate) fn passing_on(sink: W, order: ByteOrder) -> Self {
        Self { grammar: Grammar::reading(), ..Self::with_order(sink, order) }
    }

    /// Writes a record and its payload, with or without its padding to 8 bytes.
    ///
    /// END's checksum is computed here, and the value in `record` is ignored. The ENDs of a package get the zeros they
    /// must have.
    ///
    /// # Errors
    /// The record breaks a rule, or the payload does not have the stated length. Then nothing was written, and another
    /// record may be tried. Or the sink failed, now or earlier: after a failure every call fails.
    pub fn record(&mut self, record: &Record, payload: &[u8]) -> Result<(), StreamError> {
        let refuse = |violation| StreamError::Record {
            index: self.index,
            offset: self.written,
            kind: record.kind_name(),
            violation,
        };
        let padding = padding_of(record, payload).map_err(refuse)?;
        let end = self.grammar.pending_end();
        self.grammar.admit(record).map_err(refuse)?;
        let header = self.seal(record, end);
        self.sum.update_in(self.order, header.bytes());
        // The last word of a payload may be half padding, so that word is checksummed as one.
        let whole = if padding.is_empty() { payload.len() } else { payload.len() & !3 };
        let mut tail = [0; 12];
        let tail_len = payload.len() - whole + padding.len();
        if tail_len > 0 {
            tail[..payload.len() - whole].copy_from_slice(&payload[whole..]);
        }
        self.sum.update_in(self.order, &payload[..whole]);
        self.sum.update_in(self.order, &tail[..tail_len]);
        self.buffer.extend_from_slice(header.bytes());
        let result = self.emit(payload, padding);
        self.index += 1;
        self.written += (RECORD_LEN + payload.len() + padding.len()) as u64;
        result
    }

    /// The header with its checksums. Updates the running sum up to the header, but not including it.
    fn seal(&mut self, record: &Record, end: Option<EndKind>) -> HeaderMut {
        match (record, end) {
            (Record::Begin(_), _) => {
                self.sum = Fletcher4::new();
                HeaderMut::encode(record, self.order)
            }
            (Record::End(_), Some(EndKind::Package)) => {
                HeaderMut::encode(&Record::End(End::default()), self.order)
            }
            (Record::End(_), Some(EndKind::PackageHeader)) => {
                HeaderMut::encode(&Record::End(End { checksum: self.sum.state(), to_guid: 0 }), self.order)
            }
            (record, _) => {
                let mut header = match record {
                    Record::End(e) => {
                        HeaderMut::encode(&Record::End(End { checksum: self.sum.state(), ..*e }), self.order)
                    }
                    other => HeaderMut::encode(other, self.order),
                };
                let mut sum = self.sum;
                sum.update_in(self.order, &header.bytes()[..OFF_CHECKSUM]);
                header.set_checksum(&sum.state());
                header
            }
        }
    }

    fn emit(&mut self, payload: &[u8], padding: &[u8]) -> Result<(), StreamError> {
        if payload.len() >= DIRECT_MIN {
            self.drain(payload)?;
        } else {
            self.buffer.extend_from_slice(payload);
        }
        self.buffer.extend_from_slice(padding);
        if self.buffer.len() >= BUFFER_LEN { self.drain(&[]) } else { Ok(()) }
    }

    /// Writes the buffer and then `payload`, in as few calls as possible.
    fn drain(&mut self, payload: &[u8]) -> Result<(), StreamError> {
        if self.failed {
            let source = std::io::Error::other("an earlier write failed");
            return Err(StreamError::Io { offset: self.sent, source });
        }
        let mut slices = [IoSlice::new(&self.buffer), IoSlice::new(payload)];
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let source = match self.sink.write_vectored(left) {
                Ok(0) => std::io::ErrorKind::WriteZero.into(),
                Ok(n) => {
                    let rest: usize = left.iter().map(|s| s.len()).sum();
                    self.sent += n.min(rest) as u64;
                    IoSlice::advance_slices(&mut left, n.min(rest));
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => e,
            };
            // The sink may hold a part of a record now. Nothing may be appended to it.
            self.failed = true;
            return Err(StreamError::Io { offset: self.sent, source });
        }
        self.buffer.clear();
        Ok(())
    }

    /// Bytes of the stream so far, including buffered ones.
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Whether the stream is complete: its last END was written.
    pub fn is_finished(&self) -> bool {
        self.grammar.finished()
    }

    /// Writes the buffered bytes, and flushes the sink.
    ///
    /// # Errors
    /// The sink failed.
    pub fn flush(&mut self) -> Result<(), StreamError> {
        self.drain(&[])?;
        self.sink.flush().map_err(|source| StreamError::Io { offset: self.sent, source })
    }

    /// Flushes and returns the sink.
    ///
    /// # Errors
    /// The sink failed.
    pub fn into_inner(mut self) -> Result<W, StreamError> {
        self.flush()?;
        Ok(self.sink)
    }
}

/// The padding bytes that `payload` is missing.
fn padding_of(record: &Record, payload: &[u8]) -> Result<&'static [u8], Violation> {
    const ZEROS: [u8; 8] = [0; 8];
    let (content, padded, found) = (record.content_len(), record.payload_len(), payload.len() as u64);
    if found == padded {
        Ok(&[])
    } else if found == content {
        let missing = usize::try_from(padded - content).unwrap_or(0);
        Ok(ZEROS.get(..missing).unwrap_or(&[]))
    } else {
        Err(Violation::PayloadLength { expected: padded, found })
    }
}
