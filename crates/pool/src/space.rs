//! Segments and the space in them: how long each is, how much of it is alive, and when a dead one may go.
//!
//! The live bytes of a segment are kept in two sums. `live` counts data blocks and the nodes of all trees but the meta
//! tree; it is recorded in the meta tree. `meta` counts the meta tree's own nodes and is never recorded: writing the
//! record would change it. It is counted when the pool is opened, which takes only the inner nodes of the meta tree
//! (`docs/format/pool.md`, "Segment records").

use snowmelt_store::SegmentId;
use std::collections::{BTreeMap, BTreeSet};

use crate::bytes_io::Fields;
use crate::error::{PoolError, Result};
use crate::parity::with_parity;
use crate::ptr::Txg;
use crate::segment::{Kind, SEGMENT_MAX};

/// How full a pool is, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Size of the store; `None` when the host's filesystem is the limit.
    pub size: Option<u64>,
    /// Bytes of blocks that something refers to.
    pub allocated: u64,
    /// Bytes of all segments: besides what is allocated, dead blocks not yet given back, and padding.
    pub occupied: u64,
    /// Bytes that can still be written, without the reserve; what is dead and can be given back for it counts.
    pub free: u64,
}

impl Space {
    /// How many hundredths of what is free lie between blocks that are alive, where only cleaning gets at it.
    pub fn fragmentation(&self) -> u64 {
        let between = self.occupied.saturating_sub(self.allocated);
        let free = self.size.map_or(self.free, |size| size.saturating_sub(self.allocated)).max(between);
        between.saturating_mul(100).checked_div(free).unwrap_or(0)
    }
}

/// A segment, for who wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Its name.
    pub id: SegmentId,
    /// What it holds.
    pub kind: Kind,
    /// Its length, bytes.
    pub len: u64,
    /// Bytes of blocks in it that something refers to.
    pub alive: u64,
    /// Whether it is being appended to.
    pub is_open: bool,
}

/// What a view can read of what dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reach {
    /// Not what died before this txg.
    pub(crate) since: Txg,
    /// Not what was born after this txg.
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

/// A segment is worth cleaning when at most so many hundredths of it are alive.
pub(crate) const ALIVE_MAX_PERCENT: u64 = 75;
/// The same where nothing else makes room.
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
    /// Nothing in it was born before. 0 for what an earlier owner wrote.
    pub(crate) oldest: Txg,
    /// First txg that refers to nothing in it.
    pub(crate) dead_since: Option<Txg>,
}

/// All segments of the pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentTable {
    segments: BTreeMap<SegmentId, Segment>,
    /// Segments whose record in the meta tree is behind, and all that are open.
    touched: BTreeSet<SegmentId>,
    dead: BTreeSet<(Txg, SegmentId)>,
    allocated: u64,
    occupied: u64,
    /// Parity that is written, in hundredths of the data.
    parity: u8,
}

impl SegmentTable {
    pub(crate) fn set_parity(&mut self, percent: u8) {
        self.parity = percent;
    }

    /// A segment as recorded, when the pool is opened.
    pub(crate) fn load(&mut self, id: SegmentId, record: SegmentRecord) {
        let SegmentRecord { kind, len, live } = record;
        self.allocated += live;
        self.occupied += len;
        self.segments
            .insert(id, Segment { kind, len, live, meta: 0, open: false, oldest: 0, dead_since: None });
    }

    /// A segment's end as the uberblock has it, which is newer than the record.
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

    /// After loading: what is dead has been so since `txg` at the latest.
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

    /// A segment of an earlier owner is appended to again.
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

    /// A block was written that is of txg `birth`; `meta` when it is a node of the meta tree.
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

    /// Nothing refers to a block any more, from `txg` on.
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

    /// Takes out the segments that are dead since `txg` or longer, and hold nothing that views can read.
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

    /// Segments of which at most `alive_max_percent` is alive, with that and the parity that it would take elsewhere, and what
    /// each takes; `slot` at least.
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

    /// Dead bytes that can be given back: in dead segments, and in those that cleaning can empty.
    pub(crate) fn reclaimable(&self, slot: u64) -> u64 {
        self.cleanable(LAST_RESORT_PERCENT, slot).map(|(_, alive, size)| size - alive.min(size)).sum()
    }

    /// What segments of data that are open can still take.
    pub(crate) fn open_room(&self, segment_bytes: u64) -> u64 {
        let open = self.segments.values().filter(|segment| segment.open && segment.kind == Kind::Data);
        open.map(|segment| segment_bytes.saturating_sub(segment.len)).sum()
    }

    pub(crate) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Takes the records that are behind, to be written. Open segments go on counting as behind: that they are open, whoever owns
    /// the pool next learns from the uberblock's ends.
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

    /// Segments whose record is behind: id, state.
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

/// What only frees may use: a thirty-second of the pool, a segment or 8 MiB at least (a quarter of a very small pool), at most
/// 128 GiB. After `spa_get_slop_space` (spa_misc.c), whose smallest is scaled down for pools in files. With less cleaning
/// could empty no segment to speak of. Where segments have slots it is two of these at least: to free something, or to
/// clean, a segment of each kind may have to be opened.
pub(crate) fn slop(size: u64, slot: u64, segment_bytes: u64) -> u64 {
    (size / 32).max(8 << 20).max(segment_bytes).max(2 * slot).min(size / 4).min(128 << 30)
}

/// With less room than this some is made before it is asked for. What cleaning moves must fit beside what is there, so that the
/// later it begins, the fewer segments at a time it can choose from, until there is none that fits.
pub(crate) fn low_water(size: u64, slot: u64, segment_bytes: u64) -> u64 {
    slop(size, slot, segment_bytes).max(6 * segment_bytes).min(size / 4)
}
