//! A store in memory, for tests and for crash images.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Capacity, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError};
use crate::{UBERBLOCK_MAX, UBERBLOCK_RING};

/// The default maximum length of a segment.
const DEFAULT_SEGMENT_CAPACITY: u64 = 64 << 20;

/// A store in memory. Clones share the same data; [`snapshot`](Self::snapshot) makes an independent copy.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Image>>,
}

/// The data of a memory store. Snapshots share their segments until one of them is written to.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) segments: BTreeMap<SegmentId, MemorySegment>,
    /// Oldest first.
    pub(crate) uberblocks: VecDeque<RawUberblock>,
    pub(crate) segment_capacity: u64,
    /// The maximum length of all segments together, in bytes; `None` for no limit.
    pub(crate) total: Option<u64>,
    pub(crate) destroyed: bool,
}

#[derive(Clone, Default)]
pub(crate) struct MemorySegment {
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) open: bool,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            segments: BTreeMap::new(),
            uberblocks: VecDeque::new(),
            segment_capacity: DEFAULT_SEGMENT_CAPACITY,
            total: None,
            destroyed: false,
        }
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("segments", &self.segments.len())
            .field("used", &self.used())
            .field("uberblocks", &self.uberblocks.len())
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store without a size limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store whose segments together hold at most `total` bytes.
    #[must_use]
    pub fn with_capacity(total: u64) -> Self {
        Self::from_image(Image { total: Some(total), ..Image::default() })
    }

    /// An empty store whose segments are at most `capacity` bytes long.
    #[must_use]
    pub fn with_segment_capacity(capacity: u64) -> Self {
        Self::from_image(Image { segment_capacity: capacity, ..Image::default() })
    }

    /// Returns an independent store with the same contents, in which no segment is open. The segments are not copied.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self::from_image(self.image())
    }

    /// Returns the contents, with no segment open.
    pub(crate) fn image(&self) -> Image {
        let mut image = self.shared.lock().clone();
        image.close_all();
        image
    }

    /// Flips the bits `xor` in one byte of a segment, as a failing disk might.
    ///
    /// # Errors
    /// `NoSegment`, `OutOfRange`.
    pub fn corrupt(&self, segment: SegmentId, offset: u64, xor: u8) -> Result<()> {
        self.shared.lock().corrupt(segment, offset, xor)
    }

    pub(crate) fn from_image(image: Image) -> Self {
        Self { shared: Arc::new(Mutex::new(image)) }
    }
}

fn path() -> &'static Path {
    Path::new("memory")
}

impl Image {
    pub(crate) fn used(&self) -> u64 {
        self.segments.values().map(|s| s.bytes.len() as u64).sum()
    }

    /// Closes all segments for appending, as a restart does.
    pub(crate) fn close_all(&mut self) {
        for segment in self.segments.values_mut() {
            segment.open = false;
        }
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if self.destroyed {
            let why = "it was destroyed".to_owned();
            return Err(StoreError::NotAPool { path: path().to_owned(), why });
        }
        Ok(())
    }

    fn get(&self, id: SegmentId) -> Result<&MemorySegment> {
        self.segments.get(&id).ok_or_else(|| StoreError::NoSegment { id, path: path().to_owned() })
    }

    fn get_mut(&mut self, id: SegmentId) -> Result<&mut MemorySegment> {
        self.segments.get_mut(&id).ok_or_else(|| StoreError::NoSegment { id, path: path().to_owned() })
    }

    pub(crate) fn create(&mut self, id: SegmentId) -> Result<()> {
        self.writable()?;
        if self.segments.contains_key(&id) {
            return Err(StoreError::Exists { id });
        }
        if self.total.is_some_and(|total| self.used() >= total) {
            return Err(StoreError::Full { path: path().to_owned() });
        }
        self.segments.insert(id, MemorySegment { bytes: Arc::default(), open: true });
        Ok(())
    }

    pub(crate) fn append(&mut self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.writable()?;
        let room = self.total.map(|total| total.saturating_sub(self.used()));
        let capacity = self.segment_capacity;
        let Some(segment) = self.segments.get_mut(&id).filter(|segment| segment.open) else {
            return Err(StoreError::NotAtEnd { id, offset, end: None });
        };
        let end = segment.bytes.len() as u64;
        if offset != end {
            return Err(StoreError::NotAtEnd { id, offset, end: Some(end) });
        }
        let len = end.saturating_add(data.len() as u64);
        if len > capacity {
            return Err(StoreError::SegmentFull { id, len, capacity });
        }
        if room.is_some_and(|room| data.len() as u64 > room) {
            return Err(StoreError::Full { path: path().to_owned() });
        }
        Arc::make_mut(&mut segment.bytes).extend_from_slice(data);
        Ok(())
    }

    pub(crate) fn reopen(&mut self, id: SegmentId, len: u64) -> Result<()> {
        self.writable()?;
        let segment = self.get_mut(id)?;
        let end = segment.bytes.len() as u64;
        match usize::try_from(len) {
            Ok(len) if len <= segment.bytes.len() => Arc::make_mut(&mut segment.bytes).truncate(len),
            _ => return Err(StoreError::OutOfRange { segment: id, offset: len, len: 0, end }),
        }
        segment.open = true;
        Ok(())
    }

