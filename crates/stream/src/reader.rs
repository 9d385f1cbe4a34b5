//! Reading a stream: decodes headers, verifies checksums and grammar, and returns payloads.
//!
//! A record's running checksum covers everything before it. A payload is therefore known to be intact only when the
//! header after it was checked. The reader reads one header ahead and returns a record only then.

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

/// Limits and modes of a reader.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of BEGIN's payload, in bytes. At most [`MAX_BEGIN_PAYLOAD`].
    pub begin_payload: u32,
    /// Never read a byte of the source after the stream's END. Costs one or two system calls per record.
    pub exact: bool,
    /// Return WRITE and WRITE_EMBEDDED records even if they break a rule, so that they can be repaired or left out. The
    /// length of their payload is limited anyway.
    pub unchecked_data: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { begin_payload: MAX_BEGIN_PAYLOAD, exact: false, unchecked_data: false }
    }
}

/// A record and its position in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned {
    /// The header.
    pub record: Record,
    /// Number of records before it.
    pub index: u64,
    /// Offset of the header, in bytes from the start of the stream.
    pub offset: u64,
}

impl Positioned {
    /// The end of the record's payload and the start of the next record, in bytes from the start of the stream.
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
    /// The header that was read ahead. It is checked, but its payload is not yet read.
    ahead: Option<Positioned>,
    index: u64,
    failed: bool,
}

/// `DRR_BEGIN`.
const BEGIN: u32 = 0;

/// Number of bytes of a payload that are enough to check a compression framing.
const PREFIX_LEN: usize = 8;

/// Where a payload goes.
enum Sink<'a> {
    Keep(&'a mut Vec<u8>),
    /// The payload is only checksummed. BEGIN's is still kept in the buffer.
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

    /// Reads the next record and its payload into `payload`. The payload's length is [`Record::payload_len`], with
    /// padding.
    ///
    /// The payload is in the sender's byte order: see [`is_swapped`](Self::is_swapped). Returns `None` after the last
    /// END. Bytes of the source after that are not part of the stream and are not examined.
    ///
    /// In a stream without record checksums (before OpenZFS 0.6.4), nothing is verified before its END.
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
    /// See [`next`](Self::next).
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
        // The checksum is checked first. Other errors in a damaged header are not worth reporting.
        let end = self.grammar.pending_end().unwrap_or(EndKind::Substream);
        // A header of zeros looks like a BEGIN. A BEGIN without magic number is damaged, and the checksum error
        // describes that best.
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

    /// Reads or skips the payload. If it is not kept, its first bytes are returned.
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

    /// Whether the sender's byte order is big-endian. Headers are always returned in host order. Payloads (data, bonus
    /// buffers, ZAPs) keep the sender's order. False before the first record was read.
    pub fn is_swapped(&self) -> bool {
        self.running.order() == ByteOrder::Big
    }

    /// Whether the records of the current stream have checksums. Streams from before OpenZFS 0.6.4 have only END's.
    pub fn has_record_checksums(&self) -> bool {
        self.running.has_record_checksums()
    }

    /// Bytes of the stream read so far, including the header that was read ahead.
    pub fn bytes_read(&self) -> u64 {
        self.source.position()
    }

    /// The source. Unless [`Limits::exact`] was set, up to 256 KiB after the stream may already have been read.
    pub fn into_inner(self) -> R {
        self.source.into_parts().0
    }

    /// The source, and the bytes that were read from it after the end of the stream.
    pub fn into_parts(self) -> (R, Vec<u8>) {
        self.source.into_parts()
    }
}

/// Checks the contents of a payload that is known to be intact.
fn check_payload(current: &Positioned, prefix: &[u8], payload: &[u8], raw: bool) -> Result<(), StreamError> {
    let checked = match &current.record {
        Record::Begin(b) if b.payload_len > 0 => NvList::unpack(payload).map(drop).map_err(Violation::from),
        // Raw payloads are encrypted, so they cannot be checked.
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
