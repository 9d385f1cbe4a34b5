//! Carrying plans out, through the same commands that people use.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use jiff::Timestamp;
use serde_json::Value;
use snowmelt_dataset::property::format_bytes;
use snowmelt_policy::Config;
use snowmelt_policy::config::{Hooks, Job};
use snowmelt_policy::plan::{Action, Destroying, Plan, Planner, Taking};
use snowmelt_policy::state::{State, pool_of};
use snowmelt_replicate::request::Action as Change;

use super::books::{Books, Page};
use super::hook::{Hook, both};
use super::job::End;
use super::survey::lock_name;
use super::{inner, job};
use crate::app::App;
use crate::commands::notify::Watchdog;
use crate::commands::sync::OneEnd;
use crate::error::Result;
use crate::exit::Exit;
use crate::journal::Level;

/// The most snapshots that one command destroys.
const DESTROY_MAX: usize = 1000;

/// A run of a policy.
pub(super) struct Runner<'a, 'b> {
    pub(super) app: &'a mut App<'b>,
    pub(super) config: &'a Config,
    pub(super) books: &'a Books,
    /// The output of messages, if they are not collected for JSON.
    pub(super) tells: Tells,
    /// The report of what was done, for programs.
    pub(super) done: Vec<Value>,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    /// Something that the policy is about is not there.
    lacks: bool,
    /// The watchdog that gets signs of life.
    watchdog: Option<&'a Watchdog>,
}

/// Where actions are reported. Failures are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tells {
    Nobody,
    Output,
    /// Standard error, from this level on.
    Log(Level),
}

impl<'a, 'b> Runner<'a, 'b> {
    pub(super) fn new(app: &'a mut App<'b>, config: &'a Config, books: &'a Books, tells: Tells) -> Self {
        Self {
            app,
            config,
            books,
            tells,
            done: Vec::new(),
            succeeded: 0,
            failed: 0,
            lacks: false,
            watchdog: None,
        }
    }

    /// Sends a sign of life to `watchdog`.
    pub(super) fn watched(mut self, watchdog: &'a Watchdog) -> Self {
        self.watchdog = Some(watchdog);
        self
    }

    fn alive(&self) {
        if let Some(watchdog) = self.watchdog {
            watchdog.alive(self.app.context);
        }
    }

