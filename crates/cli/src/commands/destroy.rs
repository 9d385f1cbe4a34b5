//! `destroy`.

use std::collections::HashSet;
use std::io::Write;

use serde_json::json;
use snowmelt_dataset::property::format_bytes;
use snowmelt_dataset::{
    Catalog, DatasetError, DatasetId, DestroyPlan, Snapshot, SnapshotId, snapshots_named,
};

use super::{automount, in_use, names};
use crate::app::App;
use crate::args::{DestroyArgs, Program};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::Session;
use crate::report;

/// Destroys datasets, snapshots or a bookmark.
///
/// # Errors
/// When something does not exist, or is needed by something else.
pub fn run(app: &mut App<'_>, args: &DestroyArgs) -> Result<Exit> {
    let target = args.target.as_str();
    match (target.split_once('@'), target.contains('#')) {
        (Some((dataset, spec)), _) => {
            app.on_dataset(dataset, |app, session| snapshots(app, session, args, dataset, spec))
        }
        (None, true) => bookmark(app, args),
        (None, false) => app.on_dataset(target, |app, session| dataset(app, session, args)),
    }
}

fn bookmark(app: &mut App<'_>, args: &DestroyArgs) -> Result<Exit> {
    let name = &args.target;
    for (given, what) in [
        (args.dry_run, "dryrun"),
        (args.defer, "defer destroy"),
        (args.recursive || args.with_clones, "recursive"),
    ] {
        if given {
            return Err(CliError::Failed(format!("{what} is not supported with bookmark")));
        }
    }
    app.on_pool(
        name,
        |_| format!("bookmark '{name}' does not exist."),
        |app, session| {
            let attempt = format!("cannot destroy bookmark '{name}'");
            let parsed = names::parse(name, &attempt)?;
            session.datasets.destroy_bookmark(&parsed).map_err(|error| match error {
                DatasetError::NoBookmark { .. } => {
                    CliError::Failed(format!("bookmark '{name}' does not exist."))
                }
                error => report::failed(&attempt)(error),
            })?;
            app.record(session);
            tell_json(app, args, vec![name.clone()], None)
        },
    )
}

fn snapshots(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    dataset: &str,
    spec: &str,
) -> Result<Exit> {
    let attempt = format!("cannot open '{dataset}@{spec}'");
    names::open_dataset(&session.datasets.catalog(), dataset)?;
    let planned = session.datasets.read(|catalog| {
        // Names that a dataset lacks are passed over.
        let (found, _) = snapshots_named(catalog, dataset, spec, args.recursive || args.with_clones)?;
        let plan = match found.is_empty() || args.defer {
            true => Ok(DestroyPlan::default()),
            false => DestroyPlan::snapshots(catalog, found.clone(), args.with_clones),
        };
        match plan {
            Err(error @ DatasetError::Pool(_)) => Err(error),
            plan => Ok((found, plan)),
        }
    });
    let (found, plan) = planned.map_err(report::failed(&attempt))?;
    if found.is_empty() {
        return Err(CliError::Failed(
            "could not find any snapshots to destroy; check snapshot names.".to_owned(),
        ));
    }
    if args.defer {
        return defer(app, session, args, &found);
    }
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            complain_of_each(app, session, &found, args, &error);
            return Err(CliError::Reported);
        }
    };
    tell_plan(app, args, &plan, true)?;
    if !args.dry_run {
        let attempt = format!("cannot destroy snapshots of '{dataset}'");
        carry_out(app, session, args, &plan, &attempt)?;
    }
    tell_json(app, args, names_of(&plan), Some(plan.reclaim))
}

/// One line for each snapshot that cannot go, since tools look for them.
fn complain_of_each(
    app: &mut App<'_>,
    session: &Session,
    snapshots: &[Snapshot],
    args: &DestroyArgs,
    error: &DatasetError,
) {
    let mut complaints = 0;
    for snapshot in snapshots {
        let name = snapshot.full_name();
        let plan =
            |catalog: &Catalog| DestroyPlan::snapshots(catalog, vec![snapshot.clone()], args.with_clones);
        let Err(error) = session.datasets.read(plan) else { continue };
        complaints += 1;
        app.context.complain(match &error {
            DatasetError::HasClones { .. } => {
                report::dataset_error(&format!("cannot destroy '{name}'"), &error)
            }
            error => report::dataset_error(&format!("cannot destroy snapshot {name}"), error),
        });
    }
    if complaints == 0 {
        app.context.complain(report::dataset_error("cannot destroy snapshots", error));
    }
}

