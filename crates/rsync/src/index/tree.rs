//! Reads the tree that is indexed. No symbolic link is followed, so that concurrent changes cannot lead outside of it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags};

use super::IndexError;
use super::builder::Seen;
use super::record::{NAME_MAX, Record, Special};
use crate::source::directory::metadata_of;
use crate::source::inside::{Follow, open_inside};
use crate::source::xattrs;

/// A directory with everything below it.
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

impl Tree {
    /// Opens the root directory.
    pub fn open(path: &Path) -> Result<Self, IndexError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.map_err(|error| IndexError::io(path)(error.into()))?;
        // Extended attributes are read through names in procfs. Without it, all files would seem to be gone.
        let proc = Path::new("/proc/self/fd");
        std::fs::metadata(proc).map_err(IndexError::io(proc))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// The root directory itself.
    pub fn root(&self) -> Result<Seen, IndexError> {
        let see = || {
            let stat = rustix::fs::statx(&self.root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
            let xattrs = xattrs::of(&self.root)?;
            let special = Special::Directory(super::ROOT);
            Ok(Seen {
                record: Record { name: Vec::new(), metadata: metadata_of(&stat), special, xattrs: None },
                xattrs,
            })
        };
        see().map_err(IndexError::io(&self.path))
    }

    /// Opens a directory below the root.
    pub fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(open_inside(&self.root, path, flags, Follow::Nothing)?)
    }

    /// The files in a directory. Files that vanish meanwhile are left out.
    pub fn list(&self, path: &[u8]) -> io::Result<Vec<Seen>> {
        let directory = self.directory(path)?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                found.extend(see(&directory, name)?);
            }
        }
        Ok(found)
    }
}

/// The file with this name in a directory. `None` if there is none.
pub fn see(directory: &OwnedFd, name: &[u8]) -> io::Result<Option<Seen>> {
    match look(directory, name) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => Ok(None),
        other => other.map(Some),
    }
}

fn look(directory: &OwnedFd, name: &[u8]) -> io::Result<Seen> {
    if name.len() > NAME_MAX {
        return Err(rustix::io::Errno::NAMETOOLONG.into());
    }
    let stat = rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
    let metadata = metadata_of(&stat);
    let special = match metadata.is_symlink() {
        true => Special::Target(rustix::fs::readlinkat(directory, name, Vec::new())?.into_bytes()),
        false => Special::Nothing,
    };
    let xattrs = xattrs::of_name(directory, name)?;
    Ok(Seen { record: Record { name: name.to_vec(), metadata, special, xattrs: None }, xattrs })
}
