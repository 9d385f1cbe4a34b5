//! Runs a request against its export: the part that happens on a worker thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Errno;
use crate::export::{Export, Extent};
use crate::plan::{Operation, Range};
use crate::wire::Style;
use crate::wire::reply::{Data, Piece, Reply, ReplyError};

/// Extents in one reply. The protocol's bound is 2^20; clients ask again where a reply ends.
const MAX_EXTENTS: usize = 8192;

/// Zeroes shorter than this are sent as data: below it a chunk and a call cost more than the bytes.
const MIN_HOLE: u64 = 32 << 10;

/// Bytes a request may hold beside its payload while it runs and until its reply is sent.
pub(crate) fn reply_bytes(operation: &Operation) -> u64 {
    match operation {
        Operation::Read { length, .. } => u64::from(*length),
        // what the export returned, and its bytes on the wire
        Operation::Status { .. } | Operation::FilteredStatus { .. } => (MAX_EXTENTS as u64) * 32,
        _ => 0,
    }
}

/// Runs `operation` with its payload. An export's panic fails the request, not the server.
pub(crate) fn execute(export: &dyn Export, style: Style, operation: &Operation, payload: &[u8]) -> Reply {
    match catch_unwind(AssertUnwindSafe(|| run(export, style, operation, payload))) {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => Reply::Error(error),
        Err(_) => {
            tracing::error!(?operation, "the export panicked");
            Reply::Error(ReplyError::new(Errno::Io, "internal error"))
        }
    }
}

fn run(
    export: &dyn Export,
    style: Style,
    operation: &Operation,
    payload: &[u8],
) -> Result<Reply, ReplyError> {
    let failed = |error| failure(&error, operation);
    let durable = |fua: bool| if fua { export.flush() } else { Ok(()) };
    match *operation {
        Operation::Read { offset, length, whole } => {
            read(export, style, Range { offset, length: u64::from(length) }, whole)
        }
        Operation::Write { offset, fua } => {
            if !payload.is_empty() {
                export.write(offset, payload).map_err(failed)?;
            }
            durable(fua).map_err(failed)?;
            Ok(Reply::Done)
        }
        Operation::Flush => export.flush().map(|()| Reply::Done).map_err(failed),
        Operation::Trim { range, fua } => {
            hint(range, |range| export.trim(range.offset, range.length)).map_err(failed)?;
            durable(fua).map_err(failed)?;
            Ok(Reply::Done)
        }
        Operation::Cache { range } => {
            hint(range, |range| export.cache(range.offset, range.length)).map_err(failed)?;
            Ok(Reply::Done)
        }
        Operation::WriteZeroes { range, may_trim, fast, fua } => {
            if range.length > 0 {
                if fast && !export.zeroes_fast(range.offset, range.length, may_trim) {
                    return Err(ReplyError::new(Errno::NotSup, "zeroing would be no faster than writing"));
                }
                export.write_zeroes(range.offset, range.length, may_trim).map_err(failed)?;
            }
            durable(fua).map_err(failed)?;
            Ok(Reply::Done)
        }
        Operation::Status { range, one } => {
            let found = export.extents(range.offset, range.length).map_err(failed)?;
            Ok(Reply::Status(within(found, range.length, if one { 1 } else { MAX_EXTENTS })))
        }
        Operation::FilteredStatus { .. } => unreachable!("its payload was read, and made it a Status"),
    }
}

/// Trim and cache: what is not supported is not done, and that is no error.
fn hint(range: Range, call: impl FnOnce(Range) -> io::Result<()>) -> io::Result<()> {
    if range.length == 0 {
        return Ok(());
    }
    match call(range) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        result => result,
    }
}

/// The one place where an export's error becomes an error of the protocol.
fn failure(error: &io::Error, operation: &Operation) -> ReplyError {
    let errno = Errno::of(error);
    tracing::warn!(?operation, ?errno, %error, "request failed");
    ReplyError::new(errno, error.to_string())
}

/// Extents of exactly what was asked for or less: neighbours of one kind are joined, and no more than `count` are left.
fn within(found: Vec<Extent>, length: u64, count: usize) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::with_capacity(found.len().min(count));
    let mut left = length;
    for extent in found {
        let extent = Extent { length: extent.length.min(left), ..extent };
        if extent.length == 0 {
            continue;
        }
        let full = extents.len() == count;
        match extents.last_mut() {
            Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => {
                last.length += extent.length
            }
            _ if full => break,
            _ => extents.push(extent),
        }
        left -= extent.length;
    }
    if extents.is_empty() {
        // "allocated, contents unknown" is always true enough
        extents.push(Extent { length, hole: false, zero: false });
    }
    extents
}

fn read(export: &dyn Export, style: Style, range: Range, whole: bool) -> Result<Reply, ReplyError> {
    if range.length == 0 {
        // a chunk of no data is not allowed, and a simple reply has none either
        return Ok(Reply::Done);
    }
    let parts =
        if whole || range.length < 2 * MIN_HOLE { vec![(range, false)] } else { parts(export, range)? };
    let mut pieces = Vec::with_capacity(parts.len());
    for (part, hole) in parts {
        let length = u32::try_from(part.length).expect("no longer than the request");
        if hole {
            pieces.push(Piece::Hole { offset: part.offset, length });
            continue;
        }
        let mut data = Data::new(style, part.offset, length);
        if let Err(error) = export.read(part.offset, data.bytes_mut()) {
            let operation = Operation::Read { offset: part.offset, length, whole };
            let at = (style != Style::Simple).then_some(part.offset);
            return Err(ReplyError { at, ..failure(&error, &operation) });
        }
        pieces.push(if !whole && is_zero(data.bytes()) {
            Piece::Hole { offset: part.offset, length }
        } else {
            Piece::Data(data)
        });
    }
    Ok(Reply::Read(pieces))
}

/// Divides a long read into zeroes and what has to be read.
fn parts(export: &dyn Export, range: Range) -> Result<Vec<(Range, bool)>, ReplyError> {
    let found = match export.extents(range.offset, range.length) {
        Ok(found) => within(found, range.length, MAX_EXTENTS),
        // it was only to save work: the read itself shall say what is wrong
        Err(_) => Vec::new(),
    };
    let mut parts: Vec<(Range, bool)> = Vec::new();
    let mut offset = range.offset;
    let end = range.offset + range.length;
    let rest = |offset| Extent { length: end - offset, hole: false, zero: false };
    let mut found = found.into_iter();
    while offset < end {
        let extent = found.next().unwrap_or_else(|| rest(offset));
        let hole = extent.zero && extent.length >= MIN_HOLE;
        match parts.last_mut() {
            Some((last, false)) if !hole => last.length += extent.length,
            _ => parts.push((Range { offset, length: extent.length }, hole)),
        }
        offset += extent.length;
    }
    Ok(parts)
}

fn is_zero(bytes: &[u8]) -> bool {
    // most data differs early: look at a little of it first
    let (head, rest) = bytes.split_at(bytes.len().min(16));
    head.iter().all(|&byte| byte == 0) && {
        let (words, tail) = rest.as_chunks::<64>();
        words.iter().all(|chunk| chunk.iter().fold(0, |or, byte| or | byte) == 0)
            && tail.iter().all(|&byte| byte == 0)
    }
}

#[cfg(test)]
mod tests;
