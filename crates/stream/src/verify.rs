//! Verifies a whole stream and counts its records. Keeps no data.

use std::io::Read;

use crate::error::StreamError;
use crate::features::Features;
use crate::reader::Reader;
use crate::record::{Begin, HeaderType, RECORD_LEN, Record};

/// Maximum number of snapshots whose BEGIN is remembered.
const MAX_SNAPSHOTS: usize = 1 << 20;

/// Number of records of one type, and the total length of their payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct KindCount {
    /// Records.
    pub records: u64,
    /// Bytes of payload.
    pub payload: u64,
}

/// The contents of a stream, in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// Counts by `drr_type`, see [`Record::kind`].
    pub kinds: [KindCount; Record::KINDS],
    /// Length of the stream in bytes.
    pub bytes: u64,
    /// All features of all streams in it.
    pub features: Features,
    /// The BEGIN of every snapshot in it, in order (of the first million, if there are more).
    pub snapshots: Vec<Begin>,
    /// Whether it is a package.
    pub is_package: bool,
    /// Whether its byte order is big-endian.
    pub is_swapped: bool,
    /// Whether its records have checksums.
    pub has_record_checksums: bool,
}

impl Summary {
    /// Counts one record.
    pub fn count(&mut self, record: &Record) {
        if let Some(kind) = usize::try_from(record.kind()).ok().and_then(|k| self.kinds.get_mut(k)) {
            kind.records += 1;
            kind.payload += record.payload_len();
        }
        self.bytes += RECORD_LEN as u64 + record.payload_len();
        if let Record::Begin(begin) = record {
            self.features |= begin.features;
            match begin.header_type {
                HeaderType::Compound => self.is_package = true,
                HeaderType::Substream if self.snapshots.len() < MAX_SNAPSHOTS => {
                    self.snapshots.push(begin.clone())
                }
                HeaderType::Substream => {}
            }
        }
    }

    /// All records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.kinds.iter().map(|k| k.records).sum()
    }

    /// Bytes of all payloads.
    #[must_use]
    pub fn payload(&self) -> u64 {
        self.kinds.iter().map(|k| k.payload).sum()
    }
}

/// Reads a stream to its end and verifies everything that [`Reader`] verifies.
///
/// # Errors
/// The first error in the stream.
pub fn verify(source: impl Read) -> Result<Summary, StreamError> {
    let mut reader = Reader::new(source);
    let mut summary = Summary::default();
    let mut scratch = Vec::new();
    while let Some(positioned) = reader.skip(&mut scratch)? {
        summary.count(&positioned.record);
        summary.has_record_checksums |= reader.has_record_checksums();
    }
    summary.is_swapped = reader.is_swapped();
    Ok(summary)
}
