//! The side that has the snapshot.

use std::io::{self, BufReader, Write};
use std::sync::Arc;

use snowmelt_dataset::diff::{changed_blocks, changed_objects_from};
use snowmelt_dataset::{DatasetError, Objset};
use snowmelt_zpl::{Objects, SourceError};

use super::query::{NUMBERS_MAX, Query, Unread, encode_dnode, encode_numbers, write_answer};
use crate::error::{Failure, chain};
use crate::request::Answer;
use crate::wire::Channel;

/// Answers queries about `objset` until there are no more.
pub(crate) fn answer(
    objset: &Objset,
    since: Option<&Objset>,
    channel: &Arc<Channel>,
) -> Result<Answer, Failure> {
    let mut queries = BufReader::new(channel.incoming());
    let mut out = io::BufWriter::with_capacity(64 * 1024, channel.outgoing());
    let lost = |error: io::Error| Failure::lost(error.to_string());
    let mut buf = Vec::new();
    while let Some(query) = Query::read(&mut queries).map_err(lost)? {
        let result = find(objset, since, query, &mut buf);
        write_answer(&mut out, result.as_ref().map(|()| buf.as_slice())).map_err(lost)?;
        out.flush().map_err(lost)?;
    }
    let out = out.into_inner().map_err(|error| lost(error.into_error()))?;
    out.finish().map_err(|error| Failure::lost(error.to_string()))?;
    Ok(Answer::Done)
}

/// Puts the answer into `buf`.
pub(super) fn find(
    objset: &Objset,
    since: Option<&Objset>,
    query: Query,
    buf: &mut Vec<u8>,
) -> Result<(), Unread> {
    buf.clear();
    match query {
        Query::Dnode { object } => {
            let dnode = Objects::dnode(objset, object).map_err(unread)?;
            encode_dnode(dnode.as_ref(), buf);
        }
        Query::Data { object, offset, len } => {
            buf.resize(len as usize, 0);
            Objects::read(objset, object, offset, buf).map_err(unread)?;
        }
        Query::Spill { object } => {
            if let Some(spill) = Objects::spill(objset, object).map_err(unread)? {
                buf.push(1);
                buf.extend_from_slice(&spill);
            }
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
