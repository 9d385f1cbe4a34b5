//! `index --watch`: an index that follows its directory until it is interrupted.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use snowmelt_rsync::index::{Builder, Index, IndexError, Replacement, Watch};

use super::index::{now, tell};
use super::notify::notify;
use crate::app::App;
use crate::args::IndexArgs;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// How soon a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// Makes an index, and again whenever something has changed.
///
/// # Errors
/// When the index cannot be made or replaced, the directory cannot be watched, or something is mounted or unmounted in
/// it. Then changes are no longer known, and the index stays as it was.
pub(super) fn run(app: &mut App<'_>, args: &IndexArgs, directory: &Path, file: &Path) -> Result<Exit> {
    let failed = |error: IndexError| {
        CliError::failed(format!("cannot keep the index of '{}'", directory.display()), &error)
    };
    if is_in(file, directory) {
        return Err(CliError::Failed(format!(
            "cannot watch '{}': the index '{}' is in it, and writing the index would be a change: put it elsewhere",
            directory.display(),
            file.display()
        )));
    }
    let mut watch = Watch::begin(directory, args.threads.max(1).into()).map_err(failed)?;
    let mut is_first = true;
    while !app.context.is_cancelled() {
        let begun = Instant::now();
        let is_to_be_made = is_first || watch.has_news().map_err(failed)?;
        if is_to_be_made
            && follow(app, args, &mut watch, (directory, file), is_first).map_err(failed)?
            && is_first
        {
            is_first = false;
            notify(app.context, "READY=1");
        }
        rest(app.context, begun + Duration::from_secs(args.every.into()));
    }
    Ok(Exit::Ok)
}

/// Whether one path is below another, whatever links lead to them.
fn is_in(file: &Path, directory: &Path) -> bool {
    let parent = file.parent().and_then(|parent| parent.canonicalize().ok());
    let directory = directory.canonicalize().ok();
    parent.zip(directory).is_some_and(|(parent, directory)| parent.starts_with(directory))
}

fn rest(context: &Context, until: Instant) {
    while Instant::now() < until && !context.is_cancelled() {
        std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
    }
}

/// One round. False if another process is making the index, so that a retry is needed.
fn follow(
    app: &mut App<'_>,
    args: &IndexArgs,
    watch: &mut Watch,
    (directory, file): (&Path, &Path),
    is_first: bool,
) -> std::result::Result<bool, IndexError> {
    let replacement = match Replacement::begin(file) {
        Err(IndexError::Io { source, .. }) if source.kind() == ErrorKind::ResourceBusy => return Ok(false),
        begun => begun?,
    };
    let made = now();
    // An index that others have put there is newer than the previous one. An index that cannot be used is made again.
    let before = if is_first { None } else { Index::load(file).ok() };
    let (builder, unread) = match &before {
        Some(before) => watch.update(Builder::from_index(before)?)?,
        None => watch.scan()?,
    };
    tell(app, directory, &unread);
    let files = builder.files()?;
    let bytes = builder.finish(made)?;
    if before.is_none_or(|before| !before.is_like(&bytes)) {
        replacement.commit(&bytes)?;
        if !args.quiet {
            // If the output is closed, the index is still made.
            let _ = writeln!(app.context.out, "{files} files in {}, {} bytes", file.display(), bytes.len());
            let _ = app.context.out.flush();
        }
    }
    Ok(true)
}
