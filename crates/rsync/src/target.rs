//! A dataset that is received into. All is written to its next snapshot, beside its head: in the end that is there whole, or
//! nothing is.
//!
//! Files that were there before are written in place, so that what stays the same costs nothing. What they held before is read
//! from the snapshot that all began from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Cursor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::io::Errno;
use snowmelt_dataset::{
    DatasetError, Datasets, Head, Kind, Name, Objset, ReceiveError, Snapshot, StageOptions, Staging,
    new_filesystem_objects,
};
use snowmelt_pool::Syncer;
use snowmelt_zpl::{
    Attributes, Caller, Cursor as DirCursor, FileKind, Filesystem, FilesystemMut, NewFile, NewKind, NewNode,
    RenameMode, SetAttributes, SetXattr, Timestamp, ZplError,
};

use crate::history::{self, Moment};
use crate::source::dataset::metadata_of;
use crate::source::{Content, Metadata, Source};

/// How long another push may keep this one waiting.
const BUSY_WAIT: Duration = Duration::from_secs(60);
const BUSY_STEP: Duration = Duration::from_millis(100);
/// Names of a directory asked for at once, and bytes of a file compared at once.
const NAMES: usize = 1024;
const CHUNK: usize = 1 << 20;
/// Files of rules are no longer.
const RULES_MAX: u64 = (4 << 20) + 1;
/// Directories whose objects are remembered: as many as there may be requests on their way, and those that are come to.
const DIRECTORIES_MAX: usize = 1024;
/// Symbolic links followed on the way to a directory, as Linux has it.
const LINKS_MAX: usize = 40;

/// Objects of a dataset have numbers below this (`DNODE_MAX`); those of its snapshots are told apart by what is above.
const OBJECT_BITS: u32 = 48;
/// Snapshots looked into at most.
const SNAPSHOTS_MAX: usize = 1 << (u64::BITS - OBJECT_BITS - 1);

/// A tree that is looked into. Objects of snapshots, as they are found there, can be read and not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// The one that is written.
    Next,
    /// A snapshot, by the order in which they were opened.
    Snapshot(u16),
}

/// Why nothing can be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The dataset's property says so.
    #[error("{name}: Read-only file system (30)")]
    ReadOnly {
        /// The dataset.
        name: String,
    },
    /// Somebody else receives into it, and goes on for long.
    #[error("{name}: another transfer into it is under way: try again later")]
    Busy {
        /// The dataset.
        name: String,
    },
    /// The pool says so.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The same.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// What is in the dataset cannot be read or written here.
    #[error(transparent)]
    Filesystem(#[from] ZplError),
}

/// A dataset's next content, under way.
pub struct Target<'a> {
    staging: Staging<'a>,
    datasets: &'a Datasets,
    fs: FilesystemMut<Arc<Head>>,
    /// As it all was before.
    old: Option<Filesystem<Objset>>,
    /// Snapshots that are looked into, with their names.
    snapshots: Mutex<Vec<(String, Arc<Filesystem<Objset>>)>>,
    is_changed: AtomicBool,
    /// Files whose content may be another than before.
    written: Mutex<HashSet<u64>>,
    /// Directories that were looked into: their paths and objects. What is asked for and what comes are in different ones, in turn.
    directories: Mutex<HashMap<Vec<u8>, u64>>,
    /// The directory last followed to: its path with links in it, and without.
    followed: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    /// Writes beside what comes. Without a thread for it, who writes does its work.
    _syncer: Option<Syncer>,
}

/// A failure with the number that Linux has for it.
fn failure(error: ZplError) -> io::Error {
    tracing::debug!(%error, "receiving into a dataset");
    io::Error::from_raw_os_error(error.errno())
}

fn caller() -> Caller {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Caller { uid: 0, gid: 0, umask: 0, now: Timestamp { seconds, nanoseconds: since.subsec_nanos() } }
}

