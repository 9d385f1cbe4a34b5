//! The catalog: names, records and relations of all datasets of a pool at one moment.
//!
//! A [`Catalog`] is a frozen view of the meta tree. Listings and plans use one: writers do not change it, and it never
//! contains a half-finished operation.

pub(crate) mod encryption;
pub(crate) mod keys;
pub(crate) mod properties;
pub(crate) mod record;
pub(crate) mod space;
pub(crate) mod totals;

use std::collections::BTreeSet;
use std::sync::Arc;

use snowmelt_pool::{Pool, Txg, View};

pub use properties::{PropertyKind, StoredProperty};
pub use record::{BookmarkRecord, Content, DatasetRecord, Kind, ReceiveState, SnapshotId, SnapshotRecord};
pub use space::{DatasetSpace, SnapshotSpace};
pub use totals::{Settings, SpaceReader, Totals};

use crate::error::DatasetError;
use crate::name::{NESTING_MAX, Name, Subtree, Suffix};
use crate::objset::Objset;

/// Identifies a dataset in its pool for good, also after a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetId(pub u64);

/// The pool's root dataset.
pub const ROOT: DatasetId = DatasetId(1);

/// A filesystem or volume.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Its id.
    pub id: DatasetId,
    /// Its full name.
    pub name: String,
    /// Its record, with all other facts.
    pub record: DatasetRecord,
}

/// A snapshot.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its dataset and txg.
    pub id: SnapshotId,
    /// Its dataset's full name.
    pub dataset: String,
    /// Its dataset's kind.
    pub kind: Kind,
    /// Its record, with all other facts.
    pub record: SnapshotRecord,
}

impl Snapshot {
    /// Its full name, `dataset@name`.
    pub fn full_name(&self) -> String {
        format!("{}@{}", self.dataset, self.record.name)
    }
}

/// A bookmark.
#[derive(Debug, Clone)]
pub struct Bookmark {
    /// The dataset it belongs to.
    pub dataset_id: DatasetId,
    /// That dataset's full name.
    pub dataset: String,
    /// The part of its name after the `#`.
    pub name: String,
    /// Its record, with all other facts.
    pub record: BookmarkRecord,
}

impl Bookmark {
    /// Its full name, `dataset#name`.
    pub fn full_name(&self) -> String {
        format!("{}#{}", self.dataset, self.name)
    }
}

/// The result of looking up a full name.
#[derive(Debug, Clone)]
pub enum Found {
    /// A filesystem or volume.
    Dataset(Dataset),
    /// A snapshot.
    Snapshot(Snapshot),
    /// A bookmark.
    Bookmark(Bookmark),
}

/// All datasets of a pool at one moment. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    pool: Arc<Pool>,
    meta: View,
    pool_name: Arc<str>,
}

impl Catalog {
    pub(crate) fn new(pool: Arc<Pool>, pool_name: Arc<str>) -> Self {
        let meta = pool.meta().view();
        Self { pool, meta, pool_name }
    }

    /// The pool's name: the first component of the names of all datasets.
    pub fn pool_name(&self) -> &str {
        &self.pool_name
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn meta(&self) -> &View {
        &self.meta
    }

    /// Finds the dataset, snapshot or bookmark that `name` means.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`] and [`DatasetError::NoBookmark`], with the whole name.
    pub fn find(&self, name: &Name) -> Result<Found, DatasetError> {
        match name.suffix() {
            Suffix::None => Ok(Found::Dataset(self.dataset(name.dataset())?)),
            Suffix::Snapshot(_) => Ok(Found::Snapshot(self.snapshot(name)?)),
            Suffix::Bookmark(_) => Ok(Found::Bookmark(self.bookmark(name)?)),
        }
    }

    /// Finds a filesystem or volume by its full name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn dataset(&self, name: &str) -> Result<Dataset, DatasetError> {
        let not_found = || DatasetError::NotFound { name: name.to_owned() };
        let mut components = name.split('/');
        if components.next() != Some(&*self.pool_name) {
            return Err(not_found());
        }
        let mut id = ROOT;
        for component in components {
            let entry = self.meta.get(&keys::child(id, component))?.ok_or_else(not_found)?;
            id = DatasetId(keys::number(&entry.value, 0)?);
        }
        let record = self.record(id)?.ok_or_else(not_found)?;
        Ok(Dataset { id, name: name.to_owned(), record })
    }

