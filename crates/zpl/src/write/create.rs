//! Creating files, directories and other nodes: `zfs_mknode`, `zfs_create`, `zfs_mkdir`, `zfs_symlink`.

use super::node::{Node, execute_flag, time_bytes};
use super::{Caller, FilesystemMut, ROOM_BASE, WriteOptions, acl, dirent, posix_acl};
use crate::attributes::{Attributes, FileKind, Timestamp, ZfsFlags, device_number};
use crate::error::ZplError;
use crate::normalize::NormFlags;
use crate::sa::edit::{Numbers, SaEdit, number_of};
use crate::sa::{Attr, SaTable};
use crate::source::{
    DMU_OT_DIRECTORY_CONTENTS, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_SA, NewObject, ObjectsMut, Room,
};
use crate::xdr;
use crate::zap::{NewZap, Value};

/// Longest target of a symbolic link: Linux's `PATH_MAX`, which includes a NUL.
const TARGET_MAX: usize = 4095;
/// Largest content with which a file is created. One transaction writes all of it.
pub const CONTENT_MAX: usize = 4 << 20;
/// Largest number of subdirectories. Some versions of Linux's `stat` cannot hold larger link counts.
pub(super) const LINKS_MAX: u64 = i32::MAX as u64;

/// The kind of node to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewKind<'t> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(&'t [u8]),
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
}

/// The parameters of a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewNode<'t> {
    /// The kind of node.
    pub kind: NewKind<'t>,
    /// Its permission bits, with setuid, setgid and sticky.
    pub permissions: u32,
}

/// The parameters of a new regular file with content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFile<'c> {
    /// Its permission bits, with setuid, setgid and sticky.
    pub permissions: u32,
    /// Owner, or `None` for the caller.
    pub uid: Option<u32>,
    /// Group, or `None` for the caller's or the directory's group.
    pub gid: Option<u32>,
    /// Time of the last read, or `None` for the caller's time.
    pub atime: Option<Timestamp>,
    /// Time of the last change of the content, or `None` for the caller's time.
    pub mtime: Option<Timestamp>,
    /// The whole content: at most [`CONTENT_MAX`] bytes.
    pub content: &'c [u8],
}

impl NewKind<'_> {
    fn kind(self) -> FileKind {
        match self {
            Self::File => FileKind::File,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::CharDevice(..) => FileKind::CharDevice,
            Self::BlockDevice(..) => FileKind::BlockDevice,
        }
    }
}

/// The parameters of `zfs_mknode`.
pub(super) struct Make<'t> {
    pub(super) kind: NewKind<'t>,
    /// Type and permission bits.
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) links: u64,
    /// Flags in addition to those that follow from the mode.
    pub(super) flags: u64,
    /// Project ID, if the object has one.
    pub(super) project: Option<u64>,
    pub(super) caller: Caller,
    /// Size of the file's content in bytes.
    pub(super) size: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    /// Extended attributes, by their names as stored.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) options: WriteOptions,
}

impl Make<'_> {
    /// Block size. A file has one block of its own size, or several blocks of the record size.
    fn block_size(&self) -> u32 {
        let record_size = self.options.record_size;
        u32::try_from(self.size.next_multiple_of(512)).unwrap_or(u32::MAX).clamp(512, record_size)
    }
}

