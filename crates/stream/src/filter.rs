//! Filters: change some records of a stream (`zstream redup`, `recompress`, …).
//!
//! A [`Pipe`] reads one record at a time and lets a [`Filter`] change or drop it. It then writes the record with new
//! checksums, in the byte order of the input. It holds one record in memory. Records that a filter does not change are
//! written byte for byte as they were read.

mod decompress;
mod drop_records;
mod recompress;
mod redup;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io::{Read, Write};

use crate::byte_order::ByteOrder;
use crate::compress::CompressError;
use crate::error::StreamError;
use crate::features::Features;
use crate::reader::{Limits, Positioned, Reader};
use crate::record::Record;
use crate::writer::Writer;

pub use decompress::Decompress;
pub use drop_records::DropRecords;
pub use recompress::{Recompress, UnknownLevel};
pub use redup::{MAX_REFERENCES, ReadAt, Redup};

/// Why a stream cannot be filtered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The input stream is invalid.
    #[error(transparent)]
    Input(StreamError),
    /// The output stream cannot be written, or would break a rule.
    #[error("the filtered stream cannot be written: {0}")]
    Output(#[source] StreamError),
    /// The filter works on single blocks, but the blocks of a deduplicated stream may be elsewhere.
    #[error("the stream is deduplicated; pass it through redup first")]
    Deduplicated,
    /// A block does not match its record.
    #[error("record {index} (WRITE) of object {object} at offset {offset}: {source}")]
    Decompress {
        /// Number of records before this one.
        index: u64,
        /// The object.
        object: u64,
        /// Offset in the object, in bytes.
        offset: u64,
        /// The reason.
        source: CompressError,
    },
    /// A deduplicated block refers to a block that did not occur earlier in the stream.
    #[error(
        "record {index} (WRITE_BYREF) refers to object {object} at offset {offset} of snapshot {guid:#x}, which is \
         not in the stream before it"
    )]
    UnknownReference {
        /// Number of records before this one.
        index: u64,
        /// Guid of the snapshot that the reference names.
        guid: u64,
        /// The object that the reference names.
        object: u64,
        /// Offset in that object, in bytes.
        offset: u64,
    },
    /// The stream refers to more blocks than the table of blocks may hold.
    #[error("the stream refers to more than {max} different blocks")]
    TooManyReferences {
        /// The limit.
        max: usize,
    },
    /// The file changed after it was read for the first time.
    #[error("the file changed while it was read: there is no longer a block at byte {offset} of it")]
    Changed {
        /// Offset in the file, in bytes.
        offset: u64,
    },
    /// A referenced block cannot be read again.
    #[error("cannot read the block at byte {offset} again")]
    ReadAgain {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Why.
        source: std::io::Error,
    },
}

/// A change that a filter made to a record, or could not make.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A block was decompressed.
    Decompressed {
        /// The object.
        object: u64,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// A block was marked as not compressed.
    MarkedUncompressed {
        /// The object.
        object: u64,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// A block could not be decompressed; it was left as it is.
    NotDecompressed {
        /// The object.
        object: u64,
        /// Offset in the object, in bytes.
        offset: u64,
        /// The reason.
        why: CompressError,
    },
    /// A record was left out.
    Dropped {
        /// Its type.
        kind: &'static str,
        /// The object.
        object: u64,
        /// Offset in the object, in bytes.
        offset: u64,
    },
}

impl Notice {
    /// Whether the user should see the notice even without asking for it.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::NotDecompressed { .. })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decompressed { object, offset } => {
                write!(f, "Successfully decompressed ino {object} offset {offset}")
            }
            Self::MarkedUncompressed { object, offset } => {
                write!(f, "Resetting compression type to off for ino {object} offset {offset}")
            }
            Self::NotDecompressed { object, offset, why } => {
                write!(f, "decompression failed for ino {object} offset {offset}: {why}")
            }
            Self::Dropped { kind, object, offset } => {
                write!(f, "dropping {kind} record for object {object} offset {offset}")
            }
        }
    }
}

/// Whether a record is kept or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The record is written, as the filter changed it.
    Keep,
    /// It is left out.
    Drop,
}

/// Changes the records of a stream, one after another.
pub trait Filter {
    /// Whether data records that break a rule are accepted as input. The output must obey all rules.
    fn repairs(&self) -> bool {
        false
    }

    /// Changes a record and its payload. Afterwards the payload must have the length that [`Record::payload_len`]
    /// gives.
    ///
    /// # Errors
    /// The stream cannot be filtered. Nothing more is written.
    fn record(
        &mut self,
        at: &mut Positioned,
        payload: &mut Vec<u8>,
        notices: &mut VecDeque<Notice>,
    ) -> Result<Disposition, FilterError>;
}

/// A stream on its way through a filter.
pub struct Pipe<R, W: Write, F> {
    reader: Reader<R>,
    sink: Option<W>,
    writer: Option<Writer<W>>,
    filter: F,
    payload: Vec<u8>,
    notices: VecDeque<Notice>,
    records: u64,
}

impl<R: Read, W: Write, F: Filter> Pipe<R, W, F> {
    /// Creates a pipe. Nothing is read or written yet.
    pub fn new(source: R, sink: W, filter: F) -> Self {
        let limits = Limits { unchecked_data: filter.repairs(), ..Limits::default() };
        Self {
            reader: Reader::with_limits(source, limits),
            sink: Some(sink),
            writer: None,
            filter,
            payload: Vec::new(),
            notices: VecDeque::new(),
            records: 0,
        }
    }

    /// Passes on one record. Returns `false` at the end of the stream, when everything has been written.
    ///
    /// # Errors
    /// The stream is invalid, cannot be filtered or cannot be written.
    pub fn step(&mut self) -> Result<bool, FilterError> {
        let Some(mut at) = self.reader.next(&mut self.payload).map_err(FilterError::Input)? else {
            if let Some(writer) = &mut self.writer {
                writer.flush().map_err(FilterError::Output)?;
            }
            return Ok(false);
        };
        self.records += 1;
        let kept = self.filter.record(&mut at, &mut self.payload, &mut self.notices)?;
        if kept == Disposition::Keep {
            let order = if self.reader.is_swapped() { ByteOrder::Big } else { ByteOrder::Little };
            if let Some(sink) = self.sink.take() {
                self.writer = Some(Writer::passing_on(sink, order));
            }
            if let Some(writer) = &mut self.writer {
                writer.record(&at.record, &self.payload).map_err(FilterError::Output)?;
            }
        }
        Ok(true)
    }

    /// Passes on the whole stream.
    ///
    /// # Errors
    /// See [`step`](Self::step).
    pub fn run(&mut self) -> Result<(), FilterError> {
        while self.step()? {
            self.notices.clear();
        }
        Ok(())
    }

    /// The notices of the filter since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> + '_ {
        self.notices.drain(..)
    }

    /// Number of records read so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The filter.
    pub fn filter(&self) -> &F {
        &self.filter
    }
}

/// Refuses a deduplicated stream.
fn refuse_dedup(record: &Record) -> Result<(), FilterError> {
    match record {
        Record::Begin(begin) if begin.features.intersects(Features::DEDUP | Features::DEDUPPROPS) => {
            Err(FilterError::Deduplicated)
        }
        _ => Ok(()),
    }
}
