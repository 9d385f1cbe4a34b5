//! Salvage: finds states of a pool without an uberblock, from the nodes of the meta tree in its segments.
//!
//! Every txg writes the root of the meta tree again, and the root is the only node of its level. So among the nodes of
//! that tree that were born in one txg, the node of the highest level is the root, if it still exists. If it does not,
//! a node below it takes its place. Both cases look the same here. A caller that opens such a state must check it, and
//! try an older one if it is wrong (`docs/format/pool.md`, "Salvage").

use std::collections::{BTreeMap, BTreeSet};

use snowmelt_store::{SegmentId, Store};

use crate::error::{PoolError, Result};
use crate::format::prefix;
use crate::format::ptr::StoredPtr;
use crate::format::seal::{self, KeyRecord};
use crate::format::segment::{COMMIT_ALIGN, Kind, frame_len};
use crate::format::tree_record::{TreeRecord, TreeStats};
use crate::format::uberblock::{ENDS_MAX, Features, SegmentEnd, Uberblock};
use crate::ids::{TreeId, Txg};
use crate::io::Io;
use crate::pool::{PARITY, Pool, property_key};
use crate::scan::{Frame, scan};
use crate::space::SegmentRecord;
use crate::tree::Tree;

/// Maximal number of states that are kept, the newest ones. Older states have probably lost segments.
const STATES_MAX: usize = 4096;

/// A state of the pool of which at least a part of the meta tree was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostState {
    root: StoredPtr,
    level: u64,
}

impl LostState {
    /// The txg.
    pub fn txg(&self) -> Txg {
        self.root.birth
    }
}

/// The result of a salvage.
#[derive(Clone, Debug, Default)]
pub struct Salvage {
    /// States, newest first.
    pub states: Vec<LostState>,
    /// Frames whose header and payload are valid.
    pub frames: u64,
    /// Frames of which only the header is valid.
    pub damaged: u64,
    pub(crate) guid: u64,
    /// The newest birth txg of any frame.
    pub(crate) newest: Txg,
    /// A number above the ids of all trees named in frames.
    next_tree: u64,
    /// Where the last frame of each segment ends.
    ends: BTreeMap<SegmentId, u64>,
    /// Length of each segment in the store.
    lens: BTreeMap<SegmentId, u64>,
    key_record: Option<KeyRecord>,
}

