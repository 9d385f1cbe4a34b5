//! The resilver: copying the segments that members lack, while the pool is written to.
//!
//! Writes also go to a member that is being brought up to date, except for the segments that it lacks. These are
//! copied one by one, in the order of their ids. The last part of a segment is copied while no segment is changed.
//! From then on, the segment is written to like the other copies. The next publication records what was copied, so
//! that an interrupted resilver continues from there.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::MirrorStore;
use super::member::Member;
use super::open::places;
use crate::{ResilverStatus, Result, SegmentId, Store, StoreError};

/// Bytes that are copied at a time.
const CHUNK: u64 = 1 << 20;
/// If the members lack no more than this number of bytes when the pool is opened, these are copied at once.
const SMALL: u64 = 32 << 20;
/// Bytes between two publications of the progress.
const STEP: u64 = 256 << 20;

/// Appends the bytes of `range` to a segment of `target`, whose end is the start of `range`.
pub(super) fn copy_range(
    source: &dyn Store,
    target: &dyn Store,
    id: SegmentId,
    range: Range<u64>,
) -> Result<()> {
    let mut buf = vec![0; CHUNK.min(range.end.saturating_sub(range.start)) as usize];
    let mut at = range.start;
    while at < range.end {
        let part = &mut buf[..CHUNK.min(range.end - at) as usize];
        source.read(id, at, part)?;
        target.append(id, at, part)?;
        at += part.len() as u64;
    }
    Ok(())
}

/// A segment that is to be copied, with its source and target.
struct Copying<'a> {
    id: SegmentId,
    source: &'a dyn Store,
    target: &'a dyn Store,
    /// The end in the source, and whether the segment may grow.
    end: u64,
    is_open: bool,
}

impl MirrorStore {
    /// Returns the progress of the last resilver, and whether there is data to copy.
    #[must_use]
    pub fn resilver_status(&self) -> ResilverStatus {
        let scan = *self.scan.lock();
        let is_running = self.is_resilvering.load(Ordering::Acquire);
        // A recursive lock: this is also called while another thread waits for a member, and a third waits for the
        // lock.
        let state = self.state.read_recursive();
        let is_due = state.members.iter().any(|member| member.active().is_some() && !member.is_whole());
        let (copied, total) = match is_running {
            true => (self.progress.0.load(Ordering::Relaxed), self.progress.1.load(Ordering::Relaxed)),
            false => (scan.copied, scan.total),
        };
        ResilverStatus { is_running, is_due, started: scan.started, ended: scan.ended, copied, total }
    }

