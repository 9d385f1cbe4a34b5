//! `snapshot`: freezes heads.

use snowmelt_pool::TreeId;

use crate::catalog::record::SnapshotRecord;
use crate::catalog::{Dataset, PropertyKind, SnapshotId, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;
use crate::random;

/// Name and identity of a new snapshot.
pub(crate) struct SnapshotIdentity {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) creation: u64,
}

impl Datasets {
    /// Takes snapshots of several datasets at the same moment: all or none.
    ///
    /// # Errors
    /// When one exists, its dataset does not exist, or the pool cannot be written; [`DatasetError::OutOfSpace`] when
    /// space that only the head uses cannot be kept free once more, as its `refreservation` requires.
    pub fn snapshot(&self, names: &[Name], properties: &[(String, String)]) -> Result<(), DatasetError> {
        self.sync_change(|change| change.take_snapshots(names, properties))
    }
}

impl Change<'_> {
    fn take_snapshots(&self, names: &[Name], properties: &[(String, String)]) -> Result<(), DatasetError> {
        let creation = random::now();
        let catalog = self.catalog();
        let mut targets = Vec::new();
        for name in names {
            let short = name.snapshot().ok_or_else(|| DatasetError::WrongType { name: name.to_string() })?;
            let dataset = catalog.dataset(name.dataset())?;
            if catalog.snapshot(name).is_ok() || targets.iter().any(|(_, _, full)| full == name) {
                return Err(DatasetError::Exists { name: name.to_string() });
            }
            if targets.iter().any(|(other, ..): &(Dataset, String, Name)| other.id == dataset.id) {
                return Err(DatasetError::refused(
                    name.to_string(),
                    "multiple snapshots of same fs not allowed",
                ));
            }
            if dataset.record.inconsistent {
                return Err(DatasetError::Busy { name: dataset.name });
            }
            targets.push((dataset, short.to_owned(), name.clone()));
        }
        self.datasets.try_limits(|table, free| {
            targets
                .iter()
                .try_for_each(|(dataset, _, name)| table.take_snapshot(dataset.id, &name.to_string(), free))
        })?;
        for (mut dataset, short, _) in targets {
            let identity = SnapshotIdentity { name: short, guid: random::guid(), creation };
            let snapshot = self.take_snapshot(&mut dataset, identity)?;
            for (property, value) in properties {
                let key =
                    keys::property(snapshot.dataset, snapshot.txg, PropertyKind::Local.code(), property);
                self.put(&key, value.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Freezes a head as its newest snapshot. Must be called only in a sync task: the head must not be written later in
    /// the snapshot's txg.
    pub(crate) fn take_snapshot(
        &self,
        dataset: &mut Dataset,
        identity: SnapshotIdentity,
    ) -> Result<SnapshotId, DatasetError> {
        let head = self.pool().tree(dataset.record.head)?;
        let id = SnapshotId { dataset: dataset.id, txg: self.txg() };
        let record = SnapshotRecord {
            name: identity.name,
            guid: identity.guid,
            creation: identity.creation,
            root: head.freeze(&self.hold)?,
            stats: head.stats(),
            deadlist: head.sharing().1,
            content: dataset.record.content,
            defer_destroy: false,
        };
        self.datasets.limits.snapshot_taken(id.dataset);
        let fresh: TreeId = self.pool().create_tree(&self.hold)?.id();
        head.set_sharing(&self.hold, id.txg, Some(fresh))?;
        self.put(&keys::snapshot(id.dataset, id.txg), &record.encode())?;
        self.put(&keys::snapshot_name(id.dataset, &record.name), &id.txg.to_be_bytes())?;
        self.put(&keys::guid(record.guid, id.dataset, id.txg), &[])?;
        if let Some(key_data) = self.catalog().key_data(dataset.id, 0)? {
            self.put(&keys::key_data(id.dataset, id.txg), &key_data)?;
        }
        Ok(id)
    }
}
