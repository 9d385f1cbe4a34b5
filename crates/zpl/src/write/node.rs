//! The attributes of a file while they are changed.

use super::{Salts, acl};
use crate::attributes::{Attributes, FileKind, Timestamp, ZfsFlags};
use crate::bytes::Endian;
use crate::error::ZplError;
use crate::filesystem::Filesystem;
use crate::sa::edit::{Numbers, SaEdit, number_of};
use crate::sa::{Attr, SaTable};
use crate::source::{Objects, ObjectsMut};
use parking_lot::RwLock;

/// `V4_ACL_WIDE_FLAGS`: flags of an ACL that stay when the mode changes.
const ACL_KEPT: u64 = ZfsFlags::ACL_AUTO_INHERIT | ZfsFlags::ACL_DEFAULTED | ZfsFlags::ACL_PROTECTED;
/// `ZFS_ACL_WIDE_FLAGS`: all flags of an ACL.
const ACL_ALL: u64 = ACL_KEPT | ZfsFlags::ACL_TRIVIAL | ZfsFlags::INHERIT_ACE | ZfsFlags::ACL_OBJ_ACE;
/// Permission bits that let everyone execute the file.
const EXECUTE_ALL: u32 = 0o111;

/// An object with file attributes, whose changes are not written yet.
pub(super) struct Node<'f> {
    table: &'f RwLock<SaTable>,
    numbers: &'f Numbers,
    attributes: SaEdit,
    /// Size of a data block in bytes.
    pub(super) block_size: u32,
}

/// A time as it is stored in attributes.
pub(super) fn time_bytes(time: Timestamp) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&time.seconds.to_le_bytes());
    bytes[8..].copy_from_slice(&u64::from(time.nanoseconds).to_le_bytes());
    bytes
}

/// Flags that follow from a mode with a trivial ACL: `zfs_mode_compute`.
pub(super) fn execute_flag(mode: u32) -> u64 {
    if mode & EXECUTE_ALL == EXECUTE_ALL { ZfsFlags::NO_EXECS_DENIED } else { 0 }
}

impl<'f> Node<'f> {
    pub(super) fn read<O: Objects>(
        fs: &'f Filesystem<O>,
        numbers: &'f Numbers,
        object: u64,
    ) -> Result<Self, ZplError> {
        let dnode = fs.dnode(object)?;
        let block_size = dnode.block_size;
        let spill = match dnode.has_spill {
            true => fs.objects().spill(object).map_err(ZplError::source(object))?,
            false => None,
        };
        let table = fs.sa();
        let attributes = SaEdit::read(&table.read(), dnode, spill)?;
        Ok(Self { table, numbers, attributes, block_size })
    }

    pub(super) fn object(&self) -> u64 {
        self.attributes.object()
    }

    fn number(&self, attr: Attr) -> Result<u16, ZplError> {
        number_of(self.numbers, attr)
            .ok_or_else(|| ZplError::corrupt(self.object(), format!("attribute {attr:?} has no number here")))
    }

    /// The bytes of an attribute.
    pub(super) fn bytes(&self, attr: Attr) -> Option<&[u8]> {
        self.attributes.get(number_of(self.numbers, attr)?)
    }

    /// The integer in an optional attribute.
    pub(super) fn optional(&self, attr: Attr) -> Option<u64> {
        self.bytes(attr).and_then(|bytes| Endian::Little.u64(bytes, 0))
    }

    /// The integer in a required attribute.
    pub(super) fn word(&self, attr: Attr) -> Result<u64, ZplError> {
        self.optional(attr)
            .ok_or_else(|| ZplError::corrupt(self.object(), format!("attribute {attr:?} is missing")))
    }

    pub(super) fn set(&mut self, attr: Attr, value: Option<&[u8]>) -> Result<(), ZplError> {
        let number = self.number(attr)?;
        self.attributes.set(&self.table.read(), number, value)
    }

    pub(super) fn set_word(&mut self, attr: Attr, value: u64) -> Result<(), ZplError> {
        self.set(attr, Some(&value.to_le_bytes()))
    }

    pub(super) fn set_time(&mut self, attr: Attr, time: Timestamp) -> Result<(), ZplError> {
        self.set(attr, Some(&time_bytes(time)))
    }

    pub(super) fn mode(&self) -> Result<u32, ZplError> {
        Ok(self.word(Attr::Mode)? as u32 & 0xffff)
    }

    pub(super) fn kind(&self) -> Result<FileKind, ZplError> {
        Ok(FileKind::from_type_bits((self.mode()? >> 12) as u8))
    }

    pub(super) fn is_directory(&self) -> Result<bool, ZplError> {
        Ok(self.kind()? == FileKind::Directory)
    }

