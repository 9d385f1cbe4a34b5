//! The pipeline from the input to the tree: the calling thread reads and checks records, workers prepare data, and one
//! thread applies everything in order. The queues between them are limited in records and bytes.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};
use snowmelt_pool::OutsidePlace;
use snowmelt_stream::features::Features;
use snowmelt_stream::reader::{Positioned, Reader};
use snowmelt_stream::record::{Begin, End, RECORD_LEN, Record};

use super::apply::Applier;
use super::begin::{Destination, Session};
use super::budget::Budget;
use super::prepare::{Codec, Job, Outcome};
use super::{Observer, ReceiveEvent, ReceiveOptions, Received};
use crate::datasets::Datasets;
use crate::error::{DatasetError, ReceiveError};

/// Maximal number of records in the pipeline.
const QUEUE: usize = 256;
/// Maximal bytes of payload in the pipeline.
const BYTES: u64 = 32 << 20;
/// Bytes of stream between two [`ReceiveEvent::Progress`].
const PROGRESS: u64 = 1 << 20;

/// A stream whose BEGIN was read.
pub(super) struct Incoming {
    pub(super) begin: Begin,
    pub(super) payload: Vec<u8>,
    pub(super) at: Positioned,
}

/// The place of a record, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) index: u64,
    pub(super) offset: u64,
    /// Bytes of this snapshot's stream up to the record's end.
    pub(super) bytes: u64,
}

/// A record in the pipeline.
pub(super) struct Item {
    pub(super) place: Place,
    pub(super) record: Arc<Record>,
    pub(super) data: Data,
    size: u64,
}

/// The data of a record.
pub(super) enum Data {
    /// A bonus, or nothing.
    Bytes(Vec<u8>),
    /// A block that a worker prepares.
    Block(Receiver<Outcome>),
}

impl Item {
    pub(super) fn error(&self, why: impl Into<String>) -> ReceiveError {
        let Place { index, offset, .. } = self.place;
        ReceiveError::Record { index, kind: self.record.kind_name(), offset, why: why.into() }
    }
}

impl Datasets {
    /// Receives one snapshot's stream, whose BEGIN was read.
    pub(super) fn receive_substream<R: Read + Send>(
        &self,
        reader: &mut Reader<R>,
        incoming: Incoming,
        destination: Destination,
        options: &ReceiveOptions,
        observer: &Observer<'_>,
        received: &mut Received,
    ) -> Result<(), ReceiveError> {
        let begin = &incoming.begin;
        (observer.event)(ReceiveEvent::Begin {
            source: begin.to_name.to_string(),
            target: destination.full(),
            incremental: begin.from_guid != 0,
        });
        if options.dry_run {
            received.snapshots.push(destination.full());
            return skip_to_end(reader, observer);
        }
        let mut session = self.begin_session(begin, &incoming.payload, destination, options)?;
        if session.begin.features.intersects(Features::DEDUP | Features::DEDUPPROPS) {
            session.brought.clone_from(&received.snapshots);
        }
        let outcome = self.compression_of(&session).map_err(ReceiveError::from).and_then(|codec| {
            let storing = Storing { codec, by_reference: options.by_reference };
            transfer(reader, &mut session, storing, incoming.at.offset, observer)
        });
        match outcome.and_then(|end| session.finish(options, end).map(|()| end.bytes)) {
            Ok(bytes) => {
                let target = session.destination.full();
                (observer.event)(ReceiveEvent::End { target: target.clone(), bytes });
                received.snapshots.push(target);
                Ok(())
            }
            Err(error) => {
                let kept = session.abandon();
                match kept {
                    Ok(()) => Err(error),
                    Err(cleanup) => {
                        (observer.event)(ReceiveEvent::Note(format!(
                            "what was received could not be removed now ({cleanup}); \
                             it goes when the pool is next opened"
                        )));
                        Err(error)
                    }
                }
            }
        }
    }

    fn compression_of(&self, session: &Session<'_>) -> Result<Codec, DatasetError> {
        let catalog = self.catalog();
        let dataset = catalog.dataset_by_id(session.id)?;
        let value = catalog.inherited_property(&dataset, "compression")?;
        Ok(Codec::of_property(value.as_ref().map_or("on", |(value, ..)| value)))
    }
}

/// Reads records until END and ignores them.
pub(super) fn skip_to_end<R: Read>(
    reader: &mut Reader<R>,
    observer: &Observer<'_>,
) -> Result<(), ReceiveError> {
    let mut scratch = Vec::new();
    loop {
        if observer.cancelled.load(Ordering::Relaxed) {
            return Err(DatasetError::Interrupted.into());
        }
        match reader.skip(&mut scratch)? {
            Some(Positioned { record: Record::End(_), .. }) => return Ok(()),
            Some(_) => {}
            None => return Err(ReceiveError::Package { why: "the stream ends without END".to_owned() }),
        }
    }
}

