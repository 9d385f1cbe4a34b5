//! Repair from parity: of a damaged block that a reader or a scrub found, and of parity frames themselves.
//!
//! Wrong bytes are overwritten in place, as in a mirror ([`heal`](super)). The correct bytes are known for
//! certain, and good pieces are not written. A crash during a repair leaves a bad piece as bad as before.
//!
//! Parity itself may be wrong: forged, or written by a broken machine. So parity that would change a block which
//! matches its hash is not used. In a mirror, each member is repaired from its own parity only.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use snowmelt_store::SegmentId;

use super::Copies;
use super::known::{Part, reads_max};
use crate::format::ptr::StoredPtr;
use crate::format::segment::{FRAME_HEADER, FrameHeader};
use crate::io::{Io, frame_header, verify};
use crate::parity::find::{self, Layout};
use crate::parity::{Head, Medium, Repair, Stripe};

/// Damage found while verifying all parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// In a mirror, the place of the member.
    pub(crate) member: Option<usize>,
    /// Offset of the parity frame.
    pub(crate) at: u32,
    /// Number of damaged data pieces.
    pub(crate) data: usize,
    /// Number of damaged parts of the frame itself: parity pieces and copies of the head. The frame counts as one more
    /// if it contradicts blocks that are right.
    pub(crate) own: usize,
    /// Whether a repair is possible.
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

    /// What a segment consists of, and the number of bytes that were read to find that out.
    fn layout(&self, medium: Medium<'_>, segment: SegmentId, len: u64) -> (Arc<Layout>, u64) {
        let search = || find::layout(medium, self.guid, segment, len);
        self.parity_heads.lock().layout((medium.place(), segment), len, search)
    }

    /// Rebuilds a damaged block in its place from parity, and writes the corrected bytes. Returns `None` if the pool
    /// has no parity, or too little; then nothing was written.
    pub(crate) fn heal_by_parity(&self, ptr: &StoredPtr, place: (SegmentId, u32)) -> Option<Copies> {
        if !self.has_parity.load(Ordering::Acquire) {
            return None;
        }
        let (len, may_write) = self.mendable(place.0)?;
        let media = Medium::all(&*self.store, place.0);
        let healed =
            media.into_iter().find_map(|medium| self.heal_on(medium, ptr, place, (len, may_write)))?;
        self.healed.fetch_add(1, Ordering::Relaxed);
        self.has_met.store(true, Ordering::Release);
        // The other members of a mirror get the block from this one.
        let spread = if healed.repaired > 0 { self.heal(ptr, place) } else { None };
        Some(match spread {
            Some(copies) => Copies { repaired: healed.repaired + copies.repaired, ..copies },
            None => healed,
        })
    }

    /// As [`heal_by_parity`](Self::heal_by_parity), on one medium.
    fn heal_on(
        &self,
        medium: Medium<'_>,
        ptr: &StoredPtr,
        place: (SegmentId, u32),
        (len, may_write): (u64, bool),
    ) -> Option<Copies> {
        let (segment, at) = (place.0, u64::from(place.1));
        let part: Part = (medium.place(), segment);
        let left = self.parity_heads.lock().left(part, len);
        if left == 0 {
            return None;
        }
        let mut frame = vec![0; FRAME_HEADER + ptr.psize as usize];
        let end = at + frame.len() as u64;
        medium.read_lossy(segment, at, &mut frame);
        let (layout, searched) = self.layout(medium, segment, len);
        let mut heads: Vec<&Head> = layout.heads.iter().filter(|head| head.covers(at, end - at)).collect();
        // Narrow frames first, because they need fewer reads.
        heads.sort_by_key(|head| head.len);
        let mut repairs = Vec::new();
        let mut in_vain = 0;
        for head in heads {
            if in_vain >= left {
                break;
            }
            if self.parity_heads.lock().is_hopeless(part, head.at) {
                continue;
            }
            let mut read = head.stripe_len();
            let mut stripe = Stripe::read(medium, head);
            let Some(mended) = safe_repairs(medium, &layout, &mut stripe, &(at..end), &mut read) else {
                self.parity_heads.lock().note_hopeless(part, head.at);
                in_vain += read;
                continue;
            };
            if !mended.is_empty() {
                mended.iter().for_each(|repair| patch(&mut frame, at, repair));
                repairs.extend(mended);
                if verify(frame.get(FRAME_HEADER..)?, ptr).is_ok()
                    && frame_header(&frame, ptr, place).is_some()
                {
                    break;
                }
                read += frame.len() as u64;
            }
            in_vain += read;
        }
        // A repair is accepted only if the block's hash is then correct.
        let is_right = !repairs.is_empty() && verify(frame.get(FRAME_HEADER..)?, ptr).is_ok();
        if !is_right {
            // Going through the heads takes time too.
            in_vain += searched + (layout.heads.len() * size_of::<Head>()) as u64;
        }
        self.parity_heads.lock().note_read(part, in_vain);
        if !is_right {
            return None;
        }
        let header = frame_header(&frame, ptr, place);
        let repaired = if may_write { self.write_repairs(medium, segment, &repairs) } else { 0 };
        Some(Copies { header, payload: Bytes::from(frame).slice(FRAME_HEADER..), repaired })
    }

    /// Repairs everything that is wrong in a range of a segment. Returns whether anything was repaired.
    pub(crate) fn mend_range(&self, (segment, at): (SegmentId, u32), len: u64) -> bool {
        if !self.has_parity.load(Ordering::Acquire) {
            return false;
        }
        let Some((until, true)) = self.mendable(segment) else { return false };
        let media = Medium::all(&*self.store, segment);
        media.into_iter().map(|medium| self.mend_on(medium, (segment, at), len, until)).sum::<u64>() > 0
    }

    /// As [`mend_range`](Self::mend_range), on one medium. Returns the number of bytes written.
    fn mend_on(&self, medium: Medium<'_>, (segment, at): (SegmentId, u32), len: u64, until: u64) -> u64 {
        let part: Part = (medium.place(), segment);
        let left = self.parity_heads.lock().left(part, until);
        if left == 0 {
            return 0;
        }
        let (layout, mut read) = self.layout(medium, segment, until);
        let mut repaired = 0;
        for head in layout.heads.iter().filter(|head| head.covers(at.into(), len)) {
            if read >= left {
                break;
            }
            if self.parity_heads.lock().is_hopeless(part, head.at) {
                continue;
            }
            read += head.stripe_len();
            let mut stripe = Stripe::read(medium, head);
            match safe_repairs(medium, &layout, &mut stripe, &(0..0), &mut read) {
                Some(repairs) => repaired += self.write_repairs(medium, segment, &repairs),
                None => self.parity_heads.lock().note_hopeless(part, head.at),
            }
        }
        self.parity_heads.lock().note_read(part, read);
        repaired
    }

    /// Overwrites wrong bytes with correct ones, and returns how many were written. The next commit makes them durable.
    /// Bytes whose write fails stay wrong and will be found again.
    fn write_repairs(&self, medium: Medium<'_>, segment: SegmentId, repairs: &[Repair]) -> u64 {
        let written = |(at, right): &&Repair| medium.rewrite(segment, *at, right).is_ok();
        let bytes = repairs.iter().filter(written).map(|(_, right)| right.len() as u64).sum();
        if bytes > 0 {
            self.has_met.store(true, Ordering::Release);
            self.parity_heads.lock().forget_hopeless(segment);
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
            for medium in Medium::all(&*self.store, segment) {
                if !self.verify_on(medium, segment, repair, found, go_on, &mut repaired) {
                    return repaired;
                }
            }
        }
        repaired
    }

    /// As [`verify_parity`](Self::verify_parity), for one segment on one medium. Returns whether to continue.
    fn verify_on(
        &self,
        medium: Medium<'_>,
        segment: SegmentId,
        repair: bool,
        found: &mut dyn FnMut(Finding),
        go_on: &mut dyn FnMut(u64) -> bool,
        repaired: &mut u64,
    ) -> bool {
        let Some((len, may_write)) = self.mendable(segment) else { return true };
        let layout = find::layout(medium, self.guid, segment, len);
        let mut left = reads_max(len);
        // Wide frames come after the narrow ones that they cover. A repair by the wide frame also repairs those.
        for head in layout.heads.iter().rev() {
            let finding =
                Finding { segment, member: medium.place(), at: head.at, data: 0, own: 1, can_mend: false };
            let mut read = head.stripe_len();
            if read > left {
                // More frames than any pool writes. None of the others is verified.
                found(finding);
                return true;
            }
            let mut stripe = Stripe::read(medium, head);
            if !stripe.is_sound() && self.space.lock().get(segment).is_some() {
                let own = stripe.bad_parity.len() + stripe.bad_heads.len();
                let data = stripe.bad_data.len();
                let is_enough = stripe.can_mend();
                let repairs = safe_repairs(medium, &layout, &mut stripe, &(0..0), &mut read);
                // If there is enough parity and it still cannot be used, it is wrong itself.
                let is_wrong = is_enough && repairs.is_none();
                let (data, own) = if is_wrong { (0, own + 1) } else { (data, own) };
                found(Finding { data, own, can_mend: repairs.is_some(), ..finding });
                if repair
                    && may_write
                    && let Some(repairs) = repairs
                {
                    *repaired += self.write_repairs(medium, segment, &repairs);
                }
            }
            left = left.saturating_sub(read);
            if !go_on(u64::from(head.len)) {
                return false;
            }
        }
        true
    }
}