    pub(super) fn flags(&self) -> ZfsFlags {
        ZfsFlags(self.optional(Attr::Flags).unwrap_or(0))
    }

    pub(super) fn add_flags(&mut self, flags: u64) -> Result<(), ZplError> {
        let all = self.flags().0 | flags;
        self.set_word(Attr::Flags, all)
    }

    /// Project ID, or 0 if the object has none.
    pub(super) fn project(&self) -> u64 {
        match self.flags().contains(ZfsFlags::PROJID) {
            true => self.optional(Attr::Projid).unwrap_or(0),
            false => 0,
        }
    }

    /// Project ID that files created in this directory get: `zfs_inherit_projid`.
    pub(super) fn inherited_project(&self) -> u64 {
        if self.flags().contains(ZfsFlags::PROJINHERIT) { self.project() } else { 0 }
    }

    /// Updates times and flags after a change of the content: `zfs_tstamp_update_setup` with `CONTENT_MODIFIED`.
    pub(super) fn content_changed(&mut self, now: Timestamp) -> Result<(), ZplError> {
        self.set_time(Attr::Mtime, now)?;
        self.set_time(Attr::Ctime, now)?;
        self.count_change()?;
        self.add_flags(ZfsFlags::ARCHIVE | ZfsFlags::AV_MODIFIED)
    }

    /// Increments the counter of changes that OpenZFS stores since version 2.4 (`ZFS_PERSIST_SEQ`), if the object has
    /// one.
    fn count_change(&mut self) -> Result<(), ZplError> {
        match self.optional(Attr::Seq) {
            Some(changes) => self.set_word(Attr::Seq, changes.wrapping_add(1)),
            None => Ok(()),
        }
    }

    /// Updates times and flags after a change of attributes only: `zfs_tstamp_update_setup` with `STATE_CHANGED`.
    pub(super) fn state_changed(&mut self, now: Timestamp) -> Result<(), ZplError> {
        self.set_time(Attr::Ctime, now)?;
        self.count_change()?;
        self.add_flags(ZfsFlags::ARCHIVE)
    }

    /// Sets the permission bits, and the ACL and flags that follow from them: `zfs_acl_chmod_setattr` with
    /// `aclmode=discard`.
    pub(super) fn set_permissions(&mut self, permissions: u32) -> Result<(), ZplError> {
        let mode = self.mode()? & 0o170_000 | permissions & 0o7777;
        let (count, aces) = acl::trivial(mode, self.is_directory()?);
        self.set_word(Attr::Mode, mode.into())?;
        let kept = self.flags().0 & !(ACL_ALL & !ACL_KEPT) & !ZfsFlags::NO_EXECS_DENIED;
        self.set_word(Attr::Flags, kept | ZfsFlags::ACL_TRIVIAL | execute_flag(mode))?;
        self.set(Attr::DaclAces, Some(&aces))?;
        self.set_word(Attr::DaclCount, count)
    }

    /// Fails if the object is immutable, or if it is append-only and this is not an `append`.
    pub(super) fn check_mutable(&self, append: bool) -> Result<(), ZplError> {
        let flags = self.flags();
        let object = self.object();
        if flags.contains(ZfsFlags::IMMUTABLE) {
            return Err(ZplError::NotPermitted { object, append: false });
        }
        if flags.contains(ZfsFlags::APPENDONLY) && !append {
            return Err(ZplError::NotPermitted { object, append: true });
        }
        Ok(())
    }

    /// Changes the number of entries and of subdirectories of this directory.
    pub(super) fn count_entries(&mut self, entries: i64, directories: i64) -> Result<(), ZplError> {
        for (attr, change) in [(Attr::Size, entries), (Attr::Links, directories)] {
            if change != 0 {
                let changed = self.word(attr)?.checked_add_signed(change);
                let what = || format!("its {attr:?} cannot be changed by {change}");
                let changed = changed.ok_or_else(|| ZplError::corrupt(self.object(), what()))?;
                self.set_word(attr, changed)?;
            }
        }
        Ok(())
    }

    /// The attributes with all changes.
    pub(super) fn attributes(&self) -> Result<Attributes, ZplError> {
        Attributes::new(self.object(), &self.attributes.values(&self.table.read()))
    }

    /// Upper bound of the bytes that writing the node needs.
    pub(super) fn room(&self) -> u64 {
        self.attributes.room()
    }

    pub(super) fn write<O: ObjectsMut>(
        self,
        objects: &O,
        tx: &O::Tx<'_>,
        salts: &Salts,
    ) -> Result<(), ZplError> {
        self.attributes.write(objects, tx, self.table, || salts.next())
    }
}
