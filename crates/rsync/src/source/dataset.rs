//! A filesystem dataset as a source: its head, or a snapshot.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use parking_lot::Mutex;
use snowmelt_dataset::{Dataset, Datasets, Snapshot};
use snowmelt_fs::vfs::{Atime, SnapDir, Stat, Vfs, VfsError, VfsOptions, Who};
use snowmelt_zpl::{Attributes, Timestamp, acl};

use super::ahead::Ahead;
use super::{Content, Metadata, Source, Time};

/// The most symbolic links that are followed in a path, as in Linux.
const LINKS_MAX: usize = 40;
/// The number of names of a directory that are read at once.
const NAMES: usize = 1024;
/// The least remaining bytes for which a thread that reads ahead is worth its cost.
const AHEAD_MIN: u64 = 1 << 20;
const ROOT: Who = Who { uid: 0, gid: 0, umask: 0o022 };

/// A dataset or snapshot. Every client that may connect can read all of it: permissions of files are not checked.
pub struct DatasetSource {
    vfs: Arc<Vfs>,
    /// For a snapshot, the directory of the last lookup.
    last: Option<Mutex<Option<Directory>>>,
}

/// The path of a directory, and its object number.
type Directory = (Vec<u8>, u64);

fn options() -> VfsOptions {
    // Reading does not change access times, ACLs are sent, and a module does not show other snapshots.
    let snapdir = SnapDir::Disabled;
    VfsOptions { read_only: true, atime: Atime::Off, snapdir, posix_acl: true, ..VfsOptions::default() }
}

impl DatasetSource {
    /// The head of a dataset, with its content at the time of each read.
    ///
    /// # Errors
    /// When it cannot be read here.
    pub fn head(datasets: &Arc<Datasets>, dataset: &Dataset) -> Result<Self, VfsError> {
        Ok(Self { vfs: Arc::new(Vfs::open(datasets.clone(), dataset, options())?), last: None })
    }

    /// A snapshot.
    ///
    /// # Errors
    /// When it cannot be read here.
    pub fn snapshot(datasets: &Arc<Datasets>, snapshot: &Snapshot) -> Result<Self, VfsError> {
        let vfs = Vfs::open_snapshot(datasets.clone(), snapshot, options())?;
        Ok(Self { vfs: Arc::new(vfs), last: Some(Mutex::default()) })
    }

    fn stat(&self, number: u64) -> io::Result<Stat> {
        self.vfs.stat(number).map_err(failure)
    }

    fn child(&self, parent: u64, name: &[u8]) -> io::Result<Stat> {
        let stat = self.vfs.lookup(parent, name).map_err(failure)?;
        // Nothing is unlinked here, so the object need not be kept.
        self.vfs.forget(stat.ino, 1);
        Ok(stat)
    }

    /// Looks up a path. The files of a directory are looked up one after the other, so the directory of a snapshot is
    /// remembered.
    fn resolve(&self, path: &[u8], follow: bool) -> io::Result<Stat> {
        let cut = path.iter().rposition(|byte| *byte == b'/').map(|at| (&path[..at], &path[at + 1..]));
        let (Some(last), Some((above, name))) = (&self.last, cut) else { return self.walk(path, follow) };
        if matches!(name, b"" | b"." | b"..") {
            return self.walk(path, follow);
        }
        let mut last = last.lock();
        let number = match last.as_ref().filter(|(known, _)| known == above) {
            Some((_, number)) => *number,
            None => {
                let number = self.walk(above, true)?.ino;
                *last = Some((above.to_vec(), number));
                number
            }
        };
        drop(last);
        match self.child(number, name)? {
            found if follow && metadata_of_stat(&found).is_symlink() => self.walk(path, true),
            found => Ok(found),
        }
    }

    /// Looks up a path from the root on.
    fn walk(&self, path: &[u8], follow: bool) -> io::Result<Stat> {
        let mut here = self.stat(self.vfs.root().map_err(failure)?)?;
        let root = here.ino;
        let mut way = Vec::new();
        let mut left: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name.is_empty() || name == b"." {
                continue;
            }
            if name == b".." {
                here = self.stat(way.pop().unwrap_or(root))?;
                continue;
            }
            let next = self.child(here.ino, &name)?;
            let is_link = metadata_of_stat(&next).is_symlink();
            if is_link && (follow || left.iter().any(|name| !name.is_empty())) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                let target = self.vfs.readlink(next.ino).map_err(failure)?;
                if target.starts_with(b"/") {
                    way.clear();
                    here = self.stat(root)?;
                }
                left.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                continue;
            }
            way.push(here.ino);
            here = next;
        }
        Ok(here)
    }
}

