//! The side that asks.

use std::collections::VecDeque;
use std::io::{self, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use snowmelt_fs::mirror::Changes;
use snowmelt_zpl::{DMU_OT_DIRECTORY_CONTENTS, Dnode, Objects, SourceError};

use super::known::{Answered, Known, Walked};
use super::query::{OBJECT_DATA_MAX, Query, READ_MAX, Unread, Whole, decode_numbers, invalid, read_answer};
use crate::error::Failure;
use crate::wire::{Call, Channel, Incoming, Outgoing};

/// Questions under way: more are not asked ahead of time.
const ASKED_MAX: usize = 4096;
/// Steps of a walk asked for, and come, ahead of the one that is looked at.
const STEPS_AHEAD: usize = 1024;
/// Steps are asked for when fewer than so many are ahead.
const STEPS_LOW: usize = STEPS_AHEAD / 2;

/// Whether work that reads snapshots of other machines should continue. It stops when one of them is lost.
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
///
/// The other side answers in order, so queries can be sent before earlier ones are answered. What the reader will
/// read soon ([`Objects::prefetch`]) is requested this way, and kept until it is read.
pub struct RemoteSnapshot {
    streams: Arc<Streams>,
    /// It is the older one of two that are lent together.
    is_older: bool,
    lifeline: Arc<Lifeline>,
    /// Ends the request when dropped. `None` if the request is one of the other side, which lends the snapshot.
    call: Option<Call>,
}

/// Lock order: `answers`, `queries`.
struct Streams {
    queries: Mutex<Outgoing>,
    answers: Mutex<Answers>,
}

struct Answers {
    input: BufReader<Incoming>,
    /// Questions without an answer yet, and of which of two snapshots.
    asked: VecDeque<(Query, bool)>,
    /// Of the one snapshot or the newer, and of the older.
    known: [Known; 2],
}

impl Streams {
    fn of(channel: &Arc<Channel>) -> Arc<Self> {
        let input = BufReader::with_capacity(64 * 1024, channel.incoming());
        let answers = Answers { input, asked: VecDeque::new(), known: Default::default() };
        Arc::new(Self { queries: Mutex::new(channel.outgoing()), answers: Mutex::new(answers) })
    }
}

impl Answers {
    /// Takes the next answer: that to `wanted` is given, others are kept.
    fn next(&mut self, wanted: Option<(Query, bool)>) -> io::Result<Option<Answered>> {
        let Some((query, is_older)) = self.asked.pop_front() else { return Ok(None) };
        let answer = read_answer(&mut self.input)?;
        if wanted == Some((query, is_older)) {
            return Ok(Some(answer));
        }
        self.known[usize::from(is_older)].keep(query, answer)?;
        Ok(None)
    }

    /// Takes the answer to a question that was asked.
    fn wait(&mut self, query: Query, is_older: bool) -> io::Result<Answered> {
        while !self.asked.is_empty() {
            if let Some(answer) = self.next(Some((query, is_older)))? {
                return Ok(answer);
            }
        }
        Err(invalid("no answer"))
    }
}

impl RemoteSnapshot {
    pub(crate) fn new(call: Call) -> Self {
        Self {
            streams: Streams::of(call.channel()),
            is_older: false,
            lifeline: Arc::default(),
            call: Some(call),
        }
    }

    /// Informs the users of this snapshot, and of others, when it can no longer be read.
    pub(crate) fn tie(&mut self, lifeline: &Arc<Lifeline>) {
        self.lifeline = lifeline.clone();
    }

    /// A snapshot that the client of a request lends, and an older one.
    pub(crate) fn lent(channel: &Arc<Channel>) -> (Self, Self) {
        let streams = Streams::of(channel);
        let one =
            |is_older| Self { streams: streams.clone(), is_older, lifeline: Arc::default(), call: None };
        (one(false), one(true))
    }

    /// Passes on a query of another reader. Its answer is [`RemoteSnapshot::passed`]. Until then no other query may
    /// be sent.
    pub(super) fn pass(&self, query: Query) -> io::Result<()> {
        self.streams.queries.lock().write_all(&query.encode_of(self.is_older))
    }

    /// The answer to the first query passed on that has none yet.
    pub(super) fn passed(&self) -> io::Result<Answered> {
        read_answer(&mut self.streams.answers.lock().input)
    }

    fn put(&self, answers: &mut Answers, query: Query) -> io::Result<()> {
        self.pass(query)?;
        answers.asked.push_back((query, self.is_older));
        Ok(())
    }

    /// Asks ahead of time, unless that was done.
    fn ask_ahead(&self, query: Query, is_known: impl FnOnce(&Known) -> bool) {
        let mut answers = self.streams.answers.lock();
        let is_known = is_known(&answers.known[usize::from(self.is_older)]);
        if is_known || answers.asked.len() >= ASKED_MAX || answers.asked.contains(&(query, self.is_older)) {
            return;
        }
        // If the query cannot be sent, the error shows when the answer is needed.
        let _ = self.put(&mut answers, query);
    }

    fn ask_ahead_once(&self, query: Query) {
        self.ask_ahead(query, |known| known.has_answer(&query));
    }

    /// The answer to a question.
    fn answer(&self, query: Query) -> io::Result<Answered> {
        let mut answers = self.streams.answers.lock();
        if let Some(answer) = answers.known[usize::from(self.is_older)].take(&query) {
            return Ok(answer);
        }
        if !answers.asked.contains(&(query, self.is_older)) {
            self.put(&mut answers, query)?;
        }
        answers.wait(query, self.is_older)
    }

    fn ask(&self, object: u64, offset: u64, query: Query) -> Result<Vec<u8>, SourceError> {
        let answer = self.answer(query).map_err(|error| self.broken(&error))?;
        answer.map_err(|why| match why {
            Unread::Block(why) => SourceError::Unreadable { object, offset, source: why.into() },
            Unread::Other(why) => SourceError::Other(why.into()),
        })
    }

    fn broken(&self, error: &io::Error) -> SourceError {
        SourceError::Other(Box::new(self.ended(error)))
    }

    /// An object that is known, was requested, or arrives in a walk. Otherwise it is requested now.
    fn object(&self, object: u64) -> Result<Arc<Whole>, SourceError> {
        match self.expected(object).map_err(|error| self.broken(&error))? {
            Some(whole) => Ok(whole),
            None => self.whole(object, 0),
        }
    }

    fn expected(&self, object: u64) -> io::Result<Option<Arc<Whole>>> {
        let mut answers = self.streams.answers.lock();
        let this = usize::from(self.is_older);
        loop {
            let known = &mut answers.known[this];
            let found = known.object(object);
            let walk = &mut known.walk;
            if let (Some(root), true) = (walk.root, walk.asked + walk.ahead.len() < STEPS_LOW) {
                let (round, more) = (walk.round, STEPS_AHEAD - walk.asked - walk.ahead.len());
                walk.asked += more;
                for _ in 0..more {
                    self.put(&mut answers, Query::Walk { root, round })?;
                }
            }
            let is_coming = |(query, is_older): &(Query, bool)| {
                let is_it = match query {
                    Query::Object { object: asked, .. } => *asked == object,
                    Query::Walk { .. } => true,
                    _ => false,
                };
                is_it && *is_older == self.is_older
            };
            if found.is_some() || !answers.asked.iter().any(is_coming) {
                return Ok(found);
            }
            answers.next(None)?;
        }
    }

    /// Asks for an object, with its data if that is no longer than `len`.
    fn whole(&self, object: u64, len: u32) -> Result<Arc<Whole>, SourceError> {
        let bytes = self.ask(object, 0, Query::Object { object, len })?;
        let whole = Whole::decode(object, &bytes).map_err(confused)?;
        Ok(self.streams.answers.lock().known[usize::from(self.is_older)].put(object, whole))
    }

    /// An object with its data, if that is known or was asked for.
    fn with_data(&self, object: u64) -> Result<Option<Arc<Whole>>, SourceError> {
        let query = Query::Object { object, len: OBJECT_DATA_MAX };
        let mut answers = self.streams.answers.lock();
        let this = usize::from(self.is_older);
        loop {
            let is_there = answers.known[this].has(object, true);
            let is_coming = answers.asked.contains(&(query, self.is_older));
            match (is_there, is_coming) {
                (true, _) => return Ok(answers.known[this].object(object)),
                (false, false) => return Ok(None),
                (false, true) => _ = answers.next(None).map_err(|error| self.broken(&error))?,
            }
        }
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

    /// In a large directory, the surrounding data is read too: all of it will be needed, in any order.
    fn read_around(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let (mut at, mut left) = (offset, buf);
        while !left.is_empty() {
            let begin = at / READ_MAX as u64 * READ_MAX as u64;
            let query = Query::Data { object, offset: begin, len: READ_MAX as u32 };
            let bytes = self.ask(object, at, query)?;
            let found =
                usize::try_from(at - begin).ok().and_then(|skip| bytes.get(skip..)).unwrap_or_default();
            let len = found.len().min(left.len());
            if bytes.len() != READ_MAX || len == 0 {
                return Err(confused(invalid("more or fewer bytes than were asked for")));
            }
            left[..len].copy_from_slice(&found[..len]);
            left = &mut left[len..];
            at = at.saturating_add(len as u64);
            let kept = self.streams.answers.lock().known[usize::from(self.is_older)].keep(query, Ok(bytes));
            kept.map_err(|error| self.broken(&error))?;
        }
        Ok(())
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

/// Puts into `buf` what an object has at `offset`.
fn copy(data: &[(u64, Vec<u8>)], offset: u64, buf: &mut [u8]) {
    buf.fill(0);
    for (begin, bytes) in data {
        let (skip, at) = (offset.saturating_sub(*begin), begin.saturating_sub(offset));
        let from = usize::try_from(skip).ok().and_then(|skip| bytes.get(skip..)).unwrap_or_default();
        let into = usize::try_from(at).ok().and_then(|at| buf.get_mut(at..)).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
    }
}

/// The extent that `offset` is in, or that comes next.
fn extent_from(data: &[(u64, Vec<u8>)], offset: u64) -> Option<(u64, u64)> {
    let mut extents = data.iter().map(|(begin, bytes)| (*begin, begin + bytes.len() as u64));
    extents.find(|(_, end)| *end > offset)
}

impl Objects for RemoteSnapshot {
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
        Ok(self.object(object)?.dnode.clone())
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        if let Some(data) = self.with_data(object)?.as_ref().and_then(|whole| whole.data.as_ref()) {
            copy(data, offset, buf);
            return Ok(());
        }
        let dnode = &self.object(object)?.dnode;
        if dnode.as_ref().is_some_and(|dnode| dnode.object_type == DMU_OT_DIRECTORY_CONTENTS) {
            return self.read_around(object, offset, buf);
        }
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
        Ok(self.object(object)?.spill.clone())
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        match self.with_data(object)?.as_ref().and_then(|whole| whole.data.as_ref()) {
            Some(data) => Ok(extent_from(data, offset).map(|(begin, _)| begin.max(offset))),
            None => self.one(object, offset, Query::NextData { object, offset }),
        }
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        match self.with_data(object)?.as_ref().and_then(|whole| whole.data.as_ref()) {
            Some(data) => {
                let inside = extent_from(data, offset).filter(|(begin, _)| *begin <= offset);
                Ok(Some(inside.map_or(offset, |(_, end)| end)))
            }
            None => self.one(object, offset, Query::NextHole { object, offset }),
        }
    }

    fn prefetch(&self, object: u64) {
        self.ask_ahead(Query::Object { object, len: 0 }, |known| known.has(object, false));
    }

    fn prefetch_content(&self, object: u64) {
        self.ask_ahead(Query::Object { object, len: OBJECT_DATA_MAX }, |known| known.has(object, true));
    }

    fn prefetch_extent(&self, object: u64, offset: u64, len: u64) {
        self.ask_ahead(Query::NextData { object, offset }, |known| {
            known.has_data(object) || known.has_answer(&Query::NextData { object, offset })
        });
        self.ask_ahead(Query::NextHole { object, offset }, |known| {
            known.has_data(object) || known.has_answer(&Query::NextHole { object, offset })
        });
        self.prefetch_data(object, offset, len);
    }

    fn prefetch_data(&self, object: u64, offset: u64, len: u64) {
        let Some(len) = u32::try_from(len).ok().filter(|len| *len as usize <= READ_MAX) else { return };
        let query = Query::Data { object, offset, len };
        self.ask_ahead(query, |known| known.has_data(object) || known.has_answer(&query));
    }

    fn prefetch_tree(&self, object: u64) {
        let mut answers = self.streams.answers.lock();
        let walk = &mut answers.known[usize::from(self.is_older)].walk;
        *walk = Walked { root: Some(object), round: walk.round + 1, ..Walked::default() };
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

    fn prefetch_blocks(&self, object: u64) {
        self.ask_ahead_once(Query::ChangedBlocks { object, from: 0 });
    }
}
