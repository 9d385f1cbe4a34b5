//! Reading a stream: headers taken apart, checksums and grammar verified, payloads handed out.
//!
//! A record's running checksum covers everything before it, so a payload is known to be good only when the header
//! after it has been checked. The reader therefore looks one header ahead, and hands out a record only then.

mod buffer;
mod checksum;

#[cfg(test)]
mod tests;

use std::io::Read;

use crate::byte_order::ByteOrder;
use crate::compress;
use crate::error::{StreamError, Violation};
use crate::features::Features;
use crate::grammar::{EndKind, Grammar};
use crate::nvlist::NvList;
use crate::record::{RECORD_LEN, Record};
use crate::validate::MAX_BEGIN_PAYLOAD;
use crate::wire::HeaderBytes;
use buffer::Source;
use checksum::Running;

/// What a reader allows and how it reads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest BEGIN payload, in bytes; at most [`MAX_BEGIN_PAYLOAD`].
    pub begin_payload: u32,
    /// Never take a byte from the source that is behind the stream's END. Costs a system call or two per record.
    pub exact: bool,
    /// Hand out WRITE and WRITE_EMBEDDED records that break a rule, so that somebody can repair them or leave them out.
    /// The length of their payload is bounded all the same.
    pub unchecked_data: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { begin_payload: MAX_BEGIN_PAYLOAD, exact: false, unchecked_data: false }
    }
}

/// A record, and where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned {
    /// The header.
    pub record: Record,
    /// How many records came before.
    pub index: u64,
    /// Where the header begins, in bytes from the start of the stream.
    pub offset: u64,
}

impl Positioned {
    /// Where the record's payload ends and the next record begins, in bytes from the start of the stream.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(RECORD_LEN as u64).saturating_add(self.record.payload_len())
    }
}

/// Reads one stream (or package of streams).
pub struct Reader<R> {
    source: Source<R>,
    limits: Limits,
    grammar: Grammar,
    running: Running,
    /// The header read ahead: checked, but its payload not yet read.
    ahead: Option<Positioned>,
    index: u64,
    failed: bool,
}

/// `DRR_BEGIN`.
const BEGIN: u32 = 0;

/// How much of a payload's beginning is enough to check a compression framing.
const PREFIX_LEN: usize = 8;

