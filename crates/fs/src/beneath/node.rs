//! Single files: opened only if they are what they are expected to be.

use super::{Mounts, open};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Opens the file `name` in `directory` as `access` says, if it is a regular one. Device nodes, fifos and sockets are never
/// opened, not even for a moment: the descriptor that is looked at names the inode only.
///
/// # Errors
/// As `open`; [`io::ErrorKind::Unsupported`] for what is no regular file.
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
        // Without /proc: by its name, and it has to be the same.
        Err(Errno::NOENT) => {
            let opened = open(directory, name, access | OFlags::NONBLOCK, Mounts::Refuse)?;
            check_unchanged(&rustix::fs::fstat(node)?, &rustix::fs::fstat(&opened)?)?;
            Ok(opened)
        }
        opened => Ok(opened?),
    }
}

/// A descriptor of the node `name` in `directory`, whatever it is, for changing its attributes. Nothing is followed or opened.
///
/// # Errors
/// As `open`.
pub(crate) fn open_node(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    open(directory, name, OFlags::PATH, Mounts::Cross)
}

/// Changes the mode of what a descriptor of any kind is of.
///
/// # Errors
/// What the kernel says; symbolic links have no mode.
pub(crate) fn change_mode(node: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<()> {
    match rustix::fs::fchmod(node, mode) {
        // Of a descriptor that only names the inode.
        Err(Errno::BADF) => rustix::fs::chmod(path_of_descriptor(node), mode),
        done => done,
    }
}

/// A path that leads to what a descriptor is of, whatever has happened to its name.
pub(crate) fn path_of_descriptor(node: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Checks that two descriptors are of one inode.
///
/// # Errors
/// When it was replaced meanwhile.
pub(crate) fn check_unchanged(before: &Stat, now: &Stat) -> io::Result<()> {
    match (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino) {
        true => Ok(()),
        false => Err(io::Error::other("it was replaced by something else meanwhile")),
    }
}

/// A kind of file, for people.
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

/// What is at a path that the user has named: `None` if there is nothing. Symbolic links are followed, unless root works and a
/// link is another user's, who could change it at any moment.
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

/// As [`open_regular`] for what [`open_named`] has found.
pub(super) fn open_again(node: BorrowedFd<'_>, access: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path_of_descriptor(node), access | OFlags::CLOEXEC, Mode::empty())?)
}
