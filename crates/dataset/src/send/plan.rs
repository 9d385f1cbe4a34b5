//! Plans what is sent, for each kind of request.

use std::collections::HashSet;

use snowmelt_pool::Txg;

use super::package::{Filesystem, Package, Scope};
use super::step::{Base, BaseInfo, Step, Style, Target};
use super::{SendFlags, SendPlan, Source};
use crate::catalog::{Bookmark, Catalog, Dataset, DatasetId, PropertyKind, Snapshot, SnapshotId};
use crate::error::SendError;
use crate::name::Name;
use crate::receive::key_data;

/// The snapshot name in the stream of a dataset that is sent in its current state (`dmu_send_impl`).
pub(super) const HEAD_SNAPSHOT: &str = "--head--";

impl SendPlan {
    /// Plans one snapshot: in full, or incremental from an earlier snapshot (`-i`), from a bookmark, or from the origin
    /// of its dataset. With `-p`, `-b` or `-h` the stream is a package.
    ///
    /// # Errors
    /// [`SendError::NotEarlier`]; [`SendError::NeedsRaw`]; when the pool cannot be read.
    pub fn single(
        catalog: &Catalog,
        to: &Snapshot,
        from: Source,
        flags: &SendFlags,
    ) -> Result<Self, SendError> {
        let base = base(catalog, to.id, &to.full_name(), &from)?;
        let step = Step {
            target: target(catalog, to)?,
            base,
            style: Style::from(flags),
            resume: None,
            saved: false,
        };
        let package = match flags.needs_package() {
            true => {
                let scope = Scope { to: &to.record.name, from: None, all: false, replicate: false, flags };
                Some(scope.gather(catalog, to)?.into_package(to, true))
            }
            false => None,
        };
        Ok(Self::of(vec![step], package))
    }

    /// Plans the current state of a dataset, as `zfs send` does for unmounted datasets. The receiver's snapshot is
    /// called `--head--`. Changes that open heads keep in memory are not included.
    ///
    /// # Errors
    /// As [`SendPlan::single`].
    pub fn head(
        catalog: &Catalog,
        dataset: &Dataset,
        from: Source,
        flags: &SendFlags,
    ) -> Result<Self, SendError> {
        let target = head_target(catalog, dataset)?;
        let now = SnapshotId { dataset: dataset.id, txg: Txg::MAX };
        let base = base(catalog, now, &target.name, &from)?;
        let step = Step { target, base, style: Style::from(flags), resume: None, saved: false };
        Ok(Self::of(vec![step], None))
    }

    /// Plans every snapshot after `from` up to `to`, each incremental from the previous one (`-I`). Without a source,
    /// the first one is sent in full, or incremental from the dataset's origin.
    ///
    /// # Errors
    /// As [`SendPlan::single`].
    pub fn all_between(
        catalog: &Catalog,
        from: Source,
        to: &Snapshot,
        flags: &SendFlags,
    ) -> Result<Self, SendError> {
        let dataset = catalog.dataset_by_id(to.id.dataset)?;
        let (mut previous, after) = match &from {
            Source::None => (None, 0),
            Source::Snapshot(snapshot) if snapshot.id.dataset == dataset.id => {
                (Some(base(catalog, to.id, &to.full_name(), &from)?), snapshot.id.txg)
            }
            Source::Bookmark(bookmark) if bookmark.dataset_id == dataset.id => {
                (Some(base(catalog, to.id, &to.full_name(), &from)?), bookmark.record.createtxg)
            }
            // From another dataset, only the clone's origin can be the source.
            Source::Snapshot(snapshot) if dataset.record.origin == Some(snapshot.id) => (None, 0),
            Source::Snapshot(snapshot) => return Err(not_earlier(&snapshot.full_name(), to)),
            Source::Bookmark(bookmark) => return Err(not_earlier(&bookmark.full_name(), to)),
        };
        let mut steps = Vec::new();
        for snapshot in catalog.snapshots_after(&dataset, after) {
            let snapshot = snapshot?;
            if snapshot.id.txg > to.id.txg {
                break;
            }
            let base = match previous.take() {
                Some(base) => base,
                None => origin_base(catalog, &dataset)?,
            };
            previous = Some(snapshot_base(catalog, &snapshot, &snapshot, dataset.id)?);
            let target = target(catalog, &snapshot)?;
            steps.push(Step { target, base, style: Style::from(flags), resume: None, saved: false });
        }
        let from = match &from {
            Source::Snapshot(snapshot) if snapshot.id.dataset == dataset.id => {
                Some(snapshot.record.name.as_str())
            }
            _ => None,
        };
        let package = if flags.needs_package() {
            let scope = Scope { to: &to.record.name, from, all: true, replicate: false, flags };
            scope.gather(catalog, to)?.into_package(to, true)
        } else {
            Package::bare(to.full_name())
        };
        Ok(Self::of(steps, Some(package)))
    }

