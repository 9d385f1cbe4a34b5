//! `zstream redup`: replaces references to earlier data (`zfs send -D`) with the data itself.

use std::collections::{HashMap, VecDeque};
use std::io::Read;

use super::{Disposition, Filter, FilterError, Notice};
use crate::byte_order::ByteOrder;
use crate::features::Features;
use crate::reader::{Positioned, Reader};
use crate::record::{RECORD_LEN, Record, Write, WriteByRef};
use crate::wire::HeaderBytes;

/// Maximum number of different blocks that a stream may refer to. A table of that size takes about 1 GiB.
pub const MAX_REFERENCES: usize = 16 << 20;

/// A block: guid of the snapshot, object, and offset in the object.
type Block = (u64, u64, u64);

/// A file that can be read at any offset.
pub trait ReadAt {
    /// Fills the buffer with the bytes at `offset` in the file.
    ///
    /// # Errors
    /// The file cannot be read, or ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()>;
}

#[cfg(unix)]
impl ReadAt for std::fs::File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

impl ReadAt for &[u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let found = rest.and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Replaces references with the data. Only blocks that are referred to are remembered.
pub struct Redup<S> {
    source: S,
    order: ByteOrder,
    /// For each block that is referred to: the offset in the stream of its latest WRITE, once that was read.
    blocks: HashMap<Block, Option<u64>>,
    references: u64,
}

impl<S: ReadAt> Redup<S> {
    /// Reads a stream to its end to find the blocks that are referred to. `source` gives access to the same stream
    /// again.
    ///
    /// # Errors
    /// The stream is invalid, or refers to more than `max` different blocks (see [`MAX_REFERENCES`]).
    pub fn plan(stream: impl Read, source: S, max: usize) -> Result<Self, FilterError> {
        let mut reader = Reader::new(stream);
        let (mut blocks, mut scratch) = (HashMap::new(), Vec::new());
        while let Some(at) = reader.skip(&mut scratch).map_err(FilterError::Input)? {
            let Record::WriteByRef(by_ref) = &at.record else { continue };
            blocks.insert(referred(by_ref), None);
            if blocks.len() > max {
                return Err(FilterError::TooManyReferences { max });
            }
        }
        let order = if reader.is_swapped() { ByteOrder::Big } else { ByteOrder::Little };
        Ok(Self { source, order, blocks, references: 0 })
    }

    /// Number of references replaced so far.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// Approximate memory that the table of blocks takes, in bytes.
    pub fn memory(&self) -> u64 {
        (self.blocks.capacity() * size_of::<(Block, Option<u64>)>()) as u64
    }

    fn fetch(&self, at: u64, wanted: Block, payload: &mut Vec<u8>) -> Result<Write, FilterError> {
        let read = |buffer: &mut [u8], offset| {
            let read = self.source.read_exact_at(buffer, offset);
            read.map_err(|source| FilterError::ReadAgain { offset, source })
        };
        let mut header = [0; RECORD_LEN];
        read(&mut header, at)?;
        // The block was verified when it was first read. It is compared again because the file may have changed since.
        let write = match HeaderBytes::new(&header, self.order).decode() {
            Ok(Record::Write(write)) if key(&write) == wanted => write,
            _ => return Err(FilterError::Changed { offset: at }),
        };
        let length = Record::Write(write).payload_len();
        if length > crate::validate::MAX_BLOCK {
            return Err(FilterError::Changed { offset: at });
        }
        payload.clear();
        payload.resize(usize::try_from(length).unwrap_or(0), 0);
        read(payload, at + RECORD_LEN as u64)?;
        Ok(write)
    }
}

impl<S: ReadAt> Filter for Redup<S> {
    fn record(
        &mut self,
        at: &mut Positioned,
        payload: &mut Vec<u8>,
        _: &mut VecDeque<Notice>,
    ) -> Result<Disposition, FilterError> {
        match &mut at.record {
            Record::Begin(begin) => {
                begin.features = begin.features.difference(Features::DEDUP | Features::DEDUPPROPS);
            }
            Record::Write(write) => {
                if let Some(place) = self.blocks.get_mut(&key(write)) {
                    *place = Some(at.offset);
                }
            }
            Record::WriteByRef(by_ref) => {
                let block = referred(by_ref);
                let (guid, object, offset) = block;
                let place = self.blocks.get(&block).copied().flatten();
                let unknown = FilterError::UnknownReference { index: at.index, guid, object, offset };
                let write = self.fetch(place.ok_or(unknown)?, block, payload)?;
                self.references += 1;
                let (object, offset, to_guid) = (by_ref.object, by_ref.offset, by_ref.to_guid);
                at.record = Record::Write(Write { object, offset, to_guid, ..write });
            }
            _ => {}
        }
        Ok(Disposition::Keep)
    }
}

fn key(write: &Write) -> Block {
    (write.to_guid, write.object, write.offset)
}

fn referred(by_ref: &WriteByRef) -> Block {
    (by_ref.ref_guid, by_ref.ref_object, by_ref.ref_offset)
}
