//! `zstream recompress`: compresses the data of a stream with another algorithm, or with none.

use std::collections::VecDeque;

use super::{Disposition, Filter, FilterError, Notice, refuse_dedup};
use crate::compress::{
    Compression, ZSTD_LEVEL_DEFAULT, ZstdHeader, compress, decompress, pad_to_sector, zstd_level,
};
use crate::features::Features;
use crate::reader::Positioned;
use crate::record::{Begin, HeaderType, Record, Write};

/// The first of the object types whose number states whether they are metadata (`DMU_OT_NEWTYPE`).
const NEW_TYPE: u32 = 0x80;
/// The bit that marks metadata in those types (`DMU_OT_METADATA`).
const NEW_TYPE_METADATA: u32 = 0x40;
/// The older types that are data: file contents, volumes, other bytes, other words, and deduplicated blocks (`dmu_ot`).
const OLD_DATA_TYPES: [u32; 5] = [19, 23, 25, 26, 49];

/// zstd has no such level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("zstd has no level {level}: there are 1 to 19, and 103 to 123 for fast-1 to fast-1000")]
pub struct UnknownLevel {
    /// The level that was asked for.
    pub level: i64,
}

/// Compresses WRITE records again. Metadata is written uncompressed, as senders send it. Raw substreams are not
/// changed: their blocks are encrypted, or authenticated in their stored form.
#[derive(Clone, Debug)]
pub struct Recompress {
    algorithm: Compression,
    level: u8,
    raw: bool,
    plain: Vec<u8>,
    packed: Vec<u8>,
}

impl Recompress {
    /// A filter that compresses with this algorithm. Only zstd uses `level`, numbered as in ZFS; 0 is the default.
    ///
    /// # Errors
    /// zstd has no such level.
    pub fn new(algorithm: Compression, level: i64) -> Result<Self, UnknownLevel> {
        let known = u8::try_from(level).ok().filter(|level| zstd_level(*level).is_some());
        let level = match (algorithm, known) {
            (Compression::Zstd, None) => return Err(UnknownLevel { level }),
            (_, known) => known.unwrap_or(0),
        };
        let level = if matches!(level, 0 | 255) { ZSTD_LEVEL_DEFAULT } else { level };
        let algorithm = algorithm.algorithm();
        Ok(Self { algorithm, level, raw: false, plain: Vec::new(), packed: Vec::new() })
    }

    /// Sets the features that a receiver must understand for the new compression.
    fn features(&self, begin: &mut Begin) {
        let embedded = begin.features.contains(Features::EMBED_DATA);
        begin.features = match self.algorithm {
            Compression::Off => {
                let others = if embedded { Features::NONE } else { Features::LZ4 | Features::ZSTD };
                begin.features.difference(Features::COMPRESSED | others)
            }
            Compression::Zstd => begin.features | Features::COMPRESSED | Features::ZSTD,
            Compression::Lz4 => begin.features | Features::COMPRESSED | Features::LZ4,
            _ => begin.features | Features::COMPRESSED,
        };
    }

    /// Whether a block of the algorithm was compressed at the wanted level.
    fn is_level(&self, algorithm: Compression, payload: &[u8]) -> bool {
        algorithm != Compression::Zstd
            || ZstdHeader::parse(payload).is_ok_and(|header| header.level == self.level)
    }

    fn write(&mut self, index: u64, write: &mut Write, payload: &mut Vec<u8>) -> Result<(), FilterError> {
        let current =
            Compression::from_id(write.compression).map_or(Compression::Off, Compression::algorithm);
        let algorithm = if is_metadata(write.object_type) { Compression::Off } else { self.algorithm };
        if current == algorithm && self.is_level(algorithm, payload) {
            return Ok(());
        }
        if current != Compression::Off {
            let length = usize::try_from(write.logical_size).unwrap_or(0);
            self.plain.clear();
            self.plain.resize(length, 0);
            decompress(write.compression, payload, &mut self.plain).map_err(|source| {
                FilterError::Decompress { index, object: write.object, offset: write.offset, source }
            })?;
            std::mem::swap(payload, &mut self.plain);
        }
        write.compression = 0;
        write.compressed_size = 0;
        if compress(algorithm, self.level, payload, &mut self.packed).is_some() {
            pad_to_sector(&mut self.packed);
            if self.packed.len() < payload.len() {
                std::mem::swap(payload, &mut self.packed);
                write.compression = algorithm.id();
                write.compressed_size = payload.len() as u64;
            }
        }
        Ok(())
    }
}

impl Filter for Recompress {
    fn record(
        &mut self,
        at: &mut Positioned,
        payload: &mut Vec<u8>,
        _: &mut VecDeque<Notice>,
    ) -> Result<Disposition, FilterError> {
        refuse_dedup(&at.record)?;
        match &mut at.record {
            Record::Begin(begin) if begin.header_type == HeaderType::Substream => {
                self.raw = begin.features.contains(Features::RAW);
                if !self.raw {
                    self.features(begin);
                }
            }
            Record::Write(write) if !self.raw => self.write(at.index, write, payload)?,
            _ => {}
        }
        Ok(Disposition::Keep)
    }
}

/// Whether objects of a type are metadata (`DMU_OT_IS_METADATA`).
fn is_metadata(object_type: u32) -> bool {
    if object_type & NEW_TYPE != 0 {
        object_type & NEW_TYPE_METADATA != 0
    } else {
        !OLD_DATA_TYPES.contains(&object_type)
    }
}
