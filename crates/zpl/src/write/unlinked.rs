//! The unlinked set: objects that have no name but are still open, or were open when the system stopped. Sources:
//! `zfs_unlinked_add`, `zfs_rmnode`, `zfs_purgedir`, `zfs_unlinked_drain` of `zfs_dir.c`.

use super::FilesystemMut;
use super::link::Removed;
use super::node::Node;
use crate::attributes::{FileKind, ZfsFlags};
use crate::error::ZplError;
use crate::filesystem::DIRENT_OBJECT;
use crate::sa::Attr;
use crate::source::{ObjectsMut, Room};
use crate::zap::{Cursor, Value, Zap, ZapEdit};

/// Name of an object in the unlinked set: its number in hexadecimal (`zap_add_int`).
pub(super) fn queue_name(object: u64) -> Vec<u8> {
    format!("{object:x}").into_bytes()
}

/// What happens to a node after one of its names was removed.
pub(super) enum Fate<'f, O: ObjectsMut> {
    /// It has other names.
    Named,
    /// It is kept in the unlinked set.
    Kept(ZapEdit<'f, O>),
    /// It is removed, with these objects.
    Gone(Vec<u64>),
}

impl<O: ObjectsMut> Fate<'_, O> {
    pub(super) fn removed(&self, node: &Node<'_>) -> Result<Removed, ZplError> {
        Ok(Removed {
            object: node.object(),
            kind: node.kind()?,
            links: node.word(Attr::Links)?,
            kept: matches!(self, Self::Kept(_)),
        })
    }
}

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Decides what happens to a node that has no name left.
    pub(super) fn unlinked(&self, node: &Node<'_>, in_use: bool) -> Result<Fate<'_, O>, ZplError> {
        if !in_use {
            return self.with_attribute_objects(node).map(Fate::Gone);
        }
        let mut queue = self.zap(self.delete_queue)?;
        queue.update(&queue_name(node.object()), &Value::One(node.object()))?;
        Ok(Fate::Kept(queue))
    }

    /// Writes what was decided about a node.
    pub(super) fn finish(&self, tx: &O::Tx<'_>, node: Node<'_>, fate: Fate<'_, O>) -> Result<(), ZplError> {
        match fate {
            Fate::Named => self.write_node(tx, node),
            Fate::Kept(queue) => {
                self.write_zap(tx, queue)?;
                self.write_node(tx, node)
            }
            Fate::Gone(objects) => self.destroy(tx, &objects),
        }
    }

    pub(super) fn destroy(&self, tx: &O::Tx<'_>, objects: &[u64]) -> Result<(), ZplError> {
        for object in objects {
            self.directories.forget(*object);
            self.objects().destroy(tx, *object).map_err(ZplError::source(*object))?;
        }
        Ok(())
    }

    /// The object, its hidden attribute directory, and the files in that directory. Objects that do not belong to it,
    /// which a damaged filesystem may refer to, are left out.
    fn with_attribute_objects(&self, node: &Node<'_>) -> Result<Vec<u64>, ZplError> {
        let mut objects = vec![node.object()];
        let hidden = |object: u64, parent: u64| -> Result<Option<Node<'_>>, ZplError> {
            if object == 0 || self.fs.objects().dnode(object).map_err(ZplError::source(object))?.is_none() {
                return Ok(None);
            }
            let found = self.node(object)?;
            let belongs = found.flags().contains(ZfsFlags::XATTR) && found.word(Attr::Parent)? == parent;
            Ok(belongs.then_some(found))
        };
        let directory = match node.is_directory()? && node.flags().contains(ZfsFlags::XATTR) {
            // The object itself is a hidden directory. ZFS puts such directories into the unlinked set.
            true => Some(node.object()),
            false => {
                let number = node.optional(Attr::Xattr).unwrap_or(0);
                match hidden(number, node.object())? {
                    Some(found) if found.is_directory()? && number != node.object() => {
                        objects.push(number);
                        Some(number)
                    }
                    _ => None,
                }
            }
        };
        if let Some(directory) = directory {
            for entry in Zap::open(self.fs.objects(), directory)?.entries(Cursor::START) {
                let number = entry?.value.as_u64().unwrap_or(0) & DIRENT_OBJECT;
                let is_file = match hidden(number, directory)? {
                    Some(found) => found.kind()? == FileKind::File,
                    None => false,
                };
                if is_file && !objects.contains(&number) {
                    objects.push(number);
                }
            }
        }
        Ok(objects)
    }

    /// Removes `object` if it has no name. To be called when the object is no longer open. Returns whether it was
    /// removed.
    ///
    /// # Errors
    /// If the object cannot be read. An object that does not exist is no error.
    pub fn release(&self, object: u64) -> Result<bool, ZplError> {
        let _names = self.names.write();
        let _held = self.locks.write(object);
        self.release_locked(object)
    }

    fn release_locked(&self, object: u64) -> Result<bool, ZplError> {
        let dnode = self.objects().dnode(object).map_err(ZplError::source(object))?;
        let mut queue = self.zap(self.delete_queue)?;
        let queued = queue.remove(&queue_name(object))?;
        if dnode.is_none() {
            if queued {
                self.write_zap(&self.begin(Room::Free, object)?, queue)?;
            }
            return Ok(false);
        }
        let node = self.node(object)?;
        if node.word(Attr::Links)? != 0 {
            return Ok(false);
        }
        let doomed = self.with_attribute_objects(&node)?;
        let tx = self.begin(Room::Free, object)?;
        self.write_zap(&tx, queue)?;
        self.destroy(&tx, &doomed)?;
        Ok(true)
    }

    /// Removes objects that were unlinked while open when the system stopped. To be called before the filesystem is
    /// used. Returns the number of removed objects.
    ///
    /// # Errors
    /// If the unlinked set cannot be read. Objects that cannot be removed stay in it.
    pub fn drain_unlinked(&self) -> Result<u64, ZplError> {
        let _names = self.names.write();
        let entries: Vec<_> = Zap::open(self.fs.objects(), self.delete_queue)?
            .entries(Cursor::START)
            .collect::<Result<_, _>>()?;
        let mut removed = 0;
        for entry in entries {
            let object = entry.value.as_u64().unwrap_or(0);
            let _held = self.locks.write(object);
            match self.release_locked(object) {
                Ok(gone) => removed += u64::from(gone),
                Err(error @ ZplError::Source { .. }) if !error.is_unreadable_block() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(removed)
    }
}