/// Attributes of a new node in the order of `zfs_mknode`. The generation is set later.
pub(super) fn attributes(
    table: &SaTable,
    numbers: &Numbers,
    make: &Make<'_>,
    parent: u64,
) -> Result<SaEdit, ZplError> {
    let is_directory = make.kind == NewKind::Directory;
    let (ace_count, aces) = acl::trivial(make.mode, is_directory);
    let inherit = if is_directory { ZfsFlags::ACL_AUTO_INHERIT } else { 0 };
    let flags = make.flags
        | ZfsFlags::ARCHIVE
        | ZfsFlags::AV_MODIFIED
        | ZfsFlags::ACL_TRIVIAL
        | execute_flag(make.mode)
        | inherit
        | if make.project.is_some() { ZfsFlags::PROJID } else { 0 };
    let size = match make.kind {
        NewKind::Directory => 2,
        NewKind::Symlink(target) => target.len() as u64,
        _ => make.size,
    };
    let now = time_bytes(make.caller.now);
    let (atime, mtime) = (time_bytes(make.atime), time_bytes(make.mtime));
    let [mode, uid, gid, links] = [make.mode.into(), make.uid, make.gid, make.links].map(u64::to_le_bytes);
    let [size, generation, parent_bytes, flags, ace_count] =
        [size, 0, parent, flags, ace_count].map(u64::to_le_bytes);
    let mut list: Vec<(Attr, &[u8])> = Vec::with_capacity(18);
    list.extend_from_slice(&[
        (Attr::Mode, &mode),
        (Attr::Size, &size),
        (Attr::Gen, &generation),
        (Attr::Uid, &uid),
        (Attr::Gid, &gid),
        (Attr::Parent, &parent_bytes),
        (Attr::Flags, &flags),
        (Attr::Atime, &atime),
        (Attr::Mtime, &mtime),
        (Attr::Ctime, &now),
        (Attr::Crtime, &now),
        (Attr::Links, &links),
    ]);
    let project = make.project.map(u64::to_le_bytes);
    list.extend(project.iter().map(|project| (Attr::Projid, &project[..])));
    let device = match make.kind {
        NewKind::CharDevice(major, minor) | NewKind::BlockDevice(major, minor) => {
            Some(device_number(major, minor).to_le_bytes())
        }
        _ => None,
    };
    list.extend(device.iter().map(|device| (Attr::Rdev, &device[..])));
    list.push((Attr::DaclCount, &ace_count));
    list.push((Attr::DaclAces, &aces));
    if let NewKind::Symlink(target) = make.kind {
        list.push((Attr::Symlink, target));
    }
    let xattrs = (!make.xattrs.is_empty()).then(|| xdr::pack(&make.xattrs));
    list.extend(xattrs.iter().map(|xattrs| (Attr::Dxattr, &xattrs[..])));
    let numbered = list.into_iter().map(|(attr, value)| match number_of(numbers, attr) {
        Some(number) => Ok((number, value)),
        None => Err(ZplError::corrupt(parent, format!("attribute {attr:?} has no number here"))),
    });
    SaEdit::new(table, make.options.dnode_slots, &numbered.collect::<Result<Vec<_>, _>>()?)
}

