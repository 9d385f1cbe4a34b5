//! The directories that were used last, each with an index of its names, so that a name is found or added without
//! reading and hashing all others. (ZFS keeps the same for every micro ZAP whose object it holds.)

use crate::zap::{Entry, KeptZap, Matching};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Bytes of directories that are kept, twice: those of late, and those before them.
const WEIGHT_MAX: usize = 4 << 20;

/// Kept ZAPs by object number. A directory is in here only as it is in the objset: who changes it takes it out, and puts it
/// back once that is written.
#[derive(Default)]
pub(super) struct Directories(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    late: HashMap<u64, KeptZap>,
    /// What [`Kept::late`] weighs.
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
        if self.weight + zap.weight() > WEIGHT_MAX {
            self.earlier = std::mem::take(&mut self.late);
            self.weight = 0;
        }
        self.weight += zap.weight();
        self.late.insert(zap.object(), zap);
    }
}

impl Directories {
    /// Takes a directory out, to change it.
    pub(super) fn take(&self, object: u64) -> Option<KeptZap> {
        self.0.lock().take(object)
    }

    /// Keeps a directory that is in the objset as it is here.
    pub(super) fn keep(&self, zap: KeptZap) {
        self.0.lock().keep(zap);
    }

    /// Forgets a directory that is no more.
    pub(super) fn forget(&self, object: u64) {
        drop(self.take(object));
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        *self.0.lock() = Kept::default();
    }

    /// Looks for a name in a directory; `None` when the directory is not kept.
    pub(super) fn lookup(&self, object: u64, name: &[u8], matching: Matching) -> Option<Option<Entry>> {
        let mut kept = self.0.lock();
        let mut zap = kept.take(object)?;
        let found = zap.lookup(name, matching);
        kept.keep(zap);
        Some(found)
    }
}
