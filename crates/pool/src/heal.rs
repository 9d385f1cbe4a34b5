//! Repairs blocks in a mirror: a bad copy is overwritten from a good one.
//!
//! As in ZFS (`vdev_mirror_io_done`, vdev_mirror.c): a reader that finds wrong bytes reads the other copies, and
//! overwrites the wrong ones. A good copy is never overwritten.

mod known;
mod parity;

use bytes::Bytes;
use snowmelt_store::{Mirror, SegmentId, StoreError};

use crate::error::{PoolError, Result};
use crate::format::ptr::StoredPtr;
use crate::format::segment::{FRAME_HEADER, FrameHeader};
use crate::io::{Io, frame_header, verify};

pub(crate) use known::HeadCache;
pub(crate) use parity::Finding;

/// The result of reading all copies of a block.
pub(crate) struct Copies {
    /// The block's header, if any copy has a valid one.
    pub(crate) header: Option<FrameHeader>,
    /// The stored bytes, verified.
    pub(crate) payload: Bytes,
    /// Bytes that were overwritten.
    pub(crate) repaired: u64,
}

/// One copy: its frame, and which parts of it are valid.
struct Copy {
    place: usize,
    frame: Option<Bytes>,
    header: Option<FrameHeader>,
    is_payload_right: bool,
}

impl Copy {
    /// Whether it is as good as `best`.
    fn is_as_good(&self, best: &Copy) -> bool {
        self.is_payload_right && (self.header.is_some() || best.header.is_none())
    }
}

impl Io {
    /// Reads from the next copy in turn, or from the only one.
    pub(crate) fn read_one(&self, segment: SegmentId, at: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let Some(mirror) = self.store.mirror() else { return self.store.read(segment, at, bytes) };
        match mirror.copies(segment, at).first() {
            Some(&copy) => mirror.read_copy(copy, segment, at, bytes),
            None => self.store.read(segment, at, bytes),
        }
    }

    /// Reads all copies of a block at its place, and overwrites the bad ones from a good one. `None` when the store has
    /// no copies, or no copy is good.
    pub(crate) fn heal(&self, ptr: &StoredPtr, place: (SegmentId, u32)) -> Option<Copies> {
        let mirror = self.store.mirror()?;
        let at = u64::from(place.1);
        let mut copies: Vec<Copy> = Vec::new();
        for copy in mirror.copies(place.0, at) {
            copies.push(read_copy(mirror, copy, ptr, place));
        }
        let best = copies
            .iter()
            .filter(|copy| copy.is_payload_right)
            .max_by_key(|copy| copy.header.is_some())
            .map(|best| (best.frame.clone(), best.header.clone(), best.place))?;
        let (Some(frame), header, best) = best else { return None };
        let best = copies.iter().position(|copy| copy.place == best)?;
        let mut repaired = 0;
        for copy in copies.iter().filter(|copy| !copies.get(best).is_some_and(|best| copy.is_as_good(best))) {
            if copy.frame.is_some() {
                mirror.note_wrong(copy.place);
            }
            // If no copy has a valid header, only the payload can be repaired.
            let from = if header.is_some() { 0 } else { FRAME_HEADER };
            let good = frame.slice(from..);
            // The reader has its bytes. If the copy stays bad, it is counted, and will be found again.
            if mirror.rewrite_copy(copy.place, place.0, at + from as u64, &good).is_ok() {
                repaired += good.len() as u64;
            }
        }
        if repaired > 0 {
            // Stripes that these bytes belong to may be repairable now.
            self.parity_heads.lock().forget_hopeless(place.0);
        }
        if copies.len() > 1 && repaired > 0 {
            // The next commit makes the repair durable, together with the counters.
            self.has_met.store(true, std::sync::atomic::Ordering::Release);
        }
        Some(Copies { header, payload: frame.slice(FRAME_HEADER..), repaired })
    }

    /// Repairs a damaged block from other copies or from parity.
    pub(crate) fn heal_any(&self, ptr: &StoredPtr, place: (SegmentId, u32)) -> Option<Copies> {
        self.heal(ptr, place).or_else(|| self.heal_by_parity(ptr, place))
    }

    /// As [`fetch_frame`](Self::fetch_frame), but reads all copies, and counts the bytes of repaired ones.
    pub(crate) fn fetch_copies(&self, ptr: &StoredPtr, meta: bool) -> Result<Copies> {
        if self.store.mirror().is_some()
            && let Some(copies) = self.heal(ptr, self.locate(ptr, meta)?)
        {
            return Ok(copies);
        }
        self.fetch_repaired(ptr, meta)
    }

    /// Repairs the store's own records. In a mirror, also writes segments that a member lost.
    pub(crate) fn repair_store(&self, clock: fn() -> u64, go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        let failed = PoolError::store("repairing the store");
        let mut repaired = self.store.verify_own(true).map_err(failed)?;
        if let Some(mirror) = self.store.mirror()
            && mirror.resilver_status().is_due
        {
            let resilvered = mirror.resilver(&clock, &mut |bytes| {
                repaired += bytes;
                go_on()
            });
            resilvered.map_err(PoolError::store("resilvering a mirror"))?;
        }
        Ok(repaired)
    }
}

fn read_copy(mirror: &dyn Mirror, copy: usize, ptr: &StoredPtr, place: (SegmentId, u32)) -> Copy {
    let mut frame = vec![0; FRAME_HEADER + ptr.psize as usize];
    let is_read = mirror.read_copy(copy, place.0, place.1.into(), &mut frame).is_ok();
    let frame = is_read.then(|| Bytes::from(frame));
    let header = frame.as_ref().and_then(|frame| frame_header(frame, ptr, place));
    let payload = frame.as_ref().and_then(|frame| frame.get(FRAME_HEADER..));
    let is_payload_right = payload.is_some_and(|payload| verify(payload, ptr).is_ok());
    Copy { place: copy, frame, header, is_payload_right }
}
