//! The staging writer: creates a dataset's next snapshot in addition to its head.
//!
//! It writes to a separate tree that starts with the content of the newest snapshot. At the end, that tree becomes head
//! and snapshot in one txg. Otherwise it is removed: when the [`Staging`] is dropped, or, after a crash, when the pool
//! is opened next. So an import is visible completely or not at all.

use std::sync::Arc;

use parking_lot::Mutex;
use snowmelt_pool::{Tree, View};
use snowmelt_stream::features::Features;
use snowmelt_zpl::memory::MemoryObjects;

use crate::catalog::record::ReceiveState;
use crate::catalog::{Catalog, Content, Dataset, DatasetId, Kind, PropertyKind, Snapshot, SnapshotId, keys};
use crate::datasets::{Change, Datasets};
use crate::error::{DatasetError, ReceiveError};
use crate::head::Head;
use crate::listing::Listings;
use crate::name::Name;
use crate::objset::fill::fill;
use crate::ops::snapshot::SnapshotIdentity;
use crate::random;
use crate::receive::check_unmodified;

/// Options of a staging writer.
#[derive(Debug, Clone, Default)]
pub struct StageOptions {
    /// Create missing parents.
    pub parents: bool,
    /// Discard changes of the head since its newest snapshot (`-F`).
    pub force: bool,
    /// Local properties for a dataset that is created, in canonical text.
    pub properties: Vec<(String, String)>,
    /// The content of files or of the volume stays outside the pool, for the objects passed to [`Head::refer_outside`]:
    /// only hashes are stored.
    pub shadow: bool,
}

/// A dataset's next snapshot that is being written. If it is dropped without [`Staging::finish`], it is removed.
pub struct Staging<'a> {
    datasets: &'a Datasets,
    id: DatasetId,
    tree: Arc<Tree>,
    head: Arc<Head>,
    base: Option<Snapshot>,
    content: Content,
    force: bool,
    listings: Mutex<Listings>,
    finished: bool,
}

impl Datasets {
    /// Begins the next snapshot of `name`. The dataset is created if it does not exist. `first` returns the objects of
    /// a dataset that is new or still empty.
    ///
    /// # Errors
    /// [`ReceiveError::Modified`] when the head was written since its newest snapshot; [`ReceiveError::Busy`] while
    /// another receive or staging writer is active; [`DatasetError::WrongType`], [`DatasetError::NoParent`]; when the
    /// pool cannot be written.
    pub fn stage(
        &self,
        name: &str,
        kind: Kind,
        first: impl FnOnce(&[(String, String)]) -> Result<MemoryObjects, DatasetError>,
        options: &StageOptions,
    ) -> Result<Staging<'_>, ReceiveError> {
        let name = Name::parse_dataset(name).map_err(DatasetError::from)?;
        self.settle()?;
        let change = self.change()?;
        let catalog = change.catalog();
        let existing = match catalog.dataset(name.dataset()) {
            Ok(dataset) => Some(dataset),
            Err(DatasetError::NotFound { .. }) => None,
            Err(other) => return Err(other.into()),
        };
        let Some(dataset) = existing else {
            if options.parents {
                change.create_parents(name.dataset())?;
            }
            return change.stage_new(name.dataset(), kind, first, options);
        };
        if !self.begin_receiving(dataset.id) {
            return Err(ReceiveError::Busy { name: dataset.name });
        }
        let staged = change.stage_existing(&catalog, &dataset, kind, first, options);
        staged.inspect_err(|_| self.end_receiving(dataset.id))
    }
}

/// The record of a staging writer for the case of a crash: a receive that cannot be resumed.
fn state(tree: &Tree, base: Option<SnapshotId>, content: Content) -> ReceiveState {
    ReceiveState {
        resumable: false,
        tree: tree.id(),
        base,
        to_guid: 0,
        from_guid: 0,
        to_name: String::new(),
        features: Features::NONE,
        object: 0,
        offset: 0,
        bytes: 0,
        content,
        key_data: Vec::new(),
    }
}

