//! The index of a directory: everything that a file list needs, in one small file. Serving a list then reads nothing of
//! the tree. The format is in docs/format/index.md.
//!
//! An index is checked completely when it is loaded. It never changes, and all readers share it. A new index replaces
//! it for later readers.

mod builder;
mod changes;
mod cursor;
mod error;
mod links;
mod listing;
mod record;
mod replace;
mod scan;
mod tables;
mod tree;
mod update;
mod watch;

pub use builder::Builder;
pub use changes::changed_paths;
pub use error::IndexError;
pub use replace::Replacement;
pub use scan::{Unread, scan};
pub use update::update;
pub use watch::Watch;

pub(crate) use record::{Record, Special};
pub(crate) use tables::XattrSet;

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use self::cursor::Cursor;
use self::listing::{Context, Listing};
use self::record::Before;
use self::tables::Shared;
use crate::budget::quarter_of_memory;
use crate::source::Time;

const MAGIC: [u8; 8] = *b"snowindx";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 72;
const DIGEST_LEN: usize = blake3::OUT_LEN;
const SLOT_LEN: usize = 8;
/// The number of the root directory.
pub(crate) const ROOT: u32 = 0;

/// The bytes between header and digest.
fn content(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(HEADER_LEN..bytes.len().saturating_sub(DIGEST_LEN))
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// The header of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    len: u64,
    made: Time,
    directories: u32,
    files: u64,
    shared: u64,
    sets: u64,
    slots: u64,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, IndexError> {
        let mut cursor = Cursor::new(bytes, 0);
        if cursor.array().ok() != Some(MAGIC) {
            return Err(IndexError::NotAnIndex);
        }
        let (version, features) = (cursor.u32()?, cursor.u32()?);
        if version != VERSION || features != 0 {
            return Err(IndexError::Unsupported { version, features });
        }
        let len = cursor.u64()?;
        let made = Time { seconds: cursor.u64()?.cast_signed(), nanoseconds: cursor.u32()? };
        let directories = cursor.u32()?;
        let [files, shared, sets, slots] = [cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?];
        Ok(Self { len, made, directories, files, shared, sets, slots })
    }

    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.made.seconds.to_le_bytes());
        out.extend_from_slice(&self.made.nanoseconds.to_le_bytes());
        out.extend_from_slice(&self.directories.to_le_bytes());
        for number in [self.files, self.shared, self.sets, self.slots] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }
}

/// An index in memory.
pub struct Index {
    bytes: Vec<u8>,
    header: Header,
    root: Record,
    shared: Vec<Shared>,
    /// The offset of each set of extended attributes.
    sets: Vec<usize>,
    /// The offset of the directory table.
    slots: usize,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Index {
    /// Reads a file and checks it.
    ///
    /// # Errors
    /// When it cannot be read, has an unknown format, or is damaged.
    pub fn load(path: &Path) -> Result<Self, IndexError> {
        Self::read(&Self::open(path)?, path)
    }

    /// Opens the file at a path. Opening never blocks.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a regular file.
    pub(crate) fn open(path: &Path) -> Result<File, IndexError> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(path).and_then(|file| {
            match file.metadata()?.is_file() {
                true => Ok(file),
                false => {
                    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"))
                }
            }
        });
        opened.map_err(IndexError::io(path))
    }

    /// Reads and checks a file that was opened. `path` is its name in errors.
    ///
    /// # Errors
    /// As [`Index::load`].
    pub(crate) fn read(file: &File, path: &Path) -> Result<Self, IndexError> {
        Self::read_up_to(file, path, quarter_of_memory() as u64)
    }

