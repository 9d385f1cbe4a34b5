//! A store in a regular file or on a block device.
//!
//! It consists of labels, the uberblock ring, the slot table, and slots of equal length for segments. Layout,
//! durability and crash argument: `docs/format/store.md`, "The file store".
//!
//! Lock order: `syncing`, then `ring`, then `table`. No I/O is done while `table` is locked, except for repairs.

mod geometry;
mod layout;
mod table;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;

use crate::direct::{Direct, Way};
use crate::error::At;
use crate::gate::Gate;
use crate::label::{Label, MirrorLabel, PoolLabel};
use crate::ring::Ring;
use crate::trusted::Place;
use crate::{
    Access, Capacity, CreateOptions, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError,
};
use crate::{UBERBLOCK_MAX, runtime, syscalls, vectored};

use geometry::{Geometry, RING_BASE};
use table::Table;

/// An open pool in a file or on a device.
#[derive(Debug)]
pub struct FileStore {
    /// Absolute, without symbolic links.
    path: PathBuf,
    gate: Gate,
    /// Declared before `file`, so that it is dropped first: its drop waits for writes that are under way.
    direct: Direct,
    /// Also holds the owner's lock, when the store is open for writing.
    file: Arc<File>,
    way: Arc<Way>,
    geometry: Geometry,
    label: Mutex<Label>,
    ring: Mutex<Ring>,
    guid: u64,
    table: RwLock<Table>,
    /// Whether the space of a slot is returned to the host when its segment is deleted.
    autotrim: AtomicBool,
    /// Held during a sync, so that two concurrent syncs both return the error of either.
    syncing: Mutex<()>,
}

impl FileStore {
    /// Creates a pool in the file or on the device `path`.
    ///
    /// # Errors
    /// See [`create`](crate::create).
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self> {
        layout::create(path, options, None)?;
        Self::open(path, Access::ReadWrite)
    }

    /// Creates a pool with segments of the given length.
    pub(crate) fn create_with(path: &Path, options: &CreateOptions, slot_len: u64) -> Result<Self> {
        layout::create(path, options, Some(slot_len))?;
        Self::open(path, Access::ReadWrite)
    }

    /// Returns the segment length that a new pool at `path` would have.
    pub(crate) fn slot_len(path: &Path, options: &CreateOptions) -> Result<u64> {
        layout::slot_len(path, options)
    }

    /// Opens the pool in the file or on the device `path`.
    ///
    /// # Errors
    /// See [`open`](crate::open).
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let place = Place::find(path)?;
        let path = place.path().to_owned();
        let file = match access {
            Access::ReadWrite => layout::open_owned(&place)?,
            Access::ReadOnly => {
                let file = place.medium(false, OFlags::empty())?;
                place.check_owner(&file)?;
                file
            }
        };
        // Read under the lock: the previous owner may have destroyed the pool.
        let (label, geometry) = layout::read_label(&file, &path)?;
        let guid = label.pool.guid;
        let ring = Ring::open(&file, RING_BASE, guid).at("read the uberblocks of", &path)?;
        let table = Table::load(&file, &geometry, guid).at("read the slot table of", &path)?;
        let file = Arc::new(file);
        Ok(Self {
            gate: Gate::new(&path, access),
            path,
            direct: Direct::default(),
            way: Way::of(&file),
            file,
            geometry,
            label: Mutex::new(label),
            ring: Mutex::new(ring),
            guid,
            table: RwLock::new(table),
            autotrim: AtomicBool::new(true),
            syncing: Mutex::default(),
        })
    }

    /// Reads the label of the pool in the file or on the device `path`.
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
        let file = Place::find(path)?.medium(false, OFlags::empty())?;
        layout::read_label(&file, path).map(|(label, _)| label)
    }

    /// Renames the pool.
    ///
    /// # Errors
    /// `Invalid` for an invalid name or for another guid; `ReadOnly`, `Io`.
    pub fn set_label(&self, pool: &PoolLabel) -> Result<()> {
        self.gate.check()?;
        let mut label = self.label.lock();
        let renamed = label.renamed(pool, &self.path)?;
        layout::write_label(&self.file, &renamed).at("write the label of", &self.path)?;
        *label = renamed;
        Ok(())
    }

    /// Returns the space of a slot to the host. Returns whether that succeeded.
    fn punch(&self, slot: u64) -> bool {
        layout::punch(&self.file, self.geometry.slot_offset(slot), self.geometry.slot_len)
    }

    fn no_segment(&self, id: SegmentId) -> StoreError {
        StoreError::NoSegment { id, path: self.path.clone() }
    }
}