impl Salvage {
    /// Reads all segments of the pool with this guid. `progress` gets the bytes done and the total bytes, and returns
    /// whether to continue. If it does not, the result is `None`.
    ///
    /// # Errors
    /// When the segments cannot be listed. The rest of a segment that cannot be read is skipped.
    pub fn find(
        store: &dyn Store,
        guid: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Self>> {
        let segments = store.segments().map_err(PoolError::store("listing the segments"))?;
        let of_ring = Pool::key_record_of(store)?.filter(|record| record.guid() == guid);
        let key_record = of_ring.or_else(|| seal::newest_key_record(store, guid, &segments));
        // The store may say that they are of any length.
        let total = segments.iter().fold(0, |total: u64, info| total.saturating_add(info.len));
        let mut found = Self { guid, next_tree: 1, key_record, ..Self::default() };
        let mut roots: BTreeMap<Txg, LostState> = BTreeMap::new();
        let mut done = 0u64;
        for info in segments {
            found.lens.insert(info.id, info.len);
            let mut frames = 0u64;
            for frame in scan(store, info) {
                // A frame that the store cannot read ends the segment.
                let Ok(frame) = frame else { break };
                frames += 1;
                if frames.is_multiple_of(1024) && !progress(done.saturating_add(frame.offset.into()), total) {
                    return Ok(None);
                }
                if frame.header.pool == guid {
                    found.add(&frame, &mut roots);
                }
            }
            done = done.saturating_add(info.len);
            if !progress(done, total) {
                return Ok(None);
            }
        }
        found.states = roots.into_values().rev().collect();
        Ok(Some(found))
    }

    /// The newest key record that was found, if the pool is encrypted.
    pub fn key_record(&self) -> Option<&KeyRecord> {
        self.key_record.as_ref()
    }

    fn add(&mut self, frame: &Frame, roots: &mut BTreeMap<Txg, LostState>) {
        let header = &frame.header;
        let end = u64::from(frame.offset) + frame_len(header.psize);
        let last = self.ends.entry(frame.segment).or_default();
        *last = end.max(*last);
        self.newest = self.newest.max(header.birth);
        self.next_tree = self.next_tree.max(header.owner.0.saturating_add(1));
        if frame.payload.is_none() {
            self.damaged += 1;
            return;
        }
        self.frames += 1;
        if header.kind != Kind::Node || header.owner != TreeId::META {
            return;
        }
        let root = StoredPtr {
            segment: frame.segment,
            offset: frame.offset,
            psize: header.psize,
            lsize: header.lsize,
            compression: header.compression,
            birth: header.birth,
            hash: header.hash,
        };
        let state = LostState { root, level: header.object };
        let known = roots.entry(header.birth).or_insert_with(|| state.clone());
        if known.level < state.level {
            *known = state;
        }
        if roots.len() > STATES_MAX {
            roots.pop_first();
        }
    }

    /// The uberblock of a state, without what only the uberblock knew: its time and its owner.
    ///
    /// # Errors
    /// `Corrupt` when a part of the meta tree is damaged or missing.
    pub(crate) fn uberblock(&self, io: &std::sync::Arc<Io>, state: &LostState) -> Result<Uberblock> {
        let record = TreeRecord { root: Some(state.root.clone()), ..TreeRecord::default() };
        let tree = Tree::new(TreeId::META, io.clone(), record);
        let view = tree.view();
        let (mut stats, mut lens) = (TreeStats::default(), BTreeMap::new());
        let mut holding = BTreeSet::from([state.root.segment]);
        for ptr in view.nodes_since(0) {
            let ptr = ptr?;
            stats.physical += ptr.asize();
            stats.logical += u64::from(ptr.lsize);
            holding.insert(ptr.segment);
        }
        for item in view.range(&[prefix::SEGMENT], Some(&[prefix::SEGMENT + 1])) {
            let (key, entry) = item?;
            let id = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            let Some(id) = id else {
                return Err(PoolError::record("segment record", "key of a wrong length"));
            };
            lens.insert(SegmentId(id), SegmentRecord::decode(&entry.value)?);
        }
        // A segment may have become longer after its record was written, because of nodes of the meta tree.
        let mut ends = Vec::new();
        for id in lens.keys().copied().chain(holding).collect::<BTreeSet<_>>() {
            let Some(&end) = self.ends.get(&id) else { continue };
            let known = lens.get(&id);
            if known.is_none_or(|record| record.len < end) {
                // A segment ends with the padding of a commit, unless it was full before.
                let len = end.next_multiple_of(COMMIT_ALIGN).min(self.lens.get(&id).copied().unwrap_or(end));
                ends.push(SegmentEnd { id, kind: known.map_or(Kind::Node, |it| it.kind), open: false, len });
            }
        }
        if ends.len() > ENDS_MAX {
            return Err(PoolError::record("segment records", format!("{} are out of date", ends.len())));
        }
        let mut next_tree = self.next_tree;
        for item in view.range(&[prefix::TREE], Some(&[prefix::TREE + 1])) {
            let (key, _) = item?;
            let id = key.get(1..).and_then(|id| id.try_into().ok()).map_or(0, u64::from_be_bytes);
            next_tree = next_tree.max(id.saturating_add(1));
        }
        let outside = view.get(&property_key(crate::format::outside::OUTSIDE_PROPERTY))?.is_some();
        let encryption = if io.is_sealed() { Features::ENCRYPTION } else { 0 };
        let parity = view.get(&property_key(PARITY))?.is_some();
        Ok(Uberblock {
            features: Features {
                incompat: encryption | if outside { Features::OUTSIDE } else { 0 },
                ro_compat: if parity { Features::PARITY } else { 0 },
                ..Features::default()
            },
            guid: self.guid,
            txg: state.txg(),
            time: 0,
            epoch: 0,
            base: 0,
            nonce: [0; 16],
            next_tree,
            next_segment: 1,
            allocated: lens.values().map(|record| record.live).sum::<u64>() + stats.physical,
            meta: TreeRecord { root: Some(state.root.clone()), stats, ..TreeRecord::default() },
            ends,
            sealed: None,
        })
    }
}
