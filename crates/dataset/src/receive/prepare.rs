//! The work of the workers before a record is applied: check, compress and hash the data.

use std::sync::Arc;

use bytes::Bytes;
use snowmelt_pool::{OutsidePlace, Prepared};
use snowmelt_stream::compress::{self, Compression};
use snowmelt_stream::record::{Record, Spill, Write, WriteEmbedded};

use super::{byteswap, meaning};
use crate::objset::types::{self, Swap};

/// How blocks that arrive uncompressed are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codec {
    pub(crate) algorithm: Compression,
    /// The level of zstd, in ZFS's numbering.
    pub(crate) level: u8,
}

impl Codec {
    /// The codec for a `compression` property; unknown values mean the default.
    pub(crate) fn of_property(value: &str) -> Self {
        let plain = |algorithm| Self { algorithm, level: 0 };
        let level = |text: &str| text.parse::<u8>().ok();
        match value {
            "off" => plain(Compression::Off),
            "lzjb" => plain(Compression::Lzjb),
            "zle" => plain(Compression::Zle),
            "gzip" => plain(Compression::Gzip(6)),
            "zstd" => plain(Compression::Zstd),
            _ => {
                if let Some(number) = value.strip_prefix("gzip-").and_then(level) {
                    plain(Compression::Gzip(number))
                } else if let Some(level) = zstd_level(value).and_then(compress::zstd_cookie) {
                    Self { algorithm: Compression::Zstd, level }
                } else {
                    plain(Compression::Lz4)
                }
            }
        }
    }
}

/// The level in zstd's own numbering: `zstd-7` is 7, `zstd-fast` is -1, `zstd-fast-20` is -20.
fn zstd_level(value: &str) -> Option<i32> {
    match value.strip_prefix("zstd-fast") {
        Some("") => Some(-1),
        Some(level) => level.strip_prefix('-')?.parse::<i32>().ok().map(|level| -level),
        None => value.strip_prefix("zstd-")?.parse().ok(),
    }
}

/// Metadata is always compressed like this, as in ZFS.
pub(crate) const METADATA: Codec = Codec { algorithm: Compression::Lz4, level: 0 };

/// A job for a worker.
pub(super) struct Job {
    pub(super) record: Arc<Record>,
    pub(super) payload: Vec<u8>,
    pub(super) codec: Codec,
    /// The place of the payload, if it becomes an external block.
    pub(super) outside: Option<OutsidePlace>,
    pub(super) raw: bool,
    /// Whether the stream is of the other byte order.
    pub(super) swapped: bool,
    /// Block size of the object in the stream, if known; it gives the block number.
    pub(super) block_size: u64,
}

/// A record's data, ready to be stored, or why it cannot be stored.
pub(super) type Outcome = Result<Prepared, String>;

impl Job {
    pub(super) fn run(mut self) -> Outcome {
        let record = self.record.clone();
        match &*record {
            Record::Write(write) => self.write(write),
            Record::WriteEmbedded(embedded) => prepare_embedded(embedded, self.payload, None),
            Record::Spill(spill) => self.spill(spill),
            other => Err(format!("{} carries no data", other.kind_name())),
        }
    }

