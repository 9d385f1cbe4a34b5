//! The table of inodes that are referenced or open. The object of such an inode exists even if it has no name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

/// Number of parts of the table, each with its own lock.
const SHARDS: usize = 64;

/// Inodes in use.
pub(super) struct Inodes {
    shards: [Mutex<HashMap<u64, Inode>>; SHARDS],
}

impl Default for Inodes {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

#[derive(Debug, Default)]
struct Inode {
    /// Number of lookups minus number of forgotten lookups.
    lookups: u64,
    /// Number of times that it is open.
    opens: u64,
    /// Generation of its file.
    generation: u64,
    /// Epoch in which it was last checked to be that file.
    epoch: u64,
    /// Whether its last name was removed.
    unlinked: bool,
    /// Whether the next read must record the time of the last read.
    note_read: bool,
    /// Whether it is known to have no file capabilities.
    no_capabilities: bool,
}

/// The result of dropping a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// It is still in use, or was not known.
    InUse,
    /// It is no longer in use.
    Unused {
        /// Whether its last name was removed.
        unlinked: bool,
    },
}

impl Inodes {
    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Inode>> {
        &self.shards[(ino ^ ino >> 32) as usize % SHARDS]
    }

    fn with<T>(&self, ino: u64, change: impl FnOnce(&mut Inode) -> T) -> Option<T> {
        self.shard(ino).lock().get_mut(&ino).map(change)
    }

    /// Adds a reference for a lookup. Returns whether the inode was unknown before.
    pub(super) fn looked_up(&self, ino: u64, generation: u64, epoch: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let (inode, new) = match shard.entry(ino) {
            Entry::Occupied(known) => (known.into_mut(), false),
            Entry::Vacant(free) => (free.insert(Inode::default()), true),
        };
        inode.lookups += 1;
        // The number may have been used by another file, to which a reference still exists.
        (inode.generation, inode.epoch) = (generation, epoch);
        new
    }

    /// Counts another open. Returns whether the inode was unknown before.
    pub(super) fn opened(&self, ino: u64, epoch: u64, generation: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let (inode, new) = match shard.entry(ino) {
            Entry::Occupied(known) => (known.into_mut(), false),
            Entry::Vacant(free) => (free.insert(Inode { generation, epoch, ..Inode::default() }), true),
        };
        inode.opens += 1;
        inode.note_read = true;
        new
    }

    /// Drops `count` lookups.
    pub(super) fn forgotten(&self, ino: u64, count: u64) -> Dropped {
        self.give_back(ino, |inode| inode.lookups = inode.lookups.saturating_sub(count))
    }

    /// Counts a close.
    pub(super) fn closed(&self, ino: u64) -> Dropped {
        self.give_back(ino, |inode| inode.opens = inode.opens.saturating_sub(1))
    }

    fn give_back(&self, ino: u64, give_back: impl FnOnce(&mut Inode)) -> Dropped {
        let mut shard = self.shard(ino).lock();
        let Some(inode) = shard.get_mut(&ino) else { return Dropped::InUse };
        give_back(inode);
        if inode.lookups > 0 || inode.opens > 0 {
            return Dropped::InUse;
        }
        let unlinked = inode.unlinked;
        shard.remove(&ino);
        Dropped::Unused { unlinked }
    }

    /// Whether the inode is in use.
    pub(super) fn is_used(&self, ino: u64) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Notes that the last name was removed. Returns `false` if the inode is not in use.
    pub(super) fn unlinked(&self, ino: u64) -> bool {
        self.with(ino, |inode| inode.unlinked = true).is_some()
    }

    /// Whether the last name was removed.
    pub(super) fn is_unlinked(&self, ino: u64) -> bool {
        self.with(ino, |inode| inode.unlinked).unwrap_or(false)
    }

    /// The generation of a known inode that was last checked in another epoch.
    pub(super) fn unchecked(&self, ino: u64, epoch: u64) -> Option<u64> {
        self.with(ino, |inode| (inode.epoch != epoch).then_some(inode.generation)).flatten()
    }

    /// Notes that it is the same file in this epoch.
    pub(super) fn checked(&self, ino: u64, epoch: u64) {
        self.with(ino, |inode| inode.epoch = epoch);
    }

    /// Whether this is the first read since it was opened.
    pub(super) fn is_first_read(&self, ino: u64) -> bool {
        self.with(ino, |inode| std::mem::take(&mut inode.note_read)).unwrap_or(false)
    }

    /// Whether it is known to have no file capabilities.
    pub(super) fn lacks_capabilities(&self, ino: u64) -> bool {
        self.with(ino, |inode| inode.no_capabilities).unwrap_or(false)
    }

    /// Notes whether it is known to have no file capabilities.
    pub(super) fn set_lacks_capabilities(&self, ino: u64, lacks: bool) {
        self.with(ino, |inode| inode.no_capabilities = lacks);
    }

    /// All inodes in use.
    pub(super) fn all(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    /// Removes all inodes, at the end of a mount.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            shard.lock().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_up_or_open_is_used() {
        let inodes = Inodes::default();
        assert!(inodes.looked_up(7, 1, 0));
        assert!(!inodes.looked_up(7, 1, 0));
        assert!(!inodes.opened(7, 0, 1));
        assert_eq!(inodes.forgotten(7, 2), Dropped::InUse);
        assert!(inodes.is_used(7) && inodes.unlinked(7));
        assert_eq!(inodes.closed(7), Dropped::Unused { unlinked: true });
        assert!(!inodes.is_used(7) && !inodes.unlinked(7));
        assert_eq!(inodes.forgotten(7, 1), Dropped::InUse);
    }

    #[test]
    fn a_number_used_again_is_another_file() {
        let inodes = Inodes::default();
        inodes.looked_up(7, 1, 0);
        assert_eq!(inodes.unchecked(7, 0), None);
        assert_eq!(inodes.unchecked(7, 1), Some(1));
        inodes.looked_up(7, 2, 1);
        assert_eq!(inodes.unchecked(7, 1), None);
        assert_eq!(inodes.unchecked(7, 2), Some(2));
    }
}
