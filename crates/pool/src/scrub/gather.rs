//! Gathers the blocks of the next batch: walks the roots in order, from where the last batch ended.

use std::sync::Arc;

use super::batch::{Batch, Found};
use super::record::{Position, ScrubRecord, Stage};
use super::walk::{MetaScan, Part, Step, Visitor, Walk};
use super::{FrozenRoot, LiveRoot, ScrubPlan, ScrubRoots};
use crate::damage::DamageOwner;
use crate::error::{PoolError, Result};
use crate::format::prefix;
use crate::format::ptr::BlockPtr;
use crate::format::segment::Kind;
use crate::format::tree_record::TreeRecord;
use crate::ids::{TreeId, Txg};
use crate::io::Io;
use crate::pool::Pool;
use crate::tree::{Bounds, Entry, Key, Node};

/// The root that is being walked.
#[derive(Clone, Copy)]
enum Root {
    Meta,
    /// A tree of which only the nodes are read.
    Nodes(TreeId),
    Frozen {
        owner: u64,
        tree: TreeId,
        txg: Txg,
    },
    Live {
        owner: u64,
        tree: TreeId,
    },
}

impl Root {
    /// The tree that is named in the header of a block that is written again.
    fn tree(self) -> TreeId {
        match self {
            Root::Meta => TreeId::META,
            Root::Nodes(tree) | Root::Frozen { tree, .. } | Root::Live { tree, .. } => tree,
        }
    }

    fn damage_owner(self, key: &Key, high: Option<&Key>) -> DamageOwner {
        let (owner, txg) = match self {
            Root::Meta | Root::Nodes(_) => return DamageOwner::Pool,
            Root::Frozen { owner, txg, .. } => (owner, txg),
            Root::Live { owner, .. } => (owner, 0),
        };
        let bytes = |key: &Key| key.as_slice().to_vec();
        DamageOwner::Root { owner, txg, key: bytes(key), high: high.map(bytes) }
    }
}

/// Fills a batch.
pub(super) struct Gather<'a> {
    pub(super) pool: &'a Pool,
    pub(super) roots: &'a dyn ScrubRoots,
    pub(super) meta: MetaScan<'a>,
    pub(super) plan: ScrubPlan,
    /// Blocks born later are skipped.
    pub(super) max_txg: Txg,
    pub(super) stop: &'a dyn Fn() -> bool,
}

