//! `receive`.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use snowmelt_dataset::property::{Types, format_bytes};
use snowmelt_dataset::receive::{Confinement, Naming, Observer, ReceiveEvent, ReceiveOptions, resume_token};
use snowmelt_dataset::text::visible_name;
use snowmelt_dataset::{DatasetError, ReceiveError};

use super::{assignments, automount};
use crate::app::App;
use crate::args::ReceiveArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::Session;
use crate::progress::Progress;
use crate::report;

/// How soon a receive that waits for input learns that it was interrupted.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// To learn whether there is any.
const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Receives a stream, or throws away what one left.
///
/// # Errors
/// When the stream is bad or does not fit the target.
pub fn run(app: &mut App<'_>, args: &ReceiveArgs) -> Result<Exit> {
    app.is_streaming = true;
    let target = args.target.as_str();
    let missing = |_: &str| format!("cannot open '{target}': dataset does not exist");
    if args.abort {
        return app.on_pool(target, missing, |app, session| abort(app, session, target));
    }
    if rustix::termios::isatty(&app.context.stdin) {
        let why = "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";
        return Err(CliError::Failed(why.to_owned()));
    }
    if args.corrective {
        return app.on_pool(target, missing, |app, session| correct(app, session, args));
    }
    let options = options(args)?;
    app.may_mount = Some(target.to_owned());
    app.on_pool(target, missing, |app, session| receive(app, session, args, &options))
}

fn abort(app: &mut App<'_>, session: &Session, target: &str) -> Result<Exit> {
    session.datasets.abort_receive(target).map_err(|error| match error {
        ReceiveError::Dataset(DatasetError::NotFound { .. }) => {
            CliError::Failed(format!("cannot open '{target}': dataset does not exist"))
        }
        error => CliError::Failed(report::receive_error(target, &error)),
    })?;
    app.record(session);
    Ok(Exit::Ok)
}

fn options(args: &ReceiveArgs) -> Result<ReceiveOptions> {
    let attempt = format!("cannot receive into '{}'", args.target);
    let pairs = assignments::split_all(&args.set)?;
    let (origin, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(name, _)| *name == "origin");
    if origin.len() > 1 {
        return Err(CliError::Usage("property 'origin' specified multiple times".to_owned()));
    }
    // The stream has those that its content is written in.
    if let Some((name, _)) = pairs.iter().find(|(name, _)| matches!(*name, "version" | "volsize")) {
        return Err(CliError::Failed(format!("{attempt}: property '{name}' cannot be set on receive")));
    }
    let chosen = assignments::for_new(&attempt, &pairs, Types::FILESYSTEM_VOLUME)?;
    let mut exclude = Vec::new();
    for name in &args.exclude {
        let name = assignments::canonical_name(name);
        let name = name.map_err(|error| CliError::Usage(format!("{attempt}: {error}")))?;
        // The content is written in them.
        if matches!(name.as_str(), "version" | "volsize" | "utf8only" | "normalization" | "casesensitivity") {
            return Err(CliError::Failed(format!("{attempt}: property '{name}' cannot be excluded")));
        }
        if exclude.contains(&name) {
            return Err(CliError::Usage(format!("property '{name}' specified multiple times")));
        }
        exclude.push(name);
    }
    if let Some(both) = chosen.iter().find(|a| exclude.contains(&a.name)) {
        return Err(CliError::Usage(format!("property '{}' specified multiple times", both.name)));
    }
    Ok(ReceiveOptions {
        force: args.force,
        resumable: args.resumable,
        dry_run: args.dry_run,
        naming: match (args.drop_first, args.last_only) {
            (true, _) => Naming::DiscardPool,
            (false, true) => Naming::LastComponent,
            (false, false) => Naming::Exact,
        },
        origin: origin.last().map(|(_, snapshot)| (*snapshot).to_owned()),
        properties: assignments::stored(&chosen),
        exclude,
        skip_holds: args.skip_holds,
        by_reference: false,
        confinement: Confinement::default(),
    })
}

