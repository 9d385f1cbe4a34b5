//! `bookmark`: remembers a snapshot. After the snapshot was destroyed, the bookmark can still be an incremental source.

use crate::catalog::record::BookmarkRecord;
use crate::catalog::{Catalog, Dataset, Found, SnapshotId, keys};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::name::Name;
use crate::receive::key_data;

/// Whether a snapshot belongs to a dataset's history: to the dataset, or to an origin and not later than the clone.
fn is_of_history(catalog: &Catalog, dataset: &Dataset, source: SnapshotId) -> Result<bool, DatasetError> {
    let (mut at, mut until) = (dataset.clone(), u64::MAX);
    // Each origin is older than its clone, so this ends. The limit protects against a corrupt catalog.
    for _ in 0..u16::MAX {
        if at.id == source.dataset {
            return Ok(source.txg <= until);
        }
        match at.record.origin {
            Some(origin) => (at, until) = (catalog.dataset_by_id(origin.dataset)?, origin.txg),
            None => break,
        }
    }
    Ok(false)
}

impl Datasets {
    /// Creates `bookmark` from a snapshot, or from another bookmark, of the same dataset.
    ///
    /// # Errors
    /// [`DatasetError::BookmarkExists`]; when the source does not exist or belongs to another dataset.
    pub fn bookmark(&self, source: &Name, bookmark: &Name) -> Result<(), DatasetError> {
        let short =
            bookmark.bookmark().ok_or_else(|| DatasetError::WrongType { name: bookmark.to_string() })?;
        let change = self.change()?;
        let catalog = change.catalog();
        catalog.require_feature(&bookmark.to_string(), "bookmarks")?;
        let (dataset, record) = match catalog.find(source)? {
            Found::Snapshot(snapshot) => {
                let ivset_guid = match catalog.key_data(snapshot.id.dataset, snapshot.id.txg)? {
                    Some(packed) => key_data::ivset_guid(&packed).unwrap_or(0),
                    None => 0,
                };
                let record = BookmarkRecord {
                    guid: snapshot.record.guid,
                    creation: snapshot.record.creation,
                    createtxg: snapshot.id.txg,
                    content: snapshot.record.content,
                    ivset_guid,
                };
                (snapshot.id.dataset, record)
            }
            Found::Bookmark(found) => (found.dataset_id, found.record),
            Found::Dataset(found) => return Err(DatasetError::WrongType { name: found.name }),
        };
        let under = catalog.dataset(bookmark.dataset())?;
        // The history of a clone includes its origin.
        let source = SnapshotId { dataset, txg: record.createtxg };
        if !is_of_history(&catalog, &under, source)? {
            return Err(DatasetError::refused(
                bookmark.to_string(),
                "source is not an ancestor of the new bookmark's dataset",
            ));
        }
        if catalog.bookmark(bookmark).is_ok() {
            return Err(DatasetError::BookmarkExists { name: bookmark.to_string() });
        }
        change.put(&keys::bookmark(under.id, short), &record.encode())?;
        change.commit()
    }

    /// Destroys a bookmark.
    ///
    /// # Errors
    /// [`DatasetError::NoBookmark`].
    pub fn destroy_bookmark(&self, name: &Name) -> Result<(), DatasetError> {
        let change = self.freeing_change()?;
        let found = change.catalog().bookmark(name)?;
        change.delete(&keys::bookmark(found.dataset_id, &found.name))?;
        change.commit()
    }
}
