//! Creating and removing hard links: `zfs_link`, `zfs_remove`, `zfs_rmdir`, `zfs_link_destroy`.

use super::create::LINKS_MAX;
use super::node::Node;
use super::unlinked::Fate;
use super::{Caller, FilesystemMut, Found, ROOM_BASE, dirent};
use crate::attributes::{Attributes, FileKind, ZfsFlags};
use crate::error::ZplError;
use crate::sa::Attr;
use crate::source::{ObjectsMut, Room};
use crate::zap::Value;

/// An object from which a name was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Object number.
    pub object: u64,
    /// The type of the file.
    pub kind: FileKind,
    /// Number of names that are left.
    pub links: u64,
    /// No name is left, but the object is open. [`FilesystemMut::release`] removes it.
    pub kept: bool,
}

/// The kinds of objects that a removal accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remove {
    Directory,
    Others,
}

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Gives `object` another name, or its first one if it was created without. Returns its attributes. The caller
    /// decides who may link a file again that was unlinked while open. Linux allows this to nobody.
    ///
    /// # Errors
    /// [`ZplError::Exists`], [`ZplError::NoLinks`] for directories, [`ZplError::TooManyLinks`], [`ZplError::NoObject`]
    /// for a removed object, [`ZplError::OtherProject`], [`ZplError::NotPermitted`], the errors for an invalid name, or
    /// if there is no room.
    pub fn link(
        &self,
        object: u64,
        directory: u64,
        name: &[u8],
        caller: &Caller,
    ) -> Result<Attributes, ZplError> {
        self.check_name(name)?;
        let _names = self.names.write();
        let _held = self.locks.write_all(&[object, directory]);
        let mut parent = self.directory(directory)?;
        parent.check_mutable(true)?;
        let mut node = self.node(object)?;
        if node.is_directory()? || (node.flags().0 ^ parent.flags().0) & ZfsFlags::XATTR != 0 {
            return Err(ZplError::NoLinks { object });
        }
        node.check_mutable(false)?;
        self.check_project(&node, &parent)?;
        let links = node.word(Attr::Links)?;
        if links >= LINKS_MAX {
            return Err(ZplError::TooManyLinks { object, links });
        }
        let mut zap = self.zap(directory)?;
        if self.find(&mut zap, name)?.is_some() {
            return Err(ZplError::Exists { directory, name: name.to_vec() });
        }
        zap.add(name, &Value::One(dirent(object, node.word(Attr::Mode)?)))?;
        // An object without a name is in the unlinked set while it is open. It is removed from there.
        let mut queue = None;
        if links == 0 {
            let mut zap = self.zap(self.delete_queue)?;
            if !zap.remove(&super::unlinked::queue_name(object))? {
                return Err(ZplError::NoObject { object });
            }
            queue = Some(zap);
        }
        node.set_word(Attr::Links, links + 1)?;
        node.set_word(Attr::Parent, directory)?;
        node.state_changed(caller.now)?;
        parent.count_entries(1, 0)?;
        parent.content_changed(caller.now)?;
        let room = zap.room()
            + queue.as_ref().map_or(0, |queue| queue.room())
            + parent.room()
            + node.room()
            + ROOM_BASE;
        let attributes = node.attributes()?;
        let tx = self.begin(Room::Write(room), directory)?;
        self.write_zap(&tx, zap)?;
        if let Some(queue) = queue {
            self.write_zap(&tx, queue)?;
        }
        self.write_node(&tx, node)?;
        self.write_node(&tx, parent)?;
        Ok(attributes)
    }

    /// Checks that an object has the project of the directory into which it is linked or moved, if the directory passes
    /// its project on.
    pub(super) fn check_project(&self, node: &Node<'_>, directory: &Node<'_>) -> Result<(), ZplError> {
        if directory.flags().contains(ZfsFlags::PROJINHERIT) && directory.project() != node.project() {
            return Err(ZplError::OtherProject {
                object: node.object(),
                project: node.project(),
                directory: directory.object(),
            });
        }
        Ok(())
    }

    /// Removes a name of anything except a directory. After the last name, the object is removed too, unless `in_use`
    /// returns that it is open.
    ///
    /// # Errors
    /// [`ZplError::NotFound`], [`ZplError::IsADirectory`], [`ZplError::NotPermitted`].
    pub fn unlink(
        &self,
        directory: u64,
        name: &[u8],
        caller: &Caller,
        in_use: impl FnOnce(u64) -> bool,
    ) -> Result<Removed, ZplError> {
        self.remove(directory, name, Remove::Others, caller, in_use)
    }

    /// Removes an empty directory. If it is in use, it is kept without a name.
    ///
    /// # Errors
    /// [`ZplError::NotFound`], [`ZplError::NotADirectory`], [`ZplError::NotEmpty`], [`ZplError::NotPermitted`].
    pub fn rmdir(
        &self,
        directory: u64,
        name: &[u8],
        caller: &Caller,
        in_use: impl FnOnce(u64) -> bool,
    ) -> Result<Removed, ZplError> {
        self.remove(directory, name, Remove::Directory, caller, in_use)
    }

    fn remove(
        &self,
        directory: u64,
        name: &[u8],
        remove: Remove,
        caller: &Caller,
        in_use: impl FnOnce(u64) -> bool,
    ) -> Result<Removed, ZplError> {
        let _names = self.names.write();
        if matches!(name, b"." | b"..") {
            return Err(ZplError::InvalidName { name: name.to_vec() });
        }
        let mut zap = self.zap_of(directory)?;
        let found = self.find(&mut zap, name)?;
        let found = found.ok_or_else(|| ZplError::NotFound { directory, name: name.to_vec() })?;
        self.check_entry(&found, directory)?;
        let _held = self.locks.write_all(&[directory, found.object]);
        let mut parent = self.directory(directory)?;
        parent.check_mutable(false)?;
        let mut node = self.node(found.object)?;
        let is_directory = node.is_directory()?;
        match remove {
            Remove::Directory if !is_directory => {
                return Err(ZplError::NotADirectory { object: found.object });
            }
            Remove::Others if is_directory => {
                return Err(ZplError::IsADirectory { object: found.object });
            }
            _ => node.check_mutable(false)?,
        }
        zap.remove(&found.name)?;
        parent.count_entries(-1, -i64::from(is_directory))?;
        parent.content_changed(caller.now)?;
        let fate = self.drop_link(&mut node, caller, in_use)?;
        let removed = fate.removed(&node)?;
        let tx = self.begin(Room::Free, directory)?;
        self.write_zap(&tx, zap)?;
        self.write_node(&tx, parent)?;
        self.finish(&tx, node, fate)?;
        Ok(removed)
    }

    /// Removes one link from `node`: `zfs_drop_nlink_locked`. The returned decision must still be written.
    pub(super) fn drop_link(
        &self,
        node: &mut Node<'_>,
        caller: &Caller,
        in_use: impl FnOnce(u64) -> bool,
    ) -> Result<Fate<'_, O>, ZplError> {
        let object = node.object();
        if node.is_directory()? {
            if self.zap(object)?.count() > 0 {
                return Err(ZplError::NotEmpty { object });
            }
            node.set_word(Attr::Links, 0)?;
        } else {
            // A link count that is already 0 is treated as 1, as in ZFS.
            let links = node.word(Attr::Links)?.max(1) - 1;
            node.set_word(Attr::Links, links)?;
            node.state_changed(caller.now)?;
            if links > 0 {
                return Ok(Fate::Named);
            }
        }
        self.unlinked(node, in_use(object))
    }

    /// Checks that a directory does not contain itself. Only damaged or hostile filesystems do.
    pub(super) fn check_entry(&self, found: &Found, directory: u64) -> Result<(), ZplError> {
        match found.object == directory {
            true => Err(ZplError::corrupt(directory, "a directory that is in itself")),
            false => Ok(()),
        }
    }
}
