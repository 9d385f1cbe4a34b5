//! The synced directory as a tree of paths.
//!
//! Every path is followed name by name from the open top, never through a symbolic link or into another mount. If the
//! mode of a directory forbids a necessary change, it is made accessible. The caller sets its attributes afterwards.

use crate::beneath::{Directory, open_directory};
use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A path as a list of names from the top.
pub(super) type Path = Vec<Vec<u8>>;

/// The names of a path that `Names` has returned.
pub(super) fn split(path: &[u8]) -> Path {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Formats a path for messages.
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

    /// Opens a directory in order to add or remove names.
    pub(super) fn writable(&self, path: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let directory = self.directory(path)?;
        let stat = rustix::fs::fstat(&directory)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if !mode.contains(Mode::RWXU) && !rustix::process::geteuid().is_root() {
            rustix::fs::fchmod(&directory, mode | Mode::RWXU)?;
        }
        Ok(directory)
    }

    /// The `lstat` data of a name, or `None` if it does not exist.
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

/// Whether the error means that a path does not exist.
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
