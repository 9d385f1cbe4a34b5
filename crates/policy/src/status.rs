//! The current status: the snapshots of each period, when the next is due, and the lag of jobs.

use crate::name;
use crate::plan::{Ends, Planner};
use crate::state::{Dataset, JobState};

/// The status of a period of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeriodStatus {
    /// The dataset.
    pub dataset: String,
    /// The period.
    pub period: String,
    /// Number of existing snapshots.
    pub present: usize,
    /// Number of snapshots to keep.
    pub wanted: usize,
    /// Time of the newest snapshot, in seconds since 1970.
    pub newest: Option<i64>,
    /// When the next one is due, in seconds since 1970. `None` if no snapshots are taken.
    pub next: Option<i64>,
}

/// The status of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// The source.
    pub source: String,
    /// The target.
    pub target: String,
    /// When the last run began, in seconds since 1970.
    pub began: Option<i64>,
    /// When the last successful run began, in seconds since 1970.
    pub succeeded: Option<i64>,
    /// The reason, if the last run failed.
    pub failure: Option<String>,
    /// Whether the job is running.
    pub running: bool,
    /// Lag: how long the oldest snapshot that is not at the target has waited, in seconds. 0 if there is no such
    /// snapshot, `None` if that is not known.
    pub lag: Option<i64>,
    /// When the job is due next, in seconds since 1970. `None` if that depends on snapshots.
    pub next: Option<i64>,
}

impl Planner<'_> {
    /// The status of every period of every dataset.
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

    /// The status of every job.
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

/// The lag of a job in seconds.
fn lag(job: &JobState, now: i64) -> Option<i64> {
    let Some(datasets) = job.source.datasets.as_ref().filter(|_| !job.has_files) else {
        // The state of the other end is not known, but its state at the last success is.
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
