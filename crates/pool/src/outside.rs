//! External blocks: pointers to blocks whose bytes are not in the pool, and the trait that reads them.
//!
//! Such a block takes no space in the pool: it is never freed, moved or accounted. Its hash is verified at every read,
//! like that of any other block. Only the implementation of [`Outside`] knows the meaning of a place; the pool just
//! stores it. Bytes: `docs/format/pool.md`, "External blocks".

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::OFlags;
use snowmelt_store::SegmentId;

use crate::cache::Place;
use crate::format::outside::OutsidePtr;

/// Reads external blocks for a pool. The pool verifies the bytes.
pub trait Outside: Send + Sync {
    /// Fills `buf`, which has the block's stored length. `again` is true if a read of this block just failed or gave
    /// wrong bytes; cached information about places must then not be used.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    fn read(&self, ptr: &OutsidePtr, buf: &mut [u8], again: bool) -> io::Result<()>;

    /// Name of the source of a block, for messages.
    fn describe(&self, ptr: &OutsidePtr) -> String;

    /// Whether the source may change in normal operation. A check of the pool then does not read it.
    fn may_change(&self) -> bool {
        false
    }

    /// Called when a block could not be read, or, without a reason, when its bytes do not match the pointer.
    fn lost(&self, _: &OutsidePtr, _why: Option<&io::Error>) {}
}

/// Marks cache keys of external blocks. Segment ids never become so large.
const CACHED_OUTSIDE: u64 = 1 << 63;

/// The key in the cache. It is derived from the hash, because the content at a place may change.
pub(crate) fn cached_at(ptr: &OutsidePtr) -> Place {
    let (high, low) = ptr.hash.split_at(8);
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (SegmentId(CACHED_OUTSIDE | word(high)), word(low) ^ u64::from(ptr.compression))
}

/// One file that holds all external blocks of a pool. Their source is 0.
#[derive(Debug)]
pub struct OutsideFile {
    path: PathBuf,
    /// Set after the first read.
    file: OnceLock<File>,
}

impl OutsideFile {
    /// The file at `path`. It is opened at the first read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        OutsideFile { path: path.into(), file: OnceLock::new() }
    }

    fn file(&self) -> io::Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = open_regular(&self.path)?;
        Ok(self.file.get_or_init(|| file))
    }
}

/// Opens a regular file. The path may have been replaced by something else, so the open must neither block nor have
/// side effects.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

impl Outside for OutsideFile {
    fn read(&self, ptr: &OutsidePtr, buf: &mut [u8], _: bool) -> io::Result<()> {
        if ptr.place.source != 0 {
            let what = format!("there is no source {}", ptr.place.source);
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        self.file()?.read_exact_at(buf, ptr.place.offset)
    }

    fn describe(&self, _: &OutsidePtr) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, fifo) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("fifo"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        open_regular(&file).unwrap();
        for other in [link.as_path(), &fifo, dir.path(), Path::new("/dev/null")] {
            open_regular(other).unwrap_err();
        }
    }
}
