//! Simulated disks, and the order of the operations on them.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use snowmelt_store::{
    Capacity, DEADMAN, FaultKind, FaultStore, MayGiveUp, MemoryStore, RawUberblock, Result, SegmentId,
    SegmentInfo, Store, StoreError, Unanswered,
};

/// The mark of operations that are done one after the other.
const ALONE: u64 = 0;
const SYNC: u64 = 1;

/// An entry in the common log of all disks.
#[derive(Clone, Copy)]
struct Done {
    disk: usize,
    /// Neighbouring entries with the same mark (except [`ALONE`]) belong to one operation on several disks at once.
    /// Their order is random.
    mark: u64,
}

/// The disks of a machine.
pub(super) struct Disks {
    disks: Vec<FaultStore>,
    done: Arc<Mutex<Vec<Done>>>,
}

impl Disks {
    /// Disks with the content of `images`, all of it durable. Their log begins now.
    pub(super) fn over(images: &[(u64, MemoryStore)]) -> Self {
        let disks = images.iter().map(|(seed, image)| FaultStore::over(*seed, image)).collect();
        Self { disks, done: Arc::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.disks.len()
    }

    /// Number of operations on all disks so far.
    pub(super) fn position(&self) -> usize {
        self.done.lock().len()
    }

    /// A handle for writing to a disk.
    pub(super) fn open(&self, disk: usize) -> Disk {
        let may_give_up = OnceLock::new();
        Disk { store: self.disks[disk].clone(), disk, done: self.done.clone(), may_give_up }
    }

    /// A disk. Operations through this reference are not logged.
    pub(super) fn get(&self, disk: usize) -> &FaultStore {
        &self.disks[disk]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &FaultStore> {
        self.disks.iter()
    }

    pub(super) fn fail_after(&self, disk: usize, n: u64, kind: FaultKind) {
        self.disks[disk].fail_after(n, kind);
    }

    /// Makes a disk that did not answer finish its operation, and answer again.
    pub(super) fn answer(&self, disk: usize) {
        // No thread waits for the result.
        let _ = self.open(disk).noted(ALONE, FaultStore::answer);
    }

    /// The images after a power failure when `point` operations were done. For each disk, `variants` has the number of
    /// the image and the number of possible images.
    pub(super) fn crash(&self, point: usize, variants: &[(usize, usize)]) -> Option<Vec<MemoryStore>> {
        let mut done = self.done.lock().clone();
        for run in done.chunk_by_mut(|a, b| a.mark == b.mark && a.mark != ALONE) {
            run.sort_by_key(|entry| entry.disk);
        }
        let mut images = Vec::new();
        for (disk, (store, variant)) in self.disks.iter().zip(variants).enumerate() {
            let (before, after) = done.split_at_checked(point)?;
            // An operation on a single disk does not begin before all earlier ones are done.
            let under_way = after.chunk_by(|a, b| a.mark == b.mark && a.mark != ALONE).next();
            let is_under_way = under_way.is_some_and(|run| run.iter().any(|entry| entry.disk == disk));
            let point = before.iter().filter(|entry| entry.disk == disk).count();
            images.push(store.crash_image(point, *variant, is_under_way)?);
        }
        Some(images)
    }
}

/// A disk as its writer sees it.
pub(super) struct Disk {
    store: FaultStore,
    disk: usize,
    done: Arc<Mutex<Vec<Done>>>,
    may_give_up: OnceLock<MayGiveUp>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl std::fmt::Debug for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.disk)
    }
}

impl Disk {
    fn noted(&self, mark: u64, op: impl FnOnce(&FaultStore) -> Result<()>) -> Result<()> {
        let before = self.store.position();
        let result = match op(&self.store) {
            // A writer that needs the answer waits for it.
            Err(StoreError::NoAnswer { .. }) if !self.is_given_up() => self.store.answer(),
            other => other,
        };
        let entry = Done { disk: self.disk, mark };
        self.done.lock().extend((before..self.store.position()).map(|_| entry));
        result
    }
}

impl Disk {
    fn is_given_up(&self) -> bool {
        let unanswered = Unanswered { op: "write to", since: DEADMAN, deadman: DEADMAN };
        self.may_give_up.get().is_some_and(|may_give_up| may_give_up(&unanswered))
    }
}

impl Store for Disk {
    fn segment_capacity(&self) -> u64 {
        self.store.segment_capacity()
    }
    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.noted(ALONE, |store| store.create_segment(id))
    }
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.noted(ALONE, |store| store.append(id, offset, data))
    }
    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.noted(ALONE, |store| store.append_all(id, offset, pieces))
    }
    fn sync(&self) -> Result<()> {
        self.noted(SYNC, Store::sync)
    }
    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        self.store.start_writeback(id, offset, len);
    }
    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.noted(ALONE, |store| store.reopen_segment(id, len))
    }
    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.noted(ALONE, |store| store.seal_segment(id))
    }
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.store.read(id, offset, buf)
    }
    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        self.store.segments()
    }
    fn set_ends(&self, ends: &[SegmentInfo]) -> Result<()> {
        self.noted(ALONE, |store| store.set_ends(ends))
    }
    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.noted(ALONE, |store| store.delete_segment(id))
    }
    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        let sum = uberblock.iter().fold(txg, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.noted(sum.max(SYNC + 1), |store| store.publish(txg, uberblock))
    }
    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        self.store.uberblocks()
    }
    fn capacity(&self) -> Result<Capacity> {
        self.store.capacity()
    }
    fn describe(&self) -> String {
        format!("disk{}", self.disk)
    }
    fn control_socket(&self) -> Option<PathBuf> {
        None
    }
    fn destroy(&self) -> Result<()> {
        self.noted(ALONE, Store::destroy)
    }
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.noted(ALONE, |store| store.rewrite(id, offset, data))
    }
    fn verify_own(&self, repair: bool) -> Result<u64> {
        self.store.verify_own(repair)
    }
    fn unanswered(&self) -> Option<Unanswered> {
        let unanswered = Unanswered { op: "write to", since: DEADMAN, deadman: DEADMAN };
        self.store.is_late().then_some(unanswered)
    }
    fn give_up_if(&self, may_give_up: MayGiveUp) {
        let _ = self.may_give_up.set(may_give_up);
    }
}
