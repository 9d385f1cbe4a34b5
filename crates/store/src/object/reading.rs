//! Reading from an object store: data that is not uploaded yet comes from memory, other data is read in windows.

use bytes::Bytes;
use object_store::Error;

use super::Inner;
use super::cache::{Disk, DiskCache};
use super::parts::Part;
use super::windows::{self, WHOLE_MAX};
use crate::{Result, SegmentId, StoreError};

/// How often a reader lists the parts of a segment again that the owner is changing.
const LOOKS_MAX: u32 = 3;

/// A range of an object, and its position in the answer.
struct Wanted {
    part: Part,
    /// Offset in the part.
    start: u64,
    end: u64,
    /// Offset in the answer.
    at: usize,
}

impl Inner {
    pub(super) fn read(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut looks = 0;
        loop {
            let wanted = self.plan(id, offset, buf)?;
            let Err((part, error)) = wanted.iter().try_for_each(|wanted| self.fill(wanted, buf)) else {
                return Ok(());
            };
            if !matches!(error, Error::NotFound { .. }) {
                return Err(self.refused("read from", error));
            }
            // The owner may have replaced the part, or deleted the segment.
            looks += 1;
            if looks > LOOKS_MAX || !self.look_again(id)? {
                return Err(StoreError::Gone { id, part: part.name().into(), path: self.url.clone() });
            }
        }
    }

    /// Copies the bytes that are in memory, and returns the other ranges.
    fn plan(&self, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<Vec<Wanted>> {
        let state = self.know_all()?;
        let segment = state.segments.get(&id).ok_or_else(|| self.no_segment(id))?;
        let (len, end) = (buf.len() as u64, segment.end());
        let Some(last) = offset.checked_add(len).filter(|&last| last <= end) else {
            return Err(StoreError::OutOfRange { segment: id, offset, len, end });
        };
        let mut wanted = Vec::new();
        for extent in segment.extents.covering(offset, last) {
            let base = extent.part.offset;
            let (start, end) = (offset.max(base), last.min(extent.end));
            let at = (start - offset) as usize;
            let (start, end) = (start - base, end - base);
            match &extent.bytes {
                Some(chunks) => copy(chunks, start, &mut buf[at..at + (end - start) as usize]),
                None => wanted.push(Wanted { part: extent.part, start, end, at }),
            }
        }
        let base = segment.extents.end();
        if let Some(tail) = segment.tail.as_ref().filter(|_| last > base && len > 0) {
            let start = offset.max(base);
            copy(&tail.chunks, start - base, &mut buf[(start - offset) as usize..]);
        }
        Ok(wanted)
    }

    fn fill(&self, wanted: &Wanted, buf: &mut [u8]) -> Result<(), (Part, Error)> {
        let part = wanted.part;
        let len = windows::window_len(&part);
        let mut at = wanted.start;
        while at < wanted.end {
            let place = (part, at / len);
            let (start, end) = windows::range(&place);
            let window = self.window(&place).map_err(|error| (part, error))?;
            let upto = wanted.end.min(end);
            let to = wanted.at + (at - wanted.start) as usize;
            let from = (at - start) as usize;
            let count = (upto - at) as usize;
            // `get_range` has made sure that the window is complete.
            buf[to..to + count].copy_from_slice(&window[from..from + count]);
            at = upto;
        }
        Ok(())
    }

    fn disk(&self) -> Option<&DiskCache> {
        self.disk.as_ref().and_then(Disk::usable)
    }

    fn window(&self, place: &windows::Place) -> Result<Bytes, Error> {
        if let Some(bytes) = self.windows.get(place) {
            return Ok(bytes);
        }
        if let Some(bytes) = self.disk().and_then(|disk| disk.get(place)) {
            self.windows.put(*place, bytes.clone());
            return Ok(bytes);
        }
        let (part, first) = *place;
        let run = self.windows.run(place);
        let (start, _) = windows::range(place);
        let (_, end) = windows::range(&(part, first + run - 1));
        let bytes = self.remote.get_range(&part.name(), start, end)?;
        for number in first..first + run {
            let (from, to) = windows::range(&(part, number));
            let window = &bytes[(from - start) as usize..(to - start) as usize];
            if let Some(disk) = self.disk() {
                disk.put(&(part, number), window);
            }
            // A copy, because a slice would keep the whole run in memory.
            self.windows.put((part, number), Bytes::copy_from_slice(window));
        }
        let (_, end) = windows::range(place);
        Ok(bytes.slice(..(end - start) as usize))
    }

    /// Caches a small part that was just uploaded. It is probably metadata, which is likely to be read again.
    pub(super) fn keep_sent(&self, part: &Part, chunks: &[Bytes]) {
        if part.len > 0 && part.len <= WHOLE_MAX {
            let mut bytes = Vec::with_capacity(part.len as usize);
            chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
            if let Some(disk) = self.disk() {
                disk.put(&(*part, 0), &bytes);
            }
            self.windows.put((*part, 0), bytes.into());
        }
    }
}

/// Fills `buf` with the bytes of `chunks` from `start` on. There must be enough of them.
fn copy(chunks: &[Bytes], mut start: u64, mut buf: &mut [u8]) {
    for chunk in chunks {
        let len = chunk.len() as u64;
        if start >= len {
            start -= len;
            continue;
        }
        let from = &chunk[start as usize..];
        let count = from.len().min(buf.len());
        let (now, rest) = buf.split_at_mut(count);
        now.copy_from_slice(&from[..count]);
        (buf, start) = (rest, 0);
        if buf.is_empty() {
            return;
        }
    }
}
