//! The walk of an incremental stream whose base still exists: the differences of two trees.

use snowmelt_pool::{Diff, Entry, View};

use super::entries::Entries;
use super::objects::{Objects, SpillBlock, end_of};
use super::step::Resume;
use crate::error::SendError;
use crate::objset::key::{ObjsetKey, SLOTS_PER_BLOCK, object_end, object_start};
use crate::objset::value::Dnode;
use crate::objset::view::redaction_len;

/// How the differences of an object are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The object does not exist any more.
    Gone,
    /// The whole object was already sent.
    Whole,
    /// Each difference is sent.
    Delta,
}

struct Delta<'a, 'b> {
    objects: &'b mut Objects<'a>,
    old: &'b View,
    resume: Option<Resume>,
    at: Option<(u64, Mode)>,
    /// The slot after the last sent object. Slots before it belong to that object.
    taken: u64,
}

/// Sends the differences from `old`.
pub(super) fn walk(objects: &mut Objects<'_>, old: &View, resume: Option<Resume>) -> Result<(), SendError> {
    let from = resume.map_or(0, |resume| resume.object);
    if let Some(resume) = resume {
        objects.resume_at(resume.object)?;
    }
    let items = View::diff(old, objects.view, &object_start(from));
    let mut delta = Delta { objects, old, resume, at: None, taken: 0 };
    for item in items {
        let (key, old, new) = match item? {
            Diff::Removed { key, old } => (key, Some(old), None),
            Diff::Added { key, new } => (key, None, Some(new)),
            Diff::Changed { key, old, new } => (key, Some(old), Some(new)),
        };
        let key = ObjsetKey::decode(&key)?;
        // The walk may begin with an earlier object.
        if key.object() >= from {
            delta.apply(key, old.as_ref(), new.as_ref())?;
        }
    }
    Ok(())
}

impl Delta<'_, '_> {
    fn apply(&mut self, key: ObjsetKey, old: Option<&Entry>, new: Option<&Entry>) -> Result<(), SendError> {
        let object = key.object();
        if let ObjsetKey::Range { .. } = key {
            return match new {
                _ if !self.objects.is_raw() => Ok(()),
                Some(_) => self.objects.raw_touch(object).map(|_| ()),
                // The whole block of dnodes is empty now.
                None => self.objects.free_objects(object.max(1), object.saturating_add(SLOTS_PER_BLOCK)),
            };
        }
        let mode = match self.at {
            Some((at, mode)) if at == object => mode,
            _ => {
                let mode = self.enter(object)?;
                self.at = Some((object, mode));
                mode
            }
        };
        if mode != Mode::Delta {
            return Ok(());
        }
        match (key, old, new) {
            (ObjsetKey::Block { blkid, .. }, _, Some(_)) if self.is_behind(blkid) => Ok(()),
            (ObjsetKey::Block { blkid, .. }, _, Some(new)) => self.objects.block(blkid, new),
            (ObjsetKey::Block { blkid, .. }, _, None) => self.objects.hole(blkid, blkid.saturating_add(1)),
            (ObjsetKey::Redaction { offset, .. }, old, new) => {
                // Both begin at the same offset, so the longer one includes the other.
                match [old, new].into_iter().flatten().max_by_key(|entry| redaction_len(&entry.value).ok()) {
                    Some(entry) => self.objects.redaction(offset, entry),
                    None => Ok(()),
                }
            }
            // The OBJECT record is enough for these.
            _ => Ok(()),
        }
    }

    /// Whether a block of the current object was received before the stream was interrupted.
    fn is_behind(&self, blkid: u64) -> bool {
        match (self.resume, self.objects.current()) {
            (Some(resume), Some(current)) if current.object == resume.object => {
                blkid < resume.offset / u64::from(current.dnode.block_size)
            }
            _ => false,
        }
    }

    /// Handles the first difference of an object. Its OBJECT record is sent whatever differs, as in ZFS, where no data
    /// changes without its dnode.
    fn enter(&mut self, object: u64) -> Result<Mode, SendError> {
        let old = match self.old.get(&ObjsetKey::Dnode { object }.encode())? {
            Some(entry) => Some(self.objects.decode(object, &entry)?),
            None => None,
        };
        let Some(new) = self.objects.dnode(object)? else {
            if let Some(old) = old {
                // Its other slots may belong to new objects, which are handled later.
                let end = if self.objects.is_raw() { object.saturating_add(1) } else { end_of(object, &old) };
                self.objects.free_objects(object.max(self.taken), end)?;
            }
            return Ok(Mode::Gone);
        };
        self.taken = end_of(object, &new);
        let whole = old.as_ref().is_some_and(|old| is_reallocated(old, &new));
        let spill_key = ObjsetKey::Spill { object }.encode();
        let spill = match self.objects.view.get(&spill_key)? {
            Some(entry) => {
                let unmodified =
                    old.is_some() && !whole && self.old.get(&spill_key)?.as_ref() == Some(&entry);
                Some(SpillBlock::decode(&entry, unmodified)?)
            }
            None => None,
        };
        if !whole {
            self.objects.begin(object, new, spill, None)?;
            return Ok(Mode::Delta);
        }
        let from = match self.resume {
            Some(resume) if resume.object == object => resume.offset / u64::from(new.block_size),
            _ => 0,
        };
        let data = ObjsetKey::Block { object, blkid: from }.encode();
        let mut entries = Entries::new(self.objects.view, &data, Some(&object_end(object)));
        self.objects.begin(object, new, spill, None)?;
        self.objects.whole(&mut entries, from)?;
        Ok(Mode::Whole)
    }
}

/// Whether a receiver may treat the object as a new one with the same number, and drop the data of the old one
/// (`receive_handle_existing_object` of `module/zfs/dmu_recv.c`).
fn is_reallocated(old: &Dnode, new: &Dnode) -> bool {
    let pointers = |dnode: &Dnode| Dnode::block_pointers(dnode.slots, dnode.bonus_type, dnode.bonus_len);
    let raw = match (&old.raw, &new.raw) {
        (Some(old), Some(new)) => {
            old.indirect_block_shift != new.indirect_block_shift || new.nlevels < old.nlevels
        }
        _ => false,
    };
    raw || old.block_size != new.block_size || old.slots != new.slots || pointers(new) < pointers(old)
}
