//! How much a client may pile up in a pool.

use std::collections::BTreeMap;

use snowmelt_dataset::catalog::PropertyKind;
use snowmelt_dataset::{Catalog, DatasetError, Name};

use super::Access;
use crate::error::{Failure, FailureKind};
use crate::request::Action;

/// Maximum number of each kind after a client has created one more. Those that others created count too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Datasets in all that the client can reach.
    pub datasets: usize,
    /// Snapshots of one dataset.
    pub snapshots: usize,
    /// Bookmarks of one dataset.
    pub bookmarks: usize,
    /// Holds on one snapshot.
    pub holds: usize,
    /// Properties that are set on one dataset. Streams are limited by themselves.
    pub properties: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { datasets: 10_000, snapshots: 100_000, bookmarks: 10_000, holds: 100, properties: 1000 }
    }
}

impl Limits {
    /// Refuses an action that would leave more than these.
    ///
    /// # Errors
    /// [`FailureKind::NotAllowed`]; when what the action names is not there or out of reach.
    pub(crate) fn check(&self, access: &Access, catalog: &Catalog, action: &Action) -> Result<(), Failure> {
        match action {
            Action::Snapshot { names } => {
                let mut made = BTreeMap::new();
                for name in names {
                    *made.entry(access.name(name)?.dataset().to_owned()).or_insert(0) += 1;
                }
                made.iter().try_for_each(|(dataset, made)| self.check_snapshots(catalog, dataset, *made))
            }
            Action::Bookmark { bookmark, .. } => {
                let dataset = catalog.dataset(access.name(bookmark)?.dataset())?;
                room(catalog.bookmarks(&dataset)?.len() + 1, self.bookmarks, "bookmarks of a dataset")
            }
            Action::Hold { snapshot, .. } => {
                let snapshot = catalog.snapshot(&access.name(snapshot)?)?;
                room(catalog.holds(snapshot.id)?.len() + 1, self.holds, "holds on a snapshot")
            }
            Action::CreateParents { name } if !access.is_above(name) => {
                self.check_datasets(access, catalog, access.name(name)?.dataset())
            }
            // The new name replaces the old one. Its parents may be new.
            Action::Rename { to, .. } => match access.name(to)?.dataset().rsplit_once('/') {
                Some((above, _)) => self.check_datasets(access, catalog, above),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Refuses a stream for `target` if it exceeds the limit of snapshots or properties.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn check_receive(
        &self,
        access: &Access,
        catalog: &Catalog,
        target: &Name,
        properties: usize,
    ) -> Result<(), Failure> {
        let found = catalog.dataset(target.dataset());
        if properties > 0 {
            let known = match &found {
                Ok(found) => catalog.stored_properties(found.id, 0)?,
                Err(_) => Vec::new(),
            };
            let set = known.iter().filter(|stored| stored.kind == PropertyKind::Local).count();
            room(set + properties, self.properties, "properties of a dataset")?;
        }
        match found {
            Ok(_) => self.check_snapshots(catalog, target.dataset(), 1),
            Err(DatasetError::NotFound { .. }) => self.check_datasets(access, catalog, target.dataset()),
            Err(error) => Err(error.into()),
        }
    }

    fn check_snapshots(&self, catalog: &Catalog, dataset: &str, made: usize) -> Result<(), Failure> {
        let known = catalog.snapshots(&catalog.dataset(dataset)?).take(self.snapshots).count();
        room(known + made, self.snapshots, "snapshots of a dataset")
    }

    /// That there is room for `name` and all above it that do not exist.
    fn check_datasets(&self, access: &Access, catalog: &Catalog, name: &str) -> Result<(), Failure> {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        let is_new = |name: &&str| matches!(catalog.dataset(name), Err(DatasetError::NotFound { .. }));
        let made = ends.filter_map(|end| name.get(..end)).filter(is_new).count();
        if made == 0 {
            return Ok(());
        }
        let top = match access.subtree() {
            Some(subtree) => catalog.dataset(subtree.root()),
            None => catalog.root(),
        };
        let known = match top {
            Ok(top) => catalog.descendants(top)?.len(),
            Err(DatasetError::NotFound { .. }) => 0,
            Err(error) => return Err(error.into()),
        };
        room(known + made, self.datasets, "datasets")
    }
}

fn room(wanted: usize, most: usize, what: &str) -> Result<(), Failure> {
    if wanted <= most {
        return Ok(());
    }
    Err(Failure::new(FailureKind::NotAllowed, format!("a sync can create at most {most} {what}")))
}
