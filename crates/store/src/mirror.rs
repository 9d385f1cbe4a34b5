//! A mirror: several stores with the same contents, so that one of them may fail.
//!
//! Every write goes to all members. A member that fails is left out, and the others continue. With every uberblock,
//! they publish what that member lacks. From this record, a *resilver* can bring the member up to date later, and its
//! data is not mistaken for the newest. Bytes, rules and crash argument: `docs/format/store.md`, "The mirror".
//!
//! A mirror has no checksums, so it does not know which of two different copies is right. A caller that knows the
//! checksum reads one copy after the other ([`MirrorStore::read_copy`]).
//!
//! Lock order: `writing`, `syncing`, `published`, `state`, then `scan`, `volatile`, `open` and the locks of what
//! members lack. No other lock is taken while one of the last four is held.

mod capability;
mod change;
mod copies;
mod locate;
mod member;
mod missing;
mod open;
mod opening;
mod record;
mod resilver;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::gate::Gate;
use crate::label::MirrorLabel;
use crate::{
    Capacity, Mirror, RawUberblock, Result, SegmentId, SegmentInfo, Store, StoreError, UBERBLOCK_RING,
};
use crate::{UBERBLOCK_MAX, Unanswered, vectored};

pub use locate::attach_to_single;
pub(crate) use locate::{create, open, set_label};
pub use record::MIRRORED_UBERBLOCK_MAX;

use member::{Fault, Member};
use open::Entry;
use record::Scan;
use state::{Outcome, State, Volatile, is_refusal};

/// Each member must have this number of the newest uberblocks. They are published again to a member that has lost
/// one. The number is small, so that the ring still has space for this after several repetitions.
const RING_VERIFIED: usize = 8;
const _: () = assert!(MIRRORED_UBERBLOCK_MAX <= UBERBLOCK_MAX && 4 * RING_VERIFIED <= UBERBLOCK_RING);

/// An open mirror.
#[derive(Debug)]
pub struct MirrorStore {
    gate: Gate,
    read_only: bool,
    socket: Option<PathBuf>,
    guid: u64,
    /// Locked shared by operations that change a segment. Locked exclusively to copy the last part of a segment to a
    /// member.
    writing: RwLock<()>,
    state: Arc<RwLock<State>>,
    volatile: Mutex<Volatile>,
    /// The segments that are open for appending, and their ends.
    open: Mutex<BTreeMap<SegmentId, u64>>,
    /// The ends up to which the pool needs other segments, where they are longer than that.
    ends: Mutex<BTreeMap<SegmentId, u64>>,
    /// The greatest id of a segment so far, plus one.
    next_id: AtomicU64,
    /// Held during a sync.
    syncing: Mutex<()>,
    published: Mutex<Published>,
    /// The state of the last resilver, as it is published.
    scan: Mutex<Scan>,
    /// Held during a resilver, so that there is only one at a time.
    resilvering: Mutex<()>,
    is_resilvering: AtomicBool,
    /// The value of [`Store::set_autotrim`], for members that are added later.
    autotrim: AtomicBool,
    /// The value of [`Store::set_deadman`].
    deadman: Mutex<Duration>,
    /// Bytes that the current resilver has copied, and the total to copy.
    progress: (AtomicU64, AtomicU64),
}

/// The last publication.
#[derive(Debug, Default)]
struct Published {
    sequence: u64,
    last: Option<RawUberblock>,
}

