//! Starts, runs, pauses and stops a scrub.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::gather::Gather;
use super::record::{KEY, Position, ScrubRecord, ScrubState, Stage};
use super::{MetaScan, ScrubOptions, ScrubRoots, ScrubStatus};
use crate::damage::Log;
use crate::error::{PoolError, Result, ScrubRefused};
use crate::pool::Pool;
use crate::txg::Hold;

/// Duration of a batch in seconds when the rate is limited.
const BATCH_SECONDS: u64 = 4;
/// Minimal size of a batch when the rate is limited, unless the caller asked for smaller batches.
const BATCH_BYTES_MIN: u64 = 1 << 20;
/// How often a scrub that waits because of its rate checks whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// A sound pool is read once, except for nodes that are written again and blocks of snapshots that are made meanwhile.
/// A scrub that has read this many times as much as there was would not end soon: roots share blocks that only one of
/// them can own.
const READS_MAX: u64 = 4;
/// Pools with less than this are read that often anyway.
const READS_MIN_BYTES: u64 = 64 << 20;
/// How often progress is reported.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

impl Pool {
    /// Continues the scrub that is under way, or runs a new one. Returns the status when everything is read, or when
    /// the scrub is [paused](Self::pause_scrub), [stopped](Self::stop_scrub) or cancelled. `begun` is called once this
    /// call runs the scrub. Must not be called with a hold.
    ///
    /// # Errors
    /// [`ScrubRefused::Running`] when another thread runs a scrub; when the pool cannot be read or written. Finished
    /// batches stay committed.
    pub fn scrub(
        &self,
        roots: &dyn ScrubRoots,
        options: &ScrubOptions<'_>,
        begun: &mut dyn FnMut(&ScrubStatus),
    ) -> Result<ScrubStatus> {
        let _alone = loop {
            if let Some(alone) = self.scrubber.try_lock_for(NAP) {
                break alone;
            }
            // A scrub that was paused or stopped will end soon.
            if self.scrub_record()?.is_none_or(|record| record.state == ScrubState::Scanning) {
                return Err(ScrubRefused::Running.into());
            }
        };
        self.begin_scrub()?;
        self.scrubbing.is_running.store(true, Ordering::Release);
        begun(&self.last_scrub()?);
        let done = self.scrub_all(roots, options);
        self.scrubbing.is_running.store(false, Ordering::Release);
        self.forget_batch();
        done?;
        self.last_scrub()
    }

    fn last_scrub(&self) -> Result<ScrubStatus> {
        self.scrub_status()?.ok_or(PoolError::Misuse("a scrub left no record"))
    }

    /// The last scrub; `None` if there was none. The status of a running scrub is current.
    ///
    /// # Errors
    /// When the meta tree cannot be read.
    pub fn scrub_status(&self) -> Result<Option<ScrubStatus>> {
        let Some(record) = self.scrub_record()? else { return Ok(None) };
        let live = &self.scrubbing;
        let scanned = record.issued.saturating_add(live.scanned.load(Ordering::Relaxed));
        Ok(Some(ScrubStatus {
            state: record.state,
            is_running: live.is_running.load(Ordering::Acquire),
            started: record.started,
            ended: record.ended,
            worked: record.worked.saturating_add(live.worked.load(Ordering::Relaxed)),
            total: record.total,
            scanned,
            issued: record.issued.saturating_add(live.issued.load(Ordering::Relaxed)).min(scanned),
            repaired: record.repaired,
            errors: record.errors,
        }))
    }

    /// Pauses the scrub that is under way. It keeps its position.
    ///
    /// # Errors
    /// `ScrubRefused`; as [`commit`](Self::commit).
    pub fn pause_scrub(&self) -> Result<()> {
        self.change_scrub(|record, now| match record.state {
            ScrubState::Scanning => {
                record.state = ScrubState::Paused;
                record.ended = now;
                Ok(())
            }
            ScrubState::Paused => Err(ScrubRefused::Paused.into()),
            ScrubState::Finished | ScrubState::Canceled => Err(ScrubRefused::NotRunning.into()),
        })
    }

