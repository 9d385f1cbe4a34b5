//! Changes since a txg without the old root: the walk for an incremental stream from a bookmark.

use std::sync::Arc;

use super::bounds::Bounds;
use super::key::Key;
use super::node::{Link, Node};
use super::{Entry, View};
use crate::error::Result;
use crate::ids::Txg;

/// One item of a walk over changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A leaf born after the txg. It covers the keys `[low, high)`; `None` means to the end. Its entries follow. Keys
    /// in this range that do not follow are absent, and may have been removed since the txg. Outside such ranges
    /// nothing was removed or changed.
    Leaf {
        /// Lower bound; empty for the first leaf. If the walk began inside the leaf, the first key of the walk.
        low: Vec<u8>,
        /// Upper bound.
        high: Option<Vec<u8>>,
    },
    /// An entry of that leaf. Its birth tells whether it is new.
    Entry {
        /// Its key.
        key: Vec<u8>,
        /// Birth and value.
        entry: Entry,
    },
}

/// Walks the changes in key order. It ends after an error.
#[derive(Debug)]
pub struct Changes {
    view: View,
    since: Txg,
    from: Key,
    started: bool,
    /// The path: node, next index in it, upper bound of the node's range.
    stack: Vec<(Arc<Node>, usize, Option<Key>)>,
}

impl Changes {
    pub(super) fn new(view: View, since: Txg, from: Key) -> Self {
        Changes { view, since, from, started: false, stack: Vec::new() }
    }

    /// Enters the node behind a link if it changed. Returns the item if it is a leaf.
    fn enter(
        &mut self,
        link: &Link,
        level: Option<u8>,
        low: &[u8],
        high: Option<Key>,
    ) -> Result<Option<Change>> {
        if matches!(link, Link::Disk(ptr) if ptr.birth <= self.since) {
            return Ok(None);
        }
        let below = Key::from(low);
        let node = self.view.node(link, Bounds { level, low: Some(&below), high: high.as_ref() })?;
        let (at, item) = match &*node {
            Node::Leaf(leaf) => {
                let item = Change::Leaf {
                    low: low.max(self.from.as_slice()).to_vec(),
                    high: high.as_ref().map(|high| high.as_slice().to_vec()),
                };
                (leaf.lower_bound(self.from.as_slice()), Some(item))
            }
            Node::Inner(inner) => (inner.child_index(self.from.as_slice()), None),
        };
        self.stack.push((node, at, high));
        Ok(item)
    }

    fn step(&mut self) -> Result<Option<Change>> {
        if !self.started {
            self.started = true;
            let item = match self.view.root.clone() {
                Some(root) => self.enter(&root, None, &[], None)?,
                // In an empty tree, nothing says when keys were removed, so the whole range is reported.
                None => Some(Change::Leaf { low: self.from.as_slice().to_vec(), high: None }),
            };
            if item.is_some() {
                return Ok(item);
            }
        }
        while let Some((node, at, high)) = self.stack.last_mut() {
            let index = *at;
            *at += 1;
            let node = node.clone();
            match &*node {
                Node::Leaf(leaf) => {
                    if let Some(entry) = leaf.entries.get(index) {
                        let key = entry.key.as_slice().to_vec();
                        return Ok(Some(Change::Entry { key, entry: Entry::from(entry) }));
                    }
                    self.stack.pop();
                }
                Node::Inner(inner) => match inner.entries.get(index) {
                    Some(child) => {
                        let high = match inner.entries.get(index + 1) {
                            Some(next) => Some(next.key.clone()),
                            None => high.clone(),
                        };
                        let level = Some(inner.level - 1);
                        let item = self.enter(&child.link, level, child.key.as_slice(), high)?;
                        if item.is_some() {
                            return Ok(item);
                        }
                    }
                    None => drop(self.stack.pop()),
                },
            }
        }
        Ok(None)
    }
}

impl Iterator for Changes {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(item) => item.map(Ok),
            Err(error) => {
                self.stack.clear();
                Some(Err(error))
            }
        }
    }
}
