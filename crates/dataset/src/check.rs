//! `check`: verifies every invariant of this layer, and through [`Pool::check`](snowmelt_pool::Pool::check) those of
//! the pool.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use snowmelt_pool::{
    BlockPtr, CheckOptions, CheckReport, Deadlist, Finding, Pool, PoolError, Roots, Severity, StoredPtr,
    TreeId, View, prefix,
};

use crate::catalog::record::{BookmarkRecord, DatasetRecord, ReceiveState, SnapshotRecord};
use crate::catalog::{DatasetId, ROOT, SnapshotId, encryption, keys};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::listing;
use crate::name::NESTING_MAX;
use crate::objset::ObjsetKey;
use crate::objset::value::{Block, BlockCrypt, Dnode};
use crate::objset::view::redaction_len;
use crate::source::SourceObject;

impl Datasets {
    /// Verifies the whole pool; see [`snowmelt_pool::Pool::check`]. Each finding is passed to `report`.
    ///
    /// # Errors
    /// Only errors that stop the check.
    pub fn check(
        &self,
        options: CheckOptions,
        report: &mut dyn FnMut(Finding),
    ) -> Result<CheckReport, DatasetError> {
        let mut errors = 0;
        self.pool().commit()?;
        let meta = self.pool().meta().view();
        let mut state = State::default();
        let mut fault = |place: String, what: String| {
            errors += 1;
            report(Finding { severity: Severity::Error, what, place });
        };
        match state.check_all(self.pool(), &meta, &mut fault) {
            Err(DatasetError::Pool(error)) if error.is_corruption() => fault(
                "the pool's records".to_owned(),
                format!("they cannot all be read, so not all names and relations were checked: {error}"),
            ),
            other => other?,
        }
        let mut summary = self.pool().check(&state, options, report)?;
        summary.errors += errors;
        Ok(summary)
    }
}

type Fault<'a> = dyn FnMut(String, String) + 'a;

/// All records of this layer.
#[derive(Default)]
struct State {
    datasets: BTreeMap<DatasetId, DatasetRecord>,
    snapshots: BTreeMap<SnapshotId, SnapshotRecord>,
    /// Deadlists of the snapshots.
    deadlists: BTreeSet<TreeId>,
    receives: BTreeMap<DatasetId, ReceiveState>,
}

impl State {
    fn check_all(&mut self, pool: &Pool, meta: &View, fault: &mut Fault<'_>) -> Result<(), DatasetError> {
        self.read(meta, fault)?;
        self.check_datasets(fault);
        self.check_snapshots(fault);
        self.check_indexes(meta, fault)?;
        self.check_trees(pool, meta, fault)?;
        self.check_deadlists(pool, fault)
    }

    fn read(&mut self, meta: &View, fault: &mut Fault<'_>) -> Result<(), DatasetError> {
        for item in range(meta, keys::DATASET) {
            let (key, value) = item?;
            let id = DatasetId(keys::number(&key, 1)?);
            match DatasetRecord::decode(&value) {
                Ok(record) => drop(self.datasets.insert(id, record)),
                Err(error) => fault(format!("dataset {}", id.0), error.to_string()),
            }
        }
        for item in range(meta, keys::SNAPSHOT) {
            let (key, value) = item?;
            let id = SnapshotId { dataset: DatasetId(keys::number(&key, 1)?), txg: keys::number(&key, 9)? };
            match SnapshotRecord::decode(&value) {
                Ok(record) => {
                    self.deadlists.extend(record.deadlist);
                    self.snapshots.insert(id, record);
                }
                Err(error) => fault(place(id), error.to_string()),
            }
        }
        for item in range(meta, keys::RECEIVE) {
            let (key, value) = item?;
            let id = DatasetId(keys::number(&key, 1)?);
            match ReceiveState::decode(&value) {
                Ok(record) => drop(self.receives.insert(id, record)),
                Err(error) => fault(format!("receive state of dataset {}", id.0), error.to_string()),
            }
        }
        Ok(())
    }

