//! The copy-on-write B+tree: byte-string keys in order, values with their own birth txg.
//!
//! A [`Tree`] is changed under a [`Hold`]; a [`View`] is what a tree was at one moment, or a frozen root, and neither
//! blocks nor is blocked by changes. Everything above is built of these: the meta tree, objsets, deadlists.
//!
//! Bytes and invariants: `docs/format/pool.md`, "Tree".

mod bounds;
mod changes;
pub(crate) mod codec;
mod diff;
mod edit;
mod flush;
mod key;
mod node;
mod range;
mod record;
mod view;

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

use crate::deadlist::{Dead, Deadlist};
use crate::error::{PoolError, Result};
use crate::io::Io;
use crate::ptr::{BlockPtr, StoredPtr, Txg};
use crate::txg::Hold;
use edit::Edit;

pub(crate) use bounds::Bounds;
pub use changes::{Change, Changes};
pub use diff::{Diff, DiffIter};
pub(crate) use key::Key;
pub use key::{KEY_MAX, VALUE_MAX};
#[cfg(test)]
pub(crate) use node::Child;
pub(crate) use node::{Inner, Leaf, LeafEntry, Link, Node};
pub use range::{NodesSince, Range};
pub(crate) use record::TreeRecord;
pub use view::View;

/// Names a tree for ever: ids are never reused within a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(pub u64);

impl TreeId {
    /// The meta tree.
    pub const META: TreeId = TreeId(0);
}

/// What a tree holds under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Txg in which it was last written.
    pub birth: Txg,
    /// The value.
    pub value: Bytes,
}

impl From<&LeafEntry> for Entry {
    fn from(entry: &LeafEntry) -> Self {
        Entry { birth: entry.birth, value: entry.value.clone() }
    }
}

/// What a tree refers to: its data blocks ([`Tree::retain`]) and its own nodes as of their last write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Bytes taken in segments.
    pub physical: u64,
    /// Logical bytes.
    pub logical: u64,
}

impl TreeStats {
    pub(crate) fn add(&mut self, asize: u64, lsize: u32) {
        self.physical = self.physical.saturating_add(asize);
        self.logical = self.logical.saturating_add(u64::from(lsize));
    }

    fn sub(&mut self, asize: u64, lsize: u32) {
        self.physical = self.physical.saturating_sub(asize);
        self.logical = self.logical.saturating_sub(u64::from(lsize));
    }
}

#[derive(Debug)]
struct State {
    root: Option<Link>,
    stats: TreeStats,
    shared_until: Txg,
    deadlist: Option<TreeId>,
    /// Txg of the last `freeze`.
    frozen: Txg,
    /// The record in the meta tree is behind.
    dirty: bool,
    destroyed: bool,
    /// See [`Tree::growth`].
    growth: i64,
}

impl State {
    fn take_on(&mut self, asize: u64, lsize: u32) {
        self.stats.add(asize, lsize);
        self.growth = self.growth.saturating_add_unsigned(asize);
    }

    fn let_go(&mut self, ptr: &StoredPtr) {
        self.stats.sub(ptr.asize(), ptr.lsize);
        if ptr.birth > self.shared_until {
            self.growth = self.growth.saturating_sub_unsigned(ptr.asize());
        }
    }
}

/// A tree of the pool, open. All clones of the `Arc` are one tree.
#[derive(Debug)]
pub struct Tree {
    id: TreeId,
    io: Arc<Io>,
    me: Weak<Tree>,
    /// Held through an update, before the others.
    updating: Mutex<()>,
    /// Held through a change and through a flush, so that what a flush writes stays the truth while it writes.
    write: Mutex<()>,
    /// Held only while memory is looked at or changed (and while a missing node is read for a change).
    state: Mutex<State>,
}