fn defer(app: &mut App<'_>, session: &Session, args: &DestroyArgs, snapshots: &[Snapshot]) -> Result<Exit> {
    let plan = DestroyPlan { snapshots: snapshots.to_vec(), ..DestroyPlan::default() };
    tell_plan(app, args, &plan, false)?;
    if args.dry_run {
        return tell_json(app, args, names_of(&plan), None);
    }
    for name in names::full_names(snapshots)? {
        let attempt = format!("cannot destroy snapshot {name}");
        session.datasets.destroy_deferred(&name).map_err(report::failed(&attempt))?;
    }
    app.record(session);
    tell_json(app, args, names_of(&plan), None)
}

fn dataset(app: &mut App<'_>, session: &Session, args: &DestroyArgs) -> Result<Exit> {
    let name = &args.target;
    let attempt = format!("cannot destroy '{name}'");
    let target = names::open_dataset(&session.datasets.catalog(), name)?;
    if args.defer {
        return Err(CliError::Failed(format!(
            "cannot open '{name}': operation not applicable to datasets of this type"
        )));
    }
    let recursive = args.recursive || args.with_clones;
    let plan = session.datasets.read(|catalog| {
        let target = catalog.dataset_by_id(target.id)?;
        DestroyPlan::dataset(catalog, &target, recursive, args.with_clones)
    });
    let plan = plan.map_err(|error| match error {
        DatasetError::HasChildren { children, .. } => CliError::Failed(format!(
            "{attempt}: {} has children\nuse '-r' to destroy the following datasets:\n{}",
            target.record.kind.name(),
            children.join("\n")
        )),
        error => report::failed(&attempt)(error),
    })?;
    tell_plan(app, args, &plan, false)?;
    if !args.dry_run {
        carry_out(app, session, args, &plan, &attempt)?;
    }
    tell_json(app, args, names_of(&plan), None)
}

/// Unmounts and destroys everything in the plan. If this is not possible, `zfs destroy -r` and `-R` destroy what they
/// can, as in ZFS.
fn carry_out(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    plan: &DestroyPlan,
    attempt: &str,
) -> Result<()> {
    let is_recursive = args.recursive || args.with_clones;
    match all_at_once(app, session, args, plan, attempt) {
        Err(CliError::Failed(_)) if is_recursive && Program::of(&app.context.args).0 == Program::Zfs => {
            each_by_itself(app, session, args, plan)?;
        }
        done => done?,
    }
    app.record(session);
    Ok(())
}

/// All or nothing.
fn all_at_once(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    plan: &DestroyPlan,
    attempt: &str,
) -> Result<()> {
    let going: HashSet<DatasetId> = plan.datasets.iter().map(|dataset| dataset.id).collect();
    for snapshot in plan.snapshots.iter().filter(|snapshot| !going.contains(&snapshot.id.dataset)) {
        if in_use::is_used(app, session, snapshot) {
            let name = snapshot.full_name();
            return Err(CliError::Failed(format!("cannot destroy snapshot {name}: dataset is busy")));
        }
    }
    let unmounted = automount::Unmounted::of(app, session, &plan.datasets, args.force)?;
    let destroyed = unmounted.when_released(|| session.datasets.destroy(plan));
    // A destroyed filesystem leaves its directory behind.
    unmounted.mount_again(app, session)?;
    destroyed.map_err(report::failed(attempt))
}