/// The correct bytes of all bad parts of a stripe. `None` when there is too little parity, and when the repair would
/// change a block that is right as it is: then the parity is wrong. Blocks in the range `except` do not count.
/// `read` is increased by the number of bytes read.
fn safe_repairs(
    medium: Medium<'_>,
    layout: &Layout,
    stripe: &mut Stripe<'_>,
    except: &Range<u64>,
    read: &mut u64,
) -> Option<Vec<Repair>> {
    let segment = stripe.segment();
    let repairs = stripe.mend()?;
    let mut in_order: Vec<&Repair> = repairs.iter().collect();
    in_order.sort_by_key(|(at, _)| *at);
    debug_assert!(in_order.is_sorted_by(|a, b| a.0 + a.1.len() as u64 <= b.0), "repairs overlap");
    let mut frames: Vec<(u64, usize)> = Vec::new();
    for (at, right) in &in_order {
        frames.extend(layout.frames_in(*at, *at + right.len() as u64));
    }
    // A frame can overlap several repairs.
    frames.dedup();
    for (at, len) in frames {
        let end = at + len as u64;
        if at < except.end && except.start < end {
            continue;
        }
        let mut bytes = vec![0; len];
        medium.read_lossy(segment, at, &mut bytes);
        *read += len as u64;
        let first = in_order.partition_point(|(from, right)| *from + right.len() as u64 <= at);
        let mut over = in_order.iter().skip(first).take_while(|(from, _)| *from < end);
        if over.any(|repair| changes(&bytes, at, repair)) && is_right(&bytes, segment, at) {
            return None;
        }
    }
    Some(repairs)
}