impl MirrorStore {
    /// Does `op`, which changes the segment `id` from `len` on, on every active member that has the segment, one
    /// member after another. If a member refuses the operation, or if it fails on all members that have all data, it
    /// is undone on the others.
    fn on_members(
        &self,
        (id, len): (SegmentId, u64),
        op: &dyn Fn(&dyn Store) -> Result<()>,
        undo: &dyn Fn(&dyn Store) -> Result<()>,
    ) -> Result<()> {
        let state = self.state.read();
        let mut outcome = Outcome { done: Vec::new(), failed: Vec::new() };
        for (place, member) in state.members.iter().enumerate() {
            let Some(store) = member.active().filter(|_| !member.lacks(id)) else { continue };
            match op(store) {
                Ok(()) => outcome.done.push(place),
                Err(error) => outcome.failed.push((place, error)),
            }
        }
        // Note the change again: a sync that ended meanwhile has removed the first note.
        self.volatile.lock().note(id, len);
        if outcome.failed.is_empty() {
            return if outcome.done.is_empty() { Err(self.nobody(id)) } else { Ok(()) };
        }
        let refusal = outcome.refusal();
        let is_survived = outcome.done.iter().filter_map(|&at| state.members.get(at)).any(Member::is_whole);
        if refusal.is_none() && is_survived {
            outcome.mark(&state);
            drop(state);
            self.leave_out_failed();
            return Ok(());
        }
        for member in outcome.done.iter().filter_map(|&at| state.members.get(at)) {
            if let Some(store) = member.active()
                && undo(store).is_err()
            {
                member.count(Fault::Write);
                member.failed.store(true, Ordering::Release);
            }
        }
        drop(state);
        self.leave_out_failed();
        let first = outcome.failed.into_iter().next().map(|(_, error)| error);
        Err(refusal.or(first).unwrap_or_else(|| self.nobody(id)))
    }

    fn nobody(&self, id: SegmentId) -> StoreError {
        StoreError::NoSegment { id, path: self.describe().into() }
    }

    /// Leaves out the members that failed, if a member with all data remains. Returns whether one does.
    fn leave_out_failed(&self) -> bool {
        let is_failed = |member: &Member| member.written && member.failed.load(Ordering::Acquire);
        if !self.state.read().members.iter().any(is_failed) {
            return true;
        }
        let published = self.published.lock();
        let mut state = self.state.write();
        if !state.is_any_whole() {
            return false;
        }
        let txg = published.last.as_ref().map_or(0, |last| last.txg);
        let volatile = self.volatile.lock();
        let next_id = self.next_id.load(Ordering::Acquire);
        let failed: Vec<usize> =
            (0..state.members.len()).filter(|&at| state.members.get(at).is_some_and(is_failed)).collect();
        for place in failed {
            state.leave_out(place, &volatile, next_id, txg);
        }
        state.next_generation(published.sequence);
        true
    }

    /// Limits the length of a segment to the part that the pool needs.
    fn needed(&self, info: SegmentInfo) -> SegmentInfo {
        let end = self.ends.lock().get(&info.id).copied();
        SegmentInfo { len: end.map_or(info.len, |end| info.len.min(end)), ..info }
    }

    /// Notes that a segment will change from `len` on. Members that are left out lack that part.
    fn changes(&self, id: SegmentId, len: u64) {
        self.next_id.fetch_max(id.0.saturating_add(1), Ordering::AcqRel);
        let state = self.state.read();
        for member in state.members.iter().filter(|member| !member.written || member.lacks(id)) {
            member.note_missing(id, len);
        }
        self.volatile.lock().note(id, len);
    }

