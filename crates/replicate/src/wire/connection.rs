//! Channels by number, and the thread that hands frames to them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::thread::Scope;

use parking_lot::{Condvar, Mutex};

use super::WireError;
use super::channel::Channel;
use super::frame::{CHANNELS_MAX, Greeting, Header, Kind, read_hello, write_hello};
use super::pack::unpack;
use super::receiver::{Patience, Receiver};
use super::sender::Sender;
use crate::error::Failure;
use crate::request::{Answer, Request};

/// Bytes read at once.
const READ_BUFFER: usize = 512 * 1024;

/// The client's side of a connection.
pub struct Connection {
    sender: Arc<Sender>,
    shared: Arc<Shared>,
}

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Manners {
    /// How long it waits for signs of life; without, for ever: for connections that cannot be half open.
    pub patience: Option<Patience>,
    /// The level of zstd with which both sides compress frames; 0 for no compression.
    pub level: u8,
}

#[derive(Default)]
pub(super) struct Shared {
    channels: Mutex<Channels>,
    /// A channel was closed.
    closed: Condvar,
}

#[derive(Default)]
struct Channels {
    open: HashMap<u32, Arc<Channel>>,
    /// Channels up to this number have been open.
    last: u32,
    /// The reason why no more channels can be opened.
    lost: Option<WireError>,
}

impl Shared {
    fn find(&self, number: u32) -> Result<Option<Arc<Channel>>, WireError> {
        let channels = self.channels.lock();
        match channels.open.get(&number) {
            Some(channel) => Ok(Some(channel.clone())),
            // Closed on this side already.
            None if number <= channels.last => Ok(None),
            None => Err(WireError::protocol(format!("a frame for channel {number}, which was never opened"))),
        }
    }

    /// A channel that the client has opened.
    pub(super) fn admit(&self, number: u32, sender: &Arc<Sender>) -> Result<Arc<Channel>, WireError> {
        let channel = Channel::new(number, sender.clone());
        let mut channels = self.channels.lock();
        if number <= channels.last {
            return Err(WireError::protocol(format!("channel {number} was opened before")));
        }
        if channels.open.len() >= CHANNELS_MAX {
            return Err(WireError::protocol("too many channels"));
        }
        channels.last = number;
        channels.open.insert(number, channel.clone());
        Ok(channel)
    }

    fn close(&self, number: u32) {
        self.channels.lock().open.remove(&number);
        self.closed.notify_all();
    }

    pub(super) fn lose(&self, why: WireError) {
        let mut channels = self.channels.lock();
        for channel in channels.open.values() {
            channel.break_off(&why);
        }
        channels.lost.get_or_insert(why);
        self.closed.notify_all();
    }

    /// What both sides do with frames of open channels.
    pub(super) fn deliver(&self, header: Header, payload: &mut Vec<u8>) -> Result<(), WireError> {
        let Some(channel) = self.find(header.channel)? else { return Ok(()) };
        match (header.kind, &payload[..]) {
            (Kind::Data, _) => channel.data(std::mem::take(payload)),
            (Kind::Packed, packed) => channel.data(unpack(packed)?),
            (Kind::Credit, &[a, b, c, d]) => channel.add_credit(u32::from_le_bytes([a, b, c, d])),
            (Kind::End, _) => {
                channel.end();
                Ok(())
            }
            _ => Err(WireError::protocol("a frame that is not for this side")),
        }
    }
}

impl Connection {
    /// Greets the other side and begins to read from it.
    ///
    /// # Errors
    /// When it is not a server of this protocol, or has another version.
    pub fn open(
        mut input: impl Read + Send + 'static,
        mut output: impl Write + Send + 'static,
        manners: Manners,
    ) -> Result<Arc<Self>, WireError> {
        // A server that failed at the start has closed its input, and reports the reason elsewhere.
        let ours = Greeting { shows_life: manners.patience.is_some(), packs: true, level: manners.level };
        let greeted = write_hello(&mut output, ours);
        let agreed = read_hello(&mut input)?.agree(ours);
        greeted?;
        let shared = Arc::new(Shared::default());
        let sender = Sender::new(output, agreed);
        let patience = manners.patience.unwrap_or_default();
        let mut frames = Receiver::new(input, agreed, patience, READ_BUFFER);
        let (routed, answering) = (shared.clone(), sender.clone());
        std::thread::spawn(move || {
            let why = loop {
                let delivered = match frames.next(&answering) {
                    Ok((header, payload)) if header.kind == Kind::Result => {
                        take_result(&routed, header.channel, &payload)
                    }
                    Ok((header, mut payload)) => routed.deliver(header, &mut payload),
                    Err(error) => Err(error),
                };
                if let Err(error) = delivered {
                    break error;
                }
            };
            answering.kill(why.clone());
            routed.lose(why);
        });
        Ok(Arc::new(Self { sender, shared }))
    }