    pub(crate) fn seal(&mut self, id: SegmentId) -> Result<()> {
        self.writable()?;
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.open = false;
        }
        Ok(())
    }

    pub(crate) fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = &self.get(id)?.bytes;
        let range =
            usize::try_from(offset).ok().and_then(|start| bytes.get(start..start.checked_add(buf.len())?));
        let Some(range) = range else {
            let (len, end) = (buf.len() as u64, bytes.len() as u64);
            return Err(StoreError::OutOfRange { segment: id, offset, len, end });
        };
        buf.copy_from_slice(range);
        Ok(())
    }

    pub(crate) fn delete(&mut self, id: SegmentId) -> Result<()> {
        self.writable()?;
        self.segments.remove(&id);
        Ok(())
    }

    pub(crate) fn publish(&mut self, txg: u64, uberblock: &[u8]) -> Result<()> {
        self.writable()?;
        if uberblock.len() > UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        self.uberblocks.retain(|u| u.txg != txg);
        self.uberblocks.push_back(RawUberblock { txg, bytes: uberblock.to_vec() });
        while self.uberblocks.len() > UBERBLOCK_RING {
            self.uberblocks.pop_front();
        }
        Ok(())
    }

    pub(crate) fn rewrite(&mut self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.writable()?;
        let segment = self.get_mut(id)?;
        let (len, end) = (data.len() as u64, segment.bytes.len() as u64);
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(data.len())?));
        match range.and_then(|range| Arc::make_mut(&mut segment.bytes).get_mut(range)) {
            Some(bytes) => bytes.copy_from_slice(data),
            None => return Err(StoreError::OutOfRange { segment: id, offset, len, end }),
        }
        Ok(())
    }

    pub(crate) fn list(&self) -> Vec<SegmentInfo> {
        self.segments.iter().map(|(&id, s)| SegmentInfo { id, len: s.bytes.len() as u64 }).collect()
    }

    pub(crate) fn capacity(&self) -> Capacity {
        let free = self.total.map_or(u64::MAX / 2, |total| total.saturating_sub(self.used()));
        Capacity { total: self.total, free, by_slots: false }
    }

    pub(crate) fn corrupt(&mut self, id: SegmentId, offset: u64, xor: u8) -> Result<()> {
        let segment = self.get_mut(id)?;
        let end = segment.bytes.len() as u64;
        let index = usize::try_from(offset).ok().filter(|&i| i < segment.bytes.len());
        match index.and_then(|i| Arc::make_mut(&mut segment.bytes).get_mut(i)) {
            Some(byte) => *byte ^= xor,
            None => return Err(StoreError::OutOfRange { segment: id, offset, len: 1, end }),
        }
        Ok(())
    }

    pub(crate) fn destroy(&mut self) {
        self.segments.clear();
        self.uberblocks.clear();
        self.destroyed = true;
    }
}

impl Store for MemoryStore {
    fn segment_capacity(&self) -> u64 {
        self.shared.lock().segment_capacity
    }
    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.shared.lock().create(id)
    }
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.shared.lock().append(id, offset, data)
    }
    fn sync(&self) -> Result<()> {
        self.shared.lock().writable()
    }
    fn start_writeback(&self, _id: SegmentId, _offset: u64, _len: u64) {}
    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.shared.lock().reopen(id, len)
    }
    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.shared.lock().seal(id)
    }
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.lock().read(id, offset, buf)
    }
    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        Ok(self.shared.lock().list())
    }
    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.shared.lock().delete(id)
    }
    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        self.shared.lock().publish(txg, uberblock)
    }
    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        Ok(self.shared.lock().uberblocks.iter().cloned().collect())
    }
    fn capacity(&self) -> Result<Capacity> {
        Ok(self.shared.lock().capacity())
    }
    fn describe(&self) -> String {
        path().display().to_string()
    }
    fn control_socket(&self) -> Option<PathBuf> {
        None
    }
    fn destroy(&self) -> Result<()> {
        self.shared.lock().destroy();
        Ok(())
    }
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.shared.lock().rewrite(id, offset, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Harness};

    struct Memory;

    impl Harness for Memory {
        fn fresh(&self) -> Box<dyn Store> {
            Box::new(MemoryStore::with_capacity(16 << 20))
        }
        fn reopen(&self, _: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
            None
        }
    }

    #[test]
    fn conforms() {
        conformance::run(&Memory);
    }

    #[test]
    fn snapshots_are_independent_and_clones_are_not() {
        let store = MemoryStore::new();
        store.create_segment(SegmentId(1)).unwrap();
        store.append(SegmentId(1), 0, b"abc").unwrap();
        let (snapshot, clone) = (store.snapshot(), store.clone());
        store.append(SegmentId(1), 3, b"def").unwrap();
        assert_eq!(snapshot.segments().unwrap(), [SegmentInfo { id: SegmentId(1), len: 3 }]);
        assert_eq!(clone.segments().unwrap(), [SegmentInfo { id: SegmentId(1), len: 6 }]);
        assert!(matches!(
            snapshot.append(SegmentId(1), 3, b"x"),
            Err(StoreError::NotAtEnd { end: None, .. })
        ));
    }
}
