//! A bounded cache of open files, for reading sealed segments.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::SegmentId;

/// Maximum number of open files. It is well below 1024, the usual limit of descriptors for a process.
const LIMIT: usize = 256;

/// Open files by segment. The least recently used file is closed first.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    files: HashMap<SegmentId, (Arc<File>, u64)>,
    /// Counts uses. The file with the smallest count is the least recently used.
    clock: u64,
}

impl Handles {
    /// Returns the open file of `id`, if the cache has it.
    pub(crate) fn get(&self, id: SegmentId) -> Option<Arc<File>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        let (file, used) = inner.files.get_mut(&id)?;
        *used = now;
        Some(Arc::clone(file))
    }

    /// Adds `file` to the cache. If the cache is full, the least recently used file is closed.
    pub(crate) fn insert(&self, id: SegmentId, file: Arc<File>) {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        if inner.files.len() >= LIMIT && !inner.files.contains_key(&id) {
            // A scan of a few hundred entries is much cheaper than the opening of the file before this call.
            let oldest = inner.files.iter().min_by_key(|(_, (_, used))| *used).map(|(&id, _)| id);
            if let Some(oldest) = oldest {
                inner.files.remove(&oldest);
            }
        }
        inner.files.insert(id, (file, now));
    }

    /// Removes the file of `id` from the cache.
    pub(crate) fn remove(&self, id: SegmentId) {
        self.inner.lock().files.remove(&id);
    }

    /// Removes all files.
    pub(crate) fn clear(&self) {
        self.inner.lock().files.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().files.len()
    }
}
