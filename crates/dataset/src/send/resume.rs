//! Resumes streams: from a receiver's token (`-t`), or from the state of an interrupted receive (`-S`).

use snowmelt_pool::Txg;
use snowmelt_stream::token::ResumeToken;

use super::SendPlan;
use super::plan::{HEAD_SNAPSHOT, bookmark_base, head_target, is_before, snapshot_base, target};
use super::step::{Base, Resume, Step, Style, Target};
use crate::catalog::{Catalog, Dataset, SnapshotId};
use crate::error::{DatasetError, SendError};
use crate::name::Subtree;

impl SendPlan {
    /// The rest of the stream that a receiver's token names, with the options of the first send.
    ///
    /// # Errors
    /// [`SendError::ResumeTargetGone`], [`SendError::ResumeSourceGone`]; when a required field is missing in the token.
    pub fn resume(catalog: &Catalog, token: &ResumeToken) -> Result<Self, SendError> {
        Self::resume_in(catalog, None, token)
    }

    /// As [`Self::resume`]. With a `subtree`, the token can name only snapshots inside it.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn resume_in(
        catalog: &Catalog,
        subtree: Option<&Subtree>,
        token: &ResumeToken,
    ) -> Result<Self, SendError> {
        let (object, offset, _bytes, to_guid, to_name) = token
            .required()
            .map_err(|error| DatasetError::refused("cannot resume send", error.to_string()))?;
        let (id, target) = find_target(catalog, subtree, to_guid, to_name)?;
        let base = match token.from_guid().unwrap_or(0) {
            0 => Base::Empty,
            guid => find_base(catalog, subtree, id, guid)?,
        };
        let step = Step {
            target,
            base,
            style: Style::from(token),
            resume: (object != 0 || offset != 0).then_some(Resume { object, offset }),
            saved: false,
        };
        Ok(Self::of(vec![step], None))
    }

    /// The state that an interrupted receive into `dataset` left (`-S`). The stream has no END either.
    ///
    /// # Errors
    /// When there is no such state; [`SendError::ResumeSourceGone`].
    pub fn saved(catalog: &Catalog, dataset: &Dataset) -> Result<Self, SendError> {
        let state = catalog.receive_state(dataset.id)?.filter(|state| state.resumable).ok_or_else(|| {
            DatasetError::refused(dataset.name.clone(), "it has no partially received state to send")
        })?;
        let tree = catalog.pool().tree(state.tree)?;
        let stats = tree.stats();
        let base = match (state.from_guid, state.base) {
            (0, _) => Base::Empty,
            (guid, None) => return Err(SendError::ResumeSourceGone { guid }),
            (guid, Some(id)) => {
                // The snapshot that the stream started from. Here, a later snapshot with the same content may replace
                // it as the base.
                let named = catalog.snapshots_by_guid(guid)?.into_iter().find(|s| s.id.dataset == id.dataset);
                let from = named.map_or_else(|| catalog.snapshot_by_id(id), Ok)?;
                snapshot_base(catalog, &from, &from, dataset.id)?
            }
        };
        let target = Target {
            pool: catalog.pool().clone(),
            view: tree.view(),
            name: state.to_name,
            kind: dataset.record.kind,
            guid: state.to_guid,
            creation: dataset.record.creation,
            content: state.content,
            key_data: Some(state.key_data).filter(|packed| !packed.is_empty()),
            redact_snaps: None,
            logical: stats.logical,
        };
        let step = Step { target, base, style: Style::from(state.features), resume: None, saved: true };
        Ok(Self::of(vec![step], None))
    }
}

/// The target of a token: the snapshot with that guid, preferably with that name, or a dataset that was not written
/// since.
fn find_target(
    catalog: &Catalog,
    subtree: Option<&Subtree>,
    guid: u64,
    name: &str,
) -> Result<(SnapshotId, Target), SendError> {
    let (dataset, snapshot) = name.split_once('@').unwrap_or((name, ""));
    let found = catalog.snapshots_by_guid_in(subtree, guid)?;
    let found =
        found.into_iter().min_by_key(|snapshot| (snapshot.full_name() != name, snapshot.dataset != dataset));
    if let Some(found) = found {
        return Ok((found.id, target(catalog, &found)?));
    }
    if snapshot == HEAD_SNAPSHOT
        && subtree.is_none_or(|subtree| subtree.contains(dataset))
        && let Ok(dataset) = catalog.dataset(dataset)
    {
        let now = head_target(catalog, &dataset)?;
        if now.guid == guid {
            return Ok((SnapshotId { dataset: dataset.id, txg: Txg::MAX }, now));
        }
    }
    Err(SendError::ResumeTargetGone { name: name.to_owned() })
}

/// The snapshot or bookmark with that guid in the history of `to`.
fn find_base(
    catalog: &Catalog,
    subtree: Option<&Subtree>,
    to: SnapshotId,
    guid: u64,
) -> Result<Base, SendError> {
    for from in catalog.snapshots_by_guid_in(subtree, guid)? {
        if is_before(catalog, to, from.id)? {
            return snapshot_base(catalog, &from, &from, to.dataset);
        }
    }
    let is_inside = |dataset: &Dataset| subtree.is_none_or(|subtree| subtree.contains(&dataset.name));
    for dataset in catalog.lineage(catalog.dataset_by_id(to.dataset)?) {
        let dataset = dataset?;
        if !is_inside(&dataset) {
            break;
        }
        for bookmark in catalog.bookmarks(&dataset)? {
            if bookmark.record.guid == guid
                && let Some(base) = bookmark_base(catalog, to, &bookmark)?
            {
                return Ok(base);
            }
        }
    }
    Err(SendError::ResumeSourceGone { guid })
}