fn receive(
    app: &mut App<'_>,
    session: &Session,
    args: &ReceiveArgs,
    options: &ReceiveOptions,
) -> Result<Exit> {
    let target = args.target.as_str();
    let before = match args.no_mount || args.dry_run {
        true => None,
        false => automount::Before::receive(app, session)?,
    };
    let progress = (args.verbose == 0 || args.json).then(|| Progress::bytes(app.context, None));
    let input = app
        .context
        .stdin
        .try_clone()
        .map_err(|error| CliError::failed("cannot read standard input", &error))?;
    let cancelled = app.context.cancelled.clone();
    let input = Interruptible { file: input, cancelled: &cancelled, session };
    let teller = Teller {
        app: Mutex::new(app),
        session,
        args,
        begun: Mutex::new(Instant::now()),
        progress: &progress,
        cancelled: &cancelled,
        taken: Mutex::default(),
        unmounted: Mutex::default(),
        refused: Mutex::default(),
    };
    let observer = Observer { event: &|event| teller.tell(event), cancelled: &cancelled };
    let result = session.datasets.receive(target, input, options, &observer);
    let taken = teller.taken.into_inner().unwrap_or_default();
    let unmounted = teller.unmounted.into_inner().unwrap_or_default();
    let refused = teller.refused.into_inner().unwrap_or_default();
    if let Some(progress) = progress {
        progress.finish();
    }
    // This includes the received part of an interrupted package.
    let mut mounted = true;
    for unmounted in unmounted {
        mounted &= unmounted.mount_again(app, session)?;
    }
    mounted &= before.map_or(Ok(true), |before| before.received(app, session))?;
    if let Some(refused) = refused {
        cancelled.store(false, Ordering::Relaxed);
        return Err(refused);
    }
    match result {
        Ok(_) => {
            if !args.dry_run {
                app.record(session);
            }
            if args.json {
                let mut document = json::document("snowmelt receive");
                document.insert("received".to_owned(), taken.received.into());
                document.insert("skipped".to_owned(), taken.skipped.into());
                document.insert("dry_run".to_owned(), args.dry_run.into());
                json::print(&mut app.context.out, document)?;
            }
            Ok(Exit::unless(!mounted))
        }
        Err(error) => {
            let mut text = report::receive_error(target, &error);
            if let Some(token) = kept_token(session, args, &error) {
                text = format!(
                    "cannot receive resume stream: checksum mismatch or incomplete stream.\nPartially received snapshot is \
                     saved.\nA resuming stream can be generated on the sending system by running:\n    zfs send -t {token}\n{text}"
                );
            }
            Err(CliError::Failed(text))
        }
    }
}

/// Repairs damaged blocks of an existing snapshot.
fn correct(app: &mut App<'_>, session: &Session, args: &ReceiveArgs) -> Result<Exit> {
    let target = args.target.as_str();
    let progress = Progress::bytes(app.context, None);
    let input = app
        .context
        .stdin
        .try_clone()
        .map_err(|error| CliError::failed("cannot read standard input", &error))?;
    let cancelled = app.context.cancelled.clone();
    let input = Interruptible { file: input, cancelled: &cancelled, session };
    let tell = |event| {
        if let ReceiveEvent::Progress { bytes } = event {
            progress.set(bytes);
        }
    };
    let observer = Observer { event: &tell, cancelled: &cancelled };
    let result = session.datasets.correct(target, input, &observer);
    progress.finish();
    let done = result.map_err(|error| CliError::Failed(report::receive_error(target, &error)))?;
    app.record(session);
    if args.json {
        let mut document = json::document("snowmelt receive");
        document.insert("corrected".to_owned(), json!(done.snapshots));
        document.insert("blocks".to_owned(), done.blocks.into());
        document.insert("bytes".to_owned(), done.bytes.into());
        document.insert("damaged".to_owned(), done.damaged.into());
        json::print(&mut app.context.out, document)?;
    } else if args.verbose > 0 {
        let (blocks, bytes) = (done.blocks, format_bytes(done.bytes));
        writeln!(app.context.out, "{blocks} blocks ({bytes}) of {} repaired", done.snapshots.join(", "))?;
    }
    if done.damaged > 0 {
        app.context.complain(format_args!(
            "cannot repair all of '{target}': {} damaged blocks are stored in another form than in the stream; use \
             'send -c' of a replicated copy",
            done.damaged
        ));
    }
    Ok(Exit::unless(done.damaged > 0))
}

/// The resume token of the stored part, if the stream itself was the cause of the failure.
fn kept_token(session: &Session, args: &ReceiveArgs, error: &ReceiveError) -> Option<String> {
    let is_cut_off = matches!(
        error,
        ReceiveError::Stream(_)
            | ReceiveError::Record { .. }
            | ReceiveError::Dataset(DatasetError::Interrupted)
    );
    if !args.resumable || !is_cut_off {
        return None;
    }
    let catalog = session.datasets.catalog();
    let name = args.target.split('@').next()?;
    let dataset = catalog.dataset(name).ok()?;
    resume_token(&catalog, dataset.id).ok().flatten()
}

/// Reports the progress. Called from the receiving thread.
struct Teller<'a, 'b, 'c> {
    app: Mutex<&'a mut App<'b>>,
    session: &'c Session,
    args: &'c ReceiveArgs,
    begun: Mutex<Instant>,
    progress: &'c Option<Progress>,
    cancelled: &'c AtomicBool,
    taken: Mutex<Taken>,
    /// Filesystems that were unmounted because the stream destroys them.
    unmounted: Mutex<Vec<automount::Unmounted>>,
    /// Why the receive was broken off here.
    refused: Mutex<Option<CliError>>,
}

/// What `--json` prints at the end.
#[derive(Default)]
struct Taken {
    received: Vec<Value>,
    skipped: Vec<String>,
}