impl Gather<'_> {
    /// Continues from the record's position until the batch is full, and updates the position.
    pub(super) fn fill(&mut self, record: &mut ScrubRecord, batch: &mut Batch, txg: Txg) -> Result<()> {
        self.plan.frozen.sort_by_key(|root| (root.txg, root.guid));
        loop {
            let done = match record.position.stage {
                Stage::Meta => {
                    let part = Part { from: record.position.key.clone(), to: None, since: 0 };
                    let walk = Walk::new(self.meta.root.as_ref(), part);
                    self.walk(walk, Root::Meta, &mut record.position, batch)?
                }
                Stage::Frozen => self.frozen(0, &mut record.position, batch)?,
                Stage::Live => self.live(&mut record.position, batch)?,
                Stage::Late => self.frozen(record.frozen_until, &mut record.position, batch)?,
                Stage::Done => return Ok(()),
            };
            if !done {
                return Ok(());
            }
            let next = match record.position.stage {
                Stage::Meta => Stage::Frozen,
                Stage::Frozen => {
                    record.frozen_until = txg;
                    Stage::Live
                }
                Stage::Live => Stage::Late,
                Stage::Late | Stage::Done => Stage::Done,
            };
            record.position = Position::start(next);
        }
    }

    /// Walks the roots frozen after `after`. Returns `false` when the batch is full before the end.
    fn frozen(&self, after: Txg, position: &mut Position, batch: &mut Batch) -> Result<bool> {
        let from = position.root;
        let left = self.plan.frozen.iter().filter(|root| root.txg > after && (root.txg, root.guid) >= from);
        for FrozenRoot { owner, tree, txg, guid, since, root } in left {
            if *since >= self.max_txg {
                continue;
            }
            enter(position, (*txg, *guid));
            if self.is_over(batch) {
                return Ok(false);
            }
            let part = Part { from: position.key.clone(), to: None, since: *since };
            let root_is = Root::Frozen { owner: *owner, tree: *tree, txg: *txg };
            if !self.walk(Walk::new(root.as_ref(), part), root_is, position, batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn live(&self, position: &mut Position, batch: &mut Batch) -> Result<bool> {
        let mut trees = Vec::new();
        let from = TreeRecord::key(TreeId(position.root.0));
        self.meta.range(&from, &[prefix::TREE + 1], &mut |key, entry| {
            let id = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            // A record that does not decode was written like that; `check` reports it.
            if let (Some(id), Ok(record)) = (id, TreeRecord::decode(&entry.value)) {
                trees.push((TreeId(id), record.root));
            }
            Ok(())
        })?;
        for (id, root) in trees {
            enter(position, (id.0, 0));
            if self.is_over(batch) {
                return Ok(false);
            }
            let (since, root_is) = match self.plan.live.get(&id) {
                Some(LiveRoot { owner, since }) => (*since, Root::Live { owner: *owner, tree: id }),
                None => (0, Root::Nodes(id)),
            };
            let part = Part { from: position.key.clone(), to: None, since };
            if !self.walk(Walk::new(root.as_ref(), part), root_is, position, batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_over(&self, batch: &Batch) -> bool {
        batch.is_full() || (self.stop)()
    }

    /// Returns `false` when the batch is full before the end; the position then says where to continue.
    fn walk(&self, mut walk: Walk, root: Root, position: &mut Position, batch: &mut Batch) -> Result<bool> {
        let since = walk.since();
        let mut finder = Finder { gather: self, io: self.pool.io(), root, since, batch };
        while walk.leaf(&mut finder)? {
            if self.is_over(finder.batch)
                && let Some(next) = walk.next_key()
            {
                position.key = next.clone();
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Moves the position to the beginning of `root`, unless it is already inside that root.
fn enter(position: &mut Position, root: (u64, u64)) {
    if position.root != root {
        position.root = root;
        position.key = Key::empty();
    }
}

/// Adds the blocks that a walk finds to the batch.
struct Finder<'f, 'a> {
    gather: &'f Gather<'a>,
    io: &'f Arc<Io>,
    root: Root,
    since: Txg,
    batch: &'f mut Batch,
}

impl Finder<'_, '_> {
    fn is_old_enough(&self, birth: Txg) -> bool {
        birth <= self.gather.max_txg || matches!(self.root, Root::Meta)
    }
}

impl Visitor for Finder<'_, '_> {
    /// Nodes are read here without the cache, because the walk needs them.
    fn node(&mut self, step: &Step, fresh: bool) -> Result<Option<Arc<Node>>> {
        let is_meta = matches!(self.root, Root::Meta);
        let counts = fresh && self.is_old_enough(step.ptr.birth);
        if !counts {
            return super::walk::passable(self.io.node(&step.ptr, Bounds::default(), is_meta));
        }
        let read = self.io.fetch_copies(&step.ptr, is_meta);
        let read = read.and_then(|copies| {
            self.batch.healed += copies.repaired;
            Ok((copies.header, self.io.open_node(&step.ptr, copies.payload, is_meta)?))
        });
        let found = || Found {
            ptr: step.ptr.clone(),
            kind: Kind::Node,
            tree: self.root.tree(),
            id: crate::ids::BlockId { object: 0, blkid: 0 },
            owner: self.root.damage_owner(&step.low, step.high.as_ref()),
        };
        self.batch.count_read(step.ptr.asize());
        match read {
            Ok((header, node)) => {
                if header.is_none() {
                    let id = crate::ids::BlockId { object: node.level().into(), blkid: node.len() as u64 };
                    self.batch.torn(Found { id, ..found() });
                }
                Ok(Some(Arc::new(node)))
            }
            Err(error) if error.is_damage() => {
                self.batch.damaged(found(), &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn entry(&mut self, key: &Key, entry: &Entry, _: &Step) -> Result<()> {
        let (is_frozen, tree) = match self.root {
            Root::Meta | Root::Nodes(_) => return Ok(()),
            Root::Frozen { tree, .. } => (true, tree),
            Root::Live { tree, .. } => (false, tree),
        };
        let roots = self.gather.roots;
        let (since, max) = (self.since, self.gather.max_txg);
        let (batch, root) = (&mut *self.batch, self.root);
        let mut found = |ptr: &BlockPtr| {
            if let BlockPtr::Stored(ptr) = ptr
                && ptr.birth > since
                && ptr.birth <= max
            {
                let owner = root.damage_owner(key, None);
                let id = roots.block_id(key.as_slice());
                batch.push(Found { ptr: ptr.clone(), kind: Kind::Data, tree, id, owner });
            }
        };
        let tree = (!is_frozen).then_some(tree);
        match roots.pointers(tree, key.as_slice(), &entry.value, &mut found) {
            // The node's hash is correct, so the value was written like that; `check` reports it.
            Err(PoolError::Record { .. }) => Ok(()),
            other => other,
        }
    }
}
