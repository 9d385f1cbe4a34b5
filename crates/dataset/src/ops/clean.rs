//! Cleaning: reclaims dead space in segments that are not completely dead.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use snowmelt_pool::{
    BlockPtr, CleanOptions, CleanReport, Pool, PoolError, Roots, StoredPtr, TreeId, Turn, View,
};

use crate::catalog::keys;
use crate::catalog::record::SnapshotRecord;
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::objset::{Block, ObjsetKey};

/// Maximal number of rounds in one call.
const ROUNDS: usize = 64;

impl Datasets {
    /// Moves live blocks out of segments that are mostly dead, and deletes these segments, as long as that frees space.
    ///
    /// # Errors
    /// When the pool cannot be read or written.
    pub fn clean(&self, options: &CleanOptions) -> Result<CleanReport, DatasetError> {
        let mut total = CleanReport::default();
        for _ in 0..ROUNDS {
            let report = clean_once(self.pool(), &self.pool().turn(), options)?;
            total.add(&report);
            if report.freed == 0 {
                break;
            }
        }
        Ok(total)
    }
}

/// One round of cleaning.
pub(crate) fn clean_once(
    pool: &Pool,
    turn: &Turn<'_>,
    options: &CleanOptions,
) -> Result<CleanReport, DatasetError> {
    Ok(pool.clean(turn, &Live::default(), options)?)
}

/// Everything that is live according to the meta tree.
#[derive(Default)]
pub(super) struct Live {
    deadlists: OnceLock<BTreeSet<TreeId>>,
}

fn snapshots(meta: &View) -> impl Iterator<Item = Result<SnapshotRecord, PoolError>> {
    let decode = |value: &[u8]| SnapshotRecord::decode(value).map_err(pool_error);
    meta.range(&[keys::SNAPSHOT], Some(&[keys::SNAPSHOT + 1])).map(move |item| decode(&item?.1.value))
}

pub(super) fn pool_error(error: DatasetError) -> PoolError {
    match error {
        DatasetError::Pool(error) => error,
        other => PoolError::Record { record: "dataset layer", why: other.to_string() },
    }
}

impl Roots for Live {
    fn frozen(
        &self,
        meta: &View,
        each: &mut dyn FnMut(&str, Option<StoredPtr>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        for snapshot in snapshots(meta) {
            let snapshot = snapshot?;
            each(&snapshot.name, snapshot.root)?;
        }
        Ok(())
    }

    fn is_deadlist(&self, meta: &View, tree: TreeId) -> Result<bool, PoolError> {
        let deadlists = match self.deadlists.get() {
            Some(known) => known,
            None => {
                let found = snapshots(meta).filter_map(|it| it.map(|it| it.deadlist).transpose());
                let found = found.collect::<Result<_, _>>()?;
                self.deadlists.get_or_init(|| found)
            }
        };
        Ok(deadlists.contains(&tree))
    }

    fn pointers(
        &self,
        _tree: Option<TreeId>,
        key: &[u8],
        value: &[u8],
        each: &mut dyn FnMut(&BlockPtr),
    ) -> Result<(), PoolError> {
        if let ObjsetKey::Spill { .. } | ObjsetKey::Block { .. } =
            ObjsetKey::decode(key).map_err(pool_error)?
        {
            each(&Block::decode(value).map_err(pool_error)?.ptr);
        }
        Ok(())
    }
}