/// Whether the frame of a block at `at` has a valid header, and a payload that matches the hash in it.
fn is_right(frame: &[u8], segment: SegmentId, at: u64) -> bool {
    let Some((header, payload)) = frame.split_at_checked(FRAME_HEADER) else { return false };
    FrameHeader::decode(header, segment, at).is_ok_and(|header| {
        header.psize as usize == payload.len() && *blake3::hash(payload).as_bytes() == header.hash
    })
}

/// The part of a buffer that a repair covers, and the correct bytes of that part. The buffer holds `len` bytes of the
/// segment from offset `base`.
fn overlap(len: usize, base: u64, (at, right): &Repair) -> Option<(Range<usize>, &[u8])> {
    let end = base + len as u64;
    let (from, to) = (base.max(*at), end.min(at + right.len() as u64));
    if from >= to {
        return None;
    }
    let index = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
    let right = right.get(index(from, *at)..index(to, *at))?;
    Some((index(from, base)..index(to, base), right))
}

/// Copies the repaired bytes into a buffer that holds the segment from offset `base`.
fn patch(bytes: &mut [u8], base: u64, repair: &Repair) {
    if let Some((range, right)) = overlap(bytes.len(), base, repair)
        && let Some(into) = bytes.get_mut(range)
    {
        into.copy_from_slice(right);
    }
}

/// Whether a repair would change a buffer that holds the segment from offset `base`.
fn changes(bytes: &[u8], base: u64, repair: &Repair) -> bool {
    overlap(bytes.len(), base, repair).is_some_and(|(range, right)| bytes.get(range) != Some(right))
}
