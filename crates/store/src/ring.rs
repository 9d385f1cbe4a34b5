//! The uberblock ring: a fixed area in which each publication is written to the next slot.
//!
//! Format and crash argument: `docs/format/store.md`, "The uberblock ring".

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::codec::{self, SUM_LEN};
use crate::{RawUberblock, UBERBLOCK_MAX, UBERBLOCK_RING};

/// Twice the number of uberblocks that must stay readable, so that the slot being overwritten is not one of those.
pub(crate) const SLOTS: u64 = 64;
/// Two pages. Slots do not share sectors, and an uberblock of maximum length fits with its header.
pub(crate) const SLOT_LEN: usize = 8192;
/// Length of the ring in bytes.
pub(crate) const RING_LEN: u64 = SLOTS * SLOT_LEN as u64;

const MAGIC: &[u8; 8] = b"SNOWUBER";
const VERSION: u32 = 1;

const OFF_MAGIC: usize = 0;
const OFF_VERSION: usize = 8; // u32
const OFF_LEN: usize = 12; // u32, of the contents
const OFF_SEQ: usize = 16; // u64
const OFF_TXG: usize = 24; // u64
const OFF_GUID: usize = 32; // u64, of the pool
const OFF_SUM: usize = 40; // BLAKE3 of bytes 0..40 and of the contents
const OFF_CONTENTS: usize = OFF_SUM + SUM_LEN;

const _: () = assert!(OFF_CONTENTS + UBERBLOCK_MAX <= SLOT_LEN);
const _: () = assert!(SLOTS > UBERBLOCK_RING as u64);

/// The position of a store's ring, and the next slot. Not synchronised: the store keeps it in a mutex.
#[derive(Debug)]
pub(crate) struct Ring {
    base: u64,
    guid: u64,
    /// Sequence number of the next publication. Its slot is this number modulo [`SLOTS`].
    next: u64,
}

/// A valid slot.
struct Frame {
    seq: u64,
    uberblock: RawUberblock,
}

impl Ring {
    /// Opens the ring at offset `base` of `file`. The next publication follows the newest readable one.
    pub(crate) fn open(file: &File, base: u64, guid: u64) -> io::Result<Self> {
        let newest = frames(file, base, guid)?.iter().map(|f| f.seq).max();
        // Only a forged sequence number can be the maximum. Then the numbers start again at 0.
        let next = newest.map_or(0, |seq| seq.wrapping_add(1));
        Ok(Self { base, guid, next })
    }

    /// Writes the uberblock of `txg` and makes it durable.
    ///
    /// After an error, nothing more may be published, because the slot may contain the uberblock or not.
    pub(crate) fn publish(&mut self, file: &File, txg: u64, contents: &[u8]) -> io::Result<()> {
        let slot = encode(self.next, txg, self.guid, contents);
        file.write_all_at(&slot, self.base + (self.next % SLOTS) * SLOT_LEN as u64)?;
        file.sync_data()?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Returns the readable ones of the last [`UBERBLOCK_RING`] uberblocks in the order of publication. Only the last
    /// one of each txg is returned. The ring may contain older ones, but the pool relies on them not being used.
    pub(crate) fn read(&self, file: &File) -> io::Result<Vec<RawUberblock>> {
        let mut frames = frames(file, self.base, self.guid)?;
        frames.sort_by_key(|f| std::cmp::Reverse(f.seq));
        let newest = frames.first().map_or(0, |f| f.seq);
        let mut seen = std::collections::HashSet::new();
        frames.retain(|f| newest - f.seq < UBERBLOCK_RING as u64 && seen.insert(f.uberblock.txg));
        Ok(frames.into_iter().rev().map(|f| f.uberblock).collect())
    }
}

fn encode(seq: u64, txg: u64, guid: u64, contents: &[u8]) -> Vec<u8> {
    assert!(contents.len() <= UBERBLOCK_MAX, "the store checks the length before");
    let mut slot = vec![0; SLOT_LEN];
    codec::put(&mut slot, OFF_MAGIC, MAGIC);
    codec::put(&mut slot, OFF_VERSION, &VERSION.to_le_bytes());
    codec::put(&mut slot, OFF_LEN, &(contents.len() as u32).to_le_bytes());
    codec::put(&mut slot, OFF_SEQ, &seq.to_le_bytes());
    codec::put(&mut slot, OFF_TXG, &txg.to_le_bytes());
    codec::put(&mut slot, OFF_GUID, &guid.to_le_bytes());
    let sum = codec::sum(&[&slot[..OFF_SUM], contents]);
    codec::put(&mut slot, OFF_SUM, &sum);
    codec::put(&mut slot, OFF_CONTENTS, contents);
    slot
}

/// Decodes a slot. `None` unless it is a complete uberblock of the pool `guid`.
fn decode(slot: &[u8], guid: u64) -> Option<Frame> {
    if slot.get(OFF_MAGIC..OFF_VERSION)? != MAGIC
        || codec::u32_at(slot, OFF_VERSION)? != VERSION
        || codec::u64_at(slot, OFF_GUID)? != guid
    {
        return None;
    }
    let len = usize::try_from(codec::u32_at(slot, OFF_LEN)?).ok().filter(|&len| len <= UBERBLOCK_MAX)?;
    let contents = slot.get(OFF_CONTENTS..OFF_CONTENTS + len)?;
    if codec::bytes_at(slot, OFF_SUM)? != codec::sum(&[slot.get(..OFF_SUM)?, contents]) {
        return None;
    }
    let txg = codec::u64_at(slot, OFF_TXG)?;
    Some(Frame {
        seq: codec::u64_at(slot, OFF_SEQ)?,
        uberblock: RawUberblock { txg, bytes: contents.to_vec() },
    })
}

/// Reads slot by slot, so that a bad sector makes only one uberblock unreadable.
fn frames(file: &File, base: u64, guid: u64) -> io::Result<Vec<Frame>> {
    let mut slot = vec![0; SLOT_LEN];
    let mut found = Vec::new();
    let mut failure = None;
    for index in 0..SLOTS {
        match file.read_exact_at(&mut slot, base + index * SLOT_LEN as u64) {
            Ok(()) => found.extend(decode(&slot, guid)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}
