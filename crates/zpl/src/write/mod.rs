//! Writing a filesystem, as `zfs_vnops_os.c`, `zfs_dir.c`, `zfs_znode_os.c` and `zpl_*.c` of OpenZFS do.
//!
//! Every operation first checks in memory whether it is possible. It begins its transaction only when nothing but
//! writing is left, so no operation is ever half done. Permissions are not checked here, because the kernel checks them
//! for a mount. The exceptions are immutable and append-only files, which restrict every user.
//!
//! Locks are taken in this order: the namespace, then objects (by ascending shard), then the transaction, then the SA
//! tables. Changes of directories, of the unlinked set and of hidden attribute directories take the namespace for
//! writing. Reading or writing a file's data takes only the object's lock. No other lock is taken while the cache of
//! directories is locked.

mod acl;
mod create;
mod data;
mod directories;
mod link;
mod locks;
mod make;
mod node;
mod posix_acl;
mod rename;
mod setattr;
#[cfg(test)]
mod tests;
mod unlinked;
mod xattr;

use crate::attributes::{Attributes, Timestamp};
use crate::error::ZplError;
use crate::filesystem::{DirEntry, Filesystem, dir_entry};
use crate::names::NamePolicy;
use crate::nfs4::Ace;
use crate::sa::Attr;
use crate::sa::edit::Numbers;
use crate::source::{ObjectsMut, Room};
use crate::zap::{Cursor, KeptZap, ZapEdit};
use directories::Directories;
use locks::Locks;
use node::Node;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

pub use create::{CONTENT_MAX, NewFile, NewKind, NewNode};
pub use link::Removed;
pub use make::{NewFilesystem, create_filesystem};
pub use rename::RenameMode;
pub use setattr::{SetAttributes, SetTime};
pub use xattr::SetXattr;

/// First ZPL version whose attributes are system attributes. Older filesystems are read-only.
const VERSION_WRITABLE: u64 = 5;
/// Room for what a transaction writes besides blocks: dnodes, and the rounding up of small blocks.
const ROOM_BASE: u64 = 32 << 10;

/// The user that requests a change, and the time of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// Owner of created objects.
    pub uid: u32,
    /// Group of created objects, unless the directory passes on its own group.
    pub gid: u32,
    /// Permission bits that are removed from created objects if the directory has no default ACL. 0 if the caller has
    /// already removed them.
    pub umask: u32,
    /// The time of the change.
    pub now: Timestamp,
}

/// Where extended attributes are stored: the `xattr` property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrStore {
    /// In the system attributes if they fit there, otherwise in a hidden directory.
    #[default]
    Sa,
    /// In a hidden directory.
    Dir,
    /// Like `Sa`, but users' attributes (`user.*`) are not allowed.
    Off,
}

/// The properties of a dataset that affect writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// `recordsize`: block size of a large file in bytes, a power of two from 512 to 16 MiB.
    pub record_size: u32,
    /// `xattr`.
    pub xattr: XattrStore,
    /// `acltype=posix`: new objects inherit the default ACL of their directory.
    pub posix_acl: bool,
    /// `dnodesize`: 512-byte slots of new dnodes. `legacy` means 1, `auto` means 2.
    pub dnode_slots: u8,
    /// Whether new files and directories have a project ID (the pool feature `project_quota`).
    pub project_ids: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            record_size: 128 << 10,
            xattr: XattrStore::default(),
            posix_acl: false,
            dnode_slots: 1,
            project_ids: true,
        }
    }
}

/// A filesystem opened for writing. All methods may be called from several threads at once.
pub struct FilesystemMut<O> {
    fs: Filesystem<O>,
    numbers: Numbers,
    delete_queue: u64,
    /// Lock of the namespace: directories, the unlinked set and hidden attribute directories.
    names: RwLock<()>,
    directories: Directories,
    locks: Locks,
    options: RwLock<WriteOptions>,
    salts: Salts,
}

/// A generator of numbers that cannot be guessed without the random seed (SplitMix64).
#[derive(Debug)]
pub(crate) struct Salts(AtomicU64);

