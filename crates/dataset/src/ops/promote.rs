//! `promote`: exchanges the roles of a clone and its origin.
//!
//! The snapshots up to the origin move to the clone, and the old owner becomes a clone of the same snapshot. Deadlists
//! do not change: in both datasets, the deadlist of the first point after the origin already holds the blocks of the
//! origin that are no longer used.

use crate::catalog::{Catalog, Dataset, SnapshotId, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;

impl Datasets {
    /// Promotes a clone.
    ///
    /// # Errors
    /// [`DatasetError::NotAClone`]; [`DatasetError::Exists`] when a snapshot that would move has the name of one of the
    /// clone's own; [`DatasetError::OutOfSpace`] when they do not fit below the clone's parents.
    pub fn promote(&self, name: &str) -> Result<(), DatasetError> {
        let name = Name::parse_dataset(name)?;
        let change = self.change_if(|catalog| self.check_promotion(catalog, name.dataset()))?;
        let catalog = change.catalog();
        let clone = catalog.dataset(name.dataset())?;
        let origin =
            clone.record.origin.ok_or_else(|| DatasetError::NotAClone { name: clone.name.clone() })?;
        let owner = catalog.dataset_by_id(origin.dataset)?;
        if self.is_receiving(clone.id) || self.is_receiving(owner.id) {
            return Err(DatasetError::Busy { name: clone.name });
        }
        let mut moving = Vec::new();
        for snapshot in catalog.snapshots(&owner) {
            let snapshot = snapshot?;
            if snapshot.id.txg > origin.txg {
                break;
            }
            let target = Name::parse(&format!("{}@{}", clone.name, snapshot.record.name))?;
            if catalog.snapshot(&target).is_ok() {
                return Err(DatasetError::Exists { name: target.to_string() });
            }
            if catalog.is_receive_base(snapshot.id)? {
                return Err(DatasetError::Busy { name: owner.name.clone() });
            }
            if let Some(receiving) = catalog.clone_received_on(snapshot.id)? {
                return Err(DatasetError::Busy { name: receiving.name });
            }
            moving.push(snapshot.id);
        }
        for id in moving {
            change.move_snapshot(id, &clone)?;
        }
        let swapped = SnapshotId { dataset: clone.id, txg: origin.txg };
        change.delete(&keys::clone(clone.id, origin.txg, clone.id))?;
        change.put(&keys::clone(clone.id, origin.txg, owner.id), &[])?;
        let (mut up, mut down) = (clone.record.clone(), owner.record.clone());
        up.origin = owner.record.origin;
        down.origin = Some(swapped);
        if let Some(above) = owner.record.origin {
            change.delete(&keys::clone(above.dataset, above.txg, owner.id))?;
            change.put(&keys::clone(above.dataset, above.txg, clone.id), &[])?;
        }
        change.put_dataset(clone.id, &up)?;
        change.put_dataset(owner.id, &down)?;
        change.move_encryption_root(owner.id, clone.id)?;
        change.commit()
    }
}

impl Datasets {
    /// Checks whether the snapshots that would move fit into the limits of the clone.
    fn check_promotion(&self, catalog: &Catalog, name: &str) -> Result<(), DatasetError> {
        let Ok(clone) = catalog.dataset(name) else { return Ok(()) };
        let Some(origin) = clone.record.origin else { return Ok(()) };
        self.try_limits(|table, free| {
            let owner = catalog.dataset_by_id(origin.dataset)?;
            let moving = catalog.space_until(&owner, &catalog.snapshot_by_id(origin)?)?;
            table.transfer_snapshots(owner.id, clone.id, moving, &clone.name, free)
        })
    }
}

impl Change<'_> {
    /// Moves a snapshot with all its records, and the references of its clones, to another dataset.
    fn move_snapshot(&self, from: SnapshotId, to: &Dataset) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let snapshot = catalog.snapshot_by_id(from)?;
        let (id, txg) = (to.id, from.txg);
        self.delete(&keys::snapshot(from.dataset, txg))?;
        self.put(&keys::snapshot(id, txg), &snapshot.record.encode())?;
        self.delete(&keys::snapshot_name(from.dataset, &snapshot.record.name))?;
        self.put(&keys::snapshot_name(id, &snapshot.record.name), &txg.to_be_bytes())?;
        self.delete(&keys::guid(snapshot.record.guid, from.dataset, txg))?;
        self.put(&keys::guid(snapshot.record.guid, id, txg), &[])?;
        for (tag, when) in catalog.holds(from)? {
            self.delete(&keys::hold(from.dataset, txg, &tag))?;
            self.put(&keys::hold(id, txg, &tag), &when.to_be_bytes())?;
        }
        for property in catalog.stored_properties(from.dataset, txg)? {
            self.delete(&keys::property(from.dataset, txg, property.kind.code(), &property.name))?;
            self.put(
                &keys::property(id, txg, property.kind.code(), &property.name),
                property.value.as_bytes(),
            )?;
        }
        if let Some(key_data) = catalog.key_data(from.dataset, txg)? {
            self.delete(&keys::key_data(from.dataset, txg))?;
            self.put(&keys::key_data(id, txg), &key_data)?;
        }
        for clone in catalog.clones(from)? {
            self.delete(&keys::clone(from.dataset, txg, clone.id))?;
            self.put(&keys::clone(id, txg, clone.id), &[])?;
            if clone.id != id {
                let mut record = clone.record;
                record.origin = Some(SnapshotId { dataset: id, txg });
                self.put_dataset(clone.id, &record)?;
            }
        }
        Ok(())
    }
}
