//! A cache of recently used directories. Each has an index of its names, so that a name is found or added without
//! reading and hashing all others. (ZFS keeps the same index for every micro ZAP whose object is in memory.)

use crate::zap::{Entry, KeptZap, Matching};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Size limit, in bytes, of each of the two generations of the cache.
const WEIGHT_MAX: usize = 4 << 20;
/// Largest directory that is cached. The largest micro ZAP of ZFS, with its index, is smaller.
const ONE_MAX: usize = 256 << 10;

/// The cached ZAPs by object number. A cached directory is always the same as in the objset: a caller that changes a
/// directory takes it out first, and returns it after the change is written.
#[derive(Default)]
pub(super) struct Directories(Mutex<Kept>);

/// The two generations of the cache. A directory is in at most one of them.
#[derive(Default)]
struct Kept {
    late: HashMap<u64, KeptZap>,
    /// Total weight of [`Kept::late`].
    weight: usize,
    earlier: HashMap<u64, KeptZap>,
}

impl Kept {
    fn take(&mut self, object: u64) -> Option<KeptZap> {
        if let Some(zap) = self.late.remove(&object) {
            self.weight = self.weight.saturating_sub(zap.weight());
            return Some(zap);
        }
        self.earlier.remove(&object)
    }

    fn keep(&mut self, zap: KeptZap) {
        // Two concurrent lookups may both return the same directory.
        drop(self.take(zap.object()));
        if zap.weight() > ONE_MAX {
            return;
        }
        if self.weight + zap.weight() > WEIGHT_MAX {
            self.earlier = std::mem::take(&mut self.late);
            self.weight = 0;
        }
        self.weight += zap.weight();
        self.late.insert(zap.object(), zap);
    }
}

impl Directories {
    /// Takes a directory out of the cache in order to change it.
    pub(super) fn take(&self, object: u64) -> Option<KeptZap> {
        self.0.lock().take(object)
    }

    /// Puts a directory into the cache. It must be the same as in the objset.
    pub(super) fn keep(&self, zap: KeptZap) {
        self.0.lock().keep(zap);
    }

    /// Removes a directory that no longer exists from the cache.
    pub(super) fn forget(&self, object: u64) {
        drop(self.take(object));
    }

    /// Empties the cache.
    pub(super) fn clear(&self) {
        *self.0.lock() = Kept::default();
    }

    /// Looks up a name in a cached directory. `None` if the directory is not in the cache.
    pub(super) fn lookup(&self, object: u64, name: &[u8], matching: Matching) -> Option<Option<Entry>> {
        let mut kept = self.0.lock();
        let mut zap = kept.take(object)?;
        let found = zap.lookup(name, matching);
        kept.keep(zap);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryObjset;
    use crate::source::{ObjectsMut, Room};
    use crate::zap::{NewZap, Value, Zap, ZapEdit};

    /// Creates `count` ZAPs, each with `names` names, and returns their object numbers.
    fn zaps(count: usize, names: u64) -> (MemoryObjset, Vec<u64>) {
        let objects = MemoryObjset::default();
        let tx = objects.begin(Room::Free).unwrap();
        let numbers = (0..count)
            .map(|_| {
                let number = NewZap::plain(20, 1).create(&objects, &tx).unwrap();
                let mut zap = ZapEdit::open(&objects, number).unwrap();
                for name in 0..names {
                    zap.add(name.to_string().as_bytes(), &Value::One(name)).unwrap();
                }
                zap.write(&tx).unwrap();
                number
            })
            .collect();
        drop(tx);
        (objects, numbers)
    }

    fn read(objects: &MemoryObjset, number: u64) -> KeptZap {
        KeptZap::new(Zap::open(objects, number).unwrap()).unwrap()
    }

    #[test]
    fn what_is_taken_out_is_nowhere_any_more() {
        let (objects, numbers) = zaps(40, 2000);
        let directories = Directories::default();
        for number in &numbers {
            directories.keep(read(&objects, *number));
        }
        assert!(!directories.0.lock().earlier.is_empty(), "there are more than are kept of late");
        // Concurrent readers may return the same directories again.
        for number in &numbers[..5] {
            directories.keep(read(&objects, *number));
        }
        for number in &numbers {
            drop(directories.take(*number));
            assert!(directories.take(*number).is_none());
        }
        let kept = directories.0.lock();
        assert!(kept.late.is_empty() && kept.earlier.is_empty() && kept.weight == 0);
    }

    #[test]
    fn so_much_is_kept_and_no_more() {
        let (objects, numbers) = zaps(200, 2000);
        let directories = Directories::default();
        for number in &numbers {
            directories.keep(read(&objects, *number));
            let found = directories.lookup(*number, b"7", Matching::Exact).unwrap().unwrap();
            assert_eq!(found.value, Value::One(7));
            let kept = directories.0.lock();
            let weigh = |zaps: &HashMap<u64, KeptZap>| zaps.values().map(KeptZap::weight).sum::<usize>();
            assert_eq!(weigh(&kept.late), kept.weight);
            assert!(kept.weight <= WEIGHT_MAX && weigh(&kept.earlier) <= WEIGHT_MAX);
        }
        assert_eq!(directories.lookup(numbers[0], b"7", Matching::Exact), None);
        assert!(directories.lookup(numbers[199], b"none", Matching::Exact).unwrap().is_none());
    }
}
