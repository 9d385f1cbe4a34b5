//! Keys in memory: short ones inline, so that a node of small keys is one allocation.

use std::cmp::Ordering;
use std::fmt;

/// Longest legal key, bytes.
pub const KEY_MAX: usize = 1024;
/// Longest legal value, bytes.
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
    pub(crate) fn empty() -> Self {
        Key::Inline(0, [0; INLINE])
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

/// The shortest key above `left` and at most `right` (`left < right`): what a parent keeps between two leaves.
pub(crate) fn separator(left: &[u8], right: &[u8]) -> Key {
    debug_assert!(left < right);
    let common = common_prefix(left, right);
    Key::from(right.get(..common + 1).unwrap_or(right))
}

pub(crate) fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}
