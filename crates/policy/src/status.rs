//! How things stand: what there is of each period, when the next is due, how far behind jobs are.

use crate::name;
use crate::plan::{Ends, Planner};
use crate::state::{Dataset, JobState};

/// How a period of a dataset stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeriodStatus {
    /// The dataset.
    pub dataset: String,
    /// The period.
    pub period: String,
    /// Snapshots of it that there are.
    pub present: usize,
    /// Snapshots of it that there should be.
    pub wanted: usize,
    /// When the newest was taken: seconds since 1970.
    pub newest: Option<i64>,
    /// When the next is due: seconds since 1970; nothing where none are taken.
    pub next: Option<i64>,
}

/// How a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// Where it comes from.
    pub source: String,
    /// Where it goes.
    pub target: String,
    /// When it last began: seconds since 1970.
    pub began: Option<i64>,
    /// When it last began among the times it succeeded.
    pub succeeded: Option<i64>,
    /// Why it failed last time, if it did.
    pub failure: Option<String>,
    /// It is being run.
    pub running: bool,
    /// Seconds that the oldest snapshot has waited which is not at the target yet; 0 if there is none. Nothing if that is not
    /// known.
    pub lag: Option<i64>,
    /// When it is due next: seconds since 1970; nothing where that depends on snapshots.
    pub next: Option<i64>,
}

impl Planner<'_> {
    /// How every period of every dataset stands.
    pub fn periods(&self) -> Vec<PeriodStatus> {
        let mut found = Vec::new();
        for (state, rules) in self.ruled() {
            for period in &rules.periods {
                let of_period = |name: &str| name::period(&rules.prefix, name) == Some(&period.name);
                let mut present = 0;
                let mut newest = None;
                for snapshot in state.snapshots.iter().filter(|snapshot| of_period(&snapshot.name)) {
                    present += 1;
                    newest = newest.max(Some(snapshot.creation));
                }
                if period.count == 0 && present == 0 {
                    continue;
                }
                found.push(PeriodStatus {
                    dataset: state.name.clone(),
                    period: period.name.clone(),
                    present,
                    wanted: period.count,
                    newest,
                    next: self.period_next(&state.name, &period.name).map(|moment| moment.as_second()),
                });
            }
        }
        found
    }

    /// How every job stands.
    pub fn jobs(&self, now: i64) -> Vec<JobStatus> {
        let unknown = JobState::default();
        let jobs = self.config.jobs.iter().map(|(name, job)| {
            let state = self.state.jobs.get(name).unwrap_or(&unknown);
            JobStatus {
                job: name.clone(),
                source: job.source.clone(),
                target: job.target.clone(),
                began: state.began,
                succeeded: state.succeeded,
                failure: state.failure.clone(),
                running: state.running,
                lag: lag(state, now),
                next: self.job_next(name).map(|moment| moment.as_second()),
            }
        });
        jobs.collect()
    }
}

/// How long the oldest snapshot has waited that the target has not got.
fn lag(job: &JobState, now: i64) -> Option<i64> {
    let Some(datasets) = job.source.datasets.as_ref().filter(|_| !job.has_files) else {
        // What its end elsewhere has is not known: what it had when all was last well is.
        return job.succeeded.map(|succeeded| now.saturating_sub(succeeded).max(0));
    };
    let ends = Ends::new(job);
    Some(datasets.iter().map(|dataset| waits(&ends, dataset, now)).max().unwrap_or(0))
}

fn waits(ends: &Ends<'_>, dataset: &Dataset, now: i64) -> i64 {
    let newest = ends.sent(dataset).and_then(|sent| sent.newest);
    let waiting =
        dataset.snapshots.iter().filter(|snapshot| newest.is_none_or(|newest| snapshot.createtxg > newest));
    waiting.map(|snapshot| now.saturating_sub(snapshot.creation).max(0)).max().unwrap_or(0)
}
