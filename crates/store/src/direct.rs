//! Writing around the system's page cache (`open(2)`, `O_DIRECT`). What is written in bulk would be copied there only to be written
//! from there, which takes longer than all else that is done to it, and what others have in it would make room.
//!
//! A thread of the store's own writes one run while whoever appends gathers the next. As with the page cache, an append is over
//! when its bytes are kept and have room on the disk; that they could not be written is told by whatever the store is asked to write or sync next.

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

/// A shorter run goes through the page cache, where whoever reads it next finds it.
const LEN_MIN: u64 = 256 << 10;
/// Bytes that are gathered and written at once.
const CHUNK: usize = 4 << 20;

/// What a store writes so.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    shared: Arc<Shared>,
    /// Begun when it is first wanted; `None` if the system gives none.
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
    /// The segment of the run that is to be written, or is being written.
    under_way: Option<SegmentId>,
    failure: Option<io::Error>,
    /// To be filled again.
    idle: Option<Vec<u8>>,
    is_over: bool,
}

impl Shared {
    /// Writes what it is given until it is over.
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

    /// Has a run written when the one before is.
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

/// Pieces, one behind the other.
struct Gathered<'p> {
    pieces: std::slice::Iter<'p, IoSlice<'p>>,
    /// Of the piece before.
    rest: &'p [u8],
}

impl Gathered<'_> {
    /// Copies what comes next; there is as much.
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
    /// Writes as many bytes of `pieces`, from their beginning on, as can go around the page cache, and says how many these are:
    /// 0 when they are few, do not begin at a multiple of 4096, or cannot. They may be under way when this returns.
    ///
    /// # Errors
    /// As `pwrite(2)`, of these bytes or of those that it was given before.
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

    /// Waits until nothing of a segment is under way.
    pub(crate) fn wait_for(&self, segment: SegmentId) {
        let mut state = self.shared.state.lock();
        while state.under_way == Some(segment) {
            self.shared.changed.wait(&mut state);
        }
    }

    /// Waits until nothing is under way.
    ///
    /// # Errors
    /// What was written since the last failure was told, and could not be.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        while state.under_way.is_some() {
            self.shared.changed.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

/// Why bytes could not be written.
#[derive(Debug)]
pub(crate) enum Failed {
    /// They are as if they had not been given.
    Now(io::Error),
    /// Others, of which it was said that they are written.
    Before(io::Error),
}

impl Failed {
    /// As the error of an append. After others were lost the gate is shut, as after a failed sync.
    pub(crate) fn told(self, gate: &Gate, path: &Path) -> StoreError {
        match self {
            Self::Now(source) => StoreError::io("write", path, source),
            Self::Before(source) => gate.poison("write", path, source),
        }
    }
}

impl Drop for Direct {
    /// The store's lock is not let go of while something is being written.
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().flatten() {
            // What it panicked with was told.
            let _ = thread.join();
        }
    }
}
