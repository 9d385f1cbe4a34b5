//! A store in a directory, with one file for each segment.
//!
//! Layout, durability and crash argument: `docs/format/store.md`, "The directory store".
//!
//! Lock order: `syncing`, then `open`, then `dirty`. No I/O is done while `open` or `dirty` is locked.

mod layout;
#[cfg(test)]
pub(crate) use layout::stalled;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::direct::{Direct, Way};
use crate::error::At;
use crate::gate::Gate;
use crate::handles::Handles;
use crate::label::{Label, MirrorLabel, PoolLabel};
use crate::ring::Ring;
use crate::trusted::Directory;
use crate::{
    Access, Capacity, CreateOptions, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError,
};
use crate::{UBERBLOCK_MAX, runtime, syscalls, vectored};

/// The maximum length of a segment: longer than the segments of any pool, and small enough that sums cannot overflow.
const SEGMENT_CAPACITY: u64 = 1 << 40;

/// An open pool in a directory.
#[derive(Debug)]
pub struct DirectoryStore {
    root: Directory,
    gate: Gate,
    label: Mutex<Label>,
    /// Declared before the lock, so that it is dropped first: its drop waits for writes that are under way.
    direct: Direct,
    /// Holds the owner's lock; `None` when the store is open for reading.
    _lock: Option<File>,
    ring_file: File,
    ring: Mutex<Ring>,
    /// Held during a sync. Another sync that finds nothing dirty must still wait for the running one.
    syncing: Mutex<()>,
    open: RwLock<HashMap<SegmentId, Arc<OpenSegment>>>,
    dirty: Mutex<Dirty>,
    handles: Handles,
}

/// A segment that is open for appending.
#[derive(Debug)]
struct OpenSegment {
    file: Arc<File>,
    way: Arc<Way>,
    path: PathBuf,
    end: AtomicU64,
}

/// What the next sync must make durable. Dirty files stay open here even after they are sealed: the kernel reports a
/// failed write only to descriptors that were open when it failed.
#[derive(Debug, Default)]
struct Dirty {
    segments: HashMap<SegmentId, Arc<OpenSegment>>,
    /// Paths relative to the pool's directory.
    directories: BTreeSet<PathBuf>,
}

impl DirectoryStore {
    /// Creates a pool in the directory `path`. The directory is made if it does not exist.
    ///
    /// # Errors
    /// See [`create`](crate::create).
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self> {
        layout::create(path, options)?;
        Self::open(path, Access::ReadWrite)
    }

    /// Opens the pool in the directory `path`.
    ///
    /// # Errors
    /// See [`open`](crate::open).
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let root = layout::open_root(path)?;
        root.check_owner()?;
        let lock = match access {
            Access::ReadWrite => Some(layout::lock(&root)?),
            Access::ReadOnly => None,
        };
        // Read under the lock: the previous owner may have destroyed the pool.
        let label = layout::read_label(&root)?;
        let ring_path = root.path().join(layout::ring_name());
        let ring_file = match access {
            Access::ReadWrite => root.write(layout::ring_name()),
            Access::ReadOnly => root.read(layout::ring_name()),
        };
        let ring_file = ring_file.at("open", &ring_path)?;
        let ring = Ring::open(&ring_file, 0, label.pool.guid).at("read", &ring_path)?;
        Ok(Self {
            gate: Gate::new(root.path(), access),
            root,
            label: Mutex::new(label),
            direct: Direct::default(),
            _lock: lock,
            ring_file,
            ring: Mutex::new(ring),
            syncing: Mutex::default(),
            open: RwLock::default(),
            dirty: Mutex::default(),
            handles: Handles::default(),
        })
    }

    /// Reads the label of the pool in the directory `path`.
    ///
    /// # Errors
    /// `NotAPool`, `Io`.
    pub fn label(path: &Path) -> Result<PoolLabel> {
        Self::whole_label(path).map(|label| label.pool)
    }

    /// Reads the label including the record of the mirror.
    ///
    /// # Errors
    /// `NotAPool`, `Io`.
    pub(crate) fn whole_label(path: &Path) -> Result<Label> {
        layout::read_label(&layout::open_root(path)?)
    }

    /// Renames the pool.
    ///
    /// # Errors
    /// `Invalid` for an invalid name or for another guid; `ReadOnly`, `Io`.
    pub fn set_label(&self, pool: &PoolLabel) -> Result<()> {
        self.gate.check()?;
        let mut label = self.label.lock();
        let renamed = label.renamed(pool, self.path())?;
        layout::write_label(&self.root, &renamed)?;
        *label = renamed;
        Ok(())
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    fn segment_path(&self, id: SegmentId) -> PathBuf {
        self.path().join(layout::segment_name(id))
    }

    /// Creates the file of a segment, and its directory if that does not exist.
    fn create_file(&self, name: &Path) -> Result<File, io::Error> {
        let shard = name.parent().unwrap_or(name);
        let file = match self.root.make(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.root.make_directory(shard)?;
                self.dirty.lock().directories.insert(layout::segments_name().to_owned());
                self.root.make(name)?
            }
            other => other?,
        };
        self.dirty.lock().directories.insert(shard.to_owned());
        Ok(file)
    }

    /// Opens the file of a segment for writing.
    fn open_file(&self, id: SegmentId) -> Result<File> {
        match self.root.write(&layout::segment_name(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.no_segment(id)),
            other => other.at("open", &self.segment_path(id)),
        }
    }

    fn start(&self, id: SegmentId, file: File, path: PathBuf, end: u64) -> Arc<OpenSegment> {
        let file = Arc::new(file);
        let segment = Arc::new(OpenSegment { way: Way::of(&file), file, path, end: AtomicU64::new(end) });
        self.open.write().insert(id, Arc::clone(&segment));
        segment
    }

    fn no_segment(&self, id: SegmentId) -> StoreError {
        StoreError::NoSegment { id, path: self.path().to_owned() }
    }

    /// Returns the file of a segment that is not open for appending.
    fn sealed(&self, id: SegmentId) -> Result<Arc<File>> {
        if let Some(file) = self.handles.get(id) {
            return Ok(file);
        }
        let file = match self.root.read(&layout::segment_name(id)) {
            Ok(file) => Arc::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.no_segment(id)),
            Err(error) => return Err(error).at("open", &self.segment_path(id)),
        };
        self.handles.insert(id, Arc::clone(&file));
        Ok(file)
    }
}

