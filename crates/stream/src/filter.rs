//! Filters: a stream comes in, a stream that differs in some records goes out (`zstream redup`, `recompress`, …).
//!
//! A [`Pipe`] reads one record at a time, lets a [`Filter`] change or drop it, and writes it with new checksums, in the
//! byte order of the stream that came in. It holds one record in memory. What a filter leaves alone goes out byte for
//! byte as it came.

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
    /// The stream that comes in is bad.
    #[error(transparent)]
    Input(StreamError),
    /// The stream that goes out cannot be written, or would break a rule.
    #[error("the filtered stream cannot be written: {0}")]
    Output(#[source] StreamError),
    /// The filter looks at single blocks, and those of a deduplicated stream may be elsewhere.
    #[error("the stream is deduplicated; pass it through redup first")]
    Deduplicated,
    /// A block is not what its record says.
    #[error("record {index} (WRITE) of object {object} at offset {offset}: {source}")]
    Decompress {
        /// How many records come before.
        index: u64,
        /// The object.
        object: u64,
        /// Where in the object.
        offset: u64,
        /// What is wrong.
        source: CompressError,
    },
    /// A deduplicated block refers to a block that the stream has not brought before.
    #[error(
        "record {index} (WRITE_BYREF) refers to object {object} at offset {offset} of snapshot {guid:#x}, which is \
         not in the stream before it"
    )]
    UnknownReference {
        /// How many records come before.
        index: u64,
        /// Guid of the snapshot referred to.
        guid: u64,
        /// The object referred to.
        object: u64,
        /// Where in that object.
        offset: u64,
    },
    /// The stream refers to more blocks than a table of them may hold.
    #[error("the stream refers to more than {max} different blocks")]
    TooManyReferences {
        /// The limit.
        max: usize,
    },
    /// The file does not hold any more what it held when it was read first.
    #[error("the file changed while it was read: there is no longer a block at byte {offset} of it")]
    Changed {
        /// Where in the file.
        offset: u64,
    },
    /// A block that is referred to cannot be read again.
    #[error("cannot read the block at byte {offset} again")]
    ReadAgain {
        /// Where in the file.
        offset: u64,
        /// Why.
        source: std::io::Error,
    },
}

/// What a filter did to a record, or could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A block was decompressed.
    Decompressed {
        /// The object.
        object: u64,
        /// Where in the object.
        offset: u64,
    },
    /// A block was marked as not compressed.
    MarkedUncompressed {
        /// The object.
        object: u64,
        /// Where in the object.
        offset: u64,
    },
    /// A block could not be decompressed; it was left as it is.
    NotDecompressed {
        /// The object.
        object: u64,
        /// Where in the object.
        offset: u64,
        /// What is wrong.
        why: CompressError,
    },
    /// A record was left out.
    Dropped {
        /// Its type.
        kind: &'static str,
        /// The object.
        object: u64,
        /// Where in the object.
        offset: u64,
    },
}

impl Notice {
    /// Whether the user should see it unasked.
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

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It goes out, as the filter changed it.
    Keep,
    /// It is left out.
    Drop,
}

/// Changes the records of a stream, one after another.
pub trait Filter {
    /// Whether records of data come in although they break a rule. What goes out must obey all rules.
    fn repairs(&self) -> bool {
        false
    }

    /// Changes a record and its payload, which has the length that [`Record::payload_len`] says afterwards.
    ///
    /// # Errors
    /// The stream cannot be filtered; nothing more goes out.
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
    /// A pipe that has not moved anything yet.
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

    /// Moves one record. `false` at the end of the stream; everything has been written then.
    ///
    /// # Errors
    /// The stream is bad, cannot be filtered or cannot be written.
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

    /// Moves the whole stream.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn run(&mut self) -> Result<(), FilterError> {
        while self.step()? {
            self.notices.clear();
        }
        Ok(())
    }

    /// What the filter did since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> + '_ {
        self.notices.drain(..)
    }

    /// Records that came in so far.
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