    /// Does `op` on all active members in parallel.
    fn at_once(state: &State, op: &(dyn Fn(&dyn Store) -> Result<()> + Sync)) -> Outcome {
        let active: Vec<(usize, &dyn Store)> = state
            .members
            .iter()
            .enumerate()
            .filter_map(|(place, member)| Some((place, member.active()?)))
            .collect();
        let op = &|place: usize, store: &dyn Store| {
            let result = op(store);
            // Marked at once, so that no other member is given up in favour of one that has just failed.
            if let (Err(error), Some(member)) = (&result, state.members.get(place))
                && !is_refusal(error)
            {
                member.failed.store(true, Ordering::Release);
            }
            result
        };
        let mut outcome = Outcome { done: Vec::new(), failed: Vec::new() };
        let mut sort = |place, result| match result {
            Ok(()) => outcome.done.push(place),
            Err(error) => outcome.failed.push((place, error)),
        };
        let Some(((first, store), others)) = active.split_first() else { return outcome };
        std::thread::scope(|scope| {
            let others: Vec<_> =
                others.iter().map(|&(place, store)| (place, scope.spawn(move || op(place, store)))).collect();
            sort(*first, op(*first, *store));
            for (place, thread) in others {
                match thread.join() {
                    Ok(result) => sort(place, result),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        outcome
    }

    /// Publishes to all active members. The publication succeeds if a member with all data has it.
    fn publish_record(&self, published: &mut Published, txg: u64, uberblock: &[u8]) -> Result<()> {
        let state = self.state.read();
        let sequence = published.sequence + 1;
        let bytes = state.record(sequence, *self.scan.lock()).encode(uberblock);
        for member in state.members.iter().filter(|member| member.active().is_some()) {
            member.sent.store(state.generation, Ordering::Release);
        }
        let mut outcome = Self::at_once(&state, &|store| store.publish(txg, &bytes));
        for member in outcome.done.iter().filter_map(|&at| state.members.get(at)) {
            member.generation.store(state.generation, Ordering::Release);
        }
        // A failed publication may still be found later, so its number is not used again.
        published.sequence = sequence;
        let is_done = outcome.done.iter().filter_map(|&at| state.members.get(at)).any(Member::is_whole);
        if !is_done {
            self.gate.shut_after_failure();
            let first = outcome.failed.drain(..).next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| self.incomplete()));
        }
        published.last = Some(RawUberblock { txg, bytes: uberblock.to_vec() });
        outcome.mark(&state);
        Ok(())
    }

    /// Publishes the last uberblock again, with the current record of the members.
    fn publish_again(&self) -> Result<()> {
        let mut published = self.published.lock();
        let Some(last) = published.last.clone() else { return Ok(()) };
        self.publish_record(&mut published, last.txg, &last.bytes)?;
        drop(published);
        self.leave_out_failed();
        Ok(())
    }

    fn incomplete(&self) -> StoreError {
        let why = "those that have everything are not there".to_owned();
        StoreError::Incomplete { path: self.describe().into(), why }
    }

    /// Returns the publications of all active members, oldest first, without duplicates.
    fn entries(&self, state: &State) -> Result<Vec<Entry>> {
        let mut all = BTreeMap::new();
        let mut failure = None;
        let mut any = false;
        for member in &state.members {
            let Some(store) = member.active() else { continue };
            match store.uberblocks() {
                Ok(raw) => {
                    any = true;
                    all.extend(open::entries(raw).into_iter().map(|entry| (entry.place(), entry)));
                }
                Err(error) => {
                    member.count(Fault::Read);
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if !any => Err(error),
            _ => Ok(open::window(all.into_values().collect())),
        }
    }
}

impl Store for MirrorStore {
    fn segment_capacity(&self) -> u64 {
        self.state.read().segment_len
    }

    fn create_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let _writing = self.writing.read();
        if self.open.lock().contains_key(&id) {
            return Err(StoreError::Exists { id });
        }
        // A member that was away may still have an older segment with this id.
        let is_known = {
            let state = self.state.read();
            let whole = state.members.iter().filter(|member| member.is_whole());
            whole.filter_map(Member::active).any(|store| store.read(id, 0, &mut []).is_ok())
        };
        if is_known {
            return Err(StoreError::Exists { id });
        }
        self.changes(id, 0);
        let make = |store: &dyn Store| match store.create_segment(id) {
            Err(StoreError::Exists { .. }) => {
                store.delete_segment(id)?;
                store.create_segment(id)
            }
            other => other,
        };
        self.on_members((id, 0), &make, &|store| store.delete_segment(id))?;
        self.open.lock().insert(id, 0);
        Ok(())
    }

    fn append(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.append_all(id, offset, &[IoSlice::new(data)])
    }

    fn append_all(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.gate.check()?;
        let _writing = self.writing.read();
        let end = self.open.lock().get(&id).copied();
        if end != Some(offset) {
            return Err(StoreError::NotAtEnd { id, offset, end });
        }
        let (len, capacity) = (offset.saturating_add(vectored::len(pieces)), self.segment_capacity());
        if len > capacity {
            return Err(StoreError::SegmentFull { id, len, capacity });
        }
        self.changes(id, offset);
        let append = |store: &dyn Store| store.append_all(id, offset, pieces);
        self.on_members((id, offset), &append, &|store| store.reopen_segment(id, offset))?;
        self.open.lock().insert(id, len);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.volatile.lock().begin_sync();
        let state = self.state.read();
        let durable: Vec<_> = state.members.iter().map(|member| member.lack.lock().now.clone()).collect();
        let mut outcome = Self::at_once(&state, &|store| store.sync());
        let is_done = outcome.done.iter().filter_map(|&at| state.members.get(at)).any(Member::is_whole);
        if !is_done {
            self.gate.shut_after_failure();
            let first = outcome.failed.drain(..).next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| self.incomplete()));
        }
        outcome.mark(&state);
        drop(state);
        if !self.leave_out_failed() {
            self.gate.shut_after_failure();
            return Err(self.incomplete());
        }
        let state = self.state.read();
        for (member, durable) in state.members.iter().zip(durable).filter(|(member, _)| member.written) {
            let mut lack = member.lack.lock();
            // Data that was found missing during the sync is in both.
            lack.durable = durable.and(&lack.now);
        }
        self.volatile.lock().synced();
        Ok(())
    }

    fn start_writeback(&self, id: SegmentId, offset: u64, len: u64) {
        let state = self.state.read();
        let having = state.members.iter().filter(|member| !member.lacks(id));
        having.filter_map(Member::active).for_each(|store| store.start_writeback(id, offset, len));
    }

    fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        self.gate.check()?;
        let _writing = self.writing.read();
        {
            // A member whose segment is shorter than on the others has lost data.
            let state = self.state.read();
            let having: Vec<_> = state.members.iter().filter(|member| !member.lacks(id)).collect();
            let ends_before = |store: &dyn Store| {
                let (at, last) = (len.saturating_sub(1), &mut [0][..usize::from(len > 0)]);
                matches!(store.read(id, at, last), Err(error) if is_refusal(&error))
            };
            let (lost, kept): (Vec<_>, Vec<_>) = having
                .into_iter()
                .filter_map(|member| Some((member, member.active()?)))
                .partition(|(_, store)| ends_before(*store));
            if kept.iter().any(|(member, _)| member.is_whole()) {
                lost.iter().for_each(|(member, _)| member.note_missing(id, 0));
            }
        }
        self.changes(id, len);
        self.on_members((id, len), &|store| store.reopen_segment(id, len), &|store| store.seal_segment(id))?;
        self.ends.lock().remove(&id);
        self.open.lock().insert(id, len);
        Ok(())
    }

