//! `create`: creates an empty dataset.

use snowmelt_pool::TreeId;

use crate::catalog::record::DatasetRecord;
use crate::catalog::{
    Catalog, Content, Dataset, DatasetId, Kind, PropertyKind, Settings, SnapshotId, SpaceReader, keys,
};
use crate::datasets::{CHANGE_BYTES, Change, Datasets};
use crate::error::DatasetError;
use crate::limits::begin_with_room;
use crate::name::Name;
use crate::random;

/// Options for creating a dataset.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Also create missing parents, and accept that the dataset exists (`-p`).
    pub parents: bool,
    /// Properties in canonical text.
    pub properties: Vec<(String, String)>,
}

impl Datasets {
    /// Creates a filesystem.
    ///
    /// # Errors
    /// When it exists, its parent does not exist, its reservation is too large ([`DatasetError::OutOfSpace`]), or the
    /// pool cannot be written.
    pub fn create_filesystem(&self, name: &str, options: &CreateOptions) -> Result<(), DatasetError> {
        let name = Name::parse_dataset(name)?;
        let change = self.change_to_create(name.dataset(), &options.properties)?;
        if let Ok(existing) = change.catalog().dataset(name.dataset()) {
            return if options.parents { Ok(()) } else { Err(DatasetError::Exists { name: existing.name }) };
        }
        if options.parents {
            change.create_parents(name.dataset())?;
        }
        let mut dataset = change.create_dataset(name.dataset(), Kind::Filesystem, None)?;
        change.fill_filesystem(&mut dataset, &options.properties)?;
        for (property, value) in &options.properties {
            change.put(
                &keys::property(dataset.id, 0, PropertyKind::Local.code(), property),
                value.as_bytes(),
            )?;
        }
        change.commit()
    }
}

impl Datasets {
    /// Begins a change that creates a dataset with these properties.
    pub(crate) fn change_to_create(
        &self,
        name: &str,
        properties: &[(String, String)],
    ) -> Result<Change<'_>, DatasetError> {
        self.catalog().require_features_of(name, properties)?;
        let limits = Settings::among(properties);
        if limits.is_none() {
            return self.change();
        }
        let check = |catalog: &Catalog| {
            // With `-p`, some parents may not exist yet.
            let above = name.rmatch_indices('/').map(|(at, _)| &name[..at]);
            let parent = above.map(|name| catalog.dataset(name)).find(Result::is_ok);
            match parent {
                Some(parent) if catalog.dataset(name).is_err() => {
                    SpaceReader::new(catalog).check_new(name, &parent?, limits)
                }
                // The change is refused for another reason.
                _ => Ok(()),
            }
        };
        self.checked_change(check, |pool| begin_with_room(pool, CHANGE_BYTES))
    }
}

impl Change<'_> {
    /// Creates every missing parent of `name`.
    pub(crate) fn create_parents(&self, name: &str) -> Result<(), DatasetError> {
        for (at, _) in name.match_indices('/') {
            let above = &name[..at];
            match self.catalog().dataset(above) {
                Ok(_) => {}
                Err(DatasetError::NotFound { .. }) if above.contains('/') => {
                    let mut made = self.create_dataset(above, Kind::Filesystem, None)?;
                    self.fill_filesystem(&mut made, &[])?;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Creates a dataset with an empty head.
    pub(crate) fn create_dataset(
        &self,
        name: &str,
        kind: Kind,
        origin: Option<SnapshotId>,
    ) -> Result<Dataset, DatasetError> {
        let (above, last) =
            name.rsplit_once('/').ok_or_else(|| DatasetError::NotFound { name: name.to_owned() })?;
        let parent = self.catalog().dataset(above).map_err(|error| match error {
            DatasetError::NotFound { .. } => DatasetError::NoParent { name: name.to_owned() },
            other => other,
        })?;
        check_can_be_above(&parent, name)?;
        let id = DatasetId(self.next("dataset", 2)?);
        let head: TreeId = self.pool().create_tree(&self.hold)?.id();
        let record = DatasetRecord {
            kind,
            inconsistent: false,
            guid: random::guid(),
            creation: random::now(),
            createtxg: self.txg(),
            parent: parent.id,
            name: last.to_owned(),
            head,
            origin,
            content: Content::default(),
        };
        self.put(&keys::dataset(id), &record.encode())?;
        self.put(&keys::child(parent.id, last), &id.0.to_be_bytes())?;
        if let Some(origin) = origin {
            self.put(&keys::clone(origin.dataset, origin.txg, id), &[])?;
        }
        Ok(Dataset { id, name: name.to_owned(), record })
    }

    /// Writes a dataset's record.
    pub(crate) fn put_dataset(&self, id: DatasetId, record: &DatasetRecord) -> Result<(), DatasetError> {
        self.put(&keys::dataset(id), &record.encode())
    }
}

/// Checks that `parent` may have children: only filesystems may.
pub(crate) fn check_can_be_above(parent: &Dataset, name: &str) -> Result<(), DatasetError> {
    match parent.record.kind {
        Kind::Filesystem => Ok(()),
        Kind::Volume => Err(DatasetError::refused(name, "parent is not a filesystem")),
    }
}
