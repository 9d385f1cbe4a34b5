//! `serve`: the policy, all the time.
//!
//! The main loop takes and prunes snapshots. Each due job has its own thread, so that a job that takes hours does not
//! delay anything else.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use snowmelt_policy::Config;
use snowmelt_policy::plan::{Action, Plan};

use super::act::{Runner, Tells, host};
use super::books::Books;
use super::load::load;
use super::survey::survey;
use crate::app::App;
use crate::commands::notify::{Watchdog, notify, reloading, status};
use crate::context::{Context, Surroundings};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::journal::Level;
use crate::signals;

/// How soon a signal or the end of a job is seen.
const TICK: Duration = Duration::from_millis(100);
/// Maximum time between two checks: there can be new datasets, or a pool can be full.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(15);

/// Follows the policy in this file until it is interrupted, with a log from the level `least` on.
///
/// # Errors
/// When the policy cannot be read at first.
pub(super) fn run(app: &mut App<'_>, path: &Path, least: Level) -> Result<Exit> {
    let mut config = Arc::new(load(path)?);
    let books = Books::new(app.context);
    let hung_up = signals::flag_on_hangup();
    notify(app.context, "READY=1");
    let mut standing = Standing::new(least, Watchdog::new(app.context));
    standing.say(app.context, Level::Info, &format!("following the policy {}", path.display()));
    while !app.context.is_cancelled() {
        if hung_up.swap(false, Ordering::Relaxed) {
            reloading(app.context);
            match load(path) {
                Ok(read) => {
                    config = Arc::new(read);
                    standing.say(app.context, Level::Info, &format!("reloaded {}", path.display()));
                }
                Err(error) => app.context.complain(format_args!("{error}\nthe policy is unchanged")),
            }
            notify(app.context, "READY=1");
        }
        standing.watchdog.alive(app.context);
        let wake = pass(app, &config, &books, &mut standing);
        standing.tell_status(app.context, wake);
        wait(app.context, wake, &hung_up, &mut standing);
    }
    notify(app.context, "STOPPING=1");
    // They have been asked to end too.
    for job in standing.jobs {
        let _ = job.thread.join();
    }
    Ok(Exit::Ok)
}

/// What lasts from pass to pass.
struct Standing {
    least: Level,
    watchdog: Watchdog,
    jobs: Vec<Running>,
    /// Work that the last pass skipped although its time had come. It is reported only once.
    notes: BTreeSet<String>,
}

impl Standing {
    fn new(least: Level, watchdog: Watchdog) -> Self {
        Self { least, watchdog, jobs: Vec::new(), notes: BTreeSet::new() }
    }

    fn say(&self, context: &mut Context, level: Level, text: &str) {
        if level <= self.least {
            context.log(level, text);
        }
    }

    /// Reports to systemd and in the debug log what is running, and the time of the next check.
    fn tell_status(&self, context: &mut Context, wake: Timestamp) {
        let time = wake.to_zoned(context.time_zone()).strftime("%H:%M:%S").to_string();
        let jobs: Vec<&str> = self.jobs.iter().map(|job| job.name.as_str()).collect();
        let running = if jobs.is_empty() {
            "no job is running".to_owned()
        } else {
            format!("jobs: {}", jobs.join(", "))
        };
        let text = format!("{running}; next check at {time}");
        status(context, &text);
        self.say(context, Level::Debug, &text);
    }
}

struct Running {
    name: String,
    thread: std::thread::JoinHandle<()>,
}