    /// Brings all members that can be reached up to date, then removes the members that they replace. `clock` returns
    /// seconds since 1970. `go_on` is called after every piece with its length in bytes, and returns whether to
    /// continue. Returns the progress at the end.
    ///
    /// # Errors
    /// Errors of reading or publishing. A member that cannot be written is left out. Data that was copied stays
    /// copied.
    pub fn resilver(
        &self,
        clock: &dyn Fn() -> u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<ResilverStatus> {
        self.gate.check()?;
        let Some(alone) = self.resilvering.try_lock() else { return Ok(self.resilver_status()) };
        self.is_resilvering.store(true, Ordering::Release);
        let done = self.resilver_alone(clock, go_on);
        self.is_resilvering.store(false, Ordering::Release);
        drop(alone);
        done.map(|()| self.resilver_status())
    }

    fn resilver_alone(&self, clock: &dyn Fn() -> u64, go_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let total = self.lacking_bytes()?;
        let goes_on = {
            let mut scan = self.scan.lock();
            let goes_on = scan.started > 0 && scan.ended == 0;
            if !goes_on {
                // The bytes that were copied when the pool was opened count too.
                let before = if scan.started == 0 { scan.copied } else { 0 };
                (scan.started, scan.ended, scan.copied) = (clock(), 0, before);
            }
            scan.total = scan.copied.saturating_add(total);
            self.progress.0.store(scan.copied, Ordering::Relaxed);
            self.progress.1.store(scan.total, Ordering::Relaxed);
            goes_on
        };
        if !goes_on {
            self.publish_again()?;
        }
        let is_through = self.copy_lacking(go_on)?;
        self.note_progress(is_through.then(clock))?;
        if is_through {
            self.drop_replaced()?;
        }
        Ok(())
    }

    /// Copies what members lack if it is little, without recording a resilver.
    pub(super) fn catch_up(&self) -> Result<()> {
        let is_stale = self.state.read().members.iter().any(|m| m.active().is_some() && !m.is_whole());
        if !is_stale || self.lacking_bytes()? > SMALL {
            return Ok(());
        }
        let mut copied = 0;
        let mut count = |bytes| {
            copied += bytes;
            true
        };
        if self.copy_lacking(&mut count)? {
            {
                let mut scan = self.scan.lock();
                scan.copied = scan.copied.saturating_add(if scan.ended == 0 { copied } else { 0 });
            }
            self.settle()?;
            self.drop_replaced()?;
        }
        Ok(())
    }

    fn note_progress(&self, ended: Option<u64>) -> Result<()> {
        self.sync()?;
        {
            let mut scan = self.scan.lock();
            scan.copied = self.progress.0.load(Ordering::Relaxed);
            scan.ended = ended.unwrap_or(0);
        }
        self.publish_again()
    }

    /// The number of bytes that active members lack.
    fn lacking_bytes(&self) -> Result<u64> {
        let segments = self.segments()?;
        let state = self.state.read();
        let mut bytes = 0u64;
        for member in state.members.iter().filter(|member| member.active().is_some()) {
            let lack = member.lack.lock();
            let lacking = segments.iter().filter(|info| lack.now.lacks(info.id));
            bytes = lacking
                .map(|info| info.len.saturating_sub(lack.now.certain(info.id)))
                .fold(bytes, u64::saturating_add);
        }
        Ok(bytes)
    }

    /// Copies to all members that lack data. Returns whether it finished.
    fn copy_lacking(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let targets = places(&self.state.read(), |member| member.active().is_some() && !member.is_whole());
        let mut since = 0;
        for place in targets {
            for info in self.segments()? {
                if !self.is_lacking(place, info.id) {
                    continue;
                }
                let mut tell = |bytes| {
                    since += bytes;
                    self.progress.0.fetch_add(bytes, Ordering::Relaxed);
                    go_on(bytes)
                };
                match self.copy_segment(place, info.id, &mut tell) {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(error) => self.failed_to_copy(place, info.id, error)?,
                }
                if since >= STEP {
                    since = 0;
                    self.note_progress(None)?;
                }
            }
            let _writing = self.writing.write();
            let state = self.state.read();
            let Some(member) = state.members.get(place).filter(|member| member.active().is_some()) else {
                continue;
            };
            // The remaining entries are of segments that no longer exist.
            let known = self.ids(&state)?;
            let mut lack = member.lack.lock();
            if !known.iter().any(|id| lack.now.lacks(*id)) {
                lack.now.clear();
            }
        }
        Ok(true)
    }

    fn ids(&self, state: &super::State) -> Result<Vec<SegmentId>> {
        let whole = state.members.iter().find(|member| member.is_whole()).and_then(Member::active);
        let whole = whole.ok_or_else(|| self.incomplete())?;
        Ok(whole.segments()?.into_iter().map(|info| info.id).collect())
    }

    fn is_lacking(&self, place: usize, id: SegmentId) -> bool {
        let state = self.state.read();
        state.members.get(place).is_some_and(|member| member.active().is_some() && member.lacks(id))
    }

    /// Handles an error of a copy. A target that fails is left out. If the segment was deleted meanwhile, nothing is
    /// done.
    fn failed_to_copy(&self, place: usize, id: SegmentId, error: StoreError) -> Result<()> {
        {
            let state = self.state.read();
            if !self.ids(&state)?.contains(&id) {
                return Ok(());
            }
            let is_target = state.members.get(place).is_none_or(|member| member.active().is_none());
            if matches!(error, StoreError::NoAnswer { .. }) && !is_target {
                // The source was given up, not the target.
                return Ok(());
            }
            let outcome = super::state::Outcome { done: Vec::new(), failed: vec![(place, error)] };
            outcome.mark(&state);
        }
        match self.leave_out_failed() {
            true => Ok(()),
            false => Err(self.incomplete()),
        }
    }

    /// Calls `act` with a segment, a source that has it completely, and the target that lacks it. Returns `None` when
    /// one of them no longer exists. `sealed` is the end of a segment that is not open, if it is known.
    fn with_copies<T>(
        &self,
        place: usize,
        (id, sealed): (SegmentId, Option<u64>),
        act: impl FnOnce(Copying<'_>, &Member) -> Result<T>,
    ) -> Result<Option<T>> {
        let state = self.state.read();
        let source = state.members.iter().find(|member| member.is_whole()).and_then(Member::active);
        let source = source.ok_or_else(|| self.incomplete())?;
        let Some(member) = state.members.get(place) else { return Ok(None) };
        let Some(target) = member.active() else { return Ok(None) };
        let end = self.open.lock().get(&id).copied();
        let (end, is_open) = match end {
            Some(end) => (end, true),
            None if sealed.is_some() => (sealed.unwrap_or(0), false),
            None => match source.segments()?.into_iter().find(|info| info.id == id) {
                Some(info) => (self.needed(info).len, false),
                None => return Ok(None),
            },
        };
        act(Copying { id, source, target, end, is_open }, member).map(Some)
    }

    /// Copies a segment. Returns whether to continue.
    fn copy_segment(&self, place: usize, id: SegmentId, tell: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let begun = self.with_copies(place, (id, None), |copying, member| {
            self.volatile.lock().note(id, 0);
            let certain = member.lack.lock().now.certain(id).min(copying.end);
            let is_kept = certain > 0 && copying.target.reopen_segment(id, certain).is_ok();
            if is_kept {
                return Ok((certain, copying.end));
            }
            copying.target.delete_segment(id)?;
            copying.target.create_segment(id)?;
            Ok((0, copying.end))
        })?;
        let Some((mut at, sealed)) = begun else { return Ok(true) };
        loop {
            let copied = self.with_copies(place, (id, Some(sealed)), |copying, _| {
                let end = copying.end.min(at.saturating_add(CHUNK));
                // The last part is copied while there are no writes.
                if copying.end.saturating_sub(at) > CHUNK {
                    copy_range(copying.source, copying.target, copying.id, at..end)?;
                    return Ok(end - at);
                }
                Ok(0)
            })?;
            match copied {
                None => return Ok(true),
                Some(0) => break,
                Some(bytes) => {
                    at += bytes;
                    if !tell(bytes) {
                        return Ok(false);
                    }
                }
            }
        }
        let _writing = self.writing.write();
        let last = self.with_copies(place, (id, None), |copying, member| {
            copy_range(copying.source, copying.target, copying.id, at..copying.end)?;
            if !copying.is_open {
                copying.target.seal_segment(id)?;
            }
            member.lack.lock().now.done(id);
            Ok(copying.end.saturating_sub(at))
        })?;
        drop(_writing);
        Ok(last.is_none_or(tell))
    }

    /// Removes members that were to stay only until their replacement had all data.
    fn drop_replaced(&self) -> Result<()> {
        let replaced: Vec<u64> = {
            let state = self.state.read();
            state.members.iter().filter(|member| member.is_whole()).filter_map(|m| m.replaces).collect()
        };
        for guid in replaced {
            self.detach(guid)?;
        }
        Ok(())
    }
}
