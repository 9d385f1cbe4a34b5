//! The transfer itself, by the owner of the pool. The connection is its standard input.

use std::fs::File;
use std::io::{BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use snowmelt_dataset::property::{Types, format_bytes};
use snowmelt_dataset::{Snapshot, StageOptions};
use snowmelt_rsync::client::{self, Direction, Told, Wishes};
use snowmelt_rsync::target::{DatasetTarget, Target};
use snowmelt_rsync::{Prompt, RsyncError, Summary, history};

use super::shown::{Counted, Shown};
use super::{LOST, Transfer, lost};
use crate::app::App;
use crate::args::SyncArgs;
use crate::commands::assignments;
use crate::commands::serve_rsync::open_tree;
use crate::commands::sync::canonical;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::progress::Progress;

/// How often it is looked at whether to end.
const TICK: Duration = Duration::from_millis(100);
/// Exit codes of a server whose connection failed: socket, stream, signal, timeout, no connection.
const LOST_CODES: [u32; 5] = [10, 12, 20, 30, 35];

/// Transfers the files on a connection whose server has received its arguments.
pub(super) fn carry_out(
    app: &mut App<'_>,
    args: &SyncArgs,
    transfer: &Transfer,
    wishes: &Wishes,
    protocol: u8,
) -> Result<Exit> {
    let missing = |pool: &str| format!("{}: no such pool '{pool}'", attempt(args));
    app.on_pool(&transfer.tree, missing, |app, session| {
        if session.shadow().is_some() {
            return Err(CliError::Failed(format!(
                "{}: it is in a shadow, which has no file data",
                attempt(args)
            )));
        }
        if transfer.is_instead && transfer.direction == Direction::Pull {
            check_ways(args, session, transfer)?;
        }
        let before = newest(session, transfer);
        let told = Arc::new(Told::new(Box::new(Shown::new(app, args)?)));
        let result = match transfer.direction {
            Direction::Pull => pull(app, args, session, (transfer, wishes, protocol), &told)?,
            Direction::Push => push(app, args, session, (transfer, wishes, protocol), &told)?,
        };
        let taken = match transfer.direction {
            Direction::Pull => newest(session, transfer).filter(|now| before.as_ref() != Some(now)),
            Direction::Push => None,
        };
        match told.left_out() {
            0 => {}
            count => app.context.complain(format_args!("and {count} more messages")),
        }
        match result {
            Ok(summary) => {
                if !args.dry_run {
                    record(app, args, session);
                }
                finish(app, args, &summary, &told, taken.as_deref())
            }
            Err(error) => ended(app, args, &error, taken.as_deref()),
        }
    })
}

fn attempt(args: &SyncArgs) -> String {
    format!("cannot sync '{}' to '{}'", args.source, args.target)
}

/// If snowmelt is missing only now, the state that it made stays the base of its next sync.
fn check_ways(args: &SyncArgs, session: &Session, transfer: &Transfer) -> Result<()> {
    let catalog = session.datasets.catalog();
    let Ok(dataset) = catalog.dataset(&transfer.tree) else { return Ok(()) };
    let is_of_others =
        history::is_of_others(&catalog, &dataset).map_err(|error| CliError::failed(attempt(args), &error))?;
    match is_of_others {
        false => Ok(()),
        true => Err(CliError::Failed(format!(
            "{}: '{}' was not synced through rsync before, and the two kinds of sync cannot be mixed\ninstall \
             snowmelt on '{}', or use only its rsync: snowmelt sync {} {}",
            attempt(args),
            transfer.tree,
            transfer.address.host,
            transfer.address.explicit(),
            args.target
        ))),
    }
}

fn record(app: &mut App<'_>, args: &SyncArgs, session: &Session) {
    let line = canonical(&format!("snowmelt sync {} {}", args.source, args.target));
    if let Err(error) = session.datasets.record_history(&line) {
        app.context.complain(format_args!("warning: the pool's history could not be written: {error}"));
    }
}

/// The name of the newest snapshot of the dataset that is received into.
fn newest(session: &Session, transfer: &Transfer) -> Option<String> {
    let catalog = session.datasets.catalog();
    let dataset = catalog.dataset(&transfer.tree).ok()?;
    catalog.newest_snapshot(&dataset).ok().flatten().as_ref().map(Snapshot::full_name)
}

type Plan<'a> = (&'a Transfer, &'a Wishes, u8);

fn pull(
    app: &mut App<'_>,
    args: &SyncArgs,
    session: &Session,
    (transfer, wishes, protocol): Plan<'_>,
    told: &Arc<Told>,
) -> Result<snowmelt_rsync::Result<Summary>> {
    let new = format!("cannot create '{}'", transfer.tree);
    let pairs = assignments::split_all(&args.set)?;
    let options = StageOptions {
        parents: true,
        force: args.dry_run,
        properties: assignments::stored(&assignments::for_new(&new, &pairs, Types::FILESYSTEM)?),
        ..StageOptions::default()
    };
    let target = DatasetTarget::begin_own(&session.datasets, &transfer.tree, &options)
        .map_err(|error| CliError::failed(attempt(args), &error))?;
    counted(app, args, |socket, progress| {
        let reader = Counted { inner: BufReader::new(Prompt::new(socket.try_clone()?)), progress };
        let target: Box<dyn Target + '_> = Box::new(target);
        let target = (target, transfer.tree.as_str());
        client::pull(protocol, (reader, socket.try_clone()?), wishes, told, target)
    })
}

fn push(
    app: &mut App<'_>,
    args: &SyncArgs,
    session: &Session,
    (transfer, wishes, protocol): Plan<'_>,
    told: &Arc<Told>,
) -> Result<snowmelt_rsync::Result<Summary>> {
    let source = open_tree(&session.datasets, &transfer.tree)
        .map_err(|why| CliError::Failed(format!("cannot open '{}': {why}", transfer.tree)))?;
    counted(app, args, |socket, progress| {
        let reader = BufReader::new(Prompt::new(socket.try_clone()?));
        let writer = Counted { inner: socket.try_clone()?, progress };
        let source = (&*source, &b""[..], transfer.tree.as_str());
        client::push(protocol, (reader, writer), wishes, told, source)
    })
}

/// Does something with the connection, and shows the number of bytes.
fn counted<T>(
    app: &App<'_>,
    args: &SyncArgs,
    work: impl FnOnce(&File, &Progress) -> snowmelt_rsync::Result<T>,
) -> Result<snowmelt_rsync::Result<T>> {
    let progress = match args.verbose || args.dry_run || args.json {
        true => Progress::hidden(),
        false => Progress::bytes(app.context, None),
    };
    let result = watched(app.context, |socket| work(socket, &progress));
    progress.finish();
    result
}

/// Does something with the connection, which ends when the command is to.
fn watched<T>(
    context: &Context,
    work: impl FnOnce(&File) -> snowmelt_rsync::Result<T>,
) -> Result<snowmelt_rsync::Result<T>> {
    let socket = context.stdin.try_clone().map_err(CliError::Output)?;
    let is_over = AtomicBool::new(false);
    Ok(std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if context.is_cancelled() {
                    // It may be gone already.
                    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
                    return;
                }
                std::thread::park_timeout(TICK);
            }
        });
        let result = work(&socket);
        is_over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        result
    }))
}

