//! Access to files below a directory through open descriptors, never by a full path.
//!
//! A directory that others can write to may change at any time. A file that was checked may be a symbolic link when it
//! is opened. So nothing below such a directory is accessed by its path. Each name is looked up in a directory that is
//! held open. A symbolic link is an error. The type of a file is checked on its descriptor.
//!
//! `openat2` (Linux 5.6) makes the kernel enforce this. If `openat2` is missing, or forbidden by a sandbox, names are
//! opened one by one with `O_NOFOLLOW`, and the mounts of the descriptors are compared.

mod directory;
mod node;
mod remove;

pub(crate) use directory::names;
pub use directory::{Directory, Place};
pub(crate) use node::{change_mode, check_unchanged, open_node, open_regular, path_of_descriptor};
pub(crate) use remove::{open_directory, open_up, remove_all, remove_one, unlock, unlocked};

use crate::paths::is_safe_name;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Whether a path may enter another mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// Mount points are entered.
    Cross,
    /// A mount point is an error of kind [`io::ErrorKind::CrossesDevices`].
    Refuse,
}

/// Flags for opening directories for reading.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Opens `path` relative to `at`. `path` consists of names joined by slashes. None of the names may be ".." or a
/// symbolic link. With `O_PATH`, the last one may be a link, which is opened itself.
///
/// # Errors
/// Like `open`, and [`io::ErrorKind::CrossesDevices`] for a mount point that must not be entered.
pub(crate) fn open(at: BorrowedFd<'_>, path: &[u8], flags: OFlags, mounts: Mounts) -> io::Result<OwnedFd> {
    open_or_create(at, path, flags, Mode::empty(), mounts)
}

/// Like [`open`], with the mode of a file created by `O_CREAT`.
pub(crate) fn open_or_create(
    at: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    mounts: Mounts,
) -> io::Result<OwnedFd> {
    if !path.split(|byte| *byte == b'/').all(is_safe_name) {
        return Err(Errno::INVAL.into());
    }
    match has_openat2() {
        true => open_at_once(at, path, flags, mode, mounts),
        false => open_by_steps(at, path, flags, mode, mounts),
    }
}

/// The `lstat` data of a path below `at`.
///
/// # Errors
/// Like [`open`].
pub(crate) fn stat(at: BorrowedFd<'_>, path: &[u8], mounts: Mounts) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(open(at, path, OFlags::PATH, mounts)?)?)
}

fn open_at_once(
    at: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    mounts: Mounts,
) -> io::Result<OwnedFd> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::NO_XDEV, mounts == Mounts::Refuse);
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(at, path, flags, mode, resolve) {
        Err(Errno::XDEV) => Err(is_mounted()),
        opened => Ok(opened?),
    }
}

fn open_by_steps(
    at: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    mounts: Mounts,
) -> io::Result<OwnedFd> {
    let mut above: Option<OwnedFd> = None;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        let is_last = names.peek().is_none();
        let how = if is_last { flags } else { OFlags::PATH | OFlags::DIRECTORY };
        let mode = if is_last { mode } else { Mode::empty() };
        let from = above.as_ref().map_or(at, AsFd::as_fd);
        let opened = rustix::fs::openat(from, name, how | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?;
        if mounts == Mounts::Refuse && mount_of(opened.as_fd())? != mount_of(from)? {
            return Err(is_mounted());
        }
        above = Some(opened);
    }
    above.ok_or_else(|| Errno::INVAL.into())
}

fn is_mounted() -> io::Error {
    io::Error::new(io::ErrorKind::CrossesDevices, "something else is mounted there")
}

/// Whether `openat2` is available. An old kernel or a sandbox may not allow it.
fn has_openat2() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tried = rustix::fs::openat2(CWD, "/", how, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
        !matches!(tried, Err(Errno::NOSYS | Errno::PERM))
    })
}

/// Identifies the mount of a file: by the kernel's mount ID, or by the device if `/proc` does not show the ID.
fn mount_of(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap_or_default();
    let number = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    match number {
        Some(number) => Ok((number, 0)),
        #[allow(clippy::unnecessary_cast)]
        None => Ok((0, rustix::fs::statat(file, "", AtFlags::EMPTY_PATH)?.st_dev as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn both(
        at: &OwnedFd,
        path: &str,
        flags: OFlags,
        mounts: Mounts,
    ) -> [Result<OwnedFd, Option<io::ErrorKind>>; 2] {
        let (at, path, mode) = (at.as_fd(), path.as_bytes(), Mode::empty());
        let kind = |error: io::Error| Some(error.kind());
        [
            open_at_once(at, path, flags, mode, mounts).map_err(kind),
            open_by_steps(at, path, flags, mode, mounts).map_err(kind),
        ]
    }

    fn top(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn neither_way_of_opening_follows_a_link() {
        let scratch = tempfile::tempdir().unwrap();
        let inside = scratch.path().join("inside");
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::write(inside.join("a/b/file"), "mine").unwrap();
        fs::create_dir(scratch.path().join("outside")).unwrap();
        fs::write(scratch.path().join("outside/file"), "secret").unwrap();
        symlink("../outside", inside.join("way")).unwrap();
        symlink("../outside/file", inside.join("link")).unwrap();
        let top = top(&inside);
        for path in ["way/file", "link"] {
            for opened in both(&top, path, OFlags::RDONLY, Mounts::Cross) {
                assert!(opened.is_err(), "{path}");
            }
        }
        for opened in both(&top, "a/b/file", OFlags::RDONLY, Mounts::Refuse) {
            opened.unwrap();
        }
        // Opens the link itself, not its target.
        for opened in both(&top, "link", OFlags::PATH, Mounts::Refuse) {
            let mode = rustix::fs::fstat(opened.unwrap()).unwrap().st_mode;
            assert!(rustix::fs::FileType::from_raw_mode(mode).is_symlink());
        }
    }

    #[test]
    fn names_that_lead_up_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        let top = top(&scratch.path().join("a"));
        for path in ["..", "b/..", "b/../..", "/etc", "", "b//b", "."] {
            let opened = open(top.as_fd(), path.as_bytes(), OFlags::PATH, Mounts::Cross);
            assert_eq!(opened.unwrap_err().raw_os_error(), Some(Errno::INVAL.raw_os_error()), "{path}");
        }
    }

    #[test]
    fn neither_way_of_opening_enters_a_mount_unless_asked() {
        // /proc is mounted on every Linux machine that runs tests.
        let top = top(std::path::Path::new("/"));
        for opened in both(&top, "proc", DIRECTORY, Mounts::Refuse) {
            assert_eq!(opened.unwrap_err(), Some(io::ErrorKind::CrossesDevices));
        }
        for opened in both(&top, "proc/self/fd", DIRECTORY, Mounts::Cross) {
            // "self" is a link.
            assert!(opened.is_err());
        }
        for opened in both(&top, "proc/1", DIRECTORY, Mounts::Cross) {
            opened.unwrap();
        }
    }
}
