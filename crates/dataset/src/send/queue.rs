//! The queue from the reader to the writer. Its limit is in bytes, because the sizes of payloads differ by a factor of
//! 30,000.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use snowmelt_pool::memory::UnderWay;
use snowmelt_stream::record::Record;

/// Maximal bytes of payload in the queue. Each side may hold one more batch.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bytes that a record counts in the queue in addition to its payload.
const RECORD_COST: u64 = 512;

/// A batch is queued when it has this many bytes, so that small records do not need a wake-up each.
const BATCH_BYTES: u64 = 256 * 1024;

/// A record with its payload.
pub(super) struct Item {
    pub(super) record: Record,
    pub(super) payload: Bytes,
}

/// Some items in stream order.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    cost: u64,
}

impl Batch {
    pub(super) fn push(&mut self, record: Record, payload: Bytes) {
        self.cost += RECORD_COST + payload.len() as u64;
        self.items.push(Item { record, payload });
    }

    pub(super) fn is_full(&self) -> bool {
        self.cost >= BATCH_BYTES
    }
}

struct State {
    batches: VecDeque<Batch>,
    under_way: UnderWay,
    /// No batch will be added any more.
    ended: bool,
    /// No batch will be taken any more.
    abandoned: bool,
}

/// A queue between one reader and one writer.
pub(super) struct Queue {
    state: Mutex<State>,
    room: Condvar,
    work: Condvar,
}

impl Default for Queue {
    fn default() -> Self {
        let under_way = UnderWay::new(BYTES_MAX);
        let state = State { batches: VecDeque::new(), under_way, ended: false, abandoned: false };
        Self { state: Mutex::new(state), room: Condvar::new(), work: Condvar::new() }
    }
}

impl Queue {
    /// Adds a batch. Waits until there is room. Returns `false` when the writer has ended.
    pub(super) fn push(&self, batch: Batch) -> bool {
        let mut state = self.state.lock();
        // One batch always fits, whatever its size.
        while !state.abandoned && !state.under_way.take(batch.cost) {
            self.room.wait(&mut state);
        }
        if state.abandoned {
            return false;
        }
        state.batches.push_back(batch);
        drop(state);
        self.work.notify_one();
        true
    }

    /// Takes the next batch; `None` when the reader has ended.
    pub(super) fn pop(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.under_way.give_back(batch.cost);
                drop(state);
                self.room.notify_one();
                return Some(batch);
            }
            if state.ended {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// Notes that the reader has ended.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.work.notify_one();
    }

    /// Notes that the writer has ended.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.abandoned = true;
        while let Some(batch) = state.batches.pop_front() {
            state.under_way.give_back(batch.cost);
        }
        drop(state);
        self.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use snowmelt_stream::record::FreeObjects;

    fn batch(bytes: usize) -> Batch {
        let mut batch = Batch::default();
        batch.push(Record::FreeObjects(FreeObjects::default()), Bytes::from(vec![0; bytes]));
        batch
    }

    #[test]
    fn the_reader_waits_for_room_and_is_told_when_nobody_listens() {
        let queue = Queue::default();
        assert!(queue.push(batch(BYTES_MAX as usize * 2)), "a batch larger than the queue must pass");
        std::thread::scope(|scope| {
            let reader = scope
                .spawn(|| queue.push(batch(BYTES_MAX as usize)) && queue.push(batch(BYTES_MAX as usize)));
            assert_eq!(queue.pop().map(|batch| batch.items.len()), Some(1));
            queue.abandon();
            assert!(!reader.join().expect("the reader does not panic"));
        });
        assert!(!queue.push(batch(1)));
        queue.end();
        assert!(queue.pop().is_none());
    }
}