impl<'a> Change<'a> {
    fn stage_new(
        self,
        name: &str,
        kind: Kind,
        first: impl FnOnce(&[(String, String)]) -> Result<MemoryObjects, DatasetError>,
        options: &StageOptions,
    ) -> Result<Staging<'a>, ReceiveError> {
        let mut dataset = self.create_dataset(name, kind, None)?;
        dataset.record.inconsistent = true;
        self.put_dataset(dataset.id, &dataset.record)?;
        for (property, value) in &options.properties {
            self.set_property(dataset.id, 0, PropertyKind::Local, property, value)?;
        }
        let tree = self.pool().tree(dataset.record.head)?;
        fill(&self.hold, &tree, &first(&self.with_name_rules(&dataset, &options.properties)?)?)?;
        self.put(&keys::receive(dataset.id), &state(&tree, None, Content::default()).encode())?;
        self.datasets.begin_receiving(dataset.id);
        self.staged(&dataset, tree, None, Content::default(), options)
    }

    fn stage_existing(
        self,
        catalog: &Catalog,
        dataset: &Dataset,
        kind: Kind,
        first: impl FnOnce(&[(String, String)]) -> Result<MemoryObjects, DatasetError>,
        options: &StageOptions,
    ) -> Result<Staging<'a>, ReceiveError> {
        if dataset.record.kind != kind {
            return Err(DatasetError::WrongType { name: dataset.name.clone() }.into());
        }
        if dataset.record.content.features.contains(Features::RAW) {
            return Err(catalog.head(dataset)?.encrypted(0).into());
        }
        if catalog.receive_state(dataset.id)?.is_some() {
            return Err(ReceiveError::PartialState { name: dataset.name.clone() });
        }
        let base = base_of(catalog, dataset)?;
        if !options.force {
            match &base {
                Some(base) => check_unmodified(catalog, dataset, base)?,
                None => check_new(catalog, dataset)?,
            }
        }
        let tree = self.pool().create_tree(&self.hold)?;
        let content = match &base {
            Some(base) => {
                tree.reset(&self.hold, base.record.root.clone(), base.record.stats)?;
                let deadlist = self.pool().create_tree(&self.hold)?.id();
                tree.set_sharing(&self.hold, base.id.txg, Some(deadlist))?;
                base.record.content
            }
            None => {
                let stored = catalog.stored_properties(dataset.id, 0)?;
                let known: Vec<_> = stored.into_iter().map(|stored| (stored.name, stored.value)).collect();
                fill(&self.hold, &tree, &first(&self.with_name_rules(dataset, &known)?)?)?;
                Content::default()
            }
        };
        let state = state(&tree, base.as_ref().map(|base| base.id), content);
        self.put(&keys::receive(dataset.id), &state.encode())?;
        self.staged(dataset, tree, base, content, options)
    }

    fn staged(
        self,
        dataset: &Dataset,
        tree: Arc<Tree>,
        base: Option<Snapshot>,
        content: Content,
        options: &StageOptions,
    ) -> Result<Staging<'a>, ReceiveError> {
        let head =
            Head::staged(&self.catalog(), dataset, &self.datasets.limits, tree.clone(), options.shadow)?;
        let datasets = self.datasets;
        let (id, force) = (dataset.id, options.force);
        let listings = Mutex::new(datasets.listings_of(id, base.as_ref())?);
        Ok(Staging { datasets, id, tree, head, base, content, force, listings, finished: false })
    }
}

/// The base of a dataset's next snapshot: its newest one, or its origin.
fn base_of(catalog: &Catalog, dataset: &Dataset) -> Result<Option<Snapshot>, DatasetError> {
    match (catalog.newest_snapshot(dataset)?, dataset.record.origin) {
        (None, Some(origin)) => catalog.snapshot_by_id(origin).map(Some),
        (newest, _) => Ok(newest),
    }
}

/// Checks that a dataset without snapshots was not written since it was created, so that it may be replaced.
fn check_new(catalog: &Catalog, dataset: &Dataset) -> Result<(), ReceiveError> {
    let head = catalog.head(dataset)?;
    match head.view().changes_since(dataset.record.createtxg, &[]).next().transpose()? {
        Some(_) => Err(ReceiveError::Modified { name: dataset.name.clone() }),
        None => Ok(()),
    }
}