    fn check_datasets(&self, fault: &mut Fault<'_>) {
        if !self.datasets.contains_key(&ROOT) {
            fault("dataset 1".to_owned(), "the pool has no root dataset".to_owned());
        }
        for (id, record) in &self.datasets {
            let place = format!("dataset {} ({})", id.0, record.name);
            if !self.datasets.contains_key(&record.parent) {
                fault(place.clone(), format!("its parent, dataset {}, does not exist", record.parent.0));
            }
            if let Some(origin) = record.origin
                && !self.snapshots.contains_key(&origin)
            {
                fault(place.clone(), "its origin does not exist".to_owned());
            }
            if record.inconsistent && !self.receives.contains_key(id) {
                fault(place.clone(), "half received, and no receive knows of it".to_owned());
            }
            let mut at = *id;
            for _ in 0..=NESTING_MAX {
                match self.datasets.get(&at) {
                    Some(above) if at != ROOT => at = above.parent,
                    _ => break,
                }
            }
            if at != ROOT {
                fault(place, "its parents do not lead to the root".to_owned());
            }
        }
    }

    fn check_snapshots(&self, fault: &mut Fault<'_>) {
        for (id, record) in &self.snapshots {
            if !self.datasets.contains_key(&id.dataset) {
                fault(place(*id), "its dataset does not exist".to_owned());
            }
            if let Some(root) = &record.root
                && root.birth > id.txg
            {
                fault(place(*id), format!("its root was born in txg {}, after it", root.birth));
            }
        }
    }

    /// Checks that every index entry leads to a record that refers back to it.
    fn check_indexes(&self, meta: &View, fault: &mut Fault<'_>) -> Result<(), DatasetError> {
        let mut names = BTreeSet::new();
        for item in range(meta, keys::CHILD) {
            let (key, value) = item?;
            let (parent, name) = (DatasetId(keys::number(&key, 1)?), keys::text(&key, 9)?);
            let id = DatasetId(keys::number(&value, 0)?);
            names.insert(id);
            if self.datasets.get(&id).is_none_or(|record| record.parent != parent || record.name != name) {
                fault(
                    format!("name {name}"),
                    format!("leads to dataset {}, which is called otherwise", id.0),
                );
            }
        }
        for id in self.datasets.keys().filter(|id| **id != ROOT && !names.contains(id)) {
            fault(format!("dataset {}", id.0), "no name leads to it".to_owned());
        }
        self.check_snapshot_indexes(meta, fault)?;
        for item in range(meta, keys::CLONE) {
            let (key, _) = item?;
            let origin =
                SnapshotId { dataset: DatasetId(keys::number(&key, 1)?), txg: keys::number(&key, 9)? };
            let clone = DatasetId(keys::number(&key, 17)?);
            if self.datasets.get(&clone).is_none_or(|record| record.origin != Some(origin)) {
                fault(place(origin), format!("dataset {} is listed as its clone and is none", clone.0));
            }
        }
        for (id, origin) in self.datasets.iter().filter_map(|(id, record)| Some((id, record.origin?))) {
            if meta.get(&keys::clone(origin.dataset, origin.txg, *id))?.is_none() {
                fault(place(origin), format!("dataset {} is its clone and is not listed", id.0));
            }
        }
        for prefix in [keys::HOLD, keys::PROPERTY, keys::KEY_DATA] {
            for item in range(meta, prefix) {
                let (key, _) = item?;
                let id =
                    SnapshotId { dataset: DatasetId(keys::number(&key, 1)?), txg: keys::number(&key, 9)? };
                let exists = match id.txg {
                    0 => self.datasets.contains_key(&id.dataset),
                    _ => self.snapshots.contains_key(&id),
                };
                if !exists {
                    fault(place(id), format!("record {prefix:#x} belongs to something that does not exist"));
                }
            }
        }
        for item in range(meta, keys::KEY_ROOT) {
            let (key, value) = item?;
            let id = DatasetId(keys::number(&key, 1)?);
            match encryption::decode(&value) {
                Ok(root) if self.datasets.contains_key(&id) && self.datasets.contains_key(&root) => {}
                Ok(root) => fault(
                    format!("dataset {}", id.0),
                    format!("it inherits its key from dataset {}, and one of them does not exist", root.0),
                ),
                Err(error) => fault(format!("dataset {}", id.0), error.to_string()),
            }
        }
        for item in range(meta, keys::SOURCE) {
            let (key, value) = item?;
            let id = DatasetId(keys::number(&key, 1)?);
            if !self.datasets.contains_key(&id) || SourceObject::decode(&value).is_err() {
                fault(format!("source files of dataset {}", id.0), "no dataset, or no record".to_owned());
            }
        }
        for item in range(meta, keys::LISTING) {
            let (key, value) = item?;
            let id = DatasetId(keys::number(&key, 1)?);
            if !self.datasets.contains_key(&id) || !listing::is_record(&key, &value) {
                fault(format!("listings of dataset {}", id.0), "no dataset, or no record".to_owned());
            }
        }
        for item in range(meta, keys::BOOKMARK) {
            let (key, value) = item?;
            let (id, name) = (DatasetId(keys::number(&key, 1)?), keys::text(&key, 9)?);
            if !self.datasets.contains_key(&id) {
                fault(format!("bookmark {name}"), format!("its dataset {} does not exist", id.0));
            }
            if let Err(error) = BookmarkRecord::decode(&value) {
                fault(format!("bookmark {name}"), error.to_string());
            }
        }
        Ok(())
    }

