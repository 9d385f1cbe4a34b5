//! A dataset as a target. Everything is written to its next snapshot, beside its head. At the end all of it becomes
//! visible, or nothing does.
//!
//! Existing files are written in place, so that unchanged parts cost nothing. Their previous content is read from the
//! snapshot that the transfer began with.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::io::Errno;
use snowmelt_dataset::{
    DatasetError, Datasets, Head, Kind, Name, Objset, ReceiveError, StageOptions, Staging,
    new_filesystem_objects,
};
use snowmelt_pool::Syncer;
use snowmelt_zpl::{
    Attributes, Caller, Cursor as DirCursor, FileKind, Filesystem, FilesystemMut, NewFile, NewKind, NewNode,
    RenameMode, SetAttributes, SetXattr, Timestamp, ZplError,
};

use super::{Found, Node, Target, Tree, Ways};
use crate::history::{self, Moment};
use crate::source::Metadata;
use crate::source::dataset::metadata_of;

/// The longest wait for another transfer into the dataset to end.
const BUSY_WAIT: Duration = Duration::from_secs(60);
const BUSY_STEP: Duration = Duration::from_millis(100);
/// The number of names of a directory that are read at once, and of bytes of a file that are compared at once.
const NAMES: usize = 1024;
const CHUNK: usize = 1 << 20;
/// The most directories whose objects are remembered. There may be this many requests in flight.
const DIRECTORIES_MAX: usize = 1024;

/// Object numbers of a dataset are below 2 to this power (`DNODE_MAX`). The bits above it identify a snapshot.
const OBJECT_BITS: u32 = 48;
/// The most snapshots that are read.
const SNAPSHOTS_MAX: usize = 1 << (u64::BITS - OBJECT_BITS - 1);

/// Why nothing can be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The property of the dataset forbids it.
    #[error("{name}: Read-only file system (30)")]
    ReadOnly {
        /// The name of the dataset.
        name: String,
    },
    /// Another transfer into the dataset takes too long.
    #[error("{name}: another transfer into it is under way: try again later")]
    Busy {
        /// The name of the dataset.
        name: String,
    },
    /// An error of the pool.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// An error of the staging writer.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The content of the dataset cannot be read or written here.
    #[error(transparent)]
    Filesystem(#[from] ZplError),
}

/// The next content of a dataset, while it is written.
pub struct DatasetTarget<'a> {
    staging: Staging<'a>,
    datasets: &'a Datasets,
    fs: FilesystemMut<Arc<Head>>,
    /// The content before the transfer.
    old: Option<Filesystem<Objset>>,
    /// The snapshots that are read, with their names.
    snapshots: Mutex<Vec<(String, Arc<Filesystem<Objset>>)>>,
    is_changed: AtomicBool,
    /// Files whose content may have changed.
    written: Mutex<HashSet<u64>>,
    /// Directories that were looked up, as objects by path. Requests and answers are in different directories in turn.
    directories: Mutex<HashMap<Vec<u8>, u64>>,
    ways: Ways,
    /// Writes in the background. Without a thread for it, the writers do the work.
    _syncer: Option<Syncer>,
}

/// An error with Linux's error number.
fn failure(error: ZplError) -> io::Error {
    tracing::debug!(%error, "receiving into a dataset");
    io::Error::from_raw_os_error(error.errno())
}

fn caller() -> Caller {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Caller { uid: 0, gid: 0, umask: 0, now: Timestamp { seconds, nanoseconds: since.subsec_nanos() } }
}

impl<'a> DatasetTarget<'a> {
    /// Begins to receive into a dataset. Changes since its newest snapshot are kept in a snapshot of their own. Waits
    /// for some time while another transfer runs.
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

