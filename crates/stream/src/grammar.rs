//! The order of records: which record may follow which.
//!
//! ```text
//! stream    = substream | package
//! substream = BEGIN(1) record* END
//! package   = BEGIN(2) END substream* END(zeros)
//! ```
//!
//! The reader and the writer both pass every record through a [`Grammar`]. Every written stream can therefore be read.
//! Packages are not nested: `zfs send` never does that (`lib/libzfs/libzfs_sendrecv.c`).

#[cfg(test)]
mod tests;

use crate::error::Violation;
use crate::features::Features;
use crate::record::{Begin, HeaderType, Record};
use crate::validate::{BeginContext, MAX_BLOCK, validate};

/// The position in the grammar before the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing yet.
    Start,
    /// After a package's BEGIN.
    PackageHeader,
    /// In a package, between substreams.
    Package,
    /// In a substream.
    Substream { in_package: bool, context: BeginContext },
    /// After the last END.
    Finished,
}

/// The part of the stream that an END closes. The checksum fields differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// The records of a snapshot: both checksums and the guid are set.
    Substream,
    /// A package's header: the stream checksum covers BEGIN and its payload, all other fields are zero.
    PackageHeader,
    /// The whole package: all zero.
    Package,
}

/// Checks the order of records, and each record against its BEGIN.
#[derive(Clone, Debug)]
pub struct Grammar {
    place: Place,
    /// The highest object number in an OBJECT record of the current substream.
    last_object: Option<u64>,
    /// First object of the last OBJECT_RANGE of the current substream.
    range: Option<u64>,
    /// Compressed blocks are allowed even if BEGIN does not announce them.
    any_compression: bool,
}

impl Default for Grammar {
    fn default() -> Self {
        Self::new()
    }
}

impl Grammar {
    /// A grammar for a stream that we write, before the first record.
    #[must_use]
    pub const fn new() -> Self {
        Self { place: Place::Start, last_object: None, range: None, any_compression: false }
    }

    /// A grammar for a stream that another program wrote, before the first record.
    ///
    /// `zstream recompress` of OpenZFS up to 2.4 compresses blocks without changing BEGIN's features. BEGIN's features
    /// for compression are therefore not enforced. Every record states its own compression.
    #[must_use]
    pub const fn reading() -> Self {
        Self { any_compression: true, ..Self::new() }
    }

    /// Whether the stream is complete. Nothing may follow.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.place == Place::Finished
    }

    /// What an END would close at this point, if it is allowed.
    #[must_use]
    pub fn pending_end(&self) -> Option<EndKind> {
        match self.place {
            Place::PackageHeader => Some(EndKind::PackageHeader),
            Place::Package => Some(EndKind::Package),
            Place::Substream { .. } => Some(EndKind::Substream),
            Place::Start | Place::Finished => None,
        }
    }

    /// The BEGIN of the current substream. `None` outside of substreams.
    #[must_use]
    pub fn context(&self) -> Option<&BeginContext> {
        match &self.place {
            Place::Substream { context, .. } => Some(context),
            _ => None,
        }
    }

    /// Accepts the next record.
    ///
    /// # Errors
    /// The record is not allowed here, or breaks a rule by itself. The state is then unchanged.
    pub fn admit(&mut self, record: &Record) -> Result<(), Violation> {
        self.place = match (self.place, record) {
            (Place::Start, Record::Begin(b)) => self.begin(b, false)?,
            (Place::Start, _) => {
                return Err(Violation::OutOfPlace { expected: "a stream starts with BEGIN" });
            }
            (Place::PackageHeader, Record::End(_)) => Place::Package,
            (Place::PackageHeader, _) => {
                return Err(Violation::OutOfPlace { expected: "a package's BEGIN is followed by END" });
            }
            (Place::Package, Record::Begin(b)) if b.header_type == HeaderType::Substream => {
                self.begin(b, true)?
            }
            (Place::Package, Record::End(e)) => {
                if e.to_guid != 0 {
                    return Err(Violation::ForeignGuid { expected: 0, found: e.to_guid });
                }
                Place::Finished
            }
            (Place::Package, _) => {
                return Err(Violation::OutOfPlace { expected: "a package holds substreams, then END" });
            }
            (Place::Substream { .. }, Record::Begin(_)) => {
                return Err(Violation::OutOfPlace { expected: "the stream before has not ended" });
            }
            (Place::Substream { in_package, context }, record) => {
                validate(record, &context)?;
                self.order(record, &context)?;
                match record {
                    Record::End(_) if in_package => Place::Package,
                    Record::End(_) => Place::Finished,
                    _ => self.place,
                }
            }
            (Place::Finished, _) => return Err(Violation::OutOfPlace { expected: "the stream has ended" }),
        };
        Ok(())
    }

    /// Accepts a data record with any contents, if data records are allowed at this point.
    ///
    /// # Errors
    /// The record is not allowed here, or its payload is longer than the largest block.
    pub(crate) fn admit_unchecked(&mut self, record: &Record) -> Result<(), Violation> {
        if !matches!(self.place, Place::Substream { .. }) {
            return self.admit(record);
        }
        let (field, found) = ("payload length", record.payload_len());
        if found > MAX_BLOCK {
            return Err(Violation::Range { field, found, min: 0, max: MAX_BLOCK });
        }
        if !found.is_multiple_of(4) {
            return Err(Violation::Unaligned { field, found, unit: 4 });
        }
        Ok(())
    }

    fn begin(&mut self, begin: &Begin, in_package: bool) -> Result<Place, Violation> {
        let mut context = BeginContext::of(begin);
        if self.any_compression {
            context.features |= Features::COMPRESSED | Features::LZ4 | Features::ZSTD;
        }
        validate(&Record::Begin(begin.clone()), &context)?;
        self.last_object = None;
        self.range = None;
        Ok(match begin.header_type {
            HeaderType::Compound => Place::PackageHeader,
            HeaderType::Substream => Place::Substream { in_package, context },
        })
    }

    /// Checks rules between the records of a substream. No sender breaks them, and no receiver could use a stream that
    /// does.
    fn order(&mut self, record: &Record, context: &BeginContext) -> Result<(), Violation> {
        match record {
            Record::Object(o) => {
                if context.features.contains(Features::RAW) {
                    self.within_range(o.object)?;
                }
                self.last_object = self.last_object.max(Some(o.object));
            }
            Record::ObjectRange(r) => self.range = Some(r.first),
            Record::FreeObjects(f) => {
                if let Some(object) = self.last_object
                    && f.first <= object
                    && object - f.first < f.count
                {
                    return Err(Violation::FreesSentObject { first: f.first, object });
                }
            }
            // Only in full streams: an incremental stream may send blocks that an earlier redacted stream left out.
            Record::Write(_) | Record::WriteByRef(_) | Record::WriteEmbedded(_) | Record::Spill(_)
                if context.from_guid == 0 =>
            {
                let object = record.object().unwrap_or_default();
                if self.last_object.is_none_or(|last| object > last) {
                    return Err(Violation::NoObject { object });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A raw OBJECT takes its encryption parameters from the OBJECT_RANGE before it (`receive_object`).
    fn within_range(&self, object: u64) -> Result<(), Violation> {
        let Some(first) = self.range else {
            return Err(Violation::OutOfPlace { expected: "a raw OBJECT comes after its OBJECT_RANGE" });
        };
        if object.checked_sub(first).is_some_and(|slot| slot < 32) {
            Ok(())
        } else {
            Err(Violation::OutsideRange { object, first })
        }
    }
}
