//! Targets: the trait for datasets and directories of this machine that can be received into.
//!
//! The receiver uses a target only through [`Target`]. Paths are relative to the root of a tree: names joined by
//! slashes, without "." and "..". "" is the root. Symbolic links in paths are never followed. If an option wants that,
//! the receiver reads the links itself ([`Ways`]) and uses the path that they lead to.
//!
//! There are two kinds of targets, and the receiver writes files into each in its own way ([`Target::is_staged`]):
//!
//! - A **dataset** is staged: nothing that is written is visible until all of it becomes visible in one step. So files
//!   are written at their final paths.
//! - A **directory** is visible all the time. So a file is written under a temporary name beside the one that it
//!   replaces. It gets its attributes there, and is renamed when its content is correct.

mod dataset;
mod directory;
mod fake_super;
mod source;
mod ways;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use snowmelt_zpl::{NewFile, NewKind, SetAttributes};

pub use self::dataset::{DatasetTarget, TargetError};
pub use self::directory::DirectoryTarget;
pub use self::fake_super::FakeSuperTarget;
pub(crate) use self::source::AsSource;
pub use self::ways::Ways;
use crate::history::Moment;
use crate::source::{Metadata, kind};

/// Permissions of new files if those of the client do not count, as with an umask of 022.
const NEW_MASK: u32 = 0o755;

/// A file that was found at a path and can be accessed again. Two nodes are equal if they are the same file, whatever
/// their paths.
#[derive(Debug, Clone)]
pub struct Node {
    /// The filesystem, and the inode number in it.
    id: (u64, u64),
    /// The path where it was found, for targets that need it.
    way: Option<Arc<[u8]>>,
}

impl Node {
    /// The path where it was found, if the target needs it.
    pub fn way(&self) -> Option<&[u8]> {
        self.way.as_deref()
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Node {}

/// The file at a path.
#[derive(Debug, Clone)]
pub struct Found {
    /// Identifies the file.
    pub node: Node,
    /// The metadata of the file.
    pub metadata: Metadata,
}

impl Found {
    /// The permissions, with setuid, setgid and sticky bit.
    pub fn permissions(&self) -> u32 {
        self.metadata.mode & !kind::MASK
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.metadata.is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.metadata.is_file()
    }
}

/// A tree that is read. Files in snapshots can be read but not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// The tree that is written.
    Next,
    /// A snapshot, by the order in which they were opened.
    Snapshot(u16),
}

/// A tree that can be received into.
///
/// Every function fails with an error of the kernel, or the one that the kernel would return: a dataset uses Linux's
/// error numbers.
#[allow(clippy::missing_errors_doc)]
pub trait Target: Send + Sync {
    /// Whether nothing that is written is visible before [`Target::finish`].
    fn is_staged(&self) -> bool;

    /// Makes the received files visible and durable. After a complete transfer, snapshots of older ones are destroyed,
    /// except `keep` of them. Returns `false` if nothing was received.
    fn finish(self: Box<Self>, moment: Moment, keep: Option<usize>) -> Result<bool, TargetError>;

    /// The links that were followed.
    fn ways(&self) -> &Ways;

    /// The number of components from the root directory of this machine to that of the target, if links are followed
    /// even outside. Then paths may begin with "..". `None` if links end at the target's root.
    fn depth_for_links(&self) -> Option<usize> {
        None
    }

    /// The file at a path. `None` if there is none.
    fn stat(&self, path: &[u8]) -> io::Result<Option<Found>>;

