//! Objects in memory, for inspecting a stream without a pool, for tests and for fuzzing.

mod writable;

use crate::source::{Dnode, Objects, SourceError};
use std::collections::BTreeMap;

pub use writable::{MemoryObjset, MemoryTx};

/// One object: its dnode, its blocks by number (each of the dnode's block size) and its spill block.
#[derive(Debug, Clone, Default)]
pub struct MemoryObject {
    /// The dnode.
    pub dnode: Dnode,
    /// Data blocks by number. Missing ones are holes. A short block is read as if padded with zeros.
    pub blocks: BTreeMap<u64, Vec<u8>>,
    /// The spill block.
    pub spill: Option<Vec<u8>>,
}

/// An objset in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryObjects {
    /// Objects by number.
    pub objects: BTreeMap<u64, MemoryObject>,
}

impl MemoryObject {
    fn block_size(&self) -> u64 {
        u64::from(self.dnode.block_size.max(1))
    }

    /// Writes `data` at `offset`, and adds blocks where there are none.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let size = self.block_size();
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % size) as usize;
            let len = rest.len().min(size as usize - within);
            let block = self.blocks.entry(at / size).or_default();
            if block.len() < within + len {
                block.resize(within + len, 0);
            }
            block[within..within + len].copy_from_slice(&rest[..len]);
            at += len as u64;
            rest = &rest[len..];
        }
    }

    /// Frees `offset..offset + length`: whole blocks become holes, and parts of blocks become zeros.
    pub fn free(&mut self, offset: u64, length: u64) {
        let size = self.block_size();
        let end = offset.saturating_add(length);
        let touched: Vec<u64> =
            self.blocks.range(offset / size..=end / size).map(|(number, _)| *number).collect();
        for number in touched {
            let start = number * size;
            if offset <= start && end >= start.saturating_add(size) {
                self.blocks.remove(&number);
            } else if let Some(block) = self.blocks.get_mut(&number) {
                let from = (offset.saturating_sub(start) as usize).min(block.len());
                let to = (end.saturating_sub(start).min(size) as usize).clamp(from, block.len());
                block[from..to].fill(0);
            }
        }
    }
}

impl Objects for MemoryObjects {
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
        Ok(self.objects.get(&object).map(|found| found.dnode.clone()))
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        buf.fill(0);
        let Some(found) = self.objects.get(&object) else { return Ok(()) };
        let size = found.block_size();
        let end = offset.saturating_add(buf.len() as u64);
        for (number, block) in found.blocks.range(offset / size..=end / size) {
            let start = number.saturating_mul(size);
            let from = start.max(offset);
            let to = start.saturating_add(block.len() as u64).min(end);
            if from < to {
                let source = &block[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }

    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        Ok(self.objects.get(&object).and_then(|found| found.spill.clone()))
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        let Some(found) = self.objects.get(&object) else { return Ok(None) };
        let size = found.block_size();
        let next = found.blocks.range(offset / size..).next();
        Ok(next.map(|(number, _)| number.saturating_mul(size).max(offset)))
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        let Some(found) = self.objects.get(&object) else { return Ok(Some(offset)) };
        let size = found.block_size();
        let first = offset / size;
        let run =
            found.blocks.range(first..).zip(first..).take_while(|((number, _), wanted)| **number == *wanted);
        let hole = first.saturating_add(run.count() as u64);
        Ok(Some(hole.saturating_mul(size).max(offset)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_frees_and_finds_holes() {
        let mut object =
            MemoryObject { dnode: Dnode { block_size: 512, ..Dnode::default() }, ..Default::default() };
        object.write(500, &[7; 600]);
        object.write(4096, &[8; 1]);
        object.free(512, 512);
        let objects = MemoryObjects { objects: [(5, object)].into() };
        let mut buf = [1; 1200];
        objects.read(5, 0, &mut buf).unwrap();
        assert_eq!((buf[499], buf[500], buf[512], buf[1024], buf[1099], buf[1100]), (0, 7, 0, 7, 7, 0));
        assert_eq!(objects.next_data(5, 512).unwrap(), Some(1024));
        assert_eq!(objects.next_hole(5, 0).unwrap(), Some(512));
        assert_eq!(objects.next_hole(5, 600).unwrap(), Some(600));
        assert_eq!(objects.next_data(5, 1600).unwrap(), Some(4096));
        assert_eq!(objects.next_hole(5, 4097).unwrap(), Some(4608));
        assert_eq!(objects.next_data(5, 9000).unwrap(), None);
    }
}
