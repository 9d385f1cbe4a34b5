//! Errors of reading and writing a stream.

use std::io;

use crate::features::Features;

/// Why a stream cannot be read, or a record cannot be written.
///
/// `index` counts records from 0. `offset` is the start of the record's header, in bytes from the start of the stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The source or sink failed.
    #[error("stream offset {offset}: {source}")]
    Io {
        /// Bytes read or written before.
        offset: u64,
        /// The failure.
        source: io::Error,
    },
    /// The input is not a stream.
    #[error("record 0 at offset 0: not a ZFS stream: bad magic number {found:#x}")]
    NotAStream {
        /// The bytes in the place of the magic number, read as little-endian.
        found: u64,
    },
    /// The stream stops before its END.
    #[error("incomplete stream: it ends at offset {end}, within record {index}{} at offset {offset}", of_kind(.kind))]
    Truncated {
        /// The incomplete record.
        index: u64,
        /// Where it begins.
        offset: u64,
        /// Its type, if its header is complete.
        kind: &'static str,
        /// Where the stream stops.
        end: u64,
    },
    /// A checksum does not match: the checksum itself or something before it was damaged.
    #[error(
        "checksum mismatch at record {index} ({kind}) at offset {offset}: {which} covers everything before it; \
         expected {}, found {}", words(.expected), words(.found)
    )]
    Checksum {
        /// The record whose header holds the checksum; the damage may be in the payload before it.
        index: u64,
        /// Where that record begins.
        offset: u64,
        /// Its type.
        kind: &'static str,
        /// Which of the two checksums.
        which: ChecksumKind,
        /// The checksum computed from the stream.
        expected: [u64; 4],
        /// The checksum in the stream.
        found: [u64; 4],
    },
    /// A record breaks a rule of the format.
    #[error("record {index}{} at offset {offset}: {violation}", of_kind(.kind))]
    Record {
        /// Which record.
        index: u64,
        /// Where it begins.
        offset: u64,
        /// Its type. Empty if the type is unknown.
        kind: &'static str,
        /// The rule.
        violation: Violation,
    },
}

impl StreamError {
    /// The index of the record where the error was found, if the error is about a record.
    #[must_use]
    pub fn record_index(&self) -> Option<u64> {
        match self {
            Self::Truncated { index, .. } | Self::Checksum { index, .. } | Self::Record { index, .. } => {
                Some(*index)
            }
            _ => None,
        }
    }

    /// The rule that was broken, if the error is of that kind.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        match self {
            Self::Record { violation, .. } => Some(violation),
            _ => None,
        }
    }
}

/// Which checksum did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    /// The running checksum at the end of every header.
    Record,
    /// The checksum of the whole stream, in END.
    Stream,
}

impl std::fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Record => "the record checksum",
            Self::Stream => "END's stream checksum",
        })
    }
}

fn of_kind(kind: &str) -> String {
    if kind.is_empty() { String::new() } else { format!(" ({kind})") }
}

fn words(w: &[u64; 4]) -> String {
    format!("{:x}/{:x}/{:x}/{:x}", w[0], w[1], w[2], w[3])
}

/// A rule of the format that a record breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// `drr_type` has an unknown value.
    #[error("unknown record type {kind}")]
    UnknownKind {
        /// The type.
        kind: u32,
    },
    /// A BEGIN without the magic number, inside a stream that started well.
    #[error("BEGIN has the bad magic number {found:#x}")]
    Magic {
        /// The value in the place of the magic number.
        found: u64,
    },
    /// The header type is neither a substream nor a package.
    #[error("unknown stream header type {found}")]
    HeaderType {
        /// The two bits.
        found: u64,
    },
    /// The snapshot's name fills its field to the last byte.
    #[error("the snapshot's name is not terminated")]
    NameUnterminated,
    /// The stream needs features that this crate does not know.
    #[error("the stream needs unknown features ({unknown})")]
    UnknownFeatures {
        /// The unknown ones.
        unknown: Features,
    },
    /// A record has a type or property that needs a feature, but BEGIN does not announce the feature.
    #[error("{what} without the stream feature {feature}")]
    FeatureMissing {
        /// The record type or property.
        what: &'static str,
        /// The feature BEGIN lacks.
        feature: Features,
    },
    /// The record is not allowed here.
    #[error("unexpected here: {expected}")]
    OutOfPlace {
        /// The records that are allowed here.
        expected: &'static str,
    },
    /// The record belongs to a different snapshot than its stream.
    #[error("belongs to snapshot {found:#x}, but the stream is of {expected:#x}")]
    ForeignGuid {
        /// BEGIN's guid.
        expected: u64,
        /// The record's.
        found: u64,
    },
    /// The running checksum is zero in a stream whose other records have one, or vice versa.
    #[error("the record checksum is {}, unlike those of the records before it", if *.found { "set" } else { "zero" })]
    MixedChecksums {
        /// Whether this record has a checksum.
        found: bool,
    },
    /// A number outside its range.
    #[error("{field} {found} is not within {min}..={max}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Least value allowed.
        min: u64,
        /// Greatest value allowed.
        max: u64,
    },
    /// A number that must be a multiple of another.
    #[error("{field} {found} is not a multiple of {unit}")]
    Unaligned {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The required divisor.
        unit: u64,
    },
    /// A range that runs past the end of its number space.
    #[error("{field}: {start} + {length} overflows")]
    Overflow {
        /// The quantity.
        field: &'static str,
        /// Start of the range.
        start: u64,
        /// Its length.
        length: u64,
    },
    /// A type, algorithm or flag that does not exist.
    #[error("unknown {field} {found}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// A field that is used only in other kinds of streams and must be zero in this one.
    #[error("{field} is {found} and must be 0 {when}")]
    MustBeZero {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// In which streams.
        when: &'static str,
    },
    /// The bonus type and the bonus length contradict each other.
    #[error("bonus type {bonus_type} does not go with bonus length {bonus_len}")]
    Bonus {
        /// `dmu_object_type_t`.
        bonus_type: u32,
        /// Length in bytes.
        bonus_len: u32,
    },
    /// FREEOBJECTS frees an object that the same stream sent.
    #[error("frees objects from {first} on, but object {object} is part of this stream")]
    FreesSentObject {
        /// First object freed.
        first: u64,
        /// The last object sent.
        object: u64,
    },
    /// Data for an object whose OBJECT record was not in this full stream.
    #[error("belongs to object {object}, of which there was no OBJECT record")]
    NoObject {
        /// The object.
        object: u64,
    },
    /// An OBJECT in a raw stream lies outside the last OBJECT_RANGE.
    #[error("raw OBJECT {object} is not within the last OBJECT_RANGE, which starts at {first}")]
    OutsideRange {
        /// The object.
        object: u64,
        /// Start of the range.
        first: u64,
    },
    /// BEGIN's payload is not a packed nvlist.
    #[error("BEGIN's payload is not a packed nvlist: {0}")]
    Nvlist(#[from] crate::nvlist::NvError),
    /// A compressed payload that contradicts its record.
    #[error("compressed payload: {0}")]
    Compressed(#[from] crate::compress::CompressError),
    /// The payload given to a writer does not have the length that the record states.
    #[error("payload of {found} bytes where the record says {expected}")]
    PayloadLength {
        /// Length according to the record.
        expected: u64,
        /// Length given.
        found: u64,
    },
}
