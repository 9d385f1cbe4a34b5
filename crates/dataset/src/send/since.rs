//! The walk of an incremental stream whose base no longer exists (a bookmark): the changes since a txg.
//!
//! A removed entry leaves no trace, but its leaf was written again. So within the key range of every leaf born since
//! the txg, everything absent is sent as free: object numbers and block ranges. If any part of an object is in such a
//! leaf, its OBJECT record is sent. That record also says whether the object has a spill block, and where it ends.

use snowmelt_pool::{Change, Entry, Txg};

use super::entries::Place;
use super::objects::{Objects, SpillBlock, end_of};
use super::step::Resume;
use crate::error::SendError;
use crate::objset::key::{OBJECT_MAX, ObjsetKey, object_start};
use crate::objset::value::Dnode;

struct Since<'a, 'b> {
    objects: &'b mut Objects<'a>,
    txg: Txg,
    resume: Option<Resume>,
    /// The current leaf was handled up to `at`, and ends at `high`.
    at: Place,
    high: Place,
    /// The last dnode that the walk found.
    dnode: Option<(u64, Dnode)>,
}

/// Sends the changes after `txg`.
pub(super) fn walk(objects: &mut Objects<'_>, txg: Txg, resume: Option<Resume>) -> Result<(), SendError> {
    let from = resume.map_or(1, |resume| resume.object);
    if let Some(resume) = resume {
        objects.resume_at(resume.object)?;
    }
    let items = objects.view.changes_since(txg, &object_start(from));
    let start = Place::start(from);
    let mut since = Since { objects, txg, resume, at: start, high: start, dnode: None };
    for item in items {
        match item? {
            Change::Leaf { low, high } => {
                since.gap(since.high)?;
                since.at = Place::of_bound(&low).max(start);
                since.high = high.map_or(Place::END, |high| Place::of_bound(&high)).min(Place::END);
                since.dnode = None;
            }
            Change::Entry { key, entry } => {
                let key = ObjsetKey::decode(&key)?;
                let place = Place::of_key(key);
                if place >= since.at {
                    since.gap(place)?;
                    since.at = place.after();
                    since.entry(key, &entry)?;
                }
            }
        }
    }
    since.gap(since.high)
}

impl Since<'_, '_> {
    fn entry(&mut self, key: ObjsetKey, entry: &Entry) -> Result<(), SendError> {
        let object = key.object();
        let is_new = entry.birth > self.txg;
        match key {
            ObjsetKey::Range { .. } => {
                if is_new && self.objects.is_raw() {
                    self.objects.raw_touch(object)?;
                }
                return Ok(());
            }
            ObjsetKey::Dnode { .. } => self.dnode = Some((object, self.objects.decode(object, entry)?)),
            _ => {}
        }
        if !is_new {
            return Ok(());
        }
        if !self.touch(object)? {
            return Err(self.objects.corrupt(object, "it has data but no dnode"));
        }
        match key {
            ObjsetKey::Block { blkid, .. } if !self.is_behind(blkid) => self.objects.block(blkid, entry),
            ObjsetKey::Redaction { offset, .. } => self.objects.redaction(offset, entry),
            _ => Ok(()),
        }
    }

    fn is_behind(&self, blkid: u64) -> bool {
        match (self.resume, self.objects.current()) {
            (Some(resume), Some(current)) if current.object == resume.object => {
                blkid < resume.offset / u64::from(current.dnode.block_size)
            }
            _ => false,
        }
    }

    /// Makes an object the current one. Returns `false` if the object does not exist.
    fn touch(&mut self, object: u64) -> Result<bool, SendError> {
        if self.objects.current().is_some_and(|current| current.object == object) {
            return Ok(true);
        }
        if self.dnode.as_ref().is_none_or(|(known, _)| *known != object) {
            let Some(dnode) = self.objects.dnode(object)? else { return Ok(false) };
            self.dnode = Some((object, dnode));
        }
        let Some((_, dnode)) = &self.dnode else { return Ok(false) };
        let spill = match self.objects.view.get(&ObjsetKey::Spill { object }.encode())? {
            Some(entry) => Some(SpillBlock::decode(&entry, entry.birth <= self.txg)?),
            None => None,
        };
        self.objects.begin(object, dnode.clone(), spill, None)?;
        Ok(true)
    }

    /// Sends as free everything between the current place and `to`. Nothing exists there, but something may have
    /// existed.
    fn gap(&mut self, to: Place) -> Result<(), SendError> {
        let from = self.at;
        if from >= to {
            return Ok(());
        }
        if from.kind > Place::DNODE && self.touch(from.object)? {
            let first = match from.kind.cmp(&Place::BLOCK) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => from.number,
                std::cmp::Ordering::Greater => u64::MAX,
            };
            let end = match to.kind.cmp(&Place::BLOCK) {
                _ if to.object > from.object => u64::MAX,
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => to.number,
                std::cmp::Ordering::Greater => u64::MAX,
            };
            self.objects.hole(first, end)?;
        }
        let (first, end) = (from.first_dnode().max(1), to.first_dnode().min(OBJECT_MAX + 1));
        if first < end {
            let first = first.max(self.slot_after_object_before(first)?);
            self.objects.free_objects(first, end)?;
        }
        Ok(())
    }

    /// The slot after the last one of the object before `object`. The inside of a large dnode is not free.
    fn slot_after_object_before(&mut self, object: u64) -> Result<u64, SendError> {
        if let Some((known, dnode)) = &self.dnode {
            return Ok(end_of(*known, dnode));
        }
        let mut before = object;
        loop {
            let Some((key, _)) = self.objects.view.last_before(&object_start(before))? else { return Ok(0) };
            before = ObjsetKey::decode(&key)?.object();
            if let Some(dnode) = self.objects.dnode(before)? {
                return Ok(end_of(before, &dnode));
            }
        }
    }
}
