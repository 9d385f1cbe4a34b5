//! The log of damaged blocks that scrubs and readers found. Its size is limited.
//!
//! As in ZFS (two error logs, spa_errlog.c), a scrub has a log of its own. Everything that is found while it is under
//! way goes there. When the scrub finishes, its log replaces the other one. A block that was repaired or freed is
//! therefore forgotten by the next scrub that does not find it. Bytes: `docs/format/pool.md`, "Damage log".

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use snowmelt_store::SegmentId;

use crate::error::Result;
use crate::format::bytes_io::Fields;
use crate::format::prefix;
use crate::format::ptr::StoredPtr;
use crate::format::segment::{FRAME_HEADER, FrameHeader, Kind};
use crate::ids::{TreeId, Txg};
use crate::pool::Pool;
use crate::tree::KEY_MAX;
use crate::txg::Hold;

const VERSION: u8 = 1;
const RECORD: &str = "damage record";

/// Maximal number of blocks in one log. Further blocks are only counted.
pub const DAMAGE_MAX: usize = 10_000;
/// Maximal number of damaged blocks found by readers that wait for a commit.
const MET_MAX: usize = 1000;

/// Key of the counters in the meta tree.
const COUNTERS_KEY: [u8; 2] = [prefix::SCRUB, 1];

/// One of the two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// Blocks found by the last finished scrub, and by readers since.
    Last = 0,
    /// Blocks found while the current scrub is under way.
    Scrub = 1,
}

impl Log {
    fn range(self) -> ([u8; 2], [u8; 2]) {
        ([prefix::DAMAGE, self as u8], [prefix::DAMAGE, self as u8 + 1])
    }
}

/// A damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Segment of the block in its pointers.
    pub segment: SegmentId,
    /// Offset of its frame there, bytes.
    pub offset: u32,
    /// Its stored length, bytes.
    pub psize: u32,
    /// The txg it was born in.
    pub birth: Txg,
    /// When it was found: seconds since 1970.
    pub time: u64,
    /// Whether it is data or a node of a tree.
    pub kind: Kind,
    /// The owner of the block.
    pub owner: DamageOwner,
}

/// The owner of a damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamageOwner {
    /// The pool's own records: the meta tree, a deadlist.
    Pool,
    /// A root. Roots that were frozen later may share the block.
    Root {
        /// The number that the layer above uses for the owner of the root.
        owner: u64,
        /// The txg the root was frozen in; 0 for a live tree.
        txg: Txg,
        /// Key of the block's entry; for a node, its lower bound.
        key: Vec<u8>,
        /// For a node, its upper bound; `None` for the last node.
        high: Option<Vec<u8>>,
    },
    /// The owner named in the block's frame. A reader found the block, and no scrub has checked it since.
    Written {
        /// The tree.
        tree: TreeId,
        /// Object; for a node, its level.
        object: u64,
        /// Block number in the object.
        blkid: u64,
    },
    /// The header of the block's frame is damaged too.
    Unknown,
}

/// Numbers of damaged blocks found since the counters were cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageCounters {
    /// Blocks that the store could not read.
    pub read: u64,
    /// Blocks whose bytes were wrong.
    pub checksum: u64,
    /// Damaged blocks for which the logs had no room.
    pub unnamed: u64,
}

/// A damaged block that a reader found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    psize: u32,
    birth: Txg,
    unreadable: bool,
}

/// Damaged blocks that readers found since the last commit, by their places in pointers.
pub(crate) type MetBlocks = BTreeMap<(SegmentId, u32), Met>;

/// Adds a damaged block that a reader found. Returns whether it is new.
pub(crate) fn note(met: &mut MetBlocks, ptr: &StoredPtr, unreadable: bool) -> bool {
    let place = (ptr.segment, ptr.offset);
    if met.len() >= MET_MAX && !met.contains_key(&place) {
        return false;
    }
    met.insert(place, Met { psize: ptr.psize, birth: ptr.birth, unreadable }).is_none()
}

