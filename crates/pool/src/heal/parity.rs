//! Repair from parity: of a damaged block that a reader or a scrub found, and of parity frames themselves.
//!
//! Wrong bytes are overwritten in place, as in a mirror ([`heal`](super)). The correct bytes are known for
//! certain, and good pieces are not written. A crash during a repair leaves a bad piece as bad as before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use snowmelt_store::SegmentId;

use super::Copies;
use crate::format::ptr::StoredPtr;
use crate::format::segment::FRAME_HEADER;
use crate::io::{Io, frame_header, verify};
use crate::parity::find::{self, read_lossy};
use crate::parity::{Head, Repair, Stripe};

/// The parity frames of the last segment that was examined. Damage often comes in clusters.
#[derive(Debug, Default)]
pub(crate) struct HeadCache(Option<(SegmentId, u64, Arc<Vec<Head>>)>);

/// Damage found while verifying all parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Offset of the parity frame.
    pub(crate) at: u32,
    /// Number of damaged data pieces.
    pub(crate) data: usize,
    /// Number of damaged parts of the frame itself: parity pieces and copies of the head.
    pub(crate) own: usize,
    /// Whether the parity is enough to repair it.
    pub(crate) can_mend: bool,
}

impl Io {
    /// Up to which offset a segment's bytes are certainly those last written there, and whether repaired bytes may be
    /// written to it.
    ///
    /// Bytes beyond the end may be left over from before a crash. While the pool is being opened, the ends are not
    /// known yet. Then nothing is written, and the hash of the block decides.
    fn mendable(&self, segment: SegmentId) -> Option<(u64, bool)> {
        if self.is_loaded.load(Ordering::Acquire) {
            let len = self.space.lock().get(segment)?.len;
            return Some((len, self.writable().is_ok()));
        }
        let stored = self.store.segments().ok()?;
        let len = stored.iter().find(|info| info.id == segment)?.len;
        Some((len.min(u32::MAX.into()), false))
    }

    /// The parity frames of a segment, in order.
    fn parity_heads(&self, segment: SegmentId, len: u64) -> Arc<Vec<Head>> {
        let mut cache = self.parity_heads.lock();
        match &cache.0 {
            Some((id, until, heads)) if (*id, *until) == (segment, len) => heads.clone(),
            _ => {
                let (heads, is_whole) = find::heads(&*self.store, self.guid, segment, len);
                let heads = Arc::new(heads);
                // If bytes are still in the writer's buffer, the search may have missed frames, so the result is not
                // cached.
                cache.0 = is_whole.then(|| (segment, len, heads.clone()));
                heads
            }
        }
    }

    /// Rebuilds a damaged block in its place from parity, and writes the corrected bytes. Returns `None` if the pool
    /// has no parity, or too little; then nothing was written.
    pub(crate) fn heal_by_parity(&self, ptr: &StoredPtr, place: (SegmentId, u32)) -> Option<Copies> {
        if !self.has_parity.load(Ordering::Acquire) {
            return None;
        }
        let (segment, at) = (place.0, u64::from(place.1));
        let (len, may_write) = self.mendable(segment)?;
        let mut frame = vec![0; FRAME_HEADER + ptr.psize as usize];
        let end = at + frame.len() as u64;
        read_lossy(&*self.store, segment, at, &mut frame);
        let heads = self.parity_heads(segment, len);
        let mut heads: Vec<&Head> = heads.iter().filter(|head| head.covers(at, end - at)).collect();
        // Narrow frames first, because they need fewer reads.
        heads.sort_by_key(|head| head.len);
        let mut repairs = Vec::new();
        for head in heads {
            let Some(mended) = Stripe::read(&*self.store, head).mend() else { continue };
            mended.iter().for_each(|repair| patch(&mut frame, at, repair));
            repairs.extend(mended);
            if verify(frame.get(FRAME_HEADER..)?, ptr).is_ok() && frame_header(&frame, ptr, place).is_some() {
                break;
            }
        }
        if repairs.is_empty() {
            return None;
        }
        // A repair is accepted only if the block's hash is then correct.
        let header = frame_header(&frame, ptr, place);
        verify(frame.get(FRAME_HEADER..)?, ptr).ok()?;
        let repaired = if may_write { self.write_repairs(segment, &repairs) } else { 0 };
        self.healed.fetch_add(1, Ordering::Relaxed);
        self.has_met.store(true, Ordering::Release);
        Some(Copies { header, payload: Bytes::from(frame).slice(FRAME_HEADER..), repaired })
    }

