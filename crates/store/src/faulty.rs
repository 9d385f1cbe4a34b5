//! A store in memory that fails on purpose, for tests of the layers above it.
//!
//! The store records every operation in a log. From the log it makes the images that a power failure may leave at any
//! moment ([`FaultStore::crash_images`]). It makes single operations fail ([`FaultStore::fail_after`]) and flips bits
//! ([`FaultStore::corrupt`]). All of this depends only on the seed: the same calls give the same images.
//!
//! These faults are within the contract of [`Store`], and must be survived:
//! - Each append since the last sync is lost, whole, or torn at sectors of 512 bytes, in any combination. Missing
//!   bytes are zeros or garbage, and garbage may follow.
//! - Each creation, deletion and truncation since the last sync is lost or kept.
//! - The uberblock that is being published is present or not.
//! - A write or sync fails after part of its effect.
//! - A disk reports a sync that it has not done ([`FaultStore::lie`]). Later data may be lost, but the loss must be
//!   noticed.
//! - Operations take long ([`FaultStore::slow_down`]), or hang until they are released ([`FaultStore::hang_after`]).
//! - An operation is given up and done later (`FaultKind::NoAnswer`). This fault needs no waiting in tests.

mod images;
mod rng;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::memory::{Image, MemoryStore};
use crate::{Capacity, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError, UBERBLOCK_MAX};

pub use images::{CrashImage, CrashImages};
use rng::Rng;

/// A store in memory with a log and planned faults. Clones share the same store.
#[derive(Clone)]
pub struct FaultStore {
    shared: Arc<Mutex<State>>,
    /// Notified when operations no longer hang.
    released: Arc<Condvar>,
}

/// The way in which an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A write, sync or publication returns EIO after part of it is done.
    Write,
    /// A write returns `Full`; a sync or publication fails with ENOSPC.
    NoSpace,
    /// A read returns EIO.
    Read,
    /// A write, sync or publication is reported as given up (`NoAnswer`), and so are all later operations. The first
    /// one is done when [`FaultStore::answer`] is called.
    NoAnswer,
}

/// Whether operations hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hang {
    /// After this number of further operations.
    After(u64),
    Now,
}

/// An entry of the log.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Create(SegmentId),
    Append {
        id: SegmentId,
        offset: u64,
        data: Arc<[u8]>,
    },
    Reopen {
        id: SegmentId,
        len: u64,
    },
    Delete(SegmentId),
    /// A successful sync.
    Sync,
    /// `done` is false when the publication failed; it may still have taken effect.
    Publish {
        txg: u64,
        bytes: Arc<[u8]>,
        done: bool,
    },
    Corrupt {
        id: SegmentId,
        offset: u64,
        xor: u8,
    },
    Rewrite {
        id: SegmentId,
        offset: u64,
        data: Arc<[u8]>,
    },
}

struct State {
    seed: u64,
    /// The contents when the log began.
    initial: Image,
    /// The contents that a running process sees.
    live: Image,
    log: Vec<Op>,
    poisoned: bool,
    /// Planned faults, each with the number of operations of its kind that still succeed before it.
    faults: Vec<(FaultKind, u64)>,
    fault_happened: bool,
    hang: Option<Hang>,
    /// Whether syncs report success without making anything durable.
    lies: bool,
    /// The minimum duration of each operation.
    delay: Duration,
    /// The change that was given up and not done yet. While it is set, no operation gets an answer.
    late: Option<Late>,
}

/// A change that was given up.
type Late = Box<dyn FnOnce(&FaultStore) -> Result<()> + Send>;