    /// The same for a transfer that this machine itself starts. A missing dataset is created, and `readonly` applies
    /// only to others. With `force`, changes since its newest snapshot are lost.
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
            ways: Ways::default(),
            _syncer: Syncer::start(datasets.pool().clone(), |_| {}).ok(),
        })
    }

    /// Whether anything has changed.
    pub fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    fn forget_ways(&self) {
        self.directories.lock().clear();
        self.ways.forget();
    }

    fn change<T>(&self, result: Result<T, ZplError>) -> io::Result<T> {
        self.is_changed.store(true, Ordering::Relaxed);
        result.map_err(failure)
    }

    /// The directory of a path, and its last component. Symbolic links are not followed.
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

    /// The snapshot of an object, and its number there. `None` for an object of the tree that is written.
    fn in_snapshot(&self, object: u64) -> Option<(Arc<Filesystem<Objset>>, u64)> {
        let at = (object >> OBJECT_BITS).checked_sub(1)?;
        let (_, fs) = self.snapshots.lock().get(usize::try_from(at).ok()?)?.clone();
        Some((fs, object & ((1 << OBJECT_BITS) - 1)))
    }

    /// The present attributes of an object.
    fn attributes(&self, object: u64) -> io::Result<Attributes> {
        match self.in_snapshot(object) {
            Some((fs, number)) => {
                fs.attributes(number).map(|found| Attributes { object, ..found }).map_err(failure)
            }
            None => self.fs.attributes(object).map_err(failure),
        }
    }
}

/// Whether an object is in a snapshot.
fn is_in_snapshot(object: u64) -> bool {
    object >> OBJECT_BITS != 0
}

fn found(it: &Attributes) -> Found {
    let metadata = metadata_of(it);
    Found { node: Node { id: metadata.id, way: None }, metadata }
}

fn object(node: &Node) -> u64 {
    node.id.1
}

