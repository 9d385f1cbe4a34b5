//! Planning of replication jobs.

use std::collections::HashSet;

use jiff::Timestamp;

use super::{Action, Plan, Planner};
use crate::config::{Job, When};
use crate::duration::short;
use crate::state::JobState;

/// Prefix of the snapshots that a sync takes for itself.
const OF_SYNC: &str = "snowmelt-sync_";

impl Planner<'_> {
    /// The jobs that are due if the snapshots of `taking` are taken.
    pub fn jobs_due(&self, taking: &Plan) -> Vec<Action> {
        let taken: HashSet<&str> = taking
            .actions
            .iter()
            .filter_map(
                |action| if let Action::Take(taking) = action { Some(&taking.datasets) } else { None },
            )
            .flatten()
            .map(|of| of.dataset.as_str())
            .collect();
        let unknown = JobState::default();
        let jobs = self.config.jobs.iter().filter_map(|(name, job)| {
            let state = self.state.jobs.get(name).unwrap_or(&unknown);
            let reason = self.job_due(name, job, state, &taken)?;
            Some(Action::Replicate { job: name.clone(), reason })
        });
        jobs.collect()
    }

    fn job_due(&self, name: &str, job: &Job, state: &JobState, taken: &HashSet<&str>) -> Option<String> {
        let now = self.now.as_second();
        if let (Some(began), Some(_)) = (state.began, &state.failure) {
            let since = now.saturating_sub(began);
            if since >= job.retry {
                return Some(format!("failed {} ago, tried again", short(since)));
            }
        }
        match &job.when {
            When::At(schedule) => {
                let delay = self.delay(name, job.jitter);
                let last = schedule.last_delayed(self.now, &self.zone, delay)?;
                let next = schedule.next_delayed(self.now, &self.zone, delay);
                let next = next.map_or(i64::MAX, Timestamp::as_second);
                match state.began {
                    None => Some("never run yet".to_owned()),
                    Some(began) if (last.as_second()..next).contains(&began) => None,
                    Some(began) => {
                        let since = short(now.saturating_sub(began).max(0));
                        Some(format!("due since {}, last run {since} ago", self.told(last)))
                    }
                }
            }
            When::AfterSnapshot => {
                let source = &state.source;
                let datasets = source.datasets.as_ref()?;
                let is_new = |creation: i64| state.began.is_none_or(|began| creation > began);
                let snapshots = datasets.iter().flat_map(|dataset| &dataset.snapshots);
                let found = snapshots
                    .filter(|snapshot| is_new(snapshot.creation) && !snapshot.name.starts_with(OF_SYNC));
                if found.count() > 0 {
                    return Some("there are newer snapshots than when it last ran".to_owned());
                }
                let is_here = |name: &str| source.place.is_empty() && taken.contains(name);
                let will_be = datasets.iter().any(|dataset| is_here(&dataset.name));
                will_be.then(|| "snapshots are taken".to_owned())
            }
        }
    }

    /// The times at which jobs are due next.
    pub(super) fn jobs_next(&self) -> impl Iterator<Item = Timestamp> {
        self.config.jobs.keys().filter_map(|name| self.job_next(name))
    }

    /// When a job is due next, if that does not depend on snapshots.
    pub fn job_next(&self, name: &str) -> Option<Timestamp> {
        let job = self.config.jobs.get(name)?;
        let failed = self.state.jobs.get(name).filter(|state| state.failure.is_some());
        let retry = failed.and_then(|state| state.began);
        let retry = retry.and_then(|began| Timestamp::from_second(began.saturating_add(job.retry)).ok());
        let retry = retry.filter(|moment| *moment > self.now);
        let scheduled = match &job.when {
            When::At(schedule) => schedule.next_delayed(self.now, &self.zone, self.delay(name, job.jitter)),
            When::AfterSnapshot => None,
        };
        retry.into_iter().chain(scheduled).min()
    }

    /// When a period of a dataset is due next.
    pub fn period_next(&self, dataset: &str, period: &str) -> Option<Timestamp> {
        let rules = self.rules.get(dataset)?;
        let leader = rules.follows.as_ref().and_then(|leader| self.rules.get(leader)).unwrap_or(rules);
        let period = leader.periods.iter().find(|known| known.name == period && known.count > 0)?;
        let delay = self.delay("", leader.jitter);
        leader.autosnap.then(|| period.schedule.next_delayed(self.now, &self.zone, delay))?
    }
}
