//! What is received into: one trait, for datasets and for directories of this machine.
//!
//! The receiver knows no more of its target than [`Target`] says. Paths are those of a tree: names joined by slashes, the root
//! being "", without "." and "..". Symbolic links in them are never followed; where an option wants that, the receiver reads the
//! links itself ([`Ways`]) and asks for the path that they lead to.
//!
//! There are two kinds of targets, and the receiver writes files into each in its own way ([`Target::is_staged`]):
//!
//! - A **dataset** is staged: nobody sees what is written until all is there, in one moment. So files are written where they
//!   belong.
//! - A **directory** is seen by everybody all the time. So a file is written under a temporary name beside the one that it
//!   replaces, gets its attributes there, and is renamed when its content is right.

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

/// Permissions of what is new where the client's do not count: those of an umask of 022.
const NEW_MASK: u32 = 0o755;

/// What was found at a path, so that it can be reached again. Two are equal if they are one file, whatever their paths.
#[derive(Debug, Clone)]
pub struct Node {
    /// The filesystem, and the file's number in it.
    id: (u64, u64),
    /// Where it was found, for targets that find it by that.
    way: Option<Arc<[u8]>>,
}

impl Node {
    /// Where it was found, of targets that find it by that.
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

/// What is at a path.
#[derive(Debug, Clone)]
pub struct Found {
    /// Which file it is.
    pub node: Node,
    /// What it is.
    pub metadata: Metadata,
}

impl Found {
    /// Permissions, with setuid, setgid and sticky.
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

/// A tree that is looked into. Files of snapshots, as they are found there, can be read and not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// The one that is written.
    Next,
    /// A snapshot, by the order in which they were opened.
    Snapshot(u16),
}

/// Something that is received into.
///
/// Every function fails with what the kernel says, or would say: a dataset has Linux's numbers for its errors.
#[allow(clippy::missing_errors_doc)]
pub trait Target: Send + Sync {
    /// Whether nothing of what is written is seen before [`Target::finish`].
    fn is_staged(&self) -> bool;

    /// Makes what came visible, and waits until that is durable. After a whole transfer, snapshots of older ones go, but for
    /// `keep` of them. `false`: nothing was received.
    fn finish(self: Box<Self>, moment: Moment, keep: Option<usize>) -> Result<bool, TargetError>;

    /// The links that were followed.
    fn ways(&self) -> &Ways;

    /// How many names lead from the root of this machine to the target's, where links lead where they lead: then
    /// paths may begin with "..". `None` where links end at the target's root.
    fn depth_for_links(&self) -> Option<usize> {
        None
    }

    /// What is at a path; `None` if nothing is.
    fn stat(&self, path: &[u8]) -> io::Result<Option<Found>>;

    /// A snapshot of what is received into, by its name.
    fn snapshot(&self, _short: &str) -> io::Result<Tree> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// What is at a path of a tree.
    fn stat_in(&self, tree: Tree, path: &[u8]) -> io::Result<Option<Found>> {
        match tree {
            Tree::Next => self.stat(path),
            Tree::Snapshot(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether a file can get another name. Those of snapshots cannot.
    fn can_be_linked(&self, _node: &Node) -> bool {
        true
    }

    /// What a file is now.
    fn metadata(&self, node: &Node) -> io::Result<Metadata>;

    /// What is in a directory.
    fn list(&self, directory: &Node) -> io::Result<Vec<(Vec<u8>, Found)>>;

    /// The target of a symbolic link.
    fn read_link(&self, node: &Node) -> io::Result<Vec<u8>>;

    /// All extended attributes, those that hold ACLs among them.
    fn xattrs(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>>;

    /// Reads a file as it is now.
    fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Whether [`Target::read_old`] reads what the file holds at this moment.
    fn is_old(&self, node: &Node) -> bool;

    /// Reads a file of `size` bytes as it was before this transfer; all of the buffer.
    fn read_old(&self, file: (&Node, u64), offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Makes something under a name that nothing has.
    fn create(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<Found>;

    /// Makes a file with all that it is to hold and to be. Of staged targets only.
    fn create_file(&self, _path: &[u8], _new: &NewFile<'_>) -> io::Result<Found> {
        Err(Errno::NOSYS.into())
    }

    /// Makes something under a temporary name, in the directory of what it is to become or in another one. There is one such name
    /// at a time. Of targets only that are not staged, as are [`Target::publish`], [`Target::link_over`] and
    /// [`Target::copy_over`].
    fn create_temporary(
        &self,
        _path: &[u8],
        _directory: Option<&[u8]>,
        _kind: NewKind<'_>,
        _permissions: u32,
    ) -> io::Result<Found> {
        Err(Errno::NOSYS.into())
    }

    /// Gives what has a temporary name its own, in one moment; what had that is gone. With `sync`, a file's content is on disk
    /// before.
    fn publish(&self, _made: &Node, _path: &[u8], _sync: bool) -> io::Result<Node> {
        Err(Errno::NOSYS.into())
    }

    /// Gives a file another name in one moment; what had that is gone.
    fn link_over(&self, _node: &Node, _path: &[u8]) -> io::Result<()> {
        Err(Errno::NOSYS.into())
    }

    /// Copies a file with its attributes to another name, which it gets in one moment when it is whole. It has no
    /// ACLs there, as the backups of stock rsync have none.
    fn copy_over(&self, _node: &Node, _path: &[u8]) -> io::Result<Node> {
        Err(Errno::NOSYS.into())
    }

    /// Reserves room for a file's content, where that can be.
    fn preallocate(&self, _node: &Node, _size: u64) -> io::Result<()> {
        Ok(())
    }

    /// Writes to a file.
    fn write(&self, node: &Node, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Sets a file's size.
    fn truncate(&self, node: &Node, size: u64) -> io::Result<()>;

    /// Makes a file hold again what it held before, where that is still known.
    fn restore(&self, node: &Node) -> io::Result<()>;

    /// Changes attributes.
    fn set_attributes(&self, node: &Node, set: &SetAttributes) -> io::Result<()>;

    /// Sets or removes an extended attribute.
    fn set_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> io::Result<()>;

    /// Gives a file another name, which nothing has.
    fn link(&self, node: &Node, path: &[u8]) -> io::Result<()>;

    /// Gives what is at a path another name; what had that loses it.
    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a name; a directory's only if that is empty.
    fn remove(&self, path: &[u8], is_dir: bool) -> io::Result<()>;

    /// Permissions that something new can have in a directory where the client does not say which.
    fn new_mask(&self, _directory: &[u8]) -> u32 {
        NEW_MASK
    }

    /// Whether files can be given to any user and group, and devices be made.
    fn is_privileged(&self) -> bool {
        true
    }

    /// Whether files can have this extended attribute. Others are passed over, as rsync does where it is not root.
    fn takes_xattr(&self, _name: &[u8]) -> bool {
        true
    }

    /// Whether files can be given to a group.
    fn can_give_to(&self, _gid: u32) -> bool {
        true
    }
}
