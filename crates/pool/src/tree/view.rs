//! Views: a tree as it was at one moment.

use std::sync::Arc;

use snowmelt_store::SegmentId;

use super::bounds::Bounds;
use super::changes::Changes;
use super::diff::DiffIter;
use super::node::{Link, Node};
use super::range::{NodesSince, Range};
use super::{Entry, key::Key};
use crate::error::{PoolError, Result};
use crate::format::ptr::StoredPtr;
use crate::ids::Txg;
use crate::io::{Io, Pin};

/// A tree as it was at one moment, or a frozen root. Clones are cheap. Everything in it stays readable until the last
/// clone is dropped.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) io: Arc<Io>,
    pub(super) root: Option<Link>,
    /// Whether it is a view of the meta tree.
    meta: bool,
    _pin: Arc<Pin>,
}

impl View {
    pub(crate) fn new(io: Arc<Io>, root: Option<Link>, meta: bool, pin: Arc<Pin>) -> Self {
        View { io, root, meta, _pin: pin }
    }

    pub(crate) fn of_root(io: Arc<Io>, root: Option<StoredPtr>, meta: bool) -> Self {
        // Everything that a node refers to was born no later than the node.
        let pin = io.pin(root.as_ref().map_or(0, |root| root.birth));
        View::new(io, root.map(Link::Disk), meta, pin)
    }

    /// The root's pointer; `None` for an empty tree or a root that is only in memory.
    pub(crate) fn root_ptr(&self) -> Option<StoredPtr> {
        match &self.root {
            Some(Link::Disk(ptr)) => Some(ptr.clone()),
            _ => None,
        }
    }

    /// The txg in which the tree was last written; 0 for an empty tree or a root that is only in memory.
    pub fn written_in(&self) -> Txg {
        self.root_ptr().map_or(0, |root| root.birth)
    }

    /// Whether the tree is empty.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The node behind a link. It must fit its bounds.
    pub(super) fn node(&self, link: &Link, bounds: Bounds<'_>) -> Result<Arc<Node>> {
        match link {
            Link::Disk(ptr) => self.io.node(ptr, bounds, self.meta),
            Link::Dirty(node) => Ok(node.clone()),
        }
    }

    /// The entry of a key.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        let Some(root) = &self.root else { return Ok(None) };
        let mut node = self.node(root, Bounds::of_root())?;
        let mut high = None;
        loop {
            let next = match &*node {
                Node::Leaf(leaf) => {
                    let entry = leaf.search(key).ok().and_then(|at| leaf.entries.get(at));
                    return Ok(entry.map(Entry::from));
                }
                Node::Inner(inner) => {
                    let at = inner.child_index(key);
                    let child = inner.entries.get(at);
                    let child = child.ok_or(PoolError::Misuse("an inner node has no children"))?;
                    let next = self.node(&child.link, inner.bounds_of(at, high.as_ref()))?;
                    high = inner.entries.get(at + 1).map(|next| next.key.clone()).or(high);
                    next
                }
            };
            node = next;
        }
    }

    /// Whether the node at `place` is on the path to `key`. That node itself is not read.
    ///
    /// # Errors
    /// When the store fails. If a node above it is damaged, the answer is no.
    pub fn passes(&self, key: &[u8], place: (SegmentId, u32)) -> Result<bool> {
        let Some(root) = &self.root else { return Ok(false) };
        let (mut link, mut level) = (root.clone(), None);
        let (mut low, mut high) = (Key::empty(), None);
        loop {
            if matches!(&link, Link::Disk(ptr) if (ptr.segment, ptr.offset) == place) {
                return Ok(true);
            }
            let bounds = Bounds { level, low: Some(&low), high: high.as_ref() };
            let node = match self.node(&link, bounds) {
                Ok(node) => node,
                Err(error) if error.is_corruption() => return Ok(false),
                Err(error) => return Err(error),
            };
            let Node::Inner(inner) = &*node else { return Ok(false) };
            let at = inner.child_index(key);
            let Some(child) = inner.entries.get(at) else { return Ok(false) };
            high = inner.entries.get(at + 1).map(|next| next.key.clone()).or(high);
            low = child.key.clone();
            (link, level) = (child.link.clone(), inner.level.checked_sub(1));
        }
    }

    /// The entries of `[from, to)`, or to the end, in key order. Nothing is read before the first entry is requested.
    pub fn range(&self, from: &[u8], to: Option<&[u8]>) -> Range {
        Range::new(self.clone(), Key::from(from), to.map(Key::from))
    }

    /// The entry with the greatest key below `key`.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn last_before(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Entry)>> {
        match &self.root {
            Some(root) => self.last_below(root, Bounds::of_root(), key),
            None => Ok(None),
        }
    }

    fn last_below(&self, link: &Link, bounds: Bounds<'_>, key: &[u8]) -> Result<Option<(Vec<u8>, Entry)>> {
        let node = self.node(link, bounds)?;
        match &*node {
            Node::Leaf(leaf) => {
                let before = leaf.lower_bound(key).checked_sub(1).and_then(|at| leaf.entries.get(at));
                Ok(before.map(|entry| (entry.key.as_slice().to_vec(), Entry::from(entry))))
            }
            Node::Inner(inner) => {
                // The child that covers the key may hold nothing below it. Then the previous child does, unless that is
                // empty.
                let to = inner.child_index(key);
                for (at, child) in inner.entries.iter().enumerate().take(to + 1).rev() {
                    let found = self.last_below(&child.link, inner.bounds_of(at, bounds.high), key)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
        }
    }

    /// The changes after txg `since`, from key `from` on: leaves born after it with their key ranges, each followed by
    /// all its entries. Subtrees born at or before `since` are skipped without reading them. See
    /// [`Change`](super::Change).
    pub fn changes_since(&self, since: Txg, from: &[u8]) -> Changes {
        Changes::new(self.clone(), since, Key::from(from))
    }

    /// The differences from `old` to `new`, from key `from` on, in key order. Shared subtrees are skipped without
    /// reading them.
    pub fn diff(old: &View, new: &View, from: &[u8]) -> DiffIter {
        DiffIter::new(old.clone(), new.clone(), Key::from(from))
    }

    /// The pointers of all nodes of the tree born after `since`, parents before children. Leaves are not read. Nodes
    /// that are only in memory have no pointer and are left out.
    pub fn nodes_since(&self, since: Txg) -> NodesSince {
        NodesSince::new(self.clone(), since)
    }
}
