//! Reading and changing the content of a file: `zfs_write`, `zfs_freesp`, `zfs_extend`, `zfs_trunc`,
//! `zfs_grow_blocksize`.

use super::node::Node;
use super::{Caller, FilesystemMut, ROOM_BASE};
use crate::attributes::{FileKind, ZfsFlags};
use crate::error::ZplError;
use crate::sa::Attr;
use crate::source::{ObjectsMut, Room};

/// Largest offset that a file may reach: `MAXOFFSET_T`.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Largest number of bytes written in one transaction, unless a block is larger. Longer data is written in several.
const CHUNK: usize = 4 << 20;

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Reads a file's content at `offset` into `buf`, up to the end of the file. Returns the number of bytes read.
    ///
    /// # Errors
    /// [`ZplError::NotAFile`], or if a block cannot be read ([`ZplError::is_unreadable_block`]).
    pub fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<usize, ZplError> {
        let _held = self.locks.read(object);
        let size = self.file_size(object)?;
        self.fs.read(object, size, offset, buf)
    }

    fn file_size(&self, object: u64) -> Result<u64, ZplError> {
        let attributes = self.fs.attributes(object)?;
        match attributes.kind() {
            FileKind::File => Ok(attributes.size),
            FileKind::Directory => Err(ZplError::IsADirectory { object }),
            _ => Err(ZplError::NotAFile { object }),
        }
    }

    /// The next extent of data at or after `offset`, limited to the end of the file. `None` if only a hole is left.
    ///
    /// # Errors
    /// If the block pointers cannot be read.
    pub fn next_extent(&self, object: u64, offset: u64) -> Result<Option<(u64, u64)>, ZplError> {
        let _held = self.locks.read(object);
        let size = self.file_size(object)?;
        self.fs.next_extent(object, size, offset)
    }

    /// Writes to a file and returns the number of bytes written. It is less than the length of `data` only if there was
    /// no room for the rest.
    ///
    /// # Errors
    /// [`ZplError::NotAFile`], [`ZplError::TooLarge`], [`ZplError::NotPermitted`], or if there is no room.
    pub fn write(&self, object: u64, offset: u64, data: &[u8], caller: &Caller) -> Result<usize, ZplError> {
        let _held = self.locks.write(object);
        self.write_at(object, offset, data, caller)
    }

    /// Writes at the end of a file. Returns the offset and the number of bytes written.
    ///
    /// # Errors
    /// Like [`FilesystemMut::write`].
    pub fn append(&self, object: u64, data: &[u8], caller: &Caller) -> Result<(u64, usize), ZplError> {
        let _held = self.locks.write(object);
        let end = self.file_size(object)?;
        Ok((end, self.write_at(object, end, data, caller)?))
    }

    fn write_at(&self, object: u64, offset: u64, data: &[u8], caller: &Caller) -> Result<usize, ZplError> {
        // Near the largest possible file size, only the part of the data that fits is written.
        let room = usize::try_from(OFFSET_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        if room == 0 && !data.is_empty() {
            return Err(ZplError::TooLarge { object, offset });
        }
        let data = &data[..data.len().min(room)];
        let end = offset + data.len() as u64;
        let mut written = 0;
        let chunk = CHUNK.max(self.options().record_size as usize);
        // If `data` is empty, one round still does the checks.
        while written < data.len() || written == 0 {
            let at = offset + written as u64;
            let len = (data.len() - written).min(chunk - (at % chunk as u64) as usize);
            match self.write_chunk(object, at, &data[written..written + len], end, caller) {
                Ok(()) => written += len,
                Err(_) if written > 0 => break,
                Err(error) => return Err(error),
            }
            if data.is_empty() {
                break;
            }
        }
        Ok(written)
    }

    /// Writes one chunk of a write that ends at `end`.
    fn write_chunk(
        &self,
        object: u64,
        offset: u64,
        data: &[u8],
        end: u64,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let mut node = self.file(object)?;
        let size = node.word(Attr::Size)?;
        node.check_mutable(offset >= size)?;
        if data.is_empty() {
            return Ok(());
        }
        let block_size = self.block_size_for(&node, size, size.max(end), Rounded::Up)?;
        node.set_word(Attr::Size, size.max(offset + data.len() as u64))?;
        node.content_changed(caller.now)?;
        let touched = data.len() as u64 + 2 * u64::from(block_size.unwrap_or(node.block_size));
        let tx = self.begin(Room::Write(touched + node.room() + ROOM_BASE), object)?;
        if let Some(block_size) = block_size {
            let failed = ZplError::source(object);
            self.objects().set_block_size(&tx, object, block_size).map_err(failed)?;
        }
        self.objects().write(&tx, object, offset, data).map_err(ZplError::source(object))?;
        self.write_node(&tx, node)
    }

    fn file(&self, object: u64) -> Result<Node<'_>, ZplError> {
        let node = self.node(object)?;
        match node.kind()? {
            FileKind::File => Ok(node),
            FileKind::Directory => Err(ZplError::IsADirectory { object }),
            _ => Err(ZplError::NotAFile { object }),
        }
    }

    /// The new block size of a file of `size` bytes that grows to `end`. `None` if the block size stays.
    ///
    /// A file up to the record size has one block, which is as large as the file. A larger file has blocks of the
    /// record size. If a file's only block is larger than the record size, the block grows to a power of two.
    fn block_size_for(
        &self,
        node: &Node<'_>,
        size: u64,
        end: u64,
        rounded: Rounded,
    ) -> Result<Option<u32>, ZplError> {
        let old = node.block_size;
        let record_size = self.options().record_size;
        let grows = end > u64::from(old) && (!old.is_power_of_two() || old < record_size);
        if !grows || size > u64::from(old) {
            return Ok(None);
        }
        let most = match old > record_size && !old.is_power_of_two() {
            true => old.checked_next_power_of_two().unwrap_or(old),
            false => record_size,
        };
        let end = match rounded {
            Rounded::Up => end.checked_next_multiple_of(512).unwrap_or(u64::MAX),
            Rounded::No => end,
        };
        let new = u32::try_from(end).unwrap_or(u32::MAX).min(most).next_multiple_of(512).max(old);
        if new == old {
            return Ok(None);
        }
        // A file that was larger before may have blocks after the first. Then the block size stays (`dnode_set_blksz`).
        let object = node.object();
        let next = self.objects().next_data(object, u64::from(old)).map_err(ZplError::source(object))?;
        Ok(if next.is_some() { None } else { Some(new) })
    }

    /// Truncates a file to `size` bytes, or extends it by a hole.
    ///
    /// # Errors
    /// Like [`FilesystemMut::write`].
    pub fn truncate(&self, object: u64, size: u64, caller: &Caller) -> Result<(), ZplError> {
        let _held = self.locks.write(object);
        let mut node = self.file(object)?;
        node.check_mutable(false)?;
        let resize = self.resize(&mut node, size)?;
        node.content_changed(caller.now)?;
        let tx = self.begin(resize.room(&node), object)?;
        self.write_resize(&tx, object, resize)?;
        self.write_node(&tx, node)
    }

    /// Sets a file's size. The blocks are changed later, by the returned [`Resize`].
    pub(super) fn resize(&self, node: &mut Node<'_>, size: u64) -> Result<Resize, ZplError> {
        let object = node.object();
        if size > OFFSET_MAX {
            return Err(ZplError::TooLarge { object, offset: size });
        }
        let old = node.word(Attr::Size)?;
        let resize = match size.cmp(&old) {
            std::cmp::Ordering::Equal => Resize::Keep,
            std::cmp::Ordering::Less => Resize::Free { from: size },
            std::cmp::Ordering::Greater => {
                Resize::Grow { block_size: self.block_size_for(node, old, size, Rounded::No)? }
            }
        };
        if size == 0 {
            let flags = node.flags().0 & !ZfsFlags::SPARSE;
            node.set_word(Attr::Flags, flags)?;
        }
        node.set_word(Attr::Size, size)?;
        Ok(resize)
    }

    pub(super) fn write_resize(&self, tx: &O::Tx<'_>, object: u64, resize: Resize) -> Result<(), ZplError> {
        let failed = ZplError::source(object);
        match resize {
            Resize::Keep | Resize::Grow { block_size: None } => Ok(()),
            Resize::Grow { block_size: Some(block_size) } => {
                self.objects().set_block_size(tx, object, block_size).map_err(failed)
            }
            Resize::Free { from } => self.objects().free(tx, object, from, u64::MAX).map_err(failed),
        }
    }

    /// Makes a hole, which is read as zeros (`FALLOC_FL_PUNCH_HOLE`). The file's size stays.
    ///
    /// # Errors
    /// Like [`FilesystemMut::write`].
    pub fn punch_hole(&self, object: u64, offset: u64, length: u64, caller: &Caller) -> Result<(), ZplError> {
        self.free_range(object, offset, length, None, caller)
    }

    /// Zeroes a range (`FALLOC_FL_ZERO_RANGE`). Extends the file to the end of the range unless `keep_size` is set.
    ///
    /// # Errors
    /// Like [`FilesystemMut::write`].
    pub fn zero_range(
        &self,
        object: u64,
        offset: u64,
        length: u64,
        keep_size: bool,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let end = self.range_end(object, offset, length)?;
        self.free_range(object, offset, length, (!keep_size).then_some(end), caller)
    }

    /// Extends a file to contain a range, unless `keep_size` is set. No space is reserved: as in ZFS, that is
    /// impossible with copy-on-write.
    ///
    /// # Errors
    /// Like [`FilesystemMut::write`].
    pub fn allocate(
        &self,
        object: u64,
        offset: u64,
        length: u64,
        keep_size: bool,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let end = self.range_end(object, offset, length)?;
        self.free_range(object, end, 0, (!keep_size).then_some(end), caller)
    }

    fn range_end(&self, object: u64, offset: u64, length: u64) -> Result<u64, ZplError> {
        let end = offset.checked_add(length).filter(|end| *end <= OFFSET_MAX);
        end.ok_or(ZplError::TooLarge { object, offset: offset.saturating_add(length) })
    }

    /// Frees the part of a range that lies in the file, and extends the file to `extend_to`.
    fn free_range(
        &self,
        object: u64,
        offset: u64,
        length: u64,
        extend_to: Option<u64>,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let _held = self.locks.write(object);
        let mut node = self.file(object)?;
        node.check_mutable(false)?;
        let size = node.word(Attr::Size)?;
        let end = offset.saturating_add(length).min(size);
        let resize = match extend_to.filter(|extend_to| *extend_to > size) {
            Some(extend_to) => self.resize(&mut node, extend_to)?,
            None => Resize::Keep,
        };
        let frees = offset < end;
        if !frees && matches!(resize, Resize::Keep) {
            return Ok(());
        }
        node.content_changed(caller.now)?;
        let room = Room::Write(2 * u64::from(node.block_size) + node.room() + ROOM_BASE);
        let tx = self.begin(room, object)?;
        if frees {
            let failed = ZplError::source(object);
            self.objects().free(&tx, object, offset, end - offset).map_err(failed)?;
        }
        self.write_resize(&tx, object, resize)?;
        self.write_node(&tx, node)
    }
}

/// Whether a block size is rounded up, or is exactly the size of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounded {
    Up,
    No,
}

/// How a change of size affects a file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    Keep,
    /// The only block grows.
    Grow {
        block_size: Option<u32>,
    },
    /// Everything from this offset on is freed.
    Free {
        from: u64,
    },
}

impl Resize {
    /// The room that the change and `node` need.
    pub(super) fn room(self, node: &Node<'_>) -> Room {
        match self {
            Self::Free { .. } => Room::Free,
            Self::Keep | Self::Grow { block_size: None } => Room::Write(node.room() + ROOM_BASE),
            Self::Grow { block_size: Some(block_size) } => {
                Room::Write(u64::from(block_size) + node.room() + ROOM_BASE)
            }
        }
    }
}
