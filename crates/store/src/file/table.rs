//! The slot table: which segment is in which slot, on disk and in memory.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::codec::{self, SUM_LEN};
use crate::{SegmentId, SegmentInfo};

use super::geometry::{ENTRY_LEN, Geometry, TABLE_BASE};

const HEADER_MAGIC: &[u8; 8] = b"SNOWSLOT";
const SEAL_MAGIC: &[u8; 8] = b"SNOWSEAL";

// Header and seal have the same shape, and fit one sector of 512 bytes.
const OFF_MAGIC: usize = 0;
const OFF_GUID: usize = 8; // u64, of the pool
const OFF_SEGMENT: usize = 16; // u64
const OFF_VALUE: usize = 24; // u64: in a header its sequence number, in a seal the segment's length
const OFF_SUM: usize = 32; // BLAKE3 of bytes 0..32
const RECORD_LEN: usize = OFF_SUM + SUM_LEN;
const PAGE_LEN: usize = ENTRY_LEN as usize / 2;

const _: () = assert!(RECORD_LEN <= 512);

/// How much of the table is read at once.
const READ_LEN: usize = 1 << 20;

/// What is in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) slot: u64,
    /// Where the segment ends; the slot's length when that is not known.
    pub(super) end: u64,
    pub(super) open: bool,
    /// Whether there may be a seal on disk.
    pub(super) sealed: bool,
    seq: u64,
}

/// The table in memory.
#[derive(Debug)]
pub(super) struct Table {
    guid: u64,
    /// The next header's sequence number: of two headers for one segment the greater counts.
    next_seq: u64,
    by_id: HashMap<SegmentId, Entry>,
    free: BTreeSet<u64>,
}

impl Table {
    /// Reads the table from disk.
    pub(super) fn load(file: &File, geometry: &Geometry, guid: u64) -> io::Result<Self> {
        let mut table =
            Self { guid, next_seq: 0, by_id: HashMap::new(), free: (0..geometry.slot_count).collect() };
        let mut buf = vec![0; READ_LEN];
        let entries = READ_LEN as u64 / ENTRY_LEN;
        let mut first = 0;
        while first < geometry.slot_count {
            let count = entries.min(geometry.slot_count - first);
            let part = &mut buf[..(count * ENTRY_LEN) as usize];
            file.read_exact_at(part, TABLE_BASE + first * ENTRY_LEN)?;
            for (slot, entry) in (first..).zip(part.chunks_exact(ENTRY_LEN as usize)) {
                let (header, seal) = entry.split_at(PAGE_LEN);
                table.found(slot, header, seal, geometry.slot_len);
            }
            first += count;
        }
        Ok(table)
    }

    fn found(&mut self, slot: u64, header: &[u8], seal: &[u8], slot_len: u64) {
        let Some((id, seq)) = decode(header, HEADER_MAGIC, self.guid) else { return };
        let length = decode(seal, SEAL_MAGIC, self.guid)
            .filter(|&(sealed, length)| sealed == id && length <= slot_len)
            .map(|(_, length)| length);
        self.next_seq = self.next_seq.max(seq.saturating_add(1));
        match self.by_id.get(&id) {
            // Left by a deletion that a crash undid; see docs/format/store.md, "Duplicate headers".
            Some(other) if other.seq > seq => return,
            Some(other) => {
                self.free.insert(other.slot);
            }
            None => {}
        }
        self.free.remove(&slot);
        let entry =
            Entry { slot, end: length.unwrap_or(slot_len), open: false, sealed: length.is_some(), seq };
        self.by_id.insert(id, entry);
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<Entry> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Entry> {
        self.by_id.get_mut(&id)
    }

    /// The slot that the next segment gets: the first one, so that a sparse file stays short.
    pub(super) fn first_free(&self) -> Option<u64> {
        self.free.first().copied()
    }

    pub(super) fn free_slots(&self) -> u64 {
        self.free.len() as u64
    }

    pub(super) fn list(&self) -> Vec<SegmentInfo> {
        let mut list: Vec<_> = self.by_id.iter().map(|(&id, e)| SegmentInfo { id, len: e.end }).collect();
        list.sort_unstable();
        list
    }

    /// Enters a segment whose header was written.
    pub(super) fn occupy(&mut self, slot: u64, id: SegmentId) {
        self.free.remove(&slot);
        let seq = self.next_seq;
        self.next_seq = seq.saturating_add(1);
        self.by_id.insert(id, Entry { slot, end: 0, open: true, sealed: false, seq });
    }

    /// Frees the slot of a segment.
    pub(super) fn release(&mut self, id: SegmentId) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.free.insert(entry.slot);
        }
    }

    pub(super) fn release_all(&mut self) {
        for (_, entry) in self.by_id.drain() {
            self.free.insert(entry.slot);
        }
    }

    /// Writes the header that gives `slot` to `id`, and takes away the seal of whoever was there before.
    pub(super) fn write_header(
        &self,
        file: &File,
        geometry: &Geometry,
        slot: u64,
        id: SegmentId,
    ) -> io::Result<()> {
        self.clear_seal(file, geometry, slot)?;
        let page = encode(HEADER_MAGIC, self.guid, id, self.next_seq);
        file.write_all_at(&page, geometry.header_offset(slot))
    }

    pub(super) fn clear_header(&self, file: &File, geometry: &Geometry, slot: u64) -> io::Result<()> {
        file.write_all_at(&[0; PAGE_LEN], geometry.header_offset(slot))
    }

    pub(super) fn write_seal(
        &self,
        file: &File,
        geometry: &Geometry,
        slot: u64,
        id: SegmentId,
        end: u64,
    ) -> io::Result<()> {
        file.write_all_at(&encode(SEAL_MAGIC, self.guid, id, end), geometry.seal_offset(slot))
    }

    pub(super) fn clear_seal(&self, file: &File, geometry: &Geometry, slot: u64) -> io::Result<()> {
        file.write_all_at(&[0; PAGE_LEN], geometry.seal_offset(slot))
    }
}

fn encode(magic: &[u8; 8], guid: u64, id: SegmentId, value: u64) -> [u8; PAGE_LEN] {
    let mut page = [0; PAGE_LEN];
    codec::put(&mut page, OFF_MAGIC, magic);
    codec::put(&mut page, OFF_GUID, &guid.to_le_bytes());
    codec::put(&mut page, OFF_SEGMENT, &id.0.to_le_bytes());
    codec::put(&mut page, OFF_VALUE, &value.to_le_bytes());
    let sum = codec::sum(&[&page[..OFF_SUM]]);
    codec::put(&mut page, OFF_SUM, &sum);
    page
}

fn decode(page: &[u8], magic: &[u8; 8], guid: u64) -> Option<(SegmentId, u64)> {
    if page.get(OFF_MAGIC..OFF_GUID)? != magic || codec::u64_at(page, OFF_GUID)? != guid {
        return None;
    }
    if codec::bytes_at(page, OFF_SUM)? != codec::sum(&[page.get(..OFF_SUM)?]) {
        return None;
    }
    Some((SegmentId(codec::u64_at(page, OFF_SEGMENT)?), codec::u64_at(page, OFF_VALUE)?))
}