/// Where a payload goes.
enum Sink<'a> {
    Keep(&'a mut Vec<u8>),
    /// Only checksum it; BEGIN's is still kept in the buffer.
    Skip(&'a mut Vec<u8>),
}

impl<R: Read> Reader<R> {
    /// A reader with the default [`Limits`].
    pub fn new(source: R) -> Self {
        Self::with_limits(source, Limits::default())
    }

    /// A reader with other limits.
    pub fn with_limits(source: R, limits: Limits) -> Self {
        Self {
            source: Source::new(source, limits.exact),
            limits,
            grammar: Grammar::reading(),
            running: Running::new(),
            ahead: None,
            index: 0,
            failed: false,
        }
    }

    /// The next record, with its payload (as long as [`Record::payload_len`] says, so with its padding) in `payload`.
    ///
    /// The payload is in the sender's byte order: see [`is_swapped`](Self::is_swapped). `None` after the last END;
    /// what follows it in the source is none of the stream's and is not looked at.
    ///
    /// In a stream without record checksums (of before OpenZFS 0.6.4) nothing is verified before its END.
    ///
    /// # Errors
    /// Anything wrong with the stream up to and including the next header. After an error there are no more records.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self, payload: &mut Vec<u8>) -> Result<Option<Positioned>, StreamError> {
        self.advance(&mut Sink::Keep(payload))
    }

    /// Like [`next`](Self::next), but payloads other than BEGIN's are only verified. `scratch` is overwritten.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn skip(&mut self, scratch: &mut Vec<u8>) -> Result<Option<Positioned>, StreamError> {
        self.advance(&mut Sink::Skip(scratch))
    }

    fn advance(&mut self, sink: &mut Sink<'_>) -> Result<Option<Positioned>, StreamError> {
        if self.failed {
            return Ok(None);
        }
        let result = self.step(sink);
        self.failed = result.is_err();
        result
    }

    fn step(&mut self, sink: &mut Sink<'_>) -> Result<Option<Positioned>, StreamError> {
        let current = match self.ahead.take() {
            Some(record) => record,
            None if self.grammar.finished() => return Ok(None),
            None => self.read_first()?,
        };
        let raw = self.grammar.context().is_some_and(|c| c.features.contains(Features::RAW));
        let prefix = self.read_payload(&current, sink)?;
        if !self.grammar.finished() {
            self.ahead = Some(self.read_header()?);
        }
        let (Sink::Keep(payload) | Sink::Skip(payload)) = sink;
        let first = if payload.is_empty() { &prefix } else { payload.get(..PREFIX_LEN).unwrap_or(payload) };
        if !self.limits.unchecked_data {
            check_payload(&current, first, payload, raw)?;
        }
        Ok(Some(current))
    }

    /// The first header decides the byte order.
    fn read_first(&mut self) -> Result<Positioned, StreamError> {
        let header = self.source.header().map_err(|e| e.at(0, 0, ""))?;
        match HeaderBytes::detect(&header) {
            Ok(order) => self.running.set_order(order),
            Err(found) => return Err(StreamError::NotAStream { found }),
        }
        if HeaderBytes::new(&header, self.running.order()).kind() != BEGIN {
            let violation = Violation::OutOfPlace { expected: "a stream starts with BEGIN" };
            return Err(StreamError::Record { index: 0, offset: 0, kind: "", violation });
        }
        self.take_header(&header, 0)
    }

    fn read_header(&mut self) -> Result<Positioned, StreamError> {
        let offset = self.source.position();
        let header = self.source.header().map_err(|e| e.at(self.index, offset, ""))?;
        self.take_header(&header, offset)
    }

    fn take_header(&mut self, bytes: &[u8; RECORD_LEN], offset: u64) -> Result<Positioned, StreamError> {
        let index = self.index;
        let header = HeaderBytes::new(bytes, self.running.order());
        let kind = Record::kind_name_of(header.kind()).unwrap_or_default();
        let refuse = |violation| StreamError::Record { index, offset, kind, violation };
        let mismatch = |m: checksum::Mismatch| match m {
            checksum::Mismatch::Mixed { found } => refuse(Violation::MixedChecksums { found }),
            checksum::Mismatch::Differs { which, expected, found } => {
                StreamError::Checksum { index, offset, kind, which, expected, found }
            }
        };
        // The checksum first: whatever else is wrong with a damaged header is not worth reporting.
        let end = self.grammar.pending_end().unwrap_or(EndKind::Substream);
        // Zeros look like a BEGIN; one without magic number is damage, and the checksum says so best.
        let begins = header.kind() == BEGIN && (self.grammar.context().is_none() || header.decode().is_ok());
        if begins {
            self.running.begin(bytes);
        } else {
            self.running.header(bytes, &header, end).map_err(mismatch)?;
        }
        let record = header.decode().map_err(refuse)?;
        let admitted = match &record {
            Record::Write(_) | Record::WriteEmbedded(_) if self.limits.unchecked_data => {
                self.grammar.admit_unchecked(&record)
            }
            _ => self.grammar.admit(&record),
        };
        admitted.map_err(refuse)?;
        if let Record::End(e) = &record {
            self.running.end(e, end).map_err(mismatch)?;
        }
        if let Record::Begin(b) = &record
            && b.payload_len > self.limits.begin_payload
        {
            let (found, max) = (u64::from(b.payload_len), u64::from(self.limits.begin_payload));
            return Err(refuse(Violation::Range { field: "payload length", found, min: 0, max }));
        }
        self.index += 1;
        Ok(Positioned { record, index, offset })
    }

    /// Reads the payload, or reads past it; its first bytes are returned if it was not kept.
    fn read_payload(
        &mut self,
        current: &Positioned,
        sink: &mut Sink<'_>,
    ) -> Result<[u8; PREFIX_LEN], StreamError> {
        let Positioned { record, index, offset } = current;
        let len = record.payload_len();
        let mut prefix = [0; PREFIX_LEN];
        match sink {
            Sink::Skip(out) if !matches!(record, Record::Begin(_)) => {
                out.clear();
                self.source.skip(len, &mut prefix, &mut self.running)
            }
            Sink::Keep(out) | Sink::Skip(out) => self.source.payload(len, out, &mut self.running),
        }
        .map_err(|e| e.at(*index, *offset, record.kind_name()))?;
        Ok(prefix)
    }

    /// Whether the sender's byte order is big-endian. Headers are always handed out in host order, but payloads
    /// (data, bonus buffers, ZAPs) are as the sender had them. False before the first record was read.
    pub fn is_swapped(&self) -> bool {
        self.running.order() == ByteOrder::Big
    }

    /// Whether the current stream has checksums in its records; those of before OpenZFS 0.6.4 have only END's.
    pub fn has_record_checksums(&self) -> bool {
        self.running.has_record_checksums()
    }

    /// Bytes of the stream taken so far, the header read ahead included.
    pub fn bytes_read(&self) -> u64 {
        self.source.position()
    }

    /// The source. Unless [`Limits::exact`] was set, up to 256 KiB behind the stream may already have been read.
    pub fn into_inner(self) -> R {
        self.source.into_parts().0
    }

    /// The source, and what was read from it but is behind the stream.
    pub fn into_parts(self) -> (R, Vec<u8>) {
        self.source.into_parts()
    }
}

/// What can be told from a payload itself, once it is known to be what the sender sent.
fn check_payload(current: &Positioned, prefix: &[u8], payload: &[u8], raw: bool) -> Result<(), StreamError> {
    let checked = match &current.record {
        Record::Begin(b) if b.payload_len > 0 => NvList::unpack(payload).map(drop).map_err(Violation::from),
        // Raw payloads are encrypted, so nothing can be told from them.
        Record::Write(w) if w.compression != 0 && !raw => {
            let prefix = prefix.get(..w.compressed_size.min(PREFIX_LEN as u64) as usize).unwrap_or(prefix);
            compress::check_framing(w.compression, prefix, w.compressed_size, w.logical_size)
                .map_err(Violation::from)
        }
        _ => Ok(()),
    };
    checked.map_err(|violation| StreamError::Record {
        index: current.index,
        offset: current.offset,
        kind: current.record.kind_name(),
        violation,
    })
}
