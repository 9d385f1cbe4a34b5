//! Trees that can be served.

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

/// The type bits of a mode, as Linux and the protocol have them.
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

/// Seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// What `lstat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Content changed.
    pub mtime: Time,
    /// Content read.
    pub atime: Time,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Names.
    pub links: u64,
    /// The filesystem, and the file's number in it.
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
    /// Bytes it has now.
    fn size(&self) -> u64;

    /// Goes on reading there.
    ///
    /// # Errors
    /// When that cannot be.
    fn seek_to(&mut self, offset: u64) -> io::Result<()>;
}

/// A tree to be read. Paths are relative to its root, without "." and "..", "" being the root; symbolic links on the way
/// are followed, and lead nowhere outside.
pub trait Source: Send + Sync {
    /// What is at a path; of a symbolic link as the last name, the link itself, unless it is to be followed.
    ///
    /// # Errors
    /// When there is nothing, or it cannot be looked at.
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata>;

    /// Names in a directory with what they are, in any order.
    ///
    /// # Errors
    /// When it cannot be listed.
    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// When it is none.
    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens a regular file, but no symbolic link unless that is to be followed.
    ///
    /// # Errors
    /// When it cannot be read.
    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>>;

    /// Extended attributes as Linux names them, POSIX ACLs among them.
    ///
    /// # Errors
    /// When they cannot be read.
    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>>;

    /// As [`Source::open`], of what was listed as this: where that tells which file it is, its name is not looked for again.
    ///
    /// # Errors
    /// As [`Source::open`].
    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        let _ = listed;
        self.open(path, follow)
    }

    /// As [`Source::xattrs`], of what was listed as this.
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
