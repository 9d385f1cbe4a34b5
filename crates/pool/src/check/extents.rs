//! The places of reachable blocks: collected with duplicates, then sorted and compared.

use snowmelt_store::{SegmentId, StoreError};
use std::collections::BTreeMap;

use super::Findings;
use crate::error::{PoolError, Result};
use crate::format::segment::{FRAME_ALIGN, FRAME_HEADER, FrameHeader, frame_len};
use crate::pool::Pool;
use crate::space::SegmentTable;

/// A block in a segment, in units of 8 bytes, with the first bytes of its hash if they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    offset: u32,
    asize: u32,
    hash: u32,
}

/// The extents of a segment.
struct Bucket {
    extents: Vec<Extent>,
    /// Length after the last compaction.
    compacted: usize,
    /// Length of the segment, bytes.
    len: u64,
    /// There were more extents than fit into the segment.
    is_crowded: bool,
}

impl Bucket {
    fn compact(&mut self) {
        self.extents.sort_unstable();
        self.extents.dedup();
        // An extent without a hash (from a deadlist) is equal to the same extent with a hash.
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

/// Extents by segment. No more extents are kept than a segment can hold, and none beyond its end. So wrong pointers
/// cannot use more memory than the segments account for.
pub(super) struct Extents {
    buckets: BTreeMap<SegmentId, Bucket>,
}

const UNIT: u64 = FRAME_ALIGN;

impl Extents {
    /// Starts with no extents, for the segments in `table`.
    pub(super) fn within(table: &SegmentTable) -> Self {
        let bucket = |len| Bucket { extents: Vec::new(), compacted: 0, len, is_crowded: false };
        Extents { buckets: table.iter().map(|(id, segment)| (id, bucket(segment.len))).collect() }
    }

    /// Adds a block. Duplicates are removed later.
    ///
    /// # Errors
    /// A message about a wrong place. The block is then not added.
    pub(super) fn push(
        &mut self,
        (segment, offset): (SegmentId, u32),
        asize: u64,
        hash: Option<&[u8; 32]>,
    ) -> Result<(), String> {
        let hash = hash.and_then(|hash| hash.first_chunk()).map_or(0, |head| u32::from_le_bytes(*head));
        let Some(bucket) = self.buckets.get_mut(&segment) else {
            return Err(format!("segment {segment} is referred to, but not of this pool's state"));
        };
        let (start, end) = (u64::from(offset), u64::from(offset).saturating_add(asize));
        let asize = u32::try_from(asize / UNIT).ok().filter(|_| end <= bucket.len);
        let Some(asize) = asize else {
            let len = bucket.len;
            return Err(format!(
                "segment {segment} offset {start}: ends at {end}, beyond the segment's end at {len}"
            ));
        };
        let most = usize::try_from(bucket.len / FRAME_HEADER as u64).unwrap_or(usize::MAX);
        if !bucket.is_crowded && bucket.extents.len() > (2 * bucket.compacted + 1024).min(2 * most) {
            bucket.compact();
            bucket.is_crowded = bucket.compacted > most;
        }
        if bucket.is_crowded {
            return Err(format!("segment {segment} offset {start}: there are more blocks than fit into it"));
        }
        bucket.extents.push(Extent { offset: offset / 8, asize, hash });
        Ok(())
    }

    pub(super) fn merge(&mut self, other: &Extents) {
        for (segment, bucket) in &other.buckets {
            if let Some(own) = self.buckets.get_mut(segment) {
                own.extents.extend(&bucket.extents);
            }
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

    /// Reports extents that overlap.
    pub(super) fn check_overlaps(&self, findings: &mut Findings<'_>) {
        for (id, bucket) in &self.buckets {
            let mut end = 0;
            for extent in &bucket.extents {
                let start = u64::from(extent.offset) * UNIT;
                if start < end {
                    findings.error(place(*id, extent), "overlaps the block before it");
                }
                end = end.max(start + u64::from(extent.asize) * UNIT);
            }
        }
    }

    /// Reads every frame in order, and verifies its header and payload.
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
