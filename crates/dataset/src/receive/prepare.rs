//! What workers do with a record before it is applied: check what the bytes are, compress and hash them.

use std::sync::Arc;

use snowmelt_pool::Prepared;
use snowmelt_stream::compress::{self, Compression};
use snowmelt_stream::record::{Record, Spill, Write, WriteEmbedded};

use super::meaning;

/// How blocks that come uncompressed are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codec {
    pub(super) algorithm: Compression,
    /// zstd's, as ZFS numbers them.
    pub(super) level: u8,
}

impl Codec {
    /// The codec of a `compression` property; unknown words mean the default.
    pub(super) fn of_property(value: &str) -> Self {
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

/// zstd's own level: `zstd-7` is 7, `zstd-fast` is -1, `zstd-fast-20` is -20.
fn zstd_level(value: &str) -> Option<i32> {
    match value.strip_prefix("zstd-fast") {
        Some("") => Some(-1),
        Some(level) => level.strip_prefix('-')?.parse::<i32>().ok().map(|level| -level),
        None => value.strip_prefix("zstd-")?.parse().ok(),
    }
}

/// Metadata is always compressed this way, as ZFS does.
const METADATA: Codec = Codec { algorithm: Compression::Lz4, level: 0 };

/// A job for a worker.
pub(super) struct Job {
    pub(super) record: Arc<Record>,
    pub(super) payload: Vec<u8>,
    pub(super) codec: Codec,
    pub(super) raw: bool,
    /// Block size of the object as the stream has it, when known: gives the block's number.
    pub(super) block_size: u64,
}

/// A record's data, ready to be stored; or why it cannot be.
pub(super) type Outcome = Result<Prepared, String>;

impl Job {
    pub(super) fn run(self) -> Outcome {
        match &*self.record {
            Record::Write(write) => prepare_write(write, self.payload, self.codec, self.raw, self.block_size),
            Record::WriteEmbedded(embedded) => prepare_embedded(embedded, self.payload),
            Record::Spill(spill) => prepare_spill(spill, self.payload, self.raw),
            other => Err(format!("{} carries no data", other.kind_name())),
        }
    }
}

fn length(bytes: u64) -> Result<usize, String> {
    usize::try_from(bytes).map_err(|_| format!("a block of {bytes} bytes"))
}

fn lsize(bytes: u64) -> Result<u32, String> {
    u32::try_from(bytes).map_err(|_| format!("a block of {bytes} bytes"))
}

fn prepare_write(write: &Write, mut payload: Vec<u8>, codec: Codec, raw: bool, block_size: u64) -> Outcome {
    let logical = lsize(write.logical_size)?;
    let object_type = u8::try_from(write.object_type).unwrap_or(0);
    if raw {
        payload.truncate(length(write.compressed_size)?);
        return Ok(Prepared::stored(payload, logical, write.compression));
    }
    let blkid = write.offset.checked_div(block_size).unwrap_or(0);
    if write.compressed_size != 0 {
        payload.truncate(length(write.compressed_size)?);
        let plain = expand(write.compression, &payload, logical)?;
        meaning::block(object_type, blkid, &plain)?;
        return Ok(Prepared::stored(payload, logical, write.compression));
    }
    payload.truncate(length(write.logical_size)?);
    meaning::block(object_type, blkid, &payload)?;
    let codec = if crate::objset::types::is_metadata(object_type) { METADATA } else { codec };
    Ok(pack(payload, codec))
}

fn prepare_embedded(embedded: &WriteEmbedded, mut payload: Vec<u8>) -> Outcome {
    payload.truncate(length(u64::from(embedded.psize))?);
    if u64::from(embedded.lsize) != embedded.length {
        return Err(format!(
            "an embedded block of {} bytes for a range of {}",
            embedded.lsize, embedded.length
        ));
    }
    expand(embedded.compression, &payload, embedded.lsize)?;
    Ok(Prepared::stored(payload, embedded.lsize, embedded.compression))
}

fn prepare_spill(spill: &Spill, mut payload: Vec<u8>, raw: bool) -> Outcome {
    let logical = lsize(spill.length)?;
    if raw {
        payload.truncate(length(spill.compressed_size)?);
        return Ok(Prepared::stored(payload, logical, spill.compression));
    }
    payload.truncate(length(spill.length)?);
    meaning::spill(&payload)?;
    Ok(pack(payload, METADATA))
}

/// Compresses when that pays.
pub(super) fn pack(data: Vec<u8>, codec: Codec) -> Prepared {
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
