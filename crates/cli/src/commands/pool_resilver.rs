//! `pool resilver`: copies missing data to members of a mirror. Like a scrub, it is done by the owner of the pool.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use snowmelt_store::{Mirror, ResilverStatus};

use super::background;
use crate::app::App;
use crate::args::PoolResilverArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::progress::Progress;

/// Exit status of one that its owner had to leave: `EX_TEMPFAIL` of sysexits.h.
const LEFT_OFF: u8 = 75;
/// Pause before another attempt, or before the next check of a resilver by another process.
const PAUSE: Duration = Duration::from_millis(200);

fn missing(pool: &str) -> String {
    format!("cannot open '{pool}': no such pool")
}

/// Resilvers pools.
///
/// # Errors
/// When one is not there, or not mirrored.
pub fn run(app: &mut App<'_>, args: &PoolResilverArgs) -> Result<Exit> {
    if args.detached {
        background::leave_terminal();
    }
    let mut failed = false;
    for pool in &args.pools {
        let done = match args.wait || args.detached {
            true => resilver(app, args.detached, pool),
            false => start(app, pool, false),
        };
        match done {
            Ok(exit @ Exit::Other(LEFT_OFF)) if app.is_served() => return Ok(exit),
            Ok(exit) => failed |= exit.code() != 0,
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}

/// Has a process in the background bring a pool's members up to date, or does it here.
///
/// # Errors
/// When that process cannot be started; when the pool cannot be read or written.
pub fn start(app: &mut App<'_>, pool: &str, wait: bool) -> Result<Exit> {
    let mut words: Vec<OsString> = Vec::new();
    for dir in app.pool_dirs() {
        words.extend(["--pool-dir".into(), dir.clone().into_os_string()]);
    }
    words.extend(["pool", "resilver", if wait { "-w" } else { "--detached" }, "--"].map(Into::into));
    words.push(pool.into());
    background::start(app, &words)
}

/// Resilvers in the pool's owner, as long as there is one.
fn resilver(app: &mut App<'_>, detached: bool, pool: &str) -> Result<Exit> {
    loop {
        let done = app.on_pool(pool, missing, |app, session| work(app, detached, pool, session));
        match done {
            Ok(Exit::Other(LEFT_OFF)) if !app.is_served() && !app.context.is_cancelled() => {}
            other => return other,
        }
        std::thread::sleep(PAUSE);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn paths_of(mirror: &dyn Mirror) -> Vec<PathBuf> {
    mirror.members().into_iter().map(|member| member.path).collect()
}

/// A member that was replaced is not of the pool any more once the new member has all data.
fn forget_replaced(app: &App<'_>, before: &[PathBuf], after: &[PathBuf], attempt: &str) -> Result<()> {
    for gone in before.iter().filter(|path| !after.contains(path)) {
        app.places.registry().remove(gone).map_err(|error| CliError::failed(attempt, &error))?;
    }
    Ok(())
}

fn work(app: &mut App<'_>, detached: bool, name: &str, session: &Session) -> Result<Exit> {
    let attempt = format!("cannot resilver {name}");
    let pool = session.datasets.pool();
    let Some(mirror) = pool.store().mirror() else {
        return Err(CliError::Failed(format!("{attempt}: it has no mirror")));
    };
    let progress = Progress::bytes(app.context, Some(0));
    progress.message(&format!("resilvering {name}"));
    let own = app.context.cancelled.clone();
    let closing = app.is_served().then_some(&session.closing);
    let must_close = || closing.is_some_and(|closing| closing.load(Ordering::Relaxed));
    let stop = || own.load(Ordering::Relaxed) || must_close();
    if detached {
        background::ready_or_continued(app, session)?;
    }
    let before = paths_of(mirror);
    let status = loop {
        let status = mirror.resilver(&now, &mut |_| {
            let ResilverStatus { copied, total, .. } = mirror.resilver_status();
            progress.expect(Some(total.max(copied)));
            progress.set(copied);
            !stop()
        });
        let status = status.map_err(|error| CliError::failed(&attempt, &error))?;
        // Another command is at it.
        if !status.is_running || stop() {
            break status;
        }
        std::thread::sleep(PAUSE);
    };
    progress.finish();
    forget_replaced(app, &before, &paths_of(mirror), &attempt)?;
    match status.is_due {
        true if must_close() && !own.load(Ordering::Relaxed) => Ok(Exit::Other(LEFT_OFF)),
        true if own.load(Ordering::Relaxed) => Err(CliError::Failed(format!(
            "{attempt}: interrupted; 'snowmelt pool resilver {name}' resumes it"
        ))),
        true => {
            Err(CliError::Failed(format!("{attempt}: a member failed: see 'snowmelt pool status {name}'")))
        }
        false => Ok(Exit::Ok),
    }
}
