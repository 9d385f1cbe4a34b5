//! Accounting of segments: how long each is, how many of its bytes are live, and when a dead one may be deleted.
//!
//! The live bytes of a segment are kept in two sums. `live` counts data blocks and the nodes of all trees except the
//! meta tree. It is recorded in the meta tree. `meta` counts the meta tree's own nodes. It is never recorded, because
//! writing the record would change it. It is counted when the pool is opened, which reads only the inner nodes of the
//! meta tree (`docs/format/pool.md`, "Segment records").

use snowmelt_store::SegmentId;
use std::collections::{BTreeMap, BTreeSet};

use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;
use crate::format::segment::{Kind, SEGMENT_MAX};
use crate::ids::Txg;
use crate::parity::with_parity;

/// How full a pool is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Size of the store; `None` when the host's filesystem is the limit.
    pub size: Option<u64>,
    /// Bytes of live blocks.
    pub allocated: u64,
    /// Bytes of all segments: live blocks, dead blocks that were not deleted yet, and padding.
    pub occupied: u64,
    /// Bytes that can still be written without the reserve, including dead bytes that can be reclaimed.
    pub free: u64,
}

impl Space {
    /// The percentage of the free space that lies between live blocks, where only the cleaner can reclaim it.
    pub fn fragmentation(&self) -> u64 {
        let between = self.occupied.saturating_sub(self.allocated);
        let free = self.size.map_or(self.free, |size| size.saturating_sub(self.allocated)).max(between);
        between.saturating_mul(100).checked_div(free).unwrap_or(0)
    }
}

/// Public facts about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Its id.
    pub id: SegmentId,
    /// What it holds.
    pub kind: Kind,
    /// Its length, bytes.
    pub len: u64,
    /// Bytes of live blocks in it.
    pub alive: u64,
    /// Whether it is being appended to.
    pub is_open: bool,
}

/// Which dead blocks a view can still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reach {
    /// Only blocks that died in this txg or later.
    pub(crate) since: Txg,
    /// Only blocks that were born up to this txg.
    pub(crate) newest: Txg,
}

/// The recorded part of a segment's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRecord {
    pub(crate) kind: Kind,
    pub(crate) len: u64,
    pub(crate) live: u64,
}

const VERSION: u8 = 1;

/// A segment is worth cleaning when at most this percentage of it is live.
pub(crate) const ALIVE_MAX_PERCENT: u64 = 75;
/// The same, when there is no other way to free space.
pub(crate) const LAST_RESORT_PERCENT: u64 = 90;

impl SegmentRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.kind.id()];
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.live.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("segment record", bytes);
        let version = fields.u8()?;
        let kind = fields.u8()?;
        let (VERSION, Some(kind)) = (version, Kind::from_id(kind)) else {
            return fields.fail(format!("version {version} or kind {kind} is unknown"));
        };
        let record = SegmentRecord { kind, len: fields.u64()?, live: fields.u64()? };
        if record.len > SEGMENT_MAX || record.live > SEGMENT_MAX {
            return fields.fail(format!("{} bytes, {} of them alive", record.len, record.live));
        }
        fields.end()?;
        Ok(record)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) kind: Kind,
    pub(crate) len: u64,
    pub(crate) live: u64,
    pub(crate) meta: u64,
    pub(crate) open: bool,
    /// No block in it was born before this txg. 0 for segments of an earlier owner.
    pub(crate) oldest: Txg,
    /// The first txg that refers to nothing in it.
    pub(crate) dead_since: Option<Txg>,
}

/// All segments of the pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentTable {
    segments: BTreeMap<SegmentId, Segment>,
    /// Segments whose record in the meta tree is out of date, and all open segments.
    touched: BTreeSet<SegmentId>,
    dead: BTreeSet<(Txg, SegmentId)>,
    allocated: u64,
    occupied: u64,
    /// How much parity is written, in percent of the data.
    parity: u8,
}

impl SegmentTable {
    pub(crate) fn set_parity(&mut self, percent: u8) {
        self.parity = percent;
    }

