//! The directory being kept in sync, as a tree of paths.
//!
//! Every path is walked name by name from the open top, never through a symbolic link or into another mount. Directories that forbid what has to
//! be done are opened up; whoever changes them gives them their attributes afterwards.

use crate::beneath::{self, DIRECTORY, Directory, Mounts};
use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Names from the top.
pub(super) type Path = Vec<Vec<u8>>;

/// Directories deep that are removed with what is in them; no real tree is deeper.
const DEPTH_MAX: usize = 4096;

/// The names of a path as `Names` tells it.
pub(super) fn split(path: &[u8]) -> Path {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// A path for people.
pub(super) fn shown(path: &[Vec<u8>], name: &[u8]) -> Vec<u8> {
    let mut all: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
    all.extend((!name.is_empty()).then_some(name));
    match all.is_empty() {
        true => b".".to_vec(),
        false => all.join(&b'/'),
    }
}

pub(super) struct Tree {
    top: Directory,
}

impl Tree {
    pub(super) fn new(top: Directory) -> Self {
        Self { top }
    }

    pub(super) fn top(&self) -> &Directory {
        &self.top
    }

    /// Opens a directory.
    pub(super) fn directory(&self, path: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let mut directory = self.top.as_fd().try_clone_to_owned()?;
        for name in path {
            directory = open_directory(directory.as_fd(), name)?;
        }
        Ok(directory)
    }

    /// Opens a directory in which names are to come and go.
    pub(super) fn writable(&self, path: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let directory = self.directory(path)?;
        let stat = rustix::fs::fstat(&directory)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if !mode.contains(Mode::RWXU) && !rustix::process::geteuid().is_root() {
            rustix::fs::fchmod(&directory, mode | Mode::RWXU)?;
        }
        Ok(directory)
    }

    /// What is at a name, if anything is.
    pub(super) fn stat(&self, path: &[Vec<u8>], name: &[u8]) -> io::Result<Option<Stat>> {
        match self.directory(path) {
            Ok(directory) => stat_at(directory.as_fd(), name),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.top)?)
    }
}

/// Whether a path leads nowhere.
pub(super) fn is_missing(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

pub(super) fn stat_at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory in another, which is opened up if need be.
fn open_directory(above: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let open = || beneath::open(above, name, DIRECTORY, Mounts::Refuse);
    match open() {
        Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => {
            open_up(above, name)?;
            open()
        }
        opened => opened,
    }
}

/// Lets the owner do everything with a directory or file.
pub(crate) fn open_up(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let node = beneath::open_node(directory, name)?;
    let stat = rustix::fs::fstat(&node)?;
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::RegularFile) {
        return Err(Errno::ACCESS.into());
    }
    Ok(beneath::change_mode(node.as_fd(), Mode::from_raw_mode(stat.st_mode) | Mode::RWXU)?)
}

/// Does `work`, which changes `name` in a directory; where the inode flags of either forbid that, these are taken away first.
pub(super) fn unlocked<T>(
    directory: BorrowedFd<'_>,
    name: &[u8],
    mut work: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    match work() {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    unlock(directory)?;
    // Nothing else has such flags.
    let file = beneath::open_regular(directory, name, OFlags::RDONLY);
    let file = file.or_else(|_| beneath::open(directory, name, DIRECTORY, Mounts::Refuse));
    if let Ok(file) = file {
        unlock(file.as_fd())?;
    }
    Ok(work()?)
}

/// Takes away the inode flags that forbid changes.
pub(crate) fn unlock(file: BorrowedFd<'_>) -> io::Result<()> {
    // Where there are no such flags none are in the way.
    let Ok(flags) = rustix::fs::ioctl_getflags(file) else { return Ok(()) };
    let locks = IFlags::IMMUTABLE | IFlags::APPEND;
    if flags.intersects(locks) {
        rustix::fs::ioctl_setflags(file, flags - locks)?;
    }
    Ok(())
}

/// Removes whatever is called so, with all that is in it.
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
        // A subvolume, which is a filesystem of its own though nothing is mounted.
        return Err(Errno::XDEV.into());
    }
    let below = beneath::names(opened.as_fd())?;
    if !below.is_empty() && !rustix::process::geteuid().is_root() {
        let stat = rustix::fs::fstat(&opened)?;
        beneath::change_mode(opened.as_fd(), Mode::from_raw_mode(stat.st_mode) | Mode::RWXU)?;
    }
    for name in below {
        remove_below(opened.as_fd(), &name, depth)?;
    }
    drop(opened);
    remove_one(directory, name, true)
}

/// Removes a file, or an empty directory.
pub(super) fn remove_one(directory: BorrowedFd<'_>, name: &[u8], is_directory: bool) -> io::Result<()> {
    let how = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    unlocked(directory, name, || rustix::fs::unlinkat(directory, name, how))
}