    /// Repairs everything that is wrong in a range of a segment. Returns whether anything was repaired.
    pub(crate) fn mend_range(&self, (segment, at): (SegmentId, u32), len: u64) -> bool {
        if !self.has_parity.load(Ordering::Acquire) {
            return false;
        }
        let Some((until, true)) = self.mendable(segment) else { return false };
        let mut repaired = 0;
        for head in self.parity_heads(segment, until).iter().filter(|head| head.covers(at.into(), len)) {
            let repairs = Stripe::read(&*self.store, head).mend().unwrap_or_default();
            repaired += self.write_repairs(segment, &repairs);
        }
        repaired > 0
    }

    /// Overwrites wrong bytes with correct ones, and returns how many were written. The next commit makes them durable.
    /// Bytes whose write fails stay wrong and will be found again.
    fn write_repairs(&self, segment: SegmentId, repairs: &[Repair]) -> u64 {
        let written = |(at, right): &&Repair| self.store.rewrite(segment, *at, right).is_ok();
        let bytes = repairs.iter().filter(written).map(|(_, right)| right.len() as u64).sum();
        if bytes > 0 {
            self.has_met.store(true, Ordering::Release);
        }
        bytes
    }

    /// Reads all parity and all covered bytes, and reports damage to `found`. With `repair`, also repairs what can be
    /// repaired. `go_on` gets the number of bytes read, and returns whether to continue. Returns the number of bytes
    /// written.
    pub(crate) fn verify_parity(
        &self,
        repair: bool,
        found: &mut dyn FnMut(Finding),
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> u64 {
        let mut repaired = 0;
        if !self.has_parity.load(Ordering::Acquire) {
            return 0;
        }
        let segments: Vec<SegmentId> = self.space.lock().iter().map(|(id, _)| id).collect();
        for segment in segments {
            let Some((len, may_write)) = self.mendable(segment) else { continue };
            let (heads, _) = find::heads(&*self.store, self.guid, segment, len);
            // Wide frames come after the narrow ones that they cover. A repair by the wide frame also repairs those.
            for head in heads.iter().rev() {
                let mut stripe = Stripe::read(&*self.store, head);
                if !stripe.is_sound() && self.space.lock().get(segment).is_some() {
                    found(Finding {
                        segment,
                        at: head.at,
                        data: stripe.bad_data.len(),
                        own: stripe.bad_parity.len() + stripe.bad_heads.len(),
                        can_mend: stripe.can_mend(),
                    });
                    if repair
                        && may_write
                        && let Some(repairs) = stripe.mend()
                    {
                        repaired += self.write_repairs(segment, &repairs);
                    }
                }
                if !go_on(u64::from(head.len)) {
                    return repaired;
                }
            }
        }
        repaired
    }
}

/// Copies the repaired bytes into a buffer that holds the segment from offset `base`.
fn patch(bytes: &mut [u8], base: u64, (at, right): &Repair) {
    let end = base + bytes.len() as u64;
    let (from, to) = (base.max(*at), end.min(at + right.len() as u64));
    if from >= to {
        return;
    }
    let index = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
    let into = bytes.get_mut(index(from, base)..index(to, base));
    if let (Some(into), Some(right)) = (into, right.get(index(from, *at)..index(to, *at))) {
        into.copy_from_slice(right);
    }
}