impl FaultStore {
    /// An empty store.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::over(seed, &MemoryStore::new())
    }

    /// A store whose initial contents are those of `store`, all durable. It is used to continue from a crash image.
    #[must_use]
    pub fn over(seed: u64, store: &MemoryStore) -> Self {
        let image = store.image();
        let state = State {
            seed,
            initial: image.clone(),
            live: image,
            log: Vec::new(),
            poisoned: false,
            faults: Vec::new(),
            fault_happened: false,
            hang: None,
            lies: false,
            delay: Duration::ZERO,
            late: None,
        };
        Self { shared: Arc::new(Mutex::new(state)), released: Arc::default() }
    }

    /// Makes one operation fail after `n` successful ones. Kind `Read` counts reads; the other kinds count all
    /// operations that change the store, including `sync` and `publish`. Several faults may be planned at once.
    pub fn fail_after(&self, n: u64, kind: FaultKind) {
        self.shared.lock().faults.push((kind, n));
    }

    /// Removes all planned faults.
    pub fn clear_faults(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.fault_happened = false;
    }

    /// From now on, syncs and publications succeed without making anything durable. Any combination of later writes
    /// may be lost.
    pub fn lie(&self) {
        self.shared.lock().lies = true;
    }

    /// Makes all operations hang after `n` more, until [`release`](Self::release).
    pub fn hang_after(&self, n: u64) {
        self.shared.lock().hang = Some(Hang::After(n));
    }

    /// Ends the hanging. Operations that hang continue.
    pub fn release(&self) {
        self.shared.lock().hang = None;
        self.released.notify_all();
    }

    /// Whether operations hang now.
    #[must_use]
    pub fn is_hanging(&self) -> bool {
        self.shared.lock().hang == Some(Hang::Now)
    }

    /// From now on, each operation takes at least `delay`.
    pub fn slow_down(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Whether a change was given up and not done yet.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.shared.lock().late.is_some()
    }

    /// Does the change that was given up by [`FaultKind::NoAnswer`]. From now on the store answers again.
    ///
    /// # Errors
    /// The errors of that change.
    pub fn answer(&self) -> Result<()> {
        let late = self.shared.lock().late.take();
        late.map_or(Ok(()), |late| late(self))
    }

    /// Whether any planned fault has happened since the store was made or [`clear_faults`](Self::clear_faults) was
    /// called.
    #[must_use]
    pub fn fault_happened(&self) -> bool {
        self.shared.lock().fault_happened
    }

    /// Whether a planned fault has not happened yet.
    #[must_use]
    pub fn fault_pending(&self) -> bool {
        !self.shared.lock().faults.is_empty()
    }

    /// Flips the bits `xor` in a stored byte. Later crash images contain the change.
    ///
    /// # Errors
    /// `NoSegment`, `OutOfRange`.
    pub fn corrupt(&self, segment: SegmentId, offset: u64, xor: u8) -> Result<()> {
        let mut state = self.shared.lock();
        state.live.corrupt(segment, offset, xor)?;
        state.log.push(Op::Corrupt { id: segment, offset, xor });
        Ok(())
    }

    /// The number of logged operations. It identifies the current moment as a crash point.
    #[must_use]
    pub fn position(&self) -> usize {
        self.shared.lock().log.len()
    }

    /// Simulates the end of the process and the start of a new one, without a power failure. Nothing is lost and no
    /// segment is open. A poisoned store accepts writes again, and a change that was given up is not done any more.
    pub fn restart(&self) {
        let mut state = self.shared.lock();
        state.poisoned = false;
        state.late = None;
        state.live.close_all();
    }

    /// Returns the contents that a running process sees, as an independent store.
    #[must_use]
    pub fn snapshot(&self) -> MemoryStore {
        MemoryStore::from_image(self.shared.lock().live.clone()).snapshot()
    }

    /// Returns `per_point` images of what a crash may leave, for each moment since the store was made. The first
    /// image loses all that may be lost, the second loses nothing, and the others are between these.
    pub fn crash_images(&self, per_point: usize) -> impl Iterator<Item = MemoryStore> + use<> {
        self.crash_points(.., per_point).map(|image| image.store)
    }

    /// Returns crash images of the given points only (see [`position`](Self::position)), with what is known about
    /// each image.
    #[must_use]
    pub fn crash_points(&self, points: impl RangeBounds<usize>, per_point: usize) -> CrashImages {
        let state = self.shared.lock();
        CrashImages::new(state.seed, state.initial.clone(), state.log.clone(), points, per_point)
    }
}

