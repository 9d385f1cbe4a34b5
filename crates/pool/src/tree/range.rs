//! Iterators over a view: entries in order, and node pointers.

use std::sync::Arc;

use super::bounds::Bounds;
use super::key::Key;
use super::node::{LeafEntry, Link, Node};
use super::{Entry, View};
use crate::error::Result;
use crate::format::ptr::StoredPtr;
use crate::ids::Txg;

/// The upper bound of a node from the path to it. For each node on the path, the path has the index of the next child.
pub(super) fn high_of(path: &[(Arc<Node>, usize)]) -> Option<&Key> {
    path.iter().rev().find_map(|(node, next)| match &**node {
        Node::Inner(inner) => inner.entries.get(*next).map(|child| &child.key),
        Node::Leaf(_) => None,
    })
}

/// The entries of a key range, in order. The iteration ends after an error.
#[derive(Debug)]
pub struct Range {
    view: View,
    /// Where to begin, until the first entry was requested.
    from: Option<Key>,
    to: Option<Key>,
    /// The path to the next entry: node, and the next index in it.
    stack: Vec<(Arc<Node>, usize)>,
}

impl Range {
    pub(super) fn new(view: View, from: Key, to: Option<Key>) -> Self {
        Range { view, from: Some(from), to, stack: Vec::new() }
    }

    fn seek(&mut self, from: &Key) -> Result<()> {
        let Some(root) = &self.view.root else { return Ok(()) };
        let mut node = self.view.node(root, Bounds::of_root())?;
        loop {
            let (at, child) = match &*node {
                Node::Leaf(leaf) => (leaf.lower_bound(from.as_slice()), None),
                Node::Inner(inner) => {
                    let at = inner.child_index(from.as_slice());
                    let child = inner.entries.get(at);
                    let bounds = inner.bounds_of(at, high_of(&self.stack));
                    let child = child.map(|c| self.view.node(&c.link, bounds));
                    (at + 1, child.transpose()?)
                }
            };
            self.stack.push((node, at));
            match child {
                Some(child) => node = child,
                None => return Ok(()),
            }
        }
    }

    fn step(&mut self) -> Result<Option<LeafEntry>> {
        if let Some(from) = self.from.take() {
            self.seek(&from)?;
        }
        while let Some((node, at)) = self.stack.last_mut() {
            let index = *at;
            *at += 1;
            let child = match &**node {
                Node::Leaf(leaf) => {
                    if let Some(entry) = leaf.entries.get(index) {
                        return Ok(Some(entry.clone()));
                    }
                    None
                }
                Node::Inner(_) => self.child(index)?,
            };
            match child {
                Some(child) => self.stack.push((child, 0)),
                None => drop(self.stack.pop()),
            }
        }
        Ok(None)
    }

    /// The child at an index of the last node on the path.
    fn child(&self, index: usize) -> Result<Option<Arc<Node>>> {
        let Some(((node, _), above)) = self.stack.split_last() else { return Ok(None) };
        let Node::Inner(inner) = &**node else { return Ok(None) };
        let Some(child) = inner.entries.get(index) else { return Ok(None) };
        self.view.node(&child.link, inner.bounds_of(index, high_of(above))).map(Some)
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Entry)>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = match self.step() {
            Ok(entry) => entry?,
            Err(error) => {
                self.stack.clear();
                return Some(Err(error));
            }
        };
        if self.to.as_ref().is_some_and(|to| entry.key >= *to) {
            self.stack.clear();
            return None;
        }
        Some(Ok((entry.key.as_slice().to_vec(), Entry::from(&entry))))
    }
}

/// Node pointers born after a txg, parents before children. The iteration ends after an error.
#[derive(Debug)]
pub struct NodesSince {
    view: View,
    since: Txg,
    /// Links that still have to be visited.
    pending: Vec<Pending>,
}

/// A link with its level, if known, and its bounds.
#[derive(Debug)]
struct Pending {
    link: Link,
    level: Option<u8>,
    low: Key,
    high: Option<Key>,
}

impl NodesSince {
    pub(super) fn new(view: View, since: Txg) -> Self {
        let pending =
            |root: &Link| Pending { link: root.clone(), level: None, low: Key::empty(), high: None };
        let pending = view.root.iter().map(pending).collect();
        NodesSince { view, since, pending }
    }

    fn expand(&mut self, from: &Pending) -> Result<()> {
        if from.level == Some(0) {
            return Ok(());
        }
        let bounds = Bounds { level: from.level, low: Some(&from.low), high: from.high.as_ref() };
        if let Node::Inner(inner) = &*self.view.node(&from.link, bounds)? {
            let below = inner.entries.iter().enumerate().rev().map(|(at, child)| {
                let Bounds { level, high, .. } = inner.bounds_of(at, from.high.as_ref());
                Pending { link: child.link.clone(), level, low: child.key.clone(), high: high.cloned() }
            });
            self.pending.extend(below);
        }
        Ok(())
    }
}

impl Iterator for NodesSince {
    type Item = Result<StoredPtr>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(next) = self.pending.pop() {
            if matches!(&next.link, Link::Disk(ptr) if ptr.birth <= self.since) {
                continue;
            }
            if let Err(error) = self.expand(&next) {
                self.pending.clear();
                return Some(Err(error));
            }
            if let Link::Disk(ptr) = next.link {
                return Some(Ok(ptr));
            }
        }
        None
    }
}