    /// Adds a segment from its record, when the pool is opened.
    pub(crate) fn load(&mut self, id: SegmentId, record: SegmentRecord) {
        let SegmentRecord { kind, len, live } = record;
        self.allocated += live;
        self.occupied += len;
        self.segments
            .insert(id, Segment { kind, len, live, meta: 0, open: false, oldest: 0, dead_since: None });
    }

    /// Sets a segment's end from the uberblock, which is newer than the record.
    pub(crate) fn load_end(&mut self, id: SegmentId, kind: Kind, len: u64) {
        let segment = self.segments.entry(id).or_insert(Segment {
            kind,
            len: 0,
            live: 0,
            meta: 0,
            open: false,
            oldest: 0,
            dead_since: None,
        });
        self.occupied = self.occupied - segment.len + len;
        segment.len = len;
        self.touched.insert(id);
    }

    /// Ends the loading: segments that are dead now count as dead since `txg`.
    pub(crate) fn loaded(&mut self, txg: Txg) {
        let ids: Vec<SegmentId> = self.segments.keys().copied().collect();
        for id in ids {
            self.settle(id, txg);
        }
    }

    pub(crate) fn opened(&mut self, id: SegmentId, kind: Kind) {
        let new = Segment { kind, len: 0, live: 0, meta: 0, open: true, oldest: Txg::MAX, dead_since: None };
        self.segments.insert(id, new);
        self.touched.insert(id);
    }

