//! The flags of entries in file lists (docs/format/rsync.md, "Entries").

pub(super) const TOP_DIR: u32 = 1 << 0;
pub(super) const SAME_MODE: u32 = 1 << 1;
pub(super) const EXTENDED: u32 = 1 << 2;
pub(super) const SAME_UID: u32 = 1 << 3;
pub(super) const SAME_GID: u32 = 1 << 4;
pub(super) const SAME_NAME: u32 = 1 << 5;
pub(super) const LONG_NAME: u32 = 1 << 6;
pub(super) const SAME_TIME: u32 = 1 << 7;
/// For devices.
pub(super) const SAME_MAJOR: u32 = 1 << 8;
/// For directories.
pub(super) const NO_CONTENT: u32 = 1 << 8;
/// For devices, before version 28: the device is that of the previous entry.
pub(super) const SAME_DEVICE: u32 = 1 << 2;
/// For devices, in versions 28 and 29: the minor number is one byte.
pub(super) const SMALL_MINOR: u32 = 1 << 11;
/// For hard-linked files, in versions 28 and 29: the filesystem is that of the previous one.
pub(super) const SAME_FILESYSTEM: u32 = 1 << 10;
pub(super) const HARD_LINKED: u32 = 1 << 9;
pub(super) const USER_NAME: u32 = 1 << 10;
pub(super) const GROUP_NAME: u32 = 1 << 11;
/// For hard-linked files.
pub(super) const FIRST_LINK: u32 = 1 << 12;
/// With [`EXTENDED`] alone: the list ends with errors.
pub(super) const ERROR_END: u32 = 1 << 12;
pub(super) const NANOSECONDS: u32 = 1 << 13;
pub(super) const SAME_ATIME: u32 = 1 << 14;
