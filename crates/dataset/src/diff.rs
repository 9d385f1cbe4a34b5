//! Finds the objects and blocks that differ between two snapshots: for `zfs diff`, and for updating copies of the older
//! one.

use snowmelt_pool::{Diff, DiffIter, PoolError, View};

use crate::error::DatasetError;
use crate::objset::Objset;
use crate::objset::key::{ObjsetKey, object_start};

/// Numbers of the objects whose dnode, spill block or data differ, in ascending order, each once. Objects in only one
/// of the snapshots count as different. Shared subtrees are not read, so the cost is proportional to the differences.
pub fn changed_objects(old: &Objset, new: &Objset) -> impl Iterator<Item = Result<u64, DatasetError>> {
    changed_objects_from(old, new, 0)
}

/// As [`changed_objects`], from the object `first` on.
pub fn changed_objects_from(
    old: &Objset,
    new: &Objset,
    first: u64,
) -> impl Iterator<Item = Result<u64, DatasetError>> {
    ChangedObjects {
        items: View::diff(old.view(), new.view(), &object_start(first)),
        last: None,
        failed: false,
    }
}

/// The blocks of `object` that differ, from the byte `offset` on: offset and length in bytes, in ascending order. If
/// the block size differs, or the object is only in one snapshot, the result is one range without an end.
///
/// # Errors
/// When the pool cannot be read.
pub fn changed_blocks(
    old: &Objset,
    new: &Objset,
    object: u64,
    offset: u64,
) -> Result<impl Iterator<Item = Result<(u64, u64), DatasetError>> + use<>, DatasetError> {
    let sizes =
        (old.dnode(object)?.map(|dnode| dnode.block_size), new.dnode(object)?.map(|dnode| dnode.block_size));
    let (whole, size) = match sizes {
        (Some(before), Some(after)) if before == after && before > 0 => (None, u64::from(after)),
        _ => (Some(Ok((offset, u64::MAX - offset))), 1),
    };
    let from = ObjsetKey::Block { object, blkid: offset / size }.encode();
    let blocks = View::diff(old.view(), new.view(), &from)
        .map(|item| {
            let (Diff::Removed { key, .. } | Diff::Added { key, .. } | Diff::Changed { key, .. }) = item?;
            ObjsetKey::decode(&key)
        })
        .map_while(move |key| match key {
            Ok(ObjsetKey::Block { object: of, blkid }) if of == object => {
                Some(Ok((blkid.saturating_mul(size), size)))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        });
    let is_whole = whole.is_some();
    Ok(whole.into_iter().chain(blocks.take_while(move |_| !is_whole)))
}

struct ChangedObjects {
    items: DiffIter,
    last: Option<u64>,
    failed: bool,
}

impl ChangedObjects {
    fn step(&mut self, item: Result<Diff, PoolError>) -> Result<Option<u64>, DatasetError> {
        let (Diff::Removed { key, .. } | Diff::Added { key, .. } | Diff::Changed { key, .. }) = item?;
        let key = ObjsetKey::decode(&key)?;
        let object = key.object();
        // An object range describes the encryption of dnodes, not their content.
        if matches!(key, ObjsetKey::Range { .. }) || self.last == Some(object) {
            return Ok(None);
        }
        self.last = Some(object);
        Ok(Some(object))
    }
}

impl Iterator for ChangedObjects {
    type Item = Result<u64, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let item = self.items.next()?;
            match self.step(item) {
                Ok(None) => {}
                Ok(Some(object)) => return Some(Ok(object)),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
