//! Walking a view: entries in order, and node pointers.

use std::sync::Arc;

use super::key::Key;
use super::node::{LeafEntry, Link, Node};
use super::{Entry, View};
use crate::error::Result;
use crate::ptr::{StoredPtr, Txg};

/// Entries of a key range, in order. After an error it ends.
#[derive(Debug)]
pub struct Range {
    view: View,
    /// Where to begin, until the first entry was asked for.
    from: Option<Key>,
    to: Option<Key>,
    /// The path to the next entry: node, and the index in it that comes next.
    stack: Vec<(Arc<Node>, usize)>,
}

impl Range {
    pub(super) fn new(view: View, from: Key, to: Option<Key>) -> Self {
        Range { view, from: Some(from), to, stack: Vec::new() }
    }

    fn seek(&mut self, from: &Key) -> Result<()> {
        let Some(root) = &self.view.root else { return Ok(()) };
        let mut node = self.view.node(root, None)?;
        loop {
            let (at, child) = match &*node {
                Node::Leaf(leaf) => (leaf.lower_bound(from.as_slice()), None),
                Node::Inner(inner) => {
                    let at = inner.child_index(from.as_slice());
                    let child = inner.entries.get(at);
                    let child = child.map(|c| self.view.node(&c.link, Some(inner.level - 1)));
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
                Node::Inner(inner) => match inner.entries.get(index) {
                    Some(child) => Some(self.view.node(&child.link, Some(inner.level - 1))?),
                    None => None,
                },
            };
            match child {
                Some(child) => self.stack.push((child, 0)),
                None => drop(self.stack.pop()),
            }
        }
        Ok(None)
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

/// Node pointers born after a txg, parents before children. After an error it ends.
#[derive(Debug)]
pub struct NodesSince {
    view: View,
    since: Txg,
    /// Links still to look at, with their level where it is known.
    pending: Vec<(Link, Option<u8>)>,
}

impl NodesSince {
    pub(super) fn new(view: View, since: Txg) -> Self {
        let pending = view.root.iter().map(|root| (root.clone(), None)).collect();
        NodesSince { view, since, pending }
    }

    fn expand(&mut self, link: &Link, level: Option<u8>) -> Result<()> {
        if level == Some(0) {
            return Ok(());
        }
        if let Node::Inner(inner) = &*self.view.node(link, level)? {
            let below = inner.entries.iter().rev().map(|c| (c.link.clone(), Some(inner.level - 1)));
            self.pending.extend(below);
        }
        Ok(())
    }
}

impl Iterator for NodesSince {
    type Item = Result<StoredPtr>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some((link, level)) = self.pending.pop() {
            if matches!(&link, Link::Disk(ptr) if ptr.birth <= self.since) {
                continue;
            }
            if let Err(error) = self.expand(&link, level) {
                self.pending.clear();
                return Some(Err(error));
            }
            if let Link::Disk(ptr) = link {
                return Some(Ok(ptr));
            }
        }
        None
    }
}
