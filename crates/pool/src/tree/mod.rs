//! The copy-on-write B+tree: byte-string keys in order, values with their own birth txg.
//!
//! A [`Tree`] is changed under a [`Hold`]. A [`View`] shows a tree as it was at one moment, or a frozen root. Views do
//! not wait for changes, and changes do not wait for views. The meta tree, objset trees and deadlists are such trees.
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
mod view;

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

use crate::deadlist::{Dead, Deadlist};
use crate::error::{PoolError, Result};
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::tree_record::{TreeRecord, TreeStats};
use crate::ids::{TreeId, Txg};
use crate::io::Io;
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
pub use view::View;

/// The entry of a key in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Txg in which the entry was last written.
    pub birth: Txg,
    /// The value.
    pub value: Bytes,
}

impl From<&LeafEntry> for Entry {
    fn from(entry: &LeafEntry) -> Self {
        Entry { birth: entry.birth, value: entry.value.clone() }
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
    /// The record in the meta tree is out of date.
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

/// An open tree. All clones of the `Arc` are one tree.
#[derive(Debug)]
pub struct Tree {
    id: TreeId,
    io: Arc<Io>,
    me: Weak<Tree>,
    /// Held during [`Tree::update`]. Taken before the other locks.
    updating: Mutex<()>,
    /// Held during a change and during a flush, so that nothing changes while a flush writes.
    write: Mutex<()>,
    /// Held while the nodes in memory are read or changed, and while a missing node is read for a change.
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

    /// The tree as it is now. Takes only a lock. The nodes and blocks that the view sees are kept until it is dropped.
    pub fn view(&self) -> View {
        let pin = self.io.pin(Txg::MAX);
        View::new(self.io.clone(), self.state.lock().root.clone(), self.meta(), pin)
    }

    /// The space that the tree refers to. Changed nodes count with their new size only when they are written again
    /// ([`Tree::freeze`], a commit).
    pub fn stats(&self) -> TreeStats {
        self.state.lock().stats
    }

    /// Bytes written for the tree minus bytes that it freed directly, since it was opened. This is how much more space
    /// its dataset uses, without what snapshots hold. Blocks that were moved to the deadlist count as still used.
    pub fn growth(&self) -> i64 {
        self.state.lock().growth
    }

    /// Txg up to which blocks are shared with a snapshot, and the deadlist for those shared blocks that the tree
    /// releases.
    pub fn sharing(&self) -> (Txg, Option<TreeId>) {
        let state = self.state.lock();
        (state.shared_until, state.deadlist)
    }

    /// Runs one change under both locks, then frees the blocks that the change released.
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

    /// Frees a block, or records it in the deadlist if a snapshot shares it.
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

    /// Inserts a value under a key, and returns the entry that it replaces. The new entry's birth is the hold's txg.
    ///
    /// # Errors
    /// `Size` for a key that is not 1 to [`KEY_MAX`] bytes long, or a value over [`VALUE_MAX`]; `NoSpace`; `Frozen`;
    /// when a node cannot be read.
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

    /// Replaces a key's value with the result of `update`, which gets the old entry. Updates of a tree run one at a
    /// time.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); the error of `update`.
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

    /// Removes a key and returns its entry.
    ///
    /// # Errors
    /// `Frozen`; when a node cannot be read.
    pub fn remove(&self, hold: &Hold<'_>, key: &[u8]) -> Result<Option<Entry>> {
        let old = self.change(hold, |edit, root| edit.remove(root, key))?;
        Ok(old.as_ref().map(Entry::from))
    }

    /// Removes all keys in `[from, to)` and passes each entry to `each`, in order. This happens leaf by leaf, so `each`
    /// may use the tree.
    ///
    /// # Errors
    /// As `remove`; the error of `each`. After such an error all keys of the current leaf are removed, later keys are
    /// not.
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

    /// Marks all nodes to be written again for whose pointers `pick` returns true.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub(crate) fn rewrite(&self, hold: &Hold<'_>, pick: &dyn Fn(&StoredPtr) -> bool) -> Result<()> {
        self.change(hold, |edit, root| {
            root.as_mut().map_or(Ok(()), |root| edit.rewrite(root, Bounds::of_root(), pick))
        })
    }

    /// Declares that blocks born up to `shared_until` also belong to a snapshot. When the tree releases such a block,
    /// the block is recorded in `deadlist` instead of being freed. `(0, None)` means that nothing is shared.
    ///
    /// Without a deadlist, released shared blocks are neither freed nor recorded.
    ///
    /// # Errors
    /// `Misuse` when the deadlist is this tree or the meta tree, or this tree is the meta tree.
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

    /// Changes only the tree's record.
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

    /// Adds a data block to the tree's accounting: the tree refers to it from now on.
    ///
    /// # Errors
    /// `NoTree` when the tree was destroyed.
    pub fn retain(&self, hold: &Hold<'_>, ptr: &BlockPtr) -> Result<()> {
        hold.check(&self.io)?;
        self.alter(hold, |state| state.take_on(ptr.asize(), ptr.lsize()))
    }

    /// Removes a data block from the tree's accounting: the tree no longer refers to it. The block is freed if it was
    /// born after `shared_until`; otherwise it is recorded in the deadlist.
    ///
    /// # Errors
    /// `Accounting` when the block was not live; errors of the deadlist.
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
            // These blocks take no space in segments.
            BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => match sharing {
                (shared_until, Some(id)) if ptr.birth() <= shared_until => {
                    Deadlist::open(hold.pool(), id)?.add_embedded(hold, ptr.birth(), u64::from(ptr.lsize()))
                }
                _ => Ok(()),
            },
        }
    }

    /// Writes all dirty nodes without a sync, and returns the current root; `None` for an empty tree. Once the txg is
    /// committed, this pointer is a snapshot of the tree.
    ///
    /// The tree must not change for the rest of the txg: changes would have the snapshot's txg as their birth, and an
    /// incremental stream from the snapshot would miss them. Changes in the same txg fail with `Frozen`.
    ///
    /// # Errors
    /// `NoSpace`, after which nothing has changed; `Store`, which suspends the pool.
    pub fn freeze(&self, hold: &Hold<'_>) -> Result<Option<StoredPtr>> {
        hold.check(&self.io)?;
        let root = self.flush(hold.txg())?;
        self.alter(hold, |state| state.frozen = hold.txg())?;
        Ok(root)
    }

    /// Replaces the content by another root, for a rollback or a clone of a snapshot. This call frees no blocks. Dirty
    /// nodes in memory are dropped.
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

    /// Exchanges content and stats with another tree. Neither tree may share blocks.
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

    /// Writes the dirty nodes, and returns the tree's record if it is out of date.
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
