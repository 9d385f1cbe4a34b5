//! `sync`.
//!
//! This process never opens a pool itself. Every side has a server: a thread here, the owner of the pool, or a
//! process on another machine. So all sides are accessed in the same way.

mod ends;
mod given;
pub mod heal;
mod into;
mod place;
mod rsync;
mod shadow;

pub(super) use self::ends::{OneEnd, devices};
pub(super) use self::place::{Place, Remote, parse as parse_place};
pub(super) use self::rsync::{dataset_of as rsync_end, is_without_snapshots};
pub(super) use snowmelt_rsync::client::Direction;

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use snowmelt_dataset::property::{PeerProperties, Types, format_bytes, parse_size};
use snowmelt_replicate::limit::Limit;
use snowmelt_replicate::plan::{Marks, Options};
use snowmelt_replicate::request::{TakeIn, TakenIn};
use snowmelt_replicate::sync::{Event, Preview, Report, Sync};
use snowmelt_replicate::target::is_stream;
use snowmelt_replicate::{Failure, FailureKind};

use self::ends::{Ends, Goal, Reach, Unreached};
use super::{assignments, import, receive};
use crate::app::App;
use crate::args::{ImportArgs, SyncArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::glob::Pattern;
use crate::progress::Progress;

/// The first pause before a lost connection is made again; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How soon a pause ends when the command is interrupted.
const TICK: Duration = Duration::from_millis(100);

/// Brings a copy up to date.
///
/// # Errors
/// When a side is not valid or cannot be reached. Datasets that cannot be brought up to date are reported, and change
/// the exit status.
pub fn run(app: &mut App<'_>, args: &SyncArgs) -> Result<Exit> {
    if let Some(transfer) = rsync::Transfer::parse(app, args)? {
        return rsync::run(app, args, &transfer);
    }
    rsync::check_unused(args)?;
    let source = place::parse(app, &args.source)?;
    let target = place::parse(app, &args.target)?;
    for (place, text) in [(&source, &args.source), (&target, &args.target)] {
        place::check_pool(app, place, text)?;
    }
    let result = match (source, target) {
        (Place::Dataset(source), Place::Dataset(target)) => datasets(app, args, &source, &target),
        (Place::Path(path), Place::Dataset(target)) => from_path(app, args, &path, &target),
        (Place::Elsewhere(source), Place::Dataset(target)) => shadow::run(app, args, &source, &target),
        (Place::Standard, Place::Dataset(target)) => given::run(app, args, &target),
        (Place::Dataset(source), Place::Path(path)) => into::run(app, args, &source, Goal::Here(&path)),
        (Place::Dataset(source), Place::Elsewhere(target)) => {
            into::run(app, args, &source, Goal::There(&target))
        }
        (Place::Dataset(source), Place::Standard) => into::run(app, args, &source, Goal::Standard),
        _ => Err(CliError::Failed(format!(
            "cannot sync '{0}' to '{1}': one of them must be a dataset, which keeps the earlier state\nsync '{0}' \
             to a dataset, and this dataset to '{1}':\n  snowmelt sync {0} POOL/DATASET && snowmelt sync \
             POOL/DATASET {1}",
            args.source, args.target
        ))),
    };
    match result {
        Err(CliError::NoProgram(why)) => rsync::run_instead(app, args, why),
        other => other,
    }
}

/// A directory or an image is imported; a file with a stream is received.
fn from_path(app: &mut App<'_>, args: &SyncArgs, path: &Path, target: &Remote) -> Result<Exit> {
    let metadata = std::fs::metadata(path).map_err(|error| cannot_sync(args, &error))?;
    if metadata.is_file() && is_stream(path) {
        app.context.stdin = std::fs::File::open(path).map_err(|error| cannot_sync(args, &error))?;
        return given::run(app, args, target);
    }
    if target.host.is_some() || target.is_zfs {
        let source = path.canonicalize().map_err(|error| cannot_sync(args, &error))?;
        return shadow::run(app, args, &Remote::of_path(None, source), target);
    }
    let import = ImportArgs {
        force: args.force,
        dry_run: args.dry_run,
        parents: true,
        verbose: args.verbose,
        one_filesystem: false,
        block_size: None,
        properties: args.set.clone(),
        exclude: args.exclude.clone(),
        exclude_from: Vec::new(),
        ignore_ctime: false,
        json: args.json,
        source: path.to_owned(),
        target: target.dataset.clone(),
    };
    import::take(app, &import, true)
}

fn cannot_sync(args: &SyncArgs, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot sync '{}'", args.source), error)
}

fn datasets(app: &mut App<'_>, args: &SyncArgs, source: &Remote, target: &Remote) -> Result<Exit> {
    if source == target {
        return Err(CliError::Failed(format!(
            "cannot sync '{}': source and target are the same",
            args.source
        )));
    }
    let settings = Settings::new(args, source, target)?;
    match bring(app, args, source, target, &settings)? {
        Attempt::Previewed(preview) => told(app, args, &preview),
        Attempt::Done(report, _) => finish(app, args, &report),
        Attempt::Looked(_) => Ok(Exit::Ok),
    }
}

/// Brings the target up to date, as often as it takes.
fn bring(
    app: &mut App<'_>,
    args: &SyncArgs,
    source: &Remote,
    target: &Remote,
    settings: &Settings,
) -> Result<Attempt> {
    let is_excluded = exclusion(args, source);
    let mut pause = PAUSE;
    let mut left = args.retries;
    let mut was_reached = false;
    // The new state in the shadow must not be discarded.
    let mut again = settings.again;
    loop {
        let attempt = once(app, args, source, target, settings, again, &is_excluded, &mut was_reached);
        again = again && !was_reached;
        let lost = match attempt {
            Ok(Attempt::Done(report, taken)) => {
                match report.datasets.iter().find_map(|one| lost(one, left < args.retries)) {
                    Some(lost) if left > 0 => lost,
                    _ => return Ok(Attempt::Done(report, taken)),
                }
            }
            Ok(other) => return Ok(other),
            // The other side may need a moment to learn that a connection was lost.
            Err(Unreached::Busy(busy)) if left < args.retries && left > 0 => busy,
            Err(Unreached::Busy(busy)) => return Err(CliError::Failed(busy)),
            Err(Unreached::Lost(lost)) if was_reached && left > 0 => lost,
            Err(Unreached::Lost(lost)) => return Err(CliError::Failed(lost)),
            Err(Unreached::Failed(error)) => return Err(error),
        };
        left -= 1;
        app.context.complain(format_args!("{lost}\ntrying again in {} s", pause.as_secs()));
        pause_for(app, pause)?;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether a dataset of the source is left out, by its full name.
pub(super) fn exclusion(
    args: &SyncArgs,
    source: &Remote,
) -> impl Fn(&str) -> bool + std::marker::Sync + use<> {
    let patterns: Vec<Pattern> = args.exclude.iter().map(|text| Pattern::new(text, false)).collect();
    let below = format!("{}/", source.dataset);
    move |name: &str| {
        let relative = name.strip_prefix(&below).unwrap_or_default();
        let last = relative.rsplit('/').next().unwrap_or_default();
        let fits =
            |pattern: &Pattern| pattern.matches(relative.as_bytes()) || pattern.matches(last.as_bytes());
        !relative.is_empty() && patterns.iter().any(fits)
    }
}

/// The names of the snapshots, bookmarks and holds of a sync with these arguments.
pub(super) fn marks(args: &SyncArgs, target: &Remote) -> Marks {
    let place = format!("{}:{}", target.host.as_deref().unwrap_or_default(), target.dataset);
    Marks::new(args.identifier.as_deref(), &place, !args.no_hold)
}

/// The reason to retry a dataset. After a lost connection, the receive at the other side may need a moment to notice
/// it.
fn lost(dataset: &snowmelt_replicate::sync::DatasetReport, was_lost: bool) -> Option<String> {
    let may_pass = |failure: &&Failure| failure.may_pass() || was_lost && failure.kind == FailureKind::Busy;
    dataset.failure.as_ref().filter(may_pass).map(|failure| failure.message.clone())
}

/// The parsed flags.
struct Settings {
    options: Options,
    marks: Marks,
    rate: Option<u64>,
    /// The state of a directory in the shadow could not be sent, and is discarded.
    again: bool,
}

impl Settings {
    fn new(args: &SyncArgs, source: &Remote, target: &Remote) -> Result<Self> {
        let attempt = format!("cannot sync to '{}'", args.target);
        let pairs = assignments::split_all(&args.set)?;
        let set = assignments::stored(&assignments::for_new(&attempt, &pairs, Types::FILESYSTEM_VOLUME)?);
        let exclude = args
            .without
            .iter()
            .map(|name| {
                assignments::canonical_name(name)
                    .map_err(|error| CliError::Usage(format!("{attempt}: {error}")))
            })
            .collect::<Result<_>>()?;
        PeerProperties::with(args.allow_property.iter().map(String::as_str))
            .map_err(|error| CliError::Usage(format!("{attempt}: --allow-property: {error}")))?;
        let rate = rate(args)?;
        check_identifier(args)?;
        let options = Options {
            newest_only: args.newest_only,
            force: args.force,
            raw: args.raw,
            properties: args.properties,
            // A source of ZFS may refuse to mix streams with and without large blocks; ours takes either.
            large_blocks: !source.is_zfs || !target.is_zfs,
            set,
            exclude,
        };
        Ok(Self { options, marks: marks(args, target), rate, again: false })
    }
}

/// Bytes a second, if that is limited.
fn rate(args: &SyncArgs) -> Result<Option<u64>> {
    let Some(text) = &args.bwlimit else { return Ok(None) };
    let rate = parse_size(text.trim_end_matches("/s"))
        .map_err(|error| CliError::Usage(format!("--bwlimit {text}: {error}")))?;
    Ok(Some(rate))
}

/// Whether `--identifier` can be part of names.
fn check_identifier(args: &SyncArgs) -> Result<()> {
    if let Some(identifier) = &args.identifier {
        let is_fine = !identifier.is_empty()
            && identifier.len() <= 40
            && identifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
            && !identifier.starts_with(|first: char| first.is_ascii_digit());
        if !is_fine {
            return Err(CliError::Usage(format!(
                "--identifier {identifier}: it must begin with a letter, and can have up to 40 letters, digits, \
                 '-' and '.'"
            )));
        }
    }
    Ok(())
}

/// This command, for the history of pools.
fn history(app: &App<'_>) -> String {
    let mut line = "snowmelt".to_owned();
    for word in &app.context.args {
        line.push(' ');
        line.push_str(&word.to_string_lossy());
    }
    line
}

/// The text for a side of a sync in records: one line.
fn canonical(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// The name of a snapshot that is taken now.
fn snapshot_name(marks: &Marks) -> String {
    let taken = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    format!("{}{}", marks.snapshot_prefix, taken.strftime("%Y-%m-%d_%H:%M:%S.%3f"))
}

/// Waits, unless it is interrupted.
fn pause_for(app: &App<'_>, pause: Duration) -> Result<()> {
    let mut waited = Duration::ZERO;
    while waited < pause && !app.context.is_cancelled() {
        std::thread::sleep(TICK);
        waited += TICK;
    }
    match app.context.is_cancelled() {
        true => Err(CliError::Failed("interrupted".to_owned())),
        false => Ok(()),
    }
}

enum Attempt {
    /// With the earlier state of a directory or image in the shadow.
    Done(Report, Option<TakenIn>),
    Previewed(Preview),
    /// What would be taken in.
    Looked(TakenIn),
}

#[allow(clippy::too_many_arguments)]
fn once(
    app: &mut App<'_>,
    args: &SyncArgs,
    source: &Remote,
    target: &Remote,
    settings: &Settings,
    again: bool,
    is_excluded: &(dyn Fn(&str) -> bool + std::marker::Sync),
    was_reached: &mut bool,
) -> Result<Attempt, Unreached> {
    let ends = Ends::open(app, Reach::from(args), source, target)?;
    *was_reached = true;
    let mut taken = None;
    if source.path.is_some() {
        let how = TakeIn {
            snapshot: snapshot_name(&settings.marks),
            exclude: args.exclude.clone(),
            dry_run: args.dry_run,
            again,
        };
        let found = match ends.source.take_in(&how) {
            Ok(found) => found,
            Err(failure) => {
                ends.close();
                return Err(failed(args, failure));
            }
        };
        for note in &found.notes {
            app.context.complain(note);
        }
        if args.dry_run {
            ends.close();
            return Ok(Attempt::Looked(found));
        }
        taken = Some(found);
    }
    let source_root = taken.as_ref().map_or(&source.dataset, |taken| &taken.dataset);
    let cancelled = app.context.cancelled.clone();
    let shown = (!args.json).then(|| Progress::bytes(app.context, None));
    let history = history(app);
    // A directory has the name that the user gave, not the name of its shadow.
    let named = taken.is_some().then_some(&*args.source);
    let teller = Teller { app: Mutex::new(app), verbose: args.verbose && !args.json, shown, source: named };
    let sync = Sync {
        source: &*ends.source,
        source_root,
        target: &*ends.target,
        target_root: &target.dataset,
        recursive: args.recursive,
        is_excluded,
        snapshot: (taken.is_none() && !args.no_snapshot).then(|| snapshot_name(&settings.marks)),
        marks: settings.marks.clone(),
        history,
        options: settings.options.clone(),
        jobs: usize::from(args.jobs),
        limit: settings.rate.map(Limit::new),
        tell_sizes: teller.shown.as_ref().is_some_and(Progress::is_shown),
        observer: &|event| teller.tell(&event),
        cancelled: &cancelled,
    };
    let result = match args.dry_run {
        true => sync.preview().map(Attempt::Previewed),
        false => sync.run().map(|report| Attempt::Done(report, None)),
    };
    if let Some(shown) = teller.shown {
        shown.finish();
    }
    let is_all_there = |report: &Report| report.datasets.iter().all(|dataset| dataset.failure.is_none());
    let noted = match &result {
        Ok(Attempt::Done(report, _)) if taken.is_some() && is_all_there(report) => {
            ends.source.sent(&args.target)
        }
        _ => Ok(()),
    };
    ends.close();
    match result.and_then(|attempt| noted.map(|()| attempt)).map_err(|failure| failed(args, failure))? {
        Attempt::Done(report, _) => Ok(Attempt::Done(report, taken)),
        other => Ok(other),
    }
}

fn failed(args: &SyncArgs, failure: Failure) -> Unreached {
    match failure.kind {
        FailureKind::Lost => Unreached::Lost(failure.message),
        FailureKind::Busy => Unreached::Busy(failure.message),
        FailureKind::Interrupted => Unreached::Failed(CliError::Failed("interrupted".to_owned())),
        _ => Unreached::Failed(CliError::Failed(format!(
            "cannot sync '{}' to '{}': {failure}",
            args.source, args.target
        ))),
    }
}

/// Shows what happens. Called from all threads of a sync.
struct Teller<'a, 'b> {
    app: Mutex<&'a mut App<'b>>,
    verbose: bool,
    shown: Option<Progress>,
    /// The source as the user gave it, if it is not a dataset.
    source: Option<&'a str>,
}

impl Teller<'_, '_> {
    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Planned { bytes } => {
                if let Some(shown) = &self.shown {
                    shown.expect(*bytes);
                }
            }
            Event::Begin { snapshot, target, resumes } => {
                if let Some(shown) = &self.shown {
                    let verb = if *resumes { "resuming " } else { "" };
                    let source = self.source.unwrap_or(snapshot);
                    shown.message(&format!("{verb}{source} to {target}"));
                }
            }
            Event::Bytes(more) => {
                if let Some(shown) = &self.shown {
                    shown.advance(*more as u64);
                }
            }
            Event::End { snapshot, target, bytes, took } if self.verbose => {
                let bytes = format_bytes(*bytes);
                let source = self.source.unwrap_or(snapshot);
                self.say(&format!("{source} to {target}: {bytes} in {:.1} s", took.as_secs_f64()));
            }
            Event::Note(note) => {
                let Ok(mut app) = self.app.lock() else { return };
                app.context.complain(note);
            }
            _ => {}
        }
    }

    fn say(&self, line: &str) {
        let Ok(mut app) = self.app.lock() else { return };
        // If the output is closed, the sync continues.
        let out = &mut app.context.out;
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

/// The result.
fn finish(app: &mut App<'_>, args: &SyncArgs, report: &Report) -> Result<Exit> {
    let failed: Vec<_> = report.datasets.iter().filter(|dataset| dataset.failure.is_some()).collect();
    if args.json {
        let datasets: Vec<_> = report
            .datasets
            .iter()
            .map(|dataset| {
                serde_json::json!({
                    "source": dataset.source,
                    "target": dataset.target,
                    "snapshot": dataset.snapshot,
                    "bytes": dataset.bytes,
                    "streams": dataset.streams,
                    "error": dataset.failure.as_ref().map(|failure| &failure.message),
                })
            })
            .collect();
        let bytes: u64 = report.datasets.iter().map(|dataset| dataset.bytes).sum();
        writeln!(app.context.out, "{}", serde_json::json!({ "bytes": bytes, "datasets": datasets }))?;
    } else if args.verbose {
        let bytes: u64 = report.datasets.iter().map(|dataset| dataset.bytes).sum();
        let sent = report.datasets.iter().filter(|dataset| dataset.streams > 0).count();
        let fine = report.datasets.len() - failed.len();
        let all = report.datasets.len();
        let what = match sent {
            0 if failed.is_empty() => "nothing changed".to_owned(),
            0 => "nothing sent".to_owned(),
            sent if sent == all => format!("{} sent", format_bytes(bytes)),
            sent => format!("{} sent for {sent} of them", format_bytes(bytes)),
        };
        writeln!(app.context.out, "{fine} of {all} datasets up to date, {what}")?;
    }
    for dataset in failed.iter().filter(|dataset| !dataset.was_needing) {
        if let Some(failure) = &dataset.failure {
            app.context.complain(format_args!(
                "cannot sync '{}' to '{}': {failure}",
                dataset.source, dataset.target
            ));
        }
    }
    match failed.iter().filter(|dataset| dataset.was_needing).count() {
        0 => {}
        1 => app.context.complain("1 dataset that depends on one of these was skipped"),
        count => {
            app.context.complain(format_args!("{count} datasets that depend on one of these were skipped"))
        }
    }
    Ok(match failed.len() {
        0 => Exit::Ok,
        some if some == report.datasets.len() => Exit::Failed,
        _ => Exit::Partial,
    })
}

/// What would be done.
fn told(app: &mut App<'_>, args: &SyncArgs, preview: &Preview) -> Result<Exit> {
    let mut total = 0;
    let mut rows = Vec::new();
    for dataset in &preview.datasets {
        let bytes: u64 = dataset.sends.iter().map(|(_, bytes)| bytes).sum();
        total += bytes;
        if args.json {
            rows.push(serde_json::json!({
                "source": dataset.source,
                "target": dataset.target,
                "rename": dataset.rename,
                "snapshot": dataset.snapshot,
                "bytes": bytes,
                "sends": dataset.sends.iter().map(|(send, bytes)| serde_json::json!({
                    "from": send.from, "to": send.to, "resumes": send.token.is_some(), "bytes": bytes,
                })).collect::<Vec<_>>(),
                "error": dataset.failure.as_ref().map(|failure| &failure.message),
            }));
            continue;
        }
        if let Some(failure) = &dataset.failure {
            app.context.complain(format_args!(
                "cannot sync '{}' to '{}': {failure}",
                dataset.source, dataset.target
            ));
            continue;
        }
        let out = &mut app.context.out;
        if let Some(from) = &dataset.rename {
            writeln!(out, "would rename {from} to {}", dataset.target)?;
        }
        if dataset.snapshot {
            writeln!(out, "would take a snapshot of {}, and send its changes", dataset.source)?;
        }
        for (send, bytes) in &dataset.sends {
            let what = match (&send.token, &send.from) {
                (Some(_), _) => format!("the rest of {}", send.to),
                (None, Some(from)) => format!("{} since {from}", send.to),
                (None, None) => format!("{} in full", send.to),
            };
            writeln!(out, "would send {what} to {}: {}", dataset.target, format_bytes(*bytes))?;
        }
    }
    let failed = preview.datasets.iter().filter(|dataset| dataset.failure.is_some()).count();
    if args.json {
        writeln!(app.context.out, "{}", serde_json::json!({ "bytes": total, "datasets": rows }))?;
    } else {
        writeln!(app.context.out, "{} in total", format_bytes(total))?;
    }
    Ok(match failed {
        0 => Exit::Ok,
        some if some == preview.datasets.len() => Exit::Failed,
        _ => Exit::Partial,
    })
}
