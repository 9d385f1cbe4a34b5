//! The head of a package: the list of its filesystems, snapshots, properties and holds (`gather_nvlist`,
//! `send_iterate_fs`, `send_iterate_snap` and `send_prelim_records` of `lib/libzfs/libzfs_sendrecv.c`).
//!
//! ```text
//! { "fromsnap" -> name, if incremental; "tosnap" -> name; "not_recursive", "raw" -> flags;
//!   "fss" -> { guid -> { "name", "parentfromsnap" -> guid, "origin" -> guid of a clone's,
//!                        "props" -> { name -> value }, "is_encroot" -> flag,
//!                        "snaps" -> { name -> guid }, "snapprops" -> { name -> { name -> value } },
//!                        "snapholds" -> { name -> { tag -> seconds } } } } }
//! ```

use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::{NvList, NvValue};
use snowmelt_stream::record::{Begin, BeginFlags, HeaderType};

use super::begin::to_name;
use super::{SendFlags, properties};
use crate::catalog::{Catalog, Dataset, Snapshot};
use crate::error::{DatasetError, SendError};
use crate::name::{NESTING_MAX, Name};

/// Maximal length of a list that receivers accept (`libzfs_max_nvlist`, minus space for the rest).
const PAYLOAD_MAX: usize = 32 * 1024 * 1024;

/// A package's BEGIN.
#[derive(Debug, Clone)]
pub(super) struct Package {
    to_name: String,
    features: Features,
    list: Option<NvList>,
}

impl Package {
    /// A package without a list, which only groups streams (`-I`).
    pub(super) fn bare(to_name: String) -> Self {
        Self { to_name, features: Features::NONE, list: None }
    }

    /// The record and its payload. It contains neither guids nor flags nor the features of the streams.
    pub(super) fn begin(&self) -> Result<(Begin, Vec<u8>), SendError> {
        let payload = self.list.as_ref().map(NvList::pack_xdr).unwrap_or_default();
        if payload.len() > PAYLOAD_MAX {
            return Err(SendError::Unsendable {
                name: self.to_name.clone(),
                why: "the size of the list of snapshots and properties is too large to be received successfully; \
                      select a smaller number of snapshots to send"
                    .to_owned(),
            });
        }
        let begin = Begin {
            header_type: HeaderType::Compound,
            features: self.features,
            creation_time: 0,
            objset_type: 0,
            flags: BeginFlags::default(),
            to_guid: 0,
            from_guid: 0,
            to_name: to_name(&self.to_name)?,
            payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        };
        Ok((begin, payload))
    }
}

/// The scope of a package.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    /// Name of the sent snapshots.
    pub(super) to: &'a str,
    /// Name of the base snapshots.
    pub(super) from: Option<&'a str>,
    /// Whether the snapshots between are also sent.
    pub(super) all: bool,
    /// Whether descendants are also sent.
    pub(super) replicate: bool,
    pub(super) flags: &'a SendFlags,
}

/// A dataset of a package.
#[derive(Debug, Clone)]
pub(super) struct Filesystem {
    pub(super) dataset: Dataset,
    pub(super) to: Snapshot,
    /// Its own snapshot with the name of the base, if it has one.
    pub(super) from: Option<Snapshot>,
}

/// All datasets of a package, parents before children.
pub(super) struct Gathered<'a> {
    scope: Scope<'a>,
    catalog: &'a Catalog,
    list: NvList,
    pub(super) filesystems: Vec<Filesystem>,
    pub(super) warnings: Vec<String>,
    /// Name of the topmost dataset, for messages.
    top: String,
}

impl<'a> Scope<'a> {
    /// Gathers the dataset of `to` and its descendants.
    pub(super) fn gather(self, catalog: &'a Catalog, to: &Snapshot) -> Result<Gathered<'a>, SendError> {
        let top = catalog.dataset_by_id(to.id.dataset)?;
        let mut gathered = Gathered {
            scope: self,
            catalog,
            list: NvList::new(),
            filesystems: Vec::new(),
            warnings: Vec::new(),
            top: top.name.clone(),
        };
        gathered.filesystem(top, 0, None, 0)?;
        Ok(gathered)
    }
}

impl Gathered<'_> {
    /// The package. Its BEGIN names `to`.
    pub(super) fn into_package(self, to: &Snapshot, single: bool) -> Package {
        let mut list = NvList::new();
        if let Some(from) = self.scope.from {
            list.insert("fromsnap", from);
        }
        list.insert("tosnap", self.scope.to);
        if single {
            list.insert("not_recursive", NvValue::Boolean);
        }
        if self.scope.flags.raw {
            list.insert("raw", NvValue::Boolean);
        }
        list.insert("fss", self.list);
        let features = if self.scope.flags.holds { Features::HOLDS } else { Features::NONE };
        Package { to_name: to.full_name(), features, list: Some(list) }
    }

    /// Gathers a dataset and its descendants. `parent_guid` is the guid of the parent's base snapshot, `parent_to` the
    /// txg of the parent's sent snapshot.
    fn filesystem(
        &mut self,
        dataset: Dataset,
        parent_guid: u64,
        parent_to: Option<u64>,
        depth: usize,
    ) -> Result<(), SendError> {
        if depth > NESTING_MAX || self.scope.flags.exclude.contains(&dataset.name) {
            return Ok(());
        }
        let from = match self.scope.from {
            Some(from) => self.snapshot(&dataset, from)?,
            None => None,
        };
        let Some(to) = self.snapshot(&dataset, self.scope.to)? else {
            return self.missing(&dataset, parent_to);
        };
        let filesystem = Filesystem { dataset, to, from };
        let (list, guid) = self.describe(&filesystem, parent_guid)?;
        let dataset = filesystem.dataset.clone();
        let to_txg = filesystem.to.id.txg;
        self.list.insert(format!("{:#x}", dataset.record.guid), list);
        self.filesystems.push(filesystem);
        if self.scope.replicate {
            for child in self.catalog.children(&dataset)? {
                self.filesystem(child, guid, Some(to_txg), depth + 1)?;
            }
        }
        Ok(())
    }

