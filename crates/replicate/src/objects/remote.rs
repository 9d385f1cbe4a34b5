//! The side that asks.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use snowmelt_fs::mirror::Changes;
use snowmelt_zpl::{Dnode, Objects, SourceError};

use super::query::{Query, READ_MAX, Unread, decode_dnode, decode_numbers, invalid, read_answer};
use crate::error::Failure;
use crate::wire::{Call, Channel, Incoming, Outgoing};

/// Dnodes kept: several questions about one file come one after the other.
const KEPT_MAX: usize = 1024;

/// Whether work that reads snapshots of other machines is to go on: not after one of them is gone.
#[derive(Debug, Default)]
pub(crate) struct Lifeline {
    stop: AtomicBool,
    why: Mutex<Option<Failure>>,
}

impl Lifeline {
    /// Set when the work is to stop.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// Says that the work is to stop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Why nothing more can be read, if that is so.
    pub(crate) fn lost(&self) -> Option<Failure> {
        self.why.lock().clone()
    }

    fn cut(&self, why: &Failure) {
        self.why.lock().get_or_insert_with(|| why.clone());
        self.stop();
    }
}

/// A snapshot at the other side of a connection.
pub struct RemoteSnapshot {
    streams: Arc<Mutex<Streams>>,
    /// It is the older one of two that are lent together.
    is_older: bool,
    dnodes: Mutex<HashMap<u64, Option<Dnode>>>,
    lifeline: Arc<Lifeline>,
    /// Ends the request when dropped; nothing if the request is one of the other side, which lends the snapshot.
    call: Option<Call>,
}

struct Streams {
    queries: Outgoing,
    answers: BufReader<Incoming>,
}

impl Streams {
    fn of(channel: &Arc<Channel>) -> Arc<Mutex<Self>> {
        let queries = channel.outgoing();
        let answers = BufReader::with_capacity(64 * 1024, channel.incoming());
        Arc::new(Mutex::new(Self { queries, answers }))
    }
}

impl RemoteSnapshot {
    pub(crate) fn new(call: Call) -> Self {
        let streams = Streams::of(call.channel());
        let (dnodes, lifeline) = (Mutex::default(), Arc::default());
        Self { streams, is_older: false, dnodes, lifeline, call: Some(call) }
    }

    /// Lets whoever works with this one, and others, learn when it can be read no more.
    pub(crate) fn tie(&mut self, lifeline: &Arc<Lifeline>) {
        self.lifeline = lifeline.clone();
    }

    /// A snapshot that the client of a request lends, and an older one.
    pub(crate) fn lent(channel: &Arc<Channel>) -> (Self, Self) {
        let streams = Streams::of(channel);
        let one = |is_older| Self {
            streams: streams.clone(),
            is_older,
            dnodes: Mutex::default(),
            lifeline: Arc::default(),
            call: None,
        };
        (one(false), one(true))
    }

    /// The answer to a query, as it comes.
    pub(super) fn answer(&self, query: Query) -> io::Result<Result<Vec<u8>, Unread>> {
        let mut streams = self.streams.lock();
        streams.queries.write_all(&query.encode_of(self.is_older))?;
        read_answer(&mut streams.answers)
    }

    fn ask(&self, object: u64, offset: u64, query: Query) -> Result<Vec<u8>, SourceError> {
        let answer = self.answer(query).map_err(|error| SourceError::Other(Box::new(self.ended(&error))))?;
        answer.map_err(|why| match why {
            Unread::Block(why) => SourceError::Unreadable { object, offset, source: why.into() },
            Unread::Other(why) => SourceError::Other(why.into()),
        })
    }

    /// Why there is no answer.
    pub(super) fn ended(&self, error: &io::Error) -> Failure {
        let is_over =
            [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof];
        let call = self.call.as_ref().filter(|_| is_over.contains(&error.kind()));
        let failure = match call.map(|call| call.channel().result()) {
            Some(Err(failure)) => failure,
            _ if is_over.contains(&error.kind()) => Failure::lost(error.to_string()),
            _ => Failure::other(error.to_string()),
        };
        self.lifeline.cut(&failure);
        failure
    }

    fn one(&self, object: u64, offset: u64, query: Query) -> Result<Option<u64>, SourceError> {
        let numbers = decode_numbers(&self.ask(object, offset, query)?).map_err(confused)?;
        match numbers[..] {
            [] => Ok(None),
            [number] if number >= offset => Ok(Some(number)),
            _ => Err(confused(invalid("an offset that cannot be"))),
        }
    }
}

/// The other side broke a rule.
fn confused(error: io::Error) -> SourceError {
    SourceError::Other(Box::new(error))
}

impl Objects for RemoteSnapshot {
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
        if let Some(known) = self.dnodes.lock().get(&object) {
            return Ok(known.clone());
        }
        let dnode = decode_dnode(object, &self.ask(object, 0, Query::Dnode { object })?).map_err(confused)?;
        let mut kept = self.dnodes.lock();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(object, dnode.clone());
        Ok(dnode)
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let mut at = offset;
        for piece in buf.chunks_mut(READ_MAX) {
            let len = u32::try_from(piece.len()).unwrap_or(0);
            let bytes = self.ask(object, at, Query::Data { object, offset: at, len })?;
            if bytes.len() != piece.len() {
                return Err(confused(invalid("more or fewer bytes than were asked for")));
            }
            piece.copy_from_slice(&bytes);
            at = at.saturating_add(bytes.len() as u64);
        }
        Ok(())
    }

    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        let mut bytes = self.ask(object, 0, Query::Spill { object })?;
        if bytes.is_empty() {
            return Ok(None);
        }
        bytes.remove(0);
        Ok(Some(bytes))
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.one(object, offset, Query::NextData { object, offset })
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.one(object, offset, Query::NextHole { object, offset })
    }
}

impl Changes for RemoteSnapshot {
    fn objects(&self, from: u64) -> Result<Vec<u64>, SourceError> {
        let bytes = self.ask(from, 0, Query::ChangedObjects { from })?;
        let numbers = decode_numbers(&bytes).map_err(confused)?;
        if numbers.first().is_some_and(|first| *first < from) || !numbers.is_sorted_by(|a, b| a < b) {
            return Err(confused(invalid("objects out of order")));
        }
        Ok(numbers)
    }

    fn blocks(&self, object: u64, from: u64) -> Result<Vec<(u64, u64)>, SourceError> {
        let bytes = self.ask(object, from, Query::ChangedBlocks { object, from })?;
        let numbers = decode_numbers(&bytes).map_err(confused)?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        let mut ranges = Vec::with_capacity(pairs.len());
        let mut least = 0;
        for [offset, len] in pairs {
            let end = offset.checked_add(*len).filter(|end| *len > 0 && *end > from && *offset >= least);
            least = end.ok_or_else(|| confused(invalid("ranges out of order")))?;
            ranges.push((*offset, *len));
        }
        match rest {
            [] => Ok(ranges),
            _ => Err(confused(invalid("half a range"))),
        }
    }
}
