//! A directory that is held open, and access to names in it.

use super::node::{open_again, open_named, open_regular};
use super::{DIRECTORY, Mounts, open, open_or_create};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Block devices are opened exclusively.
const DEVICE: OFlags = OFlags::RDWR.union(OFlags::EXCL);

/// A directory that is held open. Its path is used only in messages, because it may have changed.
#[derive(Debug, Clone)]
pub struct Directory {
    fd: Arc<OwnedFd>,
    path: Arc<Path>,
}

/// A name in a directory that is held open. It need not exist.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory.
    pub directory: Directory,
    /// The name in it.
    pub name: Vec<u8>,
}

impl Place {
    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        self.directory.path_of(&self.name)
    }

    /// The `lstat` data of the name, or `None` if it does not exist.
    ///
    /// # Errors
    /// Like `lstat`.
    pub fn stat(&self) -> io::Result<Option<Stat>> {
        self.directory.stat(&self.name)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Opens a directory that the user has named. Symbolic links to it are followed. As an exception, root does not
    /// follow a link of another user.
    ///
    /// # Errors
    /// Like `open`.
    pub fn named(path: &Path) -> io::Result<Self> {
        let node = open_named(path)?.ok_or(io::ErrorKind::NotFound)?;
        // The type is checked first, like `O_DIRECTORY` does, so that a device or fifo is never opened.
        let fd = match FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode) {
            FileType::Directory => {
                rustix::fs::openat(&node, ".", DIRECTORY | OFlags::CLOEXEC, Mode::empty())?
            }
            _ => return Err(Errno::NOTDIR.into()),
        };
        Ok(Self { fd: Arc::new(fd), path: path.into() })
    }

    /// Like [`Directory::named`], but creates the directory if it does not exist.
    ///
    /// # Errors
    /// Like `mkdir` and `open`.
    pub fn made(path: &Path, mode: Mode) -> io::Result<Self> {
        if let Ok(place) = Self::around(path) {
            match rustix::fs::mkdirat(&place.directory, place.name.as_slice(), mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Self::named(path)
    }

    /// The parent directory and the last name of a path that the user has named. Links to the parent are followed like
    /// those of [`Directory::named`]. The last name is not followed.
    ///
    /// # Errors
    /// If the path does not end in a name, or the parent cannot be opened.
    pub fn around(path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or_else(|| io::Error::other("the path ends in no name"))?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let node = snowmelt_store::open_named(above)?;
        if !FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode).is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let directory = Self { fd: Arc::new(node), path: path.parent().unwrap_or(Path::new("")).into() };
        Ok(Place { directory, name: name.as_bytes().to_vec() })
    }

    /// Opens a regular file or block device that the user has named, for reading and writing. `None` if it does not
    /// exist. A successful open of a device also proves that it is not mounted.
    ///
    /// # Errors
    /// Like `open`, and if it has another type.
    pub fn open_named_image(path: &Path) -> io::Result<Option<File>> {
        let Some(node) = open_named(path)? else { return Ok(None) };
        let access = match FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode) {
            FileType::RegularFile => OFlags::RDWR,
            FileType::BlockDevice => DEVICE,
            _ => return Err(io::Error::other("it is neither a file nor a block device")),
        };
        open_again(node.as_fd(), access).map(|file| Some(file.into()))
    }

    /// Like [`Directory::open_named_image`], for block devices only. `None` if the path does not exist or has another
    /// type, which is not opened.
    ///
    /// # Errors
    /// Like `open`.
    pub fn open_named_device(path: &Path) -> io::Result<Option<File>> {
        let Some(node) = open_named(path)? else { return Ok(None) };
        match FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode) {
            FileType::BlockDevice => open_again(node.as_fd(), DEVICE).map(|file| Some(file.into())),
            _ => Ok(None),
        }
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in the directory, for messages.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// A name in the directory.
    pub fn place(&self, name: &[u8]) -> Place {
        Place { directory: self.clone(), name: name.to_vec() }
    }

    /// Opens a directory in this one.
    ///
    /// # Errors
    /// Like `open`. A symbolic link is an error, and so is a mount point ([`io::ErrorKind::CrossesDevices`]).
    pub fn child(&self, name: &[u8]) -> io::Result<Self> {
        self.enter(name, Mounts::Refuse)
    }

    pub(crate) fn enter(&self, name: &[u8], mounts: Mounts) -> io::Result<Self> {
        let fd = Arc::new(open(self.as_fd(), name, DIRECTORY, mounts)?);
        Ok(Self { fd, path: self.path_of(name).into() })
    }

    /// Creates a directory that only its owner can access, unless the name exists.
    ///
    /// # Errors
    /// Like `mkdir`.
    pub fn make(&self, name: &[u8]) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Err(Errno::EXIST) => Ok(()),
            made => Ok(made?),
        }
    }

    /// The `lstat` data of a name, or `None` if it does not exist.
    ///
    /// # Errors
    /// Like `lstat`.
    pub fn stat(&self, name: &[u8]) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The names in the directory.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        names(self.as_fd())
    }

    /// Opens a regular file. `None` if the name does not exist.
    ///
    /// # Errors
    /// Like `open`, and [`io::ErrorKind::Unsupported`] for any other type, which is not opened.
    pub fn open_file(&self, name: &[u8], access: OFlags) -> io::Result<Option<File>> {
        match open_regular(self.as_fd(), name, access) {
            Ok(file) => Ok(Some(file.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a file that only its owner can access. The name must not exist.
    ///
    /// # Errors
    /// Like `open`.
    pub fn create_file(&self, name: &[u8]) -> io::Result<File> {
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(open_or_create(self.as_fd(), name, how, mode, Mounts::Refuse)?.into())
    }

    /// Renames within the directory. An existing target is replaced.
    ///
    /// # Errors
    /// Like `rename`.
    pub fn rename(&self, old: &[u8], new: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, old, &self.fd, new)?)
    }

    /// Creates a hard link. The new name must not exist.
    ///
    /// # Errors
    /// Like `link`.
    pub fn link(&self, old: &[u8], new: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.fd, old, &self.fd, new, AtFlags::empty())?)
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// Like `unlink`.
    pub fn unlink(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Waits until the names in the directory are durable.
    ///
    /// # Errors
    /// Like `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        let how = DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.fd, ".", how, Mode::empty())?)?)
    }

    /// Whether a file in the directory was made by the user who runs this process. Some filesystems report another
    /// owner for all files (without Unix owners, or with root mapped to nobody). There, the owner must be the same as
    /// that of a new file.
    ///
    /// # Errors
    /// If the new file for the comparison cannot be created.
    pub(crate) fn is_ours(&self, stat: &Stat) -> io::Result<bool> {
        if stat.st_uid == rustix::process::geteuid().as_raw() {
            return Ok(true);
        }
        let name = format!(".snowmelt-owner-{}", std::process::id()).into_bytes();
        let _ = self.unlink(&name);
        let probe = self.create_file(&name)?;
        let made = rustix::fs::fstat(&probe)?;
        let _ = self.unlink(&name);
        Ok(made.st_uid == stat.st_uid)
    }
}

