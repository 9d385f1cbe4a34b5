//! Records: one for each file of a listing (docs/format/index.md, "Records").

use super::IndexError;
use super::cursor::{Cursor, put_bytes, put_signed, put_varint};
use super::tables::Shared;
use crate::source::{Metadata, Time, kind};

/// The longest name in a directory, in bytes.
pub const NAME_MAX: usize = 1024;
/// The longest target of a symbolic link in Linux, in bytes.
pub const TARGET_MAX: usize = 4096;
const NANOSECONDS: u32 = 1_000_000_000;

/// The flags of a record.
mod flag {
    pub const SAME_SHARED: u8 = 1;
    pub const NANOSECONDS: u8 = 2;
    pub const LINKS: u8 = 4;
    pub const XATTRS: u8 = 8;
    pub const ALL: u8 = 15;
}

/// What a record has besides the metadata, depending on the kind of file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Special {
    Nothing,
    /// The number of a directory's listing.
    Directory(u32),
    /// The target of a symbolic link.
    Target(Vec<u8>),
}

/// A file in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub name: Vec<u8>,
    pub metadata: Metadata,
    pub special: Special,
    /// The number of its set of extended attributes.
    pub xattrs: Option<u32>,
}

impl Record {
    /// The number of a directory's listing.
    pub fn directory(&self) -> Option<u32> {
        match self.special {
            Special::Directory(number) => Some(number),
            _ => None,
        }
    }

    pub fn shared(&self) -> Shared {
        let Metadata { mode, uid, gid, id: (device, _), .. } = self.metadata;
        Shared { mode, uid, gid, device }
    }
}

/// The values of the previous record in a group, to which the next one is relative.
#[derive(Debug, Clone, Default)]
pub struct Before {
    pub name: Vec<u8>,
    shared: u32,
    seconds: i64,
}

/// A record without its name, which borrows its parts from the index.
pub struct Fields<'a> {
    pub metadata: Metadata,
    pub directory: Option<u32>,
    pub target: Option<&'a [u8]>,
    pub xattrs: Option<u32>,
}

impl Fields<'_> {
    pub fn to_record(&self, name: &[u8]) -> Record {
        let special = match (self.directory, self.target) {
            (Some(number), _) => Special::Directory(number),
            (None, Some(target)) => Special::Target(target.to_vec()),
            (None, None) => Special::Nothing,
        };
        Record { name: name.to_vec(), metadata: self.metadata, special, xattrs: self.xattrs }
    }
}

/// Reads the name of the next record into `before`.
pub fn read_name(cursor: &mut Cursor<'_>, before: &mut Before) -> Result<(), IndexError> {
    let same = usize::try_from(cursor.varint()?).ok().filter(|same| *same <= before.name.len());
    let same = same.ok_or_else(|| cursor.corrupt("a name that begins as none before it"))?;
    before.name.truncate(same);
    before.name.extend_from_slice(cursor.bytes(NAME_MAX - same)?);
    Ok(())
}

/// Reads the part of a record after its name.
pub fn read_fields<'a>(
    cursor: &mut Cursor<'a>,
    before: &mut Before,
    shared: &[Shared],
    set_count: usize,
) -> Result<Fields<'a>, IndexError> {
    let flags = cursor.u8()?;
    if flags & !flag::ALL != 0 {
        return Err(cursor.corrupt("flags that are not known"));
    }
    if flags & flag::SAME_SHARED == 0 {
        before.shared = cursor.varint32()?;
    }
    let common = shared.get(before.shared as usize);
    let Shared { mode, uid, gid, device } = *common.ok_or_else(|| cursor.corrupt("no such attributes"))?;
    before.seconds = before.seconds.wrapping_add(cursor.signed()?);
    let nanoseconds = if flags & flag::NANOSECONDS == 0 { 0 } else { cursor.u32()? };
    if nanoseconds >= NANOSECONDS {
        return Err(cursor.corrupt("nanoseconds of more than a second"));
    }
    let mtime = Time { seconds: before.seconds, nanoseconds };
    let mut metadata =
        Metadata { mode, uid, gid, mtime, atime: mtime, links: 1, id: (device, 0), ..Metadata::default() };
    if flags & flag::LINKS != 0 {
        (metadata.links, metadata.id.1) = (cursor.varint()?, cursor.varint()?);
    }
    let xattrs = if flags & flag::XATTRS == 0 { None } else { Some(cursor.varint32()?) };
    if xattrs.is_some_and(|number| number as usize >= set_count) {
        return Err(cursor.corrupt("no such extended attributes"));
    }
    let (mut directory, mut target) = (None, None);
    match metadata.kind() {
        kind::DIRECTORY => {
            directory = Some(cursor.varint32()?);
            metadata.size = cursor.varint()?;
        }
        kind::FILE => metadata.size = cursor.varint()?,
        kind::SYMLINK => {
            let text = cursor.bytes(TARGET_MAX)?;
            metadata.size = text.len() as u64;
            target = Some(text);
        }
        kind::BLOCK_DEVICE | kind::CHAR_DEVICE => {
            metadata.rdev = (cursor.varint32()?, cursor.varint32()?);
        }
        kind::FIFO | kind::SOCKET => {}
        _ => return Err(cursor.corrupt("a type that is not known")),
    }
    Ok(Fields { metadata, directory, target, xattrs })
}

/// Writes a record. `shared` is the number of [`Record::shared`] in the table.
pub fn write(record: &Record, shared: u32, before: &mut Before, out: &mut Vec<u8>) {
    let same = before.name.iter().zip(&record.name).take_while(|(a, b)| a == b).count();
    put_varint(same as u64, out);
    put_bytes(&record.name[same..], out);
    let it = &record.metadata;
    let has_links = it.links > 1 && !it.is_dir();
    let mut flags = 0;
    let mut set = |flag, is_set| flags |= if is_set { flag } else { 0 };
    set(flag::SAME_SHARED, shared == before.shared);
    set(flag::NANOSECONDS, it.mtime.nanoseconds != 0);
    set(flag::LINKS, has_links);
    set(flag::XATTRS, record.xattrs.is_some());
    out.push(flags);
    if shared != before.shared {
        put_varint(shared.into(), out);
    }
    put_signed(it.mtime.seconds.wrapping_sub(before.seconds), out);
    if it.mtime.nanoseconds != 0 {
        out.extend_from_slice(&it.mtime.nanoseconds.to_le_bytes());
    }
    if has_links {
        put_varint(it.links, out);
        put_varint(it.id.1, out);
    }
    if let Some(number) = record.xattrs {
        put_varint(number.into(), out);
    }
    match &record.special {
        Special::Directory(number) => {
            put_varint((*number).into(), out);
            put_varint(it.size, out);
        }
        Special::Target(target) => put_bytes(target, out),
        Special::Nothing if it.is_file() => put_varint(it.size, out),
        Special::Nothing if it.is_device() => {
            put_varint(it.rdev.0.into(), out);
            put_varint(it.rdev.1.into(), out);
        }
        Special::Nothing => {}
    }
    before.name.clone_from(&record.name);
    (before.shared, before.seconds) = (shared, it.mtime.seconds);
}
