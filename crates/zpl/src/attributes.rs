//! The attributes of a file: those of `stat`, and those that only ZFS has.

use crate::error::ZplError;
use crate::sa::{Attr, SaValues};

/// Seconds and nanoseconds since 1970. Times before 1970 have negative seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// 0 to 999,999,999. They are added to the seconds, also before 1970.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Nanoseconds since 1970.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds)
    }
}

/// The type of a file, from the top bits of its mode or of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FileKind {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    File,
    Symlink,
    Socket,
    /// The entry or mode has no type, as in directories of old ZPL versions.
    Unknown,
}

impl FileKind {
    /// From the four type bits of a mode, which are also the `DT_*` value of a directory entry.
    pub fn from_type_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::File,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => Self::Unknown,
        }
    }

    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
            Self::Unknown => 0,
        }
    }
}

/// Flags of a znode (`zp_flags`, `ZFS_*` of `include/sys/zfs_znode.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZfsFlags(pub u64);

impl ZfsFlags {
    /// Belongs to an extended attribute: a hidden directory or a file in one.
    pub const XATTR: u64 = 0x1;
    /// A directory whose ACL has entries for its children (`ZFS_INHERIT_ACE`).
    pub const INHERIT_ACE: u64 = 0x2;
    /// The ACL grants the same as the mode.
    pub const ACL_TRIVIAL: u64 = 0x4;
    /// The ACL has entries with object GUIDs (`ZFS_ACL_OBJ_ACE`).
    pub const ACL_OBJ_ACE: u64 = 0x8;
    /// The ACL does not take inherited entries (`ZFS_ACL_PROTECTED`).
    pub const ACL_PROTECTED: u64 = 0x10;
    /// The ACL was made by default (`ZFS_ACL_DEFAULTED`).
    pub const ACL_DEFAULTED: u64 = 0x20;
    /// The ACL was inherited automatically (`ZFS_ACL_AUTO_INHERIT`).
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    /// No entry of the ACL denies execution (`ZFS_NO_EXECS_DENIED`).
    pub const NO_EXECS_DENIED: u64 = 0x100;
    /// Changed since the last backup (`ZFS_ARCHIVE`).
    pub const ARCHIVE: u64 = 0x8_0000_0000;
    /// `chattr +i`.
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    /// `chattr +a`.
    pub const APPENDONLY: u64 = 0x40_0000_0000;
    /// `chattr +d`.
    pub const NODUMP: u64 = 0x80_0000_0000;
    /// Changed since it was scanned for viruses (`ZFS_AV_MODIFIED`).
    pub const AV_MODIFIED: u64 = 0x400_0000_0000;
    /// Has holes (`ZFS_SPARSE`).
    pub const SPARSE: u64 = 0x2000_0000_0000;
    /// Children inherit the project ID.
    pub const PROJINHERIT: u64 = 0x4000_0000_0000;
    /// The object has a project ID.
    pub const PROJID: u64 = 0x8000_0000_0000;

    /// Whether all bits of `mask` are set.
    pub fn contains(self, mask: u64) -> bool {
        self.0 & mask == mask
    }

    /// The flags in the form of Linux's `FS_IOC_GETFLAGS`: 0x10 immutable, 0x20 append-only, 0x40 no dump, 0x20000000
    /// project inheritance (`__zpl_ioctl_getflags`).
    pub fn fs_ioc_flags(self) -> u32 {
        [
            (Self::IMMUTABLE, 0x10),
            (Self::APPENDONLY, 0x20),
            (Self::NODUMP, 0x40),
            (Self::PROJINHERIT, 0x2000_0000),
        ]
        .into_iter()
        .filter(|(flag, _)| self.contains(*flag))
        .fold(0, |flags, (_, bit)| flags | bit)
    }
}

