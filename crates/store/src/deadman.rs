//! A store that records which requests are unanswered, and limits the waiting for them.
//!
//! It corresponds to ZFS's deadman (zfs(4), `zfs_deadman_ziotime_ms`). A system call cannot be cancelled. Therefore,
//! a thread of its own does each request to a member of a mirror, with its own buffers, and the caller can stop
//! waiting. With a single store there is no alternative to waiting, so the caller's thread does the request. Which
//! answers can be given up: `docs/format/store.md`, "Stores that do not answer".

mod buffers;
#[cfg(test)]
mod tests;
mod workers;

use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::label::MirrorLabel;
use crate::{
    CacheStatus, Capacity, DEADMAN, MayGiveUp, Mirror, RawUberblock, Result, SegmentId, SegmentInfo, Store,
    StoreError, Traffic, Unanswered, vectored,
};

use buffers::Buffers;
use workers::Workers;

/// How often a waiting caller checks whether the store was given up.
const LOOK: Duration = Duration::from_millis(100);

/// A store with a record of its unanswered requests.
pub(crate) struct DeadmanStore {
    store: Arc<dyn Store>,
    asked: Arc<Asked>,
    /// In nanoseconds.
    deadman: AtomicU64,
    /// Set for a member of a mirror.
    may_give_up: OnceLock<MayGiveUp>,
    workers: Arc<Workers>,
    buffers: Arc<Buffers>,
}

/// The unanswered requests: by number, each with its operation and start time.
#[derive(Debug, Default)]
struct Asked {
    under_way: Mutex<BTreeMap<u64, (&'static str, Instant)>>,
    next: AtomicU64,
}

/// An unanswered request. Dropping it removes it from [`Asked`].
struct Question {
    asked: Arc<Asked>,
    number: u64,
}

impl Asked {
    fn ask(self: &Arc<Self>, op: &'static str) -> Question {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.under_way.lock().insert(number, (op, Instant::now()));
        Question { asked: self.clone(), number }
    }

    fn oldest(&self) -> Option<(&'static str, Duration)> {
        self.under_way.lock().values().next().map(|(op, begun)| (*op, begun.elapsed()))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asked.under_way.lock().remove(&self.number);
    }
}

impl fmt::Debug for DeadmanStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadmanStore").field("store", &self.store).finish_non_exhaustive()
    }
}

impl DeadmanStore {
    pub(crate) fn new(store: Box<dyn Store>) -> Self {
        Self {
            store: store.into(),
            asked: Arc::default(),
            deadman: AtomicU64::new(DEADMAN.as_nanos() as u64),
            may_give_up: OnceLock::new(),
            workers: Arc::default(),
            buffers: Arc::default(),
        }
    }

    fn deadman(&self) -> Duration {
        Duration::from_nanos(self.deadman.load(Ordering::Relaxed))
    }

    /// Does a request. If its answer may be given up, another thread does it.
    fn ask<T: Send + 'static>(
        &self,
        op: &'static str,
        act: impl FnOnce(&dyn Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.may_give_up.get() {
            None => self.ask_here(op, act),
            Some(may_give_up) => self.ask_there(op, may_give_up, act),
        }
    }

    fn is_asked_here(&self) -> bool {
        self.may_give_up.get().is_none()
    }

    fn ask_here<T>(&self, op: &'static str, act: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        let _question = self.asked.ask(op);
        act(&*self.store)
    }

