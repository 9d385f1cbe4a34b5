//! Opening and closing files, and removing unlinked files after the last use.

use snowmelt_zpl::{FileKind, ZfsFlags};

use super::error::VfsError;
use super::ino::Place;
use super::inodes::Dropped;
use super::{Vfs, ino};

/// The purpose for which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFor {
    /// It will be written.
    pub write: bool,
    /// It will be written only at its end (`O_APPEND`).
    pub append: bool,
}

impl Vfs {
    /// Opens a file or directory. Until [`Vfs::close_inode`] it exists even if it has no name.
    ///
    /// # Errors
    /// [`VfsError::ReadOnly`], [`VfsError::NotPermitted`], [`VfsError::IsADirectory`] for writing.
    pub fn open_inode(&self, number: u64, purpose: OpenFor) -> Result<(), VfsError> {
        if matches!(Place::of(number), Place::Control | Place::SnapshotDir) {
            return if purpose.write { Err(VfsError::IsADirectory { ino: number }) } else { Ok(()) };
        }
        let attributes = self.on_inode(number, |view, object| view.attributes(object))?;
        if purpose.write {
            if attributes.kind() == FileKind::Directory {
                return Err(VfsError::IsADirectory { ino: number });
            }
            if ino::slot(number) != 0 || self.is_read_only() {
                return Err(VfsError::ReadOnly);
            }
            let append_only = attributes.flags.contains(ZfsFlags::APPENDONLY);
            if attributes.flags.contains(ZfsFlags::IMMUTABLE) || append_only && !purpose.append {
                return Err(VfsError::NotPermitted { ino: number });
            }
        }
        let epoch = if ino::slot(number) == 0 { self.base()?.epoch } else { 0 };
        if self.inodes.opened(number, epoch, attributes.generation) && ino::slot(number) != 0 {
            self.snapshots.used(ino::slot(number));
        }
        Ok(())
    }

    /// Closes a file or directory. If it is not in use any more and has no name, it is removed.
    pub fn close_inode(&self, number: u64) {
        if !matches!(Place::of(number), Place::Control | Place::SnapshotDir) {
            let dropped = self.inodes.closed(number);
            self.dropped(number, dropped);
        }
    }

    /// The inodes that are referenced or open.
    pub fn inodes_in_use(&self) -> Vec<u64> {
        self.inodes.all()
    }

    pub(super) fn dropped(&self, number: u64, dropped: Dropped) {
        let Dropped::Unused { unlinked } = dropped else { return };
        match ino::slot(number) {
            0 if unlinked => self.remove_unlinked(number),
            0 => {}
            slot => self.snapshots.unused(slot),
        }
    }

    /// Handles the removal of the last name of an inode that was in use.
    pub(super) fn lost_its_names(&self, number: u64) {
        if !self.inodes.unlinked(number) {
            self.remove_unlinked(number);
        }
    }

    /// Removes an unused object without a name. If that fails, it is removed when the dataset is opened the next time.
    fn remove_unlinked(&self, number: u64) {
        let _ = self.on_head(&[], |fs| fs.release(number));
    }
}