/// The names in an open directory.
pub(crate) fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let scratch = tempfile::tempdir().unwrap();
        let top = Directory::named(scratch.path()).unwrap();
        std::fs::write(scratch.path().join("file"), "text").unwrap();
        symlink("file", scratch.path().join("link")).unwrap();
        rustix::fs::mkfifoat(&top, "fifo", Mode::RWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(scratch.path().join("socket")).unwrap();
        assert!(top.open_file(b"file", OFlags::RDWR).unwrap().is_some());
        assert!(top.open_file(b"nothing", OFlags::RDWR).unwrap().is_none());
        for name in [&b"link"[..], b"fifo", b"socket"] {
            // Opening a fifo for reading would wait for a writer.
            let error = top.open_file(name, OFlags::RDONLY).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        }
    }

    #[test]
    fn a_directory_is_the_same_whatever_happens_to_its_name() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("d");
        std::fs::create_dir(&path).unwrap();
        std::fs::create_dir(scratch.path().join("victim")).unwrap();
        let directory = Directory::named(&path).unwrap();
        std::fs::rename(&path, scratch.path().join("moved")).unwrap();
        symlink("victim", &path).unwrap();
        directory.create_file(b"new").unwrap();
        directory.make(b"below").unwrap();
        directory.rename(b"new", b"file").unwrap();
        assert_eq!(std::fs::read_dir(scratch.path().join("victim")).unwrap().count(), 0);
        assert!(scratch.path().join("moved/file").exists() && scratch.path().join("moved/below").exists());
    }
}