    /// Plans the snapshots with this name of the dataset and all its descendants (`-R`), with properties, clones and
    /// earlier snapshots. With `from`, the name of a snapshot, the streams are incremental from the snapshots with that
    /// name: including all snapshots between (`true`, `-I`), or in one step (`-i`).
    ///
    /// # Errors
    /// As [`SendPlan::single`]; [`SendError::NoSource`]; when a descendant does not have the snapshot and
    /// [`SendFlags::skip_missing`] is not set.
    pub fn replicate(
        catalog: &Catalog,
        to: &Snapshot,
        from: Option<(&str, bool)>,
        flags: &SendFlags,
    ) -> Result<Self, SendError> {
        let from_name = from.map(|(name, _)| name);
        let all = from.is_none_or(|(_, all)| all);
        if let Some(name) = from_name {
            let full = format!("{}@{name}", to.dataset);
            let parsed = Name::parse(&full).map_err(crate::DatasetError::from)?;
            let source = catalog.snapshot(&parsed).map_err(|_| SendError::NoSource { from: full })?;
            if source.id.txg >= to.id.txg {
                return Err(not_earlier(&source.full_name(), to));
            }
        }
        let scope = Scope { to: &to.record.name, from: from_name, all, replicate: true, flags };
        let gathered = scope.gather(catalog, to)?;
        let origins: HashSet<SnapshotId> =
            gathered.filesystems.iter().filter_map(|fs| fs.dataset.record.origin).collect();
        let mut steps = Vec::new();
        for filesystem in in_order(&gathered.filesystems)? {
            filesystem_steps(catalog, filesystem, &scope, &origins, &mut steps)?;
        }
        let warnings = gathered.warnings.clone();
        let package = gathered.into_package(to, false);
        Ok(Self { warnings, ..Self::of(steps, Some(package)) })
    }
}

/// Parents before children, and origins before their clones (`dump_filesystems`).
fn in_order(filesystems: &[Filesystem]) -> Result<Vec<&Filesystem>, SendError> {
    let inside: HashSet<DatasetId> = filesystems.iter().map(|fs| fs.dataset.id).collect();
    let top = filesystems.first().map(|fs| fs.dataset.id);
    let mut sent = HashSet::new();
    let mut ordered: Vec<&Filesystem> = Vec::new();
    let mut waiting: Vec<&Filesystem> = filesystems.iter().collect();
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain(|fs| {
            let ready = |id: DatasetId| sent.contains(&id) || !inside.contains(&id);
            let record = &fs.dataset.record;
            let parent = Some(fs.dataset.id) == top || ready(record.parent);
            let origin = record.origin.is_none_or(|origin| ready(origin.dataset));
            if parent && origin {
                sent.insert(fs.dataset.id);
                ordered.push(fs);
            }
            !(parent && origin)
        });
        if waiting.len() == before {
            let name = waiting.first().map(|fs| fs.dataset.name.clone()).unwrap_or_default();
            return Err(SendError::Unsendable {
                name,
                why: "the snapshot it was cloned from belongs to a dataset below it".to_owned(),
            });
        }
    }
    Ok(ordered)
}

