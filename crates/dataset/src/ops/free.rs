//! Frees the blocks that only a head, or an abandoned receive, uses.

use snowmelt_pool::{BlockPtr, Change as TreeChange, Dead, Deadlist, Hold, Pool, TreeId, Txg};
use std::sync::Arc;

use crate::error::DatasetError;
use crate::objset::{Block, ObjsetKey};

/// Frees every block of a tree born after `born_after`, including nodes, and removes the tree and its deadlist. Older
/// blocks belong to snapshots and are kept. The cost is proportional to the freed blocks.
pub(crate) fn free_tree(
    pool: &Arc<Pool>,
    hold: &Hold<'_>,
    id: TreeId,
    born_after: Txg,
) -> Result<(), DatasetError> {
    let tree = pool.tree(id)?;
    for change in tree.view().changes_since(born_after, &[]) {
        let TreeChange::Entry { key, entry } = change? else { continue };
        if entry.birth <= born_after {
            continue;
        }
        if matches!(ObjsetKey::decode(&key)?, ObjsetKey::Spill { .. } | ObjsetKey::Block { .. })
            && let BlockPtr::Stored(ptr) = Block::decode(&entry.value)?.ptr
        {
            pool.free(hold, ptr.segment, ptr.offset, ptr.asize())?;
        }
    }
    if let (_, Some(deadlist)) = tree.sharing() {
        pool.destroy_tree(hold, deadlist, 0)?;
    }
    pool.destroy_tree(hold, id, born_after)?;
    Ok(())
}

/// Frees the entries of `deadlist` born after `after`, because the snapshot that alone uses them is destroyed.
pub(crate) fn free_dead(
    pool: &Arc<Pool>,
    hold: &Hold<'_>,
    deadlist: TreeId,
    after: Txg,
) -> Result<(), DatasetError> {
    let free = &mut |dead: Dead| pool.free(hold, dead.segment, dead.offset, dead.asize);
    Deadlist::open(pool, deadlist)?.take_after(hold, after, free)?;
    Ok(())
}

/// Merges two deadlists; either may be absent. The cost is that of the smaller one.
pub(crate) fn merge(
    pool: &Arc<Pool>,
    hold: &Hold<'_>,
    a: Option<TreeId>,
    b: Option<TreeId>,
) -> Result<Option<TreeId>, DatasetError> {
    match (a, b) {
        (None, other) | (other, None) => Ok(other),
        (Some(a), Some(b)) => {
            Deadlist::open(pool, a)?.merge(hold, &Deadlist::open(pool, b)?)?;
            pool.destroy_tree(hold, b, 0)?;
            Ok(Some(a))
        }
    }
}
