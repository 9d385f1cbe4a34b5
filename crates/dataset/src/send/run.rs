//! Runs a plan: one thread walks and reads, the calling thread computes checksums and writes.

use std::io::Write;

use bytes::Bytes;
use snowmelt_stream::StreamError;
use snowmelt_stream::nvlist::NvList;
use snowmelt_stream::record::{End, HeaderType, Record};
use snowmelt_stream::writer::Writer;

use super::fetch::Fetcher;
use super::objects::Objects;
use super::queue::{Batch, Queue};
use super::recorder::{Output, Payload, Recorder};
use super::step::{Base, Step};
use super::{SendPlan, begin, delta, full, since};
use crate::error::{DatasetError, SendError};
use crate::objset::key::{OBJECT_MAX, SLOTS_PER_BLOCK};

/// Bytes of stream between two calls of `progress`.
const REPORT_EVERY: u64 = 1024 * 1024;

/// The progress of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The snapshot being sent.
    pub snapshot: &'a str,
    /// Number of snapshots that were begun, including this one.
    pub step: usize,
    /// Total number of snapshots.
    pub steps: usize,
    /// Bytes of this snapshot's stream so far.
    pub snapshot_bytes: u64,
    /// Bytes of the whole stream so far.
    pub bytes: u64,
}

/// The result of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Number of snapshots.
    pub snapshots: usize,
}

impl SendPlan {
    /// Writes the stream to `out`. `progress` is called from time to time by the calling thread.
    ///
    /// # Errors
    /// [`SendError::Closed`] when the other side of a pipe is closed; [`SendError::Write`]; when a block cannot be
    /// read, with its object and offset. The stream then stops without END, so no receiver treats it as complete.
    pub fn run(
        &self,
        out: impl Write + Send,
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Sent, SendError> {
        // Everything that can be refused is refused before the first byte.
        for step in &self.steps {
            begin::begin(step)?;
        }
        let queue = Queue::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let result = self.read(&queue);
                queue.end();
                result
            });
            let written = self.write(&queue, out, progress);
            if written.is_err() {
                queue.abandon();
            }
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // If writing failed, the error of the reader is only a consequence.
            let sent = written?;
            read?;
            Ok(sent)
        })
    }

    /// The reading thread.
    fn read(&self, queue: &Queue) -> Result<(), SendError> {
        let mut batch = Batch::default();
        let flush = |batch: &mut Batch| {
            if queue.push(std::mem::take(batch)) { Ok(()) } else { Err(SendError::Closed) }
        };
        let result = self.records(&mut |record, payload| {
            batch.push(record, payload);
            if batch.is_full() { flush(&mut batch) } else { Ok(()) }
        });
        // Records before an error are sent, for receivers that keep partial streams.
        if matches!(result, Err(SendError::Closed)) { result } else { flush(&mut batch).and(result) }
    }

    /// All records of the plan with their payloads, in order.
    fn records(&self, out: &mut dyn FnMut(Record, Bytes) -> Result<(), SendError>) -> Result<(), SendError> {
        if let Some(package) = &self.package {
            let (begin, payload) = package.begin()?;
            out(Record::Begin(begin), payload.into())?;
            out(Record::End(End::default()), Bytes::new())?;
        }
        for step in &self.steps {
            let mut fetcher = Fetcher::new(&step.target.pool, &step.target.name);
            self.substream(step, &mut |record, payload| out(record, fetcher.fetch(payload)?))?;
        }
        if self.package.is_some() {
            out(Record::End(End::default()), Bytes::new())?;
        }
        Ok(())
    }

    /// The records of one snapshot, from BEGIN to END.
    pub(super) fn substream(&self, step: &Step, out: &mut Output<'_>) -> Result<(), SendError> {
        let (begin, payload) = begin::begin(step)?;
        let features = begin.features;
        out(Record::Begin(begin), Payload::Bytes(payload.into()))?;
        let recorder = Recorder::new(&step.target, features, out);
        let mut objects = Objects::new(recorder, features, &self.cancelled);
        match &step.base {
            Base::Empty => full::walk(&mut objects, step.resume, object_end(step))?,
            Base::Tree { view, .. } => delta::walk(&mut objects, view, step.resume)?,
            Base::Txg { txg, .. } => since::walk(&mut objects, *txg, step.resume)?,
        }
        objects.finish()?;
        if step.saved {
            return Ok(());
        }
        out(Record::End(End { to_guid: step.target.guid, ..End::default() }), Payload::None)
    }

    /// The writing thread.
    fn write(
        &self,
        queue: &Queue,
        out: impl Write,
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Sent, SendError> {
        let mut writer = Writer::new(out);
        let mut sent = Sent::default();
        let (mut begun_at, mut reported) = (0, 0);
        while let Some(batch) = queue.pop() {
            for item in batch.items {
                if matches!(&item.record, Record::Begin(begin) if begin.header_type == HeaderType::Substream)
                {
                    begun_at = writer.bytes_written();
                    sent.snapshots += 1;
                }
                writer.record(&item.record, &item.payload).map_err(write_error)?;
                sent.bytes = writer.bytes_written();
                if sent.bytes - reported >= REPORT_EVERY {
                    reported = sent.bytes;
                    self.report(progress, sent, begun_at);
                    if self.is_cancelled() {
                        return Err(DatasetError::Interrupted.into());
                    }
                }
            }
        }
        writer.flush().map_err(write_error)?;
        self.report(progress, sent, begun_at);
        Ok(sent)
    }

    fn report(&self, progress: &(dyn Fn(Progress<'_>) + Sync), sent: Sent, begun_at: u64) {
        let Some(step) = sent.snapshots.checked_sub(1).and_then(|at| self.steps.get(at)) else { return };
        progress(Progress {
            snapshot: &step.target.name,
            step: sent.snapshots,
            steps: self.steps.len(),
            snapshot_bytes: sent.bytes - begun_at,
            bytes: sent.bytes,
        });
    }
}

/// The first object number that cannot exist at a raw dataset's receiver, from the size of the meta-dnode.
fn object_end(step: &Step) -> Option<u64> {
    if !step.target.is_raw() {
        return None;
    }
    let list = NvList::unpack(step.target.key_data.as_ref()?).ok()?;
    let blocks = list.get_u64("mdn_maxblkid")?.saturating_add(1);
    Some(blocks.saturating_mul(SLOTS_PER_BLOCK).min(OBJECT_MAX + 1))
}

fn write_error(error: StreamError) -> SendError {
    match error {
        StreamError::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => {
            SendError::Closed
        }
        StreamError::Io { source, .. } => SendError::Write(source),
        other => SendError::Stream(other),
    }
}