    fn seal_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let _writing = self.writing.read();
        let Some(end) = self.open.lock().remove(&id) else { return Ok(()) };
        let done = self.on_members((id, end), &|store| store.seal_segment(id), &|_| Ok(()));
        match done {
            Err(StoreError::NoSegment { .. }) => Ok(()),
            other => other,
        }
    }

    fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut failure = None;
        for place in self.copies(id, offset) {
            match self.read_copy(place, id, offset, buf) {
                Ok(()) => return Ok(()),
                Err(error) => failure.get_or_insert(error),
            };
        }
        Err(failure.unwrap_or_else(|| self.nobody(id)))
    }

    fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let state = self.state.read();
        let (mut all, mut is_listed, mut failure) = (BTreeMap::new(), false, None);
        let (whole, others): (Vec<_>, Vec<_>) =
            state.members.iter().filter(|member| member.active().is_some()).partition(|m| m.is_whole());
        for member in whole.into_iter().chain(others) {
            let Some(store) = member.active() else { continue };
            match store.segments() {
                Ok(list) => {
                    is_listed = true;
                    let is_whole = member.is_whole();
                    for info in list {
                        let len = all.entry(info.id).or_insert(info.len);
                        // If another member has a shorter copy, that copy has lost its end.
                        *len = if is_whole { info.len.max(*len) } else { *len };
                    }
                }
                Err(error) => {
                    member.count(Fault::Read);
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure.filter(|_| !is_listed) {
            return Err(error);
        }
        all.extend(self.open.lock().iter().map(|(&id, &end)| (id, end)));
        Ok(all.into_iter().map(|(id, len)| self.needed(SegmentInfo { id, len })).collect())
    }

    fn set_ends(&self, ends: &[SegmentInfo]) -> Result<()> {
        self.gate.check()?;
        let known: BTreeMap<_, _> = ends.iter().map(|info| (info.id, info.len)).collect();
        let all = self.segments()?.into_iter();
        let needed = all.map(|info| (info, known.get(&info.id).copied().unwrap_or(0)));
        let shorter = needed.filter(|(info, end)| *end < info.len);
        *self.ends.lock() = shorter.map(|(info, end)| (info.id, end)).collect();
        self.forget_unknown(&known.keys().copied().collect())?;
        self.catch_up()
    }

    fn delete_segment(&self, id: SegmentId) -> Result<()> {
        self.gate.check()?;
        let _writing = self.writing.read();
        self.open.lock().remove(&id);
        self.ends.lock().remove(&id);
        let state = self.state.read();
        let mut outcome = Outcome { done: Vec::new(), failed: Vec::new() };
        for (place, member) in state.members.iter().enumerate() {
            let Some(store) = member.active() else { continue };
            match store.delete_segment(id) {
                Ok(()) => outcome.done.push(place),
                Err(error) => outcome.failed.push((place, error)),
            }
        }
        let is_survived = outcome.done.iter().filter_map(|&at| state.members.get(at)).any(Member::is_whole);
        if !is_survived && let Some((_, error)) = outcome.failed.pop() {
            return Err(error);
        }
        outcome.mark(&state);
        for member in &state.members {
            let mut lack = member.lack.lock();
            lack.now.forget(id);
            lack.durable.forget(id);
        }
        drop(state);
        self.leave_out_failed();
        Ok(())
    }

    fn publish(&self, txg: u64, uberblock: &[u8]) -> Result<()> {
        if uberblock.len() > MIRRORED_UBERBLOCK_MAX {
            return Err(StoreError::UberblockTooLong { len: uberblock.len() });
        }
        let mut published = self.published.lock();
        self.gate.check()?;
        self.publish_record(&mut published, txg, uberblock)?;
        drop(published);
        self.leave_out_failed();
        Ok(())
    }

    fn uberblocks(&self) -> Result<Vec<RawUberblock>> {
        let entries = self.entries(&self.state.read())?;
        Ok(open::last_of_each_txg(entries).into_iter().map(|entry| entry.raw).collect())
    }

    fn capacity(&self) -> Result<Capacity> {
        let state = self.state.read();
        let mut least: Option<Capacity> = None;
        for member in &state.members {
            let Some(store) = member.active() else { continue };
            let one = match store.capacity() {
                // The member was given up.
                Err(StoreError::NoAnswer { .. }) if member.active().is_none() => continue,
                one => one?,
            };
            let before = least.unwrap_or(one);
            let total = match (before.total, one.total) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let by_slots = before.by_slots || one.by_slots;
            least = Some(Capacity { total, free: before.free.min(one.free), by_slots });
        }
        least.ok_or_else(|| self.incomplete())
    }

    fn describe(&self) -> String {
        let state = self.state.read_recursive();
        let paths: Vec<_> = state.members.iter().map(|member| member.path.display().to_string()).collect();
        match paths.as_slice() {
            [only] => only.clone(),
            paths => format!("mirror of {}", paths.join(", ")),
        }
    }

    fn control_socket(&self) -> Option<PathBuf> {
        self.socket.clone()
    }

    fn destroy(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        self.gate.check()?;
        self.gate.destroy();
        self.open.lock().clear();
        let state = self.state.read();
        let stores = state.members.iter().filter_map(|member| member.store.as_deref());
        stores.map(Store::destroy).fold(Ok(()), Result::and)
    }

    fn uberblock_max(&self) -> usize {
        MIRRORED_UBERBLOCK_MAX
    }

    fn rewrite(&self, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.gate.check()?;
        self.on_members((id, offset), &|store| store.rewrite(id, offset, data), &|_| Ok(()))
    }

    fn verify_own(&self, repair: bool) -> Result<u64> {
        if repair {
            self.gate.check()?;
        }
        let published = self.published.lock();
        let state = self.state.read();
        let mut wrong = 0;
        for member in &state.members {
            let Some(store) = member.active() else { continue };
            match store.verify_own(repair) {
                Ok(0) => {}
                Ok(own) => {
                    member.count(Fault::Checksum);
                    wrong += own;
                }
                Err(error) => member.fail(&error, repair),
            }
        }
        wrong += self.verify_rings(&state, repair, true)?;
        drop(state);
        drop(published);
        self.leave_out_failed();
        Ok(wrong)
    }

    fn set_mirror(&self, mirror: Option<&MirrorLabel>) -> Result<()> {
        let _ = mirror;
        Err(StoreError::Invalid {
            path: self.describe().into(),
            why: "a mirror is no member of a mirror".to_owned(),
        })
    }

    fn set_autotrim(&self, on: bool) {
        self.autotrim.store(on, Ordering::Relaxed);
        self.state.read().members.iter().filter_map(Member::active).for_each(|store| store.set_autotrim(on));
    }

    fn trim(&self) -> Result<u64> {
        self.gate.check()?;
        let state = self.state.read();
        state.members.iter().filter_map(Member::active).map(Store::trim).sum()
    }

    fn mirror(&self) -> Option<&dyn Mirror> {
        Some(self)
    }

    fn unanswered(&self) -> Option<Unanswered> {
        let state = self.state.read_recursive();
        let active = state.members.iter().filter(|member| member.active().is_some());
        active.filter_map(Member::unanswered).max_by_key(|unanswered| unanswered.since)
    }

    fn set_deadman(&self, wait: Duration) {
        *self.deadman.lock() = wait;
        let state = self.state.read();
        state.members.iter().filter_map(Member::active).for_each(|store| store.set_deadman(wait));
    }
}

impl MirrorStore {
    /// Compares the newest uberblocks of each active member with those of all members together. With `repair`, a
    /// member that lacks one gets it and all later ones, in order. Returns the bytes that were lost. With `is_news`,
    /// they count as errors of the member. Members that fail are marked.
    fn verify_rings(&self, state: &State, repair: bool, is_news: bool) -> Result<u64> {
        let entries = open::last_of_each_txg(self.entries(state)?);
        let wanted = entries.get(entries.len().saturating_sub(RING_VERIFIED)..).unwrap_or_default();
        let mut lost = 0;
        for member in &state.members {
            let Some(store) = member.active() else { continue };
            let own = match store.uberblocks() {
                Ok(raw) => open::entries(raw),
                Err(error) => {
                    member.fail(&error, false);
                    continue;
                }
            };
            let has = |entry: &Entry| own.iter().any(|own| own.place() == entry.place());
            let Some(first) = wanted.iter().position(|entry| !has(entry)) else { continue };
            lost += wanted.iter().filter(|entry| !has(entry)).map(Entry::len).sum::<u64>();
            member.count_if(is_news, Fault::Checksum);
            let rewritten = wanted.iter().skip(first).filter(|_| repair);
            let mut publish = rewritten.map(|entry| member.give(store, entry));
            if let Some(error) = publish.find_map(Result::err) {
                member.fail(&error, true);
            }
        }
        Ok(lost)
    }
}
