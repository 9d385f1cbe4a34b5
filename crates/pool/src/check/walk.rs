//! Walking a tree node by node, past the cache, with every rule of its structure.

use std::collections::HashSet;
use std::sync::Arc;

use super::Findings;
use super::extents::Extents;
use crate::cache::Place;
use crate::error::Result;
use crate::io::Io;
use crate::outside::Outside;
use crate::ptr::{BlockPtr, StoredPtr, Txg};
use crate::tree::{Inner, Key, Leaf, Link, Node, TreeStats};

/// Gives the data pointers of an entry.
pub(super) type Pointers<'a> = dyn FnMut(&[u8], &[u8]) -> Result<Vec<BlockPtr>> + 'a;

pub(super) struct Walk<'a> {
    io: &'a Arc<Io>,
    /// Read blocks outside the pool: nobody else looks at them.
    data: bool,
    seen: HashSet<Place>,
}

/// What a parent says of a node.
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

    /// Walks all of a tree; gives what it refers to.
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

    /// Walks what of a tree no walk has seen before.
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
            let first = self.seen.insert((ptr.segment, u64::from(ptr.offset)));
            if !first && visit.skip_seen {
                continue;
            }
            visit.stats.add(ptr.asize(), ptr.lsize);
            let (segment, offset) = match visit.meta {
                true => (ptr.segment, ptr.offset),
                false => self.io.locate_at(ptr.segment, ptr.offset)?,
            };
            visit.extents.push_shared(segment, offset, ptr.asize(), &ptr.hash);
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
        let ptr = &expected.ptr;
        if expected.level.is_some_and(|level| level != node.level()) {
            visit.error(ptr, format!("level {} where {:?} belongs", node.level(), expected.level));
            return Ok(());
        }
        match node {
            Node::Leaf(leaf) => self.leaf(leaf, expected, visit),
            Node::Inner(inner) => {
                children(inner, expected, visit, pending);
                Ok(())
            }
        }
    }

    fn leaf(&self, leaf: &Leaf, expected: &Expected, visit: &mut Visit<'_, '_>) -> Result<()> {
        let ptr = &expected.ptr;
        let first = leaf.entries.first().map(|entry| &entry.key);
        let last = leaf.entries.last().map(|entry| &entry.key);
        if first.is_some_and(|key| *key < expected.low)
            || last.is_some_and(|key| expected.high.as_ref().is_some_and(|high| key >= high))
        {
            let what =
                format!("keys {first:?} to {last:?} outside [{:?}, {:?})", expected.low, expected.high);
            visit.error(ptr, what);
        }
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
                let (segment, offset) = self.io.locate_at(ptr.segment, ptr.offset)?;
                visit.extents.push_shared(segment, offset, ptr.asize(), &ptr.hash);
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

fn children(inner: &Inner, expected: &Expected, visit: &mut Visit<'_, '_>, pending: &mut Vec<Expected>) {
    let ptr = &expected.ptr;
    if inner.entries.first().is_none_or(|child| child.key != expected.low) {
        visit.error(ptr, format!("its first child is not at its lower bound {:?}", expected.low));
    }
    if let (Some(last), Some(high)) = (inner.entries.last(), &expected.high)
        && last.key >= *high
    {
        visit.error(ptr, format!("child at {:?}, beyond its upper bound {high:?}", last.key));
    }
    for (at, child) in inner.entries.iter().enumerate().rev() {
        let Link::Disk(below) = &child.link else { continue };
        let high = inner.entries.get(at + 1).map(|next| next.key.clone()).or(expected.high.clone());
        pending.push(Expected {
            ptr: below.clone(),
            level: Some(inner.level - 1),
            low: child.key.clone(),
            high,
            born_by: ptr.birth,
        });
    }
}

impl Visit<'_, '_> {
    fn error(&mut self, ptr: &StoredPtr, what: String) {
        let place = format!("{}, node at segment {} offset {}", self.place, ptr.segment, ptr.offset);
        self.findings.error(place, what);
    }
}
