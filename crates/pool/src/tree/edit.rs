//! Edits of a tree in memory: makes a path dirty, inserts with splits, removes with merges.
//!
//! The removal invariant, on which incremental streams from bookmarks depend: *every key range in which a key was
//! removed in txg T is covered, as of T, by a leaf born in T or later.* A removal makes the leaf dirty. When a leaf is
//! dropped, a neighbour takes its range, and the whole path to the neighbour becomes dirty (`touch_edge`). A merge
//! makes both leaves dirty. If a neighbour cannot be read, the empty leaf stays: it is dirty, so the invariant holds.

use std::sync::Arc;

use super::bounds::Bounds;
use super::key::{Key, separator};
use super::node::{Child, Inner, LEVEL_MAX, Leaf, LeafEntry, Link, Node};
use crate::error::{PoolError, Result};
use crate::format::ptr::StoredPtr;
use crate::io::Io;

/// One change of one tree: what it needs, and its results for accounting.
pub(crate) struct Edit<'a> {
    pub(crate) io: &'a Io,
    pub(crate) meta: bool,
    pub(crate) node_bytes: usize,
    /// Nodes on disk that the tree no longer refers to.
    pub(crate) released: Vec<StoredPtr>,
    /// Memory that became dirty, bytes.
    pub(crate) dirtied: usize,
}

const NO_CHILDREN: PoolError = PoolError::Misuse("an inner node has no children");

/// The right half of a split node, and its lower bound.
type Split = (Key, Node);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    Left,
    Right,
}

