//! `send`.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PIPE_BUF;
use serde_json::json;
use snowmelt_dataset::property::format_bytes;
use snowmelt_dataset::send::{Progress, SendFlags, SendPlan, Source, StepSize};
use snowmelt_dataset::{Catalog, SendError, Snapshot};
use snowmelt_stream::token::ResumeToken;

use super::names;
use crate::app::App;
use crate::args::{Program, SendArgs};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::Session;
use crate::properties::Entity;
use crate::report;

/// Interval of the progress lines of `-v`.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The exit status of `zfs` if the snapshot of a resume token no longer exists.
const GONE: u8 = 255;

/// Sends a snapshot, a package, or the rest of an interrupted stream.
///
/// # Errors
/// When there is nothing to send, or it cannot be read or written.
pub fn run(app: &mut App<'_>, args: &SendArgs) -> Result<Exit> {
    app.is_streaming = true;
    check(app.context, args)?;
    if args.dedup {
        app.context.complain(
            "WARNING: deduplicated send is no longer supported.  A regular,\nnon-deduplicated stream will be generated.\n",
        );
    }
    if let Some(token) = &args.resume {
        return resume(app, args, token);
    }
    let name = args.snapshot.as_deref().unwrap_or_default();
    app.on_dataset(name, |app, session| {
        if !name.contains('@') {
            // The current state of the dataset is sent, with the changes that are still in memory.
            let attempt = format!("cannot send '{name}'");
            refuse_mounted(app, session, name)?;
            session.datasets.pool().commit().map_err(|error| report::failed(&attempt)(error.into()))?;
        }
        let plan = plan(app.context, &session.datasets.catalog(), args, name)?;
        deliver(app, session, args, (plan, name))
    })
}

/// Refuses to send the present state of a filesystem that is mounted for writing. Only `zfs` refuses this, as ZFS does.
fn refuse_mounted(app: &App<'_>, session: &Session, name: &str) -> Result<()> {
    if Program::of(&app.context.args).0 != Program::Zfs {
        return Ok(());
    }
    let dataset = session.datasets.catalog().dataset(name);
    match dataset.ok().and_then(|dataset| session.mounts.head(dataset.id)) {
        Some(mount) if !mount.vfs().is_read_only() => Err(CliError::Failed(format!(
            "warning: cannot send '{name}': target is busy; if a filesystem, it must not be mounted"
        ))),
        _ => Ok(()),
    }
}

