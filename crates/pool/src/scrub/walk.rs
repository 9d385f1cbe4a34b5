//! Walks a tree from a given key, and skips nodes that cannot be read.

use std::sync::Arc;

use crate::error::{PoolError, Result};
use crate::format::ptr::StoredPtr;
use crate::ids::Txg;
use crate::io::Io;
use crate::tree::{Bounds, Entry, Key, Link, Node};

/// The part of a tree to walk.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Nodes that begin before this key and entries below it are finished.
    pub(crate) from: Key,
    /// The key to end at.
    pub(crate) to: Option<Key>,
    /// Blocks born up to this txg belong to another root.
    pub(crate) since: Txg,
}

/// A node of a walk, with its bounds from the parent.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) ptr: StoredPtr,
    level: Option<u8>,
    /// Its lower bound.
    pub(crate) low: Key,
    /// Its upper bound.
    pub(crate) high: Option<Key>,
}

/// Receives the nodes and entries of a walk.
pub(crate) trait Visitor {
    /// Called for a node. `fresh` is true if no earlier part of the walk visited it. Returns the node, or `None` if it
    /// cannot be read.
    ///
    /// # Errors
    /// Errors that end the walk. A damaged node is recorded and skipped with `None`.
    fn node(&mut self, step: &Step, fresh: bool) -> Result<Option<Arc<Node>>>;

    /// Called for an entry of a leaf.
    ///
    /// # Errors
    /// Errors that end the walk.
    fn entry(&mut self, key: &Key, entry: &Entry, leaf: &Step) -> Result<()>;
}

/// A walk that can stop after any leaf and continue later.
pub(crate) struct Walk {
    part: Part,
    pending: Vec<Step>,
}

impl Walk {
    pub(crate) fn new(root: Option<&StoredPtr>, part: Part) -> Self {
        let step = |ptr: &StoredPtr| Step { ptr: ptr.clone(), level: None, low: Key::empty(), high: None };
        let pending = root.filter(|root| root.birth > part.since).map(step).into_iter().collect();
        Walk { part, pending }
    }

    /// Blocks born up to this txg are skipped.
    pub(crate) fn since(&self) -> Txg {
        self.part.since
    }

    /// The lower bound of the next node; `None` at the end. All earlier nodes begin below that key.
    pub(crate) fn next_key(&self) -> Option<&Key> {
        self.pending.last().map(|step| &step.low)
    }

    /// Visits nodes down to the next leaf. Returns `false` at the end.
    pub(crate) fn leaf(&mut self, visitor: &mut dyn Visitor) -> Result<bool> {
        while let Some(step) = self.pending.pop() {
            let fresh = self.part.from.len() == 0 || step.low >= self.part.from;
            let Some(node) = visitor.node(&step, fresh)? else { continue };
            let bounds = Bounds { level: step.level, low: Some(&step.low), high: step.high.as_ref() };
            if bounds.refuse(&node).is_some() {
                // The node's hash is correct, so it was written like that; `check` reports it.
                continue;
            }
            match &*node {
                Node::Inner(inner) => {
                    for (at, child) in inner.entries.iter().enumerate().rev() {
                        let high = inner.entries.get(at + 1).map(|next| next.key.clone());
                        let high = high.or_else(|| step.high.clone());
                        let is_before = high.as_ref().is_some_and(|high| *high <= self.part.from);
                        let is_behind = self.part.to.as_ref().is_some_and(|to| child.key >= *to);
                        let Link::Disk(ptr) = &child.link else { continue };
                        if is_before || is_behind || ptr.birth <= self.part.since {
                            continue;
                        }
                        let (ptr, low) = (ptr.clone(), child.key.clone());
                        self.pending.push(Step { ptr, level: inner.level.checked_sub(1), low, high });
                    }
                }
                Node::Leaf(leaf) => {
                    let within = leaf.entries.iter().filter(|entry| entry.key >= self.part.from);
                    for entry in within.take_while(|e| self.part.to.as_ref().is_none_or(|to| e.key < *to)) {
                        visitor.entry(&entry.key, &Entry::from(entry), &step)?;
                    }
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Reads entries of the meta tree and skips damaged nodes.
pub struct MetaScan<'a> {
    pub(crate) io: &'a Arc<Io>,
    pub(crate) root: Option<StoredPtr>,
}

impl MetaScan<'_> {
    /// Passes the entries whose keys lie in `[from, to)` to `each`, in order.
    ///
    /// # Errors
    /// The error of `each`; when the store fails.
    pub fn range(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], &Entry) -> Result<()>,
    ) -> Result<()> {
        struct Reader<'r, 'a> {
            io: &'a Arc<Io>,
            each: &'r mut dyn FnMut(&[u8], &Entry) -> Result<()>,
        }
        impl Visitor for Reader<'_, '_> {
            fn node(&mut self, step: &Step, _: bool) -> Result<Option<Arc<Node>>> {
                passable(self.io.node(&step.ptr, Bounds::default(), true))
            }
            fn entry(&mut self, key: &Key, entry: &Entry, _: &Step) -> Result<()> {
                (self.each)(key.as_slice(), entry)
            }
        }
        let part = Part { from: Key::from(from), to: Some(Key::from(to)), since: 0 };
        let mut walk = Walk::new(self.root.as_ref(), part);
        let mut reader = Reader { io: self.io, each };
        while walk.leaf(&mut reader)? {}
        Ok(())
    }
}

/// Turns damage into `None`.
pub(super) fn passable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

impl PoolError {
    /// Whether the error concerns only one block: its bytes are wrong or cannot be read.
    pub(crate) fn is_damage(&self) -> bool {
        self.is_corruption() || matches!(self, PoolError::Store { .. })
    }
}
