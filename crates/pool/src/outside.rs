//! Blocks whose bytes the pool does not hold: pointers to them, and whoever reads them for the pool.
//!
//! Such a block takes no space, so nothing frees, moves or accounts it; its hash is verified at every read as that of any
//! other. What its place means only whoever supplies the bytes knows: the pool hands it back.
//! Bytes: `docs/format/pool.md`, "External blocks".

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

/// Where a block outside the pool is, in terms of its [`Outside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutsidePlace {
    /// Which of the things outside it is in: 0 where there is only one.
    pub source: u64,
    /// Offset of the stored bytes in it, bytes.
    pub offset: u64,
}

/// A pointer to a block whose stored bytes are outside the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsidePtr {
    /// Where they are.
    pub place: OutsidePlace,
    /// Stored length, bytes.
    pub psize: u32,
    /// Logical length, bytes.
    pub lsize: u32,
    /// `enum zio_compress` of ZFS; 2 = stored as it is.
    pub compression: u8,
    /// Txg in which the pointer was made.
    pub birth: Txg,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

/// Reads what is outside a pool for it. The pool verifies what it is given.
pub trait Outside: Send + Sync {
    /// Fills `buf`, which is as long as the block is stored. `again` says that this failed just now, or gave something else:
    /// whatever is remembered of where things are is not to be relied on.
    ///
    /// # Errors
    /// When the bytes cannot be had.
    fn read(&self, ptr: &OutsidePtr, buf: &mut [u8], again: bool) -> io::Result<()>;

    /// What must be there for the block to be readable, as a person names it.
    fn describe(&self, ptr: &OutsidePtr) -> String;

    /// What is outside may change and be as it should: a check of the pool does not read it.
    fn may_change(&self) -> bool {
        false
    }

    /// The block could not be read, or (without a reason) what was read is not what the pointer was made of.
    fn lost(&self, _: &OutsidePtr, _why: Option<&io::Error>) {}
}

/// Marks the places under which the cache has blocks from outside. Segments never get so far.
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

    /// Where the cache has it: by its hash, for what is outside may change under its place.
    pub(crate) fn cached_at(&self) -> Place {
        let (high, low) = self.hash.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (SegmentId(CACHED_OUTSIDE | word(high)), word(low) ^ u64::from(self.compression))
    }
}

/// One file that has all blocks outside a pool; their source is 0.
#[derive(Debug)]
pub struct OutsideFile {
    path: PathBuf,
    /// Once something was read.
    file: OnceLock<File>,
}

impl OutsideFile {
    /// The file at a path, which is opened when something is read.
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

/// Opens a regular file. What a pool names may have become anything else since, which opening must not wait for or set off.
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
