//! `policy`, and `serve` without a subcommand.
//!
//! `snowmelt-policy` plans the actions. They are executed here, with the same commands that users run.

mod act;
mod books;
mod daemon;
mod hook;
mod inner;
mod job;
mod load;
mod monitor;
mod show;
mod survey;

use snowmelt_policy::Config;
use snowmelt_policy::config::Section;
use snowmelt_policy::plan::{Action, Plan};

use self::act::{Runner, Tells, host};
use self::books::Books;
use self::monitor::Question;
use self::survey::{Survey, survey};
use crate::app::App;
use crate::args::{PolicyArgs, PolicyCommand, ServeArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::journal::Level;

/// The lock for taking and pruning snapshots.
const SNAPSHOTS: &str = "snapshots";

/// Runs the command.
///
/// # Errors
/// When the policy cannot be read or understood, or output fails.
pub fn run(app: &mut App<'_>, args: &PolicyArgs) -> Result<Exit> {
    let path = load::path(app, args.config.as_deref());
    let asked = &args.monitor;
    let question = [
        (asked.monitor_snapshots, Question::Snapshots),
        (asked.monitor_health, Question::Health),
        (asked.monitor_capacity, Question::Capacity),
        (asked.monitor_replication, Question::Replication),
    ];
    let question = question.into_iter().find_map(|(is_asked, question)| is_asked.then_some(question));
    if let Some(question) = question {
        // To Nagios 3 means that it is not known how things are.
        let answer = load::load(&path).and_then(|config| {
            let books = Books::new(app.context);
            monitor::answer(app, &config, &books, question)
        });
        return answer.or_else(|error| match error {
            CliError::Output(_) => Err(error),
            error => {
                app.context.complain(format_args!("UNKNOWN: {error}"));
                Ok(Exit::Other(3))
            }
        });
    }
    let Some(command) = &args.command else {
        return Err(CliError::Usage("missing command".to_owned()));
    };
    let config = load::load(&path)?;
    for warning in &config.warnings {
        app.context.complain(format_args!("warning: {warning}"));
    }
    let books = Books::new(app.context);
    match command {
        PolicyCommand::Check => check(app, &config, &books, args.json),
        PolicyCommand::Plan => plan(app, &config, &books, args.json),
        PolicyCommand::Status => status(app, &config, &books, args.json),
        PolicyCommand::RunOnce(run) => {
            let tells = if args.json || run.quiet { Tells::Nobody } else { Tells::Output };
            once(app, &config, &books, tells, args.json)
        }
    }
}

/// Follows the policy until interrupted.
///
/// # Errors
/// When the policy cannot be read at first.
pub fn serve(app: &mut App<'_>, args: &ServeArgs) -> Result<Exit> {
    let path = load::path(app, args.config.as_deref());
    daemon::run(app, &path, Level::least(args.quiet, args.verbose))
}

fn check(app: &mut App<'_>, config: &Config, books: &Books, as_json: bool) -> Result<Exit> {
    let found = survey(app, config, books, &|_| false);
    let host = host();
    let planner = Runner::planner(config, app, &found.state, &host);
    let absent: Vec<&str> = config
        .sections
        .iter()
        .map(|section| section.dataset.as_str())
        .filter(|name| found.state.dataset(name).is_none())
        .collect();
    show::rules(app, &planner, &absent, as_json)?;
    complained(app, &complaints(config, &found))
}

/// Places that could not be read, and datasets that do not exist.
fn complaints(config: &Config, found: &Survey) -> Vec<String> {
    found.complaints.iter().cloned().chain(config.missing(&found.state).map(missing)).collect()
}

/// Reports that the dataset of a section does not exist. The rest of the policy is not affected.
fn missing(section: &Section) -> String {
    format!("warning: dataset '{}' does not exist: {}", section.dataset, section.stands)
}

fn plan(app: &mut App<'_>, config: &Config, books: &Books, as_json: bool) -> Result<Exit> {
    let found = survey(app, config, books, &|_| true);
    let host = host();
    let plan = Runner::planner(config, app, &found.state, &host).plan();
    let complaints = complaints(config, &found);
    show::plan(app, &plan, &complaints, as_json)?;
    complained(app, &complaints)
}

fn status(app: &mut App<'_>, config: &Config, books: &Books, as_json: bool) -> Result<Exit> {
    let found = survey(app, config, books, &|_| false);
    let host = host();
    let planner = Runner::planner(config, app, &found.state, &host);
    let complaints = complaints(config, &found);
    show::status(app, &planner, &complaints, as_json)?;
    complained(app, &complaints)
}

fn complained(app: &mut App<'_>, complaints: &[String]) -> Result<Exit> {
    for complaint in complaints {
        app.context.complain(complaint);
    }
    Ok(Exit::unless(!complaints.is_empty()))
}

/// Snapshots, then jobs, then pruning. Each uses the results of the previous one.
fn once(app: &mut App<'_>, config: &Config, books: &Books, tells: Tells, as_json: bool) -> Result<Exit> {
    let host = host();
    let runner = &mut Runner::new(app, config, books, tells);
    if let Some(_lock) = books.lock(SNAPSHOTS)? {
        let found = survey(runner.app, config, books, &|_| false);
        for complaint in &found.complaints {
            runner.complain(complaint);
        }
        for section in config.missing(&found.state) {
            runner.lack(missing(section));
        }
        let taking = Runner::planner(config, runner.app, &found.state, &host).take();
        for note in &taking.notes {
            runner.say(note);
        }
        runner.take(&taking);
    } else {
        runner.say("another run is taking and pruning snapshots");
    }
    let found = survey(runner.app, config, books, &|_| false);
    let due = Runner::planner(config, runner.app, &found.state, &host).jobs_due(&Plan::default());
    let mut ran = Vec::new();
    for name in due.iter().filter_map(Action::job) {
        if !runner.app.context.is_cancelled() && runner.replicate(name)? {
            ran.push(name);
        }
    }
    if !runner.app.context.is_cancelled()
        && let Some(_lock) = books.lock(SNAPSHOTS)?
    {
        let found = survey(runner.app, config, books, &|name| ran.contains(&name));
        let pruning = Runner::planner(config, runner.app, &found.state, &host).prune();
        for note in &pruning.notes {
            runner.say(note);
        }
        runner.prune(&pruning);
    }
    if runner.app.context.is_cancelled() {
        runner.complain("interrupted");
    }
    let exit = runner.exit();
    if as_json {
        let (actions, failed) = (std::mem::take(&mut runner.done), runner.failed);
        show::document(app, serde_json::json!({ "actions": actions, "failed": failed }))?;
    }
    Ok(exit)
}

/// Prunes the ends of a job that was run: now it is known what both have.
fn prune_ends(runner: &mut Runner<'_, '_>, job: &str) -> Result<()> {
    let lock = runner.books.lock_when_free(SNAPSHOTS, &runner.app.context.cancelled)?;
    if lock.is_none() {
        return Ok(());
    }
    let host = host();
    let found = survey(runner.app, runner.config, runner.books, &|name| name == job);
    let planner = Runner::planner(runner.config, runner.app, &found.state, &host);
    let mut pruning = planner.prune();
    let ends = found.state.jobs.get(job).map(|job| [&job.source, &job.target]);
    pruning.actions.retain(|action| match action {
        Action::Destroy(of) => ends.iter().flatten().any(|end| end.names(&of.place, &of.dataset)),
        _ => false,
    });
    runner.prune(&pruning);
    Ok(())
}
