//! Which objects differ between two snapshots, for `zfs diff`.

use snowmelt_pool::{Diff, DiffIter, PoolError, View};

use crate::error::DatasetError;
use crate::objset::Objset;
use crate::objset::key::{ObjsetKey, object_start};

/// Numbers of the objects whose dnode, spill block or data differ, ascending, each once. Objects that are only in one
/// of the two count as different. What both share is skipped unread, so the cost is that of the differences.
pub fn changed_objects(old: &Objset, new: &Objset) -> impl Iterator<Item = Result<u64, DatasetError>> {
    ChangedObjects { items: View::diff(old.view(), new.view(), &object_start(0)), last: None, failed: false }
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
        // A range says how dnodes are encrypted, not what they are.
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