/// Does what is due now, and returns the time of the next check.
fn pass(app: &mut App<'_>, config: &Arc<Config>, books: &Books, standing: &mut Standing) -> Timestamp {
    let host = host();
    let latest = Timestamp::now() + LOOK_AGAIN;
    let lock = match books.lock(super::SNAPSHOTS) {
        Ok(lock) => lock,
        Err(error) => {
            app.context.complain(error);
            return latest;
        }
    };
    let mut found = survey(app, config, books, &|_| false);
    for complaint in &found.complaints {
        app.context.complain(complaint);
    }
    let mut due: Vec<String> = Vec::new();
    if lock.is_some() {
        let taking = Runner::planner(config, app, &found.state, &host).take();
        let mut runner =
            Runner::new(app, config, books, Tells::Log(standing.least)).watched(&standing.watchdog);
        if !taking.actions.is_empty() {
            runner.take(&taking);
            found = survey(runner.app, config, books, &|_| false);
        }
        let planner = Runner::planner(config, runner.app, &found.state, &host);
        let jobs = planner.jobs_due(&Plan::default());
        due = jobs.iter().filter_map(Action::job).map(str::to_owned).collect();
        // Jobs that start now need the current state.
        for name in &due {
            if let Some(state) = found.state.jobs.get_mut(name) {
                state.running = true;
            }
        }
        let pruning = Runner::planner(config, runner.app, &found.state, &host).prune();
        runner.prune(&pruning);
        let missing = config.missing(&found.state).map(super::missing);
        let notes: BTreeSet<String> = missing.chain(taking.notes).chain(pruning.notes).collect();
        notes.difference(&standing.notes).for_each(|note| runner.say(note));
        standing.notes = notes;
    }
    drop(lock);
    for name in due {
        if !app.context.is_cancelled() && !standing.jobs.iter().any(|job| job.name == name) {
            standing.say(app.context, Level::Debug, &format!("job {name} started"));
            begin(app, config, books, standing, name);
        }
    }
    let next = Runner::planner(config, app, &found.state, &host).next_due();
    next.map_or(latest, |next| next.min(latest))
}

/// Runs a job in the background, and prunes its ends after it.
fn begin(app: &mut App<'_>, config: &Arc<Config>, books: &Books, standing: &mut Standing, name: String) {
    let least = standing.least;
    let mut context = match surroundings(app.context) {
        Ok(context) => context,
        Err(error) => return app.context.complain(CliError::failed(format!("job {name}"), &error)),
    };
    let (config, books, job) = (config.clone(), books.clone(), name.clone());
    let (places, pool_dirs) = (app.places.clone(), app.pool_dirs().to_vec());
    let thread = std::thread::spawn(move || {
        let mut app = App::at_work(&mut context, places, pool_dirs);
        let mut runner = Runner::new(&mut app, &config, &books, Tells::Log(least));
        let done = match runner.replicate(&job) {
            Ok(true) => super::prune_ends(&mut runner, &job),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            runner.complain(error);
        }
    });
    standing.jobs.push(Running { name, thread });
}

fn surroundings(context: &Context) -> std::io::Result<Context> {
    Ok(Context::new(Surroundings {
        args: Vec::new(),
        stdin: std::fs::File::open("/dev/null")?.into(),
        stdout: context.out.get_ref().as_fd().try_clone_to_owned()?,
        stderr: context.err.as_fd().try_clone_to_owned()?,
        cwd: context.cwd().to_owned(),
        env: context.environment().to_vec(),
        cancelled: context.cancelled.clone(),
        keys: context.keys.clone(),
    }))
}

/// Waits until the time, a signal, or the end of a job. The clock can be set in the meantime, so it is read again and
/// again.
fn wait(context: &Context, wake: Timestamp, hung_up: &AtomicBool, standing: &mut Standing) {
    let begun = Timestamp::now();
    loop {
        let now = Timestamp::now();
        let is_set_back = now < begun - SignedDuration::from_secs(1);
        if now >= wake || is_set_back || context.is_cancelled() || hung_up.load(Ordering::Relaxed) {
            return;
        }
        let before = standing.jobs.len();
        standing.jobs.retain(|job| !job.thread.is_finished());
        if standing.jobs.len() < before {
            return;
        }
        standing.watchdog.alive(context);
        std::thread::sleep(TICK);
    }
}
