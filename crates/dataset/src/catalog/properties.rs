//! Stored properties and their inheritance.
//!
//! For each property, a dataset has a local value, a received value, both or neither. The local value has priority,
//! then the received one, then the parent's value if the property is inherited, then the default (zfsprops(7),
//! `module/zfs/dsl_prop.c`).

use snowmelt_pool::Txg;

use super::{Catalog, Dataset, DatasetId, SnapshotId, keys};
use crate::error::DatasetError;
use crate::name::NESTING_MAX;

/// The origin of a stored property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PropertyKind {
    /// Set by a user (`zfs set`, `-o`).
    Local,
    /// Received with a stream.
    Received,
    /// Set by `zfs inherit` or `receive -x`: no value stored here is used, not even a received one.
    Inherit,
}

impl PropertyKind {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Local => 0,
            Self::Received => 1,
            Self::Inherit => 2,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Local, Self::Received, Self::Inherit].into_iter().find(|kind| kind.code() == code)
    }
}

/// A received property that marks each snapshot that came with a stream. Like `$hasrecvd` of OpenZFS it is never shown
/// or sent.
pub(crate) const CAME_WITH_STREAM: &str = "$received";

/// One stored property of one dataset or snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProperty {
    /// Its name.
    pub name: String,
    /// Its origin.
    pub kind: PropertyKind,
    /// Its value as canonical (parsable) text.
    pub value: String,
}

impl Catalog {
    /// All properties stored for a dataset (`txg` 0) or one of its snapshots, sorted by kind and name.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn stored_properties(&self, id: DatasetId, txg: Txg) -> Result<Vec<StoredProperty>, DatasetError> {
        let prefix = keys::Key::new(keys::PROPERTY).id(id).u64(txg).done();
        let mut found = Vec::new();
        for item in self.meta().range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item?;
            let kind = key.get(17).and_then(|code| PropertyKind::from_code(*code));
            let kind = kind.ok_or_else(|| DatasetError::corrupt("property", "unknown kind"))?;
            found.push(StoredProperty {
                name: keys::text(&key, 18)?,
                kind,
                value: keys::text(&entry.value, 0)?,
            });
        }
        Ok(found)
    }

    /// Whether a snapshot was received with a stream, as opposed to taken here. False for snapshots that were received
    /// by older versions, which did not record it.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn came_with_stream(&self, id: SnapshotId) -> Result<bool, DatasetError> {
        let noted = self.stored_property(id.dataset, id.txg, PropertyKind::Received, CAME_WITH_STREAM)?;
        Ok(noted.is_some())
    }

    /// One stored property.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn stored_property(
        &self,
        id: DatasetId,
        txg: Txg,
        kind: PropertyKind,
        name: &str,
    ) -> Result<Option<String>, DatasetError> {
        let entry = self.meta().get(&keys::property(id, txg, kind.code(), name))?;
        entry.map(|entry| keys::text(&entry.value, 0)).transpose()
    }

    /// The effective value at one place without its parents: the local value, otherwise the received one.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn own_property(
        &self,
        id: DatasetId,
        txg: Txg,
        name: &str,
    ) -> Result<Option<(String, PropertyKind)>, DatasetError> {
        if let Some(value) = self.stored_property(id, txg, PropertyKind::Local, name)? {
            return Ok(Some((value, PropertyKind::Local)));
        }
        if self.stored_property(id, txg, PropertyKind::Inherit, name)?.is_some() {
            return Ok(None);
        }
        let received = self.stored_property(id, txg, PropertyKind::Received, name)?;
        Ok(received.map(|value| (value, PropertyKind::Received)))
    }

    /// The effective value for a dataset, and the dataset that it was found at: itself or a parent. Must be called only
    /// for properties that are inherited.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn inherited_property(
        &self,
        dataset: &Dataset,
        name: &str,
    ) -> Result<Option<(String, PropertyKind, Dataset)>, DatasetError> {
        let mut at = dataset.clone();
        for _ in 0..=NESTING_MAX {
            if let Some((value, kind)) = self.own_property(at.id, 0, name)? {
                return Ok(Some((value, kind, at)));
            }
            if at.id == super::ROOT {
                return Ok(None);
            }
            let parent = at.record.parent;
            let record = self.record(parent)?.ok_or_else(|| {
                DatasetError::corrupt(format!("dataset {}", at.name), "its parent has no record")
            })?;
            let name = at.name.rsplit_once('/').map(|(above, _)| above.to_owned()).unwrap_or_default();
            at = Dataset { id: parent, name, record };
        }
        Err(DatasetError::corrupt(format!("dataset {}", dataset.name), "its parents form a loop"))
    }
}
