//! Locks on objects.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of locks that all objects share.
const SHARDS: usize = 256;

/// A table of locks. Objects whose numbers fall in the same shard share a lock.
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

    /// Locks the object for reading: it does not change meanwhile.
    pub(super) fn read(&self, object: u64) -> RwLockReadGuard<'_, ()> {
        self.0[Self::shard(object)].read()
    }

    /// Locks the object for writing.
    pub(super) fn write(&self, object: u64) -> RwLockWriteGuard<'_, ()> {
        self.0[Self::shard(object)].write()
    }

    /// Like [`Locks::write`], for several objects at once.
    pub(super) fn write_all(&self, objects: &[u64]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut shards: Vec<usize> = objects.iter().map(|object| Self::shard(*object)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| self.0[shard].write()).collect()
    }
}
