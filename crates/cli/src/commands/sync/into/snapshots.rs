//! Snapshots of the source.

use std::collections::HashMap;

use snowmelt_replicate::end::End;
use snowmelt_replicate::objects::RemoteSnapshot;
use snowmelt_replicate::plan::{Marks, keep};
use snowmelt_replicate::request::{
    Action, DatasetInfo, Describe, Holding, ReadRequest, SendRequest, SnapshotInfo,
};

use super::super::{history, snapshot_name};
use super::{Unreached, attempt, failed, told};
use crate::app::App;
use crate::args::SyncArgs;

/// The identifier in snapshots for targets that have no record.
const ANY: &str = "stream";

/// A dataset's snapshots, with a new one where that is needed, and the marks of the target.
pub(super) struct Snapshots {
    pub(super) info: DatasetInfo,
    marks: Marks,
    pub(super) newest: SnapshotInfo,
    /// A snapshot would be taken, were this no rehearsal.
    pub(super) would_take: bool,
}

impl Snapshots {
    /// Takes snapshots, all at one moment, of the datasets that were written to since the last snapshot for this
    /// target. Snapshots of others are not used, because they may no longer exist the next time. `id` distinguishes
    /// the snapshots of this target; without it, any snapshot is used. The other datasets are below the first one.
    pub(super) fn take(
        args: &SyncArgs,
        end: &dyn End,
        infos: &[DatasetInfo],
        id: Option<&str>,
    ) -> Result<Vec<Result<Self, Unreached>>, Unreached> {
        let identifier = args.identifier.as_deref().or(id).unwrap_or(ANY);
        let marks = Marks::new(Some(identifier), "", false);
        let is_fresh = |info: &DatasetInfo| {
            let is_ours = |last: &SnapshotInfo| id.is_none() || marks.took(&last.name);
            info.snapshots.last().is_some_and(|last| info.written == 0 && is_ours(last))
        };
        let wants = |info: &DatasetInfo| !args.no_snapshot && !is_fresh(info);
        let short = snapshot_name(&marks);
        let names = infos.iter().filter(|info| wants(info)).map(|info| format!("{}@{short}", info.name));
        let names: Vec<String> = names.collect();
        let mut renewed = HashMap::new();
        if !names.is_empty() && !args.dry_run {
            let done = end
                .apply(&[Action::Snapshot { names }])
                .and_then(|results| results.into_iter().collect::<Result<(), _>>());
            done.map_err(|failure| told(&attempt(args), failure))?;
            let root = infos.first().map(|info| info.name.clone()).unwrap_or_default();
            let what = Describe { root, recursive: infos.len() > 1, tag: String::new() };
            let again = end.describe(&what).map_err(|failure| told(&attempt(args), failure))?;
            renewed.extend(again.into_iter().map(|info| (info.name.clone(), info)));
        }
        let of = |info: &DatasetInfo| {
            let would_take = wants(info) && args.dry_run;
            let info = renewed.get(&info.name).unwrap_or(info).clone();
            let newest = match info.snapshots.last() {
                Some(newest) => newest.clone(),
                None if would_take => imagined(&short),
                None => return Err(failed(format!("{}: it has no snapshot", attempt(args)))),
            };
            Ok(Self { info, marks: marks.clone(), newest, would_take })
        };
        Ok(infos.iter().map(of).collect())
    }

    pub(super) fn find(&self, guid: u64) -> Option<&SnapshotInfo> {
        self.info.snapshots.iter().find(|snapshot| snapshot.guid == guid)
    }

    pub(super) fn holding(&self, snapshot: &SnapshotInfo) -> Holding {
        Holding { guid: snapshot.guid, name: self.name(snapshot) }
    }

    /// A snapshot's full name.
    pub(super) fn name(&self, snapshot: &SnapshotInfo) -> String {
        format!("{}@{}", self.info.name, snapshot.name)
    }

    /// Whether there is one yet.
    pub(super) fn has_one(&self) -> bool {
        !self.info.snapshots.is_empty()
    }

    /// Opens a snapshot of the source, and what changed in it since another.
    pub(super) fn open(
        &self,
        args: &SyncArgs,
        end: &dyn End,
        snapshot: &SnapshotInfo,
        since: Option<&SnapshotInfo>,
    ) -> Result<RemoteSnapshot, Unreached> {
        let since = since.map(|since| self.name(since));
        let request = ReadRequest { snapshot: self.name(snapshot), since };
        end.read(&request).map_err(|failure| told(&attempt(args), failure))
    }

    /// All of the newest snapshot as a stream.
    pub(super) fn stream(&self, args: &SyncArgs) -> SendRequest {
        SendRequest {
            to: self.name(&self.newest),
            from: None,
            intermediate: false,
            token: None,
            raw: args.raw || self.info.encrypted,
            properties: args.properties,
            large_blocks: true,
        }
    }

    /// Takes down in the pool's history that something went over.
    pub(super) fn note(app: &App<'_>, end: &dyn End) {
        // A pool that cannot take that down is none the worse for it.
        let _ = end.apply(&[Action::Note { line: history(app) }]);
    }

    /// Destroys older snapshots that were taken for this target. If one of them cannot be destroyed, this is not a
    /// failure.
    pub(super) fn tidy(&self, app: &mut App<'_>, end: &dyn End) {
        let (actions, _) = keep(&self.info, "", None, self.newest.guid, &self.marks);
        let actions: Vec<Action> =
            actions.into_iter().filter(|action| matches!(action, Action::DestroySnapshot { .. })).collect();
        if actions.is_empty() {
            return;
        }
        let Ok(results) = end.apply(&actions) else { return };
        for (action, result) in actions.iter().zip(results) {
            if let (Action::DestroySnapshot { name }, Err(failure)) = (action, result) {
                app.context.complain(format_args!("old snapshot '{name}' was not destroyed: {failure}"));
            }
        }
    }
}

/// The snapshot that would be taken.
fn imagined(name: &str) -> SnapshotInfo {
    SnapshotInfo {
        name: name.to_owned(),
        guid: 0,
        createtxg: 0,
        creation: 0,
        held: false,
        holds: 0,
        has_clones: false,
    }
}
