//! Attributes, times of the last read, and extended attributes.

use snowmelt_zpl::acl::{ACCESS, DEFAULT};
use snowmelt_zpl::{Attributes, FileKind, FilesystemMut, SetAttributes, SetXattr, ZplError};

use super::error::VfsError;
use super::ino::Place;
use super::live::Live;
use super::options::Atime;
use super::{Stat, Vfs, Who, ino, now};

/// File capabilities, which every write removes.
const CAPABILITIES: &[u8] = b"security.capability";
/// The block size of files up to this size is not looked up, because this would take as long as reading their
/// attributes. Such a file may still have one block, which can grow.
const ONE_BLOCK_MAX: u64 = 128 << 10;
/// With `relatime`, a read is recorded at least once in this number of seconds.
const RELATIVE_SECONDS: i64 = 24 * 60 * 60;

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS.as_bytes() || name == DEFAULT.as_bytes()
}

impl Vfs {
    /// The `stat` data of an inode.
    ///
    /// # Errors
    /// [`VfsError::Stale`], or if it cannot be read.
    pub fn stat(&self, number: u64) -> Result<Stat, VfsError> {
        match Place::of(number) {
            Place::Control => self.stat_control(),
            Place::SnapshotDir => self.stat_snapshot_dir(),
            Place::Here(_) | Place::In(..) => {
                let (attributes, blocks) = self.on_inode(number, |view, object| {
                    let attributes = view.attributes(object)?;
                    let blocks = view.blocks(&attributes)?;
                    Ok((attributes, blocks))
                })?;
                Ok(self.stat_of(number, attributes, blocks))
            }
        }
    }

    pub(super) fn stat_of(&self, number: u64, attributes: Attributes, blocks: u64) -> Stat {
        let block_size = self.block_size(number, &attributes);
        Stat { ino: number, attributes, blocks, block_size }
    }

    /// The best size of reads and writes: that of a file's blocks, once it has several and they stay as they are.
    fn block_size(&self, number: u64, attributes: &Attributes) -> u32 {
        let record_size = self.options().record_size;
        if attributes.kind() != FileKind::File || attributes.size <= ONE_BLOCK_MAX {
            return record_size;
        }
        let own = self.on_inode(number, |view, object| view.block_size(object));
        own.ok().filter(|own| u64::from(*own) < attributes.size).unwrap_or(record_size)
    }

    /// Changes attributes. Like Linux, it removes setuid and setgid bits and file capabilities if the owner changes, or
    /// if a user other than root changes the size.
    ///
    /// # Errors
    /// Like [`FilesystemMut::set_attributes`], and [`VfsError::ReadOnly`].
    pub fn set_attributes(&self, number: u64, changes: &SetAttributes, who: Who) -> Result<Stat, VfsError> {
        let mut changes = *changes;
        let caller = who.now();
        let owner_changes = changes.uid.is_some() || changes.gid.is_some();
        let attributes = self.on_head(&[number], |fs| {
            if owner_changes || changes.size.is_some() {
                if fs.attributes(number)?.kind() != FileKind::Directory {
                    changes.clear_setid |= owner_changes || who.uid != 0;
                }
                self.drop_capabilities(fs, number, who)?;
            }
            fs.set_attributes(number, &changes, &caller)
        })?;
        let blocks = self.on_inode(number, |view, _| view.blocks(&attributes))?;
        Ok(self.stat_of(number, attributes, blocks))
    }

    /// Removes the setuid and setgid bits after a write by a user who may not keep them.
    pub(super) fn drop_setid(&self, fs: &FilesystemMut<Live>, number: u64, who: Who) -> Result<(), ZplError> {
        let attributes = fs.attributes(number)?;
        let has_setid = attributes.mode & 0o4000 != 0 || attributes.mode & 0o2010 == 0o2010;
        if has_setid && attributes.kind() == FileKind::File {
            let changes = SetAttributes { clear_setid: true, ..SetAttributes::default() };
            fs.set_attributes(number, &changes, &who.now())?;
        }
        Ok(())
    }

