//! Assembling a mirror from its stores: which of them is newest, and what the others lack.
//!
//! The rules: `docs/format/store.md`, "Opening a mirror".

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::member::{Lack, Member};
use super::missing::Missing;
use super::record::{MemberRecord, Record, Scan};
use super::state::{State, Volatile};
use super::{MirrorStore, Published};
use crate::gate::Gate;
use crate::{
    Access, DEADMAN, MirrorMember, RawUberblock, Result, SegmentId, Store, StoreError, UBERBLOCK_RING,
};

/// The maximum length of a mirror's segments: the slot length of a large file or device, so that one can be added
/// later.
pub(super) const SEGMENT_LEN_MAX: u64 = 32 << 20;

/// A publication of a member.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) record: Option<Record>,
    /// The uberblock of the pool.
    pub(super) raw: RawUberblock,
    /// The position in the ring, which orders publications without a record.
    index: u64,
}

impl Entry {
    /// The order of publications. Those from before the store was a member of a mirror come first.
    pub(super) fn place(&self) -> (u64, u64) {
        self.record.as_ref().map_or((0, self.index), |record| (record.sequence, 0))
    }

    /// The bytes as they were published.
    pub(super) fn encode(&self) -> Vec<u8> {
        match &self.record {
            Some(record) => record.encode(&self.raw.bytes),
            None => self.raw.bytes.clone(),
        }
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.encode().len() as u64
    }
}

/// Decodes the publications of a store. Invalid ones are left out.
pub(super) fn entries(raw: Vec<RawUberblock>) -> Vec<Entry> {
    let decoded = raw.iter().zip(0..).filter_map(|(raw, index)| {
        let (record, raw) = Record::decode(raw)?;
        Some(Entry { record, raw, index })
    });
    decoded.collect()
}

/// The last publications, as many as a store keeps.
pub(super) fn window(mut all: Vec<Entry>) -> Vec<Entry> {
    all.drain(..all.len().saturating_sub(UBERBLOCK_RING));
    all
}

/// Of several publications for one txg, keeps only the last.
pub(super) fn last_of_each_txg(all: Vec<Entry>) -> Vec<Entry> {
    let mut seen = BTreeSet::new();
    let mut last: Vec<Entry> = all.into_iter().rev().filter(|entry| seen.insert(entry.raw.txg)).collect();
    last.reverse();
    last
}

/// Options for opening a mirror.
#[derive(Debug)]
pub(super) struct OpenOptions {
    pub(super) access: Access,
    /// The pool's guid.
    pub(super) guid: u64,
    pub(super) socket: Option<PathBuf>,
}

impl MirrorStore {
    /// Assembles a mirror from new stores, or from stores that were its members before. Their publications show which
    /// of them are up to date. Members that are not up to date, and can be reached, are written to from now on. A
    /// [`resilver`](Self::resilver) copies what they lack. If that is little, it is copied as soon as the
    /// [ends](Store::set_ends) of the segments are known.
    ///
    /// # Errors
    /// `Incomplete` when no member that has all data can be reached; `SplitBrain`; `Io`.
    pub fn assemble(members: Vec<MirrorMember>, access: Access) -> Result<Self> {
        Self::assemble_with(members, OpenOptions { access, guid: 0, socket: None })
    }

    pub(super) fn assemble_with(members: Vec<MirrorMember>, options: OpenOptions) -> Result<Self> {
        let here = members.first().map(|member| member.path.clone()).unwrap_or_default();
        let shared = Arc::new(RwLock::new(State::default()));
        let mut found = Vec::new();
        for member in members {
            if let Ok(store) = &member.store {
                State::attend(&shared, member.guid, &**store);
            }
            let rings = match &member.store {
                Ok(store) => match store.segments().and_then(|_| store.uberblocks()) {
                    Ok(raw) => Ok(entries(raw)),
                    Err(error) => Err(error.to_string()),
                },
                Err(_) => Ok(Vec::new()),
            };
            found.push(match rings {
                Ok(ring) => (Member::new(member), ring),
                Err(why) => (Member::new(MirrorMember { store: Err(why), ..member }), Vec::new()),
            });
        }
        let newest = found
            .iter()
            .filter_map(|(member, ring)| {
                let last = ring.iter().max_by_key(|entry| entry.place())?;
                Some((last.clone(), member.path.clone()))
            })
            .max_by_key(|(entry, _)| entry.place());
        let read_only = options.access == Access::ReadOnly;
        let (state, published, scan) = match newest {
            Some((Entry { record: Some(record), raw, .. }, path)) => join(found, &record, raw, &path)?,
            newest => begin(found, newest.map(|(entry, _)| entry.raw), &here)?,
        };
        *shared.write() = state;
        let mirror = Self {
            gate: Gate::new(&here, options.access),
            read_only,
            socket: options.socket,
            guid: options.guid,
            writing: RwLock::default(),
            state: shared,
            volatile: Mutex::new(Volatile::default()),
            open: Mutex::default(),
            ends: Mutex::default(),
            next_id: Default::default(),
            syncing: Mutex::default(),
            published: Mutex::new(published),
            scan: Mutex::new(scan),
            resilvering: Mutex::default(),
            is_resilvering: Default::default(),
            autotrim: AtomicBool::new(true),
            deadman: Mutex::new(DEADMAN),
            progress: Default::default(),
        };
        mirror.settle_in()?;
        Ok(mirror)
    }

