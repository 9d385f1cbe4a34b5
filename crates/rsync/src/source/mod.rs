//! Sources: trees that can be served.

mod ahead;
mod attributes;
mod chmod;
pub(crate) mod dataset;
pub(crate) mod directory;
pub(crate) mod fake_super;
mod indexed;
pub(crate) mod inside;
mod named;
mod readable;
pub(crate) mod xattrs;

pub use attributes::AttributesSource;
pub(crate) use chmod::ChmodSource;
pub use dataset::DatasetSource;
pub use directory::DirectorySource;
pub use fake_super::FakeSuperSource;
pub use indexed::IndexedSource;
pub use named::NamedTrees;
pub use readable::ReadableSource;

use std::collections::BTreeMap;
use std::io::{self, Read};

/// The type bits of a mode, as in Linux and the protocol.
pub mod kind {
    #![allow(missing_docs)]
    pub const MASK: u32 = 0o170_000;
    pub const FIFO: u32 = 0o010_000;
    pub const CHAR_DEVICE: u32 = 0o020_000;
    pub const DIRECTORY: u32 = 0o040_000;
    pub const BLOCK_DEVICE: u32 = 0o060_000;
    pub const FILE: u32 = 0o100_000;
    pub const SYMLINK: u32 = 0o120_000;
    pub const SOCKET: u32 = 0o140_000;
}

/// A time: seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// The metadata of a file, as from `lstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of content.
    pub mtime: Time,
    /// Time of the last access.
    pub atime: Time,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Number of names (hard links).
    pub links: u64,
    /// The filesystem, and the inode number in it.
    pub id: (u64, u64),
}

impl Metadata {
    /// The type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & kind::MASK
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == kind::DIRECTORY
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == kind::FILE
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == kind::SYMLINK
    }

    /// Whether it is a block or character device.
    pub fn is_device(&self) -> bool {
        matches!(self.kind(), kind::BLOCK_DEVICE | kind::CHAR_DEVICE)
    }

    /// Whether it is a fifo or socket.
    pub fn is_special(&self) -> bool {
        matches!(self.kind(), kind::FIFO | kind::SOCKET)
    }
}

/// An open file.
pub trait Content: Read {
    /// Its present size in bytes.
    fn size(&self) -> u64;

    /// Continues reading at this offset.
    ///
    /// # Errors
    /// When that is not possible.
    fn seek_to(&mut self, offset: u64) -> io::Result<()>;
}

/// A tree that can be read. Paths are relative to its root, without "." and "..". "" is the root. Symbolic links in a
/// path are followed, and do not lead outside.
pub trait Source: Send + Sync {
    /// The metadata of the file at a path. If the last component is a symbolic link, `follow` decides whether it is
    /// followed.
    ///
    /// # Errors
    /// When there is no file, or it cannot be accessed.
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata>;

    /// The names in a directory with their metadata, in any order.
    ///
    /// # Errors
    /// When it cannot be listed.
    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// When the file is not a symbolic link.
    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens a regular file. A symbolic link is opened only with `follow`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>>;

    /// The extended attributes with Linux's names, including POSIX ACLs.
    ///
    /// # Errors
    /// When they cannot be read.
    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>>;

    /// As [`Source::open`], for a file that was listed with this metadata. If that identifies the file, its name is not
    /// looked up again.
    ///
    /// # Errors
    /// As [`Source::open`].
    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        let _ = listed;
        self.open(path, follow)
    }

    /// As [`Source::xattrs`], for a file that was listed with this metadata.
    ///
    /// # Errors
    /// As [`Source::xattrs`].
    fn xattrs_listed(
        &self,
        path: &[u8],
        listed: &Metadata,
        follow: bool,
    ) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let _ = listed;
        self.xattrs(path, follow)
    }
}