impl Store for DirectoryStore {
    fn segment_capacity(&self) -> u64 {
        SEGMENT_CAPACITY
    }

    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let path = self.segment_path(id);
        let file = match self.create_file(&layout::segment_name(id)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StoreError::Exists { id });
            }
            Err(error) => return Err(error).at("create", &path),
        };
        let segment = self.start(id, file, path, 0);
        self.dirty.lock().segments.insert(id, segment);
        Ok(())
    }

    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.append_all(id, offset, &[IoSlice::new(data)])
    }

    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.gate.check()?;
        let segment = self.open.read().get(&id).cloned();
        let end = segment.as_ref().map(|s| s.end.load(Ordering::Acquire));
        let (Some(segment), true) = (segment, end == Some(offset)) else {
            return Err(StoreError::NotAtEnd { id, offset, end });
        };
        let len = offset.saturating_add(vectored::len(pieces));
        if len > SEGMENT_CAPACITY {
            return Err(StoreError::SegmentFull { id, len, capacity: SEGMENT_CAPACITY });
        }
        let written = self.direct.write((id, &segment.way), pieces, offset);
        let written = written.map_err(|failed| failed.told(&self.gate, &segment.path))?;
        vectored::write_rest_at(&segment.file, pieces, offset, written).at("write", &segment.path)?;
        segment.end.store(len, Ordering::Release);
        // After the write: a sync that has taken the set before this line makes no promise about these bytes.
        self.dirty.lock().segments.insert(id, segment);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.direct.settle().map_err(|e| self.gate.poison("write", self.path(), e))?;
        let dirty = std::mem::take(&mut *self.dirty.lock());
        for segment in dirty.segments.values() {
            // Start writing all files first, so that they are written in parallel while the first one is waited for.
            syscalls::start_writeback(&segment.file, 0, 0);
        }
        for segment in dirty.segments.values() {
            segment.file.sync_data().map_err(|e| self.gate.poison("sync", &segment.path, e))?;
        }
        // Sync directories last, so that a name that is present after a crash has its bytes.
        for directory in &dirty.directories {
            let path = || self.path().join(directory);
            self.root.sync(directory).map_err(|e| self.gate.poison("sync", &path(), e))?;
        }
        Ok(())
    }

    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        let segment = self.open.read().get(&id).cloned();
        if let Some(segment) = segment {
            syscalls::start_writeback(&segment.file, offset, len);
        }
    }

    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        let path = self.segment_path(id);
        let file = self.open_file(id)?;
        let end = file.metadata().at("look at", &path)?.len();
        if len > end {
            return Err(StoreError::OutOfRange { segment: id, offset: len, len: 0, end });
        }
        file.set_len(len).at("truncate", &path)?;
        self.handles.remove(id);
        self.start(id, file, path, len);
        Ok(())
    }

    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        let Some(segment) = self.open.write().remove(&id) else { return Ok(()) };
        // A failed append may have left bytes beyond the end.
        let end = segment.end.load(Ordering::Acquire);
        segment.file.set_len(end).at("truncate", &segment.path)
    }

    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        let out_of_range = |end| StoreError::OutOfRange { segment: id, offset, len, end };
        let open = self.open.read().get(&id).map(|s| (Arc::clone(&s.file), s.end.load(Ordering::Acquire)));
        let file = match open {
            Some((_, end)) if offset.checked_add(len).is_none_or(|last| last > end) => {
                return Err(out_of_range(end));
            }
            Some((file, _)) => {
                self.direct.wait_for(id);
                file
            }
            None => self.sealed(id)?,
        };
        let path = || self.segment_path(id);
        let real_end = || Ok(file.metadata().at("look at", &path())?.len());
        // The system treats offsets as signed, and returns a different error for greater ones.
        if offset.checked_add(len).is_none_or(|last| i64::try_from(last).is_err()) {
            return Err(out_of_range(real_end()?));
        }
        match file.read_exact_at(buf, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(out_of_range(real_end()?)),
            Err(error) => Err(error).at("read", &path()),
        }
    }

    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let mut found = layout::list_segments(&self.root)?;
        let open = self.open.read();
        for info in &mut found {
            if let Some(segment) = open.get(&info.id) {
                info.len = segment.end.load(Ordering::Acquire);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        self.open.write().remove(&id);
        self.dirty.lock().segments.remove(&id);
        self.handles.remove(id);
        match self.root.remove(&layout::segment_name(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).at("delete", &self.segment_path(id))
            }
            _ => Ok(()),
        }
    }

    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        if uberblock.len() > UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        let mut ring = self.ring.lock();
        self.gate.check()?;
        ring.publish(&self.ring_file, txg, uberblock).map_err(|e| {
            self.gate.poison("publish the uberblock in", &self.path().join(layout::ring_name()), e)
        })
    }

    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        self.ring.lock().read(&self.ring_file).at("read", &self.path().join(layout::ring_name()))
    }

    fn capacity(&self) -> Result<Capacity> {
        let stat = rustix::fs::statvfs(self.path()).at("ask for the free space of", self.path())?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Ok(Capacity { total: None, free, by_slots: false })
    }

    fn describe(&self) -> String {
        self.path().display().to_string()
    }

    fn control_socket(&self) -> Option<PathBuf> {
        runtime::control_socket(self.path())
    }

    fn destroy(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.gate.destroy();
        // An error no longer matters, because the pool is destroyed.
        let _ = self.direct.settle();
        self.open.write().clear();
        *self.dirty.lock() = Dirty::default();
        self.handles.clear();
        layout::remove(&self.root, &self.label.lock())
    }

    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        let len = data.len() as u64;
        let open = self.open.read().get(&id).cloned();
        let path = self.segment_path(id);
        let file = match &open {
            Some(segment) => segment.file.clone(),
            None => Arc::new(self.open_file(id)?),
        };
        let end = match &open {
            Some(segment) => segment.end.load(Ordering::Acquire),
            None => file.metadata().at("look at", &path)?.len(),
        };
        if offset.checked_add(len).is_none_or(|last| last > end) {
            return Err(StoreError::OutOfRange { segment: id, offset, len, end });
        }
        file.write_all_at(data, offset).at("write", &path)?;
        let end = AtomicU64::new(end);
        let segment = open.unwrap_or_else(|| Arc::new(OpenSegment { way: Way::of(&file), file, path, end }));
        self.dirty.lock().segments.entry(id).or_insert(segment);
        Ok(())
    }

    fn verify_own(&self, repair: bool) -> Result<u64> {
        if repair {
            self.gate.check()?;
        }
        let label = self.label.lock();
        let wrong = layout::differing_labels(&self.root, &label);
        if repair && wrong > 0 {
            layout::write_label(&self.root, &label)?;
        }
        Ok(wrong)
    }

    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        self.gate.check()?;
        let mut label = self.label.lock();
        let changed = label.mirrored(mirror, self.path())?;
        layout::write_label(&self.root, &changed)?;
        *label = changed;
        Ok(())
    }
}
