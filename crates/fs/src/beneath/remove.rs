//! Changing and removing files and directories whose modes and inode flags forbid it.

use super::{DIRECTORY, Mounts, change_mode, names, open_node, open_regular};
use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum depth of a directory that is removed with its content. Real trees are less deep.
const DEPTH_MAX: usize = 4096;

/// Opens a directory in another one. If its mode forbids that, it is made accessible first.
pub(crate) fn open_directory(above: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let open = || super::open(above, name, DIRECTORY, Mounts::Refuse);
    match open() {
        Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => {
            open_up(above, name)?;
            open()
        }
        opened => opened,
    }
}

/// Gives the owner all permissions on a directory or file.
pub(crate) fn open_up(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let node = open_node(directory, name)?;
    let stat = rustix::fs::fstat(&node)?;
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::RegularFile) {
        return Err(Errno::ACCESS.into());
    }
    Ok(change_mode(node.as_fd(), Mode::from_raw_mode(stat.st_mode) | Mode::RWXU)?)
}

/// Does `work`, which changes `name` in a directory. If inode flags forbid that, they are cleared first.
pub(crate) fn unlocked<T>(
    directory: BorrowedFd<'_>,
    name: &[u8],
    mut work: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    match work() {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    unlock(directory)?;
    // Only files and directories have such flags.
    let file = open_regular(directory, name, OFlags::RDONLY);
    let file = file.or_else(|_| super::open(directory, name, DIRECTORY, Mounts::Refuse));
    if let Ok(file) = file {
        unlock(file.as_fd())?;
    }
    Ok(work()?)
}

/// Clears the inode flags that forbid changes.
pub(crate) fn unlock(file: BorrowedFd<'_>) -> io::Result<()> {
    // If the filesystem has no such flags, nothing needs to be cleared.
    let Ok(flags) = rustix::fs::ioctl_getflags(file) else { return Ok(()) };
    let locks = IFlags::IMMUTABLE | IFlags::APPEND;
    if flags.intersects(locks) {
        rustix::fs::ioctl_setflags(file, flags - locks)?;
    }
    Ok(())
}

/// Removes a name of any type, with its whole content.
pub(crate) fn remove_all(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    remove_below(directory, name, DEPTH_MAX)
}

fn remove_below(directory: BorrowedFd<'_>, name: &[u8], depth: usize) -> io::Result<()> {
    match remove_one(directory, name, false) {
        Err(error)
            if [Errno::ISDIR, Errno::PERM]
                .iter()
                .any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) => {}
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(()),
        done => return done,
    }
    let Some(depth) = depth.checked_sub(1) else { return Err(Errno::NAMETOOLONG.into()) };
    let opened = open_directory(directory, name)?;
    if rustix::fs::fstat(&opened)?.st_dev != rustix::fs::fstat(directory)?.st_dev {
        // A subvolume is a separate filesystem even though it is not a mount.
        return Err(Errno::XDEV.into());
    }
    let below = names(opened.as_fd())?;
    if !below.is_empty() && !rustix::process::geteuid().is_root() {
        let stat = rustix::fs::fstat(&opened)?;
        change_mode(opened.as_fd(), Mode::from_raw_mode(stat.st_mode) | Mode::RWXU)?;
    }
    for name in below {
        remove_below(opened.as_fd(), &name, depth)?;
    }
    drop(opened);
    remove_one(directory, name, true)
}

/// Removes a file, or an empty directory.
pub(crate) fn remove_one(directory: BorrowedFd<'_>, name: &[u8], is_directory: bool) -> io::Result<()> {
    let how = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    unlocked(directory, name, || rustix::fs::unlinkat(directory, name, how))
}
