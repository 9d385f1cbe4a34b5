//! `rename`: renames datasets, snapshots and bookmarks.

use snowmelt_stream::features::Features;

use crate::catalog::{Catalog, Dataset, Snapshot, SpaceReader, keys};
use crate::datasets::{Change, Datasets};
use crate::error::{DatasetError, NameError};
use crate::name::{NAME_MAX, NESTING_MAX, Name, Suffix};
use crate::ops::create::check_can_be_above;

/// Options of a rename.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenameOptions {
    /// Create missing parents of the new name (`-p`).
    pub parents: bool,
    /// Also rename the snapshots of that name in all descendants (`-r`).
    pub recursive: bool,
}

impl Datasets {
    /// Renames a dataset, snapshot or bookmark.
    ///
    /// # Errors
    /// When the new name exists, is not in the same place where it must be, or is below the old one;
    /// [`DatasetError::OutOfSpace`] when the dataset does not fit below its new parent.
    pub fn rename(&self, from: &Name, to: &Name, options: RenameOptions) -> Result<(), DatasetError> {
        let change = match (from.suffix(), to.parent()) {
            (Suffix::None, Some((above, _))) => {
                self.change_if(|catalog| self.check_move(catalog, from, above))?
            }
            _ => self.freeing_change()?,
        };
        match (from.suffix(), to.suffix()) {
            (Suffix::None, Suffix::None) => change.rename_dataset(from, to, options)?,
            (Suffix::Snapshot(old), Suffix::Snapshot(new)) if from.dataset() == to.dataset() => {
                let catalog = change.catalog();
                let top = catalog.dataset(from.dataset())?;
                let all = if options.recursive { catalog.descendants(top)? } else { vec![top] };
                change.rename_snapshots(&catalog, &all, old, new)?;
            }
            (Suffix::Bookmark(_), Suffix::Bookmark(new)) if from.dataset() == to.dataset() => {
                let catalog = change.catalog();
                let found = catalog.bookmark(from)?;
                if catalog.bookmark(to).is_ok() {
                    return Err(DatasetError::BookmarkExists { name: to.to_string() });
                }
                change.delete(&keys::bookmark(found.dataset_id, &found.name))?;
                change.put(&keys::bookmark(found.dataset_id, new), &found.record.encode())?;
            }
            _ => {
                return Err(DatasetError::refused(
                    to.to_string(),
                    "must be part of the same dataset and of the same type",
                ));
            }
        }
        change.commit()
    }
}

impl Datasets {
    /// Checks whether a dataset fits into the limits of another parent.
    fn check_move(&self, catalog: &Catalog, from: &Name, above: &str) -> Result<(), DatasetError> {
        // If one of them does not exist, the rename is refused for that reason.
        let (Ok(dataset), Ok(parent)) = (catalog.dataset(from.dataset()), catalog.dataset(above)) else {
            return Ok(());
        };
        self.try_limits(|table, free| {
            let totals = SpaceReader::new(catalog).totals(&dataset)?;
            table.transfer(&dataset, &totals, parent.id, free)
        })
    }
}

