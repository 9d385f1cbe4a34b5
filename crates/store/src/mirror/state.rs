//! The state of all members of a mirror: which of them are written to, and which are left out after a failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use crate::codec;
use crate::{SegmentId, Store, StoreError, Unanswered};

use super::member::{Lack, Member};
use super::record::{Record, Scan};

/// The state that changes when a member is added or removed. I/O holds a shared lock on it, so a change waits until
/// the I/O is done.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) members: Vec<Member>,
    pub(super) generation: u64,
    /// The maximum length of a segment.
    pub(super) segment_len: u64,
}

/// The ends, at the last sync, of segments that have been appended to or created since. Every active member has the
/// segments up to there.
#[derive(Debug, Default)]
pub(super) struct Volatile {
    /// Changes since the last sync began.
    now: BTreeMap<SegmentId, u64>,
    /// Changes before that, if the sync is still running or has failed.
    syncing: BTreeMap<SegmentId, u64>,
}

impl Volatile {
    pub(super) fn note(&mut self, id: SegmentId, len: u64) {
        lower(&mut self.now, id, len);
    }

    pub(super) fn begin_sync(&mut self) {
        for (id, len) in std::mem::take(&mut self.now) {
            lower(&mut self.syncing, id, len);
        }
    }

    pub(super) fn synced(&mut self) {
        self.syncing.clear();
    }

    fn all(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        self.now.iter().chain(&self.syncing).map(|(&id, &len)| (id, len))
    }
}

fn lower(map: &mut BTreeMap<SegmentId, u64>, id: SegmentId, len: u64) {
    map.entry(id).and_modify(|known| *known = len.min(*known)).or_insert(len);
}

impl State {
    pub(super) fn is_any_whole(&self) -> bool {
        self.members.iter().any(Member::is_whole)
    }

    pub(super) fn place_of(&self, guid: u64) -> Option<usize> {
        self.members.iter().position(|member| member.guid == guid)
    }

    pub(super) fn record(&self, sequence: u64, scan: Scan) -> Record {
        let members = self.members.iter().map(|member| member.record(|guid| self.place_of(guid))).collect();
        Record { sequence, generation: self.generation, scan, segment_len: self.segment_len, members }
    }

    /// Leaves out the member at `place` from now on. `txg` is the last one that was published.
    pub(super) fn leave_out(&mut self, place: usize, volatile: &Volatile, next_id: u64, txg: u64) {
        let Some(member) = self.members.get_mut(place).filter(|member| member.written) else { return };
        member.written = false;
        member.failed.store(false, Ordering::Release);
        member.since = txg;
        // Data that was written since the last sync is not certain to be there.
        let mut missing = member.lack.get_mut().durable.clone();
        volatile.all().for_each(|(id, len)| missing.note(id, len));
        missing.begin(next_id);
        *member.lack.get_mut() = Lack::of(missing);
    }

    /// Registers a member's store for giving up late answers.
    pub(super) fn attend(state: &Arc<RwLock<Self>>, guid: u64, store: &dyn Store) {
        let state = Arc::downgrade(state);
        store.give_up_if(Box::new(move |unanswered| {
            let Some(state) = state.upgrade() else { return unanswered.since >= unanswered.deadman };
            // The lock may be held exclusively by the waiting thread itself: while members are added or removed, or
            // the mirror is opened.
            match state.try_read_recursive() {
                Some(state) => state.gives_up(guid, unanswered),
                None => unanswered.since >= unanswered.deadman,
            }
        }));
    }

    /// Decides whether a member that has not answered is given up. It is, after the deadman time, if another member
    /// answers and has all data. From then on it counts as failed.
    pub(super) fn gives_up(&self, guid: u64, unanswered: &Unanswered) -> bool {
        let is_over = unanswered.since >= unanswered.deadman;
        let Some(place) = self.place_of(guid) else { return is_over };
        let Some(member) = self.members.get(place) else { return is_over };
        if member.failed.load(Ordering::Acquire) {
            return true;
        }
        let answers = |(at, other): (usize, &Member)| {
            at != place && other.is_whole() && other.unanswered().is_none_or(|it| !it.is_late())
        };
        if !is_over || (member.written && !self.members.iter().enumerate().any(answers)) {
            return false;
        }
        let text = format!("cannot {} it: no answer for {} s", unanswered.op, unanswered.since.as_secs());
        member.failure.lock().get_or_insert(text);
        member.failed.store(true, Ordering::Release);
        true
    }

    /// Begins a generation. Members that are left out do not belong to it.
    pub(super) fn next_generation(&mut self, sequence: u64) {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&sequence.to_le_bytes());
        // The number depends on the members, so that members that continue separately get different numbers.
        for member in self.members.iter().filter(|member| member.written) {
            bytes.extend_from_slice(&member.guid.to_le_bytes());
        }
        let sum = codec::sum(&[b"mirror generation", &bytes]);
        self.generation = codec::u64_at(&sum, 0).unwrap_or_default().max(1);
    }
}

/// The outcome of an operation on several members, by their places.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) done: Vec<usize>,
    pub(super) failed: Vec<(usize, StoreError)>,
}

impl Outcome {
    /// Returns the error if the failure is not the fault of the members: the request was invalid, or there is no
    /// space.
    pub(super) fn refusal(&mut self) -> Option<StoreError> {
        let is_full = |(_, error): &(usize, StoreError)| matches!(error, StoreError::Full { .. });
        let at = match self.failed.iter().position(is_full) {
            Some(at) => at,
            None if self.done.is_empty() => self.failed.iter().position(|(_, error)| is_refusal(error))?,
            None => return None,
        };
        Some(self.failed.swap_remove(at).1)
    }

    /// Counts the errors, and marks the members that failed.
    pub(super) fn mark(&self, state: &State) {
        for (place, error) in &self.failed {
            let Some(member) = state.members.get(*place) else { continue };
            member.fail(error, true);
        }
    }
}

/// Whether an error is about the caller's request, not about the health of the store.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    !matches!(error, StoreError::Io { .. } | StoreError::Poisoned { .. } | StoreError::NoAnswer { .. })
}
