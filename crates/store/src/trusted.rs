//! Opening the files of a pool where another user can change names.
//!
//! The path of a pool may contain symbolic links, but only those of a user that this process trusts: root, its own
//! user, and the users that the administrator named. Below the directory of a pool, no link is followed. A file there
//! is used only if it is a regular file of the pool's owner, of root or of the user of this process. So the user that
//! owns a pool cannot make a process of another user read or write other files than those of the pool. The rules:
//! `docs/format/store.md`, "Who may own a pool".

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir as Listing, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::error::{At, TRUST_VARIABLE};
use crate::{Pending, Result, StoreError};

/// Maximum number of symbolic links in the path of a pool, as in Linux (path_resolution(7)).
const LINKS_MAX: usize = 40;
/// Flags for directories on the way to a file.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags for files. Opening a file must neither block nor have side effects.
const QUIET: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Whether this process trusts `uid`: root, its own user, and the users in [`TRUST_VARIABLE`].
pub(crate) fn is_trusted(uid: u32) -> bool {
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return true;
    }
    let named = std::env::var(TRUST_VARIABLE).unwrap_or_default();
    named.split(',').any(|word| word.trim().parse() == Ok(uid))
}

/// The user that owns the file, directory or device at a path. `None` when nothing is there, or when the path
/// contains an untrusted user's link.
pub(crate) fn owner(path: &Path) -> Option<u32> {
    let place = Place::find(path).ok()?;
    let found = rustix::fs::statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW);
    found.ok().map(|found| found.st_uid)
}

/// The same as [`owner`]; also `None` if there is no answer within [`QUIET`](crate::QUIET).
pub(crate) fn owner_soon(path: &Path) -> Option<u32> {
    let path = path.to_owned();
    Pending::ask(move || owner(&path)).within(crate::QUIET).flatten()
}

/// Whether a trusted user owns what is at a path. If so, files outside the pool that a pool there names may be
/// opened.
#[must_use]
pub fn is_own(path: &Path) -> bool {
    owner(path).is_some_and(is_trusted)
}

/// Checks that the existing part of a path, in which directories will be made, has no untrusted user's link.
///
/// # Errors
/// `Link`, `Io`.
pub fn check_way(path: &Path) -> Result<()> {
    for above in path.ancestors() {
        match Place::find(above) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other.map(drop),
        }
    }
    Ok(())
}

/// Opens a descriptor for what is at a path (`O_PATH`). It stays valid when the path is changed later. As root, links
/// of users that are not trusted are not followed. As another user, all links are followed as usual.
///
/// # Errors
/// The errors of `open`; [`io::ErrorKind::PermissionDenied`] for such a link.
pub fn open_named(path: &Path) -> io::Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::CLOEXEC;
    if !rustix::process::geteuid().is_root() {
        return Ok(rustix::fs::open(path, how, Mode::empty())?);
    }
    let place = Place::find(path).map_err(|error| match error {
        StoreError::Io { source, .. } => source,
        link => io::Error::new(io::ErrorKind::PermissionDenied, link.to_string()),
    })?;
    Ok(rustix::fs::openat(&place.parent, &place.name, how | OFlags::NOFOLLOW, Mode::empty())?)
}

/// As root, refuses the pool of another user, who could change it at the same time.
fn check_owner(path: &Path, uid: u32) -> Result<()> {
    if !rustix::process::geteuid().is_root() || is_trusted(uid) {
        return Ok(());
    }
    Err(StoreError::OtherUser { path: path.to_owned(), uid })
}

/// A name in a directory that was reached without following an untrusted user's link.
#[derive(Debug)]
pub(crate) struct Place {
    parent: OwnedFd,
    name: OsString,
    /// Absolute, without symbolic links.
    path: PathBuf,
}

