//! Results of earlier searches for parity, so that the same bytes are not read again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use snowmelt_store::SegmentId;

use crate::parity::find::Layout;

/// A segment on one medium: the place of the member of a mirror, and the segment.
pub(super) type Part = (Option<usize>, SegmentId);

/// Number of layouts that are kept. Damage often comes in clusters: in a segment of data and one of nodes, on the
/// members of a mirror.
const LAYOUTS_MAX: usize = 4;

/// The parity of a segment is no longer read when the bytes that were read in vain exceed this many times the segment's
/// length by [`READS_BASE`]. In a pool that is only damaged, each byte has at most two parity frames. Forged heads are
/// short, and each of them can name 4 MiB.
const READS_SHARE: u64 = 16;
const READS_BASE: u64 = 64 << 20;

/// How many bytes may be read for the parity of a segment of this length.
pub(super) fn reads_max(len: u64) -> u64 {
    len.saturating_mul(READS_SHARE).saturating_add(READS_BASE)
}

/// The layouts of segments, and the repairs that failed.
#[derive(Debug, Default)]
pub(crate) struct HeadCache {
    /// The layouts of the segments that were examined last, with the lengths of the segments.
    layouts: Vec<(Part, u64, Arc<Layout>)>,
    /// Repairs that were tried since the pool was opened or a scrub began.
    tried: BTreeMap<Part, Tried>,
}

#[derive(Debug, Default)]
struct Tried {
    /// Number of bytes that were read in vain.
    read: u64,
    /// Offsets of the parity frames whose stripe cannot be repaired.
    hopeless: BTreeSet<u32>,
}

impl HeadCache {
    /// The layout of the first `len` bytes of a segment, and the number of bytes that `search` read for it.
    pub(super) fn layout(
        &mut self,
        part: Part,
        len: u64,
        search: impl FnOnce() -> Layout,
    ) -> (Arc<Layout>, u64) {
        if let Some((.., layout)) = self.layouts.iter().find(|(of, until, _)| (*of, *until) == (part, len)) {
            return (layout.clone(), 0);
        }
        let layout = Arc::new(search());
        self.layouts.retain(|(of, ..)| *of != part);
        // If bytes are still in the writer's buffer, the search may have missed frames, so the result is not kept.
        if layout.is_whole {
            if self.layouts.len() >= LAYOUTS_MAX {
                self.layouts.remove(0);
            }
            self.layouts.push((part, len, layout.clone()));
        }
        (layout, len)
    }

    /// How many bytes may still be read in vain.
    pub(super) fn left(&self, part: Part, len: u64) -> u64 {
        reads_max(len).saturating_sub(self.tried.get(&part).map_or(0, |tried| tried.read))
    }

    /// Notes bytes that were read in vain.
    pub(super) fn note_read(&mut self, part: Part, bytes: u64) {
        if bytes > 0 {
            let tried = self.tried.entry(part).or_default();
            tried.read = tried.read.saturating_add(bytes);
        }
    }

    /// Whether the stripe of the parity frame at `at` cannot be repaired.
    pub(super) fn is_hopeless(&self, part: Part, at: u32) -> bool {
        self.tried.get(&part).is_some_and(|tried| tried.hopeless.contains(&at))
    }

    /// Notes that the stripe of the parity frame at `at` cannot be repaired.
    pub(super) fn note_hopeless(&mut self, part: Part, at: u32) {
        self.tried.entry(part).or_default().hopeless.insert(at);
    }

    /// Bytes of a segment were repaired, so that more of its stripes may be repairable. The bytes that were read still
    /// count.
    pub(super) fn forget_hopeless(&mut self, segment: SegmentId) {
        let parts = self.tried.iter_mut().filter(|((_, of), _)| *of == segment);
        parts.for_each(|(_, tried)| tried.hopeless.clear());
    }

    /// Lets all parity be tried again, at the beginning of a scrub.
    pub(crate) fn forget_tried(&mut self) {
        self.tried.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::find;

    fn empty() -> Layout {
        find::layout(crate::parity::Medium::Single(&snowmelt_store::MemoryStore::new()), 1, SegmentId(1), 0)
    }

    #[test]
    fn what_was_tried_is_remembered_for_each_member() {
        let mut known = HeadCache::default();
        let (a, b) = ((Some(0), SegmentId(1)), (Some(1), SegmentId(1)));
        known.note_hopeless(a, 8);
        known.note_read(a, reads_max(100) - 1);
        assert!(known.is_hopeless(a, 8) && !known.is_hopeless(a, 16) && !known.is_hopeless(b, 8));
        assert_eq!((known.left(a, 100), known.left(b, 100)), (1, reads_max(100)));
        known.note_read(a, u64::MAX);
        assert_eq!(known.left(a, 100), 0);
        // A repair of some bytes makes other stripes repairable, but gives no more reads.
        known.forget_hopeless(SegmentId(1));
        assert!(!known.is_hopeless(a, 8));
        assert_eq!(known.left(a, 100), 0);
        known.forget_tried();
        assert_eq!(known.left(a, 100), reads_max(100));
    }

    #[test]
    fn the_layouts_of_the_last_segments_are_kept() {
        let mut known = HeadCache::default();
        let mut searches = 0;
        let mut read = |member: usize, len: u64| {
            let search = || {
                searches += 1;
                empty()
            };
            known.layout((Some(member), SegmentId(1)), len, search).1
        };
        assert_eq!((read(0, 10), read(0, 10), read(1, 10)), (10, 0, 10));
        // A segment that has grown is searched again.
        assert_eq!((read(0, 20), read(0, 20), read(1, 10)), (20, 0, 0));
        assert_eq!((read(2, 10), read(3, 10), read(4, 10)), (10, 10, 10));
        assert_eq!((read(4, 10), read(1, 10)), (0, 10));
        assert_eq!(searches, 7);
    }
}
