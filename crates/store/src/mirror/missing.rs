//! What a member of a mirror lacks. It corresponds to the dirty time log of ZFS (vdev.c), but lists segments, not
//! txgs.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::SegmentId;

/// The maximum number of segments that are listed one by one. A pool has two or three open at a time.
pub(super) const SEGMENTS_MAX: usize = 11;

/// The segments that a member lacks, completely or from some offset on. The list may contain more than the member
/// lacks, but never less.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// For each of these segments, the number of bytes that the member certainly has.
    segments: BTreeMap<SegmentId, u64>,
    /// The ids of segments of which the member may have nothing.
    whole: Range<u64>,
}

impl Missing {
    /// The lists as a record contains them.
    pub(super) fn new(segments: impl IntoIterator<Item = (SegmentId, u64)>, whole: Range<u64>) -> Self {
        let mut missing = Self { segments: BTreeMap::new(), whole };
        segments.into_iter().for_each(|(id, len)| missing.note(id, len));
        missing
    }

    /// All segments with ids below `end`.
    pub(super) fn everything(end: u64) -> Self {
        Self { segments: BTreeMap::new(), whole: 0..end }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.whole.is_empty()
    }

    pub(super) fn segments(&self) -> &BTreeMap<SegmentId, u64> {
        &self.segments
    }

    pub(super) fn whole(&self) -> &Range<u64> {
        &self.whole
    }

    /// Whether any part of a segment is lacking.
    pub(super) fn lacks(&self, id: SegmentId) -> bool {
        self.whole.contains(&id.0) || self.segments.contains_key(&id)
    }

    /// How many bytes of a lacking segment are certainly present.
    pub(super) fn certain(&self, id: SegmentId) -> u64 {
        match self.whole.contains(&id.0) {
            true => 0,
            false => self.segments.get(&id).copied().unwrap_or(0),
        }
    }

    /// Notes that a segment is lacking from `len` on.
    pub(super) fn note(&mut self, id: SegmentId, len: u64) {
        if self.whole.contains(&id.0) {
            return;
        }
        self.segments.entry(id).and_modify(|known| *known = len.min(*known)).or_insert(len);
        if self.segments.len() > SEGMENTS_MAX {
            self.widen();
        }
    }

    /// Treats all listed segments, and those between them, as completely lacking.
    fn widen(&mut self) {
        let ids = self.segments.keys().map(|id| id.0);
        let (first, last) = (ids.clone().min().unwrap_or(0), ids.max().unwrap_or(0));
        let end = last.saturating_add(1);
        self.whole = match self.whole.is_empty() {
            true => first..end,
            false => self.whole.start.min(first)..self.whole.end.max(end),
        };
        let whole = self.whole.clone();
        self.segments.retain(|id, _| !whole.contains(&id.0));
    }

    /// From now on, all segments with ids from `next` on are lacking too.
    pub(super) fn begin(&mut self, next: u64) {
        let start = if self.whole.is_empty() { next } else { self.whole.start.min(next) };
        self.whole = start..u64::MAX;
        self.segments.retain(|id, _| id.0 < start || id.0 == u64::MAX);
    }

    /// From now on, segments with ids from `next` on are not lacking.
    pub(super) fn end(&mut self, next: u64) {
        self.whole.end = self.whole.end.min(next);
        if self.whole.is_empty() {
            self.whole = 0..0;
        }
    }

    /// Notes that a segment is complete. Segments that lacked completely must be copied in the order of their ids,
    /// because this also marks the ids before it as present.
    pub(super) fn done(&mut self, id: SegmentId) {
        self.segments.remove(&id);
        if self.whole.contains(&id.0) {
            self.whole.start = id.0.saturating_add(1);
        }
        self.end(u64::MAX);
    }

    /// The union of both.
    pub(super) fn and(mut self, other: &Self) -> Self {
        self.whole = match (self.whole.is_empty(), other.whole.is_empty()) {
            (_, true) => self.whole,
            (true, false) => other.whole.clone(),
            (false, false) => self.whole.start.min(other.whole.start)..self.whole.end.max(other.whole.end),
        };
        other.segments.iter().for_each(|(&id, &len)| self.note(id, len));
        self
    }

    /// Removes a segment that was deleted.
    pub(super) fn forget(&mut self, id: SegmentId) {
        self.segments.remove(&id);
    }

    /// Notes that nothing is lacking.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_named_rather_than_less() {
        let mut missing = Missing::default();
        assert!(missing.is_empty());
        missing.note(SegmentId(5), 100);
        missing.note(SegmentId(5), 200);
        missing.begin(9);
        assert_eq!((missing.certain(SegmentId(5)), missing.lacks(SegmentId(8))), (100, false));
        assert!(missing.lacks(SegmentId(9)) && missing.lacks(SegmentId(1 << 40)));
        missing.end(12);
        assert!(missing.lacks(SegmentId(11)) && !missing.lacks(SegmentId(12)));
        missing.done(SegmentId(10));
        assert!(!missing.lacks(SegmentId(9)) && missing.lacks(SegmentId(11)));
        missing.done(SegmentId(11));
        missing.done(SegmentId(5));
        assert!(missing.is_empty());
        for id in 0..=SEGMENTS_MAX as u64 {
            missing.note(SegmentId(3 * id), 7);
        }
        assert!((0..=SEGMENTS_MAX as u64).all(|id| missing.lacks(SegmentId(3 * id))));
        assert!(missing.segments().len() <= SEGMENTS_MAX);
    }
}