/// `dump_filesystem`
fn filesystem_steps(
    catalog: &Catalog,
    filesystem: &Filesystem,
    scope: &Scope<'_>,
    origins: &HashSet<SnapshotId>,
    steps: &mut Vec<Step>,
) -> Result<(), SendError> {
    let dataset = &filesystem.dataset;
    let mut previous = None;
    let mut after: Txg = 0;
    // A dataset without the base snapshot is sent from its beginning.
    if let Some(from) = &filesystem.from {
        if from.id.txg >= filesystem.to.id.txg {
            return Err(not_earlier(&from.full_name(), &filesystem.to));
        }
        after = from.id.txg;
        previous = Some(snapshot_base(catalog, from, from, dataset.id)?);
    }
    for snapshot in catalog.snapshots_after(dataset, after) {
        let snapshot = snapshot?;
        let is_last = snapshot.id == filesystem.to.id;
        // Even if the snapshots between are not sent, clones need their origins.
        if scope.all || is_last || origins.contains(&snapshot.id) {
            let base = match previous.take() {
                Some(base) => base,
                None => origin_base(catalog, dataset)?,
            };
            previous = Some(snapshot_base(catalog, &snapshot, &snapshot, dataset.id)?);
            let target = target(catalog, &snapshot)?;
            steps.push(Step { target, base, style: Style::from(scope.flags), resume: None, saved: false });
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// The target for the current state of a dataset. Its guid changes with every write, so a partly received state cannot
/// be completed from another one.
pub(super) fn head_target(catalog: &Catalog, dataset: &Dataset) -> Result<Target, SendError> {
    let tree = catalog.pool().tree(dataset.record.head)?;
    let view = tree.view();
    let state = view.written_in().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ok(Target {
        pool: catalog.pool().clone(),
        view,
        name: format!("{}@{HEAD_SNAPSHOT}", dataset.name),
        kind: dataset.record.kind,
        guid: dataset.record.guid ^ state,
        creation: dataset.record.creation,
        content: dataset.record.content,
        key_data: catalog.key_data(dataset.id, 0)?,
        redact_snaps: None,
        logical: tree.stats().logical,
    })
}

/// The target for a snapshot.
pub(super) fn target(catalog: &Catalog, snapshot: &Snapshot) -> Result<Target, SendError> {
    let record = &snapshot.record;
    Ok(Target {
        pool: catalog.pool().clone(),
        view: catalog.pool().view(record.root.clone()),
        name: snapshot.full_name(),
        kind: snapshot.kind,
        guid: record.guid,
        creation: record.creation,
        content: record.content,
        key_data: catalog.key_data(snapshot.id.dataset, snapshot.id.txg)?,
        redact_snaps: redact_snaps(catalog, snapshot.id)?,
        logical: record.stats.logical,
    })
}

/// Checks the source, and returns it as a base for `to`.
fn base(catalog: &Catalog, to: SnapshotId, name: &str, from: &Source) -> Result<Base, SendError> {
    let refused = |from: String| SendError::NotEarlier { from, to: name.to_owned() };
    match from {
        Source::None => Ok(Base::Empty),
        Source::Snapshot(from) => {
            if !is_before(catalog, to, from.id)? {
                return Err(refused(from.full_name()));
            }
            snapshot_base(catalog, from, from, to.dataset)
        }
        Source::Bookmark(from) => bookmark_base(catalog, to, from)?.ok_or_else(|| refused(from.full_name())),
    }
}

/// The base for the first snapshot of a clone: its origin. Empty for other datasets.
fn origin_base(catalog: &Catalog, dataset: &Dataset) -> Result<Base, SendError> {
    match dataset.record.origin {
        None => Ok(Base::Empty),
        Some(origin) => {
            let origin = catalog.snapshot_by_id(origin)?;
            snapshot_base(catalog, &origin, &origin, dataset.id)
        }
    }
}

/// A snapshot as a base for a snapshot of dataset `of`.
pub(super) fn snapshot_base(
    catalog: &Catalog,
    named: &impl Named,
    snapshot: &Snapshot,
    of: DatasetId,
) -> Result<Base, SendError> {
    let id = snapshot.id;
    let ivset_guid = match catalog.key_data(id.dataset, id.txg)? {
        Some(packed) => key_data::ivset_guid(&packed).unwrap_or(0),
        None => 0,
    };
    let from = BaseInfo {
        name: named.name(),
        guid: snapshot.record.guid,
        is_origin: id.dataset != of,
        ivset_guid,
        redact_snaps: redact_snaps(catalog, id)?,
    };
    Ok(Base::Tree { view: catalog.pool().view(snapshot.record.root.clone()), from })
}

/// A bookmark as a base for `to`; `None` if its snapshot is not earlier. As long as that snapshot exists, the two trees
/// are compared, which finds the exact differences.
pub(super) fn bookmark_base(
    catalog: &Catalog,
    to: SnapshotId,
    from: &Bookmark,
) -> Result<Option<Base>, SendError> {
    let id = SnapshotId { dataset: from.dataset_id, txg: from.record.createtxg };
    if !is_before(catalog, to, id)? {
        return Ok(None);
    }
    let same = catalog.snapshots_by_guid(from.record.guid)?.into_iter().find(|snapshot| snapshot.id == id);
    if let Some(snapshot) = same {
        return snapshot_base(catalog, from, &snapshot, to.dataset).map(Some);
    }
    let info = BaseInfo {
        name: from.full_name(),
        guid: from.record.guid,
        is_origin: from.dataset_id != to.dataset,
        ivset_guid: from.record.ivset_guid,
        redact_snaps: None,
    };
    Ok(Some(Base::Txg { txg: id.txg, from: info }))
}

/// The name of a base.
pub(super) trait Named {
    fn name(&self) -> String;
}

impl Named for Snapshot {
    fn name(&self) -> String {
        self.full_name()
    }
}

impl Named for Bookmark {
    fn name(&self) -> String {
        self.full_name()
    }
}

/// Whether `from` is an earlier point in the same history: of the dataset, or of a dataset that it was cloned from
/// (`dsl_dataset_is_before`).
pub(super) fn is_before(catalog: &Catalog, to: SnapshotId, from: SnapshotId) -> Result<bool, SendError> {
    let (mut dataset, mut until) = (to.dataset, to.txg.saturating_sub(1));
    // Each origin is older than its clone, so this ends. The limit protects against a corrupt catalog.
    for _ in 0..u16::MAX {
        if from.dataset == dataset {
            return Ok(from.txg <= until);
        }
        match catalog.dataset_by_id(dataset)?.record.origin {
            Some(origin) => (dataset, until) = (origin.dataset, origin.txg),
            None => return Ok(false),
        }
    }
    Ok(false)
}

/// Guids of the snapshots that a redacted snapshot is redacted with respect to. They are in a received property, in
/// decimal and separated by commas.
fn redact_snaps(catalog: &Catalog, id: SnapshotId) -> Result<Option<Vec<u64>>, SendError> {
    let text = catalog.stored_property(id.dataset, id.txg, PropertyKind::Received, "redact_snaps")?;
    Ok(text.map(|text| text.split(',').filter_map(|guid| guid.parse().ok()).collect()))
}

fn not_earlier(from: &str, to: &Snapshot) -> SendError {
    SendError::NotEarlier { from: from.to_owned(), to: to.full_name() }
}
