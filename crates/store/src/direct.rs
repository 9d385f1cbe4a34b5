//! Writes that bypass the page cache (`open(2)`, `O_DIRECT`).
//!
//! Bulk data would be copied to the page cache only to be written from there. This copy costs more time than all
//! other work on the data, and it would evict other pages from the cache.
//!
//! A thread of the store writes one run while the caller gathers the next. As with the page cache, an append returns
//! when its bytes are copied and have space on the disk. If they cannot be written later, the next write or sync of
//! the store returns the error.

mod run;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::gate::Gate;
use crate::{SegmentId, StoreError, vectored};

pub(crate) use run::Way;
use run::{ALIGN, Room, Run};

/// The minimum length of a direct write. A shorter run goes through the page cache, where later reads find it.
const LEN_MIN: u64 = 256 << 10;
/// Maximum number of bytes that are gathered for one write.
const CHUNK: usize = 4 << 20;

/// The direct writes of one store.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    shared: Arc<Shared>,
    /// Started on first use; `None` if the thread could not be started.
    thread: OnceLock<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: Option<Run>,
    /// The segment of the run that waits to be written or is being written.
    under_way: Option<SegmentId>,
    failure: Option<io::Error>,
    /// Memory to reuse for the next run.
    idle: Option<Vec<u8>>,
    is_over: bool,
}

impl Shared {
    /// Writes the runs that are passed to [`give`](Self::give), until the store is dropped.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(run) = state.next.take() {
                drop(state);
                let (memory, written) = run.write();
                state = self.state.lock();
                state.idle = Some(memory);
                state.failure = written.err();
                state.under_way = None;
                self.changed.notify_all();
            } else if state.is_over {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    /// Passes a run to the thread, after the previous run has been written.
    fn give(&self, run: Run) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.under_way.is_some() {
            self.changed.wait(&mut state);
        }
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.under_way = Some(run.segment);
        state.next = Some(run);
        self.changed.notify_all();
        Ok(())
    }
}

/// A reader over several pieces in order.
struct Gathered<'p> {
    pieces: std::slice::Iter<'p, IoSlice<'p>>,
    /// The unread rest of the current piece.
    rest: &'p [u8],
}

impl Gathered<'_> {
    /// Fills `out` with the next bytes. The pieces must have that many left.
    fn fill(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let len = out.len().min(self.rest.len());
            let (filled, left) = out.split_at_mut(len);
            filled.copy_from_slice(&self.rest[..len]);
            (out, self.rest) = (left, &self.rest[len..]);
            if self.rest.is_empty() {
                let Some(piece) = self.pieces.next() else { return };
                self.rest = piece;
            }
        }
    }
}

impl Direct {
    /// Writes the first part of `pieces` past the page cache, and returns its length in bytes. The length is 0 when
    /// the pieces are short, when `offset` is not a multiple of 4096, or when the file does not support direct
    /// writes. The write may still be under way when this returns.
    ///
    /// # Errors
    /// The same as `pwrite(2)`, for these bytes or for bytes of earlier calls.
    pub(crate) fn write(
        &self,
        (segment, way): (SegmentId, &Arc<Way>),
        pieces: &[IoSlice<'_>],
        offset: u64,
    ) -> Result<u64, Failed> {
        let whole = vectored::len(pieces) / ALIGN as u64 * ALIGN as u64;
        if whole < LEN_MIN || !offset.is_multiple_of(ALIGN as u64) || !way.is_open() {
            return Ok(0);
        }
        let is_behind = match way.make_room(offset, whole).map_err(Failed::Now)? {
            Room::Made => self.has_thread(),
            Room::Unknown => false,
        };
        let mut written = 0;
        let mut gathered = Gathered { pieces: pieces.iter(), rest: &[] };
        while written < whole {
            let memory = self.shared.state.lock().idle.take().unwrap_or_default();
            let len = (whole - written).min(CHUNK as u64) as usize;
            let mut run = Run::new(segment, way.clone(), offset + written, memory, len);
            gathered.fill(run.bytes());
            if is_behind {
                self.shared.give(run).map_err(Failed::Before)?;
            } else {
                let (memory, done) = run.write();
                self.shared.state.lock().idle = Some(memory);
                done.map_err(Failed::Now)?;
            }
            written += len as u64;
        }
        Ok(written)
    }

    fn has_thread(&self) -> bool {
        let start = || {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("write-behind".to_owned());
            thread.spawn(move || shared.work()).ok()
        };
        self.thread.get_or_init(start).is_some()
    }

    /// Waits until no write to a segment is under way.
    pub(crate) fn wait_for(&self, segment: SegmentId) {
        let mut state = self.shared.state.lock();
        while state.under_way == Some(segment) {
            self.shared.changed.wait(&mut state);
        }
    }

    /// Waits until no write is under way.
    ///
    /// # Errors
    /// The error of a write that failed and has not been returned yet.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        while state.under_way.is_some() {
            self.shared.changed.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

/// Why bytes could not be written, and which bytes.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The bytes of this call. The state is as if there had been no call.
    Now(io::Error),
    /// Bytes of an earlier call that had returned success.
    Before(io::Error),
}

impl Failed {
    /// Converts the error to that of an append. If earlier bytes are lost, it closes the gate, as after a failed
    /// sync.
    pub(crate) fn told(self, gate: &Gate, path: &Path) -> StoreError {
        match self {
            Self::Now(source) => StoreError::io("write", path, source),
            Self::Before(source) => gate.poison("write", path, source),
        }
    }
}

impl Drop for Direct {
    /// Waits for the thread, so that the store's lock is not released during a write.
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().flatten() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}
