//! Changing attributes: `zfs_setattr`, `zpl_setattr`, `zpl_ioctl_setxattr`.

use super::data::Resize;
use super::node::Node;
use super::{Caller, FilesystemMut, posix_acl};
use crate::attributes::{Attributes, FileKind, Timestamp, ZfsFlags};
use crate::error::ZplError;
use crate::sa::Attr;
use crate::source::{ObjectsMut, Room};

/// A new value for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The caller's time.
    Now,
    /// A given time.
    To(Timestamp),
}

/// The attributes to change. Those that are `None` stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits with setuid, setgid and sticky.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// Time of the last change of the content or attributes, or `None` for the caller's time.
    pub ctime: Option<Timestamp>,
    /// Time of creation.
    pub crtime: Option<Timestamp>,
    /// `FS_IOC_SETFLAGS`: 0x10 immutable, 0x20 append-only, 0x40 no dump, 0x20000000 project inheritance. All four
    /// flags are set to this value.
    pub fs_ioc_flags: Option<u32>,
    /// Project ID.
    pub project_id: Option<u32>,
    /// Clears the setuid bit, and also the setgid bit if the group may execute the file. A write or change of owner by
    /// a user other than root does this.
    pub clear_setid: bool,
}

/// The largest `ZPL_PROJID` means no project: `ZFS_INVALID_PROJID`.
const PROJECT_INVALID: u32 = u32::MAX;

/// The ZFS flags that correspond to those of `FS_IOC_SETFLAGS`.
const IOC_FLAGS: [(u32, u64); 4] = [
    (0x10, ZfsFlags::IMMUTABLE),
    (0x20, ZfsFlags::APPENDONLY),
    (0x40, ZfsFlags::NODUMP),
    (0x2000_0000, ZfsFlags::PROJINHERIT),
];

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Changes attributes in one transaction, and returns the new attributes.
    ///
    /// # Errors
    /// [`ZplError::NotPermitted`] for immutable and append-only files, [`ZplError::TooLarge`], [`ZplError::NotAFile`]
    /// and [`ZplError::IsADirectory`] for a size, [`ZplError::Unsupported`] for unknown flags, [`ZplError::Invalid`]
    /// for an invalid project ID, or if there is no room.
    pub fn set_attributes(
        &self,
        object: u64,
        set: &SetAttributes,
        caller: &Caller,
    ) -> Result<Attributes, ZplError> {
        let _names = self.names.read();
        let node = self.node(object)?;
        let hidden = node.optional(Attr::Xattr).filter(|_| set.uid.is_some() || set.gid.is_some());
        drop(node);
        let mut held = vec![object];
        held.extend(hidden);
        let _held = self.locks.write_all(&held);
        let mut node = self.node(object)?;
        self.check_set(&node, set)?;
        if *set == SetAttributes::default() {
            return node.attributes();
        }
        let resize = match set.size {
            None => Resize::Keep,
            Some(size) => {
                match node.kind()? {
                    FileKind::File => {}
                    FileKind::Directory => return Err(ZplError::IsADirectory { object }),
                    _ => return Err(ZplError::NotAFile { object }),
                }
                let resize = self.resize(&mut node, size)?;
                node.content_changed(caller.now)?;
                resize
            }
        };
        apply(&mut node, set, caller)?;
        if set.permissions.is_some() || set.clear_setid {
            self.follow_mode(&mut node)?;
        }
        // The hidden directory has the same owner and group as the file.
        let hidden = match hidden.filter(|hidden| *hidden != object && *hidden != 0) {
            Some(hidden) => self.owned(hidden, object, set)?,
            None => None,
        };
        let attributes = node.attributes()?;
        let room = match resize.room(&node) {
            Room::Write(bytes) => Room::Write(bytes + hidden.as_ref().map_or(0, Node::room)),
            Room::Free => Room::Free,
        };
        let tx = self.begin(room, object)?;
        self.write_resize(&tx, object, resize)?;
        self.write_node(&tx, node)?;
        if let Some(hidden) = hidden {
            self.write_node(&tx, hidden)?;
        }
        Ok(attributes)
    }

    /// The hidden attribute directory of `object`, with its owner and group changed.
    fn owned(&self, hidden: u64, object: u64, set: &SetAttributes) -> Result<Option<Node<'_>>, ZplError> {
        let mut node = self.node(hidden)?;
        if !node.flags().contains(ZfsFlags::XATTR) || node.word(Attr::Parent)? != object {
            return Ok(None);
        }
        for (attr, id) in [(Attr::Uid, set.uid), (Attr::Gid, set.gid)] {
            if let Some(id) = id {
                node.set_word(attr, id.into())?;
            }
        }
        Ok(Some(node))
    }

    /// Checks for changes that immutable and append-only files do not allow (`notify_change`), and for invalid values.
    fn check_set(&self, node: &Node<'_>, set: &SetAttributes) -> Result<(), ZplError> {
        let object = node.object();
        let exact = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
        let changes = set.permissions.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.size.is_some()
            || set.crtime.is_some()
            || set.ctime.is_some()
            || exact(set.atime)
            || exact(set.mtime);
        if changes {
            node.check_mutable(false)?;
        } else if set.atime.is_some() || set.mtime.is_some() {
            node.check_mutable(true)?;
        }
        let known = IOC_FLAGS.iter().fold(0, |all, (bit, _)| all | bit);
        if let Some(unknown) = set.fs_ioc_flags.map(|flags| flags & !known).filter(|unknown| *unknown != 0) {
            return Err(ZplError::Unsupported { object, what: format!("inode flags {unknown:#x}") });
        }
        if set.project_id == Some(PROJECT_INVALID) {
            return Err(ZplError::Invalid { object, what: "no such project".into() });
        }
        if set.project_id.is_some_and(|id| id != 0) && !self.options().project_ids {
            return Err(ZplError::Unsupported { object, what: "a project ID".into() });
        }
        Ok(())
    }

    /// Changes the access ACL to match the mode: `zpl_chmod_acl`.
    pub(super) fn follow_mode(&self, node: &mut Node<'_>) -> Result<(), ZplError> {
        let access = crate::acl::ACCESS.as_bytes();
        // The ACL may also be in a hidden directory. One in the system attributes takes precedence.
        let old = match self.sa_xattr(node, access)? {
            None if node.optional(Attr::Xattr).is_some_and(|hidden| hidden != 0) => {
                self.fs.xattr(node.object(), access)?
            }
            old => old,
        };
        let Some(old) = old else { return Ok(()) };
        let new = posix_acl::changed_mode(node.object(), &old, node.mode()?)?;
        self.set_sa_xattr(node, access, Some(&new)).map(drop)
    }

    /// Sets the time of the last read and changes nothing else. The caller decides whether this is needed (`atime`,
    /// `relatime`).
    ///
    /// # Errors
    /// If there is no room.
    pub fn touch_atime(&self, object: u64, atime: Timestamp) -> Result<(), ZplError> {
        let _held = self.locks.write(object);
        let mut node = self.node(object)?;
        node.set_time(Attr::Atime, atime)?;
        let tx = self.begin(Room::Write(node.room() + super::ROOM_BASE), object)?;
        self.write_node(&tx, node)
    }
}

