//! Finds the objects, datasets and snapshots that damaged blocks belong to.

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use snowmelt_pool::{Damage, DamageOwner, Kind as BlockKind, TreeId, Txg, View};

use crate::catalog::{Catalog, Dataset, DatasetId, Snapshot};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::objset::key::OBJECT_MAX;
use crate::objset::{Block, Objset, ObjsetKey};

/// Maximal number of reported objects.
const OBJECTS_MAX: usize = 100_000;

/// The owner of a damaged block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damaged {
    /// Objects of a dataset or snapshot.
    Objects {
        /// Its full name.
        name: String,
        /// The dataset, or the dataset of the snapshot.
        dataset: DatasetId,
        /// The snapshot's txg; 0 for the dataset itself.
        txg: Txg,
        /// First object.
        first: u64,
        /// Last object; equal to `first` for a data block.
        last: u64,
    },
    /// The pool's own records.
    Metadata,
    /// The owner is unknown: numbers of the tree and object, or of the segment and offset.
    Unknown(u64, u64),
}

/// A damaged block, and how to find it in a tree.
struct Sought<'a> {
    damage: &'a Damage,
    key: &'a [u8],
    objects: RangeInclusive<u64>,
}

impl Sought<'_> {
    fn is_in(&self, view: &View) -> Result<bool, DatasetError> {
        let place = (self.damage.segment, self.damage.offset);
        if self.damage.kind == BlockKind::Node {
            return Ok(view.passes(self.key, place)?);
        }
        let entry = match view.get(self.key) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(false),
            // A node on the path is damaged as well, and reported by itself.
            Err(error) if error.is_corruption() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        Ok(Block::decode(&entry.value)?.ptr.place() == Some(place))
    }
}

impl Datasets {
    /// The objects with known damage, in order of their names, each once. Blocks that nothing uses any more are left
    /// out.
    ///
    /// # Errors
    /// When the pool's records cannot be read.
    pub fn damaged(&self) -> Result<Vec<Damaged>, DatasetError> {
        let catalog = self.catalog();
        let mut out = BTreeSet::new();
        for damage in self.pool().damage()? {
            if out.len() >= OBJECTS_MAX {
                break;
            }
            catalog.damaged(&damage, &mut out)?;
        }
        Ok(out.into_iter().collect())
    }
}

impl Catalog {
    /// Adds the owners of a damaged block.
    pub(super) fn damaged(&self, damage: &Damage, out: &mut BTreeSet<Damaged>) -> Result<(), DatasetError> {
        let written;
        let (owner, key, high) = match &damage.owner {
            DamageOwner::Pool => {
                out.insert(Damaged::Metadata);
                return Ok(());
            }
            DamageOwner::Root { owner, key, high, .. } => (DatasetId(*owner), key, high.as_deref()),
            DamageOwner::Written { tree, object, blkid } => {
                let owner = self.owner_of(*tree)?.filter(|_| damage.kind == BlockKind::Data);
                let Some(owner) = owner else {
                    out.insert(match damage.kind {
                        BlockKind::Data => Damaged::Unknown(tree.0, *object),
                        BlockKind::Node => Damaged::Unknown(tree.0, 0),
                    });
                    return Ok(());
                };
                written = match *blkid {
                    u64::MAX => ObjsetKey::Spill { object: *object }.encode(),
                    blkid => ObjsetKey::Block { object: *object, blkid }.encode(),
                };
                (owner, &written, None)
            }
            DamageOwner::Unknown => {
                out.insert(Damaged::Unknown(damage.segment.0, damage.offset.into()));
                return Ok(());
            }
        };
        let object = |key: &[u8]| ObjsetKey::decode(key).map(ObjsetKey::object);
        let objects = match damage.kind {
            BlockKind::Data => object(key)?..=object(key)?,
            // A bound is as short as possible, so it may be shorter than a key.
            BlockKind::Node => {
                leading_object(key, 0)..=high.map_or(OBJECT_MAX, |high| leading_object(high, OBJECT_MAX))
            }
        };
        self.find_damaged(owner, &Sought { damage, key, objects }, out)
    }

    /// A block is in all snapshots from its birth until it was released, and in their clones.
    fn find_damaged(
        &self,
        owner: DatasetId,
        sought: &Sought<'_>,
        out: &mut BTreeSet<Damaged>,
    ) -> Result<(), DatasetError> {
        let born = sought.damage.birth;
        let Some(mut dataset) = self.if_there(owner)? else { return Ok(()) };
        // A promotion may have moved the snapshots to the origin's dataset.
        let mut left = 1000;
        while let Some(origin) = dataset.record.origin.filter(|origin| origin.txg >= born && left > 0) {
            let Some(above) = self.if_there(origin.dataset)? else { break };
            dataset = above;
            left -= 1;
        }
        let mut branches = VecDeque::from([(dataset, born.saturating_sub(1))]);
        let mut seen = BTreeSet::new();
        while let Some((dataset, after)) = branches.pop_front() {
            if out.len() >= OBJECTS_MAX || !seen.insert(dataset.id) {
                continue;
            }
            let mut lasted = true;
            for snapshot in self.snapshots_after(&dataset, after) {
                let snapshot = snapshot?;
                lasted = sought.is_in(&self.pool().view(snapshot.record.root.clone()))?;
                if !lasted {
                    break;
                }
                out.insert(found(sought, &dataset, Some(&snapshot)));
                for clone in self.clones(snapshot.id)? {
                    branches.push_back((clone, snapshot.id.txg));
                }
            }
            if lasted && sought.is_in(&self.pool().tree(dataset.record.head)?.view())? {
                out.insert(found(sought, &dataset, None));
            }
        }
        Ok(())
    }

    fn if_there(&self, id: DatasetId) -> Result<Option<Dataset>, DatasetError> {
        match self.meta().get(&crate::catalog::keys::dataset(id))? {
            Some(_) => self.dataset_by_id(id).map(Some),
            None => Ok(None),
        }
    }

    /// The dataset that has a tree as its head.
    fn owner_of(&self, tree: TreeId) -> Result<Option<DatasetId>, DatasetError> {
        let all = self.descendants(self.root()?)?;
        Ok(all.into_iter().find(|dataset| dataset.record.head == tree).map(|dataset| dataset.id))
    }

    /// The objset that contains a damaged object.
    ///
    /// # Errors
    /// When it does not exist any more, or cannot be read.
    pub fn objset_of(&self, dataset: DatasetId, txg: Txg) -> Result<Objset, DatasetError> {
        match txg {
            0 => self.head(&self.dataset_by_id(dataset)?),
            txg => Ok(self.objset(&self.snapshot_by_id(crate::catalog::SnapshotId { dataset, txg })?)),
        }
    }
}

fn found(sought: &Sought<'_>, dataset: &Dataset, snapshot: Option<&Snapshot>) -> Damaged {
    Damaged::Objects {
        name: snapshot.map_or_else(|| dataset.name.clone(), Snapshot::full_name),
        dataset: dataset.id,
        txg: snapshot.map_or(0, |snapshot| snapshot.id.txg),
        first: *sought.objects.start(),
        last: *sought.objects.end(),
    }
}

/// The object number at the beginning of a node's bound.
fn leading_object(bound: &[u8], none: u64) -> u64 {
    if bound.is_empty() {
        return none;
    }
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(bound) {
        *to = *from;
    }
    u64::from_be_bytes(bytes)
}