impl<'a> Target<'a> {
    /// Begins to receive into a dataset. What was written to it since its newest snapshot is kept in a snapshot of its own. While another push is under way, waits a while for it to end.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn begin(datasets: &'a Datasets, name: &str) -> Result<Self, TargetError> {
        let catalog = datasets.catalog();
        let parsed = Name::parse_dataset(name).map_err(DatasetError::from)?;
        let dataset = catalog.dataset(parsed.dataset())?;
        let name = dataset.name.clone();
        let read_only = catalog.inherited_property(&dataset, "readonly")?;
        if read_only.is_some_and(|(value, ..)| value == "on") {
            return Err(TargetError::ReadOnly { name });
        }
        Self::stage(datasets, &name, &StageOptions::default())
    }

    /// The same by this machine's own wish: a dataset that is not there is made, and `readonly` keeps only others out. With `force`,
    /// what was written to it since its newest snapshot is given up.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn begin_own(
        datasets: &'a Datasets,
        name: &str,
        options: &StageOptions,
    ) -> Result<Self, TargetError> {
        let parsed = Name::parse_dataset(name).map_err(DatasetError::from)?;
        Self::stage(datasets, parsed.dataset(), options)
    }

    fn stage(datasets: &'a Datasets, name: &str, options: &StageOptions) -> Result<Self, TargetError> {
        let begun = Instant::now();
        let mut is_kept = false;
        let staging = loop {
            match datasets.stage(name, Kind::Filesystem, new_filesystem_objects, options) {
                Ok(staging) => break staging,
                Err(ReceiveError::Modified { .. }) if !is_kept => {
                    is_kept = true;
                    let catalog = datasets.catalog();
                    let before = history::name(&catalog, &catalog.dataset(name)?, Moment::Before)?;
                    let snapshot = Name::parse(&format!("{name}@{before}")).map_err(DatasetError::from)?;
                    datasets.snapshot(&[snapshot], &[])?;
                }
                Err(ReceiveError::Busy { .. }) if begun.elapsed() < BUSY_WAIT => {
                    std::thread::sleep(BUSY_STEP)
                }
                Err(ReceiveError::Busy { .. }) => return Err(TargetError::Busy { name: name.to_owned() }),
                Err(other) => return Err(other.into()),
            }
        };
        let catalog = datasets.catalog();
        let fs = staging.head().filesystem(&catalog)?;
        let old = staging.base().map(|base| Filesystem::open(catalog.objset(base))).transpose()?;
        Ok(Self {
            staging,
            datasets,
            fs,
            old,
            snapshots: Mutex::default(),
            is_changed: AtomicBool::new(false),
            written: Mutex::default(),
            directories: Mutex::default(),
            followed: Mutex::default(),
            _syncer: Syncer::start(datasets.pool().clone(), |_| {}).ok(),
        })
    }

    /// Whether anything is not as it was.
    pub fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    /// Makes what was received the dataset's content, and its newest snapshot, and waits until that is durable. Without a change there is
    /// nothing to be done. After a whole transfer, snapshots of older ones go, but for so many.
    ///
    /// # Errors
    /// When the dataset was changed by others meanwhile, or the pool cannot be written. Then nothing was received.
    pub fn finish(self, moment: Moment, keep: Option<usize>) -> Result<Option<Snapshot>, TargetError> {
        if !self.is_changed() {
            return Ok(None);
        }
        drop(self.fs);
        drop(self.old);
        drop(self.snapshots);
        let catalog = self.datasets.catalog();
        let name = history::name(&catalog, &catalog.dataset_by_id(self.staging.id())?, moment)?;
        let taken = self.staging.finish(&name, &[])?;
        if moment == Moment::Whole {
            // What is not destroyed now is the next time.
            if let Err(error) = history::prune(self.datasets, &taken.dataset, keep) {
                tracing::warn!(%error, dataset = taken.dataset, "destroying old snapshots of transfers");
            }
        }
        Ok(Some(taken))
    }

    fn forget_ways(&self) {
        self.directories.lock().clear();
        *self.followed.lock() = None;
    }

    fn change<T>(&self, result: Result<T, ZplError>) -> io::Result<T> {
        self.is_changed.store(true, Ordering::Relaxed);
        result.map_err(failure)
    }

    /// The directory that a path's last name is in, and that name. Symbolic links are not followed.
    fn parent<'p>(&self, path: &'p [u8]) -> io::Result<(u64, &'p [u8])> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        let mut directories = self.directories.lock();
        if let Some(object) = directories.get(above) {
            return Ok((*object, name));
        }
        let mut at = self.fs.root();
        for part in above.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let entry = self.fs.lookup(at, part).map_err(failure)?.ok_or(Errno::NOENT)?;
            if self.fs.attributes(entry.object).map_err(failure)?.kind() != FileKind::Directory {
                return Err(Errno::NOTDIR.into());
            }
            at = entry.object;
        }
        if directories.len() >= DIRECTORIES_MAX {
            directories.clear();
        }
        directories.insert(above.to_vec(), at);
        Ok((at, name))
    }

    /// The path of a directory that a path leads to, through symbolic links too. These end at the dataset's root, as do `..` and slashes in
    /// them.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn real_directory(&self, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut way: Vec<Vec<u8>> = Vec::new();
        let mut left: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    way.pop();
                    continue;
                }
                _ => way.push(name),
            }
            let Some(found) = self.stat(&way.join(&b'/'))? else { return Ok(None) };
            match found.kind() {
                FileKind::Directory => {}
                FileKind::Symlink if links < LINKS_MAX => {
                    links += 1;
                    let target = Target::read_link(self, found.object)?;
                    way.pop();
                    if target.starts_with(b"/") {
                        way.clear();
                    }
                    left.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(way.join(&b'/')))
    }

    /// A path with the symbolic links followed that are on its way, and the one at its end if that leads to a directory. What leads to none
    /// stays as it is.
    pub fn followed(&self, path: &[u8]) -> Vec<u8> {
        let path = self.followed_above(path);
        match self.stat(&path) {
            Ok(Some(found)) if found.kind() == FileKind::Symlink => {
                self.real_directory(&path).ok().flatten().unwrap_or(path)
            }
            _ => path,
        }
    }

    /// The same, but for a link at its end.
    pub fn followed_above(&self, path: &[u8]) -> Vec<u8> {
        let Some(at) = path.iter().rposition(|byte| *byte == b'/') else { return path.to_vec() };
        let (above, rest) = path.split_at(at);
        if let Some((_, real)) = self.followed.lock().as_ref().filter(|(known, _)| known == above) {
            return if real.is_empty() { rest[1..].to_vec() } else { [real, rest].concat() };
        }
        let Ok(Some(real)) = self.real_directory(above) else { return path.to_vec() };
        *self.followed.lock() = Some((above.to_vec(), real));
        self.followed_above(path)
    }

    /// What is at a path; "" is the root.
    ///
    /// # Errors
    /// When that cannot be found out, as below what is no directory.
    pub fn stat(&self, path: &[u8]) -> io::Result<Option<Attributes>> {
        if path.is_empty() {
            return self.fs.attributes(self.fs.root()).map(Some).map_err(failure);
        }
        let (directory, name) = match self.parent(path) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(None),
            other => other?,
        };
        let found = self.fs.lookup(directory, name).map_err(failure)?;
        found.map(|entry| self.fs.attributes(entry.object).map_err(failure)).transpose()
    }

    /// A snapshot of the dataset, by the name after the `@`.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn snapshot(&self, short: &str) -> io::Result<Tree> {
        let mut snapshots = self.snapshots.lock();
        if let Some(known) = snapshots.iter().position(|(name, _)| name == short) {
            return Ok(Tree::Snapshot(known as u16));
        }
        if snapshots.len() >= SNAPSHOTS_MAX {
            return Err(Errno::MFILE.into());
        }
        let told = |error: DatasetError| {
            tracing::debug!(%error, "looking into a snapshot");
            io::Error::from(Errno::NOENT)
        };
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(self.staging.id()).map_err(told)?;
        let name = Name::parse(&format!("{}@{short}", dataset.name)).map_err(|error| told(error.into()))?;
        let snapshot = catalog.snapshot(&name).map_err(told)?;
        let fs = Filesystem::open(catalog.objset(&snapshot)).map_err(failure)?;
        snapshots.push((short.to_owned(), Arc::new(fs)));
        Ok(Tree::Snapshot((snapshots.len() - 1) as u16))
    }

    /// The snapshot that an object is of, and its number there; `None` of what is of the tree that is written.
    fn in_snapshot(&self, object: u64) -> Option<(Arc<Filesystem<Objset>>, u64)> {
        let at = (object >> OBJECT_BITS).checked_sub(1)?;
        let (_, fs) = self.snapshots.lock().get(usize::try_from(at).ok()?)?.clone();
        Some((fs, object & ((1 << OBJECT_BITS) - 1)))
    }

    /// Whether an object is of a snapshot.
    pub fn is_in_snapshot(object: u64) -> bool {
        object >> OBJECT_BITS != 0
    }

    /// What is at a path of a tree. Symbolic links are not followed.
    ///
    /// # Errors
    /// As [`Target::stat`].
    pub fn stat_in(&self, tree: Tree, path: &[u8]) -> io::Result<Option<Attributes>> {
        let Tree::Snapshot(number) = tree else { return self.stat(path) };
        let found = self.snapshots.lock().get(usize::from(number)).map(|(_, fs)| fs.clone());
        let fs = found.ok_or(Errno::NOENT)?;
        let mut at = fs.root();
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            if fs.attributes(at).map_err(failure)?.kind() != FileKind::Directory {
                return Err(Errno::NOTDIR.into());
            }
            match fs.lookup(at, part).map_err(failure)? {
                Some(entry) => at = entry.object,
                None => return Ok(None),
            }
        }
        let object = at | (u64::from(number) + 1) << OBJECT_BITS;
        self.attributes(object).map(Some)
    }

    /// What an object is now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn attributes(&self, object: u64) -> io::Result<Attributes> {
        match self.in_snapshot(object) {
            Some((fs, number)) => {
                fs.attributes(number).map(|found| Attributes { object, ..found }).map_err(failure)
            }
            None => self.fs.attributes(object).map_err(failure),
        }
    }

    /// Makes something under a new name.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn create(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<Attributes> {
        let (directory, name) = self.parent(path)?;
        let made = self.change(self.fs.create(directory, name, NewNode { kind, permissions }, &caller()))?;
        self.written.lock().insert(made.object);
        Ok(made)
    }

    /// Makes a file with all that it is to hold and to be.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn create_file(&self, path: &[u8], new: &NewFile<'_>) -> io::Result<Attributes> {
        let (directory, name) = self.parent(path)?;
        let made = self.change(self.fs.create_file(directory, name, new, &caller()))?;
        self.written.lock().insert(made.object);
        Ok(made)
    }

    /// Gives an object another name.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn link(&self, object: u64, path: &[u8]) -> io::Result<()> {
        if Self::is_in_snapshot(object) {
            return Err(Errno::XDEV.into());
        }
        let (directory, name) = self.parent(path)?;
        self.change(self.fs.link(object, directory, name, &caller())).map(drop)
    }

    /// Gives what is at a path another name; what had that loses it.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        self.forget_ways();
        self.change(self.fs.rename(from, to, RenameMode::Replace, &caller(), |_| false)).map(drop)
    }

    /// Removes a name; a directory's only if that is empty.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn remove(&self, path: &[u8], is_dir: bool) -> io::Result<()> {
        let (directory, name) = self.parent(path)?;
        // It may be a link that led somewhere.
        *self.followed.lock() = None;
        if is_dir {
            self.forget_ways();
            return self.change(self.fs.rmdir(directory, name, &caller(), |_| false)).map(drop);
        }
        self.change(self.fs.unlink(directory, name, &caller(), |_| false)).map(drop)
    }

    /// Names in a directory, with what they are.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn list(&self, directory: u64) -> io::Result<Vec<(Vec<u8>, Attributes)>> {
        if let Some((fs, number)) = self.in_snapshot(directory) {
            let tag = directory - number;
            let entries = fs.read_dir(number).map_err(failure)?;
            let named = entries.all().map(|entry| {
                let entry = entry.map_err(failure)?;
                Ok((entry.name, self.attributes(entry.object | tag)?))
            });
            return named.collect();
        }
        let (mut found, mut from) = (Vec::new(), DirCursor::START);
        loop {
            let entries = self.fs.read_dir(directory, from, NAMES).map_err(failure)?;
            let Some(last) = entries.last() else { return Ok(found) };
            from = last.next;
            for entry in entries {
                let attributes = self.attributes(entry.object)?;
                found.push((entry.name, attributes));
            }
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// When it is none.
    pub fn read_link(&self, object: u64) -> io::Result<Vec<u8>> {
        match self.in_snapshot(object) {
            Some((fs, number)) => fs.readlink(number).map_err(failure),
            None => self.fs.readlink(object).map_err(failure),
        }
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn set_attributes(&self, object: u64, set: &SetAttributes) -> io::Result<()> {
        self.change(self.fs.set_attributes(object, set, &caller())).map(drop)
    }

    /// All extended attributes.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn xattrs(&self, object: u64) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match self.in_snapshot(object) {
            Some((fs, number)) => fs.xattrs(number).map_err(failure),
            None => self.fs.xattrs(object).map_err(failure),
        }
    }

    /// Sets or removes one.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn set_xattr(&self, object: u64, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.change(match value {
            Some(value) => self.fs.set_xattr(object, name, value, SetXattr::Any, &caller()),
            None => self.fs.remove_xattr(object, name, &caller()),
        })
    }

    /// Reads a file as it is now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.in_snapshot(object) {
            Some((fs, number)) => {
                let size = fs.attributes(number).map_err(failure)?.size;
                fs.read(number, size, offset, buffer).map_err(failure)
            }
            None => self.fs.read(object, offset, buffer).map_err(failure),
        }
    }

    /// Whether a file's content is as it was before, or of a snapshot, so that [`Target::read_old`] reads it.
    pub fn is_old(&self, object: u64) -> bool {
        Self::is_in_snapshot(object) || self.old.is_some() && !self.written.lock().contains(&object)
    }

    /// Reads a file of `size` bytes as it was before; all of the buffer.
    ///
    /// # Errors
    /// When it cannot be read, or ends.
    pub fn read_old(&self, (object, size): (u64, u64), offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let snapshot = self.in_snapshot(object);
        let (old, object) = match &snapshot {
            Some((fs, number)) => (fs.as_ref(), *number),
            None => (self.old.as_ref().ok_or(io::ErrorKind::NotFound)?, object),
        };
        let mut done = 0;
        while done < buffer.len() {
            let read = old.read(object, size, offset + done as u64, &mut buffer[done..]).map_err(failure)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += read;
        }
        Ok(())
    }

    /// Writes to a file.
    ///
    /// # Errors
    /// When there is no room.
    pub fn write(&self, object: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        self.written.lock().insert(object);
        while done < data.len() {
            let at = offset + done as u64;
            match self.change(self.fs.write(object, at, &data[done..], &caller()))? {
                0 => return Err(Errno::NOSPC.into()),
                written => done += written,
            }
        }
        Ok(())
    }

    /// Sets a file's size.
    ///
    /// # Errors
    /// When there is no room.
    pub fn truncate(&self, object: u64, size: u64) -> io::Result<()> {
        self.written.lock().insert(object);
        self.change(self.fs.truncate(object, size, &caller()))
    }

    /// Makes a file hold again what it held before, with the times that it had.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn restore(&self, object: u64) -> io::Result<()> {
        let old = self.old.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let before = old.attributes(object).map_err(failure)?;
        let (mut was, mut is) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut at = 0;
        while at < before.size {
            let len = CHUNK.min(usize::try_from(before.size - at).unwrap_or(CHUNK));
            self.read_old((object, before.size), at, &mut was[..len])?;
            let read = self.read(object, at, &mut is[..len])?;
            if read < len || is[..len] != was[..len] {
                self.write(object, at, &was[..len])?;
            }
            at += len as u64;
        }
        self.truncate(object, before.size)?;
        let set = SetAttributes {
            permissions: Some(before.permissions()),
            mtime: Some(snowmelt_zpl::SetTime::To(before.mtime)),
            ctime: Some(before.ctime),
            ..SetAttributes::default()
        };
        self.set_attributes(object, &set)
    }
}

