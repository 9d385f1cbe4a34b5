//! A bounded cache of open files, for reading segments that are no longer written.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::SegmentId;

/// How many files stay open at most; well below the usual limit of 1024 descriptors for a process.
const LIMIT: usize = 256;

/// The most recently used files.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    files: HashMap<SegmentId, (Arc<File>, u64)>,
    /// Counts uses; the file with the smallest count was used longest ago.
    clock: u64,
}

impl Handles {
    /// The open file of `id`, if there is one.
    pub(crate) fn get(&self, id: SegmentId) -> Option<Arc<File>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        let (file, used) = inner.files.get_mut(&id)?;
        *used = now;
        Some(Arc::clone(file))
    }

    /// Keeps `file` for later, in place of the one used longest ago when there are too many.
    pub(crate) fn insert(&self, id: SegmentId, file: Arc<File>) {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        if inner.files.len() >= LIMIT && !inner.files.contains_key(&id) {
            // A scan of a few hundred entries costs far less than the open that led here.
            let oldest = inner.files.iter().min_by_key(|(_, (_, used))| *used).map(|(&id, _)| id);
            if let Some(oldest) = oldest {
                inner.files.remove(&oldest);
            }
        }
        inner.files.insert(id, (file, now));
    }

    /// Forgets the file of `id`.
    pub(crate) fn remove(&self, id: SegmentId) {
        self.inner.lock().files.remove(&id);
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.inner.lock().files.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().files.len()
    }
}