    /// Stops the scrub that is under way or paused.
    ///
    /// # Errors
    /// `ScrubRefused`; as [`commit`](Self::commit).
    pub fn stop_scrub(&self) -> Result<()> {
        self.change_scrub(|record, now| {
            if !record.state.is_under_way() {
                return Err(ScrubRefused::NotRunning.into());
            }
            record.state = ScrubState::Canceled;
            record.ended = now;
            Ok(())
        })
    }

    fn change_scrub(&self, change: impl FnOnce(&mut ScrubRecord, u64) -> Result<()>) -> Result<()> {
        self.sync_task(|hold| {
            let mut record = self.scrub_record()?.ok_or(ScrubRefused::NotRunning)?;
            change(&mut record, (self.options.clock)())?;
            self.put_scrub(hold, &record)
        })?;
        self.scrubbing.interrupt.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn scrub_record(&self) -> Result<Option<ScrubRecord>> {
        self.meta().get(&KEY)?.map(|entry| ScrubRecord::decode(&entry.value)).transpose()
    }

    fn put_scrub(&self, hold: &Hold<'_>, record: &ScrubRecord) -> Result<()> {
        self.meta().insert(hold, &KEY, &record.encode()).map(drop)
    }

    fn begin_scrub(&self) -> Result<()> {
        self.io().parity_heads.lock().forget_tried();
        let total = self.space()?.allocated;
        self.sync_task(|hold| {
            let now = (self.options.clock)();
            let record = match self.scrub_record()? {
                Some(record) if record.state.is_under_way() => {
                    ScrubRecord { state: ScrubState::Scanning, ended: 0, ..record }
                }
                _ => {
                    self.begin_log(hold)?;
                    ScrubRecord {
                        state: ScrubState::Scanning,
                        started: now,
                        ended: 0,
                        worked: 0,
                        max_txg: hold.txg(),
                        frozen_until: 0,
                        total,
                        issued: 0,
                        repaired: 0,
                        errors: 0,
                        position: Position::start(Stage::Meta),
                    }
                }
            };
            self.put_scrub(hold, &record)
        })
    }

    fn scrub_all(&self, roots: &dyn ScrubRoots, options: &ScrubOptions<'_>) -> Result<()> {
        let mut pace = Pace::new(options);
        loop {
            self.scrubbing.interrupt.store(false, Ordering::Release);
            let record = self.scrub_record()?;
            let Some(record) = record.filter(|record| record.state == ScrubState::Scanning) else {
                return Ok(());
            };
            if (options.cancelled)() {
                return Ok(());
            }
            self.scrub_batch(roots, options, record, &mut pace)?;
            (options.progress)(&self.last_scrub()?);
        }
    }

    /// Reads a batch and commits the results.
    fn scrub_batch(
        &self,
        roots: &dyn ScrubRoots,
        options: &ScrubOptions<'_>,
        mut record: ScrubRecord,
        pace: &mut Pace,
    ) -> Result<()> {
        let began = Instant::now();
        let freed = self.io().watch_frees();
        let stop = || (options.cancelled)() || self.scrubbing.interrupt.load(Ordering::Acquire);
        let (txg, view, _) = self.capture()?;
        if view.root_ptr().is_none() {
            return Err(PoolError::Misuse("the meta tree was committed and is not on disk"));
        }
        let meta = MetaScan { io: self.io(), root: view.root_ptr() };
        let frozen_until = if record.frozen_until > 0 { record.frozen_until } else { txg };
        let plan = roots.plan(&meta, frozen_until)?;
        let mut gather = Gather { pool: self, roots, meta, plan, max_txg: record.max_txg, stop: &stop };
        let mut batch = Batch::new(pace.batch_bytes(), (self.options.clock)());
        gather.fill(&mut record, &mut batch, txg)?;
        let scanned = batch.scanned();
        self.scrubbing.scanned.store(scanned, Ordering::Relaxed);
        self.scrubbing.issued.store(batch.read, Ordering::Relaxed);
        let mut told = Instant::now();
        let mut tell = |bytes| {
            pace.wait(bytes, &stop);
            self.scrubbing.worked.store(began.elapsed().as_secs(), Ordering::Relaxed);
            if told.elapsed() >= TELL_INTERVAL {
                told = Instant::now();
                if let Ok(status) = self.last_scrub() {
                    (options.progress)(&status);
                }
            }
            !stop()
        };
        let mut whole = tell(batch.read) && batch.verify(self, &self.scrubbing, &mut tell)?;
        if whole && record.position.stage == Stage::Done {
            batch.healed += self.io().repair_store(self.options.clock, &mut || !stop())?;
            let mut go_on = |bytes| {
                whole = tell(bytes);
                whole
            };
            batch.healed += self.io().verify_parity(true, &mut |_| {}, &mut go_on);
        }
        if whole {
            record.issued = record.issued.saturating_add(scanned);
            refuse_shared_blocks(&record)?;
            record.worked = record.worked.saturating_add(pace.seconds(began.elapsed()));
            self.sync_task(|hold| self.end_batch(hold, record, &mut batch, &freed))?;
        }
        self.io().unwatch_frees(freed);
        self.forget_batch();
        Ok(())
    }

    fn forget_batch(&self) {
        for counter in [&self.scrubbing.scanned, &self.scrubbing.issued, &self.scrubbing.worked] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Records in one txg: repaired blocks, damaged blocks, and the position.
    fn end_batch(
        &self,
        hold: &Hold<'_>,
        mut record: ScrubRecord,
        batch: &mut Batch,
        freed: &crate::io::Freed,
    ) -> Result<()> {
        let Some(now) = self.scrub_record()? else { return Ok(()) };
        if !now.state.is_under_way() || now.started != record.started || now.max_txg != record.max_txg {
            return Ok(());
        }
        (record.state, record.ended) = (now.state, now.ended);
        let repaired = batch.healed.saturating_add(batch.mend(self, hold, freed)?);
        record.repaired = record.repaired.saturating_add(repaired);
        // Blocks that were freed while they were read do not count.
        batch.damaged.retain(|(damage, _)| !freed.has((damage.segment, damage.offset)));
        record.errors = record.errors.saturating_add(batch.damaged.len() as u64);
        self.log_damage(hold, Log::Scrub, &batch.damaged)?;
        if record.position.stage == Stage::Done {
            record.state = ScrubState::Finished;
            record.ended = (self.options.clock)();
            self.rotate_logs(hold)?;
        }
        self.put_scrub(hold, &record)
    }
}

/// Refuses to go on in a pool whose roots refer to the same blocks again and again.
fn refuse_shared_blocks(record: &ScrubRecord) -> Result<()> {
    if record.issued <= record.total.saturating_mul(READS_MAX).saturating_add(READS_MIN_BYTES) {
        return Ok(());
    }
    let why = format!(
        "{} bytes were read of {} that are in use, so trees share blocks that they cannot share: \
         'check' lists them",
        record.issued, record.total
    );
    Err(PoolError::record("scrub record", why))
}

/// Limits the rate of reading.
struct Pace {
    rate: Option<u64>,
    batch_bytes: u64,
    began: Instant,
    read: u64,
    /// Fractions of a second of earlier batches.
    rest: Duration,
}

impl Pace {
    fn new(options: &ScrubOptions<'_>) -> Self {
        let rate = options.rate.map(|rate| rate.max(1));
        Pace { rate, batch_bytes: options.batch_bytes, began: Instant::now(), read: 0, rest: Duration::ZERO }
    }

    fn batch_bytes(&self) -> u64 {
        let by_rate = self.rate.map(|rate| rate.saturating_mul(BATCH_SECONDS).max(BATCH_BYTES_MIN));
        by_rate.map_or(self.batch_bytes, |by_rate| by_rate.min(self.batch_bytes))
    }

    /// Counts `bytes` and waits as long as the rate requires.
    fn wait(&mut self, bytes: u64, stop: &dyn Fn() -> bool) {
        let Some(rate) = self.rate else { return };
        self.read = self.read.saturating_add(bytes);
        let due = Duration::from_secs_f64(self.read as f64 / rate as f64);
        while let Some(left) = due.checked_sub(self.began.elapsed()).filter(|left| !left.is_zero()) {
            if stop() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Returns whole seconds and keeps the rest, so that many short batches add up correctly.
    fn seconds(&mut self, more: Duration) -> u64 {
        self.rest += more;
        let whole = self.rest.as_secs();
        self.rest -= Duration::from_secs(whole);
        whole
    }
}