impl Taken {
    fn note(&mut self, event: &ReceiveEvent) {
        match event {
            ReceiveEvent::Begin { source, target, incremental } => {
                self.received
                    .push(json!({ "source": source, "snapshot": target, "incremental": incremental }));
            }
            ReceiveEvent::End { bytes, .. } => {
                if let Some(last) = self.received.last_mut() {
                    last["bytes"] = json!(bytes);
                }
            }
            ReceiveEvent::Skipped { target } => {
                // It has begun, and is no more than that.
                self.received.retain(|one| one["snapshot"] != target.as_str());
                self.skipped.push(target.clone());
            }
            _ => {}
        }
    }
}

impl Teller<'_, '_, '_> {
    /// Unmounts a filesystem that a full stream replaces, with everything below it, as ZFS does. It fails if one is in
    /// use.
    fn unmount_replaced(&self, app: &mut App<'_>, snapshot: &str) -> Result<()> {
        if !self.args.force || self.args.dry_run {
            return Ok(());
        }
        let attempt = format!("cannot receive into '{snapshot}'");
        let catalog = self.session.datasets.catalog();
        let name = snapshot.split('@').next().unwrap_or_default();
        // It may be new, or not to be replaced, which is found out later.
        let Ok(dataset) = catalog.dataset(name) else { return Ok(()) };
        if catalog.newest_snapshot(&dataset).map_err(report::failed(&attempt))?.is_some() {
            return Ok(());
        }
        let all = catalog.descendants(dataset).map_err(report::failed(&attempt))?;
        drop(catalog);
        let gone = automount::Unmounted::of(app, self.session, &all, false)?;
        if let Ok(mut unmounted) = self.unmounted.lock() {
            unmounted.push(gone);
        }
        Ok(())
    }

    fn tell(&self, event: ReceiveEvent) {
        let Ok(mut app) = self.app.lock() else { return };
        if let ReceiveEvent::Destroying { datasets } = event {
            match (automount::Unmounted::of(&mut app, self.session, &datasets, false), self.unmounted.lock())
            {
                (Ok(gone), Ok(mut unmounted)) => unmounted.push(gone),
                (Err(error), _) => app.context.complain(error),
                (Ok(_), Err(_)) => {}
            }
            return;
        }
        if let ReceiveEvent::Begin { target, incremental: false, .. } = &event
            && let Err(error) = self.unmount_replaced(&mut app, target)
            && let Ok(mut refused) = self.refused.lock()
        {
            *refused = Some(error);
            self.cancelled.store(true, Ordering::Relaxed);
            return;
        }
        if self.args.json
            && let Ok(mut taken) = self.taken.lock()
        {
            taken.note(&event);
        }
        if self.args.verbose == 0 || self.args.json {
            match event {
                ReceiveEvent::Note(note) => app.context.complain(note),
                ReceiveEvent::Begin { target, .. } => {
                    if let Some(progress) = self.progress {
                        progress.message(&target);
                    }
                }
                ReceiveEvent::Progress { bytes } => {
                    if let Some(progress) = self.progress {
                        progress.set(bytes);
                    }
                }
                _ => {}
            }
            return;
        }
        let line = match event {
            ReceiveEvent::Begin { source, target, incremental } => {
                if let Ok(mut begun) = self.begun.lock() {
                    *begun = Instant::now();
                }
                let verb = if self.args.dry_run { "would receive" } else { "receiving" };
                let kind = if incremental { "incremental" } else { "full" };
                format!("{verb} {kind} stream of {source} into {target}")
            }
            ReceiveEvent::End { bytes, .. } => {
                let seconds = self.begun.lock().map_or(0.0, |begun| begun.elapsed().as_secs_f64()).max(0.01);
                #[allow(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss
                )]
                let rate = (bytes as f64 / seconds) as u64;
                let (bytes, rate) = (format_bytes(bytes), format_bytes(rate));
                format!("received {bytes} stream in {seconds:.2} seconds ({rate}/sec)")
            }
            ReceiveEvent::Skipped { target } => format!("snap {target} already exists; ignoring"),
            ReceiveEvent::Note(note) => {
                app.context.complain(note);
                return;
            }
            _ => return,
        };
        // If the output is closed, the receive continues.
        let out = &mut app.context.out;
        let _ = writeln!(out, "{}", visible_name(line.as_bytes())).and_then(|()| out.flush());
    }
}

/// Standard input that stops waiting when the command is interrupted. The data can come from a command that waits for
/// this pool, so other commands are served in the meantime.
struct Interruptible<'a> {
    file: std::fs::File,
    cancelled: &'a AtomicBool,
    session: &'a Session,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut wait = &NOT_AT_ALL;
        loop {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(wait)) {
                Ok(0) => {
                    self.session.serve_now();
                    wait = &WAIT;
                }
                Err(Errno::INTR) => {}
                Ok(_) => return self.file.read(buf),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
