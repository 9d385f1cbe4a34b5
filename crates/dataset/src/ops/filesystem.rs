//! Filesystems: the initial content of a new one, and opening its head for writing.

use std::sync::Arc;

use snowmelt_stream::features::Features;
use snowmelt_zpl::memory::{MemoryObjects, MemoryObjset};
use snowmelt_zpl::normalize::NormFlags;
use snowmelt_zpl::{
    CaseSensitivity, Filesystem, FilesystemMut, NamePolicy, NewFilesystem, ObjectsMut, Room, Timestamp,
    WriteOptions, XattrStore, ZplError, create_filesystem,
};

use crate::catalog::{Catalog, Dataset};
use crate::datasets::Change;
use crate::error::DatasetError;
use crate::head::Head;
use crate::objset::fill::fill;
use crate::property::parse_size;
use crate::random;

/// Values of the property `normalization`.
const NORMALIZATIONS: [(&str, NormFlags); 5] = [
    ("none", NormFlags::NONE),
    ("formC", NormFlags::NFC),
    ("formD", NormFlags::NFD),
    ("formKC", NormFlags::NFKC),
    ("formKD", NormFlags::NFKD),
];

fn failed(error: ZplError) -> DatasetError {
    DatasetError::corrupt("new filesystem", error.to_string())
}

/// The objects of a new filesystem with these properties in canonical text.
///
/// # Errors
/// When a property has a value that a filesystem cannot have.
pub fn new_filesystem_objects(properties: &[(String, String)]) -> Result<MemoryObjects, DatasetError> {
    let value = |name: &str| {
        let found = properties.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    };
    let case = match value("casesensitivity") {
        Some("insensitive") => CaseSensitivity::Insensitive,
        Some("mixed") => CaseSensitivity::Mixed,
        _ => CaseSensitivity::Sensitive,
    };
    let forms = NORMALIZATIONS.iter().find(|(name, _)| Some(*name) == value("normalization"));
    let normalization = forms.map_or(NormFlags::NONE, |(_, flags)| *flags);
    let names = NamePolicy { case, normalization, utf8_only: value("utf8only") == Some("on") };
    let new = NewFilesystem {
        names,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        now: now(),
        dnode_slots: dnode_slots(value("dnodesize").unwrap_or("legacy")),
        seed: random::guid(),
        ..NewFilesystem::default()
    };
    let objects = MemoryObjset::default();
    let tx = objects
        .begin(Room::Write(NewFilesystem::ROOM))
        .map_err(|error| DatasetError::corrupt("new filesystem", error.to_string()))?;
    create_filesystem(&objects, &tx, &new).map_err(failed)?;
    drop(tx);
    Ok(objects.snapshot())
}

fn now() -> Timestamp {
    const SECOND: u64 = 1_000_000_000;
    let since = random::nanoseconds();
    Timestamp {
        seconds: i64::try_from(since / SECOND).unwrap_or(i64::MAX),
        nanoseconds: u32::try_from(since % SECOND).unwrap_or(0),
    }
}

/// Number of 512-byte slots of a dnode for a value of `dnodesize`.
fn dnode_slots(value: &str) -> u8 {
    match value {
        "legacy" => 1,
        "auto" => 2,
        size => parse_size(size).ok().and_then(|bytes| u8::try_from(bytes / 512).ok()).unwrap_or(1),
    }
}

/// The options for writing to a filesystem, from its properties.
///
/// # Errors
/// When the pool cannot be read.
pub fn write_options(catalog: &Catalog, dataset: &Dataset) -> Result<WriteOptions, DatasetError> {
    let value = |name: &str| -> Result<Option<String>, DatasetError> {
        Ok(catalog.inherited_property(dataset, name)?.map(|(value, ..)| value))
    };
    let record_size = match value("recordsize")? {
        Some(text) => parse_size(&text).ok().and_then(|size| u32::try_from(size).ok()),
        None => None,
    };
    let xattr = match value("xattr")?.as_deref() {
        Some("off") => XattrStore::Off,
        Some("dir") => XattrStore::Dir,
        // `sa` is the default of ZFS 2.3, and every ZFS that can receive our streams can read it.
        _ => XattrStore::Sa,
    };
    let posix_acl = matches!(value("acltype")?.as_deref(), Some("posix" | "posixacl"));
    let slots = dnode_slots(value("dnodesize")?.as_deref().unwrap_or("legacy"));
    let default = WriteOptions::default();
    Ok(WriteOptions {
        record_size: record_size.unwrap_or(default.record_size),
        xattr,
        posix_acl,
        dnode_slots: slots,
        ..default
    })
}

impl Change<'_> {
    /// Makes an empty head a filesystem without files.
    pub(crate) fn fill_filesystem(
        &self,
        dataset: &mut Dataset,
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        let objects = new_filesystem_objects(&self.with_name_rules(dataset, properties)?)?;
        fill(&self.hold, &*self.pool().tree(dataset.record.head)?, &objects)?;
        if objects.objects.values().any(|object| object.dnode.slots > 1) {
            dataset.record.content.features |= Features::LARGE_DNODE;
            self.put_dataset(dataset.id, &dataset.record)?;
        }
        Ok(())
    }

    /// Properties of a new filesystem, with the rules for names that it gets from its parent (`zfs_fill_zplprops`).
    pub(crate) fn with_name_rules(
        &self,
        dataset: &Dataset,
        properties: &[(String, String)],
    ) -> Result<Vec<(String, String)>, DatasetError> {
        let mut all = properties.to_vec();
        let catalog = self.catalog();
        let parent = catalog.dataset_by_id(dataset.record.parent)?;
        // An encrypted or partly received parent has no readable rules.
        let Ok(parent) = Filesystem::open(catalog.head(&parent)?) else { return Ok(all) };
        let policy = parent.name_policy();
        let case = match policy.case {
            CaseSensitivity::Sensitive => "sensitive",
            CaseSensitivity::Insensitive => "insensitive",
            CaseSensitivity::Mixed => "mixed",
        };
        let form = NORMALIZATIONS.iter().find(|(_, flags)| *flags == policy.normalization);
        let form = form.map_or("none", |(name, _)| *name);
        let utf8 = if policy.utf8_only { "on" } else { "off" };
        for (name, value) in [("casesensitivity", case), ("normalization", form), ("utf8only", utf8)] {
            if !all.iter().any(|(other, _)| other == name) {
                all.push((name.to_owned(), value.to_owned()));
            }
        }
        Ok(all)
    }
}

impl Head {
    /// The filesystem for writing, with the options from the dataset's properties.
    ///
    /// # Errors
    /// When this is not a filesystem, or is read-only.
    pub fn filesystem(self: &Arc<Self>, catalog: &Catalog) -> Result<FilesystemMut<Arc<Self>>, DatasetError> {
        let dataset = catalog.dataset_by_id(self.id())?;
        let options = write_options(catalog, &dataset)?;
        FilesystemMut::open(self.clone(), options, random::guid())
            .map_err(|error| DatasetError::refused(dataset.name, error.to_string()))
    }
}
