//! Keys in memory. Short keys are stored inline, so that a node of short keys is one allocation.

use std::cmp::Ordering;
use std::fmt;

/// Maximal length of a key, bytes.
pub const KEY_MAX: usize = 1024;
/// Maximal length of a value, bytes.
pub const VALUE_MAX: usize = 16 << 10;

const INLINE: usize = 22;
const _: () = assert!(size_of::<Key>() == 24);

/// A key of a tree.
#[derive(Clone)]
pub(crate) enum Key {
    Inline(u8, [u8; INLINE]),
    Heap(Box<[u8]>),
}

impl Key {
    pub(crate) const EMPTY: Self = Key::Inline(0, [0; INLINE]);

    pub(crate) fn empty() -> Self {
        Self::EMPTY
    }

    /// The key `prefix` followed by `suffix`.
    pub(crate) fn joined(prefix: &[u8], suffix: &[u8]) -> Self {
        let len = prefix.len() + suffix.len();
        match u8::try_from(len) {
            Ok(short) if len <= INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..prefix.len()].copy_from_slice(prefix);
                bytes[prefix.len()..len].copy_from_slice(suffix);
                Key::Inline(short, bytes)
            }
            _ => Key::Heap([prefix, suffix].concat().into()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Key::Inline(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Key::Heap(bytes) => bytes,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Key::Inline(len, _) => usize::from(*len),
            Key::Heap(bytes) => bytes.len(),
        }
    }
}

/// The bytes of a short key as numbers: padded with zeros, then the length. They compare in the order of the bytes.
type Words = (u128, u64, u8);

fn words(len: u8, bytes: &[u8; INLINE]) -> Words {
    let (head, tail) = bytes.split_at(16);
    let mut low = [0; 8];
    low[..INLINE - 16].copy_from_slice(tail);
    let high = head.try_into().map_or(0, u128::from_be_bytes);
    (high, u64::from_be_bytes(low), len)
}

/// A key that is compared with many others. Short keys are compared as numbers, because a call of `memcmp` costs more.
pub(crate) struct Probe<'a> {
    bytes: &'a [u8],
    words: Option<Words>,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let words = u8::try_from(bytes.len()).ok().filter(|_| bytes.len() <= INLINE).map(|len| {
            let mut inline = [0; INLINE];
            inline[..bytes.len()].copy_from_slice(bytes);
            words(len, &inline)
        });
        Probe { bytes, words }
    }

    /// How `key` compares with this one.
    pub(crate) fn order(&self, key: &Key) -> Ordering {
        match (key, &self.words) {
            (Key::Inline(len, bytes), Some(mine)) => words(*len, bytes).cmp(mine),
            _ => key.as_slice().cmp(self.bytes),
        }
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Key::joined(bytes, &[])
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The shortest key above `left` and at most `right` (`left < right`), for the parent of two leaves.
pub(crate) fn separator(left: &[u8], right: &[u8]) -> Key {
    debug_assert!(left < right);
    let common = common_prefix(left, right);
    Key::from(right.get(..common + 1).unwrap_or(right))
}

pub(crate) fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..26)
    }

    proptest! {
        #[test]
        fn keys_are_ordered_as_their_bytes(a in bytes(), b in bytes()) {
            let (left, right) = (Key::from(&a[..]), Key::from(&b[..]));
            prop_assert_eq!(left.as_slice(), &a[..]);
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
            prop_assert_eq!(Probe::new(&b).order(&left), a.cmp(&b));
            if a < b {
                let between = separator(&a, &b);
                prop_assert!(between.as_slice() > &a[..] && between.as_slice() <= &b[..]);
            }
        }
    }
}
