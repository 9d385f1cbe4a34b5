//! The segments of an object store. Appended bytes stay in memory until a sync or a seal makes a part of them. A
//! thread uploads each part.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;

use super::parts::{Extents, FOLDER, Part, Stamp};
use super::publication::{DOOMED_MAX, Doomed, KEPT_BYTES_MAX, KEPT_MAX};
use super::{Inner, SEGMENT_CAPACITY, UPLOADS_MAX};
use crate::{Result, SegmentId, SegmentInfo, StoreError, vectored};

/// What is known about the segments. In a process that only reads, it may be outdated.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Whether `segments` is complete.
    listed: bool,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    /// Deleted segments whose objects still exist, or may exist.
    doomed: BTreeMap<SegmentId, Grave>,
    /// Parts in the newest publication at the time when the store was opened.
    carried: Vec<(Part, Bytes)>,
    /// Segments with data that is not uploaded.
    dirty: BTreeSet<SegmentId>,
    /// How often this owner has cut a segment.
    cuts: u64,
    /// The numbers of the parts that are being uploaded.
    under_way: BTreeSet<u64>,
    sent: u64,
    /// The number of threads that delete objects.
    chores: usize,
    /// Why a part could not be uploaded.
    failed: Option<Arc<StoreError>>,
}

#[derive(Debug)]
struct Grave {
    since: u64,
    parts: Vec<Part>,
}

/// A segment.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// All its objects, including those without valid bytes.
    parts: Vec<Part>,
    pub(super) extents: Extents,
    /// The appended bytes after the extents; `None` if the segment is not open for appending.
    pub(super) tail: Option<Tail>,
}

/// Appended bytes that are not in a part yet.
#[derive(Debug)]
pub(super) struct Tail {
    stamp: Stamp,
    pub(super) chunks: Vec<Bytes>,
    len: u64,
    /// Whether the segment was created or cut, so that a part must be written even if nothing is appended.
    tell: bool,
}

impl Segment {
    /// Builds a segment from its parts that are objects, and those that publications carry.
    fn of(parts: Vec<Part>, carried: &[(Part, Bytes)]) -> Self {
        let mut all = parts.clone();
        all.extend(carried.iter().map(|(part, _)| *part).filter(|part| !parts.contains(part)));
        let mut extents = Extents::resolve(&mut all);
        extents.keep(carried);
        Self { parts, extents, tail: None }
    }

    /// Whether it has changes that are in no part.
    fn is_pending(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.tell || tail.len > 0)
    }

    pub(super) fn end(&self) -> u64 {
        self.extents.end() + self.tail.as_ref().map_or(0, |tail| tail.len)
    }
}

impl State {
    /// The deleted segments that the next publication lists. If there are too many, only the newest ones.
    pub(super) fn doomed(&self) -> Vec<Doomed> {
        let doomed = self.doomed.iter().map(|(&id, grave)| Doomed { id, since: grave.since });
        let mut doomed: Vec<Doomed> = doomed.collect();
        doomed.sort_unstable_by_key(|doomed| std::cmp::Reverse((doomed.since, doomed.id)));
        doomed.truncate(DOOMED_MAX);
        doomed
    }

    /// Sets the state of the last publication.
    pub(super) fn set_published(&mut self, doomed: &[Doomed], carried: Vec<(Part, Bytes)>) {
        self.doomed = doomed.iter().map(|d| (d.id, Grave { since: d.since, parts: Vec::new() })).collect();
        self.carried = carried;
    }

    /// The parts that the next publication carries.
    pub(super) fn kept(&self) -> Vec<(Part, Bytes)> {
        if !self.listed {
            // Nothing can have been written before the segments are listed.
            return self.carried.clone();
        }
        let mut kept: Vec<(Part, Bytes)> = Vec::new();
        for extent in self.segments.values().flat_map(|segment| segment.extents.kept()) {
            let part = Part { len: extent.end - extent.part.offset, ..extent.part };
            kept.push((part, extent.chunks().concat().into()));
        }
        kept
    }

