//! What has to be done now, with a reason for each action.
//!
//! The same configuration, state and time give the same plan. Carried out, planning again gives nothing more, but for what a
//! replication makes possible to prune.

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

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Snapshots are to be taken.
    Take(Taking),
    /// A replication job is to be run.
    Replicate {
        /// Its name.
        job: String,
        /// Why now.
        reason: String,
    },
    /// A snapshot is to be destroyed.
    Destroy(Destroying),
}

/// Snapshots to be taken between one run of a hook before and one of a hook after.
#[derive(Debug, Clone, PartialEq)]
pub struct Taking {
    /// The hooks; those that are none do nothing.
    pub hooks: Hooks,
    /// The datasets.
    pub datasets: Vec<TakingOf>,
}

/// Snapshots of one dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct TakingOf {
    /// Its name.
    pub dataset: String,
    /// One for each period that is due, the longest first.
    pub snapshots: Vec<NewSnapshot>,
}

/// A snapshot to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// The period it is for.
    pub period: String,
    /// What will stand after the `@`.
    pub name: String,
    /// Why now.
    pub reason: String,
}

impl Taking {
    /// Full names of snapshots that are to be taken at one moment, one list after the other: a dataset can have but one
    /// snapshot at a moment.
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

/// A snapshot to be destroyed.
#[derive(Debug, Clone, PartialEq)]
pub struct Destroying {
    /// The job at whose source or target it is, if it is not one of a section's.
    pub job: Option<String>,
    /// What stands before the name to tell it from those of this machine; nothing for this machine.
    pub place: String,
    /// The dataset.
    pub dataset: String,
    /// What stands after the `@`.
    pub snapshot: String,
    /// Its guid.
    pub guid: u64,
    /// Commands before and after.
    pub hooks: Hooks,
    /// Why.
    pub reason: String,
}

/// What has to be done, and what is not done though it could seem due.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// In the order in which it is to be done.
    pub actions: Vec<Action>,
    /// For people.
    pub notes: Vec<String>,
}

/// All that plans are made from.
pub struct Planner<'a> {
    /// What is wanted.
    pub config: &'a Config,
    /// What is there.
    pub state: &'a State,
    /// What holds for each dataset.
    pub rules: Effective,
    /// Datasets of this machine, by name.
    datasets: HashMap<&'a str, &'a Dataset>,
    copies: Copies<'a>,
    now: Timestamp,
    zone: TimeZone,
    host: &'a str,
}

/// What has to be done.
pub fn plan(config: &Config, state: &State, now: Timestamp, zone: &TimeZone, host: &str) -> Plan {
    Planner::new(config, state, now, zone, host).plan()
}

impl<'a> Planner<'a> {
    /// For this moment. `zone` is that of the machine, and holds if the configuration names none; `host` is the machine's
    /// name, on which delays depend.
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

    /// All that has to be done: snapshots, then jobs, then pruning as if the snapshots had been taken and the jobs, which can
    /// fail, were being run.
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

    /// The first moment after now at which something is due.
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

    /// Seconds that what is called so is late: anything below `jitter`, and always the same on one machine.
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

    /// A moment for people.
    fn told(&self, moment: Timestamp) -> String {
        moment.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M").to_string()
    }
}

/// What a plan does before it prunes.
#[derive(Default)]
struct Before<'p> {
    /// Snapshots, by dataset.
    taken: BTreeMap<String, Vec<Snapshot>>,
    /// Jobs that are run.
    jobs: HashSet<&'p str>,
}

impl Action {
    /// The job that is to be run, if it is that.
    pub fn job(&self) -> Option<&str> {
        match self {
            Self::Replicate { job, .. } => Some(job),
            _ => None,
        }
    }
}

/// What the snapshots of a plan will be, by dataset.
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
