//! Where frames come in.
//!
//! One thread reads the frames, so that a reader can stop waiting for one. A connection on which nothing arrives for
//! too long is considered dead, even if its streams are open.

use std::io::{BufReader, Read};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::WireError;
use super::frame::{Greeting, Header, Kind, read_frame};
use super::sender::Sender;

/// Frames that are read ahead.
const AHEAD: usize = 4;
/// How often the receiver checks for frames on a silent connection.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// How long to wait for a sign of life of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How often to give one.
    pub interval: Duration,
    /// Time without a frame after which the connection is considered dead.
    pub timeout: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), timeout: Duration::from_secs(60) }
    }
}

type Frame = (Header, Vec<u8>);

pub(super) struct Receiver {
    frames: mpsc::Receiver<Result<Frame, WireError>>,
    /// When bytes came last.
    heard: Arc<Mutex<Instant>>,
    /// When this side gave a sign of life.
    shown: Instant,
    patience: Option<Patience>,
}

/// Notes when bytes come.
struct Ear<R> {
    input: R,
    heard: Arc<Mutex<Instant>>,
}

impl<R: Read> Read for Ear<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = self.input.read(buf)?;
        *self.heard.lock() = Instant::now();
        Ok(len)
    }
}

impl Receiver {
    /// Begins to read from `input`, as both sides have agreed.
    pub(super) fn new(
        input: impl Read + Send + 'static,
        agreed: Greeting,
        patience: Patience,
        read_buffer: usize,
    ) -> Self {
        let (sender, frames) = mpsc::sync_channel(AHEAD);
        let heard = Arc::new(Mutex::new(Instant::now()));
        let mut input = BufReader::with_capacity(read_buffer, Ear { input, heard: heard.clone() });
        std::thread::spawn(move || {
            loop {
                let mut payload = Vec::new();
                let frame = match read_frame(&mut input, &mut payload) {
                    Ok(Some(header)) => Ok((header, payload)),
                    Ok(None) => Err(WireError::Closed),
                    Err(error) => Err(error),
                };
                let is_over = frame.is_err();
                // If this fails, there is no reader any more.
                if sender.send(frame).is_err() || is_over {
                    return;
                }
            }
        });
        let patience = agreed.shows_life.then_some(patience);
        Self { frames, heard, shown: Instant::now(), patience }
    }

    /// The next frame that is more than a sign of life; gives such signs meanwhile.
    pub(super) fn next(&mut self, sender: &Sender) -> Result<Frame, WireError> {
        loop {
            let wait = match self.patience {
                None => FOR_EVER,
                Some(patience) => {
                    if self.shown.elapsed() >= patience.interval {
                        sender.show_life();
                        self.shown = Instant::now();
                    }
                    patience.interval.saturating_sub(self.shown.elapsed())
                }
            };
            match self.frames.recv_timeout(wait) {
                Ok(Ok((header, _))) if header.kind == Kind::Alive => {}
                Ok(frame) => return frame,
                Err(RecvTimeoutError::Disconnected) => return Err(WireError::Closed),
                Err(RecvTimeoutError::Timeout) => {
                    let silent = self.heard.lock().elapsed();
                    if let Some(patience) = self.patience.filter(|patience| silent >= patience.timeout) {
                        return Err(WireError::Silent { timeout: patience.timeout });
                    }
                }
            }
        }
    }
}