    fn check_snapshot_indexes(&self, meta: &View, fault: &mut Fault<'_>) -> Result<(), DatasetError> {
        let mut named = BTreeSet::new();
        for item in range(meta, keys::SNAPSHOT_NAME) {
            let (key, value) = item?;
            let name = keys::text(&key, 9)?;
            let id = SnapshotId { dataset: DatasetId(keys::number(&key, 1)?), txg: keys::number(&value, 0)? };
            named.insert(id);
            if self.snapshots.get(&id).is_none_or(|record| record.name != name) {
                fault(place(id), format!("the name {name} leads to it, and it is called otherwise"));
            }
        }
        let mut by_guid = BTreeSet::new();
        for item in range(meta, keys::GUID) {
            let (key, _) = item?;
            let id = SnapshotId { dataset: DatasetId(keys::number(&key, 9)?), txg: keys::number(&key, 17)? };
            let guid = keys::number(&key, 1)?;
            by_guid.insert(id);
            if self.snapshots.get(&id).is_none_or(|record| record.guid != guid) {
                fault(place(id), format!("guid {guid:#x} leads to it, and it has another"));
            }
        }
        for id in self.snapshots.keys() {
            if !named.contains(id) || !by_guid.contains(id) {
                fault(place(*id), "no name, or no guid, leads to it".to_owned());
            }
        }
        Ok(())
    }

    /// Checks that every tree of the pool has an owner: nothing would ever free a tree without one.
    fn check_trees(&self, pool: &Pool, meta: &View, fault: &mut Fault<'_>) -> Result<(), DatasetError> {
        let mut owned: BTreeSet<TreeId> = self.datasets.values().map(|record| record.head).collect();
        owned.extend(&self.deadlists);
        owned.extend(self.receives.values().map(|state| state.tree));
        let mut trees = BTreeSet::new();
        for item in range(meta, prefix::TREE) {
            trees.insert(TreeId(keys::number(&item?.0, 1)?));
        }
        for tree in &owned {
            if !trees.contains(tree) {
                fault(
                    format!("tree {}", tree.0),
                    "a dataset, snapshot or receive names it, and it is not there".to_owned(),
                );
            }
        }
        let deadlists = self.live_deadlists(pool)?;
        for tree in trees.difference(&owned) {
            if !deadlists.contains(tree) {
                fault(format!("tree {}", tree.0), "it belongs to nothing".to_owned());
            }
        }
        Ok(())
    }

