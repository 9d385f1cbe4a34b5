//! The identity of the file at a path, which is found without reading the file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What distinguishes one file at a path from the next one there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl Identity {
    pub fn of(it: &Metadata) -> Self {
        Self { device: it.dev(), inode: it.ino(), len: it.len(), changed: (it.ctime(), it.ctime_nsec()) }
    }

    /// The identity of the file at a path now. `None` if there is none.
    pub fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).as_ref().map(Self::of).ok()
    }
}
