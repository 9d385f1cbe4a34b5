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

use crate::bytes_io::Fields;
use crate::cache::Place;
use crate::error::Result;
use crate::ptr::{BLOCK_MAX, COMPRESSION_OFF, Txg};

/// The property of a pool with external blocks that has the kind of their source. Salvage recognises such a
/// pool by it.
pub const OUTSIDE_PROPERTY: &str = "outside";
/// The property that has the source's path.
pub const OUTSIDE_PATH_PROPERTY: &str = "outside_path";

/// The place of an external block, as its [`Outside`] defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutsidePlace {
    /// Number of the source that holds it; 0 if there is only one source.
    pub source: u64,
    /// Offset of the stored bytes in the source, bytes.
    pub offset: u64,
}

/// A pointer to an external block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsidePtr {
    /// The place of the stored bytes.
    pub place: OutsidePlace,
    /// Stored length, bytes.
    pub psize: u32,
    /// Logical length, bytes.
    pub lsize: u32,
    /// `enum zio_compress` of ZFS; 2 = uncompressed.
    pub compression: u8,
    /// Txg in which the pointer was created.
    pub birth: Txg,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

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

impl OutsidePtr {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.place.source.to_le_bytes());
        out.extend_from_slice(&self.place.offset.to_le_bytes());
        out.extend_from_slice(&self.psize.to_le_bytes());
        out.extend_from_slice(&self.lsize.to_le_bytes());
        out.push(self.compression);
        out.extend_from_slice(&self.birth.to_le_bytes());
        out.extend_from_slice(&self.hash);
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        let ptr = OutsidePtr {
            place: OutsidePlace { source: fields.u64()?, offset: fields.u64()? },
            psize: fields.u32()?,
            lsize: fields.u32()?,
            compression: fields.u8()?,
            birth: fields.u64()?,
            hash: fields.array()?,
        };
        let OutsidePtr { psize, lsize, birth, .. } = ptr;
        if psize == 0 || psize > BLOCK_MAX || lsize == 0 || lsize > BLOCK_MAX || birth == 0 {
            return fields.fail(format!("outside: psize {psize}, lsize {lsize}, birth {birth}"));
        }
        if ptr.compression == COMPRESSION_OFF && psize != lsize {
            return fields.fail(format!("not compressed, yet psize {psize} of lsize {lsize}"));
        }
        Ok(ptr)
    }

    /// The key in the cache. It is derived from the hash, because the content at a place may change.
    pub(crate) fn cached_at(&self) -> Place {
        let (high, low) = self.hash.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (SegmentId(CACHED_OUTSIDE | word(high)), word(low) ^ u64::from(self.compression))
    }
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