/// Normalisation of new directories: `z_norm`.
pub(super) fn directory_norm(policy: crate::NamePolicy) -> NormFlags {
    match policy.case {
        crate::CaseSensitivity::Sensitive => policy.normalization,
        crate::CaseSensitivity::Insensitive | crate::CaseSensitivity::Mixed => {
            policy.normalization.with_case_folding()
        }
    }
}

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Creates a node under a new name, and returns its attributes.
    ///
    /// Group, set-group-ID bit, project and POSIX ACLs are inherited from the directory.
    ///
    /// # Errors
    /// [`ZplError::Exists`], [`ZplError::NotADirectory`], [`ZplError::NoObject`] for a removed directory, the errors
    /// for an invalid name or target, or if there is no room.
    pub fn create(
        &self,
        directory: u64,
        name: &[u8],
        new: NewNode<'_>,
        caller: &Caller,
    ) -> Result<Attributes, ZplError> {
        self.create_node(directory, name, new, &[], caller, |_| {})
    }

    /// Creates a regular file with its content and attributes in one transaction, and returns its attributes.
    ///
    /// # Errors
    /// Like [`FilesystemMut::create`], and [`ZplError::TooLarge`] if the content does not fit in one transaction
    /// ([`CONTENT_MAX`]).
    pub fn create_file(
        &self,
        directory: u64,
        name: &[u8],
        new: &NewFile<'_>,
        caller: &Caller,
    ) -> Result<Attributes, ZplError> {
        if new.content.len() > CONTENT_MAX {
            return Err(ZplError::TooLarge { object: directory, offset: CONTENT_MAX as u64 });
        }
        let node = NewNode { kind: NewKind::File, permissions: new.permissions };
        self.create_node(directory, name, node, new.content, caller, |make| {
            make.uid = new.uid.map_or(make.uid, u64::from);
            make.gid = new.gid.map_or(make.gid, u64::from);
            make.atime = new.atime.unwrap_or(make.atime);
            make.mtime = new.mtime.unwrap_or(make.mtime);
        })
    }

    fn create_node(
        &self,
        directory: u64,
        name: &[u8],
        new: NewNode<'_>,
        content: &[u8],
        caller: &Caller,
        adjust: impl FnOnce(&mut Make<'_>),
    ) -> Result<Attributes, ZplError> {
        self.check_name(name)?;
        let _names = self.names.write();
        let _held = self.locks.write(directory);
        let mut parent = self.directory(directory)?;
        parent.check_mutable(true)?;
        let mut zap = self.zap(directory)?;
        if self.find(&mut zap, name)?.is_some() {
            return Err(ZplError::Exists { directory, name: name.to_vec() });
        }
        // A placeholder for the object number, which is not known yet. It reserves the place of the entry.
        zap.add(name, &Value::One(1))?;
        let mut make = self.make(&parent, new, caller)?;
        make.size = content.len() as u64;
        adjust(&mut make);
        let is_directory = new.kind == NewKind::Directory;
        if is_directory && parent.word(Attr::Links)? >= LINKS_MAX {
            return Err(ZplError::TooManyLinks { object: directory, links: parent.word(Attr::Links)? });
        }
        parent.count_entries(1, is_directory.into())?;
        parent.content_changed(caller.now)?;
        let attributes = attributes(&self.fs.sa().read(), &self.numbers, &make, directory)?;
        let blocks = content.len() as u64 + u64::from(make.block_size());
        let room = zap.room() + parent.room() + attributes.room() + blocks + ROOM_BASE;
        let tx = self.begin(Room::Write(room), directory)?;
        let object = self.put_file(&tx, &make, attributes, content)?;
        zap.update(name, &Value::One(dirent(object, make.mode.into())))?;
        self.write_zap(&tx, zap)?;
        self.write_node(&tx, parent)?;
        drop(tx);
        self.fs.attributes(object)
    }

    /// Creates a regular file without a name, like `O_TMPFILE`. It inherits group, project and ACL from `directory`.
    /// [`FilesystemMut::link`] may give it a name. [`FilesystemMut::release`] removes it if it still has none.
    ///
    /// # Errors
    /// Like [`FilesystemMut::create`].
    pub fn create_unnamed(
        &self,
        directory: u64,
        permissions: u32,
        caller: &Caller,
    ) -> Result<Attributes, ZplError> {
        let _names = self.names.write();
        let _held = self.locks.read(directory);
        let parent = self.directory(directory)?;
        parent.check_mutable(true)?;
        let new = NewNode { kind: NewKind::File, permissions };
        let make = Make { links: 0, ..self.make(&parent, new, caller)? };
        let attributes = attributes(&self.fs.sa().read(), &self.numbers, &make, directory)?;
        let mut queue = self.zap(self.delete_queue)?;
        // Reserves room for the longest name in the queue, because the object number is not known yet.
        let probe = super::unlinked::queue_name(u64::MAX);
        queue.update(&probe, &Value::One(0))?;
        queue.remove(&probe)?;
        let room = queue.room() + attributes.room() + ROOM_BASE;
        let tx = self.begin(Room::Write(room), directory)?;
        let object = self.put_node(&tx, &make, attributes)?;
        queue.update(&super::unlinked::queue_name(object), &Value::One(object))?;
        self.write_zap(&tx, queue)?;
        drop(tx);
        self.fs.attributes(object)
    }

    /// The parameters of a new node, with those inherited from its directory: `zfs_acl_ids_create`, `zpl_vap_init`,
    /// `zpl_init_acl`.
    fn make<'t>(&self, parent: &Node<'_>, new: NewNode<'t>, caller: &Caller) -> Result<Make<'t>, ZplError> {
        if let NewKind::Symlink(target) = new.kind {
            if target.len() > TARGET_MAX {
                return Err(ZplError::NameTooLong { len: target.len() });
            }
            if target.is_empty() || target.contains(&0) {
                return Err(ZplError::InvalidName { name: target.to_vec() });
            }
        }
        let options = self.options();
        let kind = new.kind.kind();
        let set_gid = parent.mode()? & 0o2000 != 0;
        let gid = if set_gid { parent.word(Attr::Gid)? } else { caller.gid.into() };
        let mut permissions = new.permissions & 0o7777;
        if set_gid && kind == FileKind::Directory {
            permissions |= 0o2000;
        }
        let default = match options.posix_acl && kind != FileKind::Symlink {
            true => self.fs.xattr(parent.object(), crate::acl::DEFAULT.as_bytes())?,
            false => None,
        };
        let mut xattrs = Vec::new();
        match default {
            Some(default) => {
                let inherited = posix_acl::inherit(parent.object(), &default, permissions)?;
                permissions = inherited.permissions;
                if kind == FileKind::Directory {
                    xattrs.push((crate::acl::DEFAULT.as_bytes().to_vec(), default));
                }
                if let Some(access) = inherited.access {
                    xattrs.push((crate::acl::ACCESS.as_bytes().to_vec(), access));
                }
            }
            None if kind != FileKind::Symlink => permissions &= !(caller.umask & 0o777),
            None => {}
        }
        let has_project = matches!(kind, FileKind::File | FileKind::Directory) && options.project_ids;
        let inherited = parent.flags().0 & (ZfsFlags::PROJINHERIT | ZfsFlags::XATTR);
        let passed_on = match kind {
            FileKind::File | FileKind::Directory => inherited,
            _ => inherited & ZfsFlags::XATTR,
        };
        Ok(Make {
            kind: new.kind,
            mode: kind.mode_bits() | permissions,
            uid: caller.uid.into(),
            gid,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            flags: passed_on,
            project: has_project.then(|| parent.inherited_project()),
            caller: *caller,
            size: 0,
            atime: caller.now,
            mtime: caller.now,
            xattrs,
            options,
        })
    }

    /// Creates the object of a file, with its content. The content has the size given in `make`.
    pub(super) fn put_file(
        &self,
        tx: &O::Tx<'_>,
        make: &Make<'_>,
        attributes: SaEdit,
        content: &[u8],
    ) -> Result<u64, ZplError> {
        let object = self.put_node(tx, make, attributes)?;
        if !content.is_empty() {
            self.objects().write(tx, object, 0, content).map_err(ZplError::source(object))?;
        }
        Ok(object)
    }

    /// Creates the object of a node.
    pub(super) fn put_node(
        &self,
        tx: &O::Tx<'_>,
        make: &Make<'_>,
        attributes: SaEdit,
    ) -> Result<u64, ZplError> {
        put_node(
            self.fs.objects(),
            tx,
            make,
            attributes,
            &Surroundings {
                table: self.fs.sa(),
                numbers: &self.numbers,
                norm: directory_norm(self.fs.name_policy()),
                salts: &self.salts,
            },
        )
    }
}