impl Change<'_> {
    fn rename_dataset(&self, from: &Name, to: &Name, options: RenameOptions) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let mut dataset = catalog.dataset(from.dataset())?;
        if from.pool() != to.pool() {
            return Err(DatasetError::refused(to.to_string(), "datasets must be within same pool"));
        }
        let Some((above, last)) = to.parent() else {
            return Err(DatasetError::refused(from.to_string(), "a pool's root dataset cannot be renamed"));
        };
        if from.parent().is_none() {
            return Err(DatasetError::refused(from.to_string(), "a pool's root dataset cannot be renamed"));
        }
        if to.dataset().starts_with(&format!("{}/", from.dataset())) {
            return Err(DatasetError::refused(
                to.to_string(),
                "New dataset name cannot be a descendant of current dataset name",
            ));
        }
        if catalog.dataset(to.dataset()).is_ok() {
            return Err(DatasetError::Exists { name: to.to_string() });
        }
        check_names_below(&catalog, &dataset, to)?;
        if options.parents {
            check_encryption_root(&catalog, &dataset, &nearest(&catalog, above)?)?;
            self.create_parents(to.dataset())?;
        }
        let parent = self.catalog().dataset(above).map_err(|error| match error {
            DatasetError::NotFound { .. } => DatasetError::NoParent { name: to.to_string() },
            other => other,
        })?;
        check_can_be_above(&parent, to.dataset())?;
        check_encryption_root(&self.catalog(), &dataset, &parent)?;
        self.delete(&keys::child(dataset.record.parent, &dataset.record.name))?;
        self.put(&keys::child(parent.id, last), &dataset.id.0.to_be_bytes())?;
        dataset.record.parent = parent.id;
        last.clone_into(&mut dataset.record.name);
        self.put_dataset(dataset.id, &dataset.record)
    }

    fn rename_snapshots(
        &self,
        catalog: &Catalog,
        datasets: &[Dataset],
        old: &str,
        new: &str,
    ) -> Result<(), DatasetError> {
        // Everything is checked before anything is changed, because changes made before an error would stay.
        let mut renamed = Vec::new();
        for dataset in datasets {
            let Ok(snapshot) = catalog.snapshot(&Name::parse(&format!("{}@{old}", dataset.name))?) else {
                continue;
            };
            let target = format!("{}@{new}", dataset.name);
            if catalog.snapshot(&Name::parse(&target)?).is_ok() {
                return Err(DatasetError::Exists { name: target });
            }
            renamed.push(snapshot);
        }
        if let (true, Some(top)) = (renamed.is_empty(), datasets.first()) {
            return Err(DatasetError::NotFound { name: format!("{}@{old}", top.name) });
        }
        renamed.into_iter().try_for_each(|snapshot| self.rename_snapshot(snapshot, new))
    }

    pub(crate) fn rename_snapshot(&self, mut snapshot: Snapshot, new: &str) -> Result<(), DatasetError> {
        let id = snapshot.id;
        self.delete(&keys::snapshot_name(id.dataset, &snapshot.record.name))?;
        new.clone_into(&mut snapshot.record.name);
        self.put(&keys::snapshot_name(id.dataset, new), &id.txg.to_be_bytes())?;
        self.put(&keys::snapshot(id.dataset, id.txg), &snapshot.record.encode())
    }
}

/// A dataset that inherits its key must stay below the dataset that it inherits from (`dsl_dir_rename_crypt_check`).
fn check_encryption_root(catalog: &Catalog, dataset: &Dataset, parent: &Dataset) -> Result<(), DatasetError> {
    let encrypted = |dataset: &Dataset| dataset.record.content.features.contains(Features::RAW);
    let root = catalog.encryption_root(dataset.id)?;
    if !encrypted(dataset) || root == dataset.id {
        return Ok(());
    }
    if encrypted(parent) && catalog.encryption_root(parent.id)? == root {
        return Ok(());
    }
    Err(DatasetError::refused(
        dataset.name.clone(),
        "cannot move encrypted child outside of its encryption root",
    ))
}

/// The dataset with this name, or its nearest existing parent.
fn nearest(catalog: &Catalog, name: &str) -> Result<Dataset, DatasetError> {
    match (catalog.dataset(name), name.rsplit_once('/')) {
        (Err(DatasetError::NotFound { .. }), Some((above, _))) => nearest(catalog, above),
        (found, _) => found,
    }
}

/// Checks that no name below a renamed dataset becomes too long or too deep.
fn check_names_below(catalog: &Catalog, dataset: &Dataset, to: &Name) -> Result<(), DatasetError> {
    let levels = |name: &str| name.split('/').count();
    for below in catalog.descendants(dataset.clone())? {
        if levels(&below.name) - levels(&dataset.name) + levels(to.dataset()) > NESTING_MAX {
            return Err(NameError::TooDeep { name: to.to_string() }.into());
        }
        let mut longest = below.name.len();
        for snapshot in catalog.snapshots(&below) {
            longest = longest.max(below.name.len() + 1 + snapshot?.record.name.len());
        }
        if longest - dataset.name.len() + to.dataset().len() > NAME_MAX {
            return Err(DatasetError::refused(
                to.to_string(),
                format!("the name of {} would be too long", below.name),
            ));
        }
    }
    Ok(())
}