fn apply(node: &mut Node<'_>, set: &SetAttributes, caller: &Caller) -> Result<(), ZplError> {
    if let Some(project) = set.project_id {
        set_project(node, project)?;
    }
    if let Some(flags) = set.fs_ioc_flags {
        let all = node.flags().0;
        let flag = |all: u64, (bit, flag): (u32, u64)| match flags & bit {
            0 => all & !flag,
            _ => all | flag,
        };
        node.set_word(Attr::Flags, IOC_FLAGS.into_iter().fold(all, flag))?;
    }
    for (attr, id) in [(Attr::Uid, set.uid), (Attr::Gid, set.gid)] {
        if let Some(id) = id {
            node.set_word(attr, id.into())?;
        }
    }
    if let Some(permissions) = set.permissions {
        node.set_permissions(permissions)?;
    }
    if set.clear_setid {
        let mode = node.mode()?;
        let set_gid = if mode & 0o010 != 0 { 0o2000 } else { 0 };
        if mode & (0o4000 | set_gid) != 0 {
            node.set_permissions(mode & 0o7777 & !(0o4000 | set_gid))?;
        }
    }
    // A change of only the atime is a read of the file. Any other change also updates the ctime.
    node.state_changed(caller.now)?;
    for (attr, time) in [(Attr::Atime, set.atime), (Attr::Mtime, set.mtime)] {
        match time {
            Some(SetTime::Now) => node.set_time(attr, caller.now)?,
            Some(SetTime::To(time)) => node.set_time(attr, time)?,
            None => {}
        }
    }
    for (attr, time) in [(Attr::Ctime, set.ctime), (Attr::Crtime, set.crtime)] {
        if let Some(time) = time {
            node.set_time(attr, time)?;
        }
    }
    Ok(())
}

/// `sa_add_projid`: old files have no room for a project ID, so it is added after the other attributes.
fn set_project(node: &mut Node<'_>, project: u32) -> Result<(), ZplError> {
    if project == 0 && !node.flags().contains(ZfsFlags::PROJID) {
        return Ok(());
    }
    node.set_word(Attr::Projid, project.into())?;
    node.add_flags(ZfsFlags::PROJID)
}