impl Edit<'_> {
    fn load(&self, ptr: &StoredPtr, bounds: Bounds<'_>) -> Result<Arc<Node>> {
        self.io.node(ptr, bounds, self.meta)
    }

    /// The node behind a link, for changing it. The link becomes dirty.
    fn dirty<'n>(&mut self, link: &'n mut Link, bounds: Bounds<'_>) -> Result<&'n mut Node> {
        if let Link::Disk(ptr) = link {
            let node = self.load(ptr, bounds)?;
            self.dirtied += node.memory();
            self.released.push(ptr.clone());
            *link = Link::Dirty(node);
        }
        match link {
            Link::Dirty(node) => Ok(Arc::make_mut(node)),
            Link::Disk(_) => Err(PoolError::Misuse("a dirty link is on disk")),
        }
    }

    /// Makes every node below `link` dirty for whose pointer `pick` returns true, and all nodes above it.
    pub(crate) fn rewrite(
        &mut self,
        link: &mut Link,
        bounds: Bounds<'_>,
        pick: &dyn Fn(&StoredPtr) -> bool,
    ) -> Result<()> {
        if !self.has_picked(link, bounds, pick)? {
            return Ok(());
        }
        // The children are taken out and put back, so that they can be changed while `self` is also changed.
        let below = match self.dirty(link, bounds)? {
            Node::Leaf(_) => return Ok(()),
            Node::Inner(inner) => inner,
        };
        let mut taken = Inner { level: below.level, entries: std::mem::take(&mut below.entries), bytes: 0 };
        let done = (0..taken.entries.len()).try_for_each(|at| match taken.child_mut(at, bounds.high) {
            Some((link, bounds)) => self.rewrite(link, bounds, pick),
            None => Ok(()),
        });
        if let Link::Dirty(node) = link
            && let Node::Inner(inner) = Arc::make_mut(node)
        {
            inner.entries = taken.entries;
        }
        done
    }

    fn has_picked(&self, link: &Link, bounds: Bounds<'_>, pick: &dyn Fn(&StoredPtr) -> bool) -> Result<bool> {
        let node = match link {
            Link::Disk(ptr) if pick(ptr) => return Ok(true),
            Link::Disk(_) if bounds.level == Some(0) => return Ok(false),
            Link::Disk(ptr) => self.load(ptr, bounds)?,
            Link::Dirty(node) => node.clone(),
        };
        let Node::Inner(inner) = &*node else { return Ok(false) };
        for (at, child) in inner.entries.iter().enumerate() {
            if self.has_picked(&child.link, inner.bounds_of(at, bounds.high), pick)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Inserts an entry into the tree below `root`, and returns the entry that it replaces.
    pub(crate) fn insert(&mut self, root: &mut Option<Link>, entry: LeafEntry) -> Result<Option<LeafEntry>> {
        let Some(link) = root else {
            self.dirtied += entry.encoded_len() + size_of::<LeafEntry>();
            let bytes = entry.encoded_len();
            *root = Some(Link::Dirty(Arc::new(Node::Leaf(Leaf { entries: vec![entry], bytes }))));
            return Ok(None);
        };
        let node = self.dirty(link, Bounds::of_root())?;
        let level = node.level();
        let (old, split) = self.insert_below(node, entry, None)?;
        if let Some((key, right)) = split {
            if level >= LEVEL_MAX {
                return Err(PoolError::Misuse("the tree is too deep"));
            }
            let left = Child { key: Key::empty(), link: link.clone() };
            let right = Child { key, link: Link::Dirty(Arc::new(right)) };
            let mut top = Inner { level: level + 1, entries: vec![left, right], bytes: 0 };
            top.recount();
            *root = Some(Link::Dirty(Arc::new(Node::Inner(top))));
        }
        Ok(old)
    }

    fn insert_below(
        &mut self,
        node: &mut Node,
        entry: LeafEntry,
        high: Option<&Key>,
    ) -> Result<(Option<LeafEntry>, Option<Split>)> {
        match node {
            Node::Leaf(leaf) => {
                let added = entry.encoded_len();
                let mut appended = false;
                let old = match leaf.search(entry.key.as_slice()) {
                    Ok(at) => {
                        let old = std::mem::replace(&mut leaf.entries[at], entry);
                        leaf.bytes -= old.encoded_len();
                        Some(old)
                    }
                    Err(at) => {
                        appended = at == leaf.entries.len();
                        leaf.entries.insert(at, entry);
                        self.dirtied += added + size_of::<LeafEntry>();
                        None
                    }
                };
                leaf.bytes += added;
                let split = (leaf.bytes > self.node_bytes && leaf.entries.len() > 1)
                    .then(|| split_leaf(leaf, appended));
                Ok((old, split))
            }
            Node::Inner(inner) => {
                let at = inner.child_index(entry.key.as_slice());
                let (link, bounds) = inner.child_mut(at, high).ok_or(NO_CHILDREN)?;
                let child = self.dirty(link, bounds)?;
                let (old, split) = self.insert_below(child, entry, bounds.high)?;
                let Some((key, right)) = split else { return Ok((old, None)) };
                let appended = at + 1 == inner.entries.len();
                let child = Child { key, link: Link::Dirty(Arc::new(right)) };
                inner.bytes += child.encoded_len();
                inner.entries.insert(at + 1, child);
                let split = (inner.bytes > self.node_bytes && inner.entries.len() > 2)
                    .then(|| split_inner(inner, appended));
                Ok((old, split))
            }
        }
    }

    /// Removes one entry.
    pub(crate) fn remove(&mut self, root: &mut Option<Link>, key: &[u8]) -> Result<Option<LeafEntry>> {
        let mut taken = Vec::new();
        let pick = Pick { from: key, to: None, only: true };
        self.remove_some(root, &pick, &mut taken)?;
        Ok(taken.pop())
    }

    /// Removes the entries of `[from, to)` from the leaf that covers `from`. Returns that leaf's upper bound, from
    /// which to continue; `None` at the end of the tree.
    pub(crate) fn remove_in_leaf(
        &mut self,
        root: &mut Option<Link>,
        from: &[u8],
        to: &[u8],
        taken: &mut Vec<LeafEntry>,
    ) -> Result<Option<Key>> {
        self.remove_some(root, &Pick { from, to: Some(to), only: false }, taken)
    }

    fn remove_some(
        &mut self,
        root: &mut Option<Link>,
        pick: &Pick<'_>,
        taken: &mut Vec<LeafEntry>,
    ) -> Result<Option<Key>> {
        let Some(link) = root else { return Ok(None) };
        let (high, any) = self.find_leaf(link, pick)?;
        if !any {
            return Ok(high);
        }
        let node = self.dirty(link, Bounds::of_root())?;
        self.remove_below(node, None, pick, taken)?;
        self.lower_root(root);
        Ok(high)
    }

    /// Checks, without making anything dirty, whether the leaf that covers `pick.from` has entries to remove.
    fn find_leaf(&self, link: &Link, pick: &Pick<'_>) -> Result<(Option<Key>, bool)> {
        let mut high = None;
        let mut node = match link {
            Link::Disk(ptr) => self.load(ptr, Bounds::of_root())?,
            Link::Dirty(node) => node.clone(),
        };
        loop {
            let next = match &*node {
                Node::Leaf(leaf) => return Ok((high, !pick.range(leaf).is_empty())),
                Node::Inner(inner) => {
                    let at = inner.child_index(pick.from);
                    let next = match inner.entries.get(at).map(|child| &child.link) {
                        Some(Link::Disk(ptr)) => self.load(ptr, inner.bounds_of(at, high.as_ref()))?,
                        Some(Link::Dirty(child)) => child.clone(),
                        None => return Err(NO_CHILDREN),
                    };
                    if let Some(next) = inner.entries.get(at + 1) {
                        high = Some(next.key.clone());
                    }
                    next
                }
            };
            node = next;
        }
    }

    fn remove_below(
        &mut self,
        node: &mut Node,
        high: Option<&Key>,
        pick: &Pick<'_>,
        taken: &mut Vec<LeafEntry>,
    ) -> Result<()> {
        match node {
            Node::Leaf(leaf) => {
                let range = pick.range(leaf);
                taken.extend(leaf.entries.drain(range));
                leaf.recount();
                Ok(())
            }
            Node::Inner(inner) => {
                let at = inner.child_index(pick.from);
                let (link, bounds) = inner.child_mut(at, high).ok_or(NO_CHILDREN)?;
                let child = self.dirty(link, bounds)?;
                self.remove_below(child, bounds.high, pick, taken)?;
                if child.bytes() < self.node_bytes / 4 || child.is_empty() {
                    self.rebalance(inner, at, high);
                }
                Ok(())
            }
        }
    }

    /// Drops or merges the small, dirty child at index `at`. Does nothing if a neighbour cannot be read: small and
    /// empty nodes are allowed.
    fn rebalance(&mut self, parent: &mut Inner, at: usize, high: Option<&Key>) {
        if parent.entries.len() < 2 {
            return;
        }
        let empty = matches!(&parent.entries[at].link, Link::Dirty(node) if node.is_empty());
        // These fail if a neighbour cannot be read. Nothing has been removed then.
        let _ = if empty { self.drop_child(parent, at, high) } else { self.merge_child(parent, at, high) };
    }

    /// Removes an empty child. A neighbour takes its range, and becomes dirty down to the leaf beside it.
    fn drop_child(&mut self, parent: &mut Inner, at: usize, high: Option<&Key>) -> Result<()> {
        if at > 0 {
            let (link, bounds) = parent.child_mut(at - 1, high).ok_or(NO_CHILDREN)?;
            self.touch_edge(link, bounds, Edge::Right, &Key::empty())?;
            parent.entries.remove(at);
        } else {
            let low = parent.entries[0].key.clone();
            let (link, bounds) = parent.child_mut(1, high).ok_or(NO_CHILDREN)?;
            self.touch_edge(link, bounds, Edge::Left, &low)?;
            parent.entries.remove(0);
            parent.entries[0].key = low;
        }
        parent.recount();
        Ok(())
    }

    /// Makes the path to the outermost leaf at `edge` dirty. On the left edge, `low` becomes the lower bound of every
    /// node on it.
    ///
    /// All nodes are read before anything is changed, so that an error changes no bound.
    fn touch_edge(&mut self, link: &mut Link, bounds: Bounds<'_>, edge: Edge, low: &Key) -> Result<()> {
        let node = self.dirty(link, bounds)?;
        let Node::Inner(inner) = node else { return Ok(()) };
        let at = if edge == Edge::Left { 0 } else { inner.entries.len() - 1 };
        let (link, bounds) = inner.child_mut(at, bounds.high).ok_or(NO_CHILDREN)?;
        self.touch_edge(link, bounds, edge, low)?;
        if edge == Edge::Left {
            inner.entries[0].key = low.clone();
            inner.recount();
        }
        Ok(())
    }

    /// Merges a small child with a neighbour if both fit well into one node.
    fn merge_child(&mut self, parent: &mut Inner, at: usize, high: Option<&Key>) -> Result<()> {
        let left = at.saturating_sub(1);
        let size = |at: usize| -> Result<usize> {
            Ok(match &parent.entries[at].link {
                Link::Dirty(node) => node.bytes(),
                Link::Disk(ptr) => self.load(ptr, parent.bounds_of(at, high))?.bytes(),
            })
        };
        let total = size(left)? + size(left + 1)?;
        if total > self.node_bytes * 3 / 4 {
            return Ok(());
        }
        for at in [left, left + 1] {
            let (link, bounds) = parent.child_mut(at, high).ok_or(NO_CHILDREN)?;
            self.dirty(link, bounds)?;
        }
        let right = parent.entries.remove(left + 1);
        let level = parent.level.checked_sub(1);
        let target = self.dirty(&mut parent.entries[left].link, Bounds::of_level(level))?;
        if let Link::Dirty(node) = right.link {
            match (target, Arc::unwrap_or_clone(node)) {
                (Node::Leaf(left), Node::Leaf(mut right)) => {
                    left.entries.append(&mut right.entries);
                    left.recount();
                }
                (Node::Inner(left), Node::Inner(mut right)) => {
                    left.entries.append(&mut right.entries);
                    left.recount();
                }
                _ => return Err(PoolError::Misuse("siblings of different levels")),
            }
        }
        parent.recount();
        Ok(())
    }

    /// Replaces a root that has a single child by that child, and removes an empty root.
    fn lower_root(&mut self, root: &mut Option<Link>) {
        loop {
            let Some(Link::Dirty(node)) = root else { return };
            if node.is_empty() {
                *root = None;
                return;
            }
            match &**node {
                Node::Inner(inner) if inner.entries.len() == 1 => {
                    let only = inner.entries[0].link.clone();
                    *root = Some(only);
                }
                _ => return,
            }
        }
    }
}

/// Which entries of a leaf to remove.
struct Pick<'a> {
    from: &'a [u8],
    to: Option<&'a [u8]>,
    /// Only the entry with the key `from`.
    only: bool,
}

