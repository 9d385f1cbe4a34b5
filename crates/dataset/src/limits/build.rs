//! Builds the table of limits from the pool. Reads only what has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::table::{Growing, Node, Table};
use crate::catalog::{Catalog, Dataset, DatasetId, ROOT, Settings, keys};
use crate::error::DatasetError;

/// What in the table is out of date.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// Whether limits were read at all.
    scanned: bool,
    /// Datasets whose limits were set.
    limits: BTreeSet<DatasetId>,
    /// Datasets whose space was changed by something other than writes.
    space: BTreeSet<DatasetId>,
    /// Datasets were created, destroyed or moved.
    tree: bool,
}

impl Stale {
    /// Notes that a record of the catalog is written or removed. Returns whether the table must be updated before its
    /// next use.
    pub(super) fn note(&mut self, key: &[u8], removed: bool, has_limits: bool) -> bool {
        let Some(kind) = key.first() else { return false };
        let id = || keys::number(key, 1).ok().map(DatasetId);
        match *kind {
            keys::PROPERTY if !self.scanned => return true,
            keys::PROPERTY => {
                let name = key.get(18..).and_then(|name| std::str::from_utf8(name).ok());
                let Some(id) = id() else { return false };
                // Without a name, all properties of the dataset are removed.
                if name.is_some_and(|name| Settings::default().get_mut(name).is_none()) {
                    return false;
                }
                self.limits.insert(id);
                return true;
            }
            keys::SNAPSHOT if !removed => return false,
            keys::SNAPSHOT | keys::RECEIVE => self.space.extend(id()),
            keys::DATASET => {
                self.space.extend(id());
                self.tree = true;
            }
            _ => return false,
        }
        has_limits
    }

    /// Brings the table up to date. The gate must be closed.
    pub(super) fn refresh(&mut self, catalog: &Catalog, table: &mut Table) -> Result<(), DatasetError> {
        if self.scanned {
            for id in &self.limits {
                read_limits(catalog, *id, &mut table.settings)?;
            }
        } else {
            let mut settings = BTreeMap::new();
            let prefix = [keys::PROPERTY];
            let mut last = None;
            for item in catalog.meta().range(&prefix, keys::after(&prefix).as_deref()) {
                let (key, _) = item?;
                let id = DatasetId(keys::number(&key, 1)?);
                if last != Some(id) && keys::text(&key, 18).is_ok_and(|name| is_limit(&name)) {
                    read_limits(catalog, id, &mut settings)?;
                    last = Some(id);
                }
            }
            table.settings = settings;
        }
        self.tree |= !self.limits.is_empty() || !self.scanned;
        self.limits.clear();
        self.scanned = true;
        if !table.has_limits() {
            // The tree is read completely when the first limit is set.
            table.nodes = HashMap::new();
            self.tree = true;
            return Ok(());
        }
        if self.tree {
            self.read_tree(catalog, table)?;
        } else {
            for id in std::mem::take(&mut self.space) {
                let Some(concerned) = table.nodes.get(&id).map(|node| !node.growing.is_empty()) else {
                    continue;
                };
                let dataset = catalog.dataset_by_id(id)?;
                let fresh = if concerned { read_space(catalog, &dataset)? } else { Node::default() };
                table.alter(id, |node| {
                    (node.own, node.unique, node.growing) = (fresh.own, fresh.unique, fresh.growing);
                });
            }
        }
        self.tree = false;
        self.space.clear();
        Ok(())
    }

    fn read_tree(&self, catalog: &Catalog, table: &mut Table) -> Result<(), DatasetError> {
        let mut old = std::mem::take(&mut table.nodes);
        // Datasets whose space must be known: they have a limit, or a parent counts them.
        let mut counted = BTreeSet::new();
        let datasets = catalog.descendants(catalog.root()?)?;
        for dataset in &datasets {
            let (id, parent) = (dataset.id, dataset.record.parent);
            let limits = table.settings.get(&id).copied().unwrap_or_default();
            let counts = counted.contains(&parent) || limits.quota != 0 || limits.reservation != 0;
            if counts {
                counted.insert(id);
            }
            let mut node = Node::default();
            if counts || !limits.is_none() {
                let known = old.remove(&id).filter(|node| !node.growing.is_empty());
                node = match known.filter(|_| !self.space.contains(&id)) {
                    Some(known) => known,
                    None => read_space(catalog, dataset)?,
                };
            }
            (node.limits, node.parent) = (limits, (id != ROOT).then_some(parent));
            (node.children, node.stored_below) = (0, 0);
            table.nodes.insert(id, node);
        }
        // Children before parents.
        for dataset in datasets.iter().rev() {
            let Some(node) = table.nodes.get(&dataset.id) else { continue };
            let (charge, stored) = (node.charge(), node.stored());
            if let Some(parent) = node.parent.and_then(|parent| table.nodes.get_mut(&parent)) {
                parent.children = parent.children.saturating_add(charge);
                parent.stored_below = parent.stored_below.saturating_add(stored);
            }
        }
        Ok(())
    }
}

fn is_limit(name: &str) -> bool {
    Settings::default().get_mut(name).is_some()
}

fn read_limits(
    catalog: &Catalog,
    id: DatasetId,
    settings: &mut BTreeMap<DatasetId, Settings>,
) -> Result<(), DatasetError> {
    let limits = match catalog.record(id)? {
        Some(_) => catalog.limits_of(id)?,
        None => Settings::default(),
    };
    if limits.is_none() {
        settings.remove(&id);
    } else {
        settings.insert(id, limits);
    }
    Ok(())
}

/// The space of one dataset, with the trees that can still grow.
fn read_space(catalog: &Catalog, dataset: &Dataset) -> Result<Node, DatasetError> {
    let space = catalog.dataset_space(dataset)?;
    let coming = catalog.receiving_space(dataset)?;
    let head = catalog.pool().tree(dataset.record.head)?;
    let mut growing = vec![Growing { seen: head.growth(), tree: head, head: true }];
    let receiving = catalog.receive_state(dataset.id)?.map(|state| state.tree);
    if let Some(tree) = receiving.filter(|tree| *tree != dataset.record.head) {
        let tree = catalog.pool().tree(tree)?;
        growing.push(Growing { seen: tree.growth(), tree, head: false });
    }
    Ok(Node {
        own: space.used_by_dataset.saturating_add(space.used_by_snapshots).saturating_add(coming.physical),
        unique: space.written,
        growing,
        ..Node::default()
    })
}
