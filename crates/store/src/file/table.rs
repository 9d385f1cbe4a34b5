//! The slot table: which segment is in which slot, on disk and in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::codec::{self, SUM_LEN};
use crate::{SegmentId, SegmentInfo};

use super::geometry::{ENTRY_LEN, Geometry, TABLE_BASE};

const HEADER_MAGIC: &[u8; 8] = b"SNOWSLOT";
const SEAL_MAGIC: &[u8; 8] = b"SNOWSEAL";

// Header and seal have the same format, and fit into one sector of 512 bytes.
const OFF_MAGIC: usize = 0;
const OFF_GUID: usize = 8; // u64, of the pool
const OFF_SEGMENT: usize = 16; // u64
const OFF_VALUE: usize = 24; // u64: in a header its sequence number, in a seal the segment's length
const OFF_SUM: usize = 32; // BLAKE3 of bytes 0..32
const RECORD_LEN: usize = OFF_SUM + SUM_LEN;
const PAGE_LEN: usize = ENTRY_LEN as usize / 2;

const _: () = assert!(RECORD_LEN <= 512);

/// How many bytes of the table are read at once.
const READ_LEN: usize = 1 << 20;

/// The segment in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) slot: u64,
    /// The end of the segment; the length of the slot if the end is unknown.
    pub(super) end: u64,
    pub(super) open: bool,
    /// Whether there may be a seal on disk.
    pub(super) sealed: bool,
    seq: u64,
}

/// The slot table in memory.
#[derive(Debug)]
pub(super) struct Table {
    guid: u64,
    /// The sequence number of the next header. Of two headers for one segment, the one with the greater number is
    /// valid.
    next_seq: u64,
    by_id: HashMap<SegmentId, Entry>,
    slots: Slots,
}

impl Table {
    /// Reads the table from disk.
    pub(super) fn load(file: &File, geometry: &Geometry, guid: u64) -> io::Result<Self> {
        let mut table =
            Self { guid, next_seq: 0, by_id: HashMap::new(), slots: Slots::new(geometry.slot_count) };
        let mut buf = vec![0; READ_LEN];
        let mut first = 0;
        while let Some(next) = skip_hole(file, first)?.filter(|&next| next < geometry.slot_count) {
            let count = (READ_LEN as u64 / ENTRY_LEN).min(geometry.slot_count - next);
            let part = &mut buf[..(count * ENTRY_LEN) as usize];
            file.read_exact_at(part, geometry.header_offset(next))?;
            for (slot, entry) in (next..).zip(part.chunks_exact(ENTRY_LEN as usize)) {
                let (header, seal) = entry.split_at(PAGE_LEN);
                table.found(slot, header, seal, geometry.slot_len);
            }
            first = next + count;
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
            // A crash undid the deletion of the older one: see docs/format/store.md, "Duplicate headers".
            Some(other) if other.seq > seq => return,
            Some(other) => self.slots.give_back(other.slot),
            None => {}
        }
        self.slots.occupy(slot);
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

    /// Assigns the first free slot to `id`, so that a sparse file stays short. `None` when no slot is free.
    pub(super) fn start(&mut self, id: SegmentId) -> Option<Entry> {
        let slot = self.slots.take_first()?;
        let entry = Entry { slot, end: 0, open: true, sealed: false, seq: self.next_seq };
        self.next_seq = self.next_seq.saturating_add(1);
        self.by_id.insert(id, entry);
        Some(entry)
    }

    /// Removes a segment from the table. Its slot stays taken until [`give_back`](Self::give_back).
    pub(super) fn take(&mut self, id: SegmentId) -> Option<Entry> {
        self.by_id.remove(&id)
    }

    /// Undoes [`take`](Self::take).
    pub(super) fn restore(&mut self, id: SegmentId, entry: Entry) {
        self.by_id.insert(id, entry);
    }

    pub(super) fn give_back(&mut self, slot: u64) {
        self.slots.give_back(slot);
    }

    /// Removes all segments.
    pub(super) fn clear(&mut self) {
        self.by_id.clear();
    }

    pub(super) fn is_free(&self, slot: u64) -> bool {
        self.slots.is_free(slot)
    }

    pub(super) fn free_slots(&self) -> u64 {
        self.slots.free
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (SegmentId, &Entry)> {
        self.by_id.iter().map(|(&id, entry)| (id, entry))
    }

    pub(super) fn list(&self) -> Vec<SegmentInfo> {
        let mut list: Vec<_> = self.by_id.iter().map(|(&id, e)| SegmentInfo { id, len: e.end }).collect();
        list.sort_unstable();
        list
    }
}

/// A bit map of the slots that are taken.
#[derive(Debug)]
struct Slots {
    taken: Vec<u64>,
    free: u64,
    /// All words before this one are without free slots.
    hint: usize,
}

impl Slots {
    /// The check of the geometry limits `count`.
    fn new(count: u64) -> Self {
        let mut taken = vec![0; count.div_ceil(64) as usize];
        if let Some(last) = taken.last_mut()
            && !count.is_multiple_of(64)
        {
            *last = u64::MAX << (count % 64);
        }
        Self { taken, free: count, hint: 0 }
    }

    fn take_first(&mut self) -> Option<u64> {
        let found = self.taken.iter().skip(self.hint).position(|&word| word != u64::MAX)?;
        self.hint += found;
        let bit = u64::from(self.taken.get(self.hint)?.trailing_ones());
        let slot = self.hint as u64 * 64 + bit;
        self.occupy(slot);
        Some(slot)
    }

    fn is_free(&self, slot: u64) -> bool {
        self.taken.get((slot / 64) as usize).is_some_and(|word| word & (1 << (slot % 64)) == 0)
    }

    fn occupy(&mut self, slot: u64) {
        if let Some(word) = self.taken.get_mut((slot / 64) as usize)
            && *word & (1 << (slot % 64)) == 0
        {
            *word |= 1 << (slot % 64);
            self.free -= 1;
        }
    }

    fn give_back(&mut self, slot: u64) {
        let index = (slot / 64) as usize;
        if let Some(word) = self.taken.get_mut(index)
            && *word & (1 << (slot % 64)) != 0
        {
            *word &= !(1 << (slot % 64));
            self.free += 1;
            self.hint = self.hint.min(index);
        }
    }
}

/// Returns the first slot at or after `first` whose entry is not in a hole of a sparse file; `None` when the rest of
/// the table is a hole. Returns `first` where holes cannot be found, as on devices.
fn skip_hole(file: &File, first: u64) -> io::Result<Option<u64>> {
    let offset = TABLE_BASE + first * ENTRY_LEN;
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data.saturating_sub(TABLE_BASE) / ENTRY_LEN)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(first)),
        Err(error) => Err(error.into()),
    }
}

