//! Walks a tree node by node, without the cache, and checks every rule of its structure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Findings;
use super::extents::Extents;
use crate::cache::Place;
use crate::error::Result;
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::tree_record::TreeStats;
use crate::ids::Txg;
use crate::io::Io;
use crate::outside::Outside;
use crate::tree::{Bounds, Inner, Key, Leaf, Link, Node};

/// Returns the data pointers of an entry.
pub(super) type Pointers<'a> = dyn FnMut(&[u8], &[u8]) -> Result<Vec<BlockPtr>> + 'a;

/// The role of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Meta,
    /// It shares no node with another tree.
    Deadlist,
    /// It may share nodes with others.
    Other,
}

pub(super) struct Walk<'a> {
    io: &'a Arc<Io>,
    /// Whether external blocks are read. They are not read anywhere else.
    data: bool,
    seen: HashSet<Place>,
    /// Nodes where a walk reached a part of another tree. Such a part is walked once more, and its result is kept here:
    /// many short records can lead to the same nodes.
    shared: HashMap<Place, Subtree>,
}

/// The result of a walk over a node and everything below it.
struct Subtree {
    level: u8,
    /// The first key of the node.
    first: Option<Key>,
    /// The last key of all nodes.
    last: Option<Key>,
    stats: TreeStats,
    /// Whether no error was found.
    is_sound: bool,
}

/// What a parent says about a node.
struct Expected {
    ptr: StoredPtr,
    level: Option<u8>,
    /// `None`: any key is allowed.
    low: Option<Key>,
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
    role: Role,
    repeated: Repeated,
    /// The last key of all nodes walked so far.
    last: Option<Key>,
}

/// What the walk does with a node that it has already seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    Skip,
    /// Walk it again and keep the result, or use the kept result.
    Remember,
    Walk,
    Refuse,
}

impl<'a> Walk<'a> {
    pub(super) fn new(io: &'a Arc<Io>, data: bool) -> Self {
        Walk { io, data, seen: HashSet::new(), shared: HashMap::new() }
    }

    pub(super) fn nodes(&self) -> u64 {
        self.seen.len() as u64
    }