impl Pick<'_> {
    fn range(&self, leaf: &Leaf) -> std::ops::Range<usize> {
        if self.only {
            return match leaf.search(self.from) {
                Ok(at) => at..at + 1,
                Err(at) => at..at,
            };
        }
        let from = leaf.lower_bound(self.from);
        let to = self.to.map_or(leaf.entries.len(), |to| leaf.lower_bound(to));
        from..to.max(from)
    }
}

/// Where to split a node. If the node grows at its end, before the last entry, so that ascending inserts fill nodes.
/// Otherwise in the middle.
fn cut(sizes: impl Iterator<Item = usize>, len: usize, total: usize, appended: bool) -> usize {
    if appended {
        return len - 1;
    }
    let mut sum = 0;
    let at = sizes.take_while(|size| {
        sum += size;
        sum <= total / 2
    });
    at.count().clamp(1, len - 1)
}

fn split_leaf(leaf: &mut Leaf, appended: bool) -> Split {
    let at = cut(leaf.entries.iter().map(LeafEntry::encoded_len), leaf.entries.len(), leaf.bytes, appended);
    let entries = leaf.entries.split_off(at);
    let key = separator(leaf.entries[at - 1].key.as_slice(), entries[0].key.as_slice());
    let mut right = Leaf { entries, bytes: 0 };
    right.recount();
    leaf.bytes -= right.bytes;
    (key, Node::Leaf(right))
}

fn split_inner(inner: &mut Inner, appended: bool) -> Split {
    let at = cut(inner.entries.iter().map(Child::encoded_len), inner.entries.len(), inner.bytes, appended);
    let entries = inner.entries.split_off(at);
    let key = entries[0].key.clone();
    let mut right = Inner { level: inner.level, entries, bytes: 0 };
    right.recount();
    inner.bytes -= right.bytes;
    (key, Node::Inner(right))
}
