//! Healing from a replica: requests exactly the damaged blocks, by snapshot, object and block number. A received block
//! is used only if it has the content of the damaged one.

use std::collections::BTreeSet;

use snowmelt_pool::{
    BlockId, BlockPtr, Damage, DamageOwner, Kind as BlockKind, MendReport, Mending, Prepared,
};

use super::damage::Damaged;
use crate::catalog::{Catalog, Dataset, Snapshot};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::objset::{Block, ObjsetKey};
use crate::receive::corrective::candidates;

/// Maximal number of requested blocks.
const WANTED_MAX: usize = 100_000;

/// Identifies a block in every copy of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName {
    /// The snapshot's guid.
    pub snapshot: u64,
    /// The object.
    pub object: u64,
    /// Block number; `None` for the spill block.
    pub blkid: Option<u64>,
}

impl BlockName {
    fn key(&self) -> ObjsetKey {
        match self.blkid {
            Some(blkid) => ObjsetKey::Block { object: self.object, blkid },
            None => ObjsetKey::Spill { object: self.object },
        }
    }
}

/// The request to a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Damaged blocks that the replica's snapshots should contain, each once.
    pub blocks: Vec<BlockName>,
    /// Number of other damaged blocks: metadata, or in no snapshot that both sides have.
    pub others: u64,
}

impl Datasets {
    /// The damaged blocks of a dataset and its snapshots that a replica with the snapshots of these guids should have.
    ///
    /// # Errors
    /// When the dataset does not exist, or the pool's records cannot be read.
    pub fn wanted(&self, dataset: &str, snapshots: &BTreeSet<u64>) -> Result<Wanted, DatasetError> {
        let catalog = self.catalog();
        let here = catalog.dataset(dataset)?;
        let mut wanted = Wanted::default();
        for damage in self.pool().damage()? {
            let mut users = BTreeSet::new();
            catalog.damaged(&damage, &mut users)?;
            let mut txgs = users.iter().filter_map(|user| match user {
                Damaged::Objects { dataset, txg, .. } if *dataset == here.id => Some(*txg),
                _ => None,
            });
            let mut is_here = false;
            let common = txgs.find_map(|txg| {
                is_here = true;
                let id = crate::catalog::SnapshotId { dataset: here.id, txg };
                let snapshot = if txg == 0 { None } else { catalog.snapshot_by_id(id).ok() };
                snapshot.filter(|snapshot| snapshots.contains(&snapshot.record.guid))
            });
            let name = common.and_then(|snapshot| name_of(&damage, snapshot.record.guid));
            match name.filter(|_| wanted.blocks.len() < WANTED_MAX) {
                Some(name) => wanted.blocks.push(name),
                None => wanted.others += u64::from(is_here),
            }
        }
        Ok(wanted)
    }

    /// The stored form of a block in a snapshot of `dataset`; `None` if there is no such block, or it is damaged here
    /// too.
    ///
    /// # Errors
    /// When the pool cannot be read for another reason.
    pub fn stored_block(&self, dataset: &str, name: &BlockName) -> Result<Option<Prepared>, DatasetError> {
        let catalog = self.catalog();
        let here = catalog.dataset(dataset)?;
        let Some(ptr) = pointer(&catalog, &here, name)? else { return Ok(None) };
        match self.pool().read_stored(&ptr) {
            Ok(bytes) => Ok(Some(Prepared::stored(bytes, ptr.lsize(), ptr.compression()))),
            Err(error) if error.is_corruption() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins to repair blocks of a dataset and its snapshots.
    ///
    /// # Errors
    /// When the dataset does not exist.
    pub fn healing(&self, dataset: &str) -> Result<Healing<'_>, DatasetError> {
        let mending = self.pool().mending();
        let catalog = self.catalog();
        let dataset = catalog.dataset(dataset)?;
        Ok(Healing { catalog, dataset, mending })
    }
}

/// The repair of a dataset's blocks.
pub struct Healing<'a> {
    catalog: Catalog,
    dataset: Dataset,
    mending: Mending<'a>,
}

impl Healing<'_> {
    /// Offers a block in any compression. Returns whether it matches the damaged block. An intact block is not changed.
    ///
    /// # Errors
    /// When the pool cannot be read or written.
    pub fn offer(&mut self, name: &BlockName, came: Prepared) -> Result<bool, DatasetError> {
        let Some(BlockPtr::Stored(ptr)) = pointer(&self.catalog, &self.dataset, name)? else {
            return Ok(false);
        };
        if self.catalog.pool().is_sound(&ptr)? {
            return Ok(true);
        }
        let id = BlockId { object: name.object, blkid: name.blkid.unwrap_or(u64::MAX) };
        for good in candidates(came, &ptr) {
            if self.mending.offer(&ptr, self.dataset.record.head, id, &good)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the remaining blocks.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn finish(self) -> Result<MendReport, DatasetError> {
        Ok(self.mending.finish()?)
    }
}

fn snapshot_of(catalog: &Catalog, dataset: &Dataset, guid: u64) -> Result<Option<Snapshot>, DatasetError> {
    let found = catalog.snapshots_by_guid(guid)?;
    Ok(found.into_iter().find(|snapshot| snapshot.id.dataset == dataset.id))
}

fn pointer(catalog: &Catalog, dataset: &Dataset, name: &BlockName) -> Result<Option<BlockPtr>, DatasetError> {
    let Some(snapshot) = snapshot_of(catalog, dataset, name.snapshot)? else { return Ok(None) };
    match catalog.objset(&snapshot).view().get(&name.key().encode()) {
        Ok(Some(entry)) => Ok(Some(Block::decode(&entry.value)?.ptr)),
        Ok(None) => Ok(None),
        Err(error) if error.is_corruption() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The name of a damaged data block. Metadata exists only in this pool and has no name.
fn name_of(damage: &Damage, snapshot: u64) -> Option<BlockName> {
    let name = |object, blkid| BlockName { snapshot, object, blkid };
    match &damage.owner {
        _ if damage.kind == BlockKind::Node => None,
        DamageOwner::Root { key, .. } => match ObjsetKey::decode(key).ok()? {
            ObjsetKey::Block { object, blkid } => Some(name(object, Some(blkid))),
            ObjsetKey::Spill { object } => Some(name(object, None)),
            _ => None,
        },
        DamageOwner::Written { object, blkid, .. } => {
            Some(name(*object, Some(*blkid).filter(|blkid| *blkid != u64::MAX)))
        }
        _ => None,
    }
}