    /// Walks a whole tree and returns the space that it refers to.
    pub(super) fn tree<'v>(
        &mut self,
        root: Option<&StoredPtr>,
        role: Role,
        extents: &'v mut Extents,
        findings: &'v mut Findings<'_>,
        place: &'v str,
        pointers: &'v mut Pointers<'v>,
    ) -> Result<TreeStats> {
        let repeated = if role == Role::Deadlist { Repeated::Refuse } else { Repeated::Remember };
        let mut visit = Visit::new(extents, findings, place, pointers, (role, repeated));
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
        let mut visit = Visit::new(extents, findings, place, pointers, (Role::Other, Repeated::Skip));
        self.walk(root, &mut visit)
    }

    fn walk(&mut self, root: Option<&StoredPtr>, visit: &mut Visit<'_, '_>) -> Result<()> {
        let Some(root) = root else { return Ok(()) };
        let (ptr, born_by) = (root.clone(), root.birth);
        self.walk_from(Expected { ptr, level: None, low: Some(Key::empty()), high: None, born_by }, visit)
    }

    fn walk_from(&mut self, first: Expected, visit: &mut Visit<'_, '_>) -> Result<()> {
        let mut pending = vec![first];
        while let Some(expected) = pending.pop() {
            let ptr = &expected.ptr;
            let seen = (ptr.segment, u64::from(ptr.offset));
            if self.seen.contains(&seen) {
                match visit.repeated {
                    Repeated::Skip => continue,
                    Repeated::Remember if visit.role != Role::Meta => {
                        self.walk_again(&expected, visit)?;
                        continue;
                    }
                    Repeated::Refuse => {
                        visit.error(ptr, "another tree, or another place of this one, has it too".to_owned());
                        continue;
                    }
                    Repeated::Remember | Repeated::Walk => {}
                }
            }
            visit.stats.add(ptr.asize(), ptr.lsize);
            let place = match visit.role {
                Role::Meta => (ptr.segment, ptr.offset),
                Role::Deadlist | Role::Other => self.io.locate_at(ptr.segment, ptr.offset)?,
            };
            if let Err(what) = visit.extents.push(place, ptr.asize(), Some(&ptr.hash)) {
                visit.error(ptr, what);
                continue;
            }
            self.seen.insert(seen);
            visit.check_birth(&expected);
            match self.io.read_node(ptr, visit.role == Role::Meta) {
                Ok(node) => self.node(&node, &expected, visit, &mut pending)?,
                Err(error) => visit.error(ptr, error.chain()),
            }
        }
        Ok(())
    }

    /// Handles a node that another walk has already seen, with everything below it.
    fn walk_again(&mut self, expected: &Expected, visit: &mut Visit<'_, '_>) -> Result<()> {
        let ptr = &expected.ptr;
        let seen = (ptr.segment, u64::from(ptr.offset));
        visit.check_birth(expected);
        if !self.shared.contains_key(&seen) {
            let Some(subtree) = self.subtree(expected, visit)? else { return Ok(()) };
            self.shared.insert(seen, subtree);
        } else if let Some(subtree) = self.shared.get(&seen).filter(|subtree| !subtree.is_sound) {
            visit.stats.add_all(subtree.stats);
            visit.error(ptr, "something below it is damaged, and was found in another tree".to_owned());
            return Ok(());
        }
        let Some(subtree) = self.shared.get(&seen) else { return Ok(()) };
        visit.stats.add_all(subtree.stats);
        if let Some(what) = refuse(&expected.bounds(), subtree) {
            visit.error(ptr, what);
        }
        Ok(())
    }

    /// Walks a node and everything below it once more. If the node is damaged or does not belong in this place, it
    /// reports an error and returns `None`.
    fn subtree(&mut self, expected: &Expected, visit: &mut Visit<'_, '_>) -> Result<Option<Subtree>> {
        let ptr = &expected.ptr;
        let node = match self.io.read_node(ptr, false) {
            Ok(node) => node,
            Err(error) => {
                visit.stats.add(ptr.asize(), ptr.lsize);
                visit.error(ptr, error.chain());
                return Ok(None);
            }
        };
        if let Some(what) = expected.bounds().refuse(&node) {
            visit.stats.add(ptr.asize(), ptr.lsize);
            visit.error(ptr, what);
            return Ok(None);
        }
        let (level, first, errors) = (node.level(), node.ends().0.cloned(), visit.findings.errors);
        drop(node);
        let outer = (std::mem::take(&mut visit.stats), visit.last.take(), visit.repeated);
        visit.repeated = Repeated::Walk;
        let ptr = ptr.clone();
        let walked =
            self.walk_from(Expected { ptr, level: None, low: None, high: None, born_by: Txg::MAX }, visit);
        let (stats, last) = (visit.stats, visit.last.take());
        (visit.stats, visit.last, visit.repeated) = outer;
        walked?;
        Ok(Some(Subtree { level, first, last, stats, is_sound: visit.findings.errors == errors }))
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
        let last = node.ends().1;
        if visit.last.as_ref() < last {
            visit.last = last.cloned();
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
            low: Some(child.key.clone()),
            high: high.cloned(),
            born_by: expected.ptr.birth,
        });
    }
}

/// Why a node that was already walked does not belong in this place, or `None`.
fn refuse(bounds: &Bounds<'_>, subtree: &Subtree) -> Option<String> {
    bounds.refuse_ends(subtree.level, (subtree.first.as_ref(), subtree.last.as_ref()))
}

impl Expected {
    fn bounds(&self) -> Bounds<'_> {
        Bounds { level: self.level, low: self.low.as_ref(), high: self.high.as_ref() }
    }
}

impl<'v, 'f> Visit<'v, 'f> {
    fn new(
        extents: &'v mut Extents,
        findings: &'v mut Findings<'f>,
        place: &'v str,
        pointers: &'v mut Pointers<'v>,
        (role, repeated): (Role, Repeated),
    ) -> Self {
        let stats = TreeStats::default();
        Visit { extents, findings, place, pointers, stats, role, repeated, last: None }
    }

    fn check_birth(&mut self, expected: &Expected) {
        let ptr = &expected.ptr;
        if ptr.birth > expected.born_by {
            self.error(ptr, format!("born in txg {}, after its parent", ptr.birth));
        }
    }

    fn error(&mut self, ptr: &StoredPtr, what: String) {
        let place = format!("{}, node at segment {} offset {}", self.place, ptr.segment, ptr.offset);
        self.findings.error(place, what);
    }
}
