//! The queue of replies of a connection.
//!
//! A thread with a reply puts it in the queue. If no other thread is writing, it also writes the queue. So usually the
//! worker thread itself writes to the socket, without waking another thread. If the socket is full, the connection's
//! writer task becomes the writer and waits for the socket. With TLS, the writer is always that task.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{tcp, unix};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::budget::Share;
use crate::error::ConnectionError;

/// Maximum number of frames in one system call.
const MAX_SLICES: usize = 32;

/// Bytes to send, and the share of the budget that is released after they are sent.
struct Frame {
    bytes: Vec<u8>,
    /// Only in the last frame of a reply.
    _share: Option<Share>,
}

/// Frames in order. The first `sent` bytes of the first frame are already sent.
#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    sent: usize,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut count = 0;
        for (slice, frame) in slices.iter_mut().zip(&self.frames) {
            let skip = if count == 0 { self.sent } else { 0 };
            *slice = IoSlice::new(&frame.bytes[skip..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.frames.front() {
            if self.sent < first.bytes.len() {
                return;
            }
            self.sent -= first.bytes.len();
            self.frames.pop_front();
        }
    }

    /// Puts the unsent rest of an older queue before this one.
    fn put_back(&mut self, mut older: Queue) {
        older.frames.append(&mut self.frames);
        *self = older;
    }
}

/// A socket that any thread can write to without blocking.
pub(crate) enum Direct {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl Direct {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write_vectored(slices),
            Self::Unix(half) => half.try_write_vectored(slices),
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            Self::Unix(half) => half.writable().await,
        }
    }

    /// Writes until the queue is empty or a write fails. `WouldBlock` counts as a failure.
    fn write(&self, queue: &mut Queue) -> io::Result<()> {
        while !queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = queue.slices(&mut slices);
            match self.try_write(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => queue.advance(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// Whether a thread or task is the writer. Only the writer may write from the queue.
    writing: bool,
    /// Whether the connection is closed. Then new replies are dropped.
    closed: bool,
    failure: Option<ConnectionError>,
}

/// The replies of one connection; see the module.
pub(crate) struct Outbox {
    state: Mutex<State>,
    direct: Option<Direct>,
    /// Wakes the writer task, either as the new writer or because the outbox was closed.
    wake: Notify,
    /// Wakes the reader after a failed write.
    failed: Notify,
    stall: Duration,
}

impl Outbox {
    /// `direct` is the socket, or `None` if the writer task gets its own stream.
    pub(crate) fn new(direct: Option<Direct>, stall: Duration) -> Self {
        Self { state: Mutex::default(), direct, wake: Notify::new(), failed: Notify::new(), stall }
    }

    /// Sends a reply, or drops it if the connection is closed. It does not block.
    pub(crate) fn push(&self, frames: Vec<Vec<u8>>, share: Share) {
        let mut share = Some(share);
        let last = frames.len().saturating_sub(1);
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        for (index, bytes) in frames.into_iter().enumerate() {
            let share = if index == last { share.take() } else { None };
            state.queue.frames.push_back(Frame { bytes, _share: share });
        }
        if state.writing {
            return;
        }
        state.writing = true;
        drop(state);
        match &self.direct {
            None => self.wake.notify_one(),
            Some(direct) => self.write_directly(direct),
        }
    }

    /// Takes the queue in order to write it. If it is empty, the caller is no longer the writer.
    fn take(&self) -> Option<Queue> {
        let mut state = self.state.lock();
        if state.queue.is_empty() || state.closed {
            state.writing = false;
            return None;
        }
        Some(std::mem::take(&mut state.queue))
    }

    fn write_directly(&self, direct: &Direct) {
        while let Some(mut queue) = self.take() {
            match direct.write(&mut queue) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.state.lock().queue.put_back(queue);
                    self.wake.notify_one();
                    return;
                }
                Err(error) => return self.fail(error.into()),
            }
        }
    }

    /// Closes the outbox after a failure. The queue is dropped, and the reader is notified.
    fn fail(&self, error: ConnectionError) {
        let dropped = {
            let mut state = self.state.lock();
            state.closed = true;
            state.writing = false;
            state.failure.get_or_insert(error);
            std::mem::take(&mut state.queue)
        };
        drop(dropped);
        self.wake.notify_one();
        self.failed.notify_one();
    }

    /// Waits until writing has failed. Only one task may wait.
    pub(crate) async fn failed(&self) {
        self.failed.notified().await;
    }

    /// The error of a failed write, if there is one.
    pub(crate) fn failure(&self) -> Option<ConnectionError> {
        self.state.lock().failure.take()
    }

    /// Ends the writer task. Unsent replies are dropped.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        drop(dropped);
        self.wake.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// The writer task of a connection whose socket is written to directly.
    pub(crate) async fn write_when_possible(&self) {
        let Some(direct) = &self.direct else { return };
        loop {
            self.wake.notified().await;
            while !self.is_closed() {
                match timeout(self.stall, direct.writable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return self.fail(error.into()),
                    Err(_) => return self.fail(ConnectionError::Stalled(self.stall)),
                }
                let Some(mut queue) = self.take() else { break };
                match direct.write(&mut queue) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.state.lock().queue.put_back(queue)
                    }
                    Err(error) => return self.fail(error.into()),
                }
            }
            if self.is_closed() {
                return;
            }
        }
    }

    /// The writer task of any other connection. Returns the stream, so that the caller can shut it down.
    pub(crate) async fn write_to<W: AsyncWrite + Unpin>(&self, mut stream: W) -> W {
        loop {
            self.wake.notified().await;
            while let Some(queue) = self.take() {
                if let Err(error) = self.write_queue(&mut stream, queue).await {
                    self.fail(error);
                }
            }
            if self.is_closed() {
                return stream;
            }
        }
    }

    async fn write_queue<W: AsyncWrite + Unpin>(
        &self,
        stream: &mut W,
        mut queue: Queue,
    ) -> Result<(), ConnectionError> {
        let stalled = |_| ConnectionError::Stalled(self.stall);
        while !queue.is_empty() {
            let written = {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = queue.slices(&mut slices);
                timeout(self.stall, stream.write_vectored(&slices[..count])).await.map_err(stalled)??
            };
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            queue.advance(written);
        }
        timeout(self.stall, stream.flush()).await.map_err(stalled)??;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the socket splits the writes, all bytes are sent in order.
        #[test]
        fn a_queue_is_sent_in_order(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..50), 0..80),
            cuts in proptest::collection::vec(1usize..200, 1..50),
        ) {
            let expected = frames.concat();
            let split = frames.len() / 2;
            let queue_of = |frames: &[Vec<u8>]| Queue {
                frames: frames.iter().map(|bytes| Frame { bytes: bytes.clone(), _share: None }).collect(),
                sent: 0,
            };
            let mut queue = queue_of(&frames[..split]);
            let mut later = Some(queue_of(&frames[split..]));
            let mut sent = Vec::new();
            for cut in cuts.iter().cycle() {
                if sent.len() > expected.len() / 4 || queue.is_empty() {
                    // as if more was pushed while the first part was written
                    if let Some(mut later) = later.take() {
                        later.put_back(std::mem::take(&mut queue));
                        queue = later;
                    }
                }
                if queue.is_empty() {
                    break;
                }
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = queue.slices(&mut slices);
                let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let written = flat.len().min(*cut);
                sent.extend_from_slice(&flat[..written]);
                queue.advance(written);
            }
            prop_assert_eq!(sent, expected);
        }
    }
}
