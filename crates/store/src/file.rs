//! A store in a regular file or on a block device: labels, uberblock ring, slot table, and fixed segment slots.
//!
//! Layout, durability and crash argument: `docs/format/store.md`, "The file store".
//!
//! Lock order: `syncing`, then `ring`, then `table`. No I/O to slots happens under `table`; slot headers are written
//! under it, so that their order is that of the calls.

mod geometry;
mod layout;
mod table;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::error::At;
use crate::gate::Gate;
use crate::label::{Label, PoolLabel};
use crate::ring::Ring;
use crate::{
    Access, Capacity, CreateOptions, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError,
};
use crate::{UBERBLOCK_MAX, runtime, syscalls};

use geometry::{Geometry, RING_BASE};
use table::Table;

/// A pool's file or device, open.
#[derive(Debug)]
pub struct FileStore {
    /// Absolute, without symbolic links.
    path: PathBuf,
    gate: Gate,
    /// Holds the owner's lock, too, when it is open for writing.
    file: File,
    geometry: Geometry,
    label: Mutex<Label>,
    ring: Mutex<Ring>,
    table: Mutex<Table>,
    /// Held through a sync, so that of two concurrent ones both see the error of either.
    syncing: Mutex<()>,
}

impl FileStore {
    /// Makes a pool in the file or on the device `path`.
    ///
    /// # Errors
    /// See [`create`](crate::create).
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self> {
        layout::create(path, options)?;
        Self::open(path, Access::ReadWrite)
    }

    /// Opens the pool in the file or on the device `path`.
    ///
    /// # Errors
    /// See [`open`](crate::open).
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let path = std::fs::canonicalize(path).at("find", path)?;
        let file = match access {
            Access::ReadWrite => layout::open_owned(&path)?,
            Access::ReadOnly => File::open(&path).at("open", &path)?,
        };
        // The label is read under the lock: whoever held it before may have destroyed the pool.
        let (label, geometry) = layout::read_label(&file, &path)?;
        let ring = Ring::open(&file, RING_BASE, label.pool.guid).at("read the uberblocks of", &path)?;
        let table = Table::load(&file, &geometry, label.pool.guid).at("read the slot table of", &path)?;
        Ok(Self {
            gate: Gate::new(&path, access),
            path,
            file,
            geometry,
            label: Mutex::new(label),
            ring: Mutex::new(ring),
            table: Mutex::new(table),
            syncing: Mutex::default(),
        })
    }

    /// The label of the pool in the file or on the device `path`.
    ///
    /// # Errors
    /// `NotAPool`, `Io`.
    pub fn label(path: &Path) -> Result<PoolLabel> {
        let file = File::open(path).at("open", path)?;
        layout::read_label(&file, path).map(|(label, _)| label.pool)
    }

    /// Gives the pool another name.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be or another guid; `ReadOnly`, `Io`.
    pub fn set_label(&self, pool: &PoolLabel) -> Result<()> {
        self.gate.check()?;
        let mut label = self.label.lock();
        let renamed = label.renamed(pool, &self.path)?;
        layout::write_label(&self.file, &renamed).at("write the label of", &self.path)?;
        *label = renamed;
        Ok(())
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
        let mut table = self.table.lock();
        if table.get(id).is_some() {
            return Err(StoreError::Exists { id });
        }
        let Some(slot) = table.first_free() else {
            return Err(StoreError::Full { path: self.path.clone() });
        };
        table.write_header(&self.file, &self.geometry, slot, id).at("write a slot header of", &self.path)?;
        table.occupy(slot, id);
        Ok(())
    }

    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.gate.check()?;
        let (slot, end) = match self.table.lock().get(id) {
            Some(entry) if entry.open => (entry.slot, entry.end),
            _ => return Err(StoreError::NotAtEnd { id, offset, end: None }),
        };
        if offset != end {
            return Err(StoreError::NotAtEnd { id, offset, end: Some(end) });
        }
        let capacity = self.geometry.slot_len;
        let len = end.saturating_add(data.len() as u64);
        if len > capacity {
            return Err(StoreError::SegmentFull { id, len, capacity });
        }
        self.file.write_all_at(data, self.geometry.slot_offset(slot) + offset).at("write", &self.path)?;
        if let Some(entry) = self.table.lock().get_mut(id) {
            entry.end = len;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.file.sync_data().map_err(|e| self.gate.poison("sync", &self.path, e))
    }

    fn start_writeback(&self) {
        syscalls::start_writeback(&self.file, 0, 0);
    }

    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.gate.check()?;
        let mut table = self.table.lock();
        let entry = table.get(id).ok_or_else(|| self.no_segment(id))?;
        if len > entry.end {
            return Err(StoreError::OutOfRange { segment: id, offset: len, len: 0, end: entry.end });
        }
        if entry.sealed {
            table
                .clear_seal(&self.file, &self.geometry, entry.slot)
                .at("write a slot seal of", &self.path)?;
        }
        if let Some(entry) = table.get_mut(id) {
            entry.end = len;
            entry.open = true;
            entry.sealed = false;
        }
        Ok(())
    }

    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let mut table = self.table.lock();
        let Some(entry) = table.get(id).filter(|entry| entry.open) else { return Ok(()) };
        table
            .write_seal(&self.file, &self.geometry, entry.slot, id, entry.end)
            .at("write a slot seal of", &self.path)?;
        if let Some(entry) = table.get_mut(id) {
            entry.open = false;
            entry.sealed = true;
        }
        Ok(())
    }

    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let entry = self.table.lock().get(id).ok_or_else(|| self.no_segment(id))?;
        let len = buf.len() as u64;
        let out_of_range = || StoreError::OutOfRange { segment: id, offset, len, end: entry.end };
        if offset.checked_add(len).is_none_or(|last| last > entry.end) {
            return Err(out_of_range());
        }
        match self.file.read_exact_at(buf, self.geometry.slot_offset(entry.slot) + offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(out_of_range()),
            Err(error) => Err(error).at("read", &self.path),
        }
    }

    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        Ok(self.table.lock().list())
    }

    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let mut table = self.table.lock();
        let Some(entry) = table.get(id) else { return Ok(()) };
        table
            .clear_header(&self.file, &self.geometry, entry.slot)
            .at("clear a slot header of", &self.path)?;
        // The hole is punched before the slot can be taken again. Best effort: where the medium cannot, the slot is
        // overwritten in time.
        layout::punch(&self.file, self.geometry.slot_offset(entry.slot), self.geometry.slot_len);
        table.release(id);
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
        let free = self.table.lock().free_slots() * self.geometry.slot_len;
        Ok(Capacity { total: Some(self.geometry.slot_count * self.geometry.slot_len), free })
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
        let mut table = self.table.lock();
        table.release_all();
        layout::wipe(&self.file, &self.geometry).at("wipe", &self.path)
    }
}