impl FaultStore {
    /// Returns one image of those that [`crash_points`](Self::crash_points) returns for a point; `None` beyond the
    /// last point. In this image, the next operation of the log has not begun.
    #[must_use]
    pub fn crash_image(
        &self,
        point: usize,
        (variant, of): (usize, usize),
        is_under_way: bool,
    ) -> Option<MemoryStore> {
        let state = self.shared.lock();
        let known = if is_under_way { state.log.len() } else { point.min(state.log.len()) };
        let log = state.log.get(..known)?.to_vec();
        let images = CrashImages::new(state.seed, state.initial.clone(), log, point..=point, of);
        images.map(|image| image.store).nth(variant)
    }
}

impl FaultStore {
    /// The first step of every operation. It may sleep or hang.
    fn enter(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.shared.lock();
        if !state.delay.is_zero() {
            let delay = state.delay;
            MutexGuard::unlocked(&mut state, || std::thread::sleep(delay));
        }
        state.hang = match state.hang {
            Some(Hang::After(0)) => Some(Hang::Now),
            Some(Hang::After(n)) => Some(Hang::After(n - 1)),
            other => other,
        };
        while state.hang == Some(Hang::Now) {
            self.released.wait(&mut state);
        }
        if state.late.is_some() {
            return Err(no_answer());
        }
        Ok(state)
    }

    /// Does a change, or keeps it for [`answer`](Self::answer).
    fn change(&self, act: impl FnOnce(&Self) -> Result<()> + Send + 'static) -> Result<()> {
        let mut state = self.enter()?;
        if state.strike(|kind| kind == FaultKind::NoAnswer).is_some() {
            state.late = Some(Box::new(act));
            return Err(no_answer());
        }
        drop(state);
        act(self)
    }
}

fn no_answer() -> StoreError {
    StoreError::NoAnswer { op: "write to", path: path(), since: Duration::ZERO }
}

impl State {
    fn rng(&self) -> Rng {
        Rng::new(&[self.seed, self.log.len() as u64])
    }

    /// Counts an operation of the kinds that `counts` selects. Returns the kind if the operation must fail.
    fn strike(&mut self, counts: impl Fn(FaultKind) -> bool) -> Option<FaultKind> {
        let mut struck = None;
        self.faults.retain_mut(|(kind, left)| {
            if !counts(*kind) {
                return true;
            }
            let Some(less) = left.checked_sub(1) else {
                struck = Some(*kind);
                return false;
            };
            *left = less;
            true
        });
        self.fault_happened |= struck.is_some();
        struck
    }

    /// The first step of every change.
    fn begin(&mut self, op: &'static str) -> Result<()> {
        if self.poisoned {
            return Err(StoreError::Poisoned { path: path() });
        }
        match self.strike(|kind| matches!(kind, FaultKind::Write | FaultKind::NoSpace)) {
            None => Ok(()),
            Some(FaultKind::NoSpace) => Err(StoreError::Full { path: path() }),
            Some(_) => Err(failure(op, libc::EIO)),
        }
    }

