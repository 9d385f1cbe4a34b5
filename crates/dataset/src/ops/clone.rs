//! `clone`: creates a dataset with the content of a snapshot, without copying.

use crate::catalog::{PropertyKind, keys};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::name::Name;

/// Options of a clone.
#[derive(Debug, Clone, Default)]
pub struct CloneOptions {
    /// Also create missing parents (`-p`).
    pub parents: bool,
    /// Properties in canonical text.
    pub properties: Vec<(String, String)>,
}

impl Datasets {
    /// Creates `target` as a clone of `snapshot`.
    ///
    /// # Errors
    /// When the target exists, its parent does not, or the snapshot does not.
    pub fn clone_snapshot(
        &self,
        snapshot: &Name,
        target: &str,
        options: &CloneOptions,
    ) -> Result<(), DatasetError> {
        let target = Name::parse_dataset(target)?;
        let change = self.change_to_create(target.dataset(), &options.properties)?;
        let catalog = change.catalog();
        if catalog.dataset(target.dataset()).is_ok() {
            if options.parents {
                return Ok(());
            }
            return Err(DatasetError::Exists { name: target.to_string() });
        }
        let origin = catalog.snapshot(snapshot)?;
        if target.pool() != catalog.pool_name() {
            return Err(DatasetError::OtherPool { name: target.to_string() });
        }
        if options.parents {
            change.create_parents(target.dataset())?;
        }
        let mut dataset = change.create_dataset(target.dataset(), origin.kind, Some(origin.id))?;
        dataset.record.content = origin.record.content;
        change.put_dataset(dataset.id, &dataset.record)?;
        change.reset_head(&dataset, &origin)?;
        if let Some(key_data) = catalog.key_data(origin.id.dataset, origin.id.txg)? {
            change.put(&keys::key_data(dataset.id, 0), &key_data)?;
            change.set_encryption_root(dataset.id, catalog.encryption_root(origin.id.dataset)?)?;
        }
        for (property, value) in &options.properties {
            change.set_property(dataset.id, 0, PropertyKind::Local, property, value)?;
        }
        change.commit()
    }
}