    /// A planner for the current survey.
    pub(super) fn planner<'s>(
        config: &'s Config,
        app: &App<'_>,
        state: &'s State,
        host: &'s str,
    ) -> Planner<'s> {
        Planner::new(config, state, Timestamp::now(), &app.context.time_zone(), host)
    }

    /// The overall result.
    pub(super) fn exit(&self) -> Exit {
        match (self.failed, self.succeeded) {
            (0, _) if !self.lacks => Exit::Ok,
            (0, _) => Exit::Partial,
            (_, 0) => Exit::Failed,
            _ => Exit::Partial,
        }
    }

    pub(super) fn say(&mut self, line: &str) {
        // If the output is closed, the policy is still executed.
        match self.tells {
            Tells::Nobody => {}
            Tells::Output => {
                let out = &mut self.app.context.out;
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            Tells::Log(least) => {
                let level = if line.starts_with("warning:") { Level::Warning } else { Level::Info };
                if level <= least {
                    self.app.context.log(level, line);
                }
            }
        }
    }

    pub(super) fn complain(&mut self, what: impl std::fmt::Display) {
        self.failed += 1;
        self.app.context.complain(what);
    }

    /// Tells of something that is not there. All the rest is done.
    pub(super) fn lack(&mut self, what: impl std::fmt::Display) {
        self.lacks = true;
        self.app.context.complain(what);
    }

    /// Takes snapshots.
    pub(super) fn take(&mut self, plan: &Plan) {
        for action in &plan.actions {
            if let Action::Take(taking) = action
                && !self.app.context.is_cancelled()
            {
                self.take_group(taking);
            }
        }
    }

    fn take_group(&mut self, taking: &Taking) {
        let hooks = &taking.hooks;
        let mut variables = taking_variables(taking);
        let mut pre_failed = false;
        if let Some(command) = &hooks.pre_snapshot {
            let pre = [both("SCRIPT", "pre").to_vec(), variables.clone()].concat();
            if let Err(why) = self.hook("pre_snapshot_script", command, pre, hooks.timeout, true) {
                self.complain(why);
                pre_failed = true;
            }
        }
        if pre_failed && hooks.no_inconsistent_snapshot {
            let names: Vec<&str> = taking.datasets.iter().map(|of| of.dataset.as_str()).collect();
            self.app.context.complain(format_args!("no snapshots of {}", names.join(", ")));
        } else if !self.app.context.is_cancelled() {
            for round in taking.rounds() {
                self.take_round(taking, &round);
            }
        }
        if let Some(command) = &hooks.post_snapshot
            && (!pre_failed || hooks.force_post_snapshot)
        {
            variables.extend(both("SCRIPT", "post"));
            variables.extend(both("PRE_FAILURE", if pre_failed { "1" } else { "0" }));
            // Services that were stopped before have to be resumed, even if this process must end.
            if let Err(why) = self.hook("post_snapshot_script", command, variables, hooks.timeout, false) {
                self.complain(why);
            }
        }
    }

    /// Takes snapshots that belong to one moment: those of each pool in one txg.
    fn take_round(&mut self, taking: &Taking, names: &[String]) {
        let mut pools: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
        names.iter().for_each(|name| pools.entry(pool_of(name)).or_default().push(name));
        for names in pools.values() {
            if let Err(why) =
                self.command(["snapshot"].into_iter().chain(names.iter().map(|name| name.as_str())))
            {
                if names.len() == 1 {
                    self.complain(why);
                    continue;
                }
                // One that cannot be taken does not stop the others.
                for name in names {
                    match self.command(["snapshot", name.as_str()]) {
                        Ok(()) => self.took(taking, name),
                        Err(why) => self.complain(why),
                    }
                }
                continue;
            }
            names.iter().for_each(|name| self.took(taking, name));
        }
    }

    fn took(&mut self, taking: &Taking, name: &str) {
        self.succeeded += 1;
        let taken = taking.datasets.iter().flat_map(|of| of.snapshots.iter().map(|new| (&of.dataset, new)));
        let reason = taken
            .filter(|(dataset, new)| name.split_once('@') == Some((dataset.as_str(), new.name.as_str())))
            .map(|(_, new)| new.reason.as_str())
            .next();
        self.done.push(serde_json::json!({ "action": "snapshot", "snapshot": name, "reason": reason }));
        self.say(&format!("took {name}"));
    }

    /// Runs a command of our own; its complaint if it fails.
    fn command<'w>(&mut self, words: impl IntoIterator<Item = &'w str>) -> Result<(), String> {
        self.alive();
        let said = inner::run(self.app, words).map_err(|error| error.to_string())?;
        match said.exit {
            Exit::Ok => Ok(()),
            exit if said.err.trim().is_empty() => Err(format!("a command ended with status {}", exit.code())),
            _ => Err(said.err.trim_end().to_owned()),
        }
    }

    fn hook(
        &mut self,
        name: &str,
        command: &str,
        variables: Vec<(String, String)>,
        timeout: u64,
        may_end: bool,
    ) -> Result<(), String> {
        let cancelled = may_end.then_some(&*self.app.context.cancelled);
        let output = self.app.context.pass_on(Level::Info, format!("{name}: ")).ok();
        Hook { name, command, variables, timeout, cancelled, output, alive: &|| self.alive() }.run()
    }

    /// Destroys snapshots.
    pub(super) fn prune(&mut self, plan: &Plan) {
        let mut groups: BTreeMap<(&str, Option<&String>, &str), Vec<&Destroying>> = BTreeMap::new();
        for action in &plan.actions {
            if let Action::Destroy(of) = action {
                groups.entry((&of.place, of.job.as_ref(), &of.dataset)).or_default().push(of);
            }
        }
        for ((place, job, _), all) in groups {
            for some in all.chunks(DESTROY_MAX) {
                if self.app.context.is_cancelled() {
                    return;
                }
                match (place, job) {
                    ("", _) if some.iter().any(|of| is_hooked(&of.hooks)) => {
                        some.iter().for_each(|of| self.destroy_one(of))
                    }
                    ("", _) => self.destroy(some),
                    (_, Some(job)) => self.destroy_there(job, some),
                    (_, None) => {}
                }
            }
        }
    }

    fn destroy(&mut self, some: &[&Destroying]) {
        let Some(dataset) = some.first().map(|of| of.dataset.as_str()) else { return };
        let names: Vec<&str> = some.iter().map(|of| of.snapshot.as_str()).collect();
        match self.command(["destroy", &format!("{dataset}@{}", names.join(","))]) {
            Ok(()) => some.iter().for_each(|of| self.destroyed(of)),
            Err(why) => self.complain(why),
        }
    }

    /// One with its hooks.
    fn destroy_one(&mut self, of: &Destroying) {
        if self.app.context.is_cancelled() {
            return;
        }
        let mut variables = both("TARGET", &of.dataset).to_vec();
        variables.extend(both("SNAPNAME", &of.snapshot));
        if let Some(command) = &of.hooks.pre_pruning
            && let Err(why) = self.hook(
                "pre_pruning_script",
                command,
                [variables.clone(), vec![("SNOWMELT_SCRIPT".to_owned(), "pre-prune".to_owned())]].concat(),
                of.hooks.timeout,
                true,
            )
        {
            // It wants the snapshot to stay.
            self.complain(format_args!("{why}: {}@{} is kept", of.dataset, of.snapshot));
            return;
        }
        let before = self.failed;
        self.destroy(&[of]);
        if let Some(command) = &of.hooks.pruning
            && self.failed == before
        {
            variables.extend(both("SCRIPT", "prune"));
            if let Err(why) = self.hook("pruning_script", command, variables, of.hooks.timeout, false) {
                self.complain(why);
            }
        }
    }

    /// At an end of a job that is elsewhere.
    fn destroy_there(&mut self, name: &str, some: &[&Destroying]) {
        let result = self.config.jobs.get(name).map(|job| job::understand(self.app, name, job));
        let Some(Ok(sync)) = result else { return };
        let Some(place) = some.first().map(|of| of.place.as_str()) else { return };
        let ends = [&sync.source, &sync.target];
        let Some(remote) =
            ends.into_iter().filter_map(End::dataset).find(|remote| job::place_name(remote) == place)
        else {
            return;
        };
        let changes: Vec<Change> = some
            .iter()
            .map(|of| Change::DestroySnapshot { name: format!("{}@{}", of.dataset, of.snapshot) })
            .collect();
        let end = match OneEnd::open(self.app, &sync.args, remote) {
            Ok(end) => end,
            Err(error) => return self.complain(format_args!("job {name}: {error}")),
        };
        let applied = end.end().apply(&changes);
        end.close();
        match applied {
            Err(failure) => self.complain(format_args!("job {name}: {failure}")),
            Ok(results) => {
                for (of, result) in some.iter().zip(results) {
                    match result {
                        Ok(()) => self.destroyed(of),
                        Err(failure) => self.complain(format_args!(
                            "cannot destroy snapshot {place}{}@{}: {failure}",
                            of.dataset, of.snapshot
                        )),
                    }
                }
            }
        }
    }

    fn destroyed(&mut self, of: &Destroying) {
        self.succeeded += 1;
        let name = format!("{}{}@{}", of.place, of.dataset, of.snapshot);
        self.say(&format!("destroyed {name}: {}", of.reason));
        self.done.push(serde_json::json!({ "action": "destroy", "snapshot": name, "reason": of.reason }));
    }

    /// Runs a job, unless another run is at it; whether it was run.
    ///
    /// # Errors
    /// When it cannot be locked.
    pub(super) fn replicate(&mut self, name: &str) -> Result<bool> {
        let Some(job) = self.config.jobs.get(name) else { return Ok(false) };
        let Some(_lock) = self.books.lock(&lock_name(name))? else {
            self.say(&format!("job {name} is already running"));
            return Ok(false);
        };
        let before = self.books.page(name);
        let is_same = before.source == job.source && before.target == job.target;
        let began = Timestamp::now().as_second();
        let mut page = Page {
            source: job.source.clone(),
            target: job.target.clone(),
            began: Some(began),
            succeeded: before.succeeded.filter(|_| is_same),
            failure: Some("it was stopped before it finished".to_owned()),
        };
        self.books.write(name, &page)?;
        let result = self.replicate_with_hooks(name, job);
        page.failure = result.as_ref().err().cloned();
        if result.is_ok() {
            page.succeeded = Some(began);
        }
        self.books.write(name, &page)?;
        match result {
            Ok(told) => {
                self.succeeded += 1;
                self.say(&format!("job {name}: {told}"));
            }
            Err(why) => self.complain(format_args!("job {name}: {why}")),
        }
        Ok(true)
    }

    fn replicate_with_hooks(&mut self, name: &str, job: &Job) -> Result<String, String> {
        let variables = |script: &str| {
            [("SCRIPT", script), ("JOB", name), ("SOURCE", &job.source), ("TARGET", &job.target)]
                .map(|(name, value)| (format!("SNOWMELT_{name}"), value.to_owned()))
                .to_vec()
        };
        if let Some(command) = &job.pre_script {
            self.hook(
                "pre_replication_script",
                command,
                variables("pre-replication"),
                job.script_timeout,
                true,
            )?;
        }
        let said = inner::run(self.app, job::words(job)).map_err(|error| error.to_string())?;
        let report: Value = serde_json::from_str(&said.out).unwrap_or_default();
        let number = |key: &str| report[key].as_u64().unwrap_or(0);
        let is_rsync = report["through"] == "rsync";
        let bytes = if is_rsync { number("sent") + number("received") } else { number("bytes") };
        let mut done = serde_json::json!({
            "action": "replicate", "job": name, "status": said.exit.code(), "bytes": bytes, "datasets": report["datasets"],
        });
        if is_rsync {
            (done["files"], done["snapshot"]) = (report["files"].clone(), report["snapshot"].clone());
        }
        self.done.push(done);
        let succeeded = said.exit.code() == 0;
        let mut result = match succeeded {
            true if is_rsync => {
                let bytes = format_bytes(bytes);
                Ok(format!("{} files transferred, {bytes} sent and received", number("files")))
            }
            true => {
                let datasets = report["datasets"].as_array().map_or(0, Vec::len);
                Ok(format!("{datasets} datasets up to date, {} sent", format_bytes(bytes)))
            }
            false if said.err.trim().is_empty() => Err(format!("ended with status {}", said.exit.code())),
            false => Err(said.err.trim_end().to_owned()),
        };
        if succeeded && !said.err.trim().is_empty() {
            // Warnings that did not stop it.
            self.app.context.complain(format_args!("job {name}: {}", said.err.trim_end()));
        }
        if let Some(command) = &job.post_script {
            let mut variables = variables("post-replication");
            variables.push(("SNOWMELT_STATUS".to_owned(), said.exit.code().to_string()));
            variables.push(("SNOWMELT_BYTES".to_owned(), bytes.to_string()));
            let post = self.hook("post_replication_script", command, variables, job.script_timeout, false);
            result = result.and_then(|told| post.map(|()| told));
        }
        result
    }
}

/// Whether a hook runs for each snapshot that is destroyed.
fn is_hooked(hooks: &Hooks) -> bool {
    hooks.pre_pruning.is_some() || hooks.pruning.is_some()
}

/// The data about snapshots for hooks.
fn taking_variables(taking: &Taking) -> Vec<(String, String)> {
    let targets: Vec<&str> = taking.datasets.iter().map(|of| of.dataset.as_str()).collect();
    let all = || taking.datasets.iter().flat_map(|of| &of.snapshots);
    let mut seen = BTreeSet::new();
    let names: Vec<&str> = all().map(|new| new.name.as_str()).filter(|name| seen.insert(*name)).collect();
    let mut seen = BTreeSet::new();
    let types: Vec<&str> =
        all().map(|new| new.period.as_str()).filter(|period| seen.insert(*period)).collect();
    let first = |list: &[&str]| list.first().copied().unwrap_or_default().to_owned();
    [
        both("TARGET", first(&targets)),
        both("TARGETS", targets.join(",")),
        both("SNAPNAME", first(&names)),
        both("SNAPNAMES", names.join(",")),
        both("TYPES", types.join(",")),
    ]
    .concat()
}

/// The name of this machine.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
