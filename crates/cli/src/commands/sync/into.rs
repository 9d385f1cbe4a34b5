//! Targets that are no datasets: directories, images and block devices, files with a stream; here or elsewhere.
//!
//! - `copy`: one dataset into one of these
//! - `tree`: a dataset with those below it into a directory with those below it
//! - `renames`: of datasets, followed by their copies
//! - `snapshots`: of the source: taken, found, kept for the target
//! - `show`: what people and programs are told

mod copy;
mod renames;
pub(super) mod show;
mod snapshots;
mod tree;

use snowmelt_replicate::request::{DatasetInfo, Describe, Form, Kind};
use snowmelt_replicate::target::Target;
use snowmelt_replicate::{Failure, FailureKind};

use self::copy::Copy;
use self::snapshots::Snapshots;
use super::ends::{Goal, Unreached, Ways};
use super::place::Remote;
use super::{PAUSE, PAUSE_MAX, pause_for, rate};
use crate::app::App;
use crate::args::SyncArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Brings a target that is not a dataset up to date.
///
/// # Errors
/// When a side cannot be reached, or the target not be written.
pub(super) fn run(app: &mut App<'_>, args: &SyncArgs, source: &Remote, goal: Goal<'_>) -> Result<Exit> {
    super::check_identifier(args)?;
    rate(args)?;
    if let Goal::Standard = goal {
        return standard(app, args, source);
    }
    let (mut pause, mut left) = (PAUSE, args.retries);
    loop {
        let why = match with_ways(app, args, source, goal, |app, ways| bring(app, args, source, ways)) {
            Ok(exit) => return Ok(exit),
            Err(Unreached::Failed(error)) => return Err(error),
            // The other side may need a moment to learn that a connection was lost.
            Err(Unreached::Busy(why)) if left < args.retries && left > 0 => why,
            Err(Unreached::Lost(why)) if left > 0 => why,
            Err(Unreached::Busy(why) | Unreached::Lost(why)) => return Err(CliError::Failed(why)),
        };
        app.context.complain(format_args!("{why}; trying again in {} s", pause.as_secs()));
        left -= 1;
        pause_for(app, pause)?;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Writes a stream of the newest snapshot to standard output.
fn standard(app: &mut App<'_>, args: &SyncArgs, source: &Remote) -> Result<Exit> {
    if args.recursive {
        return Err(no_tree(args));
    }
    if !args.dry_run && app.context.is_terminal_out() {
        return Err(CliError::Usage(
            "a stream cannot be written to a terminal: redirect standard output".into(),
        ));
    }
    let done = with_ways(app, args, source, Goal::Standard, |app, ways| {
        let sent = stream(app, args, source, ways);
        // A thread of this process may own the pool, and wait for commands that wait for the end of this stream.
        let closed = app.context.hang_up();
        sent.and_then(|exit| closed.map(|()| exit).map_err(|error| Unreached::Failed(error.into())))
    });
    done.map_err(|unreached| match unreached {
        // Part of the stream may be out already.
        Unreached::Lost(why) | Unreached::Busy(why) => CliError::Failed(why),
        Unreached::Failed(error) => error,
    })
}

fn stream(app: &mut App<'_>, args: &SyncArgs, source: &Remote, ways: &Ways) -> Result<Exit, Unreached> {
    let info = describe(args, ways, source)?;
    let snapshots = Snapshots::take(args, &*ways.source, std::slice::from_ref(&info), None)?;
    let snapshots = snapshots.into_iter().next().ok_or_else(|| missing(args, source))??;
    copy::to_standard(app, args, &*ways.source, &snapshots)
}

fn bring(app: &mut App<'_>, args: &SyncArgs, source: &Remote, ways: &mut Ways) -> Result<Exit, Unreached> {
    let mut infos = match args.recursive {
        true => describe_all(args, ways, source)?,
        false => vec![describe(args, ways, source)?],
    };
    let end = ways.source.clone();
    let Some(target) = &mut ways.target else { return Ok(Exit::Ok) };
    if source.is_zfs {
        refuse_objects(args, &infos, &mut **target)?;
    }
    let mut copy = Copy { args, end: &*end, target: &mut **target };
    match args.recursive {
        true => tree::bring(app, &mut copy, &infos),
        false => match infos.pop() {
            Some(info) => copy::bring(app, &mut copy, &info),
            None => Err(missing(args, source)),
        },
    }
}

/// Of ZFS only streams come, which make files and datasets.
fn refuse_objects(args: &SyncArgs, infos: &[DatasetInfo], target: &mut dyn Target) -> Result<(), Unreached> {
    let Some(info) = infos.first() else { return Ok(()) };
    let rehearsed = target.open(&copy::opening(args, info, &[], &[], true));
    // Errors of it show when it is opened.
    if rehearsed.is_ok_and(|state| state.form == Form::Stream) {
        return Ok(());
    }
    let (r, last) =
        (if args.recursive { "-r " } else { "" }, info.name.rsplit('/').next().unwrap_or_default());
    let what = if info.kind == Kind::Volume { "an image" } else { "a directory" };
    Err(failed(format!(
        "{}: a ZFS pool sends only streams, and {what} cannot be made from a stream\nsync through a dataset, so \
         that the next sync sends only what changed:\n  snowmelt sync {r}{} POOL/{last} && snowmelt sync \
         {r}POOL/{last} {}",
        attempt(args),
        args.source,
        args.target
    )))
}

fn no_tree(args: &SyncArgs) -> CliError {
    CliError::Failed(format!(
        "cannot sync -r to '{}': a tree of datasets needs a dataset or directory as its target\nto store it in one \
         file: snowmelt send -R {}@SNAPSHOT > FILE",
        args.target, args.source
    ))
}

fn attempt(args: &SyncArgs) -> String {
    format!("cannot sync '{}' to '{}'", args.source, args.target)
}

/// A failure, with what was tried.
fn told(attempt: &str, failure: Failure) -> Unreached {
    match failure.kind {
        FailureKind::Lost => Unreached::Lost(failure.message),
        FailureKind::Interrupted => failed("interrupted".to_owned()),
        FailureKind::Busy => Unreached::Busy(format!("{attempt}: {failure}")),
        _ => failed(format!("{attempt}: {failure}")),
    }
}

fn failed(text: String) -> Unreached {
    Unreached::Failed(CliError::Failed(text))
}

fn missing(args: &SyncArgs, source: &Remote) -> Unreached {
    failed(format!("{}: '{}' does not exist", attempt(args), source.dataset))
}

fn with_ways<T>(
    app: &mut App<'_>,
    args: &SyncArgs,
    source: &Remote,
    goal: Goal<'_>,
    work: impl FnOnce(&mut App<'_>, &mut Ways) -> Result<T, Unreached>,
) -> Result<T, Unreached> {
    let mut ways = Ways::open(app, args, source, goal)?;
    let result = work(app, &mut ways);
    let is_lost = ways.is_lost();
    ways.close();
    match result {
        // A failure caused by the lost connection can have many forms.
        Err(Unreached::Failed(error)) if is_lost && !app.context.is_cancelled() => {
            Err(Unreached::Lost(error.to_string()))
        }
        other => other,
    }
}

fn describe(args: &SyncArgs, ways: &Ways, source: &Remote) -> Result<DatasetInfo, Unreached> {
    let what = Describe { root: source.dataset.clone(), recursive: false, tag: String::new() };
    let found = ways.source.describe(&what).map_err(|failure| told(&attempt(args), failure))?;
    found.into_iter().next().ok_or_else(|| missing(args, source))
}

/// The source and its descendants, without excluded ones.
fn describe_all(args: &SyncArgs, ways: &Ways, source: &Remote) -> Result<Vec<DatasetInfo>, Unreached> {
    let what = Describe { root: source.dataset.clone(), recursive: true, tag: String::new() };
    let mut found = ways.source.describe(&what).map_err(|failure| told(&attempt(args), failure))?;
    if found.is_empty() {
        return Err(missing(args, source));
    }
    snowmelt_replicate::plan::leave_out(&mut found, &super::exclusion(args, source));
    Ok(found)
}
