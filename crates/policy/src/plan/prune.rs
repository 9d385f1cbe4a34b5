//! Planning of pruning.

use std::collections::{BTreeMap, HashSet};

use super::bases::Unknown;
use super::{Action, Before, Destroying, Plan, Planner};
use crate::config::{Hooks, Rules};
use crate::retention::Verdict;
use crate::state::{Dataset, Snapshot, pool_of};

/// The state of a search for snapshots to prune, with notes that are collected over all datasets.
#[derive(Default)]
struct Pruning<'a> {
    plan: Plan,
    /// Datasets that cannot be decided, by the missing knowledge.
    undecided: BTreeMap<Unknown<'a>, Vec<String>>,
    /// How many snapshots of how many datasets could be pruned, by pool, percentage in use and limit.
    deferred: BTreeMap<(&'a str, u8, u8), (usize, usize)>,
}

/// A dataset to prune.
struct Subject<'a> {
    /// The job that the dataset belongs to, if no section applies to it.
    job: Option<&'a str>,
    place: &'a str,
    dataset: &'a Dataset,
    rules: &'a Rules,
}

impl Planner<'_> {
    /// The snapshots to destroy in the current state.
    pub fn prune(&self) -> Plan {
        self.prune_with(&Before::default())
    }

    /// The snapshots to destroy after the steps in `before`.
    pub(super) fn prune_with(&self, before: &Before<'_>) -> Plan {
        let mut pruning = Pruning::default();
        let mut done: HashSet<(&str, &str)> = HashSet::new();
        // If a section applies to a dataset, the rules of jobs do not, even if the section disables pruning.
        for (dataset, rules) in self.ruled() {
            done.insert(("", &dataset.name));
            self.prune_one(&mut pruning, &Subject { job: None, place: "", dataset, rules }, before);
        }
        for (name, job) in &self.config.jobs {
            let Some(state) = self.state.jobs.get(name) else { continue };
            for (rules, side) in [(&job.prune_source, &state.source), (&job.prune_target, &state.target)] {
                let (Some(rules), Some(datasets)) = (rules, &side.datasets) else { continue };
                let place = side.place.as_str();
                let fresh = datasets.iter().filter(|dataset| done.insert((place, &dataset.name)));
                let fresh: Vec<&Dataset> = fresh.collect();
                if fresh.len() < datasets.len() {
                    pruning.plan.notes.push(format!(
                        "job {name}: {} datasets of {place}{} are pruned by their own sections or by other jobs",
                        datasets.len() - fresh.len(),
                        side.root
                    ));
                }
                for dataset in fresh {
                    self.prune_one(&mut pruning, &Subject { job: Some(name), place, dataset, rules }, before);
                }
            }
        }
        pruning.told()
    }

    fn prune_one<'s>(&'s self, pruning: &mut Pruning<'s>, subject: &Subject<'s>, before: &Before<'_>) {
        let Subject { job, place, dataset, rules } = *subject;
        if !rules.autoprune {
            return;
        }
        let verdicts = match self.verdicts(subject, before) {
            Ok(verdicts) => verdicts,
            Err(unknown) => {
                let name = format!("{place}{}", dataset.name);
                return pruning.undecided.entry(unknown).or_default().push(name);
            }
        };
        let mut going =
            dataset.snapshots.iter().zip(verdicts).filter_map(|(snapshot, verdict)| match verdict {
                Verdict::Destroy(reason) => Some((snapshot, reason)),
                _ => None,
            });
        if let Some(used) = self.deferred(subject) {
            let count = going.count();
            if count > 0 {
                let key = (pool_of(&dataset.name), used, rules.prune_defer);
                let deferred = pruning.deferred.entry(key).or_default();
                *deferred = (deferred.0 + count, deferred.1 + 1);
            }
            return;
        }
        let hooks = Hooks { pre_snapshot: None, post_snapshot: None, ..rules.hooks.clone() };
        pruning.plan.actions.extend(going.by_ref().map(|(snapshot, reason)| {
            Action::Destroy(Destroying {
                job: job.map(str::to_owned),
                place: place.to_owned(),
                dataset: dataset.name.clone(),
                snapshot: snapshot.name.clone(),
                guid: snapshot.guid,
                hooks: hooks.clone(),
                reason,
            })
        }));
    }

    /// What happens to each snapshot, or why that is not known now.
    fn verdicts(&self, subject: &Subject<'_>, before: &Before<'_>) -> Result<Vec<Verdict>, Unknown<'_>> {
        let Subject { place, dataset, rules, .. } = *subject;
        let facts = self.copies.facts(place, dataset, &before.jobs)?;
        let taken = before.taken.get(&dataset.name).filter(|_| place.is_empty());
        let all: Vec<Snapshot> =
            dataset.snapshots.iter().chain(taken.into_iter().flatten()).cloned().collect();
        let mut verdicts = rules.retention.judge(&all, &facts, self.now.as_second());
        verdicts.truncate(dataset.snapshots.len());
        Ok(verdicts)
    }

    /// The percentage of the pool in use, if it is too low for pruning. It is not known for pools of other machines, so
    /// their datasets are never deferred.
    fn deferred(&self, subject: &Subject<'_>) -> Option<u8> {
        let limit = subject.rules.prune_defer;
        let pool = pool_of(&subject.dataset.name);
        let used = self.state.pools.get(pool).copied().filter(|_| subject.place.is_empty())?;
        (limit > 0 && used <= limit).then_some(used)
    }
}

impl Pruning<'_> {
    /// Adds the notes about what is not done, and returns the plan.
    fn told(mut self) -> Plan {
        for (unknown, names) in self.undecided {
            let what = match names.as_slice() {
                [only] => only.clone(),
                [first, rest @ ..] => format!("{first} and {} more", rest.len()),
                [] => continue,
            };
            let until = match unknown {
                Unknown::NotUnderstood(job) => format!("while job {job} is not valid"),
                Unknown::NotSeen(job) => format!("until job {job} has run"),
            };
            self.plan.notes.push(format!("{what}: nothing is pruned {until}: common snapshots must be kept"));
        }
        for ((pool, used, limit), (snapshots, datasets)) in self.deferred {
            self.plan.notes.push(format!(
                "{pool}: {snapshots} snapshots of {datasets} datasets could be pruned, but only {used} % of the pool \
                 is in use (prune_defer = {limit})"
            ));
        }
        self.plan
    }
}