impl Salts {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let mut value = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }
}

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Opens a filesystem for writing. `seed` is a random number. The salts of the name hashes in new directories
    /// depend on it.
    ///
    /// Files that were unlinked while open still exist; see [`FilesystemMut::drain_unlinked`].
    ///
    /// # Errors
    /// Like [`Filesystem::open`], and [`ZplError::Unsupported`] for filesystems of ZPL versions before 5, whose format
    /// of attributes can only be read.
    pub fn open(objects: O, options: WriteOptions, seed: u64) -> Result<Self, ZplError> {
        let fs = Filesystem::open(objects)?;
        let unsupported = |what: String| ZplError::Unsupported { object: crate::MASTER_NODE, what };
        if fs.version() < VERSION_WRITABLE || !fs.has_system_attributes() {
            return Err(unsupported(format!("writing to a filesystem of version {}", fs.version())));
        }
        let delete_queue =
            fs.delete_queue().ok_or_else(|| ZplError::corrupt(crate::MASTER_NODE, "no DELETE_QUEUE"))?;
        fs.sa().write().prepare_writing();
        let numbers = fs.sa().read().numbers();
        Ok(Self {
            fs,
            numbers,
            delete_queue,
            names: RwLock::new(()),
            directories: Directories::default(),
            locks: Locks::default(),
            options: RwLock::new(checked(options)?),
            salts: Salts::new(seed),
        })
    }

    /// The objset of the filesystem.
    pub fn objects(&self) -> &O {
        self.fs.objects()
    }

    /// Object number of the root directory.
    pub fn root(&self) -> u64 {
        self.fs.root()
    }

    /// How names are compared.
    pub fn name_policy(&self) -> NamePolicy {
        self.fs.name_policy()
    }

    /// The options for writing.
    pub fn options(&self) -> WriteOptions {
        *self.options.read()
    }

    /// Changes the options for writing, for example after a property was set.
    ///
    /// # Errors
    /// [`ZplError::Invalid`] for invalid sizes.
    pub fn set_options(&self, options: WriteOptions) -> Result<(), ZplError> {
        *self.options.write() = checked(options)?;
        Ok(())
    }

    /// Drops all cached state after the objset was replaced (rollback, receive). Returns `false` if the new state
    /// differs so much that the filesystem must be opened again.
    ///
    /// # Errors
    /// Like [`FilesystemMut::open`].
    pub fn reload(&self) -> Result<bool, ZplError> {
        let _names = self.names.write();
        let now = Filesystem::open(self.objects())?;
        now.sa().write().prepare_writing();
        let same = now.root() == self.root()
            && now.version() == self.fs.version()
            && now.delete_queue() == Some(self.delete_queue)
            && now.name_policy() == self.fs.name_policy()
            && now.sa().read().numbers() == self.numbers;
        if same {
            *self.fs.sa().write() = now.sa().read().clone();
        }
        self.directories.clear();
        Ok(same)
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// Like [`Filesystem::attributes`].
    pub fn attributes(&self, object: u64) -> Result<Attributes, ZplError> {
        let _held = self.locks.read(object);
        self.fs.attributes(object)
    }

    /// Like [`Filesystem::lookup`].
    ///
    /// # Errors
    /// Like [`Filesystem::lookup`].
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<Option<DirEntry>, ZplError> {
        let _names = self.names.read();
        let matching = self.fs.name_policy().matching();
        let kept = match directory == self.delete_queue {
            true => None,
            false => self.directories.lookup(directory, name, matching),
        };
        let found = match kept {
            Some(found) => found,
            None => {
                let zap = self.fs.directory(directory)?;
                let found = zap.lookup(name, matching)?;
                KeptZap::new(zap).into_iter().for_each(|zap| self.directories.keep(zap));
                found
            }
        };
        found.map(|entry| dir_entry(directory, entry)).transpose()
    }

    /// At most `count` entries of a directory from `cursor` on, without "." and "..". The next batch begins at the last
    /// entry's [`DirEntry::next`]. This cursor stays valid if entries are added or removed meanwhile.
    ///
    /// # Errors
    /// Like [`Filesystem::read_dir`].
    pub fn read_dir(&self, directory: u64, cursor: Cursor, count: usize) -> Result<Vec<DirEntry>, ZplError> {
        let _names = self.names.read();
        self.fs.read_dir(directory)?.from(cursor).take(count).collect()
    }

    /// Like [`FilesystemMut::read_dir`], with integers such as a `d_off` as cursors. 0 is the beginning. Each entry is
    /// returned with the cursor that follows it, which is 2^28 or more.
    ///
    /// # Errors
    /// Like [`Filesystem::read_dir`].
    pub fn read_dir_at(
        &self,
        directory: u64,
        offset: u64,
        count: usize,
    ) -> Result<Vec<(DirEntry, u64)>, ZplError> {
        let _names = self.names.read();
        let entries = self.fs.read_dir(directory)?;
        let bits = entries.hash_bits();
        let numbered = entries.from(Cursor::deserialize(offset, bits)).take(count).map(|entry| {
            let entry = entry?;
            let next = entry.next.serialize(bits);
            Ok((entry, next))
        });
        numbered.collect()
    }

    /// Like [`Filesystem::readlink`].
    ///
    /// # Errors
    /// Like [`Filesystem::readlink`].
    pub fn readlink(&self, object: u64) -> Result<Vec<u8>, ZplError> {
        let _held = self.locks.read(object);
        self.fs.readlink(object)
    }

    /// Like [`Filesystem::nfs4_acl`].
    ///
    /// # Errors
    /// Like [`Filesystem::nfs4_acl`].
    pub fn nfs4_acl(&self, object: u64) -> Result<Vec<Ace>, ZplError> {
        let _held = self.locks.read(object);
        self.fs.nfs4_acl(object)
    }

    /// All extended attributes; see [`Filesystem::xattrs`].
    ///
    /// # Errors
    /// Like [`Filesystem::xattrs`].
    pub fn xattrs(&self, object: u64) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError> {
        let _names = self.names.read();
        let _held = self.locks.read(object);
        self.fs.xattrs(object)
    }

    /// One extended attribute; see [`Filesystem::xattr`].
    ///
    /// # Errors
    /// Like [`Filesystem::xattr`].
    pub fn xattr(&self, object: u64, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        let _names = self.names.read();
        let _held = self.locks.read(object);
        self.fs.xattr(object, name)
    }

    fn node(&self, object: u64) -> Result<Node<'_>, ZplError> {
        Node::read(&self.fs, &self.numbers, object)
    }

    /// The node of `object`, which must be a directory that has a name.
    fn directory(&self, object: u64) -> Result<Node<'_>, ZplError> {
        let node = self.node(object)?;
        if !node.is_directory()? {
            return Err(ZplError::NotADirectory { object });
        }
        if node.word(Attr::Links)? == 0 {
            return Err(ZplError::NoObject { object });
        }
        Ok(node)
    }

    /// A ZAP of the namespace for changing. [`Self::write_zap`] writes it. The caller holds the namespace lock for
    /// writing.
    fn zap(&self, object: u64) -> Result<ZapEdit<'_, O>, ZplError> {
        match self.directories.take(object) {
            Some(kept) => Ok(ZapEdit::resume(self.fs.objects(), kept)),
            None => ZapEdit::open(self.fs.objects(), object),
        }
    }

    fn write_zap(&self, tx: &O::Tx<'_>, mut zap: ZapEdit<'_, O>) -> Result<(), ZplError> {
        zap.write(tx)?;
        zap.into_kept().into_iter().for_each(|zap| self.directories.keep(zap));
        Ok(())
    }

    fn begin(&self, room: Room, object: u64) -> Result<O::Tx<'_>, ZplError> {
        self.fs.objects().begin(room).map_err(ZplError::source(object))
    }

    fn write_node(&self, tx: &O::Tx<'_>, node: Node<'_>) -> Result<(), ZplError> {
        node.write(self.fs.objects(), tx, &self.salts)
    }

    /// Finds the entry for `name`, by the rules of this filesystem.
    fn find(&self, zap: &mut ZapEdit<'_, O>, name: &[u8]) -> Result<Option<Found>, ZplError> {
        let Some(entry) = zap.lookup(name, self.fs.name_policy().matching())? else { return Ok(None) };
        let value = entry
            .value
            .ok_or_else(|| ZplError::corrupt(zap.object(), "a directory entry is not one 64-bit integer"))?;
        Ok(Some(Found { name: entry.name, object: value & crate::filesystem::DIRENT_OBJECT }))
    }

    /// Checks that `name` is valid for a new entry: 1 to 255 bytes without "/" and NUL, not "." or "..".
    fn check_name(&self, name: &[u8]) -> Result<(), ZplError> {
        if name.len() > crate::zap::NAME_MAX {
            return Err(ZplError::NameTooLong { len: name.len() });
        }
        if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(ZplError::InvalidName { name: name.to_vec() });
        }
        if self.fs.name_policy().utf8_only && std::str::from_utf8(name).is_err() {
            return Err(ZplError::NotUtf8 { name: name.to_vec() });
        }
        Ok(())
    }
}

/// A directory entry that will be changed.
#[derive(Debug, Clone)]
struct Found {
    /// Name as stored. It may differ in case or form from the name in the request.
    name: Vec<u8>,
    object: u64,
}

fn checked(options: WriteOptions) -> Result<WriteOptions, ZplError> {
    let size = options.record_size;
    let invalid = |what: String| Err(ZplError::Invalid { object: crate::MASTER_NODE, what });
    if !size.is_power_of_two() || !(512..=16 << 20).contains(&size) {
        return invalid(format!("a record size of {size}"));
    }
    match options.dnode_slots {
        1..=32 => Ok(options),
        slots => invalid(format!("dnodes of {slots} slots")),
    }
}

/// The value of a directory entry: the object number, and the file type in the top bits (`zfs_dirent`).
fn dirent(object: u64, mode: u64) -> u64 {
    object | (mode >> 12 & 0xf) << 60
}
