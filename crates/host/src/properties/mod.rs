//! The values of properties, with their sources: what `get` and `list` show.
//!
//! A value is set on the dataset (`local`), received with a stream (`received`), inherited, or the default. Or it is
//! a statistic that is computed here. Sources: zfsprops(7), `zfs_prop_get` in `lib/libzfs/libzfs_dataset.c`.

mod content;
mod entity;
mod space;
mod statistics;

use std::cell::RefCell;
use std::collections::HashMap;

use snowmelt_dataset::catalog::{PropertyKind, ROOT, SnapshotSpace, SpaceReader};
use snowmelt_dataset::property::{
    DefaultValue, Kind as ValueKind, Property, PropertyName, Source, TextRule, TextStyle, Value, find,
    is_user_property,
};
use snowmelt_dataset::{Catalog, Dataset, DatasetError, DatasetId};
use snowmelt_pool::Txg;

use content::NameRules;
pub use entity::{Entity, of_kind};

/// Reads properties as of one moment.
pub struct Reader<'a> {
    catalog: &'a Catalog,
    space: SpaceReader<'a>,
    /// Space of snapshots, by dataset and txg.
    snapshot_spaces: RefCell<HashMap<DatasetId, HashMap<Txg, SnapshotSpace>>>,
    /// Datasets by id, since every snapshot of one asks for it.
    heads: RefCell<HashMap<DatasetId, Dataset>>,
    /// Rules for names, by dataset and snapshot, since four properties ask for them.
    name_rules: RefCell<HashMap<(DatasetId, u64), Option<NameRules>>>,
    mounted: Mounted,
}

/// Datasets that are mounted, and which of their properties an option of the mount stands in for.
pub type Mounted = HashMap<DatasetId, Vec<(&'static str, bool)>>;

/// A property of something, ready to be shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Its value.
    pub text: String,
    /// Where the value comes from.
    pub source: Source,
}

impl<'a> Reader<'a> {
    /// Of the state in `catalog`.
    pub fn new(catalog: &'a Catalog) -> Self {
        Self {
            catalog,
            space: SpaceReader::new(catalog),
            snapshot_spaces: RefCell::default(),
            heads: RefCell::default(),
            name_rules: RefCell::default(),
            mounted: Mounted::new(),
        }
    }

    /// The same, where these datasets are mounted.
    pub fn with_mounted(self, mounted: Mounted) -> Self {
        Self { mounted, ..self }
    }

