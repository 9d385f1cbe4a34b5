//! Prefetching: data that will be read soon is requested early, so that a source with high latency causes one delay
//! instead of one for each file.

use snowmelt_zpl::{Attributes, FileKind, Objects};
use std::collections::VecDeque;
use std::iter::Fuse;

/// Maximum number of items that are prefetched.
const ITEMS_MAX: usize = 512;
/// Maximum number of bytes that are prefetched.
const BYTES_MAX: u64 = 8 << 20;
/// Files up to this size are prefetched in full.
const SMALL: u64 = 256 << 10;

/// An iterator that prefetches its items some time before it returns them.
pub(crate) struct Ahead<I: Iterator, F> {
    inner: Fuse<I>,
    /// Prefetches an item, and returns the number of bytes.
    ask: F,
    waiting: VecDeque<(I::Item, u64)>,
    bytes: u64,
}

/// Iterates over `things`, and calls `ask` for each item some time before it is returned.
pub(crate) fn ahead<I: IntoIterator, F: FnMut(&I::Item) -> u64>(things: I, ask: F) -> Ahead<I::IntoIter, F> {
    Ahead { inner: things.into_iter().fuse(), ask, waiting: VecDeque::new(), bytes: 0 }
}

impl<I: Iterator, F: FnMut(&I::Item) -> u64> Iterator for Ahead<I, F> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        while self.waiting.len() < ITEMS_MAX && self.bytes < BYTES_MAX {
            let Some(thing) = self.inner.next() else { break };
            let bytes = (self.ask)(&thing);
            self.bytes += bytes;
            self.waiting.push_back((thing, bytes));
        }
        let (thing, bytes) = self.waiting.pop_front()?;
        self.bytes -= bytes;
        Some(thing)
    }
}

/// Prefetches the content of a small file. Returns its size, or 0 for anything else.
pub(crate) fn content<O: Objects>(objects: &O, attributes: &Attributes) -> u64 {
    if attributes.kind() != FileKind::File || attributes.size > SMALL {
        return 0;
    }
    objects.prefetch_content(attributes.object);
    attributes.size
}

/// Divides a range into pieces of at most `len` bytes (offset, length). Each is prefetched some time before it is
/// returned.
pub(crate) fn pieces<'a, O: Objects>(
    objects: &'a O,
    object: u64,
    (from, to): (u64, u64),
    len: u64,
) -> impl Iterator<Item = (u64, u64)> + use<'a, O> {
    let offsets = (0..to.saturating_sub(from).div_ceil(len)).map(move |number| from + number * len);
    ahead(offsets.map(move |at| (at, len.min(to - at))), move |(at, len)| {
        objects.prefetch_data(object, *at, *len);
        *len
    })
}

/// Iterates over ranges (offset, length). The beginning of each is prefetched some time before it is returned.
pub(crate) fn ranges<'a, O: Objects>(
    objects: &'a O,
    object: u64,
    ranges: Vec<(u64, u64)>,
    len_max: u64,
) -> impl Iterator<Item = (u64, u64)> + use<'a, O> {
    ahead(ranges, move |(at, len)| {
        let len = len_max.min(*len);
        objects.prefetch_extent(object, *at, len);
        len
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn things_come_in_order_and_are_asked_for_before() {
        let asked = RefCell::new(Vec::new());
        let mut things = ahead(0..2000_u64, |thing| {
            asked.borrow_mut().push(*thing);
            0
        });
        assert_eq!(things.next(), Some(0));
        assert_eq!(asked.borrow().len(), ITEMS_MAX);
        assert!(things.eq(1..2000));
        assert!(asked.into_inner().into_iter().eq(0..2000));
    }

    #[test]
    fn bytes_are_bounded_and_large_things_come_one_by_one() {
        let asked = RefCell::new(0);
        let mut things = ahead([BYTES_MAX / 2, BYTES_MAX, 3 * BYTES_MAX, 1], |bytes| {
            *asked.borrow_mut() += 1;
            *bytes
        });
        let mut so_far = Vec::new();
        while things.next().is_some() {
            so_far.push(*asked.borrow());
        }
        assert_eq!(so_far, [2, 2, 3, 4]);
    }
}
