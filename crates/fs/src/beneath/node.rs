//! Opening single files after a check of their type.

use super::{Mounts, open};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Opens the file `name` in `directory` with `access`, if it is a regular file. Device nodes, fifos and sockets are
/// never opened, because the type is checked on an `O_PATH` descriptor.
///
/// # Errors
/// Like `open`, and [`io::ErrorKind::Unsupported`] if it is not a regular file.
pub(crate) fn open_regular(directory: BorrowedFd<'_>, name: &[u8], access: OFlags) -> io::Result<OwnedFd> {
    let node = open(directory, name, OFlags::PATH, Mounts::Refuse)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode);
    if kind != FileType::RegularFile {
        let what = format!("it is {}, not a regular file", called(kind));
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    reopen(directory, name, node.as_fd(), access)
}

/// Opens the inode of `node`, which is `name` in `directory`, for reading or writing.
fn reopen(
    directory: BorrowedFd<'_>,
    name: &[u8],
    node: BorrowedFd<'_>,
    access: OFlags,
) -> io::Result<OwnedFd> {
    match rustix::fs::open(path_of_descriptor(node), access | OFlags::CLOEXEC, Mode::empty()) {
        // Without /proc, the file is opened by its name. It must still be the same inode.
        Err(Errno::NOENT) => {
            let opened = open(directory, name, access | OFlags::NONBLOCK, Mounts::Refuse)?;
            check_unchanged(&rustix::fs::fstat(node)?, &rustix::fs::fstat(&opened)?)?;
            Ok(opened)
        }
        opened => Ok(opened?),
    }
}

/// A descriptor of the node `name` in `directory`, of any type, for changing its attributes. Symbolic links are not
/// followed, and devices are not opened.
///
/// # Errors
/// Like `open`.
pub(crate) fn open_node(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    open(directory, name, OFlags::PATH, Mounts::Cross)
}

/// Changes the mode of the node of a descriptor.
///
/// # Errors
/// The kernel's error. Symbolic links have no mode.
pub(crate) fn change_mode(node: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<()> {
    match rustix::fs::fchmod(node, mode) {
        // The descriptor is an `O_PATH` one.
        Err(Errno::BADF) => rustix::fs::chmod(path_of_descriptor(node), mode),
        done => done,
    }
}

/// A path to the node of a descriptor, which stays valid if the node is renamed.
pub(crate) fn path_of_descriptor(node: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Checks that two descriptors refer to the same inode.
///
/// # Errors
/// If the inode was replaced.
pub(crate) fn check_unchanged(before: &Stat, now: &Stat) -> io::Result<()> {
    match (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino) {
        true => Ok(()),
        false => Err(io::Error::other("it was replaced in the meantime")),
    }
}

/// The name of a file type, for messages.
fn called(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a fifo",
        FileType::Socket => "a socket",
        _ => "of an unknown kind",
    }
}

/// Opens the node at a path that the user has named. `None` if it does not exist. Symbolic links are followed. As an
/// exception, root does not follow a link of another user, who could change it at any time.
pub(super) fn open_named(path: &std::path::Path) -> io::Result<Option<OwnedFd>> {
    match snowmelt_store::open_named(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink())
            {
                true => Err(io::Error::new(io::ErrorKind::NotFound, "it is a link that leads nowhere")),
                false => Ok(None),
            }
        }
        found => found.map(Some),
    }
}

/// Opens a node that [`open_named`] has returned.
pub(super) fn open_again(node: BorrowedFd<'_>, access: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path_of_descriptor(node), access | OFlags::CLOEXEC, Mode::empty())?)
}