    /// Whether the next publication can carry all data that is not uploaded.
    fn fits(&self) -> bool {
        let mut dirty = self.dirty.iter().filter_map(|id| self.segments.get(id)?.tail.as_ref());
        let is_told = dirty.clone().any(|tail| tail.tell && tail.len == 0);
        let extents = self.segments.values().flat_map(|segment| segment.extents.kept());
        let kept = extents.fold((0, 0), |(bytes, count), e| (bytes + e.end - e.part.offset, count + 1));
        let all = dirty.try_fold(kept, |(bytes, count): (u64, usize), tail| {
            Some((bytes.checked_add(tail.len)?, count + 1))
        });
        !is_told && all.is_some_and(|(bytes, count)| bytes <= KEPT_BYTES_MAX && count <= KEPT_MAX)
    }

    /// Turns all tails into parts that the next publication carries.
    fn keep_all(&mut self) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(segment) = self.segments.get_mut(&id).filter(|segment| segment.is_pending()) else {
                continue;
            };
            let offset = segment.extents.end();
            if let Some(tail) = &mut segment.tail {
                let part = Part { id, offset, len: tail.len, stamp: tail.stamp };
                segment.extents.push(part, Some(std::mem::take(&mut tail.chunks).into()));
                segment.extents.keep_last();
                (tail.len, tail.tell) = (0, false);
            }
        }
    }

    /// Removes the segments whose objects may be deleted now: those deleted before `until`, and the oldest ones of
    /// too many. Returns their parts.
    pub(super) fn take_due(&mut self, until: u64) -> Vec<Part> {
        let mut due: Vec<(u64, SegmentId)> =
            self.doomed.iter().map(|(&id, grave)| (grave.since, id)).collect();
        due.sort_unstable();
        let excess = due.len().saturating_sub(DOOMED_MAX);
        let due = due.into_iter().enumerate().filter(|(at, (since, _))| *at < excess || *since <= until);
        let ids: Vec<SegmentId> = due.map(|(_, (_, id))| id).collect();
        ids.iter().filter_map(|id| self.doomed.remove(id)).flat_map(|grave| grave.parts).collect()
    }
}

impl Inner {
    /// Lists all segments, unless that was done before.
    pub(super) fn know_all(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.listed {
            return Ok(state);
        }
        drop(state);
        let parts = self.list_parts(FOLDER)?;
        let mut state = self.state.lock();
        if !state.listed {
            let mut found: BTreeMap<SegmentId, Vec<Part>> = BTreeMap::new();
            parts.into_iter().for_each(|part| found.entry(part.id).or_default().push(part));
            let state = &mut *state;
            for (part, _) in &state.carried {
                found.entry(part.id).or_default();
            }
            for (id, parts) in found {
                match state.doomed.get_mut(&id) {
                    Some(grave) => grave.parts = parts,
                    None => {
                        drop(state.segments.insert(id, Segment::of(parts, &carried_for(&state.carried, id))))
                    }
                }
            }
            // Forget deleted segments whose objects no longer exist.
            state.doomed.retain(|_, grave| !grave.parts.is_empty());
            state.listed = true;
        }
        Ok(state)
    }

    fn list_parts(&self, folder: &str) -> Result<Vec<Part>> {
        let listed = self.remote.list(folder).map_err(|error| self.refused("list the segments in", error))?;
        Ok(listed.iter().filter_map(|listed| Part::parse(&listed.key, listed.len)).collect())
    }

    /// Lists the parts of a segment again, which another process may have changed. Returns whether any part has
    /// changed.
    pub(super) fn look_again(&self, id: SegmentId) -> Result<bool> {
        let parts = self.list_parts(&format!("{FOLDER}/{id}"))?;
        let mut state = self.state.lock();
        let known = state.segments.get(&id).map(|segment| segment.parts.as_slice()).unwrap_or_default();
        let known: BTreeSet<&Part> = known.iter().collect();
        let changed = parts.len() != known.len() || parts.iter().any(|part| !known.contains(part));
        let carried = carried_for(&state.carried, id);
        if changed {
            match parts.is_empty() {
                true => drop(state.segments.remove(&id)),
                false => drop(state.segments.insert(id, Segment::of(parts, &carried))),
            }
        }
        Ok(changed)
    }

    pub(super) fn no_segment(&self, id: SegmentId) -> StoreError {
        StoreError::NoSegment { id, path: self.url.clone() }
    }

