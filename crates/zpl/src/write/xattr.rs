//! Changing extended attributes and POSIX ACLs: `zpl_xattr_set`, `zfs_sa_set_xattr`, `zfs_make_xattrdir`.

use super::create::{Make, NewKind, attributes};
use super::node::Node;
use super::{Caller, FilesystemMut, ROOM_BASE, XattrStore, dirent, posix_acl};
use crate::attributes::{FileKind, ZfsFlags};
use crate::error::ZplError;
use crate::sa::Attr;
use crate::source::{ObjectsMut, Room};
use crate::xattr::{VALUE_MAX, stored_names};
use crate::xdr;
use crate::zap::{Matching, Value, ZapEdit};

/// `XATTR_NAME_MAX`.
const NAME_MAX: usize = 255;
/// `DXATTR_MAX_ENTRY_SIZE`: larger values go to the hidden directory.
const SA_VALUE_MAX: usize = 32 << 10;
/// `DXATTR_MAX_SA_SIZE`: if the packed list is larger, further attributes go to the hidden directory.
const SA_LIST_MAX: usize = 64 << 10;
/// Modes of a hidden directory and of a file in it.
const DIRECTORY_MODE: u32 = 0o041_777;
const FILE_MODE: u32 = 0o100_644;

/// Whether an attribute may, must or must not exist before it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// The attribute may exist.
    #[default]
    Any,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Sets an extended attribute, by its Linux name.
    ///
    /// Setting `system.posix_acl_access` also sets the mode.
    ///
    /// # Errors
    /// [`ZplError::AttributeName`], [`ZplError::AttributeTooLarge`] for more than 64 KiB,
    /// [`ZplError::AttributeExists`], [`ZplError::NoAttribute`], [`ZplError::Unsupported`] if users' attributes are
    /// disabled or the namespace is unknown, [`ZplError::Invalid`] for a malformed ACL, or if there is no room.
    pub fn set_xattr(
        &self,
        object: u64,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        if value.len() as u64 > VALUE_MAX {
            return Err(ZplError::AttributeTooLarge { object, len: value.len() });
        }
        self.change_xattr(object, name, Some(value), how, caller)
    }

    /// Removes an extended attribute.
    /// # Errors
    /// [`ZplError::NoAttribute`], and the errors of [`FilesystemMut::set_xattr`].
    pub fn remove_xattr(&self, object: u64, name: &[u8], caller: &Caller) -> Result<(), ZplError> {
        self.change_xattr(object, name, None, SetXattr::Replace, caller)
    }

    fn change_xattr(
        &self,
        object: u64,
        name: &[u8],
        value: Option<&[u8]>,
        how: SetXattr,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let is_acl = self.check_xattr_name(object, name)?;
        // The lock of the namespace also protects hidden directories.
        let _names = self.names.write();
        let _held = self.locks.write(object);
        let mut node = self.node(object)?;
        node.check_mutable(false)?;
        if name.starts_with(b"user.") && !matches!(node.kind()?, FileKind::File | FileKind::Directory) {
            return Err(ZplError::NotPermitted { object, append: false });
        }
        let exists = self.fs.xattr(object, name)?.is_some();
        match how {
            SetXattr::Create if exists => {
                return Err(ZplError::AttributeExists { object, name: name.to_vec() });
            }
            SetXattr::Replace if !exists && !is_acl => {
                return Err(ZplError::NoAttribute { object, name: name.to_vec() });
            }
            _ => {}
        }
        if is_acl {
            return self.change_acl(node, name, value, caller);
        }
        // The attribute is removed under all other stored forms of its name. The new value is stored under the full
        // name.
        let other_names: Vec<&[u8]> =
            stored_names(name).into_iter().filter(|stored| *stored != name).collect();
        let mut hidden = self.hidden(&node)?;
        for stored in &other_names {
            self.set_sa_xattr(&mut node, stored, None)?;
            if let Some(hidden) = &mut hidden {
                hidden.remove(self, stored)?;
            }
        }
        match value {
            None => {
                self.set_sa_xattr(&mut node, name, None)?;
                if let Some(hidden) = &mut hidden {
                    hidden.remove(self, name)?;
                }
                node.state_changed(caller.now)?;
                self.write_xattrs(node, hidden, None, caller)
            }
            Some(value) => {
                let in_sa = self.options().xattr != XattrStore::Dir && value.len() <= SA_VALUE_MAX;
                if in_sa && self.try_sa_xattr(&mut node, name, value)? {
                    if let Some(hidden) = &mut hidden {
                        hidden.remove(self, name)?;
                    }
                    node.state_changed(caller.now)?;
                    return self.write_xattrs(node, hidden, None, caller);
                }
                self.set_sa_xattr(&mut node, name, None)?;
                node.state_changed(caller.now)?;
                self.write_xattrs(node, hidden, Some((name, value)), caller)
            }
        }
    }

    /// Checks that ZFS accepts the name. Returns whether it is the name of a POSIX ACL.
    fn check_xattr_name(&self, object: u64, name: &[u8]) -> Result<bool, ZplError> {
        if name.len() > NAME_MAX {
            return Err(ZplError::AttributeName { object, len: name.len() });
        }
        let is_acl = name == crate::acl::ACCESS.as_bytes() || name == crate::acl::DEFAULT.as_bytes();
        let known = [&b"user."[..], b"trusted.", b"security."]
            .iter()
            .any(|space| name.strip_prefix(*space).is_some_and(|rest| !rest.is_empty()));
        let unsupported = |what: &str| Err(ZplError::Unsupported { object, what: what.into() });
        match (is_acl, known) {
            (true, _) => Ok(true),
            (false, false) => unsupported("an attribute of an unknown namespace"),
            (false, true) if name.contains(&0) => Err(ZplError::InvalidName { name: name.to_vec() }),
            (false, true) if self.options().xattr == XattrStore::Off && name.starts_with(b"user.") => {
                unsupported("an attribute, with xattr=off,")
            }
            (false, true) => Ok(false),
        }
    }

    /// Sets or removes a POSIX ACL, which is always stored in the system attributes: `zpl_set_acl_impl`.
    fn change_acl(
        &self,
        mut node: Node<'_>,
        name: &[u8],
        value: Option<&[u8]>,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let object = node.object();
        let kind = node.kind()?;
        if kind == FileKind::Symlink {
            return Err(ZplError::Unsupported { object, what: "an ACL of a symbolic link".into() });
        }
        let is_access = name == crate::acl::ACCESS.as_bytes();
        let stored = match value {
            None => None,
            Some(value) if is_access => {
                let (permissions, stored) = posix_acl::set_access(object, value, node.mode()?)?;
                if permissions != node.mode()? & 0o7777 {
                    node.set_permissions(permissions)?;
                }
                stored
            }
            Some(value) => posix_acl::set_default(object, value)?,
        };
        if !is_access && kind != FileKind::Directory {
            return match stored {
                None => Ok(()),
                Some(_) => Err(ZplError::NotADirectory { object }),
            };
        }
        let mut hidden = self.hidden(&node)?;
        if let Some(hidden) = &mut hidden {
            hidden.remove(self, name)?;
        }
        self.set_sa_xattr(&mut node, name, stored.as_deref())?;
        node.state_changed(caller.now)?;
        self.write_xattrs(node, hidden, None, caller)
    }

    fn pairs(&self, node: &Node<'_>) -> Result<Pairs, ZplError> {
        let packed = node.bytes(Attr::Dxattr).unwrap_or_default();
        let mut all = Vec::new();
        if packed.is_empty() {
            return Ok(all);
        }
        let mut read = || {
            let mut pairs = xdr::unpack(packed)?;
            while let Some(pair) = pairs.pair()? {
                all.push((pair.name.to_vec(), pair.byte_array()?.to_vec()));
            }
            Ok(())
        };
        read().map_err(|bad: xdr::BadNvlist| {
            ZplError::corrupt(node.object(), format!("its nvlist of extended attributes: {}", bad.0))
        })?;
        Ok(all)
    }

    /// The value of an extended attribute that is stored in the system attributes.
    pub(super) fn sa_xattr(&self, node: &Node<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        let pairs = self.pairs(node)?;
        Ok(pairs.into_iter().find(|(stored, _)| stored == name).map(|(_, value)| value))
    }

    /// Sets or removes an extended attribute in the system attributes. Returns whether it existed.
    pub(super) fn set_sa_xattr(
        &self,
        node: &mut Node<'_>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<bool, ZplError> {
        let mut pairs = self.pairs(node)?;
        if value.is_some() && pairs.iter().any(|(stored, old)| stored == name && Some(&**old) == value) {
            return Ok(true);
        }
        let before = pairs.len();
        pairs.retain(|(stored, _)| stored != name);
        let existed = pairs.len() < before;
        if !existed && value.is_none() {
            return Ok(false);
        }
        pairs.extend(value.map(|value| (name.to_vec(), value.to_vec())));
        node.set(Attr::Dxattr, Some(&xdr::pack(&pairs)))?;
        Ok(existed)
    }

    /// Like [`Self::set_sa_xattr`], but returns `false` if the attribute does not fit: `zpl_xattr_set_sa`.
    fn try_sa_xattr(&self, node: &mut Node<'_>, name: &[u8], value: &[u8]) -> Result<bool, ZplError> {
        if node.bytes(Attr::Dxattr).is_some_and(|packed| packed.len() > SA_LIST_MAX) {
            return Ok(false);
        }
        match self.set_sa_xattr(node, name, Some(value)) {
            Ok(_) => Ok(true),
            Err(ZplError::AttributesFull { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The file's hidden directory, if there is one.
    fn hidden(&self, node: &Node<'_>) -> Result<Option<Hidden<'_, O>>, ZplError> {
        let Some(object) = node.optional(Attr::Xattr).filter(|object| *object != 0) else {
            return Ok(None);
        };
        let directory = self.node(object)?;
        if object == node.object()
            || !directory.is_directory()?
            || !directory.flags().contains(ZfsFlags::XATTR)
        {
            return Err(ZplError::corrupt(node.object(), format!("object {object} holds no attributes")));
        }
        Ok(Some(Hidden { directory, zap: self.zap(object)?, gone: Vec::new() }))
    }

    /// Writes a node with changed attributes, the changes of its hidden directory, and a new value in that directory.
    fn write_xattrs(
        &self,
        mut node: Node<'_>,
        hidden: Option<Hidden<'_, O>>,
        new: Option<(&[u8], &[u8])>,
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let object = node.object();
        let Some((name, value)) = new else {
            let room = node.room() + hidden.as_ref().map_or(0, Hidden::room) + ROOM_BASE;
            // A change that only removes something must also be possible in a full pool.
            let shrinks = hidden.as_ref().is_some_and(|hidden| !hidden.gone.is_empty());
            let tx = self.begin(if shrinks { Room::Free } else { Room::Write(room) }, object)?;
            self.write_node(&tx, node)?;
            return hidden.map_or(Ok(()), |hidden| hidden.write(self, &tx, caller));
        };
        let mut hidden = match hidden {
            Some(hidden) => hidden,
            None => return self.write_first_hidden(node, name, value, caller),
        };
        hidden.remove(self, name)?;
        hidden.zap.add(name, &Value::One(1))?;
        let mut make = self.hidden_make(&hidden.directory, NewKind::File, FILE_MODE, caller)?;
        make.size = value.len() as u64;
        let file = attributes(&self.fs.sa().read(), &self.numbers, &make, hidden.zap.object())?;
        let room = node.room() + hidden.room() + file.room() + 2 * value.len() as u64 + 2 * ROOM_BASE;
        hidden.directory.count_entries(1, 0)?;
        node.state_changed(caller.now)?;
        let tx = self.begin(Room::Write(room), object)?;
        let number = self.put_file(&tx, &make, file, value)?;
        hidden.zap.update(name, &Value::One(dirent(number, FILE_MODE.into())))?;
        self.write_node(&tx, node)?;
        hidden.write(self, &tx, caller)
    }

    /// Creates the hidden directory, and in it a file with the value.
    fn write_first_hidden(
        &self,
        mut node: Node<'_>,
        name: &[u8],
        value: &[u8],
        caller: &Caller,
    ) -> Result<(), ZplError> {
        let object = node.object();
        let make_directory = self.hidden_make(&node, NewKind::Directory, DIRECTORY_MODE, caller)?;
        let directory = attributes(&self.fs.sa().read(), &self.numbers, &make_directory, object)?;
        let mut make = self.hidden_make(&node, NewKind::File, FILE_MODE, caller)?;
        (make.uid, make.gid, make.size) = (make_directory.uid, make_directory.gid, value.len() as u64);
        let file = attributes(&self.fs.sa().read(), &self.numbers, &make, object)?;
        // A placeholder number, so that a lack of space is detected before the transaction.
        node.set_word(Attr::Xattr, 1)?;
        let room = node.room() + directory.room() + file.room() + 2 * value.len() as u64 + 4 * ROOM_BASE;
        let tx = self.begin(Room::Write(room), object)?;
        let number = self.put_node(&tx, &make_directory, directory)?;
        node.set_word(Attr::Xattr, number)?;
        self.write_node(&tx, node)?;
        let mut parent = self.node(number)?;
        parent.count_entries(1, 0)?;
        parent.content_changed(caller.now)?;
        let file = attributes(&self.fs.sa().read(), &self.numbers, &make, number)?;
        let value_object = self.put_file(&tx, &make, file, value)?;
        let mut zap = self.zap(number)?;
        zap.add(name, &Value::One(dirent(value_object, FILE_MODE.into())))?;
        self.write_zap(&tx, zap)?;
        self.write_node(&tx, parent)
    }

    /// Describes a hidden directory, or a file in one. Its owner is the owner of the file.
    fn hidden_make(
        &self,
        owner: &Node<'_>,
        kind: NewKind<'static>,
        mode: u32,
        caller: &Caller,
    ) -> Result<Make<'static>, ZplError> {
        let options = self.options();
        Ok(Make {
            kind,
            mode,
            uid: owner.word(Attr::Uid)?,
            gid: owner.word(Attr::Gid)?,
            links: if kind == NewKind::Directory { 2 } else { 1 },
            flags: ZfsFlags::XATTR | owner.flags().0 & ZfsFlags::PROJINHERIT,
            project: options.project_ids.then(|| owner.inherited_project()),
            caller: *caller,
            size: 0,
            atime: caller.now,
            mtime: caller.now,
            xattrs: Vec::new(),
            options,
        })
    }
}

/// A hidden directory with changes that are not written yet.
struct Hidden<'f, O: ObjectsMut> {
    directory: Node<'f>,
    zap: ZapEdit<'f, O>,
    /// Files whose names were removed.
    gone: Vec<u64>,
}

impl<O: ObjectsMut> Hidden<'_, O> {
    fn room(&self) -> u64 {
        self.directory.room() + self.zap.room()
    }

    /// Removes a file's name, if it exists.
    fn remove(&mut self, fs: &FilesystemMut<O>, name: &[u8]) -> Result<(), ZplError> {
        let Some(entry) = self.zap.lookup(name, Matching::Exact)? else { return Ok(()) };
        self.zap.remove(&entry.name)?;
        self.directory.count_entries(-1, 0)?;
        let object = entry.value.unwrap_or(0) & crate::filesystem::DIRENT_OBJECT;
        let node = match fs.fs.objects().dnode(object).map_err(ZplError::source(object))? {
            Some(_) => fs.node(object)?,
            None => return Ok(()),
        };
        // An object is removed with its name only if it is an attribute file without other names.
        let belongs = node.flags().contains(ZfsFlags::XATTR) && node.kind()? == FileKind::File;
        if belongs && node.word(Attr::Links)? <= 1 {
            self.gone.push(object);
        }
        Ok(())
    }

    fn write(mut self, fs: &FilesystemMut<O>, tx: &O::Tx<'_>, caller: &Caller) -> Result<(), ZplError> {
        self.directory.content_changed(caller.now)?;
        fs.write_zap(tx, self.zap)?;
        fs.write_node(tx, self.directory)?;
        fs.destroy(tx, &self.gone)
    }
}
