//! A pool of snowmelt, at the other side of a connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use super::{End, Sink, Source};
use crate::error::Failure;
use crate::objects::RemoteSnapshot;
use crate::request::{
    Action, Answer, DatasetInfo, Describe, ReadRequest, ReceiveRequest, Request, SendRequest, TakeIn, TakenIn,
};
use crate::wire::{Call, Connection, Incoming, Outgoing};

/// Longest line of a description: a dataset with half a million snapshots.
const LINE_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of a whole description: five million snapshots.
const DESCRIPTION_MAX: usize = 512 * 1024 * 1024;
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
    Failure::other("the other side gave an answer to another question")
}

impl End for Peer {
    fn describe(&self, what: &Describe) -> Result<Vec<DatasetInfo>, Failure> {
        let call = self.connection.request(&Request::Describe(what.clone()))?;
        let mut lines = BufReader::new(call.channel().incoming());
        let mut found = Vec::new();
        let mut line = Vec::new();
        let mut bytes = 0;
        loop {
            line.clear();
            if bytes > DESCRIPTION_MAX {
                let why =
                    format!("the description of '{}' is larger than {DESCRIPTION_MAX} bytes", what.root);
                return Err(Failure::other(why));
            }
            match (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) => break,
                // Why it broke off is in the result.
                Err(_) => break,
                Ok(len) => bytes += len,
            }
            let info = serde_json::from_slice(&line)
                .map_err(|error| Failure::other(format!("a description that cannot be read: {error}")))?;
            found.push(info);
        }
        match call.channel().result()? {
            Answer::Done => Ok(found),
            _ => Err(confused()),
        }
    }

    fn send(&self, request: &SendRequest) -> Result<Box<dyn Source>, Failure> {
        let call = self.connection.request(&Request::Send(request.clone()))?;
        Ok(Box::new(Sending { input: call.channel().incoming(), call }))
    }

    fn receive(&self, request: &ReceiveRequest) -> Result<Box<dyn Sink>, Failure> {
        let call = self.connection.request(&Request::Receive(request.clone()))?;
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
            Answer::TakenIn(taken) => Ok(taken),
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
    fn finish(self: Box<Self>) -> Result<(), Failure> {
        let Self { output, call } = *self;
        // If that cannot be said the result tells why.
        let _ = output.finish();
        call.channel().result().map(drop)
    }
}