fn key(log: Log, segment: SegmentId, offset: u32) -> Vec<u8> {
    let mut out = vec![prefix::DAMAGE, log as u8];
    out.extend_from_slice(&segment.0.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(key);
}

impl Damage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.kind.id()];
        out.extend_from_slice(&self.psize.to_le_bytes());
        out.extend_from_slice(&self.birth.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        match &self.owner {
            DamageOwner::Pool => out.push(0),
            DamageOwner::Root { owner, txg, key, high } => {
                out.push(1);
                out.extend_from_slice(&owner.to_le_bytes());
                out.extend_from_slice(&txg.to_le_bytes());
                put_key(&mut out, key);
                out.push(u8::from(high.is_some()));
                put_key(&mut out, high.as_deref().unwrap_or_default());
            }
            DamageOwner::Written { tree, object, blkid } => {
                out.push(2);
                for number in [tree.0, *object, *blkid] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            DamageOwner::Unknown => out.push(3),
        }
        out
    }

    pub(crate) fn decode(segment: SegmentId, offset: u32, bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(RECORD, bytes);
        let (version, kind) = (fields.u8()?, fields.u8()?);
        let (psize, birth, time) = (fields.u32()?, fields.u64()?, fields.u64()?);
        let Some(kind) = Kind::from_id(kind).filter(|_| version == VERSION) else {
            return fields.fail(format!("unknown version {version} or kind {kind}"));
        };
        let owner = match fields.u8()? {
            0 => DamageOwner::Pool,
            1 => {
                let (owner, txg) = (fields.u64()?, fields.u64()?);
                let key = take_key(&mut fields)?;
                let has_high = fields.u8()? != 0;
                let high = Some(take_key(&mut fields)?).filter(|_| has_high);
                DamageOwner::Root { owner, txg, key, high }
            }
            2 => DamageOwner::Written {
                tree: TreeId(fields.u64()?),
                object: fields.u64()?,
                blkid: fields.u64()?,
            },
            3 => DamageOwner::Unknown,
            other => return fields.fail(format!("unknown owner {other}")),
        };
        fields.end()?;
        Ok(Damage { segment, offset, psize, birth, time, kind, owner })
    }
}

fn take_key(fields: &mut Fields<'_>) -> Result<Vec<u8>> {
    let len = usize::from(fields.u16()?);
    if len > KEY_MAX {
        return fields.fail(format!("a key of {len} bytes"));
    }
    Ok(fields.take(len)?.to_vec())
}

impl DamageCounters {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for number in [self.read, self.checksum, self.unnamed] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("damage counters", bytes);
        let version = fields.u8()?;
        if version != VERSION {
            return fields.fail(format!("unknown version {version}"));
        }
        let counters =
            DamageCounters { read: fields.u64()?, checksum: fields.u64()?, unnamed: fields.u64()? };
        fields.end()?;
        Ok(counters)
    }
}

impl Pool {
    /// All known damaged blocks, in the order of their places, each once: those of the last finished scrub, of the
    /// current scrub, and those that readers found.
    ///
    /// # Errors
    /// When the meta tree cannot be read.
    pub fn damage(&self) -> Result<Vec<Damage>> {
        let mut found = BTreeMap::new();
        // The entry of a scrub has more details than that of a reader.
        for log in [Log::Last, Log::Scrub] {
            let (from, to) = log.range();
            for item in self.meta().view().range(&from, Some(&to)) {
                let (key, entry) = item?;
                let place = key.get(2..).and_then(|place| place.split_first_chunk::<8>());
                let place = place.and_then(|(segment, offset)| Some((segment, offset.try_into().ok()?)));
                let Some((segment, offset)) = place else { continue };
                let place = (SegmentId(u64::from_be_bytes(*segment)), u32::from_be_bytes(offset));
                found.insert(place, Damage::decode(place.0, place.1, &entry.value)?);
            }
        }
        for (place, damage) in self.described() {
            found.entry(place).or_insert(damage);
        }
        Ok(found.into_values().collect())
    }

    /// Numbers of damaged blocks since the counters were cleared.
    ///
    /// # Errors
    /// When the meta tree cannot be read.
    pub fn damage_counters(&self) -> Result<DamageCounters> {
        let entry = self.meta().get(&COUNTERS_KEY)?;
        let mut counters =
            entry.map_or(Ok(DamageCounters::default()), |entry| DamageCounters::decode(&entry.value))?;
        for met in self.io().met.lock().values() {
            counters.count(met.unreadable);
        }
        let healed = self.io().healed.load(Ordering::Relaxed);
        counters.checksum = counters.checksum.saturating_add(healed);
        Ok(counters)
    }