/// The attributes of a file: everything except its content and names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Object number, which is the inode number.
    pub object: u64,
    /// Type and permission bits (`st_mode`).
    pub mode: u32,
    /// Owner as Linux shows it: the low 32 bits of [`Attributes::uid_fuid`].
    pub uid: u32,
    /// Group as Linux shows it.
    pub gid: u32,
    /// Owner as stored. The bits above the low 32 are the index of the ID's domain ([`crate::FuidTable`]), or 0 for
    /// plain POSIX IDs.
    pub uid_fuid: u64,
    /// Group as stored.
    pub gid_fuid: u64,
    /// Size of a file or symlink target in bytes. For a directory, the number of its entries plus two.
    pub size: u64,
    /// Number of hard links.
    pub links: u64,
    /// Time of the last read.
    pub atime: Timestamp,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last change of the content or attributes.
    pub ctime: Timestamp,
    /// Time of creation.
    pub crtime: Timestamp,
    /// Major and minor number of a device node.
    pub rdev: Option<(u32, u32)>,
    /// ZFS's own flags.
    pub flags: ZfsFlags,
    /// Project ID, or 0 if there is none.
    pub project_id: u64,
    /// Txg of creation. It distinguishes files that used the same object number one after another.
    pub generation: u64,
    /// The directory that contains the file, or contained it last.
    pub parent: u64,
    /// The hidden directory of extended attributes, if there is one.
    pub xattr_object: Option<u64>,
}

/// The inverse of [`device`].
pub(crate) fn device_number(major: u32, minor: u32) -> u64 {
    u64::from(major & 0xfff) << 20 | u64::from(minor & 0xf_ffff)
}

/// Splits a device number in Linux's kernel-internal format (`MAJOR`, `MINOR` of `include/linux/kdev_t.h`). ZFS on
/// Linux stores this format, because `zpl_mknod` does not convert it.
fn device(rdev: u64) -> (u32, u32) {
    ((rdev >> 20) as u32 & 0xfff, rdev as u32 & 0xf_ffff)
}

impl Attributes {
    pub(crate) fn new(object: u64, values: &SaValues<'_>) -> Result<Self, ZplError> {
        let time = |attr| {
            let (seconds, nanoseconds) = (values.word(attr, 0)?, values.word(attr, 1)?);
            // Only a faulty writer stores nanoseconds of a second or more. They are limited, so that the seconds stay
            // as stored.
            Some(Timestamp { seconds: seconds as i64, nanoseconds: nanoseconds.min(999_999_999) as u32 })
        };
        let required = |attr| values.required(attr);
        let mode = required(Attr::Mode)? as u32;
        let kind = FileKind::from_type_bits((mode >> 12) as u8 & 0xf);
        let flags = ZfsFlags(values.word(Attr::Flags, 0).unwrap_or(0));
        let (uid_fuid, gid_fuid) = (required(Attr::Uid)?, required(Attr::Gid)?);
        let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        Ok(Self {
            object,
            mode: mode & 0xffff,
            uid: uid_fuid as u32,
            gid: gid_fuid as u32,
            uid_fuid,
            gid_fuid,
            size: required(Attr::Size)?,
            links: required(Attr::Links)?,
            atime: time(Attr::Atime).unwrap_or_default(),
            mtime: time(Attr::Mtime).unwrap_or_default(),
            ctime: time(Attr::Ctime).unwrap_or_default(),
            crtime: time(Attr::Crtime).unwrap_or_default(),
            rdev: is_device.then(|| device(values.word(Attr::Rdev, 0).unwrap_or(0))),
            flags,
            project_id: match flags.contains(ZfsFlags::PROJID) {
                true => values.word(Attr::Projid, 0).unwrap_or(0),
                false => 0,
            },
            generation: values.word(Attr::Gen, 0).unwrap_or(0),
            parent: values.word(Attr::Parent, 0).unwrap_or(0),
            xattr_object: values.word(Attr::Xattr, 0).filter(|object| *object != 0),
        })
    }

    /// The type of the file.
    pub fn kind(&self) -> FileKind {
        FileKind::from_type_bits((self.mode >> 12) as u8 & 0xf)
    }

    /// Permission bits with setuid, setgid and sticky.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_agree_with_mode_bits() {
        for bits in 0..16 {
            let kind = FileKind::from_type_bits(bits);
            if kind != FileKind::Unknown {
                assert_eq!(kind.mode_bits(), u32::from(bits) << 12);
            }
        }
    }

    #[test]
    fn times_before_the_epoch_count_forwards() {
        let time = Timestamp { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(time.as_nanos(), -1_500_000_000);
    }

    #[test]
    fn flags_map_to_linux() {
        assert_eq!(ZfsFlags(ZfsFlags::IMMUTABLE | ZfsFlags::NODUMP).fs_ioc_flags(), 0x50);
        assert_eq!(device(0x0080_0001), (8, 1));
        assert_eq!(device_number(8, 1), 0x0080_0001);
        assert_eq!(device(0x0010_0000 * 259 + 0x4_0001), (259, 0x4_0001));
    }
}