/// Destroys each dataset and snapshot that can be destroyed, in the order of the plan. A dataset that stays keeps its
/// parent and its origin.
fn each_by_itself(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    plan: &DestroyPlan,
) -> Result<()> {
    let mut kept = Kept::default();
    let mut all = true;
    for dataset in &plan.datasets {
        let own = plan.snapshots.iter().filter(|snapshot| snapshot.id.dataset == dataset.id);
        let mut goes = snapshots_that_can(app, session, args, own, &kept)?;
        // A dataset or clone that keeps it was reported before.
        goes &= !kept.datasets.contains(&dataset.id);
        if goes {
            let one = DestroyPlan { datasets: vec![dataset.clone()], ..DestroyPlan::default() };
            goes = can(app, session, args, &one, &format!("cannot destroy '{}'", dataset.name))?;
        }
        if !goes {
            kept.datasets.insert(dataset.record.parent);
            kept.origins.extend(dataset.record.origin);
            all = false;
        }
    }
    let going: HashSet<DatasetId> = plan.datasets.iter().map(|dataset| dataset.id).collect();
    let others = plan.snapshots.iter().filter(|snapshot| !going.contains(&snapshot.id.dataset));
    all &= snapshots_that_can(app, session, args, others, &kept)?;
    if all { Ok(()) } else { Err(CliError::Reported) }
}

/// Datasets and snapshots that must stay, because something that depends on them could not be destroyed.
#[derive(Default)]
struct Kept {
    /// The parents of datasets that stay.
    datasets: HashSet<DatasetId>,
    /// The origins of datasets that stay.
    origins: HashSet<SnapshotId>,
}

/// Destroys snapshots, all at once if that can be. Says whether all went.
fn snapshots_that_can<'a>(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    snapshots: impl Iterator<Item = &'a Snapshot>,
    kept: &Kept,
) -> Result<bool> {
    let (stay, snapshots): (Vec<_>, Vec<_>) =
        snapshots.partition(|snapshot| kept.origins.contains(&snapshot.id));
    let plan = |snapshots: &[&Snapshot]| DestroyPlan {
        snapshots: snapshots.iter().map(|snapshot| (*snapshot).clone()).collect(),
        ..DestroyPlan::default()
    };
    if snapshots.is_empty() || all_at_once(app, session, args, &plan(&snapshots), "").is_ok() {
        return Ok(stay.is_empty());
    }
    let mut all = stay.is_empty();
    for snapshot in snapshots {
        let attempt = format!("cannot destroy snapshot {}", snapshot.full_name());
        all &= can(app, session, args, &plan(&[snapshot]), &attempt)?;
    }
    Ok(all)
}

/// Whether something could be destroyed; a message was printed otherwise.
fn can(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    plan: &DestroyPlan,
    attempt: &str,
) -> Result<bool> {
    match all_at_once(app, session, args, plan, attempt) {
        Ok(()) => Ok(true),
        Err(error @ CliError::Output(_)) => Err(error),
        Err(error) => {
            app.context.complain(error);
            Ok(false)
        }
    }
}

/// `-v` and `-p`: what is destroyed, and how much space becomes free.
fn tell_plan(app: &mut App<'_>, args: &DestroyArgs, plan: &DestroyPlan, with_space: bool) -> Result<()> {
    if args.json || (!args.verbose && !args.parsable) {
        return Ok(());
    }
    let out = &mut app.context.out;
    let will = if args.dry_run { "would" } else { "will" };
    for name in names_of(plan) {
        match args.parsable {
            true => writeln!(out, "destroy\t{name}")?,
            false => writeln!(out, "{will} destroy {name}")?,
        }
    }
    if with_space {
        match args.parsable {
            true => writeln!(out, "reclaim\t{}", plan.reclaim)?,
            false => writeln!(out, "{will} reclaim {}", format_bytes(plan.reclaim))?,
        }
    }
    Ok(())
}

fn names_of(plan: &DestroyPlan) -> Vec<String> {
    let snapshots = plan.snapshots.iter().map(Snapshot::full_name);
    snapshots.chain(plan.datasets.iter().map(|dataset| dataset.name.clone())).collect()
}

/// `--json`: what was or would be destroyed, and how much space becomes free, if this is known.
fn tell_json(
    app: &mut App<'_>,
    args: &DestroyArgs,
    destroyed: Vec<String>,
    reclaim: Option<u64>,
) -> Result<Exit> {
    if args.json {
        let mut document = json::document("snowmelt destroy");
        document.insert("destroyed".to_owned(), json!(destroyed));
        document.insert("reclaim".to_owned(), json!(reclaim));
        document.insert("dry_run".to_owned(), args.dry_run.into());
        json::print(&mut app.context.out, document)?;
    }
    Ok(Exit::Ok)
}