impl Place {
    /// Follows `path` to the directory that contains its last name. The last name need not exist.
    ///
    /// # Errors
    /// `Link` when the path contains a symbolic link of another user; `Io`.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        let absolute = std::path::absolute(path).at("find", path)?;
        let mut rest: VecDeque<OsString> = names(&absolute);
        let root = rustix::fs::openat(CWD, "/", STEP, Mode::empty()).at("open", Path::new("/"))?;
        let mut above: Vec<(OsString, OwnedFd)> = Vec::new();
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                above.pop();
                continue;
            }
            let here = above.last().map_or(root.as_fd(), |(_, directory)| directory.as_fd());
            let found = match rustix::fs::statat(here, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => Some(found),
                Err(Errno::NOENT) if rest.is_empty() => None,
                Err(error) => return Err(error).at("find", path),
            };
            if let Some(link) = found.filter(|found| kind(found) == FileType::Symlink) {
                links += 1;
                let target = follow(here, &name, &link, links).map_err(|why| why.at(&above, &name, path))?;
                if target.is_absolute() {
                    above.clear();
                }
                names(&target).into_iter().rev().for_each(|name| rest.push_front(name));
                continue;
            }
            if rest.is_empty() {
                let path = joined(&above, Some(&name));
                let parent = above.pop().map_or(root, |(_, directory)| directory);
                return Ok(Self { parent, name, path });
            }
            let next = rustix::fs::openat(here, &name, STEP, Mode::empty()).at("find", path)?;
            above.push((name, next));
        }
        // The path is the root, or ended with "..".
        let path = joined(&above, None);
        let parent = above.pop().map_or(root, |(_, directory)| directory);
        Ok(Self { parent, name: ".".into(), path })
    }

    /// The path without symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory that only this user can enter.
    pub(crate) fn make_directory(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.parent, &self.name, Mode::RWXU)?)
    }

    /// Opens an existing directory.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn directory(self) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty()).at("open", &self.path)?;
        let uid = rustix::fs::fstat(&fd).at("look at", &self.path)?.st_uid;
        Ok(Directory { fd, path: self.path, uid })
    }

    /// Returns the type of what is there, without opening it.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn kind(&self) -> Result<FileType> {
        let found = rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        found.map(|found| kind(&found)).at("look at", &self.path)
    }

    /// Opens an existing regular file or block device. `more` are additional flags for opening.
    ///
    /// # Errors
    /// `Invalid` when it is anything else; `Io`.
    pub(crate) fn medium(&self, is_written: bool, more: OFlags) -> Result<File> {
        let wrong = || StoreError::Invalid {
            path: self.path.clone(),
            why: "neither a regular file nor a block device".to_owned(),
        };
        let access = match self.kind()? {
            FileType::RegularFile => QUIET,
            FileType::BlockDevice => QUIET.difference(OFlags::NONBLOCK),
            _ => return Err(wrong()),
        } | if is_written { OFlags::RDWR } else { OFlags::RDONLY };
        let file = rustix::fs::openat(&self.parent, &self.name, access | more, Mode::empty());
        let file = File::from(file.at("open", &self.path)?);
        let found = rustix::fs::fstat(&file).at("look at", &self.path)?;
        match kind(&found) {
            FileType::BlockDevice => Ok(file),
            FileType::RegularFile
                if is_written && found.st_nlink > 1 && !self.is_in_trusted_directory()? =>
            {
                Err(StoreError::Invalid { path: self.path.clone(), why: LINKED.to_owned() })
            }
            FileType::RegularFile => Ok(file),
            _ => Err(wrong()),
        }
    }

    /// As root, refuses the file of another user.
    ///
    /// # Errors
    /// `OtherUser`, `Io`.
    pub(crate) fn check_owner(&self, file: &File) -> Result<()> {
        let found = rustix::fs::fstat(file).at("look at", &self.path)?;
        // The owner of a device node is not the owner of the data on the device.
        if kind(&found) == FileType::BlockDevice { Ok(()) } else { check_owner(&self.path, found.st_uid) }
    }

    /// Makes a regular file that only this user can open.
    pub(crate) fn make(&self) -> io::Result<File> {
        let flags = QUIET | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(rustix::fs::openat(&self.parent, &self.name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Removes the file.
    pub(crate) fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::empty())?)
    }

    /// Removes the directory that was opened from here, if it is empty.
    pub(crate) fn remove_directory(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR)?)
    }

    /// Makes the name durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        sync_directory(self.parent.as_fd(), Path::new("."))
    }

    fn is_in_trusted_directory(&self) -> Result<bool> {
        Ok(is_trusted(rustix::fs::fstat(&self.parent).at("look at", &self.path)?.st_uid))
    }
}

const LINKED: &str = "it has several hard links, so that writing to it could change another user's file";

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The components of a path.
fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

fn joined(above: &[(OsString, OwnedFd)], name: Option<&OsStr>) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(above.iter().map(|(name, _)| name.as_os_str()).chain(name));
    path
}

/// Why a link was not followed.
enum Refused {
    Owner(u32),
    System(Errno),
}

impl Refused {
    fn at(self, above: &[(OsString, OwnedFd)], name: &OsStr, path: &Path) -> StoreError {
        match self {
            Self::Owner(uid) => StoreError::Link { path: joined(above, Some(name)), uid },
            Self::System(error) => StoreError::io("find", path, error.into()),
        }
    }
}

fn follow(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    link: &Stat,
    links: usize,
) -> std::result::Result<PathBuf, Refused> {
    if links > LINKS_MAX {
        return Err(Refused::System(Errno::LOOP));
    }
    if !is_trusted(link.st_uid) {
        return Err(Refused::Owner(link.st_uid));
    }
    let target = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(Refused::System)?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

/// An open directory of a pool. Names are resolved below it, without following symbolic links.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    uid: u32,
}

impl Directory {
    /// The path: absolute, without symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// As root, refuses the directory of another user.
    ///
    /// # Errors
    /// `OtherUser`.
    pub(crate) fn check_owner(&self) -> Result<()> {
        check_owner(&self.path, self.uid)
    }