    /// Determines which segments the members lack. Leaves out members that cannot be reached, and takes back those
    /// that can be reached again.
    fn settle_in(&self) -> Result<()> {
        let mut published = self.published.lock();
        let txg = published.last.as_ref().map_or(0, |last| last.txg);
        let mut state = self.state.write();
        let whole: Vec<usize> = places(&state, Member::is_whole);
        if whole.is_empty() {
            return Err(self_incomplete(&state));
        }
        let mut known = BTreeSet::new();
        for store in whole.iter().filter_map(|&at| state.members.get(at)?.active()) {
            known.extend(store.segments()?.into_iter().map(|info| info.id));
        }
        let next_id = known.iter().map(|id| id.0.saturating_add(1)).max().unwrap_or(0);
        self.next_id.store(next_id, Ordering::Release);
        if self.read_only {
            return Ok(());
        }
        restore_segments(&state, &whole, &known)?;
        // Leave out the members that were written to and cannot be reached.
        let gone = places(&state, |member| member.written && member.store.is_none());
        let is_any_gone = !gone.is_empty();
        for at in gone {
            state.leave_out(at, &Volatile::default(), next_id, txg);
        }
        if is_any_gone {
            // A member that is gone may have the only copy of the publication that was under way when the last owner
            // died. So its number is not used again.
            published.sequence += 1;
            state.next_generation(published.sequence);
        }
        let back = places(&state, |member| !member.written && !member.offline && member.store.is_some());
        let is_any_back = !back.is_empty();
        for at in back {
            if let Err(error) = state.take_in(at, next_id)
                && let Some(member) = state.members.get(at)
            {
                member.fail(&error, true);
            }
        }
        self.verify_rings(&state, true, false)?;
        let is_stale = state.members.iter().any(|m| m.active().is_some() && !m.is_whole());
        drop(state);
        drop(published);
        if !self.leave_out_failed() {
            return Err(self.incomplete());
        }
        if is_any_back && !is_stale {
            // Publish that the member is back, so that it can be opened when it is the only one left.
            self.settle()?;
        }
        Ok(())
    }
}

/// Bytes of a segment that are copied when a mirror is opened: twice what a pool writes to one.
const RESTORED_MAX: u64 = 128 << 20;

/// Handles members that should have all data but lack a segment. Either the member has lost the segment, or the
/// segment is an orphan of an owner that died. If some member lacks none, the segments are noted as missing. Else
/// they are copied at once.
fn restore_segments(state: &State, whole: &[usize], known: &BTreeSet<SegmentId>) -> Result<()> {
    let mut lacking = Vec::new();
    for member in whole.iter().filter_map(|&at| state.members.get(at)) {
        let Some(store) = member.active() else { continue };
        let own: BTreeSet<SegmentId> = store.segments()?.into_iter().map(|info| info.id).collect();
        lacking.push((member, store, known.difference(&own).copied().collect::<Vec<_>>()));
    }
    let is_one_complete = lacking.iter().any(|(_, _, ids)| ids.is_empty());
    for (member, store, ids) in &lacking {
        for &id in ids {
            if is_one_complete {
                member.note_missing(id, 0);
                continue;
            }
            let source = lacking.iter().find(|(_, _, others)| !others.contains(&id));
            let Some((_, source, _)) = source else { continue };
            let len = source.segments()?.into_iter().find(|info| info.id == id).map_or(0, |info| info.len);
            // Nothing has been written beyond. A hole in a file can have any length, and its copy would fill the disk.
            let len = len.min(RESTORED_MAX);
            let made = store
                .create_segment(id)
                .and_then(|()| super::resilver::copy_range(*source, *store, id, 0..len))
                .and_then(|()| store.seal_segment(id));
            if let Err(error) = made {
                // The segment that is not copied is an orphan, or can be read from another member.
                member.fail(&error, false);
            }
        }
    }
    Ok(())
}

fn self_incomplete(state: &State) -> StoreError {
    let text = |member: &Member| {
        let why = match member.status() {
            status if status.why.is_some() => status.why.unwrap_or_default(),
            status if status.is_stale => "it has not everything".to_owned(),
            status => status.state.to_string(),
        };
        format!("{}: {why}", member.path.display())
    };
    let path = state.members.first().map(|member| member.path.clone()).unwrap_or_default();
    StoreError::Incomplete { path, why: state.members.iter().map(text).collect::<Vec<_>>().join("; ") }
}

/// The places of the members for which `holds` returns true.
pub(super) fn places(state: &State, holds: impl Fn(&Member) -> bool) -> Vec<usize> {
    state.members.iter().enumerate().filter(|(_, member)| holds(member)).map(|(place, _)| place).collect()
}