/// The result.
fn finish(
    app: &mut App<'_>,
    args: &SyncArgs,
    summary: &Summary,
    told: &Told,
    taken: Option<&str>,
) -> Result<Exit> {
    let out = &mut app.context.out;
    if args.json {
        let figures = serde_json::json!({
            "source": args.source,
            "target": args.target,
            "through": "rsync",
            "snapshot": taken,
            "files": summary.files,
            "deleted": summary.deleted,
            "literal": summary.literal,
            "matched": summary.matched,
            "size": summary.size,
            "sent": summary.written,
            "received": summary.read,
        });
        writeln!(out, "{figures}")?;
    } else if args.verbose || args.dry_run {
        let Summary { files, literal, matched, read, written, size, .. } = *summary;
        let [literal, matched, read, written, size] =
            [literal, matched, read, written, size].map(format_bytes);
        writeln!(
            out,
            "{}{files} files transferred, with {literal} of new data and {matched} of matching data, {size} in \
             total; {read} received, {written} sent",
            taken.map(|taken| format!("{taken}: ")).unwrap_or_default()
        )?;
    }
    if told.has_failed() || summary.shortcoming().is_some() {
        app.context.complain(format_args!("{}: part of it was not transferred", attempt(args)));
        return Ok(Exit::Partial);
    }
    Ok(Exit::Ok)
}

/// The reason of an early end. Complete files may have been kept.
fn ended(app: &mut App<'_>, args: &SyncArgs, error: &RsyncError, taken: Option<&str>) -> Result<Exit> {
    let is_cancelled = app.context.is_cancelled();
    let why = match error {
        _ if is_cancelled => "interrupted".to_owned(),
        RsyncError::Connection(error) => lost(args, error),
        RsyncError::PeerExit { code } => format!("rsync there ended with code {code}"),
        other => other.to_string(),
    };
    app.context.complain(format_args!("{}: {why}", attempt(args)));
    if let Some(taken) = taken {
        app.context
            .complain(format_args!("all complete files are in {taken}: the next run continues from there"));
    }
    let may_pass = match error {
        RsyncError::Connection(_) => true,
        RsyncError::PeerExit { code } => LOST_CODES.contains(code),
        _ => false,
    };
    Ok(if may_pass && !is_cancelled { LOST } else { Exit::Failed })
}
