//! Adding and removing members, and taking them offline and online, while the mirror is open.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::member::Member;
use super::missing::Missing;
use super::open;
use super::{MirrorStore, State};
use crate::codec;
use crate::label::{MEMBERS_MAX, MirrorLabel};
use crate::{MirrorMember, Pending, Result, SegmentId, Store, StoreError, Unanswered};

impl MirrorStore {
    /// The pool's guid.
    #[must_use]
    pub fn pool_guid(&self) -> u64 {
        self.guid
    }

    /// Returns a guid that no member has had.
    #[must_use]
    pub fn new_guid(&self) -> u64 {
        let sequence = self.published.lock().sequence;
        let state = self.state.read();
        member_guid(self.guid, sequence.wrapping_add(1), state.members.len() as u64)
    }

    /// The members as the label of each member lists them.
    pub(super) fn labels(state: &State) -> Vec<(u64, PathBuf)> {
        state.members.iter().map(|member| (member.guid, member.path.clone())).collect()
    }

    pub(super) fn write_labels(&self) -> Result<()> {
        let state = self.state.read();
        let members = Self::labels(&state);
        for member in &state.members {
            if let Some(store) = member.active() {
                store.set_mirror(Some(&MirrorLabel { member: member.guid, members: members.clone() }))?;
            }
        }
        Ok(())
    }

    /// Adds a member, to which a [`resilver`](Self::resilver) copies all data. `replaces` is the guid of the member
    /// that is removed when that is done. The store of the new member must be empty.
    ///
    /// # Errors
    /// `Invalid` when the store is too small or the mirror has too many members already; errors of writing the labels
    /// or of the publication.
    pub fn attach(&self, member: MirrorMember, replaces: Option<u64>) -> Result<()> {
        self.gate.check()?;
        let capacity = self.segment_capacity();
        let (needed, longest) = {
            let segments = self.segments()?;
            (segments.len() as u64, segments.iter().map(|info| info.len).max().unwrap_or(0))
        };
        {
            let Ok(store) = &member.store else {
                return Err(invalid(member.path, "it could not be opened"));
            };
            self.attend(member.guid, &**store);
            if store.segment_capacity() < capacity.max(longest) {
                return Err(invalid(member.path, "its segments are shorter than those of the pool"));
            }
            let own = store.capacity()?;
            let slots = own.total.map(|total| total / store.segment_capacity().max(1));
            if slots.is_some_and(|slots| slots < needed) {
                return Err(invalid(member.path, "device is too small"));
            }
        }
        {
            let _writing = self.writing.write();
            let mut state = self.state.write();
            if state.members.len() >= MEMBERS_MAX {
                return Err(invalid(member.path, "the mirror has as many members as it can"));
            }
            let mut new = Member::new(member);
            let end = self.next_id.load(Ordering::Acquire);
            *new.lack.get_mut() = super::member::Lack::of(Missing::everything(end));
            new.replaces = replaces;
            state.members.push(new);
        }
        self.write_labels()?;
        self.begin_scan();
        self.publish_again()
    }

    /// Resets the progress, so that the next resilver starts from the beginning.
    fn begin_scan(&self) {
        *self.scan.lock() = Default::default();
    }

    /// Removes a member for good. Its store is wiped, if it can be reached.
    ///
    /// # Errors
    /// `Invalid` when there is no such member, or when no other member has all data.
    pub fn detach(&self, guid: u64) -> Result<()> {
        self.gate.check()?;
        let sequence = self.published.lock().sequence;
        let gone = {
            let _writing = self.writing.write();
            let mut state = self.state.write();
            let place = Self::dispensable(&state, guid)?;
            let gone = state.members.remove(place);
            for member in &mut state.members {
                member.replaces = member.replaces.filter(|&old| old != guid);
            }
            state.next_generation(sequence);
            gone
        };
        self.publish_again()?;
        self.write_labels()?;
        if let Some(store) = gone.store {
            // The member is removed even if its label cannot be wiped.
            let _ = store.destroy();
        }
        Ok(())
    }

    /// Returns the place of a member, if another member has all data.
    fn dispensable(state: &State, guid: u64) -> Result<usize> {
        let place = state.place_of(guid);
        let place = place.ok_or_else(|| invalid(path_at(state, 0), "no such device in pool"))?;
        let is_needed =
            !state.members.iter().enumerate().any(|(at, member)| at != place && member.is_whole());
        match is_needed {
            true => Err(invalid(path_at(state, place), "no valid replicas")),
            false => Ok(place),
        }
    }

    /// Stops writing to a member until it is [`online`](Self::online) again, and closes its store.
    ///
    /// # Errors
    /// The same as [`detach`](Self::detach).
    pub fn offline(&self, guid: u64) -> Result<()> {
        self.gate.check()?;
        let (sequence, txg) = {
            let published = self.published.lock();
            (published.sequence, published.last.as_ref().map_or(0, |last| last.txg))
        };
        let gone = {
            let _writing = self.writing.write();
            let mut state = self.state.write();
            let place = Self::dispensable(&state, guid)?;
            let next_id = self.next_id.load(Ordering::Acquire);
            let was_written = state.members.get(place).is_some_and(|member| member.written);
            state.leave_out(place, &self.volatile.lock(), next_id, txg);
            if was_written {
                state.next_generation(sequence);
            }
            state.members.get_mut(place).and_then(|member| {
                member.offline = true;
                member.store.take()
            })
        };
        // Closing a device may hang too.
        Pending::ask(move || drop(gone)).within(*self.deadman.lock());
        self.publish_again()
    }

