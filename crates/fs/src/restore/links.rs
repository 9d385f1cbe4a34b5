//! Hard links: the objects that were already restored, and their places.

use super::Existing;
use super::target::{Identity, Target};
use crate::walk::Node;
use rustix::fs::{AtFlags, IFlags, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

struct Restored {
    /// Names of the directories from the target to the file.
    way: Vec<Vec<u8>>,
    name: Vec<u8>,
    identity: Identity,
    /// Number of names that are not restored yet.
    left: u64,
}

/// Objects with more than one name. An object is kept from its first restored name to its last.
#[derive(Default)]
pub(super) struct Links {
    restored: HashMap<u64, Restored>,
}

impl Links {
    /// Notes that `node` was restored as `name` in the current directory.
    pub(super) fn remember(&mut self, target: &mut Target, node: &Node, name: &[u8]) -> io::Result<()> {
        let stat = rustix::fs::statat(target.here()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let restored = Restored {
            way: target.way(),
            name: name.to_vec(),
            identity: stat.into(),
            left: node.attributes.links - 1,
        };
        self.restored.insert(node.object, restored);
        Ok(())
    }

    /// Creates `name` in the current directory as a link to the restored `object`. `None` if it was not restored yet.
    pub(super) fn link(
        &mut self,
        target: &mut Target,
        object: u64,
        name: &[u8],
        existing: Existing,
    ) -> Option<io::Result<()>> {
        let restored = self.restored.get_mut(&object)?;
        restored.left = restored.left.saturating_sub(1);
        let result = link(target, restored, name, existing);
        if restored.left == 0 {
            self.restored.remove(&object);
        }
        Some(result)
    }
}

fn link(target: &mut Target, restored: &Restored, name: &[u8], existing: Existing) -> io::Result<()> {
    let directory = target.find(&restored.way)?;
    let unlocked = match make(target, restored, &directory, name, existing) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            unlock(&directory, &restored.name)?
        }
        other => return other,
    };
    let Some((file, flags)) = unlocked else { return Err(Errno::PERM.into()) };
    let made = make(target, restored, &directory, name, existing);
    rustix::fs::ioctl_setflags(&file, flags)?;
    made
}

/// Clears the flags that forbid further names. Returns the file and its flags if any were set.
fn unlock(directory: &OwnedFd, name: &[u8]) -> io::Result<Option<(OwnedFd, IFlags)>> {
    let file = crate::beneath::open_regular(directory.as_fd(), name, OFlags::RDONLY)?;
    let flags = rustix::fs::ioctl_getflags(&file)?;
    let locks = IFlags::IMMUTABLE | IFlags::APPEND;
    if !flags.intersects(locks) {
        return Ok(None);
    }
    rustix::fs::ioctl_setflags(&file, flags - locks)?;
    Ok(Some((file, flags)))
}

fn make(
    target: &mut Target,
    restored: &Restored,
    directory: &OwnedFd,
    name: &[u8],
    existing: Existing,
) -> io::Result<()> {
    let temporary = target.temporary_name();
    let here = target.here()?;
    rustix::fs::linkat(directory, restored.name.as_slice(), here, temporary.as_slice(), AtFlags::empty())?;
    let linked = rustix::fs::statat(here, temporary.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
    if Identity::from(linked) != restored.identity {
        rustix::fs::unlinkat(here, temporary.as_slice(), AtFlags::empty())?;
        return Err(io::Error::other("its first name is now another file"));
    }
    target.publish(&temporary, name, existing)?;
    // Renaming one name of an inode to another name of the same inode does nothing and leaves both.
    let _ = rustix::fs::unlinkat(target.here()?, temporary.as_slice(), AtFlags::empty());
    Ok(())
}