impl DatasetSource {
    /// Whether object numbers keep their meaning, as in a snapshot.
    fn is_snapshot(&self) -> bool {
        self.last.is_some()
    }

    fn open_found(&self, stat: &Stat) -> io::Result<Box<dyn Content>> {
        if !metadata_of_stat(stat).is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let size = stat.attributes.size;
        let file = FileReader { vfs: self.vfs.clone(), number: stat.ino, at: 0 };
        Ok(Box::new(OpenFile { file, size, ahead: None }))
    }

    fn xattrs_of(&self, number: u64) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut found = BTreeMap::new();
        for name in self.vfs.xattr_names(number, ROOT).map_err(failure)? {
            let is_acl = name == acl::ACCESS.as_bytes() || name == acl::DEFAULT.as_bytes();
            if is_acl || !name.starts_with(b"system.") {
                let value = self.vfs.xattr(number, &name).map_err(failure)?;
                found.insert(name, value);
            }
        }
        Ok(found)
    }
}

/// The metadata of an object, in the form of rsync.
pub(crate) fn metadata_of(it: &Attributes) -> Metadata {
    let time = |time: Timestamp| Time { seconds: time.seconds, nanoseconds: time.nanoseconds };
    Metadata {
        mode: it.mode & 0o7777 | it.kind().mode_bits(),
        uid: it.uid,
        gid: it.gid,
        size: it.size,
        mtime: time(it.mtime),
        atime: time(it.atime),
        rdev: it.rdev.unwrap_or_default(),
        links: it.links,
        id: (0, it.object),
    }
}

fn metadata_of_stat(stat: &Stat) -> Metadata {
    Metadata { id: (0, stat.ino), ..metadata_of(&stat.attributes) }
}

/// An error with Linux's error number.
fn failure(error: VfsError) -> io::Error {
    tracing::debug!(%error, "reading a dataset");
    io::Error::from_raw_os_error(error.errno())
}

impl Source for DatasetSource {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        Ok(metadata_of_stat(&self.resolve(path, follow)?))
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let directory = self.resolve(path, true)?;
        let (mut found, mut from) = (Vec::new(), 0);
        loop {
            let entries = self.vfs.read_dir(directory.ino, from, NAMES).map_err(failure)?;
            let Some(last) = entries.last() else { return Ok(found) };
            from = last.next;
            for entry in entries {
                if matches!(entry.name.as_slice(), b"." | b"..") {
                    continue;
                }
                let metadata = self.stat(entry.ino).map(|stat| metadata_of_stat(&stat));
                found.push((entry.name, metadata));
            }
        }
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.vfs.readlink(self.resolve(path, false)?.ino).map_err(failure)
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        self.open_found(&self.resolve(path, follow)?)
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.xattrs_of(self.resolve(path, follow)?.ino)
    }

    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        match self.is_snapshot() {
            true => self.open_found(&self.stat(listed.id.1)?),
            false => self.open(path, follow),
        }
    }

    fn xattrs_listed(
        &self,
        path: &[u8],
        listed: &Metadata,
        follow: bool,
    ) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match self.is_snapshot() {
            true => self.xattrs_of(listed.id.1),
            false => self.xattrs(path, follow),
        }
    }
}
/// Reads a file of a dataset from an offset on.
#[derive(Clone)]
struct FileReader {
    vfs: Arc<Vfs>,
    number: u64,
    at: u64,
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.vfs.read(self.number, self.at, buffer).map_err(failure)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// An open file of a dataset.
struct OpenFile {
    file: FileReader,
    size: u64,
    /// For a large file, the thread that reads ahead from the position of `file`.
    ahead: Option<Ahead>,
}

impl Read for OpenFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ahead.is_none() && self.size.saturating_sub(self.file.at) >= AHEAD_MIN {
            // Without a thread, the file is read directly.
            self.ahead = Ahead::start(self.file.clone()).ok();
        }
        match &mut self.ahead {
            Some(ahead) => ahead.read(buffer),
            None => self.file.read(buffer),
        }
    }
}

impl Content for OpenFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        self.ahead = None;
        self.file.at = offset;
        Ok(())
    }
}
