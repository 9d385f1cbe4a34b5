//! Mending by parity: a block that a reader or a scrub found damaged, and parity itself.
//!
//! What is mended is written over what is bad, in place, as on a mirror ([`heal`](crate::heal)): the right bytes are
//! known beyond doubt, a piece that is good is not written to, and torn by a crash a bad piece is as bad as before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use snowmelt_store::SegmentId;

use super::find::{self, read_lossy};
use super::head::Head;
use super::stripe::{Repair, Stripe};
use crate::heal::Copies;
use crate::io::{Io, frame_header, verify};
use crate::ptr::StoredPtr;
use crate::segment::FRAME_HEADER;

/// Where the parity frames are of the segment that was looked at last: damage comes in heaps.
#[derive(Debug, Default)]
pub(crate) struct HeadCache(Option<(SegmentId, u64, Arc<Vec<Head>>)>);

/// Damage that a look at all parity found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Where the parity frame begins.
    pub(crate) at: u32,
    /// What it covers that is damaged, pieces.
    pub(crate) data: usize,
    /// What of the frame itself is: pieces, copies of the head.
    pub(crate) own: usize,
    /// Whether there is parity enough to mend it.
    pub(crate) can_mend: bool,
}

impl Io {
    /// How far a segment's bytes are those that were last written there, for certain, and whether what is mended may be
    /// written to it.
    ///
    /// What is beyond the end may be left from before a crash. While the pool is being opened the ends are not known yet:
    /// then nothing is written, and that a block's hash holds has to do.
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
                // What is still in memory was not seen.
                cache.0 = is_whole.then(|| (segment, len, heads.clone()));
                heads
            }
        }
    }

    /// Rebuilds a damaged block at its place from parity, and writes what was wrong anew. `None` when the pool has none, or
    /// not enough; then nothing was written.
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
        // Narrow ones first: they are less to read.
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
        // Only what makes a block right that is known by its hash is believed.
        let header = frame_header(&frame, ptr, place);
        verify(frame.get(FRAME_HEADER..)?, ptr).ok()?;
        let repaired = if may_write { self.write_repairs(segment, &repairs) } else { 0 };
        self.healed.fetch_add(1, Ordering::Relaxed);
        self.has_met.store(true, Ordering::Release);
        Some(Copies { header, payload: Bytes::from(frame).slice(FRAME_HEADER..), repaired })
    }

    /// Mends whatever is wrong in a part of a segment. Says whether anything was.
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

    /// Writes right bytes where wrong ones are, and gives how many. The next commit makes them durable. Where that fails
    /// they stay wrong, and are found again.
    fn write_repairs(&self, segment: SegmentId, repairs: &[Repair]) -> u64 {
        let written = |(at, right): &&Repair| self.store.rewrite(segment, *at, right).is_ok();
        let bytes = repairs.iter().filter(written).map(|(_, right)| right.len() as u64).sum();
        if bytes > 0 {
            self.has_met.store(true, Ordering::Release);
        }
        bytes
    }

    /// Reads all parity and what it covers, and tells what is damaged; with `repair` that is mended where it can be.
    /// `go_on` is told bytes read, and says whether to go on. Gives the bytes written.
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
            // Wide frames come behind the narrow ones that they cover, which then need no mending of their own.
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

/// Puts right bytes into a part of a segment that begins at `base`.
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