    /// Opens a regular file for reading.
    pub(crate) fn read(&self, name: &Path) -> io::Result<File> {
        let file = self.open_beneath(name, QUIET | OFlags::RDONLY, Mode::empty())?;
        self.check(&file)?;
        Ok(file.into())
    }

    /// Opens an existing regular file for reading and writing.
    pub(crate) fn write(&self, name: &Path) -> io::Result<File> {
        let file = self.open_beneath(name, QUIET | OFlags::RDWR, Mode::empty())?;
        let found = self.check(&file)?;
        if found.st_nlink > 1 {
            return Err(io::Error::other(LINKED));
        }
        Ok(file.into())
    }

    /// Makes a regular file. An existing file is an error.
    pub(crate) fn make(&self, name: &Path) -> io::Result<File> {
        let flags = QUIET | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_beneath(name, flags, Mode::RUSR | Mode::WUSR)?;
        self.give(&file)?;
        Ok(file.into())
    }

    /// Makes a directory that only the owner can enter. An existing directory is kept.
    pub(crate) fn make_directory(&self, name: &Path) -> io::Result<()> {
        let (parent, last) = self.parent(name)?;
        match rustix::fs::mkdirat(&parent, last, Mode::RWXU) {
            Ok(()) => self.give(&self.open_beneath(name, DIRECTORY, Mode::empty())?),
            Err(Errno::EXIST) => self.open_beneath(name, DIRECTORY, Mode::empty()).map(drop),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &Path) -> io::Result<()> {
        let (parent, last) = self.parent(name)?;
        Ok(rustix::fs::unlinkat(&parent, last, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&self, name: &Path) -> io::Result<()> {
        let (parent, last) = self.parent(name)?;
        Ok(rustix::fs::unlinkat(&parent, last, AtFlags::REMOVEDIR)?)
    }

    /// Renames a file in the directory.
    pub(crate) fn rename(&self, old: &str, new: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, old, &self.fd, new)?)
    }

    /// Makes the names in a subdirectory durable. An empty `name` means this directory.
    pub(crate) fn sync(&self, name: &Path) -> io::Result<()> {
        if name.as_os_str().is_empty() {
            return Ok(rustix::fs::fsync(&self.fd)?);
        }
        Ok(rustix::fs::fsync(self.open_beneath(name, DIRECTORY, Mode::empty())?)?)
    }

    /// Lists the names in a subdirectory. An empty `name` means this directory.
    pub(crate) fn list(&self, name: &Path) -> io::Result<Vec<OsString>> {
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        let mut names = Vec::new();
        for entry in Listing::new(self.open_beneath(name, DIRECTORY, Mode::empty())?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns the metadata of a name, without following a link.
    pub(crate) fn stat(&self, name: &Path) -> io::Result<Stat> {
        let (parent, last) = self.parent(name)?;
        Ok(rustix::fs::statat(&parent, last, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Checks that it is a regular file of the pool's owner, of root or of this user.
    fn check(&self, file: &OwnedFd) -> io::Result<Stat> {
        let found = rustix::fs::fstat(file)?;
        if kind(&found) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        let us = rustix::process::geteuid().as_raw();
        if ![self.uid, us, 0].contains(&found.st_uid) {
            return Err(io::Error::other(format!(
                "it belongs to user {}, not to the pool's owner",
                found.st_uid
            )));
        }
        Ok(found)
    }

    /// As root, gives a new file to the user who owns the pool.
    fn give(&self, file: &OwnedFd) -> io::Result<()> {
        if rustix::process::geteuid().is_root() && self.uid != 0 {
            rustix::fs::fchown(file, Some(rustix::process::Uid::from_raw(self.uid)), None)?;
        }
        Ok(())
    }

    fn parent<'a>(&self, name: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let last = name.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let above = name.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((self.open_beneath(above, STEP, Mode::empty())?, last))
    }

    fn open_beneath(&self, name: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.fd, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, resolve) {
            // The system call is missing before Linux 5.6, or a filter of system calls blocks it.
            Err(Errno::NOSYS | Errno::PERM) => Ok(self.open_by_steps(name, flags, mode)?),
            other => Ok(other?),
        }
    }

    fn open_by_steps(&self, name: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let mut names = names(name);
        let Some(last) = names.pop_back() else { return rustix::fs::openat(&self.fd, ".", flags, mode) };
        if last == ".." || names.iter().any(|name| name == "..") {
            return Err(Errno::XDEV);
        }
        let mut here: Option<OwnedFd> = None;
        for name in names {
            let at = here.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            here = Some(rustix::fs::openat(at, name, STEP, Mode::empty())?);
        }
        let at = here.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
        rustix::fs::openat(at, last, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn sync_directory(at: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    Ok(rustix::fs::fsync(rustix::fs::openat(at, name, DIRECTORY, Mode::empty())?)?)
}