    /// The snapshot of the target with this name.
    fn snapshot(&self, _short: &str) -> io::Result<Tree> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// The file at a path of a tree.
    fn stat_in(&self, tree: Tree, path: &[u8]) -> io::Result<Option<Found>> {
        match tree {
            Tree::Next => self.stat(path),
            Tree::Snapshot(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether a file can get a further name. Files in snapshots cannot.
    fn can_be_linked(&self, _node: &Node) -> bool {
        true
    }

    /// The present metadata of a file.
    fn metadata(&self, node: &Node) -> io::Result<Metadata>;

    /// The files in a directory, with their names.
    fn list(&self, directory: &Node) -> io::Result<Vec<(Vec<u8>, Found)>>;

    /// The target of a symbolic link.
    fn read_link(&self, node: &Node) -> io::Result<Vec<u8>>;

    /// All extended attributes, including those that hold ACLs.
    fn xattrs(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>>;

    /// Reads the present content of a file.
    fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Whether [`Target::read_old`] reads the present content of the file.
    fn is_old(&self, node: &Node) -> bool;

    /// Reads a file of `size` bytes as it was before this transfer, and fills the whole buffer.
    fn read_old(&self, file: (&Node, u64), offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Creates a file of any kind. The path must be free.
    fn create(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<Found>;

    /// Creates a file with its content and attributes. For staged targets only.
    fn create_file(&self, _path: &[u8], _new: &NewFile<'_>) -> io::Result<Found> {
        Err(Errno::NOSYS.into())
    }

    /// Creates a file of any kind under a temporary name, in the directory of its final path or in another one. There
    /// is one such file at a time. This is for targets only that are not staged, like [`Target::publish`],
    /// [`Target::link_over`] and [`Target::copy_over`].
    fn create_temporary(
        &self,
        _path: &[u8],
        _directory: Option<&[u8]>,
        _kind: NewKind<'_>,
        _permissions: u32,
    ) -> io::Result<Found> {
        Err(Errno::NOSYS.into())
    }

    /// Renames a temporary file to its final path in one step, and replaces the present file. With `sync`, the content
    /// is on disk before.
    fn publish(&self, _made: &Node, _path: &[u8], _sync: bool) -> io::Result<Node> {
        Err(Errno::NOSYS.into())
    }

    /// Gives a file a further name in one step, and replaces the present file.
    fn link_over(&self, _node: &Node, _path: &[u8]) -> io::Result<()> {
        Err(Errno::NOSYS.into())
    }

    /// Copies a file with its attributes to another path. The copy appears there in one step when it is complete. It
    /// has no ACLs, like the backups of stock rsync.
    fn copy_over(&self, _node: &Node, _path: &[u8]) -> io::Result<Node> {
        Err(Errno::NOSYS.into())
    }

    /// Reserves space for the content of a file, where that is possible.
    fn preallocate(&self, _node: &Node, _size: u64) -> io::Result<()> {
        Ok(())
    }

    /// Writes to a file.
    fn write(&self, node: &Node, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Sets the size of a file.
    fn truncate(&self, node: &Node, size: u64) -> io::Result<()>;

    /// Restores the previous content of a file, if it is still known.
    fn restore(&self, node: &Node) -> io::Result<()>;

    /// Changes attributes.
    fn set_attributes(&self, node: &Node, set: &SetAttributes) -> io::Result<()>;

    /// Sets or removes an extended attribute.
    fn set_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> io::Result<()>;

    /// Gives a file a further name. The path must be free.
    fn link(&self, node: &Node, path: &[u8]) -> io::Result<()>;

    /// Renames a file, and replaces the present one.
    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a name. A directory must be empty.
    fn remove(&self, path: &[u8], is_dir: bool) -> io::Result<()>;

    /// The permissions that a new file in a directory can have, if the client does not set them.
    fn new_mask(&self, _directory: &[u8]) -> u32 {
        NEW_MASK
    }

    /// Whether files can get any owner and group, and devices can be created.
    fn is_privileged(&self) -> bool {
        true
    }

    /// Whether files can have this extended attribute. Others are skipped, as rsync does when it is not root.
    fn takes_xattr(&self, _name: &[u8]) -> bool {
        true
    }

    /// Whether files can get this group.
    fn can_give_to(&self, _gid: u32) -> bool {
        true
    }
}
