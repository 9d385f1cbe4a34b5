//! A pool of snowmelt, at the other side of a connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use snowmelt_dataset::{DatasetError, Name};

use super::described::Collected;
use super::{End, Sink, Source};
use crate::error::Failure;
use crate::objects::RemoteSnapshot;
use crate::request::{
    Action, Answer, DatasetInfo, Describe, ReadRequest, ReceiveRequest, Request, SendRequest, TakeIn, TakenIn,
};
use crate::wire::{Call, Connection, Incoming, Outgoing};

/// Bytes of a whole description: more than half a million snapshots.
const DESCRIPTION_MAX: u64 = 64 * 1024 * 1024;
/// Sends or actions in one request.
const BATCH: usize = 1000;

/// A pool of snowmelt.
pub struct Peer {
    connection: Arc<Connection>,
}

impl Peer {
    /// At the other side of this connection.
    pub fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    pub(crate) fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        self.connection.request(request)?.channel().result()
    }

    /// Begins a request whose streams the caller sees to.
    pub(crate) fn begin(&self, request: &Request) -> Result<Call, Failure> {
        self.connection.request(request)
    }
}

/// The other side answered something else than it was asked.
pub(crate) fn confused() -> Failure {
    Failure::other("the other side answered a different request")
}

impl End for Peer {
    fn describe(&self, what: &Describe) -> Result<Vec<DatasetInfo>, Failure> {
        let call = self.connection.request(&Request::Describe(what.clone()))?;
        let mut lines = BufReader::new(call.channel().incoming().take(DESCRIPTION_MAX + 1));
        let mut found = Collected::new(what)?;
        let (mut line, mut bytes) = (Vec::new(), 0);
        loop {
            line.clear();
            match lines.read_until(b'\n', &mut line) {
                Ok(0) => break,
                // Why it broke off is in the result.
                Err(_) => break,
                Ok(len) => bytes += len as u64,
            }
            if bytes > DESCRIPTION_MAX {
                return Err(found.too_much(&format!("{} MiB", DESCRIPTION_MAX >> 20)));
            }
            let info = serde_json::from_slice(&line).map_err(|error| {
                Failure::other(format!("a description that cannot be read: {error}")).made_safe()
            })?;
            found.add(info)?;
        }
        match call.channel().result()? {
            Answer::Done => Ok(found.into_datasets()),
            _ => Err(confused()),
        }
    }

    fn send(&self, request: &SendRequest) -> Result<Box<dyn Source>, Failure> {
        let call = self.connection.request(&Request::Send(request.clone()))?;
        Ok(Box::new(Sending { input: call.channel().incoming(), call }))
    }

    fn receive(&self, request: &ReceiveRequest) -> Result<Box<dyn Sink>, Failure> {
        let request = ReceiveRequest { wants_notes: true, ..request.clone() };
        let call = self.connection.request(&Request::Receive(request))?;
        Ok(Box::new(Receiving { output: call.channel().outgoing(), call }))
    }

    fn read(&self, request: &ReadRequest) -> Result<RemoteSnapshot, Failure> {
        Ok(RemoteSnapshot::new(self.connection.request(&Request::Read(request.clone()))?))
    }

    fn is_lost(&self) -> bool {
        self.connection.is_lost()
    }

    fn sizes(&self, sends: &[SendRequest]) -> Result<Vec<Result<u64, Failure>>, Failure> {
        let mut all = Vec::new();
        for sends in sends.chunks(BATCH) {
            match self.ask(&Request::Sizes { sends: sends.to_vec() })? {
                Answer::Sizes(sizes) if sizes.len() == sends.len() => all.extend(sizes),
                _ => return Err(confused()),
            }
        }
        Ok(all)
    }

    fn apply(&self, actions: &[Action]) -> Result<Vec<Result<(), Failure>>, Failure> {
        let mut all = Vec::new();
        for actions in actions.chunks(BATCH) {
            match self.ask(&Request::Apply { actions: actions.to_vec() })? {
                Answer::Applied(results) if results.len() == actions.len() => all.extend(results),
                _ => return Err(confused()),
            }
        }
        Ok(all)
    }

    fn take_in(&self, how: &TakeIn) -> Result<TakenIn, Failure> {
        match self.ask(&Request::TakeIn(how.clone()))? {
            Answer::TakenIn(taken) => {
                Name::parse_dataset(&taken.dataset).map_err(DatasetError::from)?;
                Ok(taken)
            }
            _ => Err(confused()),
        }
    }

    fn sent(&self, target: &str) -> Result<(), Failure> {
        match self.ask(&Request::Sent { target: target.to_owned() })? {
            Answer::Done => Ok(()),
            _ => Err(confused()),
        }
    }
}

struct Sending {
    input: Incoming,
    call: Call,
}

impl Read for Sending {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.input.read(buf)
    }
}

impl Source for Sending {
    fn finish(self: Box<Self>) -> Result<(), Failure> {
        self.call.channel().result().map(drop)
    }
}

struct Receiving {
    output: Outgoing,
    call: Call,
}

impl Write for Receiving {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.output.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Sink for Receiving {
    fn finish(self: Box<Self>) -> Result<Vec<String>, Failure> {
        let Self { output, call } = *self;
        // If this cannot be sent, the result has the reason.
        let _ = output.finish();
        match call.channel().result()? {
            Answer::Received { notes } => Ok(notes),
            // An older server.
            Answer::Done => Ok(Vec::new()),
            _ => Err(confused()),
        }
    }
}