impl Tree {
    pub(crate) fn new(id: TreeId, io: Arc<Io>, record: TreeRecord) -> Arc<Self> {
        let TreeRecord { root, stats, shared_until, deadlist } = record;
        let root = root.map(Link::Disk);
        let state = State {
            root,
            stats,
            shared_until,
            deadlist,
            frozen: 0,
            dirty: false,
            destroyed: false,
            growth: 0,
        };
        Arc::new_cyclic(|me| Tree {
            id,
            io,
            me: me.clone(),
            updating: Mutex::new(()),
            write: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// The tree's id.
    pub fn id(&self) -> TreeId {
        self.id
    }

    fn meta(&self) -> bool {
        self.id == TreeId::META
    }

    /// The entry of a key.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.view().get(key)
    }

    /// The tree as it is at this moment. Costs nothing but a lock; what the view sees stays until it is dropped.
    pub fn view(&self) -> View {
        let pin = self.io.pin(Txg::MAX);
        View::new(self.io.clone(), self.state.lock().root.clone(), self.meta(), pin)
    }

    /// What the tree refers to. Nodes changed since they were written do not count until they are written again
    /// ([`Tree::freeze`], a commit).
    pub fn stats(&self) -> TreeStats {
        self.state.lock().stats
    }

    /// Bytes written for the tree less bytes it freed outright, since it was opened: by how much its dataset has come to use
    /// more, whatever snapshots hold. What goes into the deadlist is used as before.
    pub fn growth(&self) -> i64 {
        self.state.lock().growth
    }

    /// Txg up to which blocks are shared with a snapshot, and the deadlist that records the tree's releases of them.
    pub fn sharing(&self) -> (Txg, Option<TreeId>) {
        let state = self.state.lock();
        (state.shared_until, state.deadlist)
    }

    /// Runs one change under both locks, then settles what it let go of.
    fn change<T>(
        &self,
        hold: &Hold<'_>,
        change: impl FnOnce(&mut Edit<'_>, &mut Option<Link>) -> Result<T>,
    ) -> Result<T> {
        hold.check(&self.io)?;
        let mut edit = Edit {
            io: &self.io,
            meta: self.meta(),
            node_bytes: self.io.node_bytes,
            released: Vec::new(),
            dirtied: 0,
        };
        let (done, fresh, shared_until, deadlist) = {
            let _write = self.write.lock();
            let mut state = self.state.lock();
            let state = &mut *state;
            self.check_changeable(state, hold)?;
            let done = change(&mut edit, &mut state.root);
            for ptr in &edit.released {
                state.let_go(ptr);
            }
            let fresh = !std::mem::replace(&mut state.dirty, true);
            (done, fresh, state.shared_until, state.deadlist)
        };
        if fresh {
            hold.pool().tree_is_dirty(&self.me);
        }
        hold.pool().dirtied(edit.dirtied);
        for ptr in &edit.released {
            self.let_go(hold, ptr, shared_until, deadlist)?;
        }
        done
    }

    fn check_changeable(&self, state: &State, hold: &Hold<'_>) -> Result<()> {
        if state.destroyed {
            return Err(PoolError::NoTree(self.id));
        }
        if state.frozen == hold.txg() || state.shared_until >= hold.txg() {
            return Err(PoolError::Frozen { tree: self.id, txg: hold.txg() });
        }
        Ok(())
    }

    /// Frees a block, or records it in the deadlist when a snapshot has it too.
    fn let_go(
        &self,
        hold: &Hold<'_>,
        ptr: &StoredPtr,
        shared_until: Txg,
        deadlist: Option<TreeId>,
    ) -> Result<()> {
        if ptr.birth > shared_until {
            return hold.pool().free_at(hold, ptr.segment, ptr.offset, ptr.asize(), self.meta());
        }
        match deadlist {
            Some(id) => Deadlist::open(hold.pool(), id)?.add(hold, &Dead::from(ptr)),
            None => Ok(()),
        }
    }

    /// Puts a value under a key; gives back the entry it replaces. The new entry's birth is the hold's txg.
    ///
    /// # Errors
    /// `Size` for keys not of 1 to [`KEY_MAX`] bytes and values over [`VALUE_MAX`]; `NoSpace`; `Frozen`; when a node
    /// cannot be read.
    pub fn insert(&self, hold: &Hold<'_>, key: &[u8], value: &[u8]) -> Result<Option<Entry>> {
        check_key(key)?;
        if value.len() > VALUE_MAX {
            return Err(PoolError::Size {
                what: "a tree's value",
                len: value.len() as u64,
                min: 0,
                max: VALUE_MAX as u64,
            });
        }
        hold.admit((key.len() + value.len()) as u64)?;
        let entry = LeafEntry { key: key.into(), birth: hold.txg(), value: Bytes::copy_from_slice(value) };
        let old = self.change(hold, |edit, root| edit.insert(root, entry))?;
        Ok(old.as_ref().map(Entry::from))
    }

    /// Puts in a key's place what `update` makes of what is there. No other update comes between.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), and what `update` returns.
    pub(crate) fn update(
        &self,
        hold: &Hold<'_>,
        key: &[u8],
        update: impl FnOnce(Option<Entry>) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let _updating = self.updating.lock();
        let value = update(self.get(key)?)?;
        self.insert(hold, key, &value).map(drop)
    }

    /// Takes a key out; gives back its entry.
    ///
    /// # Errors
    /// `Frozen`; when a node cannot be read.
    pub fn remove(&self, hold: &Hold<'_>, key: &[u8]) -> Result<Option<Entry>> {
        let old = self.change(hold, |edit, root| edit.remove(root, key))?;
        Ok(old.as_ref().map(Entry::from))
    }

    /// Takes all keys of `[from, to)` out and gives each to `each`, in order, a leaf's worth at a time. `each` may use
    /// the tree.
    ///
    /// # Errors
    /// As `remove`, and what `each` returns: keys of the leaf in hand are gone then, later ones are still there.
    pub fn remove_range(
        &self,
        hold: &Hold<'_>,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Entry) -> Result<()>,
    ) -> Result<()> {
        let mut from = key::Key::from(from);
        let mut taken = Vec::new();
        while from.as_slice() < to {
            let next =
                self.change(hold, |edit, root| edit.remove_in_leaf(root, from.as_slice(), to, &mut taken))?;
            for entry in taken.drain(..) {
                each(entry.key.as_slice(), Entry::from(&entry))?;
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Has all nodes written again of which `pick` picks the pointer.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub(crate) fn rewrite(&self, hold: &Hold<'_>, pick: &dyn Fn(&StoredPtr) -> bool) -> Result<()> {
        self.change(hold, |edit, root| {
            root.as_mut().map_or(Ok(()), |root| edit.rewrite(root, Bounds::of_root(), pick))
        })
    }

    /// Blocks with a birth up to `shared_until` belong to a snapshot too: when the tree lets go of one, it is recorded
    /// in `deadlist` instead of being freed. `(0, None)`: nothing is shared.
    ///
    /// With `None` for a deadlist, shared blocks are forgotten when let go of.
    ///
    /// # Errors
    /// `Misuse` when the deadlist is this tree, or this is the meta tree.
    pub fn set_sharing(&self, hold: &Hold<'_>, shared_until: Txg, deadlist: Option<TreeId>) -> Result<()> {
        hold.check(&self.io)?;
        if self.meta() || deadlist == Some(self.id) || deadlist == Some(TreeId::META) {
            return Err(PoolError::Misuse("the meta tree shares nothing, and no tree is its own deadlist"));
        }
        self.alter(hold, |state| {
            state.shared_until = shared_until;
            state.deadlist = deadlist;
        })
    }

    /// Changes the tree's record only.
    fn alter(&self, hold: &Hold<'_>, alter: impl FnOnce(&mut State)) -> Result<()> {
        let fresh = {
            let _write = self.write.lock();
            let mut state = self.state.lock();
            if state.destroyed {
                return Err(PoolError::NoTree(self.id));
            }
            alter(&mut state);
            !std::mem::replace(&mut state.dirty, true)
        };
        if fresh {
            hold.pool().tree_is_dirty(&self.me);
        }
        hold.pool().dirtied(0);
        Ok(())
    }

    /// A data block is referred to from now on.
    ///
    /// # Errors
    /// `NoTree` when the tree was destroyed.
    pub fn retain(&self, hold: &Hold<'_>, ptr: &BlockPtr) -> Result<()> {
        hold.check(&self.io)?;
        self.alter(hold, |state| state.take_on(ptr.asize(), ptr.lsize()))
    }

    /// A data block is referred to no more: it is freed if it was born after `shared_until`, else recorded in the
    /// deadlist. Accounting goes down in either case.
    ///
    /// # Errors
    /// `Accounting` when the block was not alive; errors of the deadlist.
    pub fn release(&self, hold: &Hold<'_>, ptr: &BlockPtr) -> Result<()> {
        hold.check(&self.io)?;
        let mut sharing = (0, None);
        self.alter(hold, |state| {
            match ptr {
                BlockPtr::Stored(ptr) => state.let_go(ptr),
                BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => state.stats.sub(0, ptr.lsize()),
            }
            sharing = (state.shared_until, state.deadlist);
        })?;
        match ptr {
            BlockPtr::Stored(ptr) => self.let_go(hold, ptr, sharing.0, sharing.1),
            // They take no space.
            BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => match sharing {
                (shared_until, Some(id)) if ptr.birth() <= shared_until => {
                    Deadlist::open(hold.pool(), id)?.add_embedded(hold, ptr.birth(), u64::from(ptr.lsize()))
                }
                _ => Ok(()),
            },
        }
    }

    /// Writes all dirty nodes (no sync) and gives the root as it is now; `None` for an empty tree. A snapshot is this
    /// pointer, once the txg commits.
    ///
    /// Nothing may change in the tree for the rest of the txg: changes would carry the snapshot's txg, and an
    /// incremental from it would miss them. Later changes under this txg fail with `Frozen`.
    ///
    /// # Errors
    /// `NoSpace`, in which case nothing has changed; `Store`, which suspends the pool.
    pub fn freeze(&self, hold: &Hold<'_>) -> Result<Option<StoredPtr>> {
        hold.check(&self.io)?;
        let root = self.flush(hold.txg())?;
        self.alter(hold, |state| state.frozen = hold.txg())?;
        Ok(root)
    }

    /// Replaces the content by another root (rollback, a clone of a snapshot). Nothing is freed by this call; nodes
    /// only in memory are dropped.
    ///
    /// # Errors
    /// `NoTree` when the tree was destroyed.
    pub fn reset(&self, hold: &Hold<'_>, root: Option<StoredPtr>, stats: TreeStats) -> Result<()> {
        hold.check(&self.io)?;
        self.alter(hold, |state| {
            state.root = root.map(Link::Disk);
            state.stats = stats;
            state.frozen = 0;
        })
    }

    /// Makes the tree unusable.
    pub(crate) fn destroyed(&self) -> Option<StoredPtr> {
        let _write = self.write.lock();
        let mut state = self.state.lock();
        state.destroyed = true;
        state.dirty = false;
        match state.root.take() {
            Some(Link::Disk(ptr)) => Some(ptr),
            _ => None,
        }
    }

    /// Exchanges content and stats with another tree that shares nothing.
    pub(crate) fn swap(&self, hold: &Hold<'_>, other: &Tree) -> Result<()> {
        let take = |tree: &Tree| {
            let _write = tree.write.lock();
            let mut state = tree.state.lock();
            (state.root.take(), std::mem::take(&mut state.stats))
        };
        let (mine, theirs) = (take(self), take(other));
        self.alter(hold, |state| (state.root, state.stats) = theirs)?;
        other.alter(hold, |state| (state.root, state.stats) = mine)
    }

    /// The record to be written, if it is behind; the nodes are written first.
    pub(crate) fn sync_record(&self, txg: Txg) -> Result<Option<TreeRecord>> {
        let root = self.flush(txg)?;
        let mut state = self.state.lock();
        if state.destroyed || !std::mem::take(&mut state.dirty) {
            return Ok(None);
        }
        Ok(Some(TreeRecord {
            root,
            stats: state.stats,
            shared_until: state.shared_until,
            deadlist: state.deadlist,
        }))
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.state.lock().dirty
    }
}

fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(PoolError::Size {
            what: "a tree's key",
            len: key.len() as u64,
            min: 1,
            max: KEY_MAX as u64,
        });
    }
    Ok(())
}
