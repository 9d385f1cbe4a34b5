//! The images that a crash may leave: the durable state, plus a random part of the later operations.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::SegmentId;
use crate::memory::{Image, MemorySegment, MemoryStore};

use super::Op;
use super::rng::Rng;

/// The unit that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// The maximum length of the garbage beyond the end of an open segment.
const EXCESS_MAX: u64 = 8192;

/// An image that a crash may leave, and what is known about it.
#[derive(Debug)]
pub struct CrashImage {
    /// The number of operations in the log before the crash.
    pub point: usize,
    /// The number of this image among those of its point.
    pub variant: usize,
    /// The txg that was last published successfully. The image contains its uberblock, and all data that was synced
    /// before.
    pub published: Option<u64>,
    /// The contents after the crash.
    pub store: MemoryStore,
}

/// An iterator over the images of a range of crash points, in order.
#[derive(Debug)]
pub struct CrashImages {
    seed: u64,
    log: Vec<Op>,
    /// The state that is certainly durable at `point`.
    durable: Image,
    published: Option<u64>,
    /// The index of the first operation after the last sync before `point`.
    volatile_from: usize,
    point: usize,
    first_point: usize,
    last_point: usize,
    variant: usize,
    per_point: usize,
}

impl CrashImages {
    pub(super) fn new(
        seed: u64,
        initial: Image,
        log: Vec<Op>,
        points: impl RangeBounds<usize>,
        per_point: usize,
    ) -> Self {
        let first_point = match points.start_bound() {
            Bound::Included(&first) => first,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let last_point = match points.end_bound() {
            Bound::Included(&last) => Some(last),
            Bound::Excluded(&end) => end.checked_sub(1),
            Bound::Unbounded => Some(log.len()),
        };
        // For an empty range, `last_point` is less than `first_point`.
        let (first_point, last_point) = last_point.map_or((1, 0), |last| (first_point, last.min(log.len())));
        let mut images = Self {
            seed,
            published: initial.uberblocks.back().map(|u| u.txg),
            durable: initial,
            log,
            volatile_from: 0,
            point: 0,
            first_point,
            last_point,
            variant: 0,
            per_point,
        };
        images.durable.close_all();
        images.durable.total = None;
        while images.point < images.first_point && images.point < images.log.len() {
            images.advance();
        }
        images
    }

    /// Moves the crash point forward by one operation.
    fn advance(&mut self) {
        match &self.log[self.point] {
            Op::Sync => {
                for op in &self.log[self.volatile_from..self.point] {
                    apply_whole(&mut self.durable, op);
                }
                self.volatile_from = self.point + 1;
            }
            Op::Publish { txg, bytes, done: true } => {
                publish(&mut self.durable, *txg, bytes);
                self.published = Some(*txg);
            }
            _ => {}
        }
        self.point += 1;
    }

    fn image(&self, variant: usize) -> Image {
        let mut image = self.durable.clone();
        let mut luck = match variant {
            0 => Luck::all_lost(),
            1 => Luck::all_kept(),
            _ => Luck::random(Rng::new(&[self.seed, self.point as u64, variant as u64])),
        };
        for op in &self.log[self.volatile_from..self.point] {
            luck.apply(&mut image, op);
        }
        // The next operation may have been under way. This matters only for a publication: other operations are
        // handled as volatile ones at the next crash point.
        if let Some(Op::Publish { txg, bytes, .. }) = self.log.get(self.point)
            && luck.keeps()
        {
            publish(&mut image, *txg, bytes);
        }
        luck.add_excess(&mut image, &self.log[self.volatile_from..self.point]);
        image.close_all();
        image
    }
}

impl Iterator for CrashImages {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        if self.variant >= self.per_point {
            if self.point >= self.log.len() {
                return None;
            }
            self.advance();
            self.variant = 0;
        }
        if self.point > self.last_point || self.first_point > self.last_point || self.per_point == 0 {
            return None;
        }
        let variant = self.variant;
        self.variant += 1;
        let store = MemoryStore::from_image(self.image(variant));
        Some(CrashImage { point: self.point, variant, published: self.published, store })
    }
}

/// Decides randomly what happens to each volatile operation.
struct Luck {
    rng: Rng,
    /// The percentage of operations that are lost, and the percentage of the others that are torn.
    lost: u64,
    torn: u64,
    /// Whether missing bytes read as zeros, as in a file system, or as old contents of the disk.
    zeros: bool,
    excess: bool,
}

