//! The state of a mirror's member in memory.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{MemberState, MemberStatus, MirrorMember, Result, SegmentId, Store, StoreError, Unanswered};

use super::missing::Missing;
use super::open::Entry;
use super::record::{MemberErrors, MemberRecord};

/// The kind of an error of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Read,
    Write,
    Checksum,
}

/// What a member lacks.
#[derive(Debug, Default)]
pub(super) struct Lack {
    /// What it lacks now.
    pub(super) now: Missing,
    /// What it lacks of the data that is known to be durable on it. This is published.
    pub(super) durable: Missing,
}

impl Lack {
    /// `missing` is lacking both now and durably.
    pub(super) fn of(missing: Missing) -> Self {
        Self { now: missing.clone(), durable: missing }
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) guid: u64,
    pub(super) path: PathBuf,
    pub(super) store: Option<Box<dyn Store>>,
    pub(super) why: Option<String>,
    pub(super) written: bool,
    pub(super) offline: bool,
    pub(super) replaces: Option<u64>,
    /// The generation of the last publication that the member is known to have.
    pub(super) generation: AtomicU64,
    /// The generation of the last publication that was sent to the member, which it may have.
    pub(super) sent: AtomicU64,
    pub(super) since: u64,
    pub(super) lack: Mutex<Lack>,
    /// Segments that the member had when it returned, and that no member with all data has: either they were deleted
    /// while it was away, or the others have lost them.
    pub(super) doubtful: Mutex<BTreeSet<SegmentId>>,
    /// The member has failed. It is left out as soon as the state can be locked exclusively.
    pub(super) failed: AtomicBool,
    /// The first error.
    pub(super) failure: Mutex<Option<String>>,
    read: AtomicU32,
    write: AtomicU32,
    checksum: AtomicU32,
}

impl Member {
    /// A member that has all data.
    pub(super) fn new(member: MirrorMember) -> Self {
        let (store, why) = match member.store {
            Ok(store) => (Some(store), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            guid: member.guid,
            path: member.path,
            written: store.is_some(),
            store,
            why,
            offline: false,
            replaces: None,
            generation: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            since: 0,
            lack: Mutex::default(),
            doubtful: Mutex::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            read: AtomicU32::new(0),
            write: AtomicU32::new(0),
            checksum: AtomicU32::new(0),
        }
    }

    /// Returns the store, if writes go to it.
    pub(super) fn active(&self) -> Option<&dyn Store> {
        self.store.as_deref().filter(|_| self.written && !self.failed.load(Ordering::Acquire))
    }

    /// Returns the store, if it has not been left out and answers. Writes to it may have failed.
    pub(super) fn readable(&self) -> Option<&dyn Store> {
        self.store.as_deref().filter(|_| self.written && self.unanswered().is_none())
    }

    /// Records `newest` as the member's newest publication. No other publication that was sent to it can be found
    /// later.
    pub(super) fn has(&self, newest: &Entry) {
        if let Some(record) = &newest.record {
            self.generation.store(record.generation, Ordering::Release);
            self.sent.store(record.generation, Ordering::Release);
        }
    }

    /// Publishes an older entry to the member's `store`, which has lost it.
    pub(super) fn give(&self, store: &dyn Store, entry: &Entry) -> Result<()> {
        if let Some(record) = &entry.record {
            self.sent.store(record.generation, Ordering::Release);
        }
        store.publish(entry.raw.txg, &entry.encode())?;
        self.has(entry);
        Ok(())
    }

    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        self.store.as_ref()?.unanswered()
    }

    pub(super) fn lacks(&self, id: SegmentId) -> bool {
        self.lack.lock().now.lacks(id)
    }

    /// Whether the member is written to and lacks nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.active().is_some() && self.lack.lock().now.is_empty()
    }

    /// Notes that the member lacks a segment from `len` on, both now and in the next publication.
    pub(super) fn note_missing(&self, id: SegmentId, len: u64) {
        let mut lack = self.lack.lock();
        lack.now.note(id, len);
        lack.durable.note(id, len);
    }

    /// Counts an error. A failed write marks the member as failed.
    pub(super) fn fail(&self, error: &StoreError, was_write: bool) {
        self.count(if was_write { Fault::Write } else { Fault::Read });
        if was_write {
            self.failure.lock().get_or_insert_with(|| error.to_string());
            self.failed.store(true, Ordering::Release);
        }
    }

    pub(super) fn count_if(&self, is_news: bool, fault: Fault) {
        if is_news {
            self.count(fault);
        }
    }

    pub(super) fn count(&self, fault: Fault) {
        let counter = match fault {
            Fault::Read => &self.read,
            Fault::Write => &self.write,
            Fault::Checksum => &self.checksum,
        };
        // Saturates: after an overflow, the count would look like 0.
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_add(1));
    }

    pub(super) fn errors(&self) -> MemberErrors {
        MemberErrors {
            read: self.read.load(Ordering::Relaxed),
            write: self.write.load(Ordering::Relaxed),
            checksum: self.checksum.load(Ordering::Relaxed),
        }
    }

    pub(super) fn set_errors(&self, errors: MemberErrors) {
        self.read.store(errors.read, Ordering::Relaxed);
        self.write.store(errors.write, Ordering::Relaxed);
        self.checksum.store(errors.checksum, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> MemberState {
        match (self.active(), self.offline) {
            (Some(_), _) => MemberState::Online,
            (None, true) => MemberState::Offline,
            (None, false) if self.store.is_none() => MemberState::Unavailable,
            (None, false) => MemberState::Faulted,
        }
    }

    pub(super) fn status(&self) -> MemberStatus {
        let errors = self.errors();
        MemberStatus {
            guid: self.guid,
            path: self.path.clone(),
            state: self.state(),
            why: self.why.clone().or_else(|| self.failure.lock().clone()),
            is_stale: !self.lack.lock().now.is_empty(),
            replaces: self.replaces,
            read_errors: errors.read.into(),
            write_errors: errors.write.into(),
            checksum_errors: errors.checksum.into(),
            unanswered: self.unanswered(),
        }
    }

    /// The member's part of a publication.
    pub(super) fn record(&self, place_of: impl Fn(u64) -> Option<usize>) -> MemberRecord {
        MemberRecord {
            guid: self.guid,
            written: self.written,
            offline: self.offline,
            replaces: self.replaces.and_then(place_of),
            generation: self.generation.load(Ordering::Acquire),
            sent: self.sent.load(Ordering::Acquire),
            since: self.since,
            missing: self.lack.lock().durable.clone(),
            errors: self.errors(),
        }
    }
}