    fn ask_there<T: Send + 'static>(
        &self,
        op: &'static str,
        may_give_up: &MayGiveUp,
        act: impl FnOnce(&dyn Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, answer) = mpsc::sync_channel(1);
        let (question, store) = (self.asked.ask(op), self.store.clone());
        let job = Box::new(move || {
            let result = act(&*store);
            // Before the answer is sent: the receiver relies on the request being finished and the store being
            // released.
            drop((store, question));
            // Sending fails when the caller has stopped waiting.
            let _ = tell.send(result);
        });
        let path = || PathBuf::from(self.store.describe());
        self.workers.run(job).map_err(|source| StoreError::Io {
            op: "start a thread for",
            path: path(),
            source,
        })?;
        let begun = Instant::now();
        loop {
            match answer.recv_timeout(LOOK.min(self.deadman() / 4)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => {
                    let source = std::io::Error::other("the thread that did it panicked");
                    return Err(StoreError::Io { op, path: path(), source });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let since = begun.elapsed();
            if may_give_up(&Unanswered { op, since, deadman: self.deadman() }) {
                return Err(StoreError::NoAnswer { op, path: path(), since });
            }
        }
    }
}

impl Store for DeadmanStore {
    fn segment_capacity(&self) -> u64 {
        self.store.segment_capacity()
    }
    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.ask("create a segment in", move |store| store.create_segment(id))
    }
    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.append_all(id, offset, &[IoSlice::new(data)])
    }
    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        let op = "write to";
        if self.is_asked_here() {
            return self.ask_here(op, |store| store.append_all(id, offset, pieces));
        }
        let mut data = self.buffers.take();
        data.reserve(vectored::len(pieces) as usize);
        pieces.iter().for_each(|piece| data.extend_from_slice(piece));
        let buffers = self.buffers.clone();
        self.ask(op, move |store| {
            let done = store.append(id, offset, &data);
            buffers.give(data);
            done
        })
    }
    fn sync(&self) -> Result<()> {
        self.ask("sync", |store| store.sync())
    }
    fn sync_early(&self) -> Result<()> {
        self.ask("sync", |store| store.sync_early())
    }
    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        // This is a hint. If the store does not answer, the next call that needs an answer reports it.
        let _ = self.ask("write to", move |store| {
            store.start_writeback(id, offset, len);
            Ok(())
        });
    }
    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.ask("open a segment of", move |store| store.reopen_segment(id, len))
    }
    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.ask("seal a segment of", move |store| store.seal_segment(id))
    }
    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let op = "read";
        if self.is_asked_here() {
            return self.ask_here(op, |store| store.read(id, offset, buf));
        }
        let mut own = self.buffers.take_filled(buf.len());
        let own = self.ask(op, move |store| store.read(id, offset, &mut own).map(|()| own))?;
        buf.copy_from_slice(&own);
        self.buffers.give(own);
        Ok(())
    }
    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        self.ask("list the segments of", |store| store.segments())
    }
    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.ask("delete a segment of", move |store| store.delete_segment(id))
    }
    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        let uberblock = uberblock.to_vec();
        self.ask("publish in", move |store| store.publish(txg, &uberblock))
    }
    fn commit(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        let uberblock = uberblock.to_vec();
        self.ask("commit to", move |store| store.commit(txg, &uberblock))
    }
    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        self.ask("read the uberblocks of", |store| store.uberblocks())
    }
    fn capacity(&self) -> Result<Capacity> {
        self.ask("ask for the free space of", |store| store.capacity())
    }
    fn describe(&self) -> String {
        self.store.describe()
    }
    fn control_socket(&self) -> Option<PathBuf> {
        self.store.control_socket()
    }
    fn traffic(&self) -> Option<Traffic> {
        self.store.traffic()
    }
    fn cache(&self) -> Option<CacheStatus> {
        self.store.cache()
    }
    fn set_cache_size(&self, max_bytes: u64) {
        self.store.set_cache_size(max_bytes);
    }
    fn destroy(&self) -> Result<()> {
        self.ask("destroy", |store| store.destroy())
    }
    fn uberblock_max(&self) -> usize {
        self.store.uberblock_max()
    }
    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        let data = data.to_vec();
        self.ask("rewrite in", move |store| store.rewrite(id, offset, &data))
    }
    fn verify_own(&self, repair: bool) -> Result<u64> {
        self.ask("verify the labels of", move |store| store.verify_own(repair))
    }
    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        let mirror = mirror.cloned();
        self.ask("label", move |store| store.set_mirror(mirror.as_ref()))
    }
    fn set_autotrim(&self, on: bool) {
        self.store.set_autotrim(on);
    }
    fn trim(&self) -> Result<u64> {
        self.ask("trim", |store| store.trim())
    }
    fn mirror(&self) -> Option<&dyn Mirror> {
        self.store.mirror()
    }
    fn unanswered(&self) -> Option<Unanswered> {
        let (op, since) = self.asked.oldest()?;
        Some(Unanswered { op, since, deadman: self.deadman() })
    }
    fn set_deadman(&self, wait: Duration) {
        self.deadman.store(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    fn give_up_if(&self, may_give_up: MayGiveUp) {
        // A second call has no effect: a store stays with the mirror that it was added to first.
        let _ = self.may_give_up.set(may_give_up);
    }
}