impl Luck {
    fn all_lost() -> Self {
        Self { rng: Rng::new(&[]), lost: 100, torn: 0, zeros: true, excess: false }
    }

    fn all_kept() -> Self {
        Self { rng: Rng::new(&[]), lost: 0, torn: 0, zeros: true, excess: false }
    }

    fn random(mut rng: Rng) -> Self {
        let lost = [10, 50, 90][rng.below(3) as usize];
        let torn = [0, 30, 100][rng.below(3) as usize];
        Self { lost, torn, zeros: rng.chance(50), excess: rng.chance(30), rng }
    }

    fn keeps(&mut self) -> bool {
        !self.rng.chance(self.lost)
    }

    fn apply(&mut self, image: &mut Image, op: &Op) {
        match op {
            // A corruption of existing bytes always stays.
            Op::Corrupt { .. } => apply_whole(image, op),
            Op::Publish { done: true, .. } | Op::Sync => {}
            _ if !self.keeps() => {}
            Op::Append { id, offset, data } | Op::Rewrite { id, offset, data }
                if self.rng.chance(self.torn) =>
            {
                self.tear(image, *id, *offset, data)
            }
            Op::Publish { txg, bytes, .. } => publish(image, *txg, bytes),
            Op::Append { id, offset, data } => self.write(image, *id, *offset as usize, data),
            _ => apply_whole(image, op),
        }
    }

    /// Writes some of the sectors that `data` touches.
    fn tear(&mut self, image: &mut Image, id: SegmentId, offset: u64, data: &[u8]) {
        let mut at = offset as usize;
        let mut rest = data;
        while !rest.is_empty() {
            let (sector, more) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
            if self.rng.chance(50) {
                self.write(image, id, at, sector);
            }
            at += sector.len();
            rest = more;
        }
    }

    /// Writes `data` at `at`. If the segment ends before `at`, the gap is filled with zeros or garbage.
    fn write(&mut self, image: &mut Image, id: SegmentId, at: usize, data: &[u8]) {
        // If the creation of the segment was lost, its bytes are lost too.
        let Some(segment) = image.segments.get_mut(&id) else { return };
        let bytes = Arc::make_mut(&mut segment.bytes);
        while bytes.len() < at {
            let fill = if self.zeros { 0 } else { self.rng.next() as u8 };
            bytes.push(fill);
        }
        overwrite(bytes, at, data);
    }

    fn add_excess(&mut self, image: &mut Image, ops: &[Op]) {
        if !self.excess {
            return;
        }
        for op in ops {
            let Op::Append { id, .. } = op else { continue };
            if let Some(segment) = image.segments.get(id) {
                let at = segment.bytes.len() + self.rng.below(EXCESS_MAX) as usize;
                self.write(image, *id, at, &[]);
            }
        }
    }
}

fn overwrite(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    let over = data.len().min(bytes.len() - at);
    let (old, new) = data.split_at(over);
    bytes[at..at + over].copy_from_slice(old);
    bytes.extend_from_slice(new);
}

fn publish(image: &mut Image, txg: u64, bytes: &[u8]) {
    // Cannot fail: the length was checked before the publication was logged.
    let _ = image.publish(txg, bytes);
}

/// Applies an operation completely. If the image lacks the segment, some operations have no effect.
fn apply_whole(image: &mut Image, op: &Op) {
    match op {
        Op::Create(id) => {
            image.segments.insert(*id, MemorySegment::default());
        }
        Op::Append { id, offset, data } => {
            if let Some(segment) = image.segments.get_mut(id) {
                let bytes = Arc::make_mut(&mut segment.bytes);
                let at = *offset as usize;
                if bytes.len() < at {
                    bytes.resize(at, 0);
                }
                overwrite(bytes, at, data);
            }
        }
        Op::Rewrite { id, offset, data } => {
            // Has no effect where the segment is shorter in this image.
            let _ = image.rewrite(*id, *offset, data);
        }
        Op::Reopen { id, len } => {
            if let Some(segment) = image.segments.get_mut(id) {
                Arc::make_mut(&mut segment.bytes).truncate(*len as usize);
            }
        }
        Op::Delete(id) => {
            image.segments.remove(id);
        }
        Op::Corrupt { id, offset, xor } => {
            // The byte may not exist in this image.
            let _ = image.corrupt(*id, *offset, *xor);
        }
        // Publications are handled separately.
        Op::Publish { .. } | Op::Sync => {}
    }
}