impl Staging<'_> {
    /// The head to write to.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    pub(crate) fn datasets(&self) -> &Datasets {
        self.datasets
    }

    pub(crate) fn listings(&self) -> &Mutex<Listings> {
        &self.listings
    }

    /// The snapshot that it starts from.
    pub fn base(&self) -> Option<&Snapshot> {
        self.base.as_ref()
    }

    /// The dataset.
    pub fn id(&self) -> DatasetId {
        self.id
    }

    /// Makes the staged content the dataset's head and its snapshot `short`, and waits until that is durable.
    ///
    /// # Errors
    /// [`ReceiveError::Modified`] when the head was written, or a snapshot taken, meanwhile; [`DatasetError::Exists`];
    /// when the pool cannot be written. The staged content is then removed.
    pub fn finish(mut self, short: &str, properties: &[(String, String)]) -> Result<Snapshot, ReceiveError> {
        let id = self.datasets.sync_change(|change| self.make_visible(change, short, properties))?;
        self.finished = true;
        Ok(self.datasets.catalog().snapshot_by_id(id)?)
    }

    /// As [`Staging::finish`], but takes no snapshot if the staged content is equal to the newest snapshot.
    ///
    /// # Errors
    /// As [`Staging::finish`].
    pub fn finish_if_changed(
        self,
        short: &str,
        properties: &[(String, String)],
    ) -> Result<Option<Snapshot>, ReceiveError> {
        if !self.is_unchanged()? {
            return self.finish(short, properties).map(Some);
        }
        if let Some(base) = &self.base {
            let change = self.datasets.change()?;
            self.listings_tell_of(&change, base)?;
            change.commit()?;
        }
        Ok(None)
    }

    /// Whether the newest snapshot of the dataset, its head, and the staged content are equal.
    fn is_unchanged(&self) -> Result<bool, ReceiveError> {
        let Some(base) = self.base.as_ref().filter(|base| base.id.dataset == self.id) else {
            return Ok(false);
        };
        self.head.sync()?;
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(self.id)?;
        if catalog.newest_snapshot(&dataset)?.map(|newest| newest.id) != Some(base.id) {
            return Ok(false);
        }
        if !self.content.features.contains(self.head.new_features()) {
            return Ok(false);
        }
        match check_unmodified(&catalog, &dataset, base) {
            Err(ReceiveError::Modified { .. }) => return Ok(false),
            checked => checked?,
        }
        let (old, new) = (catalog.objset(base), self.tree.view());
        Ok(View::diff(old.view(), &new, &[]).next().transpose().map_err(DatasetError::from)?.is_none())
    }

    fn make_visible(
        &self,
        change: &Change<'_>,
        short: &str,
        properties: &[(String, String)],
    ) -> Result<SnapshotId, ReceiveError> {
        let catalog = change.catalog();
        let mut dataset = catalog.dataset_by_id(self.id)?;
        let name = Name::parse(&format!("{}@{short}", dataset.name)).map_err(DatasetError::from)?;
        if catalog.snapshot(&name).is_ok() {
            return Err(DatasetError::Exists { name: name.to_string() }.into());
        }
        catalog.check_refquota(&dataset, self.tree.stats().physical, 0)?;
        if dataset.record.head != self.tree.id() {
            // A snapshot that was taken meanwhile is newer than the staged content.
            let newest = base_of(&catalog, &dataset)?;
            if newest.map(|newest| newest.id) != self.base.as_ref().map(|base| base.id) {
                return Err(ReceiveError::Modified { name: dataset.name });
            }
            if !self.force {
                match &self.base {
                    Some(base) => check_unmodified(&catalog, &dataset, base)?,
                    None => check_new(&catalog, &dataset)?,
                }
            }
            change.replace_head(&mut dataset, &self.tree, self.base.as_ref().map(|base| base.id))?;
        }
        dataset.record.inconsistent = false;
        dataset.record.content = self.content;
        dataset.record.content.features |= self.head.new_features();
        change.put_dataset(self.id, &dataset.record)?;
        let identity =
            SnapshotIdentity { name: short.to_owned(), guid: random::guid(), creation: random::now() };
        let snapshot = change.take_snapshot(&mut dataset, identity)?;
        for (property, value) in properties {
            change.set_property(snapshot.dataset, snapshot.txg, PropertyKind::Local, property, value)?;
        }
        self.listings_tell_of(change, &change.catalog().snapshot_by_id(snapshot)?)?;
        change.end_receive(self.id)?;
        Ok(snapshot)
    }

    fn give_up(&self) -> Result<(), DatasetError> {
        self.head.forget();
        let change = self.datasets.freeing_change()?;
        let dataset = change.catalog().dataset_by_id(self.id)?;
        change.give_up_receive(&dataset)?;
        change.commit()
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed when the pool is opened next.
            let _ = self.give_up();
        }
        self.datasets.end_receiving(self.id);
    }
}