    /// The first step of a sync or publication. A failure poisons the store, because these must not be tried again.
    fn begin_durable(&mut self, op: &'static str) -> Result<()> {
        let result = self.begin(op);
        self.poisoned |= result.is_err();
        match result {
            Err(StoreError::Full { .. }) => Err(failure(op, libc::ENOSPC)),
            other => other,
        }
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

fn path() -> PathBuf {
    PathBuf::from("fault store")
}

fn failure(op: &'static str, errno: i32) -> StoreError {
    StoreError::Io { op, path: path(), source: io::Error::from_raw_os_error(errno) }
}

/// The operations themselves, without delay or hanging.
impl FaultStore {
    fn create_now(&self, id: SegmentId) -> Result<()> {
        let mut state = self.shared.lock();
        state.begin("create a segment in")?;
        state.live.create(id)?;
        state.log.push(Op::Create(id));
        Ok(())
    }

    fn append_now(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.shared.lock();
        if let Err(error) = state.begin("write") {
            let end = state.live.segments.get(&id).filter(|s| s.open).map(|s| s.bytes.len() as u64);
            if !state.poisoned && end == Some(offset) {
                // The end did not move, but part of the data may have reached the disk.
                let part = state.rng().below(data.len() as u64 + 1) as usize;
                state.log.push(Op::Append { id, offset, data: data[..part].into() });
            }
            return Err(error);
        }
        state.live.append(id, offset, data)?;
        state.log.push(Op::Append { id, offset, data: data.into() });
        Ok(())
    }

    fn sync_now(&self) -> Result<()> {
        let mut state = self.shared.lock();
        state.live.writable()?;
        state.begin_durable("sync")?;
        if !state.lies {
            state.log.push(Op::Sync);
        }
        Ok(())
    }

    fn reopen_now(&self, id: SegmentId, len: u64) -> Result<()> {
        let mut state = self.shared.lock();
        state.begin("open a segment of")?;
        state.live.reopen(id, len)?;
        state.log.push(Op::Reopen { id, len });
        Ok(())
    }

    fn seal_now(&self, id: SegmentId) -> Result<()> {
        let mut state = self.shared.lock();
        state.begin("seal a segment of")?;
        state.live.seal(id)
    }

    fn delete_now(&self, id: SegmentId) -> Result<()> {
        let mut state = self.shared.lock();
        state.begin("delete a segment of")?;
        state.live.delete(id)?;
        state.log.push(Op::Delete(id));
        Ok(())
    }

    fn publish_now(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        let mut state = self.shared.lock();
        if uberblock.len() > UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        state.live.writable()?;
        let was_poisoned = state.poisoned;
        let result = state.begin_durable("publish in");
        if !was_poisoned {
            let done = result.is_ok() && !state.lies;
            state.log.push(Op::Publish { txg, bytes: uberblock.into(), done });
        }
        result?;
        state.live.publish(txg, uberblock)
    }

    fn rewrite_now(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.shared.lock();
        state.begin("rewrite in")?;
        state.live.rewrite(id, offset, data)?;
        state.log.push(Op::Rewrite { id, offset, data: data.into() });
        Ok(())
    }
}

impl Store for FaultStore {
    fn segment_capacity(&self) -> u64 {
        self.shared.lock().live.segment_capacity
    }

    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.change(move |store| store.create_now(id))
    }

    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let data: Arc<[u8]> = data.into();
        self.change(move |store| store.append_now(id, offset, &data))
    }

    fn sync(&self) -> Result<()> {
        self.change(move |store| store.sync_now())
    }

    fn start_writeback(&self, _id: SegmentId, _offset: u64, _len: u64) {}

    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.change(move |store| store.reopen_now(id, len))
    }

    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.change(move |store| store.seal_now(id))
    }

    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut state = self.enter()?;
        if state.strike(|kind| kind == FaultKind::Read).is_some() {
            return Err(failure("read", libc::EIO));
        }
        state.live.read(id, offset, buf)
    }

    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        Ok(self.enter()?.live.list())
    }

    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.change(move |store| store.delete_now(id))
    }

    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        let uberblock: Arc<[u8]> = uberblock.into();
        self.change(move |store| store.publish_now(txg, &uberblock))
    }

    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        Ok(self.enter()?.live.uberblocks.iter().cloned().collect())
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(self.enter()?.live.capacity())
    }

    fn describe(&self) -> String {
        path().display().to_string()
    }

    fn control_socket(&self) -> Option<PathBuf> {
        None
    }

    fn destroy(&self) -> Result<()> {
        self.shared.lock().live.destroy();
        Ok(())
    }

    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let data: Arc<[u8]> = data.into();
        self.change(move |store| store.rewrite_now(id, offset, &data))
    }
}