/// Moves records from the reader to the session's tree. Returns the place of END.
fn transfer<R: Read + Send>(
    reader: &mut Reader<R>,
    session: &mut Session<'_>,
    storing: Storing,
    start: u64,
    observer: &Observer<'_>,
) -> Result<Place, ReceiveError> {
    let budget = Budget::new(BYTES);
    let (to_applier, items) = bounded::<Item>(QUEUE);
    let (to_workers, jobs) = bounded::<(Job, Sender<Outcome>)>(QUEUE);
    let (raw, swapped) = (session.is_raw(), reader.is_swapped());
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get().min(4));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let jobs = jobs.clone();
            scope.spawn(move || {
                for (job, done) in jobs {
                    // If nothing listens, the applier has ended, and the result does not matter.
                    let _ = done.send(job.run());
                }
            });
        }
        drop(jobs);
        let applying = {
            let (session, budget) = (&mut *session, &budget);
            scope.spawn(move || {
                let outcome =
                    Applier::new(session, swapped).and_then(|applier| apply_all(applier, &items, budget));
                budget.close();
                outcome
            })
        };
        let sink = Sink { to_applier, to_workers, budget: &budget, storing, raw, swapped, start };
        let read = read_all(reader, sink, observer);
        let applied = applying
            .join()
            .unwrap_or_else(|_| Err(DatasetError::corrupt("receive", "the applying thread failed").into()));
        applied.and(read)
    })
}

/// How data is stored.
#[derive(Clone, Copy)]
struct Storing {
    codec: Codec,
    /// As [`ReceiveOptions::by_reference`].
    by_reference: bool,
}

/// The outputs of the reading thread.
struct Sink<'a> {
    to_applier: Sender<Item>,
    to_workers: Sender<(Job, Sender<Outcome>)>,
    budget: &'a Budget,
    storing: Storing,
    raw: bool,
    /// Whether the stream is of the other byte order.
    swapped: bool,
    start: u64,
}

/// Reads up to END. Stops without an error when the applier has ended: the applier returns the error.
fn read_all<R: Read>(
    reader: &mut Reader<R>,
    sink: Sink<'_>,
    observer: &Observer<'_>,
) -> Result<Place, ReceiveError> {
    let mut payload = Vec::new();
    let mut block_size = (0, 0);
    let mut reported = 0;
    loop {
        if observer.cancelled.load(Ordering::Relaxed) {
            return Err(DatasetError::Interrupted.into());
        }
        let Some(positioned) = reader.next(&mut payload)? else {
            return Err(ReceiveError::Package { why: "the stream ends without END".to_owned() });
        };
        let bytes = positioned.end().saturating_sub(sink.start);
        if bytes >= reported + PROGRESS {
            reported = bytes;
            (observer.event)(ReceiveEvent::Progress { bytes });
        }
        let place = Place { index: positioned.index, offset: positioned.offset, bytes };
        let record = match positioned.record {
            Record::End(End { .. }) => return Ok(place),
            Record::Begin(_) => {
                return Err(ReceiveError::Package { why: "BEGIN inside a stream".to_owned() });
            }
            record => Arc::new(record),
        };
        if let Record::Object(object) = &*record {
            block_size = (object.object, u64::from(object.block_size));
        }
        let size = payload.len() as u64 + 512;
        if !sink.budget.take(size) {
            return Ok(place);
        }
        let data = match &*record {
            // Only the applier knows the type of the object, which is needed to swap the data.
            Record::WriteEmbedded(_) if sink.swapped => Data::Bytes(std::mem::take(&mut payload)),
            Record::Write(_) | Record::WriteEmbedded(_) | Record::Spill(_) => {
                let at = positioned.offset.saturating_add(RECORD_LEN as u64);
                let job = Job {
                    record: record.clone(),
                    payload: std::mem::take(&mut payload),
                    codec: sink.storing.codec,
                    outside: sink.storing.by_reference.then_some(OutsidePlace { source: 0, offset: at }),
                    raw: sink.raw,
                    swapped: sink.swapped,
                    block_size: if record.object() == Some(block_size.0) { block_size.1 } else { 0 },
                };
                let (done, outcome) = bounded(1);
                if sink.to_workers.send((job, done)).is_err() {
                    return Ok(place);
                }
                Data::Block(outcome)
            }
            _ => Data::Bytes(std::mem::take(&mut payload)),
        };
        if sink.to_applier.send(Item { place, record, data, size }).is_err() {
            return Ok(place);
        }
    }
}

/// Applies items in order, several with one hold, so that commits are possible between them.
fn apply_all(
    mut applier: Applier<'_, '_>,
    items: &Receiver<Item>,
    budget: &Budget,
) -> Result<(), ReceiveError> {
    const BATCH_ITEMS: usize = 32;
    const BATCH_BYTES: u64 = 1 << 20;
    let pool = applier.pool().clone();
    while let Ok(first) = items.recv() {
        let hold = applier.begin(&pool, first.size.max(BATCH_BYTES))?;
        let (mut count, mut bytes, mut next) = (0, 0, Some(first));
        while let Some(item) = next {
            let size = item.size;
            applier.apply(&hold, item)?;
            budget.give_back(size);
            count += 1;
            bytes += size;
            next = if count < BATCH_ITEMS && bytes < BATCH_BYTES { at_hand(items) } else { None };
        }
        applier.save_state(&hold)?;
        drop(hold);
        pool.maybe_commit()?;
    }
    Ok(())
}

/// The next item, if it has already arrived: with a hold, nothing may wait for the input. In simulations the whole
/// input is available, and nothing may depend on the speed of threads, so there it waits.
fn at_hand(items: &Receiver<Item>) -> Option<Item> {
    if cfg!(test) { items.recv().ok() } else { items.try_recv().ok() }
}