    /// Checks that a block is in only one deadlist of the dataset that it was born in; otherwise it would be freed
    /// twice. The deadlists of clones also hold blocks of the origin, which are never freed from there.
    fn check_deadlists(&self, pool: &Pool, fault: &mut Fault<'_>) -> Result<(), DatasetError> {
        let (mut seen, mut nodes) = (BTreeSet::new(), HashSet::new());
        for (id, record) in &self.datasets {
            let born_here = record.origin.map_or(0, |origin| origin.txg);
            let from = SnapshotId { dataset: *id, txg: 0 };
            let to = SnapshotId { dataset: *id, txg: u64::MAX };
            let mut deadlists: Vec<_> =
                self.snapshots.range(from..to).filter_map(|(_, record)| record.deadlist).collect();
            if let Ok(head) = pool.tree(record.head) {
                deadlists.extend(head.sharing().1);
            }
            for deadlist in deadlists {
                let entries = match Deadlist::open(pool, deadlist) {
                    // Any number of records can name the same deadlist, or lead to the same nodes.
                    Ok(opened) if !is_alone(&opened, &mut nodes)? => {
                        let what = "it is named twice, or shares nodes with another deadlist".to_owned();
                        fault(format!("deadlist {}", deadlist.0), what);
                        continue;
                    }
                    Ok(opened) => opened.entries(),
                    // Already reported.
                    Err(PoolError::NoTree(_)) => continue,
                    Err(error) if error.is_corruption() => {
                        fault(format!("dataset {} ({})", id.0, record.name), error.to_string());
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                for dead in entries {
                    let dead = dead?;
                    if dead.birth > born_here && !seen.insert((dead.segment, dead.offset)) {
                        let what = format!("block {:?}:{} is in two deadlists", dead.segment, dead.offset);
                        fault(format!("deadlist {}", deadlist.0), what);
                    }
                }
            }
        }
        Ok(())
    }

    /// The deadlists of trees that are not frozen.
    fn live_deadlists(&self, pool: &Pool) -> Result<BTreeSet<TreeId>, DatasetError> {
        let heads = self.datasets.values().map(|record| record.head);
        let trees = heads.chain(self.receives.values().map(|state| state.tree));
        let mut found = BTreeSet::new();
        for tree in trees {
            match pool.tree(tree) {
                Ok(tree) => found.extend(tree.sharing().1),
                // Already reported.
                Err(PoolError::NoTree(_)) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Ok(found)
    }
}

/// Whether no earlier deadlist has a node of this one. Adds its nodes to `nodes`.
fn is_alone(deadlist: &Deadlist, nodes: &mut HashSet<(u64, u32)>) -> Result<bool, PoolError> {
    for node in deadlist.nodes() {
        let node = node?;
        if !nodes.insert((node.segment.0, node.offset)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn place(id: SnapshotId) -> String {
    format!("snapshot of dataset {} at txg {}", id.dataset.0, id.txg)
}

fn range(meta: &View, prefix: u8) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), DatasetError>> {
    meta.range(&[prefix], Some(&[prefix + 1])).map(|item| {
        let (key, entry) = item?;
        Ok((key.to_vec(), entry.value.to_vec()))
    })
}

impl Roots for State {
    fn frozen(
        &self,
        _meta: &View,
        each: &mut dyn FnMut(&str, Option<StoredPtr>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        for (id, record) in &self.snapshots {
            let dataset = self.datasets.get(&id.dataset).map_or("?", |dataset| &dataset.name);
            each(&format!("{dataset}@{}", record.name), record.root.clone())?;
        }
        Ok(())
    }

    fn is_deadlist(&self, _meta: &View, tree: TreeId) -> Result<bool, PoolError> {
        Ok(self.deadlists.contains(&tree))
    }

    fn pointers(
        &self,
        _tree: Option<TreeId>,
        key: &[u8],
        value: &[u8],
        each: &mut dyn FnMut(&BlockPtr),
    ) -> Result<(), PoolError> {
        let decoded = (|| -> Result<(), DatasetError> {
            match ObjsetKey::decode(key)? {
                ObjsetKey::Spill { .. } | ObjsetKey::Block { .. } => each(&Block::decode(value)?.ptr),
                ObjsetKey::Dnode { .. } => drop(Dnode::decode(value)?),
                ObjsetKey::Range { .. } => drop(BlockCrypt::decode_range(value)?),
                ObjsetKey::Redaction { .. } => drop(redaction_len(value)?),
            }
            Ok(())
        })();
        decoded.map_err(|error| PoolError::Record { record: "objset entry", why: error.to_string() })
    }
}