fn check(context: &Context, args: &SendArgs) -> Result<()> {
    let usage = |why: &str| Err(CliError::Usage(why.to_owned()));
    let failed = |why: &str| Err(CliError::Failed(why.to_owned()));
    if !args.exclude.is_empty() && !args.replicate {
        return failed("Cannot specify dataset exclusion (-X) on a non-recursive send.");
    }
    if args.skip_missing && !args.replicate {
        return usage("skip-missing flag can only be used in conjunction with replicate");
    }
    if args.from.len() + args.from_all.len() > 1 {
        return usage("only one incremental source can be given");
    }
    if args.saved && args.snapshot.as_deref().is_some_and(|name| name.contains('@')) {
        return usage("saved send must specify the dataset with partially-received state");
    }
    if !args.dry_run && context.is_terminal_out() {
        return failed("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
    }
    Ok(())
}

fn resume(app: &mut App<'_>, args: &SendArgs, text: &str) -> Result<Exit> {
    let attempt = "cannot resume send";
    let token = ResumeToken::parse(text).map_err(|error| CliError::Failed(format!("{attempt}: {error}")))?;
    if args.dry_run && args.verbose > 0 && !args.json {
        writeln!(app.context.out, "resume token contents:\n{}", token.0)?;
    }
    let Some(name) = token.to_name().map(str::to_owned) else {
        return Err(CliError::Failed(format!("{attempt}: resume token is corrupt")));
    };
    let gone = |_: &str| format!("{attempt}: '{name}' used in the initial send no longer exists");
    app.on_pool(&name, gone, |app, session| match SendPlan::resume(&session.datasets.catalog(), &token) {
        Ok(plan) => deliver(app, session, args, (plan, &name)),
        Err(error @ (SendError::ResumeTargetGone { .. } | SendError::ResumeSourceGone { .. })) => {
            app.context.complain(report::send_error(&name, &error));
            Ok(Exit::Other(GONE))
        }
        Err(error) => Err(CliError::Failed(report::send_error(&name, &error))),
    })
}

fn flags(args: &SendArgs) -> SendFlags {
    SendFlags {
        large_blocks: args.large_blocks || args.raw,
        embed: args.embed || args.raw,
        compressed: args.compressed || args.raw,
        raw: args.raw,
        properties: args.properties,
        backup: args.backup,
        holds: args.holds,
        replicate: args.replicate,
        skip_missing: args.skip_missing,
        exclude: args.exclude.clone(),
        saved: args.saved,
        within: None,
    }
}

fn plan(context: &mut Context, catalog: &Catalog, args: &SendArgs, name: &str) -> Result<SendPlan> {
    let failed = |error: SendError| CliError::Failed(report::send_error(name, &error));
    if args.saved {
        let dataset = names::open_dataset(catalog, name)?;
        return SendPlan::saved(catalog, &dataset).map_err(failed);
    }
    if !name.contains('@') {
        return head_plan(context, catalog, args, name);
    }
    let to = names::open_snapshot(catalog, name)?;
    let flags = flags(args);
    if args.replicate {
        let from = match (args.from.last(), args.from_all.last()) {
            (Some(from), _) => Some((short_source(from, &to)?, false)),
            (None, Some(from)) => Some((short_source(from, &to)?, true)),
            (None, None) => None,
        };
        return SendPlan::replicate(catalog, &to, from, &flags).map_err(failed);
    }
    if let Some(from) = args.from_all.last() {
        if from.contains('#') {
            let why = "Error: multiple snapshots cannot be sent from a bookmark.";
            return Err(CliError::Failed(why.to_owned()));
        }
        let from = source(context, catalog, from, &to.dataset)?;
        return SendPlan::all_between(catalog, from, &to, &flags).map_err(failed);
    }
    let from = match args.from.last() {
        Some(from) => source(context, catalog, from, &to.dataset)?,
        None => Source::None,
    };
    SendPlan::single(catalog, &to, from, &flags).map_err(failed)
}

/// The current state of a dataset.
fn head_plan(context: &mut Context, catalog: &Catalog, args: &SendArgs, name: &str) -> Result<SendPlan> {
    let dataset = names::open_dataset(catalog, name)?;
    if args.replicate || !args.from_all.is_empty() || args.properties || args.backup || args.holds {
        return Err(CliError::Usage(format!(
            "Error: Unsupported flag with filesystem or bookmark: '{name}' is not a snapshot"
        )));
    }
    let from = match args.from.last() {
        Some(from) => source(context, catalog, from, name)?,
        None => Source::None,
    };
    SendPlan::head(catalog, &dataset, from, &flags(args))
        .map_err(|error| CliError::Failed(report::send_error(name, &error)))
}

/// The base of an incremental stream: `@a`, `#a`, `tank/x@a`, `tank/x#a`, or `a`, which means `@a`.
fn source(context: &mut Context, catalog: &Catalog, from: &str, dataset: &str) -> Result<Source> {
    let full = if from.starts_with(['@', '#']) {
        format!("{dataset}{from}")
    } else if from.contains(['@', '#']) {
        from.to_owned()
    } else {
        context.complain(
            "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to avoid ambiguity.",
        );
        format!("{dataset}@{from}")
    };
    let missing = || CliError::Failed(format!("incremental source ({full}) does not exist"));
    match Entity::find(catalog, &full).map_err(|_| missing())? {
        Entity::Snapshot(snapshot, _) => Ok(Source::Snapshot(snapshot)),
        Entity::Bookmark(bookmark, _) => Ok(Source::Bookmark(bookmark)),
        Entity::Dataset(_) => Err(missing()),
    }
}

/// With `-R` the source is a snapshot's name, the same in every dataset.
fn short_source<'a>(from: &'a str, to: &Snapshot) -> Result<&'a str> {
    if from.contains('#') {
        return Err(CliError::Failed("Error: multiple snapshots cannot be sent from a bookmark.".to_owned()));
    }
    match from.split_once('@') {
        None => Ok(from),
        Some((dataset, short)) if dataset.is_empty() || dataset == to.dataset => Ok(short),
        Some(_) => Err(CliError::Usage("incremental source must be in same filesystem".to_owned())),
    }
}

/// Tells sizes if asked, and sends unless it is only a question.
fn deliver(
    app: &mut App<'_>,
    session: &Session,
    args: &SendArgs,
    (plan, name): (SendPlan, &str),
) -> Result<Exit> {
    let tells = args.verbose > 0 || args.parsable || args.process_title || args.json;
    for warning in plan.warnings() {
        app.context.complain(warning);
    }
    if tells {
        let sizes = plan.estimate().map_err(|error| CliError::Failed(report::send_error(name, &error)))?;
        if args.json {
            let total: u64 = sizes.iter().map(|step| step.size).sum();
            let steps: Vec<_> = sizes
                .iter()
                .map(|step| json!({ "from": step.from, "snapshot": step.to, "size": step.size }))
                .collect();
            let mut document = json::document("snowmelt send");
            document.insert("streams".to_owned(), steps.into());
            document.insert("size".to_owned(), total.into());
            json::print(&mut app.context.out, document)?;
            return Ok(Exit::Ok);
        }
        let text = sizes_text(&sizes, args.parsable, args.replicate || !args.from_all.is_empty());
        // In a real send standard output is the stream's.
        if args.dry_run {
            app.context.out.write_all(text.as_bytes())?;
        } else {
            app.context.complain(text.trim_end());
        }
    }
    if args.dry_run {
        return Ok(Exit::Ok);
    }
    send(app, session, args, (&plan, name, tells))
}