    /// Removes the file capabilities, after any write.
    pub(super) fn drop_capabilities(
        &self,
        fs: &FilesystemMut<Live>,
        number: u64,
        who: Who,
    ) -> Result<(), ZplError> {
        if self.inodes.lacks_capabilities(number) {
            return Ok(());
        }
        match fs.remove_xattr(number, CAPABILITIES, &who.now()) {
            Ok(()) | Err(ZplError::NoAttribute { .. } | ZplError::Unsupported { .. }) => {}
            Err(other) => return Err(other),
        }
        self.inodes.set_lacks_capabilities(number, true);
        Ok(())
    }

    /// Records the time of a read of a file or directory, if the mount requires it. Failures are ignored.
    pub(super) fn note_read(&self, number: u64) {
        let atime = self.options().atime;
        if atime == Atime::Off || ino::slot(number) != 0 || self.is_read_only() {
            return;
        }
        let _ = self.on_head(&[number], |fs| {
            let Attributes { atime: last, mtime, ctime, .. } = fs.attributes(number)?;
            let now = now();
            let stale = now.seconds.saturating_sub(last.seconds) >= RELATIVE_SECONDS;
            if atime == Atime::Strict || last <= mtime || last <= ctime || stale {
                fs.touch_atime(number, now)?;
            }
            Ok(())
        });
    }

    /// An extended attribute.
    ///
    /// # Errors
    /// [`VfsError::NoAttribute`], [`VfsError::Unsupported`].
    pub fn xattr(&self, number: u64, name: &[u8]) -> Result<Vec<u8>, VfsError> {
        let none = || VfsError::NoAttribute { ino: number, name: name.to_vec() };
        self.check_xattr(name)?;
        if matches!(Place::of(number), Place::Control | Place::SnapshotDir) {
            return Err(none());
        }
        self.on_inode(number, |view, object| view.xattr(object, name))?.ok_or_else(none)
    }

    /// Names of all extended attributes; those of the namespace `trusted` only for root.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn xattr_names(&self, number: u64, who: Who) -> Result<Vec<Vec<u8>>, VfsError> {
        if matches!(Place::of(number), Place::Control | Place::SnapshotDir) {
            return Ok(Vec::new());
        }
        let mut names = self.on_inode(number, |view, object| view.xattr_names(object))?;
        names.retain(|name| {
            self.check_xattr(name).is_ok() && (who.uid == 0 || !name.starts_with(b"trusted."))
        });
        Ok(names)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Like [`FilesystemMut::set_xattr`], [`VfsError::Unsupported`], or [`VfsError::ReadOnly`].
    pub fn set_xattr(
        &self,
        number: u64,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        who: Who,
    ) -> Result<(), VfsError> {
        self.check_xattr(name)?;
        let caller = who.now();
        self.on_head(&[number], |fs| fs.set_xattr(number, name, value, how, &caller))?;
        if name == CAPABILITIES {
            self.inodes.set_lacks_capabilities(number, false);
        }
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Like [`FilesystemMut::remove_xattr`], [`VfsError::Unsupported`], or [`VfsError::ReadOnly`].
    pub fn remove_xattr(&self, number: u64, name: &[u8], who: Who) -> Result<(), VfsError> {
        self.check_xattr(name)?;
        let caller = who.now();
        self.on_head(&[number], |fs| fs.remove_xattr(number, name, &caller))
    }

    /// Checks that `acltype` and `xattr` allow the attribute.
    fn check_xattr(&self, name: &[u8]) -> Result<(), VfsError> {
        let options = self.options();
        match is_acl(name) {
            true if !options.posix_acl => Err(VfsError::Unsupported { what: "a POSIX ACL" }),
            false if !options.xattrs => Err(VfsError::Unsupported { what: "an extended attribute" }),
            false if name.starts_with(b"system.") => {
                Err(VfsError::Unsupported { what: "an attribute of the namespace 'system'" })
            }
            _ => Ok(()),
        }
    }
}