    /// Writes again to a member that was left out: offline, faulted, or missing. `store` is the member's own store. A
    /// [`resilver`](Self::resilver) copies what the member missed.
    ///
    /// # Errors
    /// `Invalid` when there is no such member; `SplitBrain`; errors of reading or writing the store.
    pub fn online(&self, guid: u64, path: PathBuf, store: Box<dyn Store>) -> Result<()> {
        self.gate.check()?;
        self.has_answered(guid)?;
        self.attend(guid, &*store);
        {
            let _writing = self.writing.write();
            let published = self.published.lock();
            let mut state = self.state.write();
            let Some(place) = state.place_of(guid) else {
                return Err(invalid(path, "no such device in pool"));
            };
            let newest = self.entries(&state)?;
            let record = state.record(published.sequence, *self.scan.lock());
            let last = open::entries(store.uberblocks()?).into_iter().max_by_key(open::Entry::place);
            let known = record.members.get(place);
            if known.is_none_or(|known| !open::follows(last.as_ref(), known, &record, &newest)) {
                return Err(StoreError::SplitBrain { newest: path_at(&state, 0), other: path });
            }
            if let Some(member) = state.members.get_mut(place) {
                if member.active().is_some() {
                    return Ok(());
                }
                member.store = Some(store);
                member.path = path;
                member.why = None;
                if let Some(last) = &last {
                    member.has(last);
                }
            }
            state.take_in(place, self.next_id.load(Ordering::Acquire))?;
            self.note_open(&state, place);
            self.verify_rings(&state, true, false)?;
        }
        self.write_labels()?;
        self.begin_scan();
        self.publish_again()
    }

    /// Deletes segments from members that returned, if no member with all data has them and the pool does not know
    /// them either: they were deleted while the member was away. `known` are the ids of the pool's segments.
    ///
    /// # Errors
    /// When the mirror can no longer be written. A segment that cannot be deleted stays.
    pub fn forget_unknown(&self, known: &BTreeSet<SegmentId>) -> Result<()> {
        self.gate.check()?;
        let _writing = self.writing.read();
        for member in &self.state.read().members {
            let doubtful = std::mem::take(&mut *member.doubtful.lock());
            let Some(store) = member.active() else { continue };
            for id in doubtful.difference(known) {
                // The pool deletes it as an orphan when it is opened again.
                let _ = store.delete_segment(*id);
            }
        }
        Ok(())
    }

    /// Checks that a member has no unanswered operation. Such an operation may still be done, so the member must not
    /// be used again before that.
    pub(super) fn has_answered(&self, guid: u64) -> Result<()> {
        let state = self.state.read();
        let Some(place) = state.place_of(guid) else { return Ok(()) };
        let unanswered = state.members.get(place).filter(|member| member.active().is_none());
        match unanswered.and_then(Member::unanswered) {
            None => Ok(()),
            Some(Unanswered { op, since, .. }) => {
                let why = format!("it was asked to {op} it, and has not answered for {} s", since.as_secs());
                Err(StoreError::Invalid { path: path_at(&state, place), why })
            }
        }
    }

    /// Passes the mirror's settings to the store of a member before it is used.
    pub(super) fn attend(&self, guid: u64, store: &dyn Store) {
        store.set_autotrim(self.autotrim.load(Ordering::Relaxed));
        store.set_deadman(*self.deadman.lock());
        State::attend(&self.state, guid, store);
    }

    /// Notes open segments as missing on a member that has just been added, because they are not open there.
    fn note_open(&self, state: &State, place: usize) {
        let Some(member) = state.members.get(place) else { return };
        for &id in self.open.lock().keys() {
            if !member.lacks(id) {
                member.note_missing(id, 0);
            }
        }
    }

    /// The path where the member is, or where it was last found.
    #[must_use]
    pub fn path_of(&self, guid: u64) -> Option<PathBuf> {
        let state = self.state.read();
        state.place_of(guid).map(|place| path_at(&state, place))
    }
}

fn path_at(state: &State, place: usize) -> PathBuf {
    state.members.get(place).map(|member| member.path.clone()).unwrap_or_default()
}

fn invalid(path: PathBuf, why: &str) -> StoreError {
    StoreError::Invalid { path, why: why.to_owned() }
}

/// Derives the guid of a new member from the sequence number at its addition, so that no random numbers are needed.
pub(super) fn member_guid(pool: u64, sequence: u64, place: u64) -> u64 {
    let parts = [pool.to_le_bytes(), sequence.to_le_bytes(), place.to_le_bytes()].concat();
    let sum = codec::sum(&[b"mirror member", &parts]);
    codec::u64_at(&sum, 0).unwrap_or_default().max(1)
}
