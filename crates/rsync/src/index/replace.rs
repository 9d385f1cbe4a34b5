//! Putting an index in the place of the one before, so that whoever opens it has one of the two, whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::IndexError;

/// The file that is to become the index. Nobody else makes one of that name meanwhile.
#[derive(Debug)]
pub struct Replacement {
    target: PathBuf,
    path: PathBuf,
    file: File,
    is_done: bool,
}

impl Replacement {
    /// Begins to make the index at a path; the one that is there stays until the new one is whole.
    ///
    /// # Errors
    /// When nothing can be written there, or somebody else is making it.
    pub fn begin(target: &Path) -> Result<Self, IndexError> {
        let mut name = target.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        loop {
            // Not truncated: before it is locked, it is another's.
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(IndexError::io(&path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let busy =
                        io::Error::new(io::ErrorKind::ResourceBusy, "this index is being made already");
                    return Err(IndexError::io(&path)(busy));
                }
                locked => locked.map_err(|error| IndexError::io(&path)(error.into()))?,
            }
            // Whoever had it may have moved it to its place before the lock was ours.
            let ours = file.metadata().map_err(IndexError::io(&path))?;
            let there = std::fs::symlink_metadata(&path).ok();
            if there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                return Ok(Self { target: target.to_owned(), path, file, is_done: false });
            }
        }
    }

    /// Writes the bytes of a whole index, and makes them the one at the path, durably.
    ///
    /// # Errors
    /// When they cannot be written; then all is as before.
    pub fn commit(mut self, bytes: &[u8]) -> Result<(), IndexError> {
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write(&mut self.file).map_err(IndexError::io(&self.path))?;
        std::fs::rename(&self.path, &self.target).map_err(IndexError::io(&self.target))?;
        self.is_done = true;
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(IndexError::io(parent))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_done {
            // It is locked, so it is ours to remove; nobody is there to be told of a failure.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
