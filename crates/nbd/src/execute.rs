//! Runs a request against its export, on a worker thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Errno;
use crate::export::{Export, Extent};
use crate::plan::{Operation, Range};
use crate::wire::Style;
use crate::wire::reply::{Data, Piece, Reply, ReplyError};

/// Maximum number of extents in one reply. The protocol's limit is 2^20. Clients ask again from where a reply ends.
const MAX_EXTENTS: usize = 8192;

/// Shorter runs of zeros are sent as data, because a chunk and a call would cost more than the bytes.
const MIN_HOLE: u64 = 32 << 10;

/// Number of bytes that a request may occupy in addition to its payload, until its reply is sent.
pub(crate) fn reply_bytes(operation: &Operation) -> u64 {
    match operation {
        Operation::Read { length, .. } => u64::from(*length),
        // the extents from the export, and their encoding
        Operation::Status { .. } | Operation::FilteredStatus { .. } => (MAX_EXTENTS as u64) * 32,
        _ => 0,
    }
}

/// Runs `operation` with its payload. If the export panics, only the request fails.
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

/// Runs a trim or cache operation. It is no error if the export does not support it.
fn hint(range: Range, call: impl FnOnce(Range) -> io::Result<()>) -> io::Result<()> {
    if range.length == 0 {
        return Ok(());
    }
    match call(range) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        result => result,
    }
}

/// Converts an export's error to an error of the protocol, for all operations.
fn failure(error: &io::Error, operation: &Operation) -> ReplyError {
    let errno = Errno::of(error);
    tracing::warn!(?operation, ?errno, %error, "request failed");
    ReplyError::new(errno, error.to_string())
}

/// Limits extents to the requested range. Neighbours of the same kind are joined, and at most `count` extents are kept.
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
        // "allocated, content unknown" is always correct
        extents.push(Extent { length, hole: false, zero: false });
    }
    extents
}

fn read(export: &dyn Export, style: Style, range: Range, whole: bool) -> Result<Reply, ReplyError> {
    if range.length == 0 {
        // a chunk without data is not allowed, and a simple reply has no data either
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

/// Divides a long read into zeros and parts that must be read.
fn parts(export: &dyn Export, range: Range) -> Result<Vec<(Range, bool)>, ReplyError> {
    let found = match export.extents(range.offset, range.length) {
        Ok(found) => within(found, range.length, MAX_EXTENTS),
        // this only saves work; if there is a problem, the read itself reports it
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
    // most data is not zero at the beginning, so a few bytes are checked first
    let (head, rest) = bytes.split_at(bytes.len().min(16));
    head.iter().all(|&byte| byte == 0) && {
        let (words, tail) = rest.as_chunks::<64>();
        words.iter().all(|chunk| chunk.iter().fold(0, |or, byte| or | byte) == 0)
            && tail.iter().all(|&byte| byte == 0)
    }
}

#[cfg(test)]
mod tests;