    /// Finds a filesystem or volume by its id.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn dataset_by_id(&self, id: DatasetId) -> Result<Dataset, DatasetError> {
        let missing =
            || DatasetError::NotFound { name: format!("{}: dataset number {}", self.pool_name, id.0) };
        let record = self.record(id)?.ok_or_else(missing)?;
        let mut parts = Vec::new();
        let (mut at, mut above) = (id, record.clone());
        while at != ROOT {
            if parts.len() > NESTING_MAX {
                return Err(DatasetError::corrupt(format!("dataset {}", id.0), "its parents form a loop"));
            }
            parts.push(above.name);
            at = above.parent;
            above = self.record(at)?.ok_or_else(missing)?;
        }
        parts.push(self.pool_name.to_string());
        parts.reverse();
        Ok(Dataset { id, name: parts.join("/"), record })
    }

    pub(crate) fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, DatasetError> {
        self.meta.get(&keys::dataset(id))?.map(|entry| DatasetRecord::decode(&entry.value)).transpose()
    }

    /// The direct children of `parent`, sorted by name.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn children(&self, parent: &Dataset) -> Result<Vec<Dataset>, DatasetError> {
        let prefix = keys::child(parent.id, "");
        let mut found = Vec::new();
        for item in self.meta.range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item?;
            let id = DatasetId(keys::number(&entry.value, 0)?);
            let short = keys::text(&key, 9)?;
            let name = format!("{}/{short}", parent.name);
            let corrupt = |what| DatasetError::corrupt(format!("dataset {name}"), what);
            let record = self.record(id)?.ok_or_else(|| corrupt("it has a name but no record"))?;
            // A name that leads back to a parent would create an endless tree.
            if id == ROOT || record.parent != parent.id || record.name != short {
                return Err(corrupt("its name leads to a dataset that is called otherwise"));
            }
            if name.split('/').count() > NESTING_MAX {
                return Err(corrupt("its name has too many parts"));
            }
            found.push(Dataset { id, name, record });
        }
        Ok(found)
    }

    /// `top` and everything below it, parents before children.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn descendants(&self, top: Dataset) -> Result<Vec<Dataset>, DatasetError> {
        let mut found = Vec::new();
        let mut pending = vec![top];
        while let Some(dataset) = pending.pop() {
            let mut children = self.children(&dataset)?;
            children.reverse();
            pending.extend(children);
            found.push(dataset);
        }
        Ok(found)
    }

    /// The pool's root dataset.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn root(&self) -> Result<Dataset, DatasetError> {
        self.dataset(&self.pool_name)
    }

    /// The snapshots of a dataset, oldest first.
    pub fn snapshots<'a>(
        &'a self,
        dataset: &'a Dataset,
    ) -> impl Iterator<Item = Result<Snapshot, DatasetError>> + 'a {
        self.snapshots_after(dataset, 0)
    }

    /// The snapshots of a dataset taken after `txg`, oldest first.
    pub fn snapshots_after<'a>(
        &'a self,
        dataset: &'a Dataset,
        txg: Txg,
    ) -> impl Iterator<Item = Result<Snapshot, DatasetError>> + 'a {
        let from = keys::snapshot(dataset.id, txg.saturating_add(1));
        let end = keys::after(&keys::Key::new(keys::SNAPSHOT).id(dataset.id).done());
        self.meta.range(&from, end.as_deref()).map(move |item| {
            let (key, entry) = item?;
            Ok(Snapshot {
                id: SnapshotId { dataset: dataset.id, txg: keys::number(&key, 9)? },
                dataset: dataset.name.clone(),
                kind: dataset.record.kind,
                record: SnapshotRecord::decode(&entry.value)?,
            })
        })
    }

    /// A dataset's newest snapshot before `txg`; [`Txg::MAX`] returns the newest of all.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn snapshot_before(&self, dataset: &Dataset, txg: Txg) -> Result<Option<Snapshot>, DatasetError> {
        let Some((key, entry)) = self.meta.last_before(&keys::snapshot(dataset.id, txg))? else {
            return Ok(None);
        };
        if !key.starts_with(&keys::snapshot(dataset.id, 0)[..9]) {
            return Ok(None);
        }
        Ok(Some(Snapshot {
            id: SnapshotId { dataset: dataset.id, txg: keys::number(&key, 9)? },
            dataset: dataset.name.clone(),
            kind: dataset.record.kind,
            record: SnapshotRecord::decode(&entry.value)?,
        }))
    }

    /// A dataset's newest snapshot.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn newest_snapshot(&self, dataset: &Dataset) -> Result<Option<Snapshot>, DatasetError> {
        self.snapshot_before(dataset, Txg::MAX)
    }

    /// Finds a snapshot by its full name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn snapshot(&self, name: &Name) -> Result<Snapshot, DatasetError> {
        let not_found = || DatasetError::NotFound { name: name.to_string() };
        let short = name.snapshot().ok_or_else(not_found)?;
        let dataset = self.dataset(name.dataset()).map_err(|error| match error {
            DatasetError::NotFound { .. } => not_found(),
            other => other,
        })?;
        let entry = self.meta.get(&keys::snapshot_name(dataset.id, short))?.ok_or_else(not_found)?;
        self.snapshot_at(&dataset, keys::number(&entry.value, 0)?)
    }

    fn snapshot_at(&self, dataset: &Dataset, txg: Txg) -> Result<Snapshot, DatasetError> {
        let id = SnapshotId { dataset: dataset.id, txg };
        let entry = self.meta.get(&keys::snapshot(id.dataset, txg))?.ok_or_else(|| {
            DatasetError::corrupt(format!("snapshot {}@{txg}", dataset.name), "it has no record")
        })?;
        Ok(Snapshot {
            id,
            dataset: dataset.name.clone(),
            kind: dataset.record.kind,
            record: SnapshotRecord::decode(&entry.value)?,
        })
    }

    /// Finds a snapshot by its id.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::Corrupt`].
    pub fn snapshot_by_id(&self, id: SnapshotId) -> Result<Snapshot, DatasetError> {
        let dataset = self.dataset_by_id(id.dataset)?;
        self.snapshot_at(&dataset, id.txg)
    }

    /// All snapshots of the pool with this guid. Copies of a snapshot may exist in several datasets.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn snapshots_by_guid(&self, guid: u64) -> Result<Vec<Snapshot>, DatasetError> {
        let prefix = keys::Key::new(keys::GUID).u64(guid).done();
        let mut found = Vec::new();
        for item in self.meta.range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, _) = item?;
            let id = SnapshotId { dataset: DatasetId(keys::number(&key, 9)?), txg: keys::number(&key, 17)? };
            found.push(self.snapshot_by_id(id)?);
        }
        Ok(found)
    }

    /// As [`Self::snapshots_by_guid`], but only in the datasets of `subtree`, if given.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn snapshots_by_guid_in(
        &self,
        subtree: Option<&Subtree>,
        guid: u64,
    ) -> Result<Vec<Snapshot>, DatasetError> {
        let mut found = self.snapshots_by_guid(guid)?;
        found.retain(|snapshot| subtree.is_none_or(|subtree| subtree.contains(&snapshot.dataset)));
        Ok(found)
    }

    /// Finds a bookmark by its full name.
    ///
    /// # Errors
    /// [`DatasetError::NoBookmark`].
    pub fn bookmark(&self, name: &Name) -> Result<Bookmark, DatasetError> {
        let missing = || DatasetError::NoBookmark { name: name.to_string() };
        let short = name.bookmark().ok_or_else(missing)?;
        let dataset = self.dataset(name.dataset()).map_err(|error| match error {
            DatasetError::NotFound { .. } => missing(),
            other => other,
        })?;
        let entry = self.meta.get(&keys::bookmark(dataset.id, short))?.ok_or_else(missing)?;
        Ok(Bookmark {
            dataset_id: dataset.id,
            dataset: dataset.name,
            name: short.to_owned(),
            record: BookmarkRecord::decode(&entry.value)?,
        })
    }

    /// The bookmarks of a dataset, oldest first.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn bookmarks(&self, dataset: &Dataset) -> Result<Vec<Bookmark>, DatasetError> {
        let prefix = keys::bookmark(dataset.id, "");
        let mut found = Vec::new();
        for item in self.meta.range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item?;
            found.push(Bookmark {
                dataset_id: dataset.id,
                dataset: dataset.name.clone(),
                name: keys::text(&key, 9)?,
                record: BookmarkRecord::decode(&entry.value)?,
            });
        }
        found.sort_by_key(|bookmark| bookmark.record.createtxg);
        Ok(found)
    }

    /// The tags that hold a snapshot, and when each was set (seconds since 1970).
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn holds(&self, snapshot: SnapshotId) -> Result<Vec<(String, u64)>, DatasetError> {
        let prefix = keys::hold(snapshot.dataset, snapshot.txg, "");
        let mut found = Vec::new();
        for item in self.meta.range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item?;
            found.push((keys::text(&key, 17)?, keys::number(&entry.value, 0)?));
        }
        Ok(found)
    }

    /// The datasets cloned from a snapshot.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn clones(&self, snapshot: SnapshotId) -> Result<Vec<Dataset>, DatasetError> {
        let prefix = keys::Key::new(keys::CLONE).id(snapshot.dataset).u64(snapshot.txg).done();
        let mut found = Vec::new();
        for item in self.meta.range(&prefix, keys::after(&prefix).as_deref()) {
            found.push(self.dataset_by_id(DatasetId(keys::number(&item?.0, 17)?))?);
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The state of a receive into the dataset that is under way or was interrupted.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn receive_state(&self, id: DatasetId) -> Result<Option<ReceiveState>, DatasetError> {
        self.meta.get(&keys::receive(id))?.map(|entry| ReceiveState::decode(&entry.value)).transpose()
    }

    /// Whether an unfinished receive is based on this snapshot and shares blocks with it. Such a receive is like a
    /// clone of the snapshot (in ZFS, the hidden dataset `%recv`). Meanwhile the snapshot can neither be destroyed nor
    /// move to another dataset.
    pub(crate) fn is_receive_base(&self, id: SnapshotId) -> Result<bool, DatasetError> {
        self.is_received_on(id.dataset, id)
    }

    /// The clone of this snapshot for which the same is true, if any: a clone that has no snapshots of its own yet.
    pub(crate) fn clone_received_on(&self, id: SnapshotId) -> Result<Option<Dataset>, DatasetError> {
        for clone in self.clones(id)? {
            if self.is_received_on(clone.id, id)? {
                return Ok(Some(clone));
            }
        }
        Ok(None)
    }

    fn is_received_on(&self, into: DatasetId, base: SnapshotId) -> Result<bool, DatasetError> {
        Ok(self.receive_state(into)?.and_then(|state| state.base) == Some(base))
    }

    /// The dataset itself, the dataset of its origin, and so on.
    pub fn lineage(&self, dataset: Dataset) -> impl Iterator<Item = Result<Dataset, DatasetError>> + '_ {
        let (mut next, mut seen) = (Some(Ok(dataset)), BTreeSet::new());
        std::iter::from_fn(move || {
            let dataset: Dataset = match next.take()? {
                Ok(dataset) => dataset,
                Err(error) => return Some(Err(error)),
            };
            seen.insert(dataset.id);
            next = dataset.record.origin.map(|origin| match seen.contains(&origin.dataset) {
                true => Err(DatasetError::corrupt(
                    format!("dataset {}", dataset.name),
                    "it is a clone of itself, through others",
                )),
                false => self.dataset_by_id(origin.dataset),
            });
            Some(Ok(dataset))
        })
    }

    /// The content of a snapshot.
    pub fn objset(&self, snapshot: &Snapshot) -> Objset {
        let view = self.pool.view(snapshot.record.root.clone());
        let name = snapshot.full_name();
        let objset = Objset::new(self.pool.clone(), view, &name, snapshot.kind, snapshot.record.content);
        self.tell_key(objset, snapshot.id.dataset)
    }

    /// The current content of a dataset.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn head(&self, dataset: &Dataset) -> Result<Objset, DatasetError> {
        let view = self.pool.tree(dataset.record.head)?.view();
        let (kind, content) = (dataset.record.kind, dataset.record.content);
        Ok(self.tell_key(Objset::new(self.pool.clone(), view, &dataset.name, kind, content), dataset.id))
    }

    /// Adds the name and location of the key to an encrypted objset, for messages. Errors here are ignored, so that
    /// they do not hide the content.
    fn tell_key(&self, objset: Objset, id: DatasetId) -> Objset {
        match objset.is_encrypted().then(|| self.key_of(id)) {
            Some(Ok((root, location))) => objset.with_key(&root, &location),
            _ => objset,
        }
    }

    /// The packed `crypt_keydata` nvlist of a raw encrypted dataset (`txg` 0) or snapshot.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn key_data(&self, id: DatasetId, txg: Txg) -> Result<Option<Vec<u8>>, DatasetError> {
        Ok(self.meta.get(&keys::key_data(id, txg))?.map(|entry| entry.value.to_vec()))
    }

    /// The pool's history, oldest first: the time (seconds since 1970) and the command.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn history(&self) -> Result<Vec<(u64, String)>, DatasetError> {
        let prefix = [keys::HISTORY];
        let mut lines = Vec::new();
        for item in self.meta.range(&prefix, keys::after(&prefix).as_deref()) {
            let (_, entry) = item?;
            lines.push((keys::number(&entry.value, 0)?, keys::text(&entry.value, 8)?));
        }
        Ok(lines)
    }
}