    fn read_up_to(mut file: &File, path: &Path, most: u64) -> Result<Self, IndexError> {
        let io = |error| IndexError::io(path)(error);
        let found = file.metadata().map_err(io)?.len();
        let mut head = vec![0; HEADER_LEN.min(usize::try_from(found).unwrap_or(HEADER_LEN))];
        file.read_exact(&mut head).map_err(io)?;
        let header = Header::read(&head)?;
        let expected = header.len;
        let len = usize::try_from(expected).ok().filter(|_| expected == found);
        let len = len.ok_or(IndexError::Length { expected, found })?;
        // The most memory that the tables can take. An entry has at least four bytes in the table of shared values, and
        // one in that of attribute sets.
        let shared = header.sets.saturating_sub(header.shared).saturating_mul(size_of::<Shared>() as u64 / 4);
        let sets = header.slots.saturating_sub(header.sets).saturating_mul(size_of::<usize>() as u64);
        if found.saturating_add(shared).saturating_add(sets) > most {
            return Err(IndexError::TooLong { found, most });
        }
        // A file without a valid digest is not kept in memory.
        check_digest(file, &head, found).map_err(io)?.then_some(()).ok_or(IndexError::Digest)?;
        file.rewind().map_err(io)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|error| io(error.into()))?;
        file.take(found).read_to_end(&mut bytes).map_err(io)?;
        // The file may have changed meanwhile.
        Self::parse(bytes)
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// When they have an unknown format, or are damaged.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, IndexError> {
        let header = Header::read(&bytes)?;
        let found = bytes.len() as u64;
        let len = bytes.len().checked_sub(DIGEST_LEN).filter(|_| header.len == found);
        let len = len.ok_or(IndexError::Length { expected: header.len, found })?;
        let (content, digest) = bytes.split_at(len);
        if blake3::hash(content).as_bytes() != digest {
            return Err(IndexError::Digest);
        }
        Self::parse_content(bytes, header, len)
    }

    fn parse_content(bytes: Vec<u8>, header: Header, len: usize) -> Result<Self, IndexError> {
        let corrupt = |offset, what| IndexError::Corrupt { offset, what };
        let offset =
            |number: u64| usize::try_from(number).map_err(|_| corrupt(HEADER_LEN, "an offset too large"));
        let [shared_at, sets_at, slots_at] =
            [offset(header.shared)?, offset(header.sets)?, offset(header.slots)?];
        let table_len = (header.directories as usize).checked_mul(SLOT_LEN);
        let is_whole = HEADER_LEN <= shared_at
            && shared_at <= sets_at
            && sets_at <= slots_at
            && table_len.and_then(|table| slots_at.checked_add(table)) == Some(len);
        if !is_whole || header.directories == 0 || header.made.nanoseconds > 999_999_999 {
            return Err(corrupt(HEADER_LEN, "its parts do not fit"));
        }
        let part = |from, to: usize| Cursor::new(bytes.get(..to).unwrap_or_default(), from);
        let shared = tables::read_shared(part(shared_at, sets_at), sets_at)?;
        let sets = tables::read_sets(part(sets_at, slots_at), slots_at)?;
        let (mut cursor, mut before) = (part(HEADER_LEN, shared_at), Before::default());
        record::read_name(&mut cursor, &mut before)?;
        let root =
            record::read_fields(&mut cursor, &mut before, &shared, sets.len())?.to_record(&before.name);
        if root.directory() != Some(ROOT) || !root.name.is_empty() {
            return Err(cursor.corrupt("the root is none"));
        }
        let first = cursor.at();
        let index = Self { root, shared, sets, slots: slots_at, header, bytes };
        index.check(first, shared_at)?;
        Ok(index)
    }

    /// Checks that listings are in the order of the directories' numbers, and that each directory is in exactly one
    /// other with a lower number. The directories therefore form a tree.
    fn check(&self, first: usize, end: usize) -> Result<(), IndexError> {
        let corrupt = |offset, what| IndexError::Corrupt { offset, what };
        let count = self.header.directories;
        let mut is_named = vec![false; count as usize];
        if let Some(root) = is_named.first_mut() {
            *root = true;
        }
        let (mut at, mut files) = (first, 0_u64);
        for number in 0..count {
            let is_used = is_named.get(number as usize).is_some_and(|is_named| *is_named);
            let slot = self.slot(number)?;
            if slot != if is_used { at } else { 0 } {
                return Err(corrupt(
                    self.slots,
                    "a listing that no directory has, or a directory without one",
                ));
            }
            if !is_used {
                continue;
            }
            let listing =
                Listing::open(Cursor::new(self.bytes.get(..end).unwrap_or_default(), at), self.context())?;
            files = files.saturating_add(listing.count.into());
            at = listing.check(|child| {
                let named = is_named.get_mut(child as usize).filter(|named| child > number && !**named);
                *named.ok_or_else(|| corrupt(at, "a directory that cannot be there"))? = true;
                Ok(())
            })?;
        }
        if at != end || files != self.header.files {
            return Err(corrupt(at, "listings of another length"));
        }
        Ok(())
    }

    fn context(&self) -> Context<'_> {
        Context { shared: &self.shared, set_count: self.sets.len() }
    }

    fn slot(&self, directory: u32) -> Result<usize, IndexError> {
        let at = self.slots.saturating_add(directory as usize * SLOT_LEN);
        let mut cursor = Cursor::new(&self.bytes, at);
        usize::try_from(cursor.u64()?).map_err(|_| cursor.corrupt("an offset too large"))
    }

    /// The listing of a directory. `None` if no directory has this number.
    pub(crate) fn listing(&self, directory: u32) -> Result<Option<Listing<'_>>, IndexError> {
        if directory >= self.header.directories {
            return Ok(None);
        }
        match self.slot(directory)? {
            0 => Ok(None),
            at => Listing::open(Cursor::new(&self.bytes, at), self.context()).map(Some),
        }
    }

    /// The record of the root directory.
    pub(crate) fn root(&self) -> &Record {
        &self.root
    }

    /// The set of extended attributes with this number.
    pub(crate) fn xattrs(&self, number: u32) -> Result<XattrSet, IndexError> {
        let at = self.sets.get(number as usize).copied();
        let at = at.ok_or(IndexError::Corrupt { offset: 0, what: "no such extended attributes" })?;
        tables::read_set(&mut Cursor::new(&self.bytes, at))
    }

    /// Whether these bytes are an index that differs in nothing but its time of creation.
    pub fn is_like(&self, bytes: &[u8]) -> bool {
        let is_same = |header: Header| Header { made: self.header.made, ..header } == self.header;
        Header::read(bytes).is_ok_and(is_same) && content(bytes) == content(&self.bytes)
    }

    /// The time of creation.
    pub fn made(&self) -> Time {
        self.header.made
    }

    /// The number of files and directories, without the root.
    pub fn files(&self) -> u64 {
        self.header.files
    }

    /// The approximate size in memory, in bytes.
    pub fn size(&self) -> u64 {
        let tables = self.shared.len() * size_of::<Shared>() + self.sets.len() * size_of::<usize>();
        self.header.len + tables as u64
    }
}

/// Whether a file of this length ends with a valid digest. `head` is its start, which was read already.
fn check_digest(mut file: &File, head: &[u8], len: u64) -> std::io::Result<bool> {
    let content = len.saturating_sub((head.len() + DIGEST_LEN) as u64);
    let mut hash = blake3::Hasher::new();
    hash.update(head).update_reader(file.take(content))?;
    let mut digest = [0; DIGEST_LEN];
    let is_whole = file.read_exact(&mut digest).is_ok();
    Ok(is_whole && hash.finalize().as_bytes() == &digest)
}

/// Parses an index without checking its digest, for fuzzing.
pub(crate) fn parse_unchecked(mut bytes: Vec<u8>) -> Result<Index, IndexError> {
    bytes.extend_from_slice(&[0; DIGEST_LEN]);
    let header = Header { len: bytes.len() as u64, ..Header::read(&bytes)? };
    let len = bytes.len() - DIGEST_LEN;
    Index::parse_content(bytes, header, len)
}

#[cfg(test)]
mod tests;