    /// A segment of an earlier owner was opened again for appending.
    pub(crate) fn reopened(&mut self, id: SegmentId) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.open = true;
            self.touched.insert(id);
            if let Some(txg) = segment.dead_since.take() {
                self.dead.remove(&(txg, id));
            }
        }
    }

    pub(crate) fn grown(&mut self, id: SegmentId, len: u64) {
        if let Some(segment) = self.segments.get_mut(&id) {
            self.occupied = self.occupied - segment.len + len;
            if segment.len != len {
                self.touched.insert(id);
            }
            segment.len = len;
        }
    }

    pub(crate) fn sealed(&mut self, id: SegmentId, txg: Txg) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.open = false;
        }
        self.settle(id, txg);
    }

    /// Counts a written block that was born in txg `birth`. `meta` is true for a node of the meta tree.
    pub(crate) fn add(&mut self, id: SegmentId, asize: u64, meta: bool, birth: Txg) {
        if let Some(segment) = self.segments.get_mut(&id) {
            self.allocated += asize;
            segment.oldest = segment.oldest.min(birth);
            if meta {
                segment.meta += asize;
            } else {
                segment.live += asize;
                self.touched.insert(id);
            }
        }
    }

    /// Counts a block as dead: nothing refers to it from `txg` on.
    pub(crate) fn sub(&mut self, id: SegmentId, asize: u64, meta: bool, txg: Txg) -> Result<()> {
        let missing = PoolError::Accounting { segment: id, asize, live: 0 };
        let segment = self.segments.get_mut(&id).ok_or(missing)?;
        let live = if meta { &mut segment.meta } else { &mut segment.live };
        *live = live.checked_sub(asize).ok_or(PoolError::Accounting { segment: id, asize, live: *live })?;
        self.allocated -= asize;
        if !meta {
            self.touched.insert(id);
        }
        self.settle(id, txg);
        Ok(())
    }

    fn settle(&mut self, id: SegmentId, txg: Txg) {
        if let Some(segment) = self.segments.get_mut(&id)
            && segment.live == 0
            && segment.meta == 0
            && !segment.open
            && segment.dead_since.is_none()
        {
            segment.dead_since = Some(txg);
            self.dead.insert((txg, id));
        }
    }

    /// Removes and returns the segments that have been dead since `txg` or earlier and hold nothing that views can
    /// read.
    pub(crate) fn take_dead(&mut self, txg: Txg, views: &[Reach]) -> Vec<SegmentId> {
        let is_free = |(since, id): &&(Txg, SegmentId)| {
            let oldest = self.segments.get(id).map_or(0, |segment| segment.oldest);
            !views.iter().any(|view| *since >= view.since && oldest <= view.newest)
        };
        let dead = self.dead.range(..=(txg, SegmentId(u64::MAX))).filter(is_free);
        let dead: Vec<(Txg, SegmentId)> = dead.copied().collect();
        for (since, id) in &dead {
            self.dead.remove(&(*since, *id));
            self.touched.remove(id);
            if let Some(segment) = self.segments.remove(id) {
                self.occupied -= segment.len;
            }
        }
        dead.into_iter().map(|(_, id)| id).collect()
    }

    /// Segments of which at most `alive_max_percent` is live. For each: its live bytes with the parity that they would
    /// need elsewhere, and its size, which is at least `slot`.
    pub(crate) fn cleanable(
        &self,
        alive_max_percent: u64,
        slot: u64,
    ) -> impl Iterator<Item = (SegmentId, u64, u64)> {
        self.segments
            .iter()
            .filter(|(_, segment)| !segment.open)
            .map(move |(id, segment)| {
                let alive = with_parity(segment.live + segment.meta, self.parity);
                (*id, alive, segment.len.max(slot))
            })
            .filter(move |(_, alive, size)| {
                u128::from(*alive) * 100 <= u128::from(*size) * u128::from(alive_max_percent)
            })
    }

    /// Dead bytes that can be reclaimed: in dead segments, and in segments that the cleaner can empty.
    pub(crate) fn reclaimable(&self, slot: u64) -> u64 {
        self.cleanable(LAST_RESORT_PERCENT, slot).map(|(_, alive, size)| size - alive.min(size)).sum()
    }

    /// Bytes that the open data segments can still take.
    pub(crate) fn open_room(&self, segment_bytes: u64) -> u64 {
        let open = self.segments.values().filter(|segment| segment.open && segment.kind == Kind::Data);
        open.map(|segment| segment_bytes.saturating_sub(segment.len)).sum()
    }

    pub(crate) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Returns the records that are out of date, to be written. Open segments stay marked, because only the uberblock's
    /// segment ends tell the next owner that they are open.
    pub(crate) fn take_touched(&mut self) -> Vec<(SegmentId, SegmentRecord)> {
        let is_open = |id: &SegmentId| self.segments.get(id).is_some_and(|segment| segment.open);
        let open = self.touched.iter().copied().filter(is_open).collect();
        let touched = std::mem::replace(&mut self.touched, open);
        let record = |id| {
            let Segment { kind, len, live, .. } = *self.segments.get(&id)?;
            Some((id, SegmentRecord { kind, len, live }))
        };
        touched.into_iter().filter_map(record).collect()
    }

    /// Segments whose record is out of date: id and state.
    pub(crate) fn touched(&self) -> Vec<(SegmentId, Segment)> {
        let pair = |id: &SegmentId| Some((*id, self.segments.get(id)?.clone()));
        self.touched.iter().filter_map(pair).collect()
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.segments.iter().map(|(id, segment)| (*id, segment))
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    pub(crate) fn occupied(&self) -> u64 {
        self.occupied
    }
}

/// The reserve, which only frees and the cleaner may use: 1/32 of the pool. It is at least one segment and 8 MiB, at
/// most 1/4 of the pool, and at most 128 GiB. This follows `spa_get_slop_space` (spa_misc.c), whose minimum is reduced
/// for pools in files. With a smaller reserve the cleaner could empty almost no segment. If segments occupy slots, the
/// reserve is at least two slots: a free or the cleaner may have to open a segment of each kind.
pub(crate) fn slop(size: u64, slot: u64, segment_bytes: u64) -> u64 {
    (size / 32).max(8 << 20).max(segment_bytes).max(2 * slot).min(size / 4).min(128 << 30)
}

/// The free space below which segments are cleaned in advance. The blocks that the cleaner moves must fit into the free
/// space. The later it begins, the fewer segments it can choose from, until none fits.
pub(crate) fn low_water(size: u64, slot: u64, segment_bytes: u64) -> u64 {
    slop(size, slot, segment_bytes).max(6 * segment_bytes).min(size / 4)
}