    pub(super) fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let state = self.know_all()?;
        Ok(state.segments.iter().map(|(&id, segment)| SegmentInfo { id, len: segment.end() }).collect())
    }

    pub(super) fn create_segment(&self, id: SegmentId) -> Result<()> {
        let state = &mut *self.know_all()?;
        if state.segments.contains_key(&id) {
            return Err(StoreError::Exists { id });
        }
        let mut segment = Segment::default();
        if let Some(grave) = state.doomed.remove(&id) {
            // The new parts have a greater stamp and so replace the old ones.
            state.cuts += 1;
            segment.parts = grave.parts;
        }
        let stamp = Stamp::new(self.epoch, state.cuts);
        segment.tail = Some(Tail { stamp, chunks: Vec::new(), len: 0, tell: true });
        state.segments.insert(id, segment);
        state.dirty.insert(id);
        Ok(())
    }

    pub(super) fn append(&self, id: SegmentId, offset: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        let state = &mut *self.state.lock();
        let end = state.segments.get(&id).and_then(|segment| segment.tail.is_some().then(|| segment.end()));
        if end != Some(offset) {
            return Err(StoreError::NotAtEnd { id, offset, end });
        }
        let len = vectored::len(pieces);
        if offset.saturating_add(len) > SEGMENT_CAPACITY {
            let len = offset.saturating_add(len);
            return Err(StoreError::SegmentFull { id, len, capacity: SEGMENT_CAPACITY });
        }
        let mut chunk = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        pieces.iter().for_each(|piece| chunk.extend_from_slice(piece));
        if let Some(tail) = state.segments.get_mut(&id).and_then(|segment| segment.tail.as_mut())
            && !chunk.is_empty()
        {
            tail.chunks.push(chunk.into());
            tail.len += len;
            state.dirty.insert(id);
        }
        Ok(())
    }

    pub(super) fn reopen_segment(&self, id: SegmentId, len: u64) -> Result<()> {
        let state = &mut *self.know_all()?;
        let Some(segment) = state.segments.get_mut(&id) else { return Err(self.no_segment(id)) };
        let (end, base) = (segment.end(), segment.extents.end());
        if len > end {
            return Err(StoreError::OutOfRange { segment: id, offset: len, len: 0, end });
        }
        match &mut segment.tail {
            Some(tail) if len >= base => tail.truncate(len - base),
            tail => {
                state.cuts += 1;
                segment.extents.cut(len);
                let stamp = Stamp::new(self.epoch, state.cuts);
                *tail = Some(Tail { stamp, chunks: Vec::new(), len: 0, tell: len != base });
            }
        }
        state.dirty.insert(id);
        Ok(())
    }

    pub(super) fn seal_segment(this: &Arc<Self>, id: SegmentId) -> Result<()> {
        if this.state.lock().segments.get(&id).is_none_or(|segment| segment.tail.is_none()) {
            return Ok(());
        }
        this.claim()?;
        let mut state = Self::upload(this, this.state.lock(), id)?;
        if let Some(segment) = state.segments.get_mut(&id) {
            segment.tail = None;
        }
        Ok(())
    }

    pub(super) fn delete_segment(&self, id: SegmentId) -> Result<()> {
        let state = &mut *self.know_all()?;
        state.dirty.remove(&id);
        if let Some(segment) = state.segments.remove(&id) {
            state.doomed.insert(id, Grave { since: Self::now(), parts: segment.parts });
        }
        Ok(())
    }

    /// Prepares all appended data for a publication. The publication carries it if it is small; else it is made
    /// durable in objects.
    pub(super) fn sync_for_publication(this: &Arc<Self>) -> Result<()> {
        let mut state = this.know_all()?;
        if state.fits() {
            state.keep_all();
        } else {
            // Upload the kept parts too, so that publications do not grow without limit.
            let kept = state.segments.iter().filter(|(_, segment)| segment.extents.kept().next().is_some());
            let ids: Vec<SegmentId> = kept.map(|(&id, _)| id).collect();
            state.dirty.extend(ids);
        }
        drop(state);
        Self::sync(this)
    }

    /// Makes all appended data durable: uploads the tails, and waits for all uploads.
    pub(super) fn sync(this: &Arc<Self>) -> Result<()> {
        let dirty = std::mem::take(&mut this.state.lock().dirty);
        if !dirty.is_empty() {
            this.claim()?;
        }
        let mut state = this.state.lock();
        for id in dirty {
            state = Self::upload(this, state, id)?;
        }
        let last = state.sent;
        while state.under_way.first().is_some_and(|&first| first < last) {
            this.arrived.wait(&mut state);
        }
        match &state.failed {
            Some(error) => Err(StoreError::Upload { path: this.url.clone(), source: error.clone() }),
            None => Ok(()),
        }
    }

    /// Starts the upload of a segment's data in memory. Waits first while [`UPLOADS_MAX`] uploads are running.
    fn upload<'a>(
        this: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        id: SegmentId,
    ) -> Result<MutexGuard<'a, State>> {
        while state.under_way.len() >= UPLOADS_MAX && state.failed.is_none() {
            this.arrived.wait(&mut state);
        }
        if let Some(error) = &state.failed {
            return Err(StoreError::Upload { path: this.url.clone(), source: error.clone() });
        }
        let (number, stamp) = (state.sent, Stamp::new(this.epoch, state.cuts));
        let Some(segment) = state.segments.get_mut(&id) else { return Ok(state) };
        let is_pending = segment.is_pending();
        // Combine the parts that publications carried and the later data into one part.
        let mut chunks = segment.extents.take_kept();
        if !is_pending && chunks.is_empty() {
            return Ok(state);
        }
        let offset = segment.extents.end();
        let mut stamp = stamp;
        if let Some(tail) = &mut segment.tail {
            chunks.append(&mut tail.chunks);
            stamp = tail.stamp;
            (tail.len, tail.tell) = (0, false);
        }
        let len = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let part = Part { id, offset, len, stamp };
        let chunks: Arc<[Bytes]> = chunks.into();
        segment.parts.push(part);
        segment.extents.push(part, Some(chunks.clone()));
        state.sent += 1;
        state.under_way.insert(number);
        let upload = {
            let this = Arc::clone(this);
            move || this.send(number, part, &chunks)
        };
        if let Err(error) = std::thread::Builder::new().name("snowmelt-upload".to_owned()).spawn(upload) {
            state.under_way.remove(&number);
            let error = this.gate.poison("start an upload to", &this.url, error);
            return Err(error);
        }
        Ok(state)
    }

    /// Puts a part, and notifies the waiting threads.
    fn send(&self, number: u64, part: Part, chunks: &[Bytes]) {
        let sent = self.remote.put(&part.name(), chunks);
        if sent.is_ok() {
            self.keep_sent(&part, chunks);
        }
        let mut state = self.state.lock();
        match sent {
            Ok(()) => {
                if let Some(segment) = state.segments.get_mut(&part.id) {
                    segment.extents.arrived(&part);
                }
            }
            Err(error) => {
                let error = self.refused("upload to", error);
                self.gate.shut_after_failure();
                state.failed.get_or_insert(Arc::new(error));
            }
        }
        state.under_way.remove(&number);
        self.arrived.notify_all();
    }

    /// Deletes objects in a thread. Objects that cannot be deleted remain as orphans.
    pub(super) fn delete_later(this: &Arc<Self>, names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        this.state.lock().chores += 1;
        let done = |this: &Self| {
            this.state.lock().chores -= 1;
            this.arrived.notify_all();
        };
        let chore = {
            let this = Arc::clone(this);
            move || {
                for name in names {
                    if this.remote.delete(&name).is_err() {
                        break;
                    }
                }
                done(&this);
            }
        };
        if std::thread::Builder::new().name("snowmelt-delete".to_owned()).spawn(chore).is_err() {
            done(this);
        }
    }

    /// Waits for the threads that delete.
    #[cfg(test)]
    pub(super) fn wait_for_chores(&self) {
        let mut state = self.state.lock();
        while state.chores > 0 {
            self.arrived.wait(&mut state);
        }
    }
}

fn carried_for(carried: &[(Part, Bytes)], id: SegmentId) -> Vec<(Part, Bytes)> {
    carried.iter().filter(|(part, _)| part.id == id).cloned().collect()
}

impl Tail {
    fn truncate(&mut self, len: u64) {
        let mut left = usize::try_from(len.min(self.len)).unwrap_or(usize::MAX);
        self.chunks.retain_mut(|chunk| {
            chunk.truncate(left);
            left -= chunk.len();
            !chunk.is_empty()
        });
        self.len = self.chunks.iter().map(|chunk| chunk.len() as u64).sum();
    }
}
