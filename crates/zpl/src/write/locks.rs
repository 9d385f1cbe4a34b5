//! Locks on objects.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Objects share these many locks.
const SHARDS: usize = 256;

/// One lock for all objects whose numbers are alike.
pub(super) struct Locks(Box<[RwLock<()>]>);

impl Default for Locks {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| RwLock::new(())).collect())
    }
}

impl Locks {
    fn shard(object: u64) -> usize {
        (object % SHARDS as u64) as usize
    }

    /// The object is not changed meanwhile.
    pub(super) fn read(&self, object: u64) -> RwLockReadGuard<'_, ()> {
        self.0[Self::shard(object)].read()
    }

    /// The object is changed by nobody else.
    pub(super) fn write(&self, object: u64) -> RwLockWriteGuard<'_, ()> {
        self.0[Self::shard(object)].write()
    }

    /// As [`Locks::write`], for several objects at once.
    pub(super) fn write_all(&self, objects: &[u64]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut shards: Vec<usize> = objects.iter().map(|object| Self::shard(*object)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| self.0[shard].write()).collect()
    }
}
