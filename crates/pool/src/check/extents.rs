//! What is reachable, by place: collected with repetitions, then sorted and compared.

use snowmelt_store::{SegmentId, StoreError};
use std::collections::BTreeMap;

use super::Findings;
use crate::error::{PoolError, Result};
use crate::pool::Pool;
use crate::segment::{FRAME_ALIGN, FRAME_HEADER, FrameHeader, frame_len};
use crate::space::SegmentTable;

/// A block in a segment, in units of 8 bytes, with the first bytes of its hash where they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    offset: u32,
    asize: u32,
    hash: u32,
}

#[derive(Default)]
struct Bucket {
    extents: Vec<Extent>,
    /// Length after the last compaction.
    compacted: usize,
}

impl Bucket {
    fn compact(&mut self) {
        self.extents.sort_unstable();
        self.extents.dedup();
        // An extent known without hash (from a deadlist) is the same as one known with it.
        self.extents.dedup_by(|next, kept| {
            let same = next.offset == kept.offset && next.asize == kept.asize && kept.hash == 0;
            if same {
                kept.hash = next.hash;
            }
            same
        });
        self.compacted = self.extents.len();
    }
}

#[derive(Default)]
pub(super) struct Extents {
    buckets: BTreeMap<SegmentId, Bucket>,
}

const UNIT: u64 = FRAME_ALIGN;

impl Extents {
    pub(super) fn push(&mut self, segment: SegmentId, offset: u32, asize: u64, hash: Option<&[u8; 32]>) {
        let hash = hash.and_then(|hash| hash.first_chunk()).map_or(0, |head| u32::from_le_bytes(*head));
        let asize = u32::try_from(asize / UNIT).unwrap_or(u32::MAX);
        let bucket = self.buckets.entry(segment).or_default();
        bucket.extents.push(Extent { offset: offset / 8, asize, hash });
    }

    /// As `push`, for places that come again and again: keeps memory in proportion to what is distinct.
    pub(super) fn push_shared(&mut self, segment: SegmentId, offset: u32, asize: u64, hash: &[u8; 32]) {
        self.push(segment, offset, asize, Some(hash));
        if let Some(bucket) = self.buckets.get_mut(&segment)
            && bucket.extents.len() > 2 * bucket.compacted + 1024
        {
            bucket.compact();
        }
    }

    pub(super) fn merge(&mut self, other: &Extents) {
        for (segment, bucket) in &other.buckets {
            self.buckets.entry(*segment).or_default().extents.extend(&bucket.extents);
        }
    }

    pub(super) fn compact(&mut self) {
        self.buckets.values_mut().for_each(Bucket::compact);
    }

    pub(super) fn len(&self) -> u64 {
        self.buckets.values().map(|bucket| bucket.extents.len() as u64).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.buckets.keys().map(|id| self.bytes_in(*id)).sum()
    }

    pub(super) fn bytes_in(&self, segment: SegmentId) -> u64 {
        let bucket = self.buckets.get(&segment);
        bucket.map_or(0, |b| b.extents.iter().map(|e| u64::from(e.asize) * UNIT).sum())
    }

    /// Every extent lies in a known segment, before its end, and overlaps no other.
    pub(super) fn check_bounds(&self, table: &SegmentTable, findings: &mut Findings<'_>) {
        for (id, bucket) in &self.buckets {
            let Some(segment) = table.get(*id) else {
                findings.error(format!("segment {id}"), "is referred to, but not of this pool's state");
                continue;
            };
            let mut end = 0;
            for extent in &bucket.extents {
                let start = u64::from(extent.offset) * UNIT;
                if start < end {
                    findings.error(place(*id, extent), "overlaps the block before it");
                }
                end = start + u64::from(extent.asize) * UNIT;
                if end > segment.len {
                    let what = format!("ends at {end}, beyond the segment's end at {}", segment.len);
                    findings.error(place(*id, extent), what);
                }
            }
        }
    }

    /// Reads every frame, in order, and verifies header and payload.
    pub(super) fn verify(&self, pool: &Pool, findings: &mut Findings<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        for (id, bucket) in &self.buckets {
            for extent in &bucket.extents {
                let len = u64::from(extent.asize) * UNIT;
                bytes.resize(usize::try_from(len).unwrap_or(0), 0);
                let offset = u64::from(extent.offset) * UNIT;
                let mirror = pool.store().mirror();
                let copies = mirror.map(|mirror| (mirror, mirror.copies(*id, offset)));
                let mut judge = |read: Result<(), StoreError>, bytes: &[u8], copy: &str| {
                    let read = read.map_err(PoolError::store("reading a block"));
                    if let Err(error) = read.and_then(|()| verify_frame(bytes, *id, offset, extent)) {
                        findings.error(format!("{}{copy}", place(*id, extent)), error.chain());
                    }
                };
                let Some((mirror, copies)) = copies else {
                    judge(pool.store().read(*id, offset, &mut bytes), &bytes, "");
                    continue;
                };
                for copy in copies {
                    let read = mirror.read_copy(copy, *id, offset, &mut bytes);
                    judge(read, &bytes, &format!(" on {}", mirror.name_of(copy)));
                }
            }
        }
        Ok(())
    }
}

fn verify_frame(bytes: &[u8], id: SegmentId, offset: u64, extent: &Extent) -> Result<()> {
    let fail = |what: &str| Err(PoolError::record("frame", what));
    let header = FrameHeader::decode(bytes.get(..FRAME_HEADER).unwrap_or_default(), id, offset)?;
    if frame_len(header.psize) != bytes.len() as u64 {
        return fail("the header's size is not the pointer's");
    }
    let payload = bytes.get(FRAME_HEADER..FRAME_HEADER + header.psize as usize).unwrap_or_default();
    if *blake3::hash(payload).as_bytes() != header.hash {
        return fail("BLAKE3 of the stored bytes does not match");
    }
    let head = header.hash.first_chunk().map_or(0, |head| u32::from_le_bytes(*head));
    if extent.hash != 0 && extent.hash != head {
        return fail("the header's hash is not the pointer's");
    }
    Ok(())
}

fn place(segment: SegmentId, extent: &Extent) -> String {
    format!("segment {segment} offset {}", u64::from(extent.offset) * UNIT)
}
