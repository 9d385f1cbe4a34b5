//! Decides which snapshots of a dataset are kept, and why.
//!
//! Snapshots whose names show that the policy did not take them are ignored. Any other snapshot is destroyed only if at
//! least one rule applies to it and no rule keeps it.

mod grid;

use std::collections::{BTreeMap, HashMap, HashSet};

use regex_lite::Regex;

pub use grid::{Grid, GridError};

use crate::duration::short;
use crate::name;
use crate::state::Snapshot;

/// The retention rules of a dataset.
#[derive(Debug, Clone, Default)]
pub struct Retention {
    /// Prefix of the names of the policy's snapshots.
    pub prefix: String,
    /// For each period, the number of snapshots to keep, and the age in seconds up to which all are kept.
    pub counts: BTreeMap<String, (usize, Option<i64>)>,
    /// The age grid.
    pub grid: Option<Grid>,
    /// How many of the newest snapshots to keep, counted over all periods.
    pub last: Option<usize>,
    /// Whether to keep snapshots that some target does not have yet.
    pub keep_not_replicated: bool,
    /// Snapshots whose names match one of these are kept.
    pub protect: Vec<Regex>,
}

/// Facts about replication that retention depends on.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Guids of the newest snapshots that copies also have.
    pub bases: HashSet<u64>,
    /// The `createtxg` of the newest snapshot that every target has. `None` if some target has none, or if there are no
    /// targets.
    pub replicated: Option<u64>,
    /// Whether there are targets.
    pub has_targets: bool,
    /// Whether a replication to some target is running.
    pub is_running: bool,
}

/// What happens to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The policy did not take the snapshot, or no rule applies to it.
    Foreign,
    /// The snapshot is kept, with the reason.
    Keep(String),
    /// The snapshot is destroyed, with the reason.
    Destroy(String),
}

impl Retention {
    /// Decides what happens to each snapshot. `snapshots` are in the order of their creation.
    pub fn judge(&self, snapshots: &[Snapshot], facts: &Facts, now: i64) -> Vec<Verdict> {
        let owned: Vec<(usize, &Snapshot, &str)> = snapshots
            .iter()
            .enumerate()
            .filter_map(|(at, snapshot)| Some((at, snapshot, name::period(&self.prefix, &snapshot.name)?)))
            .collect();
        let mut verdicts = vec![Verdict::Foreign; snapshots.len()];
        let newest_first = owned.iter().rev();
        let last: HashSet<usize> = newest_first.take(self.last.unwrap_or(0)).map(|(at, ..)| *at).collect();
        let gridded = self.grid.as_ref().map(|grid| {
            let creations: Vec<i64> = owned.iter().map(|(_, snapshot, _)| snapshot.creation).collect();
            grid.keeps(&creations, now)
        });
        // Snapshots of each period are counted from the newest one.
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (nth, (at, snapshot, period)) in owned.iter().enumerate().rev() {
            let place = places.entry(*period).or_default();
            *place += 1;
            let count = self.counts.get(*period);
            if count.is_none() && gridded.is_none() && self.last.is_none() {
                continue;
            }
            let in_grid = gridded.as_ref().is_some_and(|kept| kept.get(nth).copied().unwrap_or(true));
            let wanted = wanted(period, *place, count, now.saturating_sub(snapshot.creation));
            let keep = self
                .unmovable(snapshot, facts)
                .or(wanted)
                .or_else(|| in_grid.then(|| "in the grid".to_owned()))
                .or_else(|| last.contains(at).then(|| format!("one of the last {}", last.len())));
            if let Some(verdict) = verdicts.get_mut(*at) {
                *verdict = match keep {
                    Some(reason) => Verdict::Keep(reason),
                    None => Verdict::Destroy(self.why_not(
                        period,
                        *place,
                        count,
                        now.saturating_sub(snapshot.creation),
                    )),
                };
            }
        }
        verdicts
    }

    /// The reason to keep a snapshot independently of counts and ages, if there is one.
    fn unmovable(&self, snapshot: &Snapshot, facts: &Facts) -> Option<String> {
        if facts.bases.contains(&snapshot.guid) {
            return Some("the newest that a copy has too".to_owned());
        }
        if snapshot.holds > 0 {
            return Some("held".to_owned());
        }
        if snapshot.has_clones {
            return Some("has clones".to_owned());
        }
        if (self.keep_not_replicated || facts.is_running)
            && facts.has_targets
            && facts.replicated.is_none_or(|replicated| snapshot.createtxg > replicated)
        {
            return Some("not replicated yet".to_owned());
        }
        let protects = |pattern: &&Regex| pattern.is_match(&snapshot.name);
        self.protect.iter().find(protects).map(|pattern| format!("protected by {pattern}"))
    }

    fn why_not(&self, period: &str, place: usize, count: Option<&(usize, Option<i64>)>, age: i64) -> String {
        let age = short(age.max(0));
        match count {
            Some((0, _)) => format!("no {period} snapshots are wanted"),
            Some((count, _)) => format!("{period} {place} of {count}, {age} old"),
            None => format!("not in the retention, {age} old"),
        }
    }
}

/// Whether the count of its period keeps a snapshot. It keeps the newest `count` snapshots, and those that are not too
/// old.
fn wanted(period: &str, place: usize, count: Option<&(usize, Option<i64>)>, age: i64) -> Option<String> {
    let (count, age_max) = *count?;
    if place <= count {
        return Some(format!("{period} {place} of {count}"));
    }
    age_max
        .filter(|max| count > 0 && age <= *max)
        .map(|max| format!("{period}, not older than {}", short(max)))
}

#[cfg(test)]
mod tests;
