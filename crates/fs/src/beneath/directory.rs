//! A directory that is held open, and names in it.

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

/// A block device is opened for its user alone.
const DEVICE: OFlags = OFlags::RDWR.union(OFlags::EXCL);

/// A directory that is held open. Its path is for messages only: it may have changed by now.
#[derive(Debug, Clone)]
pub struct Directory {
    fd: Arc<OwnedFd>,
    path: Arc<Path>,
}

/// A name in a directory that is held open. Nothing needs to be there.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory.
    pub directory: Directory,
    /// The name in it.
    pub name: Vec<u8>,
}

impl Place {
    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        self.directory.path_of(&self.name)
    }

    /// What is there, if anything is.
    ///
    /// # Errors
    /// When that cannot be found out.
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
    /// Opens a directory that the user has named. Symbolic links to it are followed, unless root works and a link is another
    /// user's.
    ///
    /// # Errors
    /// As `open`.
    pub fn named(path: &Path) -> io::Result<Self> {
        let node = open_named(path)?.ok_or(io::ErrorKind::NotFound)?;
        // As `O_DIRECTORY` would: also a device or fifo is not opened.
        let fd = match FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode) {
            FileType::Directory => {
                rustix::fs::openat(&node, ".", DIRECTORY | OFlags::CLOEXEC, Mode::empty())?
            }
            _ => return Err(Errno::NOTDIR.into()),
        };
        Ok(Self { fd: Arc::new(fd), path: path.into() })
    }

    /// As [`Directory::named`]; it is made if nothing is there.
    ///
    /// # Errors
    /// As `mkdir` and `open`.
    pub fn made(path: &Path, mode: Mode) -> io::Result<Self> {
        if let Ok(place) = Self::around(path) {
            match rustix::fs::mkdirat(&place.directory, place.name.as_slice(), mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Self::named(path)
    }

    /// The directory in which something is that the user has named, and its name there. Links on the way are followed as those
    /// of [`Directory::named`]; what has the name is not.
    ///
    /// # Errors
    /// When the path ends in no name, or the directory cannot be opened.
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

    /// Opens what the user has named, a regular file or a block device, for reading and writing: `None` if nothing is there.
    /// Of a device, that says too that nothing of it is mounted.
    ///
    /// # Errors
    /// As `open`; when it is something else.
    pub fn open_named_image(path: &Path) -> io::Result<Option<File>> {
        let Some(node) = open_named(path)? else { return Ok(None) };
        let access = match FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode) {
            FileType::RegularFile => OFlags::RDWR,
            FileType::BlockDevice => DEVICE,
            _ => return Err(io::Error::other("it is neither a file nor a block device")),
        };
        open_again(node.as_fd(), access).map(|file| Some(file.into()))
    }

    /// The same of a block device alone: `None` if there is something else, which is not opened, or nothing.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_named_device(path: &Path) -> io::Result<Option<File>> {
        let Some(node) = open_named(path)? else { return Ok(None) };
        match FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode) {
            FileType::BlockDevice => open_again(node.as_fd(), DEVICE).map(|file| Some(file.into())),
            _ => Ok(None),
        }
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in it, for messages.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// A name in it.
    pub fn place(&self, name: &[u8]) -> Place {
        Place { directory: self.clone(), name: name.to_vec() }
    }

    /// Opens a directory in it.
    ///
    /// # Errors
    /// As `open`: also for a symbolic link, and for a mount point ([`io::ErrorKind::CrossesDevices`]).
    pub fn child(&self, name: &[u8]) -> io::Result<Self> {
        self.enter(name, Mounts::Refuse)
    }

    pub(crate) fn enter(&self, name: &[u8], mounts: Mounts) -> io::Result<Self> {
        let fd = Arc::new(open(self.as_fd(), name, DIRECTORY, mounts)?);
        Ok(Self { fd, path: self.path_of(name).into() })
    }

    /// Makes a directory in it, for its owner only, if nothing has that name.
    ///
    /// # Errors
    /// As `mkdir`.
    pub fn make(&self, name: &[u8]) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Err(Errno::EXIST) => Ok(()),
            made => Ok(made?),
        }
    }

    /// What has a name in it, if anything has.
    ///
    /// # Errors
    /// As `lstat`.
    pub fn stat(&self, name: &[u8]) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The names in it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        names(self.as_fd())
    }

    /// Opens a regular file in it; `None` if nothing has that name.
    ///
    /// # Errors
    /// As `open`; [`io::ErrorKind::Unsupported`] for what is no regular file, which is not opened.
    pub fn open_file(&self, name: &[u8], access: OFlags) -> io::Result<Option<File>> {
        match open_regular(self.as_fd(), name, access) {
            Ok(file) => Ok(Some(file.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a file in it, for its owner only. Nothing may have that name.
    ///
    /// # Errors
    /// As `open`.
    pub fn create_file(&self, name: &[u8]) -> io::Result<File> {
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(open_or_create(self.as_fd(), name, how, mode, Mounts::Refuse)?.into())
    }

    /// Renames within it; what has the new name is replaced.
    ///
    /// # Errors
    /// As `rename`.
    pub fn rename(&self, old: &[u8], new: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, old, &self.fd, new)?)
    }

    /// Gives what has a name in it another one too. Nothing may have that.
    ///
    /// # Errors
    /// As `link`.
    pub fn link(&self, old: &[u8], new: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.fd, old, &self.fd, new, AtFlags::empty())?)
    }

    /// Removes a name that is no directory's.
    ///
    /// # Errors
    /// As `unlink`.
    pub fn unlink(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Waits until its names are on disk.
    ///
    /// # Errors
    /// As `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        let how = DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.fd, ".", how, Mode::empty())?)?)
    }

    /// Whether what is in it was made by whoever runs this. Some filesystems say of everything that it is another user's
    /// (without Unix owners, or with root mapped to nobody): then it has to be the one that a new file gets.
    ///
    /// # Errors
    /// When no file can be made to find that out.
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
            // To open a fifo for reading would wait for a writer.
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