    /// Clears the logs and the counters. Blocks that are still damaged will be found again.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn clear_damage(&self) -> Result<()> {
        self.sync_task(|hold| {
            self.io().take_met();
            self.io().healed.store(0, Ordering::Relaxed);
            for log in [Log::Last, Log::Scrub] {
                self.clear_log(hold, log)?;
            }
            self.meta().remove(hold, &COUNTERS_KEY).map(drop)
        })
    }

    /// Removes a block from the logs because it is repaired.
    pub(crate) fn forget_damage(&self, hold: &Hold<'_>, (segment, offset): (SegmentId, u32)) -> Result<()> {
        for log in [Log::Last, Log::Scrub] {
            self.meta().remove(hold, &key(log, segment, offset))?;
        }
        Ok(())
    }

    fn clear_log(&self, hold: &Hold<'_>, log: Log) -> Result<()> {
        let (from, to) = log.range();
        self.meta().remove_range(hold, &from, &to, &mut |_, _| Ok(()))
    }

    /// Begins the log of a new scrub. Entries of an unfinished scrub are removed.
    pub(crate) fn begin_log(&self, hold: &Hold<'_>) -> Result<()> {
        self.clear_log(hold, Log::Scrub)
    }

    /// Replaces the old log by that of the finished scrub. Blocks that the scrub did not find are repaired or freed.
    pub(crate) fn rotate_logs(&self, hold: &Hold<'_>) -> Result<()> {
        self.clear_log(hold, Log::Last)?;
        let (from, to) = Log::Scrub.range();
        let mut found = Vec::new();
        for item in self.meta().view().range(&from, Some(&to)) {
            found.push(item?);
        }
        for (mut key, entry) in found {
            if let Some(log) = key.get_mut(1) {
                *log = Log::Last as u8;
            }
            self.meta().insert(hold, &key, &entry.value)?;
        }
        self.clear_log(hold, Log::Scrub)
    }

    /// Adds damaged blocks to a log. The flag of each says whether the store failed to read it.
    pub(crate) fn log_damage(&self, hold: &Hold<'_>, log: Log, found: &[(Damage, bool)]) -> Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        let (from, to) = log.range();
        let mut logged = self.meta().view().range(&from, Some(&to)).count();
        let entry = self.meta().get(&COUNTERS_KEY)?;
        let mut counters = entry.and_then(|e| DamageCounters::decode(&e.value).ok()).unwrap_or_default();
        for (damage, unreadable) in found {
            let key = key(log, damage.segment, damage.offset);
            counters.count(*unreadable);
            if self.meta().get(&key)?.is_some() {
                // Only the entry of a scrub replaces another entry.
                if !matches!(damage.owner, DamageOwner::Written { .. } | DamageOwner::Unknown) {
                    self.meta().insert(hold, &key, &damage.encode())?;
                }
            } else if logged < DAMAGE_MAX {
                logged += 1;
                self.meta().insert(hold, &key, &damage.encode())?;
            } else {
                counters.unnamed = counters.unnamed.saturating_add(1);
            }
        }
        self.meta().insert(hold, &COUNTERS_KEY, &counters.encode()).map(drop)
    }

    /// Adds the number of damaged blocks that were repaired to the counters.
    fn count_healed(&self, hold: &Hold<'_>, healed: u64) -> Result<()> {
        if healed == 0 {
            return Ok(());
        }
        let entry = self.meta().get(&COUNTERS_KEY)?;
        let mut counters = entry.and_then(|e| DamageCounters::decode(&e.value).ok()).unwrap_or_default();
        counters.checksum = counters.checksum.saturating_add(healed);
        self.meta().insert(hold, &COUNTERS_KEY, &counters.encode()).map(drop)
    }

    /// Writes the damaged blocks that readers found to the log. Errors are ignored: the pool is then no worse than
    /// before.
    pub(crate) fn log_met(&self, hold: &Hold<'_>) {
        let described = self.described();
        let met = self.io().take_met();
        let healed = self.io().healed.swap(0, Ordering::Relaxed);
        if met.is_empty() && healed == 0 {
            return;
        }
        let unreadable = |place| met.get(&place).is_some_and(|met| met.unreadable);
        let found: Vec<_> =
            described.into_iter().map(|(place, damage)| (damage, unreadable(place))).collect();
        let log = match self.scrub_record() {
            Ok(Some(record)) if record.state.is_under_way() => Log::Scrub,
            _ => Log::Last,
        };
        let _ = self.log_damage(hold, log, &found);
        let _ = self.count_healed(hold, healed);
    }

    /// The damaged blocks that readers found since the last commit, with the information in their frames.
    fn described(&self) -> Vec<((SegmentId, u32), Damage)> {
        let met: Vec<_> = self.io().met.lock().iter().map(|(place, met)| (*place, *met)).collect();
        let describe = |((segment, offset), met): ((SegmentId, u32), Met)| {
            let mut header = [0; FRAME_HEADER];
            let read = self.store().read(segment, u64::from(offset), &mut header).ok();
            let header = read.and_then(|()| FrameHeader::decode(&header, segment, offset.into()).ok());
            let (kind, owner) = match header {
                Some(FrameHeader { kind, owner: TreeId::META, .. }) => (kind, DamageOwner::Pool),
                Some(FrameHeader { kind, owner, object, blkid, .. }) => {
                    (kind, DamageOwner::Written { tree: owner, object, blkid })
                }
                None => (Kind::Data, DamageOwner::Unknown),
            };
            let Met { psize, birth, .. } = met;
            let time = (self.options.clock)();
            ((segment, offset), Damage { segment, offset, psize, birth, time, kind, owner })
        };
        met.into_iter().map(describe).collect()
    }
}

impl DamageCounters {
    fn count(&mut self, unreadable: bool) {
        let counter = if unreadable { &mut self.read } else { &mut self.checksum };
        *counter = counter.saturating_add(1);
    }
}
