//! The side that has the snapshot.

use std::cell::OnceCell;
use std::io::{self, BufReader, Write};
use std::sync::Arc;

use snowmelt_dataset::diff::{changed_blocks, changed_objects_from};
use snowmelt_dataset::{DatasetError, Objset};
use snowmelt_fs::{Event, Walk};
use snowmelt_zpl::{DMU_OT_PLAIN_FILE_CONTENTS, Filesystem, Objects, SourceError};

use super::query::{
    EXTENTS_MAX, Extents, NUMBERS_MAX, OBJECT_DATA_MAX, Query, Unread, Whole, encode_numbers, encode_step,
    write_answer,
};
use crate::error::{Failure, chain};
use crate::request::Answer;
use crate::wire::Channel;

/// `DMU_OT_ZVOL` of `include/sys/dmu.h`: the data of a volume.
const DMU_OT_ZVOL: u8 = 23;

/// Answers queries about `objset` until there are no more of them.
pub(crate) fn answer(
    objset: &Objset,
    since: Option<&Objset>,
    channel: &Arc<Channel>,
) -> Result<Answer, Failure> {
    let mut queries = BufReader::new(channel.incoming());
    let mut out = io::BufWriter::with_capacity(64 * 1024, channel.outgoing());
    let lost = |error: io::Error| Failure::lost(error.to_string());
    let mut buf = Vec::new();
    let filesystem = OnceCell::new();
    let mut has = Has::new(objset, since, &filesystem);
    while let Some(query) = Query::read(&mut queries).map_err(lost)? {
        let result = has.find(query, &mut buf);
        write_answer(&mut out, result.as_ref().map(|()| buf.as_slice())).map_err(lost)?;
        out.flush().map_err(lost)?;
    }
    let out = out.into_inner().map_err(|error| lost(error.into_error()))?;
    out.finish().map_err(|error| Failure::lost(error.to_string()))?;
    Ok(Answer::Done)
}

/// The snapshot of the queries.
pub(super) struct Has<'f, 'o> {
    objset: &'o Objset,
    since: Option<&'o Objset>,
    filesystem: &'f OnceCell<Filesystem<&'o Objset>>,
    /// A walk under way, from where, and in which round.
    walk: Option<(u64, u64, Walk<'f, &'o Objset>)>,
}

impl<'f, 'o> Has<'f, 'o> {
    /// `filesystem` is for walks.
    pub(super) fn new(
        objset: &'o Objset,
        since: Option<&'o Objset>,
        filesystem: &'f OnceCell<Filesystem<&'o Objset>>,
    ) -> Self {
        Self { objset, since, filesystem, walk: None }
    }

    /// Puts the answer into `buf`.
    pub(super) fn find(&mut self, query: Query, buf: &mut Vec<u8>) -> Result<(), Unread> {
        buf.clear();
        match query {
            Query::Object { object, len } => whole(self.objset, object, len)?.encode(buf),
            Query::Walk { root, round } => {
                if let Some(object) = self.step(root, round)? {
                    encode_step(object, &whole(self.objset, object, 0)?, buf);
                }
            }
            _ => find(self.objset, self.since, query, buf)?,
        }
        Ok(())
    }

    /// The next object of a walk. Objects that cannot be read are left out; the other side finds out when it asks for
    /// them.
    fn step(&mut self, root: u64, round: u64) -> Result<Option<u64>, Unread> {
        let walk = match &mut self.walk {
            Some((known, known_round, walk)) if (*known, *known_round) == (root, round) => walk,
            _ => {
                let filesystem = match self.filesystem.get() {
                    Some(filesystem) => filesystem,
                    None => {
                        let opened =
                            Filesystem::open(self.objset).map_err(|error| Unread::Other(chain(&error)))?;
                        self.filesystem.get_or_init(|| opened)
                    }
                };
                let walk = Walk::new(filesystem, root).map_err(|error| Unread::Other(chain(&error)))?;
                &mut self.walk.insert((root, round, walk)).2
            }
        };
        Ok(walk.find_map(|event| match event {
            Ok(Event::Node(node)) => Some(node.object),
            _ => None,
        }))
    }
}