    /// Begins a request; waits while too many are under way.
    ///
    /// # Errors
    /// [`crate::FailureKind::Lost`] when the connection is gone.
    pub fn request(&self, request: &Request) -> Result<Call, Failure> {
        let payload = serde_json::to_vec(request).map_err(|error| Failure::other(error.to_string()))?;
        let mut channels = self.shared.channels.lock();
        loop {
            if let Some(lost) = &channels.lost {
                return Err(Failure::lost(lost.to_string()));
            }
            if channels.open.len() < CHANNELS_MAX {
                break;
            }
            self.shared.closed.wait(&mut channels);
        }
        channels.last += 1;
        let channel = Channel::new(channels.last, self.sender.clone());
        channels.open.insert(channel.number(), channel.clone());
        // Numbers go out in their order: under the lock.
        let sent = self.sender.send(Kind::Open, channel.number(), &payload);
        drop(channels);
        let begun = Call { channel, shared: self.shared.clone(), sender: self.sender.clone() };
        sent.map_err(|error| Failure::lost(error.to_string()))?;
        Ok(begun)
    }

    /// Whether the connection is gone.
    pub fn is_lost(&self) -> bool {
        self.shared.channels.lock().lost.is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The other side closes when this side's output is closed. This is not waited for here.
        self.sender.close();
    }
}

fn take_result(shared: &Shared, number: u32, payload: &[u8]) -> Result<(), WireError> {
    let Some(channel) = shared.find(number)? else { return Ok(()) };
    let result: Result<Answer, Failure> = serde_json::from_slice(payload)
        .map_err(|error| WireError::protocol(format!("a result that cannot be read: {error}")))?;
    channel.answered(result.map(Answer::made_safe).map_err(Failure::made_safe));
    Ok(())
}

/// A request under way. Dropped before its result has come, it is cancelled.
pub struct Call {
    channel: Arc<Channel>,
    shared: Arc<Shared>,
    sender: Arc<Sender>,
}

impl Call {
    /// Its two streams and its result.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.channel.has_result() {
            // If this cannot be sent, the connection is lost, which reports the failure as well.
            let _ = self.sender.send(Kind::Cancel, self.channel.number(), &[]);
        }
        self.shared.close(self.channel.number());
    }
}

/// Carries requests out.
pub trait Handler: Sync {
    /// One request. Its streams are those of `channel`; it should stop soon after [`Channel::is_broken`].
    ///
    /// # Errors
    /// Why it was not carried out: the client's answer.
    fn handle(&self, request: Request, channel: &Arc<Channel>) -> Result<Answer, Failure>;
}

/// The server's side of a connection: carries out requests, side by side, until the client is gone.
///
/// # Errors
/// When the other side is not a client, or violates the protocol. By then all requests have ended.
pub fn serve(
    mut input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    patience: Patience,
    handler: &dyn Handler,
) -> Result<(), WireError> {
    let ours = Greeting { shows_life: true, packs: true, level: 0 };
    write_hello(&mut output, ours)?;
    let agreed = read_hello(&mut input)?.agree(ours);
    let sender = Sender::new(output, agreed);
    let shared = Shared::default();
    let mut frames = Receiver::new(input, agreed, patience, READ_BUFFER);
    let ended = std::thread::scope(|scope| {
        let ended = loop {
            let (header, mut payload) = match frames.next(&sender) {
                Ok(frame) => frame,
                Err(WireError::Closed) => break Ok(()),
                Err(error) => break Err(error),
            };
            let done = match header.kind {
                Kind::Open => begin(scope, &sender, &shared, handler, header.channel, &payload),
                Kind::Cancel => shared.find(header.channel).map(|channel| {
                    if let Some(channel) = channel {
                        channel.break_off(&WireError::Closed);
                    }
                }),
                _ => shared.deliver(header, &mut payload),
            };
            if let Err(error) = done {
                break Err(error);
            }
        };
        if let Err(error) = &ended {
            // The other side no longer reads, and a write can hang.
            sender.kill(error.clone());
        }
        shared.lose(WireError::Closed);
        ended
    });
    sender.finish(patience.timeout);
    ended
}

fn begin<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    sender: &Arc<Sender>,
    shared: &'env Shared,
    handler: &'env dyn Handler,
    number: u32,
    payload: &[u8],
) -> Result<(), WireError> {
    let channel = shared.admit(number, sender)?;
    let request: Result<Request, _> = serde_json::from_slice(payload);
    scope.spawn(move || {
        let result = match request {
            Ok(request) => handler.handle(request, &channel),
            Err(error) => Err(Failure::other(format!("the request is not known here: {error}"))),
        };
        shared.close(number);
        // If the client has disconnected, nobody needs the result.
        let _ = channel.reply(&result);
    });
    Ok(())
}
