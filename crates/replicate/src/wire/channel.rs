//! One request: a stream of bytes each way, and a result.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::WireError;
use super::frame::{DATA_MAX, Kind};
use super::pack::Packer;
use super::sender::Sender;
use crate::error::Failure;
use crate::request::Answer;

/// Bytes that either side may have under way on a channel's stream.
pub(super) const WINDOW: usize = 4 * 1024 * 1024;
/// The reader gives credit back in pieces of this size.
const CREDIT_STEP: usize = WINDOW / 8;

/// One request under way.
pub struct Channel {
    number: u32,
    sender: Arc<Sender>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The data that has arrived and was not read yet.
    incoming: VecDeque<Vec<u8>>,
    /// Bytes of the first of these that were read.
    taken: usize,
    /// Bytes in `incoming`, or read without credit given back.
    outstanding: usize,
    /// Bytes read without credit given back.
    owed: usize,
    /// The other side's stream is over.
    ended: bool,
    /// What this side may still send.
    credit: usize,
    /// The result has come.
    result: Option<Result<Answer, Failure>>,
    /// The connection is gone, or the other side wants nothing more.
    broken: Option<WireError>,
}

impl Channel {
    pub(super) fn new(number: u32, sender: Arc<Sender>) -> Arc<Self> {
        let state = State { credit: WINDOW, ..State::default() };
        Arc::new(Self { number, sender, state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn data(&self, bytes: Vec<u8>) -> Result<(), WireError> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(WireError::protocol("data after the end of a stream"));
        }
        state.outstanding += bytes.len();
        if state.outstanding > WINDOW {
            return Err(WireError::protocol("more data than there was credit for"));
        }
        state.incoming.push_back(bytes);
        self.changed.notify_all();
        Ok(())
    }

    pub(super) fn add_credit(&self, more: u32) -> Result<(), WireError> {
        let mut state = self.state.lock();
        state.credit = state.credit.saturating_add(more as usize);
        if state.credit > WINDOW {
            return Err(WireError::protocol("more credit than there can be"));
        }
        self.changed.notify_all();
        Ok(())
    }

    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    pub(super) fn answered(&self, result: Result<Answer, Failure>) {
        self.state.lock().result = Some(result);
        self.changed.notify_all();
    }

    /// Nothing more will come.
    pub(crate) fn break_off(&self, why: &WireError) {
        self.state.lock().broken.get_or_insert_with(|| why.clone());
        self.changed.notify_all();
    }

    /// Whether the result has come.
    pub(super) fn has_result(&self) -> bool {
        self.state.lock().result.is_some()
    }

    /// Whether this request should stop.
    pub fn is_broken(&self) -> bool {
        self.state.lock().broken.is_some()
    }

    /// The other side's stream.
    pub fn incoming(self: &Arc<Self>) -> Incoming {
        Incoming(self.clone())
    }

    /// This side's stream.
    pub fn outgoing(self: &Arc<Self>) -> Outgoing {
        Outgoing { channel: self.clone(), packer: self.sender.packer() }
    }

    /// Waits for the result, throwing away what still comes of the stream.
    ///
    /// # Errors
    /// The failure of the other side, or that of the connection.
    pub fn result(self: &Arc<Self>) -> Result<Answer, Failure> {
        let mut rest = vec![0; DATA_MAX];
        let mut incoming = self.incoming();
        loop {
            let mut state = self.state.lock();
            if let Some(result) = &state.result {
                return result.clone();
            }
            if let Some(broken) = &state.broken {
                return Err(Failure::lost(broken.to_string()));
            }
            if state.incoming.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            drop(state);
            // A read error shows in the next round.
            let _ = incoming.read(&mut rest);
        }
    }

    /// Sends the result; the channel is over.
    pub(super) fn reply(&self, result: &Result<Answer, Failure>) -> Result<(), WireError> {
        let payload = serde_json::to_vec(result).map_err(|error| WireError::protocol(error.to_string()))?;
        self.sender.send(Kind::Result, self.number, &payload)
    }
}

/// The other side's stream of a channel.
pub struct Incoming(Arc<Channel>);

impl Read for Incoming {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let channel = &self.0;
        let mut state = channel.state.lock();
        loop {
            if let Some(first) = state.incoming.front() {
                let rest = first.get(state.taken..).unwrap_or_default();
                let len = rest.len().min(buf.len());
                buf[..len].copy_from_slice(&rest[..len]);
                if len == rest.len() {
                    state.incoming.pop_front();
                    state.taken = 0;
                } else {
                    state.taken += len;
                }
                state.owed += len;
                let owed = state.owed;
                if owed >= CREDIT_STEP {
                    state.owed = 0;
                    state.outstanding -= owed;
                    drop(state);
                    let credit = u32::try_from(owed).unwrap_or(0).to_le_bytes();
                    channel.sender.send(Kind::Credit, channel.number, &credit).map_err(io::Error::other)?;
                }
                return Ok(len);
            }
            if state.ended {
                return Ok(0);
            }
            if let Some(broken) = &state.broken {
                return Err(io::Error::new(io::ErrorKind::ConnectionReset, broken.clone()));
            }
            if state.result.is_some() {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the request failed before its stream was over",
                ));
            }
            channel.changed.wait(&mut state);
        }
    }
}

/// This side's stream of a channel.
pub struct Outgoing {
    channel: Arc<Channel>,
    packer: Option<Packer>,
}

impl Outgoing {
    /// Says that the stream is over.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn finish(self) -> Result<(), WireError> {
        self.channel.sender.send(Kind::End, self.channel.number, &[])
    }
}

impl Write for Outgoing {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let channel = &self.channel;
        let mut state = channel.state.lock();
        loop {
            if let Some(broken) = &state.broken {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, broken.clone()));
            }
            if state.result.is_some() {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the other side has enough"));
            }
            if state.credit > 0 {
                break;
            }
            channel.changed.wait(&mut state);
        }
        let len = buf.len().min(state.credit).min(DATA_MAX);
        state.credit -= len;
        drop(state);
        let packed = self.packer.as_mut().and_then(|packer| packer.pack(&buf[..len]));
        let sent = match &packed {
            Some(packed) => channel.sender.send(Kind::Packed, channel.number, packed),
            None => channel.sender.send(Kind::Data, channel.number, &buf[..len]),
        };
        sent.map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error))?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
