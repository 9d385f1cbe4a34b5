//! The parts of a segment: which objects it consists of.
//!
//! A segment is the concatenation of its parts. A part is an object whose name contains its position:
//! `segments/<id>/<offset>-<length>-<stamp>`. A greater stamp belongs to a later writer, or to the same writer after
//! it has cut the segment. A part replaces everything that parts with smaller stamps have from its offset on. A part
//! that leaves a gap is ignored. `docs/format/object-store.md`, "Segments", explains why this is enough.

use std::sync::Arc;

use bytes::Bytes;

use crate::SegmentId;

/// The folder of all parts.
pub(crate) const FOLDER: &str = "segments";

/// Identifies a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Part {
    pub(crate) id: SegmentId,
    /// The offset in the segment.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) stamp: Stamp,
}

/// The writer of a part: the epoch of the owner (upper 40 bits), and how often it had cut a segment before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    /// Bits for the number of cuts.
    const CUT_BITS: u32 = 24;

    pub(crate) fn new(epoch: u64, cuts: u64) -> Self {
        Self(epoch << Self::CUT_BITS | cuts & ((1 << Self::CUT_BITS) - 1))
    }
}

impl Part {
    /// The name of the object.
    pub(crate) fn name(&self) -> String {
        let Self { id, offset, len, stamp } = self;
        format!("{FOLDER}/{id}/{offset:010x}-{len:010x}-{:016x}", stamp.0)
    }

    /// Parses the name of an object of `len` bytes. `None` if it is not a part, or if its length is wrong.
    pub(crate) fn parse(name: &str, len: u64) -> Option<Self> {
        let (id, rest) = name.strip_prefix(FOLDER)?.strip_prefix('/')?.split_once('/')?;
        let mut numbers = rest.splitn(3, '-').map(|text| u64::from_str_radix(text, 16).ok());
        let (offset, said, stamp) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let id = SegmentId(u64::from_str_radix(id, 16).ok()?);
        let part = Self { id, offset, len: said, stamp: Stamp(stamp) };
        (said == len && offset.checked_add(len).is_some() && part.name() == name).then_some(part)
    }
}

/// A run of a segment's bytes, which starts at the beginning of a part.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    pub(crate) part: Part,
    /// The end in the segment. A later part may have cut it.
    pub(crate) end: u64,
    /// The bytes, until the object is uploaded.
    pub(crate) bytes: Option<Arc<[Bytes]>>,
    /// Whether publications carry the bytes, instead of an object.
    pub(crate) kept: bool,
}

impl Extent {
    /// Returns the valid bytes that are in memory.
    pub(crate) fn chunks(&self) -> Vec<Bytes> {
        let mut left = (self.end - self.part.offset) as usize;
        let mut chunks = self.bytes.iter().flat_map(|bytes| bytes.iter().cloned()).collect::<Vec<_>>();
        chunks.retain_mut(|chunk| {
            chunk.truncate(left);
            left -= chunk.len();
            !chunk.is_empty()
        });
        chunks
    }
}

/// The extents of a segment.
#[derive(Debug, Default)]
pub(crate) struct Extents(Vec<Extent>);

impl Extents {
    /// Builds the extents from the parts, which may be in any order.
    pub(crate) fn resolve(parts: &mut [Part]) -> Self {
        parts.sort_unstable_by_key(|part| (part.stamp, part.offset));
        let mut extents = Self::default();
        for part in parts {
            if part.offset <= extents.end() {
                extents.cut(part.offset);
                extents.push(*part, None);
            }
        }
        extents
    }

