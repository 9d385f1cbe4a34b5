//! Reading parts in windows. A request costs much more than the transfer of some extra bytes.
//!
//! A small part is a single window; metadata is mostly in such parts. Windows of a larger part are read one by one
//! while reads are random. For sequential reads, they are read in runs whose length doubles. Recent windows stay in
//! memory.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use parking_lot::Mutex;

use super::parts::Part;

/// The maximum length of a part that is a single window.
pub(crate) const WHOLE_MAX: u64 = 1 << 20;
/// The length of a window in larger parts.
pub(crate) const WINDOW: u64 = 256 << 10;
/// The maximum number of windows in a run of sequential reads.
const RUN_MAX: u64 = 16;
/// The maximum length of the windows in memory, in bytes.
const MEMORY_MAX: usize = 48 << 20;
/// The maximum number of sequential readers that are tracked.
const STREAMS_MAX: usize = 64;

/// A window: its part, and its number in the part.
pub(crate) type Place = (Part, u64);

#[derive(Debug, Default)]
pub(crate) struct Windows {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    windows: HashMap<Place, (Bytes, u64)>,
    by_use: BTreeMap<u64, Place>,
    bytes: usize,
    clock: u64,
    /// For each sequential reader: the window at which it would continue, and the length of its last run.
    streams: Vec<(Place, u64)>,
}

/// The length of the windows of `part`.
pub(crate) fn window_len(part: &Part) -> u64 {
    if part.len <= WHOLE_MAX { part.len.max(1) } else { WINDOW }
}

/// The range of a window in its part.
pub(crate) fn range(place: &Place) -> (u64, u64) {
    let (part, number) = place;
    let len = window_len(part);
    (number * len, ((number + 1) * len).min(part.len))
}

impl Windows {
    /// Returns a window if it is in memory.
    pub(crate) fn get(&self, place: &Place) -> Option<Bytes> {
        let inner = &mut *self.inner.lock();
        inner.clock += 1;
        let (bytes, used) = inner.windows.get_mut(place)?;
        inner.by_use.remove(used);
        *used = inner.clock;
        inner.by_use.insert(inner.clock, *place);
        Some(bytes.clone())
    }

    /// Adds a window, and removes the least recently used ones if there are too many.
    pub(crate) fn put(&self, place: Place, bytes: Bytes) {
        let inner = &mut *self.inner.lock();
        inner.clock += 1;
        inner.bytes += bytes.len();
        if let Some((old, used)) = inner.windows.insert(place, (bytes, inner.clock)) {
            inner.bytes -= old.len();
            inner.by_use.remove(&used);
        }
        inner.by_use.insert(inner.clock, place);
        while inner.bytes > MEMORY_MAX
            && let Some((_, oldest)) = inner.by_use.pop_first()
        {
            if let Some((bytes, _)) = inner.windows.remove(&oldest) {
                inner.bytes -= bytes.len();
            }
        }
    }

    /// Returns how many windows to read from `place` on. The window at `place` is in no cache.
    pub(crate) fn run(&self, place: &Place) -> u64 {
        let (part, number) = *place;
        let left = part.len.div_ceil(window_len(&part)).saturating_sub(number).max(1);
        let inner = &mut *self.inner.lock();
        let before = inner.streams.iter().position(|(next, _)| next == place);
        let run = before.map_or(1, |at| (inner.streams.remove(at).1 * 2).min(RUN_MAX)).min(left);
        if inner.streams.len() >= STREAMS_MAX {
            inner.streams.remove(0);
        }
        inner.streams.push(((part, number + run), run));
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SegmentId;
    use crate::object::parts::Stamp;

    fn part(len: u64) -> Part {
        Part { id: SegmentId(1), offset: 0, len, stamp: Stamp::new(1, 0) }
    }

    #[test]
    fn small_parts_are_one_window() {
        assert_eq!(range(&(part(1000), 0)), (0, 1000));
        assert_eq!(range(&(part(WHOLE_MAX), 0)), (0, WHOLE_MAX));
        assert_eq!(range(&(part(WHOLE_MAX + 1), 4)), (WHOLE_MAX, WHOLE_MAX + 1));
    }

    #[test]
    fn runs_grow_while_reads_follow_one_another() {
        let windows = Windows::default();
        let part = part(64 << 20);
        let mut at = 0;
        let mut runs = Vec::new();
        for _ in 0..6 {
            let run = windows.run(&(part, at));
            runs.push(run);
            at += run;
        }
        assert_eq!(runs, [1, 2, 4, 8, 16, 16]);
        assert_eq!(windows.run(&(part, 200)), 1);
        // The position of the other reader is still known. At the end of the part, only the remaining windows are
        // read.
        assert_eq!(windows.run(&(part, at)), 16);
        assert_eq!(windows.run(&(part, 255)), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go_first() {
        let windows = Windows::default();
        let part = part(1 << 30);
        let count = (MEMORY_MAX as u64 / WINDOW) + 10;
        let bytes = Bytes::from(vec![0; WINDOW as usize]);
        for number in 0..count {
            windows.put((part, number), bytes.clone());
            assert!(windows.get(&(part, 0)).is_some());
        }
        assert!(windows.get(&(part, 1)).is_none());
        assert!(windows.get(&(part, count - 1)).is_some());
        assert!(windows.inner.lock().bytes <= MEMORY_MAX);
        windows.put((part, 0), bytes);
        assert!(windows.inner.lock().bytes <= MEMORY_MAX);
    }
}
