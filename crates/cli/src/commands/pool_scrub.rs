//! `pool scrub`.
//!
//! The owner of the pool does the scrub, like every command. Without `-w`, a background process requests it. If the
//! pool has no owner, this process becomes the owner; otherwise it passes its command to the owner. When an owner
//! that scrubs for others wants to end, the scrub stops, and the background process continues it as the next owner.

use std::ffi::OsString;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use snowmelt_dataset::DatasetError;
use snowmelt_dataset::property::parse_size;
use snowmelt_pool::{PoolError, ScrubOptions, ScrubRefused, ScrubState, ScrubStatus};

use super::{background, scan_text};
use crate::app::App;
use crate::args::{PoolScrubArgs, Program};
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::facts::ScanFacts;
use crate::output::json;
use crate::pools::Session;
use crate::progress::Progress;

/// Exit status of a scrub that its owner had to leave: `EX_TEMPFAIL` of sysexits.h.
const LEFT_OFF: u8 = 75;
/// How long a scrub must have been at work for its owner's death to be worth another attempt.
const WORKED_MIN: Duration = Duration::from_secs(2);
/// How many deaths of owners are survived.
const RETRIES_MAX: u32 = 5;
/// Pause before another attempt.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Scrubs pools, or pauses or stops that.
///
/// # Errors
/// When the options do not fit, or a pool cannot be scrubbed.
pub fn run(app: &mut App<'_>, args: &PoolScrubArgs) -> Result<Exit> {
    let invalid = |what: &str| Err(CliError::Usage(format!("invalid option combination: {what}")));
    if args.pause && args.stop {
        return invalid("-s and -p are mutually exclusive");
    }
    if args.wait && (args.pause || args.stop) {
        return invalid("-w cannot be used with -p or -s");
    }
    if args.pools.is_empty() && !args.all {
        return Err(CliError::Usage("missing pool name argument".to_owned()));
    }
    let rate = match &args.rate {
        None => None,
        Some(text) => Some(
            parse_size(text.trim_end_matches("/s"))
                .map_err(|error| CliError::Usage(format!("--rate {text}: {error}")))?,
        ),
    };
    let pools = match args.all {
        true => app.every_pool(),
        false => args.pools.clone(),
    };
    if args.detached {
        background::leave_terminal();
    }
    let mut failed = false;
    for pool in &pools {
        let done = if args.pause || args.stop {
            change(app, args, pool)
        } else if args.wait || args.detached {
            scrub(app, args, pool, rate)
        } else {
            begin(app, args, pool)
        };
        match done {
            // The caller continues it after the end of the owner that stopped.
            Ok(exit @ Exit::Other(LEFT_OFF)) if app.is_served() => return Ok(exit),
            Ok(exit) => failed |= exit.code() != 0,
            Err(error @ (CliError::Output(_) | CliError::Usage(_))) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}

fn missing(pool: &str) -> String {
    format!("cannot open '{pool}': no such pool")
}

/// Pauses or stops.
fn change(app: &mut App<'_>, args: &PoolScrubArgs, name: &str) -> Result<Exit> {
    app.on_pool(name, missing, |app, session| {
        let pool = session.datasets.pool();
        let (attempt, done) = match args.pause {
            true => (format!("cannot pause scrubbing {name}"), pool.pause_scrub()),
            false => (format!("cannot cancel scrubbing {name}"), pool.stop_scrub()),
        };
        done.map_err(|error| refusal(&attempt, &error))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}

/// The messages of `zpool` (`libzfs_error_description`, libzfs_util.c).
fn refusal(attempt: &str, error: &PoolError) -> CliError {
    CliError::Failed(match error {
        PoolError::Scrub(ScrubRefused::Running) => {
            format!("{attempt}: currently scrubbing; use 'zpool scrub -s' to cancel scrub")
        }
        PoolError::Scrub(ScrubRefused::Paused) => {
            format!("{attempt}: scrub is paused; use 'zpool scrub' to resume scrub")
        }
        PoolError::Scrub(ScrubRefused::NotRunning) => format!("{attempt}: there is no active scrub"),
        other => format!("{attempt}: {}", chain(other)),
    })
}

/// Has a process in the background scrub a pool.
fn begin(app: &mut App<'_>, args: &PoolScrubArgs, pool: &str) -> Result<Exit> {
    let mut words: Vec<OsString> = Vec::new();
    for dir in app.pool_dirs() {
        words.extend(["--pool-dir".into(), dir.clone().into_os_string()]);
    }
    words.extend(["pool", "scrub", "--detached"].map(Into::into));
    if let Some(rate) = &args.rate {
        words.extend(["--rate".into(), rate.into()]);
    }
    words.extend(["--".into(), pool.into()]);
    background::start(app, &words)
}

/// Scrubs in the pool's owner, as long as there is one.
fn scrub(app: &mut App<'_>, args: &PoolScrubArgs, pool: &str, rate: Option<u64>) -> Result<Exit> {
    let mut left = RETRIES_MAX;
    loop {
        let began = Instant::now();
        let done = app.on_pool(pool, missing, |app, session| work(app, args, pool, session, rate));
        if app.is_served() {
            return done;
        }
        match done {
            Ok(Exit::Other(LEFT_OFF)) if !app.context.is_cancelled() => {}
            // Its owner died under it.
            Err(CliError::Failed(_)) if args.detached && left > 0 && began.elapsed() >= WORKED_MIN => {
                left -= 1
            }
            other => return other,
        }
        std::thread::sleep(RETRY_AFTER);
    }
}

/// Scrubs a pool that is ours.
fn work(
    app: &mut App<'_>,
    args: &PoolScrubArgs,
    name: &str,
    session: &Session,
    rate: Option<u64>,
) -> Result<Exit> {
    let progress = Progress::bytes(app.context, Some(0));
    progress.message(&format!("scrubbing {name}"));
    let own = app.context.cancelled.clone();
    // An owner in its own right ends when the scrub does.
    let closing: Option<&AtomicBool> = app.is_served().then_some(&session.closing);
    let must_close = || closing.is_some_and(|closing| closing.load(Ordering::Relaxed));
    let cancelled = || own.load(Ordering::Relaxed) || must_close();
    let tell = |status: &ScrubStatus| {
        progress.expect(Some(status.total.max(status.issued)));
        progress.set(status.issued);
    };
    let options =
        ScrubOptions { rate, batch_bytes: ScrubOptions::BATCH_BYTES, cancelled: &cancelled, progress: &tell };
    let mut told = Ok(());
    let done = session.datasets.scrub(&options, &mut |status| {
        // One that was handed on is in the history.
        if status.issued == 0 {
            let line = format!("{} scrub {name}", zpool(app));
            let _ = session.datasets.record_history(&line);
        }
        if args.detached {
            told = background::ready_or_continued(app, session);
        }
    });
    progress.finish();
    told?;
    let status = done.map_err(|error| match error {
        DatasetError::Pool(error) => refusal(&format!("cannot scrub {name}"), &error),
        other => CliError::failed(format!("cannot scrub {name}"), &other),
    })?;
    match status.state {
        ScrubState::Scanning if must_close() && !own.load(Ordering::Relaxed) => Ok(Exit::Other(LEFT_OFF)),
        ScrubState::Scanning => Err(CliError::Failed(format!(
            "cannot scrub {name}: interrupted; 'snowmelt pool scrub {name}' resumes it"
        ))),
        _ if Program::of(&app.context.args).0 == Program::Zpool && !args.json => Ok(Exit::Ok),
        state => {
            let (zone, facts) = (app.context.time_zone(), ScanFacts::from(status));
            if args.json {
                let mut document = json::document("snowmelt pool scrub");
                document.insert("pool".to_owned(), name.into());
                document.insert("scan_stats".to_owned(), scan_text::document(&facts).into());
                json::print(&mut app.context.out, document)?;
            } else {
                let mut text = Vec::new();
                scan_text::print(&mut text, name, &facts, &zone)?;
                let text = app.context.spoken(&String::from_utf8_lossy(&text)).into_owned();
                app.context.out.write_all(text.as_bytes())?;
            }
            app.context.out.flush()?;
            Ok(Exit::unless(state == ScrubState::Finished && status.errors > 0))
        }
    }
}

fn zpool(app: &App<'_>) -> &'static str {
    match Program::of(&app.context.args).0 {
        Program::Zpool => "zpool",
        Program::Snowmelt | Program::Zfs | Program::Zstream => "snowmelt pool",
    }
}