impl Target for DatasetTarget<'_> {
    fn is_staged(&self) -> bool {
        true
    }

    /// Makes the received tree the content of the dataset, and its newest snapshot. When the dataset was changed by
    /// others meanwhile, or the pool cannot be written, nothing was received.
    fn finish(self: Box<Self>, moment: Moment, keep: Option<usize>) -> Result<bool, TargetError> {
        if !self.is_changed() {
            return Ok(false);
        }
        let Self { staging, datasets, fs, old, snapshots, .. } = *self;
        drop((fs, old, snapshots));
        let catalog = datasets.catalog();
        let name = history::name(&catalog, &catalog.dataset_by_id(staging.id())?, moment)?;
        let taken = staging.finish(&name, &[])?;
        if moment == Moment::Whole {
            // What is not destroyed now is destroyed the next time.
            if let Err(error) = history::prune(datasets, &taken.dataset, keep) {
                tracing::warn!(%error, dataset = taken.dataset, "destroying old snapshots of transfers");
            }
        }
        Ok(true)
    }

    fn ways(&self) -> &Ways {
        &self.ways
    }

    fn stat(&self, path: &[u8]) -> io::Result<Option<Found>> {
        let object = match path.is_empty() {
            true => self.fs.root(),
            false => {
                let (directory, name) = match self.parent(path) {
                    Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                        return Ok(None);
                    }
                    other => other?,
                };
                match self.fs.lookup(directory, name).map_err(failure)? {
                    Some(entry) => entry.object,
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(found(&self.attributes(object)?)))
    }

    fn snapshot(&self, short: &str) -> io::Result<Tree> {
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

    fn stat_in(&self, tree: Tree, path: &[u8]) -> io::Result<Option<Found>> {
        let Tree::Snapshot(number) = tree else { return self.stat(path) };
        let snapshot = self.snapshots.lock().get(usize::from(number)).map(|(_, fs)| fs.clone());
        let fs = snapshot.ok_or(Errno::NOENT)?;
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
        Ok(Some(found(&self.attributes(object)?)))
    }

    fn can_be_linked(&self, node: &Node) -> bool {
        !is_in_snapshot(object(node))
    }

    fn metadata(&self, node: &Node) -> io::Result<Metadata> {
        Ok(metadata_of(&self.attributes(object(node))?))
    }

    fn list(&self, directory: &Node) -> io::Result<Vec<(Vec<u8>, Found)>> {
        let directory = object(directory);
        if let Some((fs, number)) = self.in_snapshot(directory) {
            let tag = directory - number;
            let entries = fs.read_dir(number).map_err(failure)?;
            let named = entries.all().map(|entry| {
                let entry = entry.map_err(failure)?;
                Ok((entry.name, found(&self.attributes(entry.object | tag)?)))
            });
            return named.collect();
        }
        let (mut all, mut from) = (Vec::new(), DirCursor::START);
        loop {
            let entries = self.fs.read_dir(directory, from, NAMES).map_err(failure)?;
            let Some(last) = entries.last() else { return Ok(all) };
            from = last.next;
            for entry in entries {
                let attributes = self.attributes(entry.object)?;
                all.push((entry.name, found(&attributes)));
            }
        }
    }

    fn read_link(&self, node: &Node) -> io::Result<Vec<u8>> {
        match self.in_snapshot(object(node)) {
            Some((fs, number)) => fs.readlink(number).map_err(failure),
            None => self.fs.readlink(object(node)).map_err(failure),
        }
    }

    fn xattrs(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match self.in_snapshot(object(node)) {
            Some((fs, number)) => fs.xattrs(number).map_err(failure),
            None => self.fs.xattrs(object(node)).map_err(failure),
        }
    }

    fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.in_snapshot(object(node)) {
            Some((fs, number)) => {
                let size = fs.attributes(number).map_err(failure)?.size;
                fs.read(number, size, offset, buffer).map_err(failure)
            }
            None => self.fs.read(object(node), offset, buffer).map_err(failure),
        }
    }

    fn is_old(&self, node: &Node) -> bool {
        let object = object(node);
        is_in_snapshot(object) || self.old.is_some() && !self.written.lock().contains(&object)
    }

    fn read_old(&self, (node, size): (&Node, u64), offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let snapshot = self.in_snapshot(object(node));
        let (old, object) = match &snapshot {
            Some((fs, number)) => (fs.as_ref(), *number),
            None => (self.old.as_ref().ok_or(io::ErrorKind::NotFound)?, object(node)),
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

    fn create(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<Found> {
        let (directory, name) = self.parent(path)?;
        let made = self.change(self.fs.create(directory, name, NewNode { kind, permissions }, &caller()))?;
        self.written.lock().insert(made.object);
        Ok(found(&made))
    }

    fn create_file(&self, path: &[u8], new: &NewFile<'_>) -> io::Result<Found> {
        let (directory, name) = self.parent(path)?;
        let made = self.change(self.fs.create_file(directory, name, new, &caller()))?;
        self.written.lock().insert(made.object);
        Ok(found(&made))
    }

    fn write(&self, node: &Node, offset: u64, data: &[u8]) -> io::Result<()> {
        let object = object(node);
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

    fn truncate(&self, node: &Node, size: u64) -> io::Result<()> {
        self.written.lock().insert(object(node));
        self.change(self.fs.truncate(object(node), size, &caller()))
    }

    /// Restored files get their previous times.
    fn restore(&self, node: &Node) -> io::Result<()> {
        let old = self.old.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let before = old.attributes(object(node)).map_err(failure)?;
        let (mut was, mut is) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut at = 0;
        while at < before.size {
            let len = CHUNK.min(usize::try_from(before.size - at).unwrap_or(CHUNK));
            self.read_old((node, before.size), at, &mut was[..len])?;
            let read = self.read(node, at, &mut is[..len])?;
            if read < len || is[..len] != was[..len] {
                self.write(node, at, &was[..len])?;
            }
            at += len as u64;
        }
        self.truncate(node, before.size)?;
        let set = SetAttributes {
            permissions: Some(before.permissions()),
            mtime: Some(snowmelt_zpl::SetTime::To(before.mtime)),
            ctime: Some(before.ctime),
            ..SetAttributes::default()
        };
        self.set_attributes(node, &set)
    }

    fn set_attributes(&self, node: &Node, set: &SetAttributes) -> io::Result<()> {
        self.change(self.fs.set_attributes(object(node), set, &caller())).map(drop)
    }

    fn set_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.change(match value {
            Some(value) => self.fs.set_xattr(object(node), name, value, SetXattr::Any, &caller()),
            None => self.fs.remove_xattr(object(node), name, &caller()),
        })
    }

    fn link(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        if is_in_snapshot(object(node)) {
            return Err(Errno::XDEV.into());
        }
        let (directory, name) = self.parent(path)?;
        self.change(self.fs.link(object(node), directory, name, &caller())).map(drop)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        self.forget_ways();
        self.change(self.fs.rename(from, to, RenameMode::Replace, &caller(), |_| false)).map(drop)
    }

    fn remove(&self, path: &[u8], is_dir: bool) -> io::Result<()> {
        let (directory, name) = self.parent(path)?;
        // The removed file may be a link that was followed.
        self.ways.forget();
        if is_dir {
            self.forget_ways();
            return self.change(self.fs.rmdir(directory, name, &caller(), |_| false)).map(drop);
        }
        self.change(self.fs.unlink(directory, name, &caller(), |_| false)).map(drop)
    }
}
