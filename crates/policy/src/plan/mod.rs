//! Plans: the actions that are due now, with a reason for each.
//!
//! The same configuration, state and time give the same plan. After a plan was carried out, planning again gives no
//! more actions, except pruning that a replication has made possible.

mod bases;
mod jobs;
mod prune;
mod take;

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use self::bases::Copies;
pub(crate) use self::bases::Ends;
use crate::config::{Config, Effective, Hooks, Rules};
use crate::state::{Dataset, Snapshot, State};

/// An action of a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Take snapshots.
    Take(Taking),
    /// Run a replication job.
    Replicate {
        /// The name of the job.
        job: String,
        /// Why it is due now.
        reason: String,
    },
    /// Destroy a snapshot.
    Destroy(Destroying),
}

/// Snapshots that are taken between one run of a hook before and one run of a hook after.
#[derive(Debug, Clone, PartialEq)]
pub struct Taking {
    /// The hooks, all of which are optional.
    pub hooks: Hooks,
    /// The datasets.
    pub datasets: Vec<TakingOf>,
}

/// The new snapshots of one dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct TakingOf {
    /// Its name.
    pub dataset: String,
    /// One snapshot for each period that is due, the longest period first.
    pub snapshots: Vec<NewSnapshot>,
}

/// A snapshot to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its period.
    pub period: String,
    /// The name after the `@`.
    pub name: String,
    /// Why it is due now.
    pub reason: String,
}

impl Taking {
    /// Full names of the snapshots in rounds. The snapshots of one round are taken at one moment. A dataset can have
    /// only one snapshot in a round.
    pub fn rounds(&self) -> Vec<Vec<String>> {
        let count = self.datasets.iter().map(|of| of.snapshots.len()).max().unwrap_or(0);
        (0..count)
            .map(|at| {
                let names = self.datasets.iter().filter_map(|of| {
                    let snapshot = of.snapshots.get(at)?;
                    Some(format!("{}@{}", of.dataset, snapshot.name))
                });
                names.collect()
            })
            .collect()
    }
}

/// A snapshot to destroy.
#[derive(Debug, Clone, PartialEq)]
pub struct Destroying {
    /// The job to whose source or target it belongs, if no section applies to it.
    pub job: Option<String>,
    /// Prefix of names on another machine or system. Empty for this machine.
    pub place: String,
    /// The dataset.
    pub dataset: String,
    /// The name after the `@`.
    pub snapshot: String,
    /// Its guid.
    pub guid: u64,
    /// The hooks.
    pub hooks: Hooks,
    /// The reason.
    pub reason: String,
}

/// The actions that are due, and notes about actions that are not possible or deferred.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The actions in their order.
    pub actions: Vec<Action>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The input of a plan.
pub struct Planner<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The current state.
    pub state: &'a State,
    /// The rules of each dataset.
    pub rules: Effective,
    /// The datasets of this machine, by name.
    datasets: HashMap<&'a str, &'a Dataset>,
    copies: Copies<'a>,
    now: Timestamp,
    zone: TimeZone,
    host: &'a str,
}

/// Computes the plan.
pub fn plan(config: &Config, state: &State, now: Timestamp, zone: &TimeZone, host: &str) -> Plan {
    Planner::new(config, state, now, zone, host).plan()
}

impl<'a> Planner<'a> {
    /// A planner for the time `now`. `zone` is the time zone of the machine, which is used if the configuration has
    /// none. `host` is the name of the machine, on which delays depend.
    pub fn new(config: &'a Config, state: &'a State, now: Timestamp, zone: &TimeZone, host: &'a str) -> Self {
        let zone = config.zone.clone().unwrap_or_else(|| zone.clone());
        Self {
            config,
            state,
            rules: config.rules(state.datasets.iter().map(|dataset| dataset.name.as_str())),
            datasets: state.datasets.iter().map(|dataset| (dataset.name.as_str(), dataset)).collect(),
            copies: Copies::new(config, state),
            now,
            zone,
            host,
        }
    }

    /// All actions that are due: snapshots, then jobs, then pruning. Pruning assumes that the snapshots were taken, and
    /// that the jobs are running and may still fail.
    pub fn plan(&self) -> Plan {
        let mut plan = self.take();
        let jobs = self.jobs_due(&plan);
        plan.actions.extend(jobs);
        let pruning = self.prune_with(&Before {
            taken: taken(&plan, self.now.as_second()),
            jobs: plan.actions.iter().filter_map(Action::job).collect(),
        });
        plan.actions.extend(pruning.actions);
        plan.notes.extend(pruning.notes);
        plan
    }

    /// The first time after now at which something is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        let periods = self.rules.values().filter(|rules| rules.autosnap && rules.follows.is_none());
        let snapshots = periods.flat_map(|rules| {
            let wanted = rules.periods.iter().filter(|period| period.count > 0);
            wanted.filter_map(|period| {
                period.schedule.next_delayed(self.now, &self.zone, self.delay("", rules.jitter))
            })
        });
        snapshots.chain(self.jobs_next()).min()
    }

    /// A dataset of this machine with its rules.
    pub(crate) fn ruled(&self) -> impl Iterator<Item = (&'a Dataset, &Rules)> {
        self.rules.iter().filter_map(|(name, rules)| Some((*self.datasets.get(name.as_str())?, rules)))
    }

    /// The delay in seconds for this name. It is less than `jitter`, and constant on one machine.
    fn delay(&self, name: &str, jitter: i64) -> i64 {
        if jitter <= 0 {
            return 0;
        }
        let bytes = self.host.bytes().chain([0]).chain(name.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        i64::try_from((hash >> 1) % jitter.unsigned_abs()).unwrap_or(0)
    }

    /// Formats a time for the user.
    fn told(&self, moment: Timestamp) -> String {
        moment.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M").to_string()
    }
}

/// The steps of a plan before pruning.
#[derive(Default)]
struct Before<'p> {
    /// New snapshots, by dataset.
    taken: BTreeMap<String, Vec<Snapshot>>,
    /// Jobs that run.
    jobs: HashSet<&'p str>,
}

impl Action {
    /// The name of the job, if the action runs one.
    pub fn job(&self) -> Option<&str> {
        match self {
            Self::Replicate { job, .. } => Some(job),
            _ => None,
        }
    }
}

/// The snapshots that a plan takes, by dataset.
fn taken(plan: &Plan, now: i64) -> BTreeMap<String, Vec<Snapshot>> {
    let mut taken: BTreeMap<String, Vec<Snapshot>> = BTreeMap::new();
    for action in &plan.actions {
        let Action::Take(taking) = action else { continue };
        for of in &taking.datasets {
            let snapshots = of.snapshots.iter().map(|new| Snapshot {
                name: new.name.clone(),
                createtxg: u64::MAX,
                creation: now,
                ..Snapshot::default()
            });
            taken.entry(of.dataset.clone()).or_default().extend(snapshots);
        }
    }
    taken
}

#[cfg(test)]
mod tests;
