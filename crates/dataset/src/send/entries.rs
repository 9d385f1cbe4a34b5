//! Entries of an objset tree in order, with some look-ahead, and places between entries.

use std::collections::VecDeque;

use snowmelt_pool::{Entry, Range, View};

use crate::error::DatasetError;
use crate::objset::key::{OBJECT_MAX, ObjsetKey};

/// Decoded entries of a key range.
pub(super) struct Entries {
    range: Range,
    ahead: VecDeque<(ObjsetKey, Entry)>,
}

impl Entries {
    /// The entries of `[from, to)`, or to the end.
    pub(super) fn new(view: &View, from: &[u8], to: Option<&[u8]>) -> Self {
        Self { range: view.range(from, to), ahead: VecDeque::new() }
    }

    /// The entry `n` places after the next one. Does not advance.
    pub(super) fn peek(&mut self, n: usize) -> Result<Option<&(ObjsetKey, Entry)>, DatasetError> {
        while self.ahead.len() <= n {
            let Some(item) = self.range.next() else { return Ok(None) };
            let (key, entry) = item?;
            self.ahead.push_back((ObjsetKey::decode(&key)?, entry));
        }
        Ok(self.ahead.get(n))
    }

    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<(ObjsetKey, Entry)>, DatasetError> {
        self.peek(0)?;
        Ok(self.ahead.pop_front())
    }

    /// The next entry, if it belongs to `object`.
    pub(super) fn next_of(&mut self, object: u64) -> Result<Option<(ObjsetKey, Entry)>, DatasetError> {
        match self.peek(0)? {
            Some((key, _)) if key.object() == object => self.next(),
            _ => Ok(None),
        }
    }
}

/// A place in the key space of an objset, whether or not it has an entry. It represents a bound of a leaf.
///
/// The tree shortens bounds, so they are not valid keys. The place of a bound is the first possible key at or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) object: u64,
    pub(super) kind: u8,
    pub(super) number: u64,
}

impl Place {
    pub(super) const DNODE: u8 = 1;
    pub(super) const BLOCK: u8 = 3;
    const KINDS: u8 = 5;

    /// After all keys.
    pub(super) const END: Self = Self::start(OBJECT_MAX + 1);

    /// The first place of an object.
    pub(super) const fn start(object: u64) -> Self {
        Self { object, kind: 0, number: 0 }
    }

    /// The first possible key at or after `bound`, which may be any bytes.
    pub(super) fn of_bound(bound: &[u8]) -> Self {
        let (object, rest) = bound.split_at(bound.len().min(8));
        let object = padded(object);
        let Some((&kind, number)) = rest.split_first() else { return Self::start(object) };
        if kind >= Self::KINDS {
            return Self::start(object.saturating_add(1));
        }
        if kind >= Self::BLOCK {
            let place = Self { object, kind, number: padded(number.get(..8).unwrap_or(number)) };
            return if number.len() > 8 { place.after() } else { place };
        }
        let place = Self { object, kind, number: 0 };
        if number.is_empty() { place } else { place.after() }
    }

    /// The place of a key.
    pub(super) fn of_key(key: ObjsetKey) -> Self {
        let (kind, number) = match key {
            ObjsetKey::Range { .. } => (0, 0),
            ObjsetKey::Dnode { .. } => (1, 0),
            ObjsetKey::Spill { .. } => (2, 0),
            ObjsetKey::Block { blkid, .. } => (3, blkid),
            ObjsetKey::Redaction { offset, .. } => (4, offset),
        };
        Self { object: key.object(), kind, number }
    }

    /// The next place.
    pub(super) fn after(self) -> Self {
        if self.kind >= Self::BLOCK
            && let Some(number) = self.number.checked_add(1)
        {
            return Self { number, ..self };
        }
        if self.kind + 1 < Self::KINDS {
            Self { kind: self.kind + 1, number: 0, ..self }
        } else {
            Self::start(self.object.saturating_add(1))
        }
    }

    /// The first object whose dnode is at or after this place.
    pub(super) fn first_dnode(self) -> u64 {
        if self.kind <= Self::DNODE { self.object } else { self.object.saturating_add(1) }
    }
}

/// Big-endian bytes, padded with zeros.
fn padded(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_be_bytes(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = ObjsetKey> {
        let object = prop_oneof![0u64..4, Just(0x0102_0304_0506), Just(OBJECT_MAX)];
        let number = prop_oneof![0u64..4, Just(0x0900_0000_0000_0001), Just(u64::MAX)];
        (object, 0u8..5, number).prop_map(|(object, kind, number)| match kind {
            0 => ObjsetKey::Range { object },
            1 => ObjsetKey::Dnode { object },
            2 => ObjsetKey::Spill { object },
            3 => ObjsetKey::Block { object, blkid: number },
            _ => ObjsetKey::Redaction { object, offset: number },
        })
    }

    proptest! {
        #[test]
        fn places_order_as_keys(a in key(), b in key()) {
            prop_assert_eq!(a.encode().cmp(&b.encode()), Place::of_key(a).cmp(&Place::of_key(b)));
        }

        /// A bound is before exactly those keys that its place is before or equal to.
        #[test]
        fn bounds_split_keys_as_their_places(
            from in key(), cut in 0usize..18, more in proptest::option::of(any::<u8>()), other in key(),
        ) {
            let mut bound = from.encode();
            bound.truncate(cut);
            bound.extend(more);
            let below = other.encode().as_slice() < bound.as_slice();
            prop_assert_eq!(below, Place::of_key(other) < Place::of_bound(&bound));
        }
    }

    #[test]
    fn the_place_after_a_key_is_the_least_above() {
        let block = |number| Place { object: 7, kind: 3, number };
        assert_eq!(block(4).after(), block(5));
        assert_eq!(block(u64::MAX).after(), Place { object: 7, kind: 4, number: 0 });
        assert_eq!(Place { object: 7, kind: 4, number: u64::MAX }.after(), Place::start(8));
        assert_eq!(Place { object: 7, kind: 1, number: 0 }.after(), Place { object: 7, kind: 2, number: 0 });
        assert_eq!((Place::start(7).first_dnode(), block(0).first_dnode()), (7, 8));
    }
}
