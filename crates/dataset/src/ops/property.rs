//! `set` and `inherit`: change properties.

use crate::catalog::{DatasetId, Found, PropertyKind, Settings, SpaceReader, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;

impl Datasets {
    /// Sets local properties, all or none. Values are canonical text that was checked with the property table.
    ///
    /// # Errors
    /// When the name does not exist or is a bookmark; [`DatasetError::BelowUse`], [`DatasetError::BeyondSpace`].
    pub fn set_properties(&self, name: &Name, properties: &[(String, String)]) -> Result<(), DatasetError> {
        self.catalog().require_features_of(&name.to_string(), properties)?;
        let change = self.change_properties(name, |limits| {
            properties.iter().fold(false, |any, (property, value)| limits.set(property, value) | any)
        })?;
        let (id, txg) = change.property_owner(name)?;
        for (property, value) in properties {
            change.set_property(id, txg, PropertyKind::Local, property, value)?;
        }
        change.commit()
    }

    /// Removes the local value of a property, so that it is inherited. With `received`, a received value is used again.
    ///
    /// # Errors
    /// When the name does not exist or is a bookmark.
    pub fn inherit_property(&self, name: &Name, property: &str, received: bool) -> Result<(), DatasetError> {
        let back = match self.catalog().find(name)? {
            Found::Dataset(dataset) if received => {
                self.catalog().stored_property(dataset.id, 0, PropertyKind::Received, property)?
            }
            _ => None,
        };
        let change =
            self.change_properties(name, |limits| limits.set(property, back.as_deref().unwrap_or("0")))?;
        let (id, txg) = change.property_owner(name)?;
        change.inherit_property(id, txg, property, received)?;
        change.commit()
    }
}

impl Datasets {
    /// Begins a change of properties that must respect the rules for limits. `alter` applies the change to the limits,
    /// and returns whether a limit is changed.
    fn change_properties(
        &self,
        name: &Name,
        alter: impl Fn(&mut Settings) -> bool,
    ) -> Result<Change<'_>, DatasetError> {
        if name.snapshot().is_some() || !alter(&mut Settings::default()) {
            return self.freeing_change();
        }
        self.change_if(|catalog| {
            let dataset = catalog.dataset(name.dataset())?;
            let mut limits = catalog.limits_of(dataset.id)?;
            alter(&mut limits);
            SpaceReader::new(catalog).check_settings(&dataset, limits)
        })
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