impl Store for FileStore {
    fn segment_capacity(&self) -> u64 {
        self.geometry.slot_len
    }

    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let entry = {
            let mut table = self.table.write();
            if table.get(id).is_some() {
                return Err(StoreError::Exists { id });
            }
            table.start(id).ok_or_else(|| StoreError::Full { path: self.path.clone() })?
        };
        let written = self.geometry.write_header(&self.file, self.guid, id, &entry);
        if written.is_err() {
            let mut table = self.table.write();
            table.take(id);
            table.give_back(entry.slot);
        }
        written.at("write a slot header of", &self.path)
    }

    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.append_all(id, offset, &[IoSlice::new(data)])
    }

    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.gate.check()?;
        let (slot, end) = match self.table.read().get(id) {
            Some(entry) if entry.open => (entry.slot, entry.end),
            _ => return Err(StoreError::NotAtEnd { id, offset, end: None }),
        };
        if offset != end {
            return Err(StoreError::NotAtEnd { id, offset, end: Some(end) });
        }
        let capacity = self.geometry.slot_len;
        let len = end.saturating_add(vectored::len(pieces));
        if len > capacity {
            return Err(StoreError::SegmentFull { id, len, capacity });
        }
        let at = self.geometry.slot_offset(slot) + offset;
        let written = self.direct.write((id, &self.way), pieces, at);
        let written = written.map_err(|failed| failed.told(&self.gate, &self.path))?;
        vectored::write_rest_at(&self.file, pieces, at, written).at("write", &self.path)?;
        if let Some(entry) = self.table.write().get_mut(id) {
            entry.end = len;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.direct.settle().map_err(|e| self.gate.poison("write", &self.path, e))?;
        self.file.sync_data().map_err(|e| self.gate.poison("sync", &self.path, e))
    }

    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        if let Some(entry) = self.table.read().get(id) {
            syscalls::start_writeback(&self.file, self.geometry.slot_offset(entry.slot) + offset, len);
        }
    }

    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        let entry = self.table.read().get(id).ok_or_else(|| self.no_segment(id))?;
        if len > entry.end {
            return Err(StoreError::OutOfRange { segment: id, offset: len, len: 0, end: entry.end });
        }
        if entry.sealed {
            self.geometry.clear_seal(&self.file, entry.slot).at("clear a slot seal of", &self.path)?;
        }
        if let Some(entry) = self.table.write().get_mut(id) {
            entry.end = len;
            entry.open = true;
            entry.sealed = false;
        }
        Ok(())
    }

    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        let Some(entry) = self.table.read().get(id).filter(|entry| entry.open) else { return Ok(()) };
        self.geometry.write_seal(&self.file, self.guid, id, &entry).at("write a slot seal of", &self.path)?;
        if let Some(entry) = self.table.write().get_mut(id) {
            entry.open = false;
            entry.sealed = true;
        }
        Ok(())
    }

    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let entry = self.table.read().get(id).ok_or_else(|| self.no_segment(id))?;
        let len = buf.len() as u64;
        let out_of_range = || StoreError::OutOfRange { segment: id, offset, len, end: entry.end };
        if offset.checked_add(len).is_none_or(|last| last > entry.end) {
            return Err(out_of_range());
        }
        self.direct.wait_for(id);
        match self.file.read_exact_at(buf, self.geometry.slot_offset(entry.slot) + offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(out_of_range()),
            Err(error) => Err(error).at("read", &self.path),
        }
    }

    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        Ok(self.table.read().list())
    }

    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        let Some(entry) = self.table.write().take(id) else { return Ok(()) };
        if let Err(error) = self.geometry.clear_header(&self.file, entry.slot) {
            // The segment still exists, and the deletion can be tried again.
            self.table.write().restore(id, entry);
            return Err(error).at("clear a slot header of", &self.path);
        }
        // Errors are ignored: a slot that keeps its space is overwritten later. The slot is not free until this is
        // done.
        if self.autotrim.load(Ordering::Relaxed) {
            self.punch(entry.slot);
        }
        self.table.write().give_back(entry.slot);
        Ok(())
    }

    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        if uberblock.len() > UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        let _syncing = self.syncing.lock();
        let mut ring = self.ring.lock();
        self.gate.check()?;
        ring.publish(&self.file, txg, uberblock)
            .map_err(|e| self.gate.poison("publish the uberblock in", &self.path, e))
    }

    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        self.ring.lock().read(&self.file).at("read the uberblocks of", &self.path)
    }

    fn capacity(&self) -> Result<Capacity> {
        let free = self.table.read().free_slots() * self.geometry.slot_len;
        Ok(Capacity { total: Some(self.geometry.slot_count * self.geometry.slot_len), free, by_slots: true })
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn control_socket(&self) -> Option<PathBuf> {
        runtime::control_socket(&self.path)
    }

    fn destroy(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.gate.destroy();
        // An error no longer matters, because the pool is destroyed.
        let _ = self.direct.settle();
        self.table.write().clear();
        layout::wipe(&self.file, &self.geometry).at("wipe", &self.path)
    }

    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.gate.check()?;
        self.direct.wait_for(id);
        // Locked during the write, so that the slot cannot be given to another segment.
        let table = self.table.read();
        let entry = table.get(id).ok_or_else(|| self.no_segment(id))?;
        let len = data.len() as u64;
        if offset.checked_add(len).is_none_or(|last| last > entry.end) {
            return Err(StoreError::OutOfRange { segment: id, offset, len, end: entry.end });
        }
        let at = self.geometry.slot_offset(entry.slot) + offset;
        self.file.write_all_at(data, at).at("write", &self.path)
    }

    fn verify_own(&self, repair: bool) -> Result<u64> {
        if repair {
            self.gate.check()?;
        }
        let label = self.label.lock();
        let mut wrong = layout::differing_labels(&self.file, &label);
        if repair && wrong > 0 {
            layout::write_label(&self.file, &label).at("write the label of", &self.path)?;
        }
        drop(label);
        // Locked during I/O, as in `rewrite`.
        let table = self.table.read();
        for entry in table.entries() {
            wrong += self
                .geometry
                .verify_entry(&self.file, self.guid, entry, repair)
                .at("write the slot table of", &self.path)?;
        }
        Ok(wrong)
    }

    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        self.gate.check()?;
        let mut label = self.label.lock();
        let changed = label.mirrored(mirror, &self.path)?;
        layout::write_label(&self.file, &changed).at("write the label of", &self.path)?;
        *label = changed;
        Ok(())
    }

    fn set_autotrim(&self, on: bool) {
        self.autotrim.store(on, Ordering::Relaxed);
    }

    fn trim(&self) -> Result<u64> {
        let mut trimmed = 0;
        for slot in 0..self.geometry.slot_count {
            self.gate.check()?;
            // Locked during I/O, as in `rewrite`: the slot must stay free.
            let table = self.table.read();
            if table.is_free(slot) && self.punch(slot) {
                trimmed += self.geometry.slot_len;
            }
        }
        Ok(trimmed)
    }
}