    /// A property's value and source; `None` if it does not apply or has no value.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn value(
        &self,
        entity: &Entity,
        name: &PropertyName,
    ) -> Result<Option<(Value, Source)>, DatasetError> {
        match name {
            PropertyName::Native(property) if !property.applies_to(entity.types()) => Ok(None),
            PropertyName::Native(property) => self.native(entity, property),
            PropertyName::User(name) => {
                let found = self.set_value(entity, name, true)?;
                Ok(found.map(|(text, source)| (Value::Text(text), source)))
            }
            PropertyName::Written { since, .. } => {
                let written = self.written_since(entity, since)?;
                Ok(written.map(|bytes| (Value::Number(bytes), Source::Local)))
            }
            PropertyName::Accounting(_) => Ok(None),
        }
    }

    /// The same as text.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn text(
        &self,
        entity: &Entity,
        name: &PropertyName,
        style: &TextStyle<'_>,
    ) -> Result<Option<(String, Source)>, DatasetError> {
        let Some((value, source)) = self.value(entity, name)? else { return Ok(None) };
        let text = match (name, &value) {
            (PropertyName::Native(property), value) => property.format(value, style),
            (PropertyName::Written { .. }, Value::Number(bytes)) if !style.parsable => {
                snowmelt_dataset::property::format_bytes(*bytes)
            }
            (_, Value::Number(number)) => number.to_string(),
            (_, Value::Text(text)) => text.clone(),
        };
        // An empty field would shift the columns for programs that split lines at tabs.
        Ok(Some((if text.is_empty() { "-".to_owned() } else { text }, source)))
    }

    /// What `get all` shows: every native property that has a value, then user properties by name.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn all(&self, entity: &Entity, style: &TextStyle<'_>) -> Result<Vec<Shown>, DatasetError> {
        let mut shown = Vec::new();
        for property in snowmelt_dataset::property::all().filter(|p| !p.hidden) {
            if let Some((text, source)) = self.text(entity, &PropertyName::Native(property), style)? {
                shown.push(Shown { name: property.name.to_owned(), text, source });
            }
        }
        for name in self.user_properties(entity)? {
            if let Some((text, source)) = self.text(entity, &PropertyName::User(name.clone()), style)? {
                shown.push(Shown { name, text, source });
            }
        }
        Ok(shown)
    }

    /// The received value of a property, as text, whether or not it counts.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn received(
        &self,
        entity: &Entity,
        name: &PropertyName,
        style: &TextStyle<'_>,
    ) -> Result<Option<String>, DatasetError> {
        let Some((id, txg)) = entity.place() else { return Ok(None) };
        let stored = self.catalog.stored_property(id, txg, PropertyKind::Received, &name.text())?;
        Ok(stored.map(|text| match name {
            PropertyName::Native(property) => match property.from_stored(&text) {
                Some(value) => property.format(&value, style),
                None => text,
            },
            _ => text,
        }))
    }

    /// A native property as a number; 0 where it has none.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn number(&self, entity: &Entity, name: &str) -> Result<u64, DatasetError> {
        let Some(property) = find(name) else { return Ok(0) };
        let value = self.value(entity, &PropertyName::Native(property))?;
        Ok(value.and_then(|(value, _)| value.as_number()).unwrap_or(0))
    }

    fn native(
        &self,
        entity: &Entity,
        property: &'static Property,
    ) -> Result<Option<(Value, Source)>, DatasetError> {
        if let Some(answer) = self.statistic(entity, property)? {
            return Ok(answer);
        }
        if let Some(answer) = self.content(entity, property)? {
            return Ok(answer);
        }
        let stored = self.stored_value(entity, property)?;
        if let Some((id, 0)) = entity.place()
            && let Some(chosen) = self.mounted.get(&id)
            && let Some((_, is_on)) = chosen.iter().find(|(name, _)| *name == property.name)
        {
            let mounted = Value::Number(u64::from(*is_on));
            if stored.as_ref().is_none_or(|(value, _)| *value != mounted) {
                return Ok(Some((mounted, Source::Temporary)));
            }
        }
        Ok(stored)
    }

    /// The value that counts while nothing else is chosen, and where it comes from.
    fn stored_value(
        &self,
        entity: &Entity,
        property: &'static Property,
    ) -> Result<Option<(Value, Source)>, DatasetError> {
        let default = match property.default {
            DefaultValue::None => return Ok(None),
            DefaultValue::Number(number) => Value::Number(number),
            DefaultValue::Text(text) => text.into(),
        };
        let (value, source) = match self.set_value(entity, property.name, property.is_inheritable())? {
            Some((text, source)) => match property.from_stored(&text) {
                Some(value) => (value, source),
                None => (default, Source::Default),
            },
            None => (default, Source::Default),
        };
        if property.kind == ValueKind::Text(TextRule::Mountpoint) {
            let text = value.as_text().unwrap_or_default();
            return Ok(Some((mountpoint(entity.name(), text, &source).into(), source)));
        }
        Ok(Some((value, source)))
    }

    /// The value that was set: on the thing itself, on its dataset if it is a snapshot, or above, if `inherits`.
    fn set_value(
        &self,
        entity: &Entity,
        name: &str,
        inherits: bool,
    ) -> Result<Option<(String, Source)>, DatasetError> {
        let Some((id, txg)) = entity.place() else { return Ok(None) };
        if let Some((text, kind)) = self.catalog.own_property(id, txg, name)? {
            return Ok(Some((text, own_source(kind))));
        }
        let head = self.dataset(id)?;
        if txg != 0 && !inherits {
            let own = self.catalog.own_property(id, 0, name)?;
            return Ok(own.map(|(text, kind)| (text, own_source(kind))));
        }
        if !inherits || (txg == 0 && id == ROOT) {
            return Ok(None);
        }
        let found = self.catalog.inherited_property(&head, name)?;
        Ok(found.map(|(text, _, at)| (text, Source::Inherited(at.name))))
    }

    /// Names of the user properties that have a value here.
    fn user_properties(&self, entity: &Entity) -> Result<Vec<String>, DatasetError> {
        let Some((id, txg)) = entity.place() else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        let mut add = |id, txg| -> Result<(), DatasetError> {
            let stored = self.catalog.stored_properties(id, txg)?;
            names.extend(stored.into_iter().map(|p| p.name).filter(|name| is_user_property(name)));
            Ok(())
        };
        if txg != 0 {
            add(id, txg)?;
        }
        let mut at = id;
        loop {
            add(at, 0)?;
            if at == ROOT {
                break;
            }
            at = self.dataset(at)?.record.parent;
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// A dataset by its id.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn dataset(&self, id: DatasetId) -> Result<Dataset, DatasetError> {
        if let Some(known) = self.heads.borrow().get(&id) {
            return Ok(known.clone());
        }
        let dataset = self.catalog.dataset_by_id(id)?;
        self.heads.borrow_mut().insert(id, dataset.clone());
        Ok(dataset)
    }
}

fn own_source(kind: PropertyKind) -> Source {
    match kind {
        PropertyKind::Received => Source::Received,
        PropertyKind::Local | PropertyKind::Inherit => Source::Local,
    }
}

/// The place where a filesystem would be mounted. An inherited path is extended by the names below the dataset where
/// it was set.
fn mountpoint(name: &str, value: &str, source: &Source) -> String {
    if !value.starts_with('/') {
        return value.to_owned();
    }
    let below = match source {
        Source::Default => name,
        Source::Inherited(from) => {
            name.strip_prefix(from.as_str()).unwrap_or_default().trim_start_matches('/')
        }
        _ => return value.to_owned(),
    };
    format!("{}/{below}", value.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_mountpoints_go_on_below() {
        let from = |dataset: &str| Source::Inherited(dataset.to_owned());
        assert_eq!(mountpoint("tank/a", "/", &Source::Default), "/tank/a");
        assert_eq!(mountpoint("tank/a/b", "/srv", &from("tank")), "/srv/a/b");
        assert_eq!(mountpoint("tank/a/b", "/", &from("tank/a")), "/b");
        assert_eq!(mountpoint("tank/a", "/x", &Source::Local), "/x");
        assert_eq!(mountpoint("tank/a", "/x", &Source::Received), "/x");
        assert_eq!(mountpoint("tank/a", "none", &from("tank")), "none");
        assert_eq!(mountpoint("tank/a", "legacy", &Source::Local), "legacy");
    }
}
