//! Reading and changing the content of files.

use snowmelt_zpl::{FileKind, ZplError};

use super::error::VfsError;
use super::{Vfs, Who};

/// Number of bytes copied at a time.
const COPY_CHUNK: usize = 1 << 20;

/// What is searched in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole (`SEEK_DATA`).
    Data,
    /// The next hole. The end of the file counts as one (`SEEK_HOLE`).
    Hole,
}

/// The options of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteHow {
    /// Whether the writer may not keep setuid and setgid bits of the file.
    pub clear_setid: bool,
}

impl Vfs {
    /// Reads a file's content at `offset` into `buf`, up to the end of the file. Returns the number of bytes read.
    ///
    /// # Errors
    /// If it is not a file or a block cannot be read.
    pub fn read(&self, number: u64, offset: u64, buf: &mut [u8]) -> Result<usize, VfsError> {
        let len = self.on_inode(number, |view, object| view.read(object, offset, buf))?;
        if self.inodes.is_first_read(number) {
            self.note_read(number);
        }
        Ok(len)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// If it is not a symbolic link or cannot be read.
    pub fn readlink(&self, number: u64) -> Result<Vec<u8>, VfsError> {
        self.on_inode(number, |view, object| view.readlink(object))
    }

    /// Writes to a file. Returns the number of bytes written. It is less than the length of `data` only if the pool is
    /// full.
    ///
    /// # Errors
    /// Like [`snowmelt_zpl::FilesystemMut::write`], and [`VfsError::ReadOnly`].
    pub fn write(
        &self,
        number: u64,
        offset: u64,
        data: &[u8],
        who: Who,
        how: WriteHow,
    ) -> Result<usize, VfsError> {
        let caller = who.now();
        self.on_head(&[number], |fs| {
            self.drop_capabilities(fs, number, who)?;
            if how.clear_setid {
                self.drop_setid(fs, number, who)?;
            }
            fs.write(number, offset, data, &caller)
        })
    }

    /// Extends a file to contain a range, if needed.
    ///
    /// # Errors
    /// Like [`Vfs::write`].
    pub fn allocate(&self, number: u64, range: FileRange, keep_size: bool, who: Who) -> Result<(), VfsError> {
        let caller = who.now();
        self.on_head(&[number], |fs| {
            self.dropped_by_write(fs, number, who)?;
            fs.allocate(number, range.offset, range.length, keep_size, &caller)
        })
    }

    /// Makes a hole.
    ///
    /// # Errors
    /// Like [`Vfs::write`].
    pub fn punch_hole(&self, number: u64, range: FileRange, who: Who) -> Result<(), VfsError> {
        let caller = who.now();
        self.on_head(&[number], |fs| {
            self.dropped_by_write(fs, number, who)?;
            fs.punch_hole(number, range.offset, range.length, &caller)
        })
    }

    /// Zeroes a range.
    ///
    /// # Errors
    /// Like [`Vfs::write`].
    pub fn zero_range(
        &self,
        number: u64,
        range: FileRange,
        keep_size: bool,
        who: Who,
    ) -> Result<(), VfsError> {
        let caller = who.now();
        self.on_head(&[number], |fs| {
            self.dropped_by_write(fs, number, who)?;
            fs.zero_range(number, range.offset, range.length, keep_size, &caller)
        })
    }

    /// Removes the file capabilities and setuid and setgid bits that a write by a user other than root removes.
    fn dropped_by_write(
        &self,
        fs: &snowmelt_zpl::FilesystemMut<super::live::Live>,
        number: u64,
        who: Who,
    ) -> Result<(), ZplError> {
        self.drop_capabilities(fs, number, who)?;
        if who.uid != 0 { self.drop_setid(fs, number, who) } else { Ok(()) }
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`VfsError::PastEnd`], or if it is not a file.
    pub fn seek(&self, number: u64, offset: u64, what: Seek) -> Result<u64, VfsError> {
        let found = self.on_inode(number, |view, object| {
            let attributes = view.attributes(object)?;
            if attributes.kind() != FileKind::File {
                return Err(ZplError::NotAFile { object });
            }
            if offset >= attributes.size {
                return Ok(None);
            }
            let extent = view.next_extent(object, attributes.size, offset)?;
            Ok(match (what, extent) {
                (Seek::Data, extent) => extent.map(|(begin, _)| begin),
                (Seek::Hole, Some((begin, end))) if begin <= offset => Some(end),
                (Seek::Hole, _) => Some(offset),
            })
        })?;
        found.ok_or(VfsError::PastEnd { ino: number, offset })
    }

    /// Copies from one file to another, or within one. Returns the number of bytes copied. It is less than `length` at
    /// the end of the source or if the pool is full.
    ///
    /// # Errors
    /// Like [`Vfs::read`] and [`Vfs::write`], if nothing was copied.
    pub fn copy(&self, from: (u64, u64), to: (u64, u64), length: u64, who: Who) -> Result<u64, VfsError> {
        let mut buf = vec![0; COPY_CHUNK.min(usize::try_from(length).unwrap_or(COPY_CHUNK)).max(1)];
        let mut done: u64 = 0;
        while done < length {
            let want = usize::try_from(length - done).map_or(buf.len(), |left| left.min(buf.len()));
            let mut step = || {
                let len = self.read(from.0, from.1.saturating_add(done), &mut buf[..want])?;
                let how = WriteHow { clear_setid: who.uid != 0 };
                let written = match len {
                    0 => 0,
                    _ => self.write(to.0, to.1.saturating_add(done), &buf[..len], who, how)?,
                };
                Ok((len, written))
            };
            match step() {
                Ok((len, written)) => {
                    done += written as u64;
                    if written < want || len < want {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

/// A range of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// Offset of its first byte.
    pub offset: u64,
    /// Length.
    pub length: u64,
}