impl State {
    /// Starts writing to the member at `place`. It still lacks what it lacked before. Nothing is deleted from it: only
    /// the pool knows whether a segment that the other members do not have was deleted or lost.
    pub(super) fn take_in(&mut self, place: usize, next_id: u64) -> Result<()> {
        let mut known = BTreeSet::new();
        for member in self.members.iter().filter(|member| member.is_whole()) {
            let Some(store) = member.active() else { continue };
            // A member that returned before this one may be the only one that has such a segment too.
            let doubtful = member.doubtful.lock();
            known.extend(
                store.segments()?.into_iter().map(|info| info.id).filter(|id| !doubtful.contains(id)),
            );
        }
        let Some(member) = self.members.get_mut(place) else { return Ok(()) };
        let Some(store) = member.store.as_deref() else { return Ok(()) };
        let own = store.segments()?.into_iter().map(|info| info.id);
        *member.doubtful.get_mut() = own.filter(|id| !known.contains(id)).collect();
        let lack = member.lack.get_mut();
        lack.now.end(next_id);
        lack.durable.end(next_id);
        member.written = true;
        member.offline = false;
        member.failed.store(false, Ordering::Release);
        *member.failure.get_mut() = None;
        Ok(())
    }
}

type Joined = (State, Published, Scan);

/// Builds the state of a mirror from its newest record, which was found on the member at `path`.
fn join(
    mut found: Vec<(Member, Vec<Entry>)>,
    record: &Record,
    raw: RawUberblock,
    path: &Path,
) -> Result<Joined> {
    let newest = found.iter().find(|(member, _)| member.path == path);
    let newest: Vec<Entry> = newest.map(|(_, ring)| ring.clone()).unwrap_or_default();
    let mut members = Vec::new();
    for known in &record.members {
        let at = found.iter().position(|(member, _)| member.guid == known.guid);
        let (mut member, ring) = match at {
            Some(at) => found.swap_remove(at),
            None => (Member::new(nowhere(known.guid)), Vec::new()),
        };
        let last = ring.into_iter().max_by_key(Entry::place);
        if member.store.is_some() && !known.offline && !follows(last.as_ref(), known, record, &newest) {
            return Err(StoreError::SplitBrain { newest: path.to_owned(), other: member.path });
        }
        // A store without any publication may lack all data.
        let is_blank = last.is_none() && member.store.is_some();
        if known.offline {
            member.store = None;
        }
        member.written = known.written && !is_blank;
        member.offline = known.offline;
        member.replaces = known.replaces.and_then(|at| record.members.get(at)).map(|old| old.guid);
        member.generation = known.generation.into();
        member.sent = if known.written { record.generation } else { known.sent }.into();
        if let Some(last) = &last {
            member.has(last);
        }
        member.since = known.since;
        member.set_errors(known.errors);
        let missing = if is_blank { Missing::everything(u64::MAX) } else { known.missing.clone() };
        member.lack = Mutex::new(Lack::of(missing));
        members.push(member);
    }
    let published = Published { sequence: record.sequence, last: Some(raw) };
    let state = State { members, generation: record.generation, segment_len: record.segment_len };
    Ok((state, published, record.scan))
}

fn nowhere(guid: u64) -> MirrorMember {
    let path = PathBuf::from(format!("{guid:016x}"));
    MirrorMember { guid, path, store: Err("nothing says where it is".to_owned()) }
}

/// Whether the newest publication of all is a successor of the newest publication `last` of a member. This is so in
/// four cases: it has the same generation; `last` has the generation of the last publication that the member is known
/// to have, or of the last one that was sent to it; the ring of the newest member contains `last`.
pub(super) fn follows(last: Option<&Entry>, known: &MemberRecord, newest: &Record, ring: &[Entry]) -> bool {
    let Some(record) = last.and_then(|entry| entry.record.as_ref()) else { return true };
    let same = |other: &Record| (other.sequence, other.generation) == (record.sequence, record.generation);
    record.generation == newest.generation
        || record.generation == known.generation
        || record.generation == known.sent
        || ring.iter().filter_map(|entry| entry.record.as_ref()).any(same)
}

/// Builds the state of a mirror without publications: all stores are new, or the first one was not mirrored before.
fn begin(found: Vec<(Member, Vec<Entry>)>, last: Option<RawUberblock>, here: &Path) -> Result<Joined> {
    let had = last.is_some();
    let mut members = Vec::new();
    for (mut member, ring) in found {
        if had && ring.is_empty() {
            member.lack = Mutex::new(Lack::of(Missing::everything(u64::MAX)));
            member.written = false;
        } else if !had && member.store.is_none() {
            let why = member.why.clone().unwrap_or_default();
            return Err(StoreError::Incomplete { path: here.to_owned(), why });
        }
        members.push(member);
    }
    let stores = members.iter().filter_map(|member| member.store.as_deref());
    let segment_len = stores.map(Store::segment_capacity).min().unwrap_or(0).min(SEGMENT_LEN_MAX);
    let mut state = State { members, generation: 0, segment_len };
    state.next_generation(0);
    Ok((state, Published { sequence: 0, last }, Scan::default()))
}
