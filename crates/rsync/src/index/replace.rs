//! Replaces an index atomically: a reader gets the old or the new one, always complete.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::IndexError;

/// The temporary file that becomes the index. It is locked, so that no other process writes the same file.
#[derive(Debug)]
pub struct Replacement {
    target: PathBuf,
    path: PathBuf,
    file: File,
    is_done: bool,
}

impl Replacement {
    /// Begins a replacement of the index at `target`. The present index stays until the new one is complete.
    ///
    /// # Errors
    /// When the temporary file cannot be written, or another process is making the index.
    pub fn begin(target: &Path) -> Result<Self, IndexError> {
        let mut name = target.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        loop {
            // Not truncated, because before it is locked it may belong to another process.
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
            // The process that held the lock may have renamed the file before we got it.
            let ours = file.metadata().map_err(IndexError::io(&path))?;
            let there = std::fs::symlink_metadata(&path).ok();
            if there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                return Ok(Self { target: target.to_owned(), path, file, is_done: false });
            }
        }
    }

    /// Writes the bytes of an index durably, and renames the file to its final path.
    ///
    /// # Errors
    /// When that fails. The old index stays then.
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
            // The lock makes the file ours to remove. There is nobody to report a failure to.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
