//! Walks a tree node by node, without the cache, and checks every rule of its structure.

use std::collections::HashSet;
use std::sync::Arc;

use super::Findings;
use super::extents::Extents;
use crate::cache::Place;
use crate::error::Result;
use crate::io::Io;
use crate::outside::Outside;
use crate::ptr::{BlockPtr, StoredPtr, Txg};
use crate::tree::{Bounds, Inner, Key, Leaf, Link, Node, TreeStats};

/// Returns the data pointers of an entry.
pub(super) type Pointers<'a> = dyn FnMut(&[u8], &[u8]) -> Result<Vec<BlockPtr>> + 'a;

pub(super) struct Walk<'a> {
    io: &'a Arc<Io>,
    /// Whether external blocks are read. They are not read anywhere else.
    data: bool,
    seen: HashSet<Place>,
}

/// What a parent says about a node.
struct Expected {
    ptr: StoredPtr,
    level: Option<u8>,
    low: Key,
    high: Option<Key>,
    born_by: Txg,
}

/// One walk over one tree.
struct Visit<'v, 'f> {
    extents: &'v mut Extents,
    findings: &'v mut Findings<'f>,
    place: &'v str,
    pointers: &'v mut Pointers<'v>,
    stats: TreeStats,
    meta: bool,
    skip_seen: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(io: &'a Arc<Io>, data: bool) -> Self {
        Walk { io, data, seen: HashSet::new() }
    }

    pub(super) fn nodes(&self) -> u64 {
        self.seen.len() as u64
    }

    /// Walks a whole tree and returns the space that it refers to.
    pub(super) fn tree<'v>(
        &mut self,
        root: Option<&StoredPtr>,
        meta: bool,
        extents: &'v mut Extents,
        findings: &'v mut Findings<'_>,
        place: &'v str,
        pointers: &'v mut Pointers<'v>,
    ) -> Result<TreeStats> {
        let stats = TreeStats::default();
        let mut visit = Visit { extents, findings, place, pointers, stats, meta, skip_seen: false };
        self.walk(root, &mut visit)?;
        Ok(visit.stats)
    }

    /// Walks the nodes of a tree that no earlier walk has seen.
    pub(super) fn shared<'v>(
        &mut self,
        root: Option<&StoredPtr>,
        extents: &'v mut Extents,
        findings: &'v mut Findings<'_>,
        place: &'v str,
        pointers: &'v mut Pointers<'v>,
    ) -> Result<()> {
        let stats = TreeStats::default();
        let mut visit = Visit { extents, findings, place, pointers, stats, meta: false, skip_seen: true };
        self.walk(root, &mut visit)
    }

    fn walk(&mut self, root: Option<&StoredPtr>, visit: &mut Visit<'_, '_>) -> Result<()> {
        let Some(root) = root else { return Ok(()) };
        let mut pending = vec![Expected {
            ptr: root.clone(),
            level: None,
            low: Key::empty(),
            high: None,
            born_by: root.birth,
        }];
        while let Some(expected) = pending.pop() {
            let ptr = &expected.ptr;
            let seen = (ptr.segment, u64::from(ptr.offset));
            if visit.skip_seen && self.seen.contains(&seen) {
                continue;
            }
            visit.stats.add(ptr.asize(), ptr.lsize);
            let place = match visit.meta {
                true => (ptr.segment, ptr.offset),
                false => self.io.locate_at(ptr.segment, ptr.offset)?,
            };
            if let Err(what) = visit.extents.push(place, ptr.asize(), Some(&ptr.hash)) {
                visit.error(ptr, what);
                continue;
            }
            self.seen.insert(seen);
            if ptr.birth > expected.born_by {
                visit.error(ptr, format!("born in txg {}, after its parent", ptr.birth));
            }
            match self.io.read_node(ptr, visit.meta) {
                Ok(node) => self.node(&node, &expected, visit, &mut pending)?,
                Err(error) => visit.error(ptr, error.chain()),
            }
        }
        Ok(())
    }

    fn node(
        &self,
        node: &Node,
        expected: &Expected,
        visit: &mut Visit<'_, '_>,
        pending: &mut Vec<Expected>,
    ) -> Result<()> {
        // A node in a wrong place is not walked: it could be in any number of wrong places.
        if let Some(what) = expected.bounds().refuse(node) {
            visit.error(&expected.ptr, what);
            return Ok(());
        }
        match node {
            Node::Leaf(leaf) => self.leaf(leaf, expected, visit),
            Node::Inner(inner) => {
                children(inner, expected, pending);
                Ok(())
            }
        }
    }

    fn leaf(&self, leaf: &Leaf, expected: &Expected, visit: &mut Visit<'_, '_>) -> Result<()> {
        let ptr = &expected.ptr;
        for entry in &leaf.entries {
            match (visit.pointers)(entry.key.as_slice(), &entry.value) {
                Ok(pointers) => {
                    for block in &pointers {
                        self.data(block, entry.birth, ptr, visit)?;
                    }
                }
                Err(error) => visit.error(ptr, format!("key {:?}: {}", entry.key, error.chain())),
            }
        }
        Ok(())
    }

    fn data(&self, block: &BlockPtr, birth: Txg, leaf: &StoredPtr, visit: &mut Visit<'_, '_>) -> Result<()> {
        visit.stats.add(block.asize(), block.lsize());
        if block.birth() > birth {
            visit.error(leaf, format!("a block born in txg {} in an entry of {birth}", block.birth()));
        }
        match block {
            BlockPtr::Stored(ptr) => {
                let place = self.io.locate_at(ptr.segment, ptr.offset)?;
                if let Err(what) = visit.extents.push(place, ptr.asize(), Some(&ptr.hash)) {
                    visit.error(leaf, format!("a block: {what}"));
                }
            }
            BlockPtr::Outside(_) => {
                let steady = |outside: &Arc<dyn Outside>| !outside.may_change();
                let may_read = self.data && self.io.outside.read().as_ref().is_some_and(steady);
                let checked =
                    if may_read { self.io.read_stored(block).map(drop) } else { self.io.check_outside() };
                if let Err(error) = checked {
                    visit.error(leaf, error.chain());
                }
            }
            BlockPtr::Embedded { .. } => {}
        }
        Ok(())
    }
}

fn children(inner: &Inner, expected: &Expected, pending: &mut Vec<Expected>) {
    for (at, child) in inner.entries.iter().enumerate().rev() {
        let Link::Disk(below) = &child.link else { continue };
        let Bounds { level, high, .. } = inner.bounds_of(at, expected.high.as_ref());
        pending.push(Expected {
            ptr: below.clone(),
            level,
            low: child.key.clone(),
            high: high.cloned(),
            born_by: expected.ptr.birth,
        });
    }
}

impl Expected {
    fn bounds(&self) -> Bounds<'_> {
        Bounds { level: self.level, low: Some(&self.low), high: self.high.as_ref() }
    }
}

impl Visit<'_, '_> {
    fn error(&mut self, ptr: &StoredPtr, what: String) {
        let place = format!("{}, node at segment {} offset {}", self.place, ptr.segment, ptr.offset);
        self.findings.error(place, what);
    }
}