    /// The payload without its padding.
    fn take_payload(&mut self, len: u64) -> Result<Vec<u8>, String> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.truncate(length(len)?);
        Ok(payload)
    }

    fn write(&mut self, write: &Write) -> Outcome {
        let logical = lsize(write.logical_size)?;
        let object_type = narrow(write.object_type)?;
        if self.raw {
            let payload = self.take_payload(write.compressed_size)?;
            return Ok(self.as_it_is(payload, logical, write.compression));
        }
        let blkid = write.offset.checked_div(self.block_size).unwrap_or(0);
        if write.compressed_size != 0 {
            let payload = self.take_payload(write.compressed_size)?;
            let mut plain = expand(write.compression, &payload, logical)?;
            if !self.swapped || is_the_same_turned(object_type) {
                meaning::block(object_type, blkid, &plain)?;
                return Ok(self.as_it_is(payload, logical, write.compression));
            }
            byteswap::to_little_endian(object_type, &mut plain)?;
            meaning::block(object_type, blkid, &plain)?;
            return Ok(self.pack(object_type, plain));
        }
        let mut payload = self.take_payload(write.logical_size)?;
        if self.swapped {
            byteswap::to_little_endian(object_type, &mut payload)?;
        }
        meaning::block(object_type, blkid, &payload)?;
        if self.outside.is_some() && (!self.swapped || is_the_same_turned(object_type)) {
            return Ok(self.as_it_is(payload, logical, Compression::Off.id()));
        }
        Ok(self.pack(object_type, payload))
    }

    /// A block that is stored, or referred to, as it was received.
    fn as_it_is(&self, payload: Vec<u8>, logical: u32, compression: u8) -> Prepared {
        match self.outside {
            Some(place) => Prepared::outside(payload, logical, compression, place),
            None => Prepared::stored(payload, logical, compression),
        }
    }

    fn pack(&self, object_type: u8, plain: Vec<u8>) -> Prepared {
        pack(plain, if types::is_metadata(object_type) { METADATA } else { self.codec })
    }

    fn spill(&mut self, spill: &Spill) -> Outcome {
        let logical = lsize(spill.length)?;
        if self.raw {
            let payload = self.take_payload(spill.compressed_size)?;
            return Ok(self.as_it_is(payload, logical, spill.compression));
        }
        // Spill blocks contain system attributes, which show their byte order themselves.
        let payload = self.take_payload(spill.length)?;
        meaning::spill(&payload)?;
        if self.outside.is_some() {
            return Ok(self.as_it_is(payload, logical, Compression::Off.id()));
        }
        Ok(pack(payload, METADATA))
    }
}

/// Prepares the data of an embedded block. If the stream is of the other byte order, `turn` is the type of the object,
/// which is not in the record.
pub(super) fn prepare_embedded(embedded: &WriteEmbedded, mut payload: Vec<u8>, turn: Option<u8>) -> Outcome {
    payload.truncate(length(u64::from(embedded.psize))?);
    if u64::from(embedded.lsize) != embedded.length {
        return Err(format!(
            "an embedded block of {} bytes for a range of {}",
            embedded.lsize, embedded.length
        ));
    }
    let mut plain = expand(embedded.compression, &payload, embedded.lsize)?;
    if embedded.is_spill() {
        meaning::spill(&plain)?;
    }
    match turn.filter(|object_type| !is_the_same_turned(*object_type)) {
        Some(object_type) => {
            byteswap::to_little_endian(object_type, &mut plain)?;
            Ok(pack(plain, METADATA))
        }
        None => Ok(Prepared::stored(payload, embedded.lsize, embedded.compression)),
    }
}

/// Whether blocks of this type have no byte order, so that they can stay compressed.
fn is_the_same_turned(object_type: u8) -> bool {
    types::swap(object_type) == Swap::Bytes
}

/// An object type as in dnodes.
fn narrow(object_type: u32) -> Result<u8, String> {
    u8::try_from(object_type).map_err(|_| format!("data of type {object_type}"))
}

fn length(bytes: u64) -> Result<usize, String> {
    usize::try_from(bytes).map_err(|_| format!("a block of {bytes} bytes"))
}

fn lsize(bytes: u64) -> Result<u32, String> {
    u32::try_from(bytes).map_err(|_| format!("a block of {bytes} bytes"))
}

/// Compresses data if that saves enough.
pub(crate) fn pack(data: impl Into<Bytes>, codec: Codec) -> Prepared {
    let data = data.into();
    let logical = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut packed = Vec::new();
    match compress::compress(codec.algorithm, codec.level, &data, &mut packed) {
        Some(len) => {
            packed.truncate(len);
            packed.shrink_to_fit();
            Prepared::stored(packed, logical, codec.algorithm.id())
        }
        None => Prepared::stored(data, logical, Compression::Off.id()),
    }
}

fn expand(compression: u8, payload: &[u8], logical: u32) -> Result<Vec<u8>, String> {
    let mut plain = vec![0; length(u64::from(logical))?];
    compress::decompress(compression, payload, &mut plain).map_err(|error| error.to_string())?;
    Ok(plain)
}
