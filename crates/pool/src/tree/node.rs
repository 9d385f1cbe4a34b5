//! Nodes in memory.
//!
//! The holder of a node's `Arc` owns the node. Writers change it with `Arc::make_mut`, which copies it if a view also
//! holds it. A child is either on disk, or changed since it was last written.
//!
//! Invariants (`docs/format/pool.md`, "Tree"): keys ascend strictly. The first key of an inner node is the lower bound
//! of the node itself, and equals the key for it in its parent. The root's lower bound is the empty key.

use bytes::Bytes;
use std::sync::Arc;

use super::key::{Key, Probe};
use crate::format::ptr::StoredPtr;
use crate::ids::Txg;

/// Maximal level of a root.
pub(crate) const LEVEL_MAX: u8 = 15;

/// Encoded bytes of a leaf entry without its key and value.
pub(crate) const LEAF_OVERHEAD: usize = 12;
/// Encoded bytes of a child without its key.
pub(crate) const CHILD_OVERHEAD: usize = 2 + crate::format::ptr::STORED_LEN;

#[derive(Clone, Debug)]
pub(crate) struct LeafEntry {
    pub(crate) key: Key,
    pub(crate) birth: Txg,
    pub(crate) value: Bytes,
}

impl LeafEntry {
    pub(crate) fn encoded_len(&self) -> usize {
        self.key.len() + self.value.len() + LEAF_OVERHEAD
    }
}

/// Level 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaf {
    pub(crate) entries: Vec<LeafEntry>,
    /// Encoded length without key prefix compression and block compression.
    pub(crate) bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) key: Key,
    pub(crate) link: Link,
}

impl Child {
    pub(crate) fn encoded_len(&self) -> usize {
        self.key.len() + CHILD_OVERHEAD
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Inner {
    /// 1 directly above leaves.
    pub(crate) level: u8,
    pub(crate) entries: Vec<Child>,
    pub(crate) bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Leaf(Leaf),
    Inner(Inner),
}

/// The link to a child or to the root.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// Unchanged on disk.
    Disk(StoredPtr),
    /// Changed since it was written, or never written.
    Dirty(Arc<Node>),
}

impl Leaf {
    /// Index of the entry of `key`, or where it would be inserted.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let probe = Probe::new(key);
        self.entries.binary_search_by(|entry| probe.order(&entry.key))
    }

    /// Index of the first entry at or after `key`.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|at| at)
    }

    pub(crate) fn recount(&mut self) {
        self.bytes = self.entries.iter().map(LeafEntry::encoded_len).sum();
    }
}

impl Inner {
    /// Index of the child that covers `key`.
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        let probe = Probe::new(key);
        self.entries.partition_point(|child| probe.order(&child.key).is_le()).saturating_sub(1)
    }

    pub(crate) fn recount(&mut self) {
        self.bytes = self.entries.iter().map(Child::encoded_len).sum();
    }
}

impl Node {
    pub(crate) fn level(&self) -> u8 {
        match self {
            Node::Leaf(_) => 0,
            Node::Inner(inner) => inner.level,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.entries.len(),
            Node::Inner(inner) => inner.entries.len(),
        }
    }

    /// Approximate encoded length.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.bytes,
            Node::Inner(inner) => inner.bytes,
        }
    }

    /// Approximate memory use.
    pub(crate) fn memory(&self) -> usize {
        let entry = match self {
            Node::Leaf(_) => size_of::<LeafEntry>(),
            Node::Inner(_) => size_of::<Child>(),
        };
        size_of::<Node>() + self.len() * entry + self.bytes()
    }

    /// Whether it has no entries: a leaf without entries, or a chain of single children down to one.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.entries.is_empty(),
            Node::Inner(inner) => match inner.entries.as_slice() {
                [] => true,
                [Child { link: Link::Dirty(only), .. }] => only.is_empty(),
                _ => false,
            },
        }
    }
}
