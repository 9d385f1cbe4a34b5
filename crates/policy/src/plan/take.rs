//! Planning of snapshots.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use super::{Action, NewSnapshot, Plan, Planner, Taking, TakingOf};
use crate::config::{Hooks, Period, Rules};
use crate::duration::short;
use crate::name;
use crate::state::Dataset;

impl Planner<'_> {
    /// The snapshots that are due. For each period, only one is taken for the newest time that has passed.
    pub fn take(&self) -> Plan {
        let mut plan = Plan::default();
        // Snapshots that are taken together: those with the same hooks. If hooks are not shared, also only those of one
        // dataset.
        let mut groups: BTreeMap<(Hooks, Option<&str>), Vec<TakingOf>> = BTreeMap::new();
        let mut followers: HashMap<&str, Vec<&Dataset>> = HashMap::new();
        for (dataset, rules) in self.ruled() {
            if let Some(leader) = &rules.follows {
                followers.entry(leader).or_default().push(dataset);
            }
        }
        let leaders = self.ruled().filter(|(_, rules)| rules.autosnap && rules.follows.is_none());
        for (dataset, rules) in leaders {
            let due: Vec<(&Period, String)> = rules
                .periods
                .iter()
                .filter_map(|period| Some((period, self.due(dataset, rules, period)?)))
                .collect();
            if due.is_empty() {
                continue;
            }
            let hooks = Hooks { pre_pruning: None, pruning: None, ..rules.hooks.clone() };
            let is_hooked = hooks.pre_snapshot.is_some() || hooks.post_snapshot.is_some();
            let hooks = if is_hooked { hooks } else { Hooks::default() };
            let alone = (is_hooked && !self.config.shares_hooks).then_some(dataset.name.as_str());
            let group = groups.entry((hooks, alone)).or_default();
            let followers = followers.get(dataset.name.as_str()).into_iter().flatten().copied();
            for member in std::iter::once(dataset).chain(followers) {
                if member.receiving {
                    plan.notes.push(format!("{}: no snapshot while it is being received", member.name));
                    continue;
                }
                if let Some(job) = self.copies.bringing(&member.name) {
                    // A snapshot of the target would prevent the next stream.
                    plan.notes
                        .push(format!("{}: no snapshot, because it is a target of job {job}", member.name));
                    continue;
                }
                let is_leader = member.name == dataset.name;
                let snapshots = due.iter().map(|(period, reason)| NewSnapshot {
                    period: period.name.clone(),
                    name: self.named(member, rules, period),
                    reason: if is_leader { reason.clone() } else { format!("with {}", dataset.name) },
                });
                group.push(TakingOf { dataset: member.name.clone(), snapshots: snapshots.collect() });
            }
        }
        let takings = groups.into_iter().filter(|(_, datasets)| !datasets.is_empty());
        plan.actions =
            takings.map(|((hooks, _), datasets)| Action::Take(Taking { hooks, datasets })).collect();
        plan
    }

    /// Why a snapshot of this period is due, or `None` if it is not.
    fn due(&self, dataset: &Dataset, rules: &Rules, period: &Period) -> Option<String> {
        if period.count == 0 {
            return None;
        }
        let delay = self.delay("", rules.jitter);
        let last = period.schedule.last_delayed(self.now, &self.zone, delay)?;
        let next = period.schedule.next_delayed(self.now, &self.zone, delay);
        // A snapshot from the future, taken with a wrong clock, must not prevent snapshots until then.
        let next = next.map_or(i64::MAX, Timestamp::as_second);
        let mut newest: Option<i64> = None;
        for snapshot in &dataset.snapshots {
            if name::period(&rules.prefix, &snapshot.name) == Some(&period.name) {
                if (last.as_second()..next).contains(&snapshot.creation) {
                    return None;
                }
                newest = newest.max(Some(snapshot.creation).filter(|creation| *creation < next));
            }
        }
        let age = newest.map(|newest| short(self.now.as_second().saturating_sub(newest).max(0)));
        Some(match age {
            Some(age) => format!("due since {}, newest {age} old", self.told(last)),
            None => "there is none yet".to_owned(),
        })
    }

    fn named(&self, dataset: &Dataset, rules: &Rules, period: &Period) -> String {
        let usual = name::of(&rules.prefix, self.now, &self.zone, &period.name, false);
        let known: HashSet<&str> = dataset.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
        match known.contains(usual.as_str()) {
            true => name::of(&rules.prefix, self.now, &self.zone, &period.name, true),
            false => usual,
        }
    }
}