/// The state of a filesystem that the creation of a node needs.
pub(super) struct Surroundings<'f> {
    pub(super) table: &'f parking_lot::RwLock<SaTable>,
    pub(super) numbers: &'f Numbers,
    pub(super) norm: NormFlags,
    pub(super) salts: &'f super::Salts,
}

/// Creates the object of a node and returns its number.
pub(super) fn put_node<O: ObjectsMut>(
    objects: &O,
    tx: &O::Tx<'_>,
    make: &Make<'_>,
    mut attributes: SaEdit,
    around: &Surroundings<'_>,
) -> Result<u64, ZplError> {
    if let Some(generation) = number_of(around.numbers, Attr::Gen) {
        attributes.set(&around.table.read(), generation, Some(&objects.txg(tx).to_le_bytes()))?;
    }
    attributes.resolve(objects, tx, around.table, || around.salts.next())?;
    let (bonus, spill) = attributes.into_buffers();
    let slots = make.options.dnode_slots;
    let object = if make.kind == NewKind::Directory {
        let new = NewZap {
            object_type: DMU_OT_DIRECTORY_CONTENTS,
            bonus_type: DMU_OT_SA,
            bonus,
            slots,
            norm: around.norm,
            salt: around.salts.next(),
        };
        new.create(objects, tx)?
    } else {
        let new = NewObject {
            object_type: DMU_OT_PLAIN_FILE_CONTENTS,
            bonus_type: DMU_OT_SA,
            block_size: make.block_size(),
            slots,
            bonus,
        };
        objects.create(tx, new).map_err(ZplError::source(0))?
    };
    if spill.is_some() {
        objects.set_spill(tx, object, spill).map_err(ZplError::source(object))?;
    }
    Ok(object)
}