/// For files of rules.
impl Source for Target<'_> {
    fn metadata(&self, path: &[u8], _follow: bool) -> io::Result<Metadata> {
        Ok(metadata_of(&self.stat(path)?.ok_or(Errno::NOENT)?))
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let directory = self.stat(path)?.ok_or(Errno::NOENT)?;
        let found = self.list(directory.object)?.into_iter();
        Ok(found.map(|(name, it)| (name, Ok(metadata_of(&it)))).collect())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        Target::read_link(self, self.stat(path)?.ok_or(Errno::NOENT)?.object)
    }

    fn open(&self, path: &[u8], _follow: bool) -> io::Result<Box<dyn Content>> {
        let it = self.stat(path)?.ok_or(Errno::NOENT)?;
        if it.kind() != FileKind::File {
            return Err(Errno::INVAL.into());
        }
        let mut text = vec![0; usize::try_from(it.size.min(RULES_MAX)).unwrap_or(0)];
        let len = self.read(it.object, 0, &mut text)?;
        text.truncate(len);
        Ok(Box::new(Text(Cursor::new(text))))
    }

    fn xattrs(&self, path: &[u8], _follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        Target::xattrs(self, self.stat(path)?.ok_or(Errno::NOENT)?.object)
    }
}

struct Text(Cursor<Vec<u8>>);

impl io::Read for Text {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Content for Text {
    fn size(&self) -> u64 {
        self.0.get_ref().len() as u64
    }

    fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        self.0.set_position(offset);
        Ok(())
    }
}
