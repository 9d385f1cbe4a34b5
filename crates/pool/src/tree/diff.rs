//! The differences of two views. Shared subtrees are skipped.
//!
//! Both trees are walked at the same time. Each side is at an entry, or at a subtree that was not opened yet and whose
//! lower bound is known from its parent. Two such subtrees with the same pointer are equal, so both are skipped.
//! Otherwise the one with the smaller lower bound is opened; if the bounds are equal, the one with the higher level. An
//! entry is compared when the other side has nothing before it.

use std::cmp::Ordering;
use std::sync::Arc;

use super::bounds::Bounds;
use super::key::Key;
use super::node::{LeafEntry, Link, Node};
use super::range::high_of;
use super::{Entry, View};
use crate::error::Result;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diff {
    /// The key is only in the old tree.
    Removed {
        /// The key.
        key: Vec<u8>,
        /// The old entry.
        old: Entry,
    },
    /// The key is only in the new tree.
    Added {
        /// The key.
        key: Vec<u8>,
        /// The new entry.
        new: Entry,
    },
    /// The key is in both trees, with another birth or value.
    Changed {
        /// The key.
        key: Vec<u8>,
        /// The old entry.
        old: Entry,
        /// The new entry.
        new: Entry,
    },
}

/// The position of one side.
enum Head {
    Entry(LeafEntry),
    Subtree { low: Key, link: Link, level: Option<u8> },
}

#[derive(Debug)]
struct Side {
    view: View,
    from: Key,
    started: bool,
    stack: Vec<(Arc<Node>, usize)>,
}

impl Side {
    /// The next entry or subtree. Does not advance.
    fn head(&mut self) -> Option<Head> {
        if !self.started {
            let link = self.view.root.clone()?;
            return Some(Head::Subtree { low: Key::empty(), link, level: None });
        }
        while let Some((node, at)) = self.stack.last() {
            match &**node {
                Node::Leaf(leaf) => {
                    if let Some(entry) = leaf.entries.get(*at) {
                        return Some(Head::Entry(entry.clone()));
                    }
                }
                Node::Inner(inner) => {
                    if let Some(child) = inner.entries.get(*at) {
                        return Some(Head::Subtree {
                            low: child.key.clone(),
                            link: child.link.clone(),
                            level: Some(inner.level - 1),
                        });
                    }
                }
            }
            self.stack.pop();
        }
        None
    }

    /// Skips the head.
    fn skip(&mut self) {
        self.started = true;
        if let Some((_, at)) = self.stack.last_mut() {
            *at += 1;
        }
    }

    /// Enters the subtree at the head.
    fn open(&mut self, link: &Link, level: Option<u8>) -> Result<()> {
        self.skip();
        // The indexes of the nodes on the path already point to the next child.
        let low = match self.stack.last() {
            Some((node, next)) => match &**node {
                Node::Inner(inner) => inner.entries.get(next.wrapping_sub(1)).map(|child| &child.key),
                Node::Leaf(_) => None,
            },
            None => Bounds::of_root().low,
        };
        let node = self.view.node(link, Bounds { level, low, high: high_of(&self.stack) })?;
        let at = match &*node {
            Node::Leaf(leaf) => leaf.lower_bound(self.from.as_slice()),
            Node::Inner(inner) => inner.child_index(self.from.as_slice()),
        };
        self.stack.push((node, at));
        Ok(())
    }
}

/// Walks the differences in key order. It ends after an error.
#[derive(Debug)]
pub struct DiffIter {
    old: Side,
    new: Side,
}

fn same(old: &Link, new: &Link) -> bool {
    match (old, new) {
        (Link::Disk(old), Link::Disk(new)) => old == new,
        (Link::Dirty(old), Link::Dirty(new)) => Arc::ptr_eq(old, new),
        _ => false,
    }
}

fn removed(old: &LeafEntry) -> Diff {
    Diff::Removed { key: old.key.as_slice().to_vec(), old: Entry::from(old) }
}

fn added(new: &LeafEntry) -> Diff {
    Diff::Added { key: new.key.as_slice().to_vec(), new: Entry::from(new) }
}

impl DiffIter {
    pub(super) fn new(old: View, new: View, from: Key) -> Self {
        let side = |view| Side { view, from: from.clone(), started: false, stack: Vec::new() };
        DiffIter { old: side(old), new: side(new) }
    }

    fn step(&mut self) -> Result<Option<Diff>> {
        loop {
            match (self.old.head(), self.new.head()) {
                (None, None) => return Ok(None),
                (Some(Head::Entry(old)), None) => {
                    self.old.skip();
                    return Ok(Some(removed(&old)));
                }
                (None, Some(Head::Entry(new))) => {
                    self.new.skip();
                    return Ok(Some(added(&new)));
                }
                (Some(Head::Subtree { link, level, .. }), None) => self.old.open(&link, level)?,
                (None, Some(Head::Subtree { link, level, .. })) => self.new.open(&link, level)?,
                (Some(Head::Entry(old)), Some(Head::Entry(new))) => {
                    if let Some(diff) = self.settle(&old, &new) {
                        return Ok(Some(diff));
                    }
                }
                (Some(Head::Entry(old)), Some(Head::Subtree { low, link, level })) => {
                    if old.key < low {
                        self.old.skip();
                        return Ok(Some(removed(&old)));
                    }
                    self.new.open(&link, level)?;
                }
                (Some(Head::Subtree { low, link, level }), Some(Head::Entry(new))) => {
                    if new.key < low {
                        self.new.skip();
                        return Ok(Some(added(&new)));
                    }
                    self.old.open(&link, level)?;
                }
                (
                    Some(Head::Subtree { low: old_low, link: old, level: old_level }),
                    Some(Head::Subtree { low: new_low, link: new, level: new_level }),
                ) => {
                    if same(&old, &new) {
                        self.old.skip();
                        self.new.skip();
                        continue;
                    }
                    // The level of a root is not known before it is read, so it counts as the highest.
                    let order = old_low.cmp(&new_low).then_with(|| {
                        new_level.map_or(u8::MAX, |l| l).cmp(&old_level.map_or(u8::MAX, |l| l))
                    });
                    if order != Ordering::Greater {
                        self.old.open(&old, old_level)?;
                    }
                    if order != Ordering::Less {
                        self.new.open(&new, new_level)?;
                    }
                }
            }
        }
    }

    /// Both sides are at an entry: takes the smaller one, or both if they have the same key.
    fn settle(&mut self, old: &LeafEntry, new: &LeafEntry) -> Option<Diff> {
        match old.key.cmp(&new.key) {
            Ordering::Less => {
                self.old.skip();
                Some(removed(old))
            }
            Ordering::Greater => {
                self.new.skip();
                Some(added(new))
            }
            Ordering::Equal => {
                self.old.skip();
                self.new.skip();
                if old.birth == new.birth && old.value == new.value {
                    return None;
                }
                let key = old.key.as_slice().to_vec();
                Some(Diff::Changed { key, old: Entry::from(old), new: Entry::from(new) })
            }
        }
    }
}

impl Iterator for DiffIter {
    type Item = Result<Diff>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(item) => item.map(Ok),
            Err(error) => {
                self.old.stack.clear();
                self.new.stack.clear();
                self.old.started = true;
                self.new.started = true;
                Some(Err(error))
            }
        }
    }
}
