//! Fills the objset of a new dataset.

use snowmelt_pool::{BlockId, Entry, Hold, PoolError, Tree};
use snowmelt_zpl::memory::MemoryObjects;

use super::{Block, Dnode, ObjsetKey};
use crate::error::DatasetError;
use crate::receive::prepare::{METADATA, pack};

/// Puts objects into an empty tree in the txg of `hold`. Thus a new dataset and its first objects are committed
/// together.
pub(crate) fn fill(hold: &Hold<'_>, tree: &Tree, objects: &MemoryObjects) -> Result<(), DatasetError> {
    for (&object, content) in &objects.objects {
        let new = &content.dnode;
        let dnode = Dnode {
            object_type: new.object_type,
            bonus_type: new.bonus_type,
            checksum: new.checksum,
            compress: new.compress,
            slots: new.slots,
            block_size: new.block_size,
            bonus_len: u32::try_from(new.bonus.len()).unwrap_or(u32::MAX),
            raw: None,
            bonus: new.bonus.clone(),
        };
        tree.insert(hold, &ObjsetKey::Dnode { object }.encode(), &dnode.encode())?;
        let blocks = content.blocks.iter().map(|(&blkid, data)| {
            let mut data = data.clone();
            data.resize(new.block_size as usize, 0);
            (ObjsetKey::Block { object, blkid }, blkid, data)
        });
        let spill = content.spill.iter().map(|data| (ObjsetKey::Spill { object }, u64::MAX, data.clone()));
        for (key, blkid, data) in blocks.chain(spill) {
            let ptr = hold.write(tree.id(), BlockId { object, blkid }, pack(data, METADATA))?;
            put_block(hold, tree, &key.encode(), &Block { ptr, crypt: None })?;
        }
    }
    Ok(())
}

/// Puts a newly written block into a tree, and returns the entry that it replaces. On an error the block is freed
/// again.
pub(crate) fn put_block(
    hold: &Hold<'_>,
    tree: &Tree,
    key: &[u8],
    block: &Block,
) -> Result<Option<Entry>, PoolError> {
    tree.retain(hold, &block.ptr)?;
    let put = tree.insert(hold, key, &block.encode());
    if put.is_err() {
        tree.release(hold, &block.ptr)?;
    }
    put
}