    /// The end of the segment.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |extent| extent.end)
    }

    /// Removes the bytes from `len` on.
    pub(crate) fn cut(&mut self, len: u64) {
        // They follow one another.
        while self.0.pop_if(|last| last.part.offset >= len).is_some() {}
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(len);
        }
    }

    /// Adds a part at the end. An empty part is skipped, because it has no bytes.
    pub(crate) fn push(&mut self, part: Part, bytes: Option<Arc<[Bytes]>>) {
        if part.len > 0 {
            self.0.push(Extent { part, end: part.offset + part.len, bytes, kept: false });
        }
    }

    /// Marks the last extent as carried by publications.
    pub(crate) fn keep_last(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.kept = true;
        }
    }

    /// Marks the extents in `kept` as carried by publications, and adds their bytes.
    pub(crate) fn keep(&mut self, kept: &[(Part, Bytes)]) {
        for extent in &mut self.0 {
            if let Some((_, bytes)) = kept.iter().find(|(part, _)| *part == extent.part) {
                (extent.bytes, extent.kept) = (Some([bytes.clone()].into()), true);
            }
        }
    }

    /// The extents that publications carry.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Extent> {
        self.0.iter().filter(|extent| extent.kept)
    }

    /// Removes the kept extents from the end and returns their bytes, so that they can be written again as one part.
    pub(crate) fn take_kept(&mut self) -> Vec<Bytes> {
        let from = self.0.iter().rposition(|extent| !extent.kept).map_or(0, |at| at + 1);
        self.0.drain(from..).flat_map(|extent| extent.chunks()).collect()
    }

    /// Drops the bytes of a part whose object is uploaded.
    pub(crate) fn arrived(&mut self, part: &Part) {
        if let Some(extent) = self.0.iter_mut().find(|extent| extent.part == *part) {
            extent.bytes = None;
        }
    }

    /// The extents that contain bytes of a range, in order.
    pub(crate) fn covering(&self, start: u64, end: u64) -> impl Iterator<Item = &Extent> {
        let from = self.0.partition_point(|extent| extent.end <= start);
        self.0.iter().skip(from).take_while(move |extent| extent.part.offset < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, len: u64, epoch: u64, cuts: u64) -> Part {
        Part { id: SegmentId(7), offset, len, stamp: Stamp::new(epoch, cuts) }
    }

    fn shape(parts: &[Part]) -> Vec<(u64, u64, u64)> {
        let mut parts = parts.to_vec();
        parts.reverse();
        let extents = Extents::resolve(&mut parts);
        extents.covering(0, u64::MAX).map(|e| (e.part.offset, e.end, e.part.stamp.0 >> 24)).collect()
    }

    #[test]
    fn names_are_read_back_and_others_are_not() {
        let part = part(4096, 100, 3, 2);
        assert_eq!(part.name(), "segments/0000000000000007/0000001000-0000000064-0000000003000002");
        assert_eq!(Part::parse(&part.name(), 100), Some(part));
        // A part whose length differs from its name is torn.
        assert_eq!(Part::parse(&part.name(), 99), None);
        for name in [
            "segments/7/0000001000-0000000064-0000000003000002",
            "segments/0000000000000007/0000001000-0000000064",
            "segments/0000000000000007/0000001000-0000000064-0000000003000002-x",
            "segments/0000000000000007/+000001000-0000000064-0000000003000002",
            "segments/x",
            "label",
            "",
        ] {
            assert_eq!(Part::parse(name, 100), None, "{name}");
        }
    }

    #[test]
    fn parts_follow_one_another() {
        assert_eq!(shape(&[part(0, 10, 1, 0), part(10, 5, 1, 0)]), [(0, 10, 1), (10, 15, 1)]);
        assert_eq!(shape(&[part(0, 0, 1, 0)]), []);
        assert_eq!(shape(&[]), []);
    }

    #[test]
    fn what_follows_a_gap_does_not_count() {
        assert_eq!(shape(&[part(0, 10, 1, 0), part(11, 5, 1, 0)]), [(0, 10, 1)]);
        assert_eq!(shape(&[part(5, 10, 1, 0)]), []);
    }

    #[test]
    fn a_later_owner_cuts_what_an_earlier_one_left() {
        // The last part of the earlier owner was not committed. It makes no difference if it is uploaded late.
        let parts = [part(0, 10, 1, 0), part(10, 50, 1, 0), part(10, 5, 2, 0), part(15, 5, 2, 0)];
        assert_eq!(shape(&parts), [(0, 10, 1), (10, 15, 2), (15, 20, 2)]);
        // A cut within a part, and a cut to length zero.
        assert_eq!(shape(&[part(0, 10, 1, 0), part(4, 2, 1, 1)]), [(0, 4, 1), (4, 6, 1)]);
        assert_eq!(shape(&[part(0, 10, 1, 0), part(0, 3, 2, 0)]), [(0, 3, 2)]);
        assert_eq!(shape(&[part(0, 10, 1, 0), part(4, 0, 2, 0)]), [(0, 4, 1)]);
    }

    #[test]
    fn ranges_find_their_extents() {
        let extents = Extents::resolve(&mut [part(0, 10, 1, 0), part(10, 10, 1, 0), part(20, 10, 1, 0)]);
        let found = |start, end| extents.covering(start, end).map(|e| e.part.offset).collect::<Vec<_>>();
        assert_eq!(found(0, 1), [0]);
        assert_eq!(found(9, 11), [0, 10]);
        assert_eq!(found(10, 20), [10]);
        assert_eq!(found(10, 21), [10, 20]);
        assert_eq!(found(30, 40), [0; 0]);
    }
}
