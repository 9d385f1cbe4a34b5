//! Sync of a dataset with its descendants to a directory. The place of each follows from its name, below the place of
//! the first one. Volumes become images.

use std::collections::HashSet;

use snowmelt_replicate::request::{DatasetInfo, OpenTarget, TargetState};

use super::copy::{Copy, opening};
use super::renames::{Renames, path_of};
use super::show::{Told, bytes, say};
use super::{Snapshots, Unreached, attempt, failed};
use crate::app::App;
use crate::error::CliError;
use crate::exit::Exit;

/// What became of one dataset.
enum Outcome {
    Done(Box<Told>),
    Failed(CliError),
    /// One above it failed.
    NotBegun,
}

/// Brings the targets of all these datasets up to date, parents before children, and reports it. The other datasets
/// are below the first one.
pub(super) fn bring(
    app: &mut App<'_>,
    copy: &mut Copy<'_>,
    infos: &[DatasetInfo],
) -> Result<Exit, Unreached> {
    let args = copy.args;
    let Some(top) = infos.first() else {
        return Err(failed(format!("{}: all of it is left out", attempt(args))));
    };
    let first = OpenTarget { list: true, ..opening(args, top, &[], &children(top, infos), false) };
    let mut state = copy.open(&first)?;
    let mut renames = Renames::follow(app, copy, infos, std::mem::take(&mut state.kept))?;
    let mut opened = Some(state);
    // One moment for all, and marks of the whole tree.
    let id = opened.as_ref().and_then(|state| state.id.clone());
    let taken = Snapshots::take(args, copy.end, infos, id.as_deref())?;
    let mut failed_ones: HashSet<&str> = HashSet::new();
    let mut outcomes = Vec::with_capacity(infos.len());
    for (info, snapshots) in infos.iter().zip(taken) {
        let target = path_of(&args.target, &below(top, info));
        let above = info.name.rsplit_once('/').map(|(above, _)| above).unwrap_or_default();
        let outcome = match failed_ones.contains(above) {
            true => Outcome::NotBegun,
            false => match renames
                .check(&info.name)
                .and(snapshots)
                .and_then(|snapshots| one(app, copy, (top, infos), &snapshots, (opened.take(), &renames)))
            {
                Ok(told) => Outcome::Done(Box::new(told)),
                Err(Unreached::Failed(error)) if !app.context.is_cancelled() && !copy.is_lost() => {
                    Outcome::Failed(error)
                }
                Err(ends) => return Err(ends),
            },
        };
        if !matches!(outcome, Outcome::Done(_)) {
            failed_ones.insert(&info.name);
        }
        outcomes.push((info, target, outcome));
    }
    let is_touched = |told: &Told| told.brought.as_ref().is_some_and(|brought| brought.is_touched);
    if outcomes.iter().any(|(.., outcome)| matches!(outcome, Outcome::Done(told) if is_touched(told))) {
        Snapshots::note(app, copy.end);
    }
    finish(app, copy, &outcomes, &renames)
}

fn one(
    app: &mut App<'_>,
    copy: &mut Copy<'_>,
    (top, infos): (&DatasetInfo, &[DatasetInfo]),
    snapshots: &Snapshots,
    (opened, renames): (Option<TargetState>, &Renames),
) -> Result<Told, Unreached> {
    let (args, info) = (copy.args, &snapshots.info);
    let place = below(top, info);
    let state = match (opened, renames.from.get(&info.name).filter(|_| args.dry_run)) {
        (Some(state), _) => state,
        // It is still where it was.
        (None, Some(was)) => {
            let how = opening(args, info, &place, &children(info, infos), false);
            let (source, below) = (was.source.clone(), was.below.clone());
            copy.open(&OpenTarget { source, below, ..how })?
        }
        (None, None) => copy.open(&opening(args, info, &place, &children(info, infos), false))?,
    };
    copy.run(app, snapshots, state, &path_of(&args.target, &place))
}

/// The names that lead from one dataset to another below it.
pub(super) fn below<'a>(top: &DatasetInfo, info: &'a DatasetInfo) -> Vec<&'a str> {
    let rest = info.name.strip_prefix(&top.name).unwrap_or_default();
    rest.split('/').filter(|name| !name.is_empty()).collect()
}

/// The last parts of the names of the datasets directly below one.
fn children<'a>(info: &DatasetInfo, infos: &'a [DatasetInfo]) -> Vec<&'a str> {
    let last = |other: &'a DatasetInfo| {
        let (above, last) = other.name.rsplit_once('/')?;
        (above == info.name).then_some(last)
    };
    infos.iter().filter_map(last).collect()
}

/// What became of all.
fn finish(
    app: &mut App<'_>,
    copy: &Copy<'_>,
    outcomes: &[(&DatasetInfo, String, Outcome)],
    renames: &Renames,
) -> Result<Exit, Unreached> {
    let args = copy.args;
    let told = |outcome: &Outcome| match outcome {
        Outcome::Done(told) => Some((told.bytes, matches!(told.exit, Exit::Ok))),
        _ => None,
    };
    let total: u64 = outcomes.iter().filter_map(|(.., outcome)| told(outcome)).map(|(bytes, _)| bytes).sum();
    let fine = outcomes.iter().filter(|(.., outcome)| told(outcome).is_some_and(|(_, fine)| fine)).count();
    let done = outcomes.iter().filter(|(.., outcome)| told(outcome).is_some()).count();
    let mut rows = Vec::new();
    for (info, target, outcome) in outcomes {
        match outcome {
            Outcome::Done(told) if args.json => {
                let mut row = told.json(&info.name);
                row["rename"] = renames.was(args, info, target).into();
                rows.push(row);
            }
            Outcome::Done(told) if args.verbose || args.dry_run => say(app, &told.said)?,
            Outcome::Done(_) => {}
            Outcome::Failed(_) | Outcome::NotBegun if args.json => {
                let error = match outcome {
                    Outcome::Failed(error) => error.to_string(),
                    _ => "skipped, because a dataset above it failed".to_owned(),
                };
                rows.push(serde_json::json!({
                    "source": info.name, "target": target, "bytes": 0, "error": error,
                }));
            }
            Outcome::Failed(_) | Outcome::NotBegun => {}
        }
        if let Outcome::Failed(error) = outcome {
            app.context.complain(format_args!("{target}: {error}"));
        }
    }
    match outcomes.iter().filter(|(.., outcome)| matches!(outcome, Outcome::NotBegun)).count() {
        0 => {}
        1 => app.context.complain("1 dataset below one of these was skipped"),
        count => app.context.complain(format_args!("{count} datasets below one of these were skipped")),
    }
    if args.json {
        say(app, &serde_json::json!({ "bytes": total, "datasets": rows }).to_string())?;
    } else if args.verbose {
        let of = outcomes.len();
        say(app, &format!("{fine} of {of} datasets up to date, {} written", bytes(total)))?;
    }
    Ok(match (fine, done) {
        (fine, _) if fine == outcomes.len() => Exit::Ok,
        (_, 0) => Exit::Failed,
        _ => Exit::Partial,
    })
}
