//! Scrubbing: the roots to read, for the pool's scrub.

use std::collections::BTreeMap;

use snowmelt_pool::{
    BlockId, FrozenRoot, LiveRoot, MetaScan, PoolError, ScrubOptions, ScrubPlan, ScrubRoots, ScrubStatus,
    TreeId, Txg,
};

use super::clean::{Live, pool_error};
use crate::catalog::record::{DatasetRecord, ReceiveState, SnapshotRecord};
use crate::catalog::{DatasetId, ROOT, SnapshotId, keys};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::objset::ObjsetKey;

impl Datasets {
    /// Scrubs the pool; see [`snowmelt_pool::Pool::scrub`].
    ///
    /// # Errors
    /// As [`snowmelt_pool::Pool::scrub`].
    pub fn scrub(
        &self,
        options: &ScrubOptions<'_>,
        begun: &mut dyn FnMut(&ScrubStatus),
    ) -> Result<ScrubStatus, DatasetError> {
        Ok(self.pool().scrub(&Live::default(), options, begun)?)
    }
}

/// The id at the beginning of a key.
fn id_of(key: &[u8]) -> Result<DatasetId, PoolError> {
    Ok(DatasetId(keys::number(key, 1).map_err(pool_error)?))
}

impl ScrubRoots for Live {
    fn plan(&self, meta: &MetaScan<'_>, frozen_until: Txg) -> Result<ScrubPlan, PoolError> {
        // Records that do not decode were written like that; `check` reports them.
        let mut datasets = BTreeMap::new();
        meta.range(&[keys::DATASET], &[keys::DATASET + 1], &mut |key, entry| {
            if let (Ok(id), Ok(record)) = (id_of(key), DatasetRecord::decode(&entry.value)) {
                datasets.insert(id, record);
            }
            Ok(())
        })?;
        let origin = |id: DatasetId| {
            let origin = datasets.get(&id).and_then(|record| record.origin);
            origin.map_or(0, |origin| origin.txg)
        };
        let head = |id: DatasetId| datasets.get(&id).map_or(TreeId(ROOT.0), |record| record.head);
        let mut plan = ScrubPlan::default();
        // The snapshot seen last, and for each dataset the newest one up to `frozen_until`.
        let mut before: Option<SnapshotId> = None;
        let mut newest: BTreeMap<DatasetId, Txg> = BTreeMap::new();
        meta.range(&[keys::SNAPSHOT], &[keys::SNAPSHOT + 1], &mut |key, entry| {
            let (Ok(dataset), Ok(txg)) = (id_of(key), keys::number(key, 9)) else { return Ok(()) };
            let Ok(SnapshotRecord { guid, root, .. }) = SnapshotRecord::decode(&entry.value) else {
                return Ok(());
            };
            let since = before.filter(|before| before.dataset == dataset).map(|before| before.txg);
            let since = since.unwrap_or_else(|| origin(dataset));
            plan.frozen.push(FrozenRoot { owner: dataset.0, tree: head(dataset), txg, guid, since, root });
            before = Some(SnapshotId { dataset, txg });
            if txg <= frozen_until {
                newest.insert(dataset, txg);
            }
            Ok(())
        })?;
        for (id, record) in &datasets {
            let since = newest.get(id).copied().unwrap_or_else(|| origin(*id));
            plan.live.insert(record.head, LiveRoot { owner: id.0, since });
        }
        meta.range(&[keys::RECEIVE], &[keys::RECEIVE + 1], &mut |key, entry| {
            if let (Ok(id), Ok(state)) = (id_of(key), ReceiveState::decode(&entry.value)) {
                let since = state.base.map_or(0, |base| base.txg);
                plan.live.insert(state.tree, LiveRoot { owner: id.0, since });
            }
            Ok(())
        })?;
        Ok(plan)
    }

    fn block_id(&self, key: &[u8]) -> BlockId {
        match ObjsetKey::decode(key) {
            Ok(ObjsetKey::Block { object, blkid }) => BlockId { object, blkid },
            Ok(key) => BlockId { object: key.object(), blkid: u64::MAX },
            Err(_) => BlockId { object: 0, blkid: 0 },
        }
    }
}
