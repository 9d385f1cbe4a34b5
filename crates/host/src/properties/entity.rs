//! An object with properties: a dataset, snapshot or bookmark.

use snowmelt_dataset::property::Types;
use snowmelt_dataset::{Bookmark, Catalog, Dataset, DatasetError, DatasetId, Found, Kind, Name, Snapshot};

/// Something that has a name and properties.
#[derive(Debug, Clone)]
pub enum Entity {
    /// A filesystem or volume.
    Dataset(Dataset),
    /// A snapshot, by its full name too.
    Snapshot(Snapshot, String),
    /// A bookmark, by its full name too.
    Bookmark(Bookmark, String),
}

impl Entity {
    /// Finds it by name.
    ///
    /// # Errors
    /// When there is none, or the name is not valid.
    pub fn find(catalog: &Catalog, name: &str) -> Result<Self, DatasetError> {
        Ok(catalog.find(&Name::parse(name)?)?.into())
    }

    /// Its full name.
    pub fn name(&self) -> &str {
        match self {
            Self::Dataset(dataset) => &dataset.name,
            Self::Snapshot(_, name) | Self::Bookmark(_, name) => name,
        }
    }

    /// The name of its dataset.
    pub fn dataset_name(&self) -> &str {
        match self {
            Self::Dataset(dataset) => &dataset.name,
            Self::Snapshot(snapshot, _) => &snapshot.dataset,
            Self::Bookmark(bookmark, _) => &bookmark.dataset,
        }
    }

    /// Its type, as the one member of a set.
    pub fn types(&self) -> Types {
        match self {
            Self::Dataset(dataset) => of_kind(dataset.record.kind),
            Self::Snapshot(..) => Types::SNAPSHOT,
            Self::Bookmark(..) => Types::BOOKMARK,
        }
    }

    /// The word for its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Dataset(dataset) => dataset.record.kind.name(),
            Self::Snapshot(..) => "snapshot",
            Self::Bookmark(..) => "bookmark",
        }
    }

    /// The kind of its data; unknown for a bookmark.
    pub fn content_kind(&self) -> Option<Kind> {
        match self {
            Self::Dataset(dataset) => Some(dataset.record.kind),
            Self::Snapshot(snapshot, _) => Some(snapshot.kind),
            Self::Bookmark(..) => None,
        }
    }

    /// The txg it was made in here.
    pub fn createtxg(&self) -> u64 {
        match self {
            Self::Dataset(dataset) => dataset.record.createtxg,
            Self::Snapshot(snapshot, _) => snapshot.id.txg,
            Self::Bookmark(bookmark, _) => bookmark.record.createtxg,
        }
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        match self {
            Self::Dataset(dataset) => dataset.record.guid,
            Self::Snapshot(snapshot, _) => snapshot.record.guid,
            Self::Bookmark(bookmark, _) => bookmark.record.guid,
        }
    }

    /// When it was made: seconds since 1970.
    pub fn creation(&self) -> u64 {
        match self {
            Self::Dataset(dataset) => dataset.record.creation,
            Self::Snapshot(snapshot, _) => snapshot.record.creation,
            Self::Bookmark(bookmark, _) => bookmark.record.creation,
        }
    }

    /// Where its own properties are kept: dataset, and txg of the snapshot or 0. Bookmarks keep none.
    pub fn place(&self) -> Option<(DatasetId, u64)> {
        match self {
            Self::Dataset(dataset) => Some((dataset.id, 0)),
            Self::Snapshot(snapshot, _) => Some((snapshot.id.dataset, snapshot.id.txg)),
            Self::Bookmark(..) => None,
        }
    }

    /// Order among what belongs to one dataset: itself, its snapshots, its bookmarks.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Dataset(_) => 0,
            Self::Snapshot(..) => 1,
            Self::Bookmark(..) => 2,
        }
    }
}

impl From<Dataset> for Entity {
    fn from(dataset: Dataset) -> Self {
        Self::Dataset(dataset)
    }
}

impl From<Snapshot> for Entity {
    fn from(snapshot: Snapshot) -> Self {
        let name = snapshot.full_name();
        Self::Snapshot(snapshot, name)
    }
}

impl From<Bookmark> for Entity {
    fn from(bookmark: Bookmark) -> Self {
        let name = bookmark.full_name();
        Self::Bookmark(bookmark, name)
    }
}

impl From<Found> for Entity {
    fn from(found: Found) -> Self {
        match found {
            Found::Dataset(dataset) => dataset.into(),
            Found::Snapshot(snapshot) => snapshot.into(),
            Found::Bookmark(bookmark) => bookmark.into(),
        }
    }
}

/// The type of a dataset of this kind.
pub fn of_kind(kind: Kind) -> Types {
    match kind {
        Kind::Filesystem => Types::FILESYSTEM,
        Kind::Volume => Types::VOLUME,
    }
}