    /// Handles a dataset without the snapshot. One that was created after the parent's snapshot is left out without a
    /// warning.
    fn missing(&mut self, dataset: &Dataset, parent_to: Option<u64>) -> Result<(), SendError> {
        let Scope { to, flags, replicate, .. } = self.scope;
        if parent_to.is_some_and(|txg| dataset.record.createtxg > txg) {
            return Ok(());
        }
        if !flags.skip_missing {
            let how = if replicate { " recursively" } else { "" };
            return Err(SendError::Unsendable {
                name: format!("{}@{to}", self.top),
                why: format!("cannot send{how}: snapshot {}@{to} does not exist", dataset.name),
            });
        }
        self.warnings.push(format!(
            "WARNING: skipping dataset {} and its children: snapshot {to} does not exist",
            dataset.name
        ));
        Ok(())
    }

    fn snapshot(&self, dataset: &Dataset, name: &str) -> Result<Option<Snapshot>, SendError> {
        let full = Name::parse(&format!("{}@{name}", dataset.name)).map_err(DatasetError::from)?;
        match self.catalog.snapshot(&full) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(DatasetError::NotFound { .. }) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }

    /// The description of a dataset in the package, and the guid by which its children refer to it: that of the base,
    /// or of the sent snapshot if there is no base.
    fn describe(&self, filesystem: &Filesystem, parent_guid: u64) -> Result<(NvList, u64), SendError> {
        let Filesystem { dataset, to, from } = filesystem;
        let Scope { flags, replicate, .. } = self.scope;
        let mut list = NvList::new();
        list.insert("name", dataset.name.as_str());
        list.insert("parentfromsnap", parent_guid);
        if let Some(origin) = dataset.record.origin {
            let origin = self.catalog.snapshot_by_id(origin)?;
            if flags.within.as_ref().is_none_or(|subtree| subtree.contains(&origin.dataset)) {
                list.insert("origin", origin.record.guid);
            }
        }
        let encrypted = to.record.content.features.contains(Features::RAW);
        let encryption_root = encrypted && self.catalog.encryption_root(dataset.id)? == dataset.id;
        if flags.properties || flags.backup || replicate {
            let kind = dataset.record.kind;
            let mut props = properties::list(self.catalog, dataset.id, 0, kind, flags.backup)?;
            // Receivers of an encryption root need this.
            if encryption_root && !props.contains("keylocation") {
                props.insert("keylocation", self.catalog.key_location(dataset.id)?);
            }
            list.insert("props", props);
        }
        if encrypted && !flags.raw {
            return Err(SendError::NeedsRaw { name: dataset.name.clone() });
        }
        if encryption_root {
            list.insert("is_encroot", NvValue::Boolean);
        }
        let (mut snaps, mut snapprops, mut snapholds) = (NvList::new(), NvList::new(), NvList::new());
        for snapshot in self.known_snapshots(filesystem)? {
            let name = snapshot.record.name.clone();
            snaps.pairs.push((name.clone(), snapshot.record.guid.into()));
            if !self.is_sent(filesystem, &snapshot) {
                continue;
            }
            let id = snapshot.id;
            let props = properties::list(self.catalog, id.dataset, id.txg, snapshot.kind, flags.backup)?;
            snapprops.pairs.push((name.clone(), props.into()));
            if flags.holds {
                let holds = self.catalog.holds(id)?;
                let holds: NvList = holds.into_iter().map(|(tag, when)| (tag, when.into())).collect();
                snapholds.pairs.push((name, holds.into()));
            }
        }
        list.insert("snaps", snaps);
        list.insert("snapprops", snapprops);
        if flags.holds {
            list.insert("snapholds", snapholds);
        }
        Ok((list, from.as_ref().unwrap_or(to).record.guid))
    }

    /// The snapshots that the package lists, oldest first.
    fn known_snapshots(&self, filesystem: &Filesystem) -> Result<Vec<Snapshot>, SendError> {
        let Filesystem { dataset, to, from } = filesystem;
        let first = match (self.scope.replicate, self.scope.all, from) {
            (true, _, _) | (false, true, None) => 0,
            (false, true, Some(from)) => from.id.txg,
            (false, false, _) => to.id.txg,
        };
        let mut known = Vec::new();
        for snapshot in self.catalog.snapshots_after(dataset, first.saturating_sub(1)) {
            let snapshot = snapshot?;
            if snapshot.id.txg > to.id.txg {
                break;
            }
            known.push(snapshot);
        }
        Ok(known)
    }

    /// Whether properties and holds of a snapshot are included. For a replicated dataset, those of all snapshots are
    /// included, even if the receiver already has the snapshots.
    fn is_sent(&self, filesystem: &Filesystem, snapshot: &Snapshot) -> bool {
        self.scope.replicate || filesystem.from.as_ref().is_none_or(|from| snapshot.id.txg > from.id.txg)
    }
}
