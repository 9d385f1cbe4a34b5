//! `zstream drop_record`: leaves out blocks that a sender should not have sent.

use std::collections::{HashSet, VecDeque};

use super::{Disposition, Filter, FilterError, Notice, refuse_dedup};
use crate::reader::Positioned;
use crate::record::Record;

/// Leaves out WRITE and WRITE_EMBEDDED records by object and offset, in every snapshot of the stream.
#[derive(Clone, Debug, Default)]
pub struct DropRecords {
    unwanted: HashSet<(u64, u64)>,
}

impl DropRecords {
    /// A filter that leaves out the blocks of these objects at these offsets.
    pub fn new(unwanted: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self { unwanted: unwanted.into_iter().collect() }
    }
}

impl Filter for DropRecords {
    /// The offset of such a record may lie beyond the maximum size of an object.
    fn repairs(&self) -> bool {
        true
    }

    fn record(
        &mut self,
        at: &mut Positioned,
        _: &mut Vec<u8>,
        notices: &mut VecDeque<Notice>,
    ) -> Result<Disposition, FilterError> {
        refuse_dedup(&at.record)?;
        let (object, offset) = match &at.record {
            Record::Write(write) => (write.object, write.offset),
            Record::WriteEmbedded(write) => (write.object, write.offset),
            _ => return Ok(Disposition::Keep),
        };
        if !self.unwanted.contains(&(object, offset)) {
            return Ok(Disposition::Keep);
        }
        notices.push_back(Notice::Dropped { kind: at.record.kind_name(), object, offset });
        Ok(Disposition::Drop)
    }
}
