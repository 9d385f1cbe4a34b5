//! Where frames go out.
//!
//! One thread writes the frames, so that no other thread waits for the kernel of the other side. When a connection is
//! found dead, this applies to all threads at once, also while a write to it hangs.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::WireError;
use super::frame::{Greeting, Kind, encode_frame};
use super::pack::Packer;

/// Maximum number of bytes in the queue. Callers with more bytes have to wait.
const QUEUE_MAX: usize = 1024 * 1024;

pub(super) struct Sender {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// How DATA is packed; not at all without.
    level: Option<u8>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Nothing more will come.
    closed: bool,
    /// Everything that came has been written, and the output is closed.
    written: bool,
    /// Why nothing more can be written.
    dead: Option<WireError>,
}

impl Sender {
    /// Begins to write to `output`, as both sides have agreed.
    pub(super) fn new(output: impl Write + Send + 'static, agreed: Greeting) -> Arc<Self> {
        Self::begin(output, agreed).0
    }

    /// As [`new`](Self::new), with the thread.
    fn begin(output: impl Write + Send + 'static, agreed: Greeting) -> (Arc<Self>, JoinHandle<()>) {
        let level = (agreed.packs && agreed.level > 0).then_some(agreed.level);
        let sender = Arc::new(Self { queue: Mutex::default(), changed: Condvar::new(), level });
        let writer = sender.clone();
        let thread = std::thread::spawn(move || writer.write(output));
        (sender, thread)
    }

    /// Takes frames and forgets them. The thread ends when it is closed.
    pub(super) fn nowhere() -> (Arc<Self>, JoinHandle<()>) {
        Self::begin(std::io::sink(), Greeting::default())
    }

    /// What packs the DATA of one stream, if it is to be packed.
    pub(super) fn packer(&self) -> Option<Packer> {
        self.level.map(Packer::new)
    }

    fn write(&self, mut output: impl Write) {
        loop {
            let mut queue = self.queue.lock();
            while queue.frames.is_empty() && !queue.closed && queue.dead.is_none() {
                self.changed.wait(&mut queue);
            }
            let next = queue.frames.pop_front().filter(|_| queue.dead.is_none());
            let Some(frame) = next else { break };
            drop(queue);
            let written = output.write_all(&frame).and_then(|()| output.flush());
            self.queue.lock().bytes -= frame.len();
            if let Err(error) = written {
                self.kill(error.into());
            }
            self.changed.notify_all();
        }
        // The other side reads the end before a thread on this side notices it.
        drop(output);
        self.queue.lock().written = true;
        self.changed.notify_all();
    }

    pub(super) fn send(&self, kind: Kind, channel: u32, payload: &[u8]) -> Result<(), WireError> {
        let frame = encode_frame(kind, channel, payload)?;
        let mut queue = self.queue.lock();
        loop {
            if let Some(dead) = &queue.dead {
                return Err(dead.clone());
            }
            if queue.closed {
                return Err(WireError::Closed);
            }
            if queue.bytes == 0 || queue.bytes + frame.len() <= QUEUE_MAX {
                break;
            }
            self.changed.wait(&mut queue);
        }
        queue.bytes += frame.len();
        queue.frames.push_back(frame);
        self.changed.notify_all();
        Ok(())
    }

    /// Sends a sign of life, unless other frames are waiting to be sent.
    pub(super) fn show_life(&self) {
        let mut queue = self.queue.lock();
        if queue.frames.is_empty()
            && queue.dead.is_none()
            && !queue.closed
            && let Ok(frame) = encode_frame(Kind::Alive, 0, &[])
        {
            queue.bytes += frame.len();
            queue.frames.push_back(frame);
            self.changed.notify_all();
        }
    }

    /// Nothing more can be written, whatever waits.
    pub(super) fn kill(&self, why: WireError) {
        self.queue.lock().dead.get_or_insert(why);
        self.changed.notify_all();
    }

    /// There are no more frames: the output is closed when all waiting ones have been written.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_all();
    }

    /// Closes, and waits for so long at most.
    pub(super) fn finish(&self, most: Duration) {
        self.close();
        let end = Instant::now() + most;
        let mut queue = self.queue.lock();
        while !queue.written && queue.dead.is_none() {
            if self.changed.wait_until(&mut queue, end).timed_out() {
                break;
            }
        }
    }
}
