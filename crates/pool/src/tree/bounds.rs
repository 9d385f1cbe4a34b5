//! Bounds: what the path to a node says about it, namely its level and the range of its keys.
//!
//! Every node is checked against them when it is read. A node whose keys lie outside is damage, even if its hash is
//! correct: otherwise two parents could share one node, and a tree of few blocks could have more leaves than any
//! machine can read.

use super::key::Key;
use super::node::{Child, Inner, Link, Node};

/// The place of a node in its tree. `None` means unknown or without bound.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds<'a> {
    pub(crate) level: Option<u8>,
    /// The lowest key that it may have; for an inner node, exactly its first key.
    pub(crate) low: Option<&'a Key>,
    /// All its keys are below this one.
    pub(crate) high: Option<&'a Key>,
}

impl Bounds<'_> {
    /// For a node of which at most the level is known.
    pub(crate) fn of_level(level: Option<u8>) -> Self {
        Bounds { level, ..Bounds::default() }
    }

    /// For a root.
    pub(crate) fn of_root() -> Self {
        const EMPTY: &Key = &Key::EMPTY;
        Bounds { low: Some(EMPTY), ..Bounds::default() }
    }

    /// What is wrong with a node at this place, if anything.
    pub(crate) fn refuse(&self, node: &Node) -> Option<String> {
        self.refuse_ends(node.level(), node.ends())
    }

    /// The same of a node of which only the level, the first and the last key are known.
    pub(crate) fn refuse_ends(
        &self,
        level: u8,
        (first, last): (Option<&Key>, Option<&Key>),
    ) -> Option<String> {
        if let Some(wanted) = self.level.filter(|wanted| *wanted != level) {
            return Some(format!("a node of level {level} where level {wanted} belongs"));
        }
        let is_low = match self.low {
            None => true,
            Some(low) if level == 0 => first.is_none_or(|first| first >= low),
            Some(low) => first == Some(low),
        };
        let is_high = match (last, self.high) {
            (Some(last), Some(high)) => last < high,
            _ => true,
        };
        if is_low && is_high {
            return None;
        }
        Some(format!("keys {first:?} to {last:?} where those of [{:?}, {:?}) belong", self.low, self.high))
    }
}

impl Inner {
    /// The bounds of the child at index `at`, for a node whose upper bound is `high`.
    pub(crate) fn bounds_of<'a>(&'a self, at: usize, high: Option<&'a Key>) -> Bounds<'a> {
        Bounds {
            level: self.level.checked_sub(1),
            low: self.entries.get(at).map(|child| &child.key),
            high: self.entries.get(at + 1).map(|next| &next.key).or(high),
        }
    }

    /// The link of the child at index `at`, and its bounds.
    pub(super) fn child_mut<'a>(
        &'a mut self,
        at: usize,
        high: Option<&'a Key>,
    ) -> Option<(&'a mut Link, Bounds<'a>)> {
        let level = self.level.checked_sub(1);
        let (left, right) = self.entries.split_at_mut_checked(at + 1)?;
        let Child { key, link } = left.last_mut()?;
        let high = right.first().map(|next| &next.key).or(high);
        Some((link, Bounds { level, low: Some(key), high }))
    }
}

impl Node {
    /// The first and the last key.
    pub(crate) fn ends(&self) -> (Option<&Key>, Option<&Key>) {
        match self {
            Node::Leaf(leaf) => {
                (leaf.entries.first().map(|it| &it.key), leaf.entries.last().map(|it| &it.key))
            }
            Node::Inner(inner) => {
                (inner.entries.first().map(|it| &it.key), inner.entries.last().map(|it| &it.key))
            }
        }
    }
}