impl Geometry {
    /// Writes the header that assigns a slot to `id`, and removes the seal of the slot's previous segment.
    pub(super) fn write_header(
        &self,
        file: &File,
        guid: u64,
        id: SegmentId,
        entry: &Entry,
    ) -> io::Result<()> {
        self.clear_seal(file, entry.slot)?;
        file.write_all_at(&encode(HEADER_MAGIC, guid, id, entry.seq), self.header_offset(entry.slot))
    }

    /// Compares the two pages of a segment's entry with their correct contents. With `repair`, writes those again
    /// that differ. Returns how many bytes differed.
    pub(super) fn verify_entry(
        &self,
        file: &File,
        guid: u64,
        (id, entry): (SegmentId, &Entry),
        repair: bool,
    ) -> io::Result<u64> {
        let header = encode(HEADER_MAGIC, guid, id, entry.seq);
        let seal = encode(SEAL_MAGIC, guid, id, entry.end);
        let seal = entry.sealed.then_some((self.seal_offset(entry.slot), seal));
        let mut wrong = 0;
        for (offset, wanted) in std::iter::once((self.header_offset(entry.slot), header)).chain(seal) {
            let mut page = [0; PAGE_LEN];
            if file.read_exact_at(&mut page, offset).is_ok() && page == wanted {
                continue;
            }
            wrong += PAGE_LEN as u64;
            if repair {
                file.write_all_at(&wanted, offset)?;
            }
        }
        Ok(wrong)
    }

    pub(super) fn clear_header(&self, file: &File, slot: u64) -> io::Result<()> {
        file.write_all_at(&[0; PAGE_LEN], self.header_offset(slot))
    }

    /// Records the final length of a segment.
    pub(super) fn write_seal(&self, file: &File, guid: u64, id: SegmentId, entry: &Entry) -> io::Result<()> {
        file.write_all_at(&encode(SEAL_MAGIC, guid, id, entry.end), self.seal_offset(entry.slot))
    }

    pub(super) fn clear_seal(&self, file: &File, slot: u64) -> io::Result<()> {
        file.write_all_at(&[0; PAGE_LEN], self.seal_offset(slot))
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