/// An object, with its data if that is no longer than `len`, or if it is not a file.
fn whole(objset: &Objset, object: u64, len: u32) -> Result<Whole, Unread> {
    let Some(dnode) = Objects::dnode(objset, object).map_err(unread)? else { return Ok(Whole::default()) };
    let spill = match dnode.has_spill {
        true => Objects::spill(objset, object).map_err(unread)?,
        false => None,
    };
    let is_file = matches!(dnode.object_type, DMU_OT_PLAIN_FILE_CONTENTS | DMU_OT_ZVOL);
    let most = if is_file { len } else { OBJECT_DATA_MAX };
    // A read error is reported when the data is requested.
    let data = if most == 0 { None } else { data(objset, object, most.into()).unwrap_or_default() };
    Ok(Whole { dnode: Some(dnode), spill, data })
}

/// The data of an object, if it is at most `left` bytes.
fn data(objset: &Objset, object: u64, mut left: u64) -> Result<Option<Extents>, DatasetError> {
    let mut extents = Vec::new();
    let mut from = 0;
    while let Some(begin) = objset.next_data(object, from)? {
        let most = begin.saturating_add(left + 1);
        let end = objset.next_hole_before(object, begin, most)?.unwrap_or(begin);
        let len = end.saturating_sub(begin);
        if len > left || len == 0 || extents.len() == EXTENTS_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        objset.read(object, begin, &mut bytes)?;
        extents.push((begin, bytes));
        (left, from) = (left - len, end);
    }
    Ok(Some(extents))
}

/// Puts the answer into `buf`.
fn find(objset: &Objset, since: Option<&Objset>, query: Query, buf: &mut Vec<u8>) -> Result<(), Unread> {
    match query {
        Query::Object { .. } | Query::Walk { .. } => {}
        Query::Data { object, offset, len } => {
            buf.resize(len as usize, 0);
            Objects::read(objset, object, offset, buf).map_err(unread)?;
        }
        Query::NextData { object, offset } => {
            buf.extend(encode_numbers(Objects::next_data(objset, object, offset).map_err(unread)?));
        }
        Query::NextHole { object, offset } => {
            buf.extend(encode_numbers(Objects::next_hole(objset, object, offset).map_err(unread)?));
        }
        Query::ChangedObjects { from } => {
            let since = since.ok_or_else(no_base)?;
            for object in changed_objects_from(since, objset, from).take(NUMBERS_MAX) {
                buf.extend_from_slice(&object.map_err(pool)?.to_le_bytes());
            }
        }
        Query::ChangedBlocks { object, from } => {
            let since = since.ok_or_else(no_base)?;
            let mut last: Option<(u64, u64)> = None;
            let mut ranges = 0;
            for range in changed_blocks(since, objset, object, from).map_err(pool)? {
                let (offset, len) = range.map_err(pool)?;
                match &mut last {
                    Some((begin, so_far)) if begin.saturating_add(*so_far) == offset => *so_far += len,
                    _ => {
                        if ranges == NUMBERS_MAX / 2 {
                            break;
                        }
                        ranges += 1;
                        buf.extend(last.replace((offset, len)).into_iter().flat_map(pair));
                    }
                }
            }
            buf.extend(last.into_iter().flat_map(pair));
        }
    }
    Ok(())
}

fn pair((offset, len): (u64, u64)) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8..].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn no_base() -> Unread {
    Unread::Other("no older snapshot was named to compare with".to_owned())
}

fn unread(error: SourceError) -> Unread {
    match &error {
        SourceError::Unreadable { .. } => Unread::Block(chain(&error)),
        _ => Unread::Other(chain(&error)),
    }
}

fn pool(error: DatasetError) -> Unread {
    Unread::Other(chain(&error))
}