/// One line for each snapshot, then the sum (`send_print_verbose` in `lib/libzfs/libzfs_sendrecv.c`).
fn sizes_text(sizes: &[StepSize], parsable: bool, is_package: bool) -> String {
    let mut text = String::new();
    let mut total = 0;
    for step in sizes {
        total += step.size;
        let from = step.from.as_deref().map(|from| match from.rsplit_once('@') {
            Some((_, short)) if is_package => short,
            _ => from,
        });
        match (from, parsable) {
            (None, true) => text.push_str(&format!("full\t{}\t{}\n", step.to, step.size)),
            (Some(from), true) => {
                text.push_str(&format!("incremental\t{from}\t{}\t{}\n", step.to, step.size))
            }
            (None, false) => {
                text.push_str(&format!(
                    "full send of {} estimated size is {}\n",
                    step.to,
                    format_bytes(step.size)
                ));
            }
            (Some(from), false) => {
                let sign = if from.contains(['@', '#']) { "" } else { "@" };
                let size = format_bytes(step.size);
                text.push_str(&format!("send from {sign}{from} to {} estimated size is {size}\n", step.to));
            }
        }
    }
    match parsable {
        true => text.push_str(&format!("size\t{total}\n")),
        false => text.push_str(&format!("total estimated size is {}\n", format_bytes(total))),
    }
    text
}

fn send(
    app: &mut App<'_>,
    session: &Session,
    args: &SendArgs,
    (plan, name, tells): (&SendPlan, &str, bool),
) -> Result<Exit> {
    let file = app
        .context
        .out
        .get_ref()
        .try_clone()
        .map_err(|error| CliError::failed("cannot write the stream", &error))?;
    let out = Output { file, session };
    let (cancelled, flag) = (app.context.cancelled.clone(), plan.cancel_flag());
    let zone = app.context.time_zone();
    let last: Mutex<(Instant, String)> = Mutex::new((Instant::now(), String::new()));
    let err =
        app.context.err.try_clone().map_err(|error| CliError::failed("cannot report progress", &error))?;
    let progress = |at: Progress<'_>| {
        if cancelled.load(Ordering::Relaxed) {
            flag.store(true, Ordering::Relaxed);
        }
        let Ok(mut last) = last.lock() else { return };
        if !tells || last.0.elapsed() < TELL_EVERY {
            return;
        }
        last.0 = Instant::now();
        let now = jiff::Timestamp::now().to_zoned(zone.clone()).strftime("%H:%M:%S").to_string();
        let mut err = &err;
        let told: io::Result<()> = if args.parsable {
            writeln!(err, "{now}\t{}\t{}", at.snapshot_bytes, at.snapshot)
        } else {
            let header =
                (last.1 != at.snapshot).then(|| format!("TIME        SENT   SNAPSHOT {}\n", at.snapshot));
            let header = header.unwrap_or_default();
            writeln!(err, "{header}{now}   {:>5}   {}", format_bytes(at.snapshot_bytes), at.snapshot)
        };
        // Progress that cannot be told is no reason to stop.
        let _ = told;
        at.snapshot.clone_into(&mut last.1);
    };
    match plan.run(out, &progress) {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => Err(CliError::Failed(report::send_error(name, &error))),
    }
}

/// Standard output. A reader that leaves a pipe full may be waiting for the pool, so it is served from then on.
struct Output<'a> {
    file: File,
    session: &'a Session,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.session.is_serving() {
            return self.file.write(bytes);
        }
        let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
            self.session.serve_now();
        }
        // A pipe that is ready takes so much at once.
        let len = bytes.len().min(PIPE_BUF);
        self.file.write(bytes.get(..len).unwrap_or(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(from: Option<&str>, to: &str, size: u64) -> StepSize {
        StepSize { from: from.map(str::to_owned), to: to.to_owned(), size }
    }

    #[test]
    fn sizes_as_tools_read_them() {
        let single = [step(None, "tank/a@1", 1000)];
        assert_eq!(sizes_text(&single, true, false), "full\ttank/a@1\t1000\nsize\t1000\n");
        let incremental = [step(Some("tank/a@1"), "tank/a@2", 624)];
        assert_eq!(
            sizes_text(&incremental, true, false),
            "incremental\ttank/a@1\ttank/a@2\t624\nsize\t624\n"
        );
        let package = [step(Some("tank/a@1"), "tank/a@2", 1024), step(Some("tank/a@2"), "tank/a@3", 1024)];
        assert_eq!(
            sizes_text(&package, false, true),
            "send from @1 to tank/a@2 estimated size is 1K\n\
             send from @2 to tank/a@3 estimated size is 1K\n\
             total estimated size is 2K\n"
        );
        assert_eq!(
            sizes_text(&single, false, false),
            "full send of tank/a@1 estimated size is 1000B\ntotal estimated size is 1000B\n"
        );
    }
}
