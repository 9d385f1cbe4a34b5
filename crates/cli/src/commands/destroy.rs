//! `destroy`.

use std::io::Write;

use serde_json::json;
use snowmelt_dataset::property::format_bytes;
use snowmelt_dataset::{Catalog, DatasetError, DestroyPlan, Snapshot, snapshots_named};

use super::{automount, names};
use crate::app::App;
use crate::args::DestroyArgs;
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

/// Destroys what is planned, with everything unmounted that goes.
fn carry_out(
    app: &mut App<'_>,
    session: &Session,
    args: &DestroyArgs,
    plan: &DestroyPlan,
    attempt: &str,
) -> Result<()> {
    let unmounted = automount::Unmounted::of(app, session, &plan.datasets, args.force)?;
    let destroyed = unmounted.when_released(|| session.datasets.destroy(plan));
    // A destroyed filesystem leaves its directory behind.
    unmounted.mount_again(app, session)?;
    destroyed.map_err(report::failed(attempt))?;
    app.record(session);
    Ok(())
}

/// `-v` and `-p`: what goes, and what space that gives.
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

/// `--json`: what went, or would go, and what space that gives, where that is known.
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
