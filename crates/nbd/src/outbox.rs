//! Replies on their way out of a connection.
//!
//! Whoever has a reply puts it in the queue, and whoever finds nobody writing writes: mostly the worker thread itself,
//! straight to the socket, without waking another. When the socket takes no more, the right to write passes to the
//! connection's writer task, which waits for the socket; with TLS it is always that task.

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

/// Frames in one system call.
const MAX_SLICES: usize = 32;

/// Bytes to send, and what gets free when they are sent.
struct Frame {
    bytes: Vec<u8>,
    /// With the last frame of a reply.
    _share: Option<Share>,
}

/// Frames in order, the first of them sent up to `sent`.
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

    /// What is left of an older part of the queue goes before it.
    fn put_back(&mut self, mut older: Queue) {
        older.frames.append(&mut self.frames);
        *self = older;
    }
}

/// A socket that can be written to without waiting, from any thread.
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

    /// Writes until the queue is empty, or fails; `WouldBlock` is one of the failures.
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
    /// Somebody has the right to write. The queue may only be written from by the one who set it.
    writing: bool,
    /// Nothing is sent any more: what comes is dropped.
    closed: bool,
    failure: Option<ConnectionError>,
}

/// The replies of one connection. See the module.
pub(crate) struct Outbox {
    state: Mutex<State>,
    direct: Option<Direct>,
    /// Wakes the writer task, with the right to write, or because the box is closed.
    wake: Notify,
    /// Wakes the reader when writing has failed.
    failed: Notify,
    stall: Duration,
}

impl Outbox {
    /// `direct`: the socket, unless the writer task gets a stream of its own.
    pub(crate) fn new(direct: Option<Direct>, stall: Duration) -> Self {
        Self { state: Mutex::default(), direct, wake: Notify::new(), failed: Notify::new(), stall }
    }

    /// Sends a reply, or drops it if the connection is closed. Does not wait.
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

    /// Takes what there is to write; gives the right to write back if there is nothing.
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

    /// Gives up: what is queued is dropped, and the reader is told.
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

    /// Returns when writing has failed. For one waiter.
    pub(crate) async fn failed(&self) {
        self.failed.notified().await;
    }

    /// Why writing failed, if it did.
    pub(crate) fn failure(&self) -> Option<ConnectionError> {
        self.state.lock().failure.take()
    }

    /// Ends the writer task. What is not sent is dropped.
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

    /// The writer task of a connection that is written to directly.
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

    /// The writer task of any other connection. Returns the stream, for its end to be written.
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
        /// However the socket cuts the writes, the bytes come out whole and in order.
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
                    // as when more was pushed while the first part was being written
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
