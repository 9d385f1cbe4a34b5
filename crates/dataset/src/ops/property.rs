//! `set` and `inherit`.

use crate::catalog::{DatasetId, Found, PropertyKind, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;

impl Datasets {
    /// Sets local properties, all or none. Values are canonical text, already checked against the property table.
    ///
    /// # Errors
    /// When the name does not exist or is a bookmark.
    pub fn set_properties(&self, name: &Name, properties: &[(String, String)]) -> Result<(), DatasetError> {
        let change = self.change()?;
        let (id, txg) = change.property_owner(name)?;
        for (property, value) in properties {
            change.set_property(id, txg, PropertyKind::Local, property, value)?;
        }
        change.commit()
    }

    /// Lets a property be inherited: removes the local value; with `received` a received one counts again.
    ///
    /// # Errors
    /// When the name does not exist or is a bookmark.
    pub fn inherit_property(&self, name: &Name, property: &str, received: bool) -> Result<(), DatasetError> {
        let change = self.change()?;
        let (id, txg) = change.property_owner(name)?;
        change.inherit_property(id, txg, property, received)?;
        change.commit()
    }
}

impl Change<'_> {
    fn property_owner(&self, name: &Name) -> Result<(DatasetId, u64), DatasetError> {
        match self.catalog().find(name)? {
            Found::Dataset(dataset) => Ok((dataset.id, 0)),
            Found::Snapshot(snapshot) => Ok((snapshot.id.dataset, snapshot.id.txg)),
            Found::Bookmark(_) => Err(DatasetError::WrongType { name: name.to_string() }),
        }
    }

    pub(crate) fn set_property(
        &self,
        id: DatasetId,
        txg: u64,
        kind: PropertyKind,
        property: &str,
        value: &str,
    ) -> Result<(), DatasetError> {
        if kind == PropertyKind::Local {
            self.delete(&keys::property(id, txg, PropertyKind::Inherit.code(), property))?;
        }
        self.put(&keys::property(id, txg, kind.code(), property), value.as_bytes())
    }

    pub(crate) fn inherit_property(
        &self,
        id: DatasetId,
        txg: u64,
        property: &str,
        received: bool,
    ) -> Result<(), DatasetError> {
        self.delete(&keys::property(id, txg, PropertyKind::Local.code(), property))?;
        let inherit = keys::property(id, txg, PropertyKind::Inherit.code(), property);
        let has_received =
            self.catalog().stored_property(id, txg, PropertyKind::Received, property)?.is_some();
        if received || !has_received { self.delete(&inherit) } else { self.put(&inherit, &[]) }
    }
}
