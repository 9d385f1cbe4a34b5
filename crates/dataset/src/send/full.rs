//! The walk of a full stream: all entries of one tree.

use super::entries::Entries;
use super::objects::{Objects, SpillBlock, end_of};
use super::step::Resume;
use crate::error::SendError;
use crate::objset::key::{ObjsetKey, SLOTS_PER_BLOCK, object_start};

/// How many entries of an object are examined before its last block is searched in the tree.
const LOOK_AHEAD: usize = 4;

/// Sends everything. Without `object_end`, free slots are sent up to the end of the last block of dnodes, because the
/// receiver cannot have more.
pub(super) fn walk(
    objects: &mut Objects<'_>,
    resume: Option<Resume>,
    object_end: Option<u64>,
) -> Result<(), SendError> {
    let mut next = 1;
    if let Some(resume) = resume {
        next = resume.object;
        objects.resume_at(next)?;
    }
    let mut entries = Entries::new(objects.view, &object_start(next), None);
    while let Some((key, entry)) = entries.next()? {
        let object = key.object();
        match key {
            ObjsetKey::Dnode { .. } => {}
            // In a raw stream it is sent with the first object of its range.
            ObjsetKey::Range { .. } => continue,
            _ => return Err(objects.corrupt(object, "it has data but no dnode")),
        }
        objects.free_objects(next, object)?;
        let dnode = objects.decode(object, &entry)?;
        let spill = match entries.peek(0)? {
            Some((ObjsetKey::Spill { object: owner }, entry)) if *owner == object => {
                Some(SpillBlock::decode(entry, false)?)
            }
            _ => None,
        };
        let tail = if objects.is_raw() { None } else { near_tail(&mut entries, object)? };
        let from = match resume {
            Some(resume) if resume.object == object => resume.offset / u64::from(dnode.block_size),
            _ => 0,
        };
        next = end_of(object, &dnode);
        objects.begin(object, dnode, spill, tail)?;
        objects.whole(&mut entries, from)?;
    }
    objects.free_objects(next, object_end.unwrap_or(next.next_multiple_of(SLOTS_PER_BLOCK)))
}

/// The number of the first block after an object's last one, if the object ends within the next few entries. Most files
/// are small, so this avoids a search of the tree.
fn near_tail(entries: &mut Entries, object: u64) -> Result<Option<u64>, SendError> {
    let mut tail = 1;
    for n in 0..LOOK_AHEAD {
        match entries.peek(n)? {
            Some((ObjsetKey::Redaction { object: owner, .. }, _)) if *owner == object => return Ok(None),
            Some((ObjsetKey::Block { object: owner, blkid }, _)) if *owner == object => {
                tail = blkid.saturating_add(1)
            }
            Some((key, _)) if key.object() == object => {}
            _ => return Ok(Some(tail)),
        }
    }
    Ok(None)
}
