//! `zstream decompress`: corrects the compression that a record states for its block.

use std::collections::{HashMap, VecDeque};

use super::{Disposition, Filter, FilterError, Notice, refuse_dedup};
use crate::compress::{Compression, decompress};
use crate::reader::Positioned;
use crate::record::{Record, Write};
use crate::validate::MAX_BLOCK;

/// Decompresses WRITE records by object and offset, in every snapshot of the stream.
#[derive(Clone, Debug, Default)]
pub struct Decompress {
    wanted: HashMap<(u64, u64), Compression>,
    plain: Vec<u8>,
}

impl Decompress {
    /// A filter that decompresses the blocks of these objects at these offsets, whatever compression their records
    /// state.
    ///
    /// [`Compression::Off`] only marks the block as not compressed.
    pub fn new(wanted: impl IntoIterator<Item = ((u64, u64), Compression)>) -> Self {
        Self { wanted: wanted.into_iter().collect(), plain: Vec::new() }
    }

    /// Decompresses the payload of a record to the length that the record states.
    fn decompress(&mut self, write: &mut Write, payload: &mut Vec<u8>, from: Compression) -> Notice {
        let (object, offset) = (write.object, write.offset);
        // A record that needs repair may state any length.
        let length = usize::try_from(write.logical_size.min(MAX_BLOCK)).unwrap_or(0);
        self.plain.clear();
        self.plain.resize(length, 0);
        match decompress(from.id(), payload, &mut self.plain) {
            Ok(()) => {
                std::mem::swap(payload, &mut self.plain);
                write.logical_size = length as u64;
                write.compression = 0;
                write.compressed_size = 0;
                Notice::Decompressed { object, offset }
            }
            Err(why) => Notice::NotDecompressed { object, offset, why },
        }
    }
}

impl Filter for Decompress {
    fn repairs(&self) -> bool {
        true
    }

    fn record(
        &mut self,
        at: &mut Positioned,
        payload: &mut Vec<u8>,
        notices: &mut VecDeque<Notice>,
    ) -> Result<Disposition, FilterError> {
        refuse_dedup(&at.record)?;
        let Record::Write(write) = &mut at.record else { return Ok(Disposition::Keep) };
        let (object, offset) = (write.object, write.offset);
        let Some(from) = self.wanted.get(&(object, offset)).copied() else { return Ok(Disposition::Keep) };
        let notice = match from.algorithm() {
            Compression::Off => {
                write.logical_size = payload.len() as u64;
                write.compression = 0;
                write.compressed_size = 0;
                Notice::MarkedUncompressed { object, offset }
            }
            algorithm => self.decompress(write, payload, algorithm),
        };
        notices.push_back(notice);
        Ok(Disposition::Keep)
    }
}
