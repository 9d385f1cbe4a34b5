//! Open directories and files of a directory target.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::source::Metadata;
use crate::source::directory::metadata_of;
use crate::source::inside::{Follow, open_inside};

/// The most directories that are held open: those that are written to, and those that are looked up ahead.
const OPEN_MAX: usize = 64;
/// The flags that open a directory for access to names in it.
const NAMES: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

/// The metadata of an open file.
pub(super) fn look(fd: impl AsFd) -> io::Result<Metadata> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(metadata_of(&stat))
}

/// The metadata of the file with this name in a directory. A symbolic link is not followed.
pub(super) fn look_at(directory: impl AsFd, name: &[u8]) -> io::Result<Option<Metadata>> {
    match rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
        Ok(stat) => Ok(Some(metadata_of(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The directory of a path, and its last component.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// The components of a path.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// Whether a path has no name of its own: it is the root, or a directory above it.
pub(super) fn is_nameless(path: &[u8]) -> bool {
    path.is_empty() || split(path).1 == b".."
}

/// The open directories below a root.
pub(super) struct Directories {
    root: Arc<OwnedFd>,
    /// Set if paths may begin with "..": the root directory of this machine, and the path from it to the root.
    machine: Option<(OwnedFd, Vec<u8>)>,
    known: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
}

impl Directories {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root: Arc::new(root), machine: None, known: Mutex::default() }
    }

    /// Allows paths that begin with "..". They lead out of the root.
    pub(super) fn allow_outside(&mut self) -> io::Result<()> {
        let way = rustix::fs::readlink(path_of(&self.root), Vec::new())?.into_bytes();
        let machine =
            rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.machine = Some((machine, way));
        Ok(())
    }

    /// The number of components from the root directory of this machine to the root, if paths may begin with "..".
    pub(super) fn depth(&self) -> Option<usize> {
        self.machine.as_ref().map(|(_, way)| names(way).count())
    }

    /// Opens the file at a path. No symbolic link is followed.
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        if let Some((machine, way)) = self.machine.as_ref().filter(|_| names(path).next() == Some(b"..")) {
            let mut all: Vec<&[u8]> = names(way).collect();
            for name in names(path) {
                match name {
                    b".." => drop(all.pop()),
                    name => all.push(name),
                }
            }
            return Ok(open_inside(machine, &all.join(&b'/'), flags | OFlags::NOFOLLOW, Follow::Nothing)?);
        }
        Ok(open_inside(&*self.root, path, flags | OFlags::NOFOLLOW, Follow::Nothing)?)
    }

    /// A directory for access to names in it, and whether it was open before.
    fn directory(&self, path: &[u8]) -> io::Result<(Arc<OwnedFd>, bool)> {
        if path.is_empty() {
            return Ok((self.root.clone(), false));
        }
        if let Some(known) = self.known.lock().get(path) {
            return Ok((known.clone(), true));
        }
        let opened = Arc::new(self.open(path, NAMES)?);
        let mut known = self.known.lock();
        if known.len() >= OPEN_MAX {
            known.clear();
        }
        known.insert(path.to_vec(), opened.clone());
        Ok((opened, false))
    }

    /// Calls `work` with the directory of a path and its last component. If the directory was open before and the name
    /// is not found, others may have replaced the directory. Then it is opened again.
    pub(super) fn with<T>(
        &self,
        path: &[u8],
        mut work: impl FnMut(&OwnedFd, &[u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        let (above, name) = split(path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL.into());
        }
        let (directory, was_open) = self.directory(above)?;
        match work(&directory, name) {
            Err(error) if was_open && error.kind() == io::ErrorKind::NotFound => {
                self.known.lock().remove(above);
                work(&self.directory(above)?.0, name)
            }
            done => done,
        }
    }

    /// The same with the directories and names of two paths.
    pub(super) fn with_both<T>(
        &self,
        (first, second): (&[u8], &[u8]),
        mut work: impl FnMut((&OwnedFd, &[u8]), (&OwnedFd, &[u8])) -> io::Result<T>,
    ) -> io::Result<T> {
        self.with(first, |one, name| self.with(second, |other, to| work((one, name), (other, to))))
    }

    /// Closes a directory that was renamed or removed, and all directories below it.
    pub(super) fn forget(&self, path: &[u8]) {
        let is_in =
            |known: &[u8]| known.strip_prefix(path).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
        self.known.lock().retain(|known, _| !is_in(known));
    }
}

/// The device and inode number of a file.
type Id = (u64, u64);

/// The file that was last read or written.
#[derive(Default)]
pub(super) struct LastFile(Mutex<Option<(Id, Arc<File>)>>);

impl LastFile {
    pub(super) fn get(&self, id: Id) -> Option<Arc<File>> {
        self.0.lock().as_ref().filter(|(known, _)| *known == id).map(|(_, file)| file.clone())
    }

    pub(super) fn keep(&self, id: Id, file: File) -> Arc<File> {
        let file = Arc::new(file);
        *self.0.lock() = Some((id, file.clone()));
        file
    }

    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }
}

/// Opens the file that was found at a path before, without access to its content.
///
/// # Errors
/// `ESTALE` if the file there is different now.
pub(super) fn hold(directory: impl AsFd, name: &[u8], id: (u64, u64)) -> io::Result<(OwnedFd, Metadata)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let found = look(&node)?;
    if found.id != id {
        return Err(Errno::STALE.into());
    }
    Ok((node, found))
}

/// A path to an open file that stays valid when its name changes. For a symbolic link, it is the link itself.
pub(super) fn path_of(node: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Opens a regular file or directory by its name for reading. It must be the one that was found there before.
pub(super) fn open_plain(directory: &OwnedFd, name: &[u8], id: (u64, u64)) -> io::Result<File> {
    let (_, found) = hold(directory, name, id)?;
    if !found.is_file() && !found.is_dir() {
        return Err(Errno::OPNOTSUPP.into());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    match look(&file)?.id == id {
        true => Ok(file.into()),
        false => Err(Errno::STALE.into()),
    }
}

/// Opens a regular file. It must be the one that was found there before. Devices and fifos are never opened, not even
/// for a moment.
pub(super) fn open_same(
    directory: &OwnedFd,
    name: &[u8],
    access: OFlags,
    id: (u64, u64),
) -> io::Result<File> {
    let (node, found) = hold(directory, name, id)?;
    if !found.is_file() {
        return Err(Errno::STALE.into());
    }
    match rustix::fs::open(path_of(&node), access | OFlags::CLOEXEC, Mode::empty()) {
        // Without /proc, the file is opened by its name, and must be the same.
        Err(Errno::NOENT) => {
            let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            match look(&file)?.id == id {
                true => Ok(file.into()),
                false => Err(Errno::STALE.into()),
            }
        }
        opened => Ok(opened?.into()),
    }
}
