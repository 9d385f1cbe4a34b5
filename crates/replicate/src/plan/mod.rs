//! Plans: from the descriptions of both ends to the actions. Nothing here reads or writes a pool.
//!
//! - `names`: which dataset of the target is whose copy, also after renames
//! - `dataset`: the steps for one dataset
//! - `keep`: the snapshots, bookmarks and holds that keep the next sync incremental

mod dataset;
mod keep;
mod names;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use dataset::{Problem, Step, steps};
pub use keep::{Marks, keep, protect};
use names::Names;

use crate::request::{DatasetInfo, ReceiveRequest, SendRequest};

/// How to sync.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only the newest snapshot is sent, not those in between (`zfs send -i`).
    pub newest_only: bool,
    /// Everything at the target that is newer than the newest common snapshot is destroyed.
    pub force: bool,
    /// Streams are raw, also of datasets that are not encrypted.
    pub raw: bool,
    /// Properties go along.
    pub properties: bool,
    /// Blocks of more than 128 KiB go out whole.
    pub large_blocks: bool,
    /// Properties that are set at the target, in canonical text.
    pub set: Vec<(String, String)>,
    /// Properties that are not taken at the target.
    pub exclude: Vec<String>,
}

/// The actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// A filesystem of the target that has to be made first.
    pub parent: Option<String>,
    /// One task for each dataset of the source, parents before children.
    pub tasks: Vec<Task>,
}

/// The actions for one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its full name at the source.
    pub source: String,
    /// Its full name at the target.
    pub target: String,
    /// Where it is in the description of the source.
    pub source_at: usize,
    /// Where it is in that of the target, if it is there.
    pub target_at: Option<usize>,
    /// Indices of tasks that must have succeeded before.
    pub needs: Vec<usize>,
    /// It is to be renamed first, from this.
    pub rename: Option<String>,
    /// The origin of a clone, with its name at the target.
    pub origin: Option<Origin>,
}

/// The snapshot that a clone was made of, at both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Full name at the source.
    pub source: String,
    /// Full name at the target.
    pub target: String,
}

/// Leaves out excluded datasets (by their full names) with their descendants, and datasets with nothing to send.
pub fn leave_out(found: &mut Vec<DatasetInfo>, is_excluded: &dyn Fn(&str) -> bool) {
    let mut excluded: Vec<String> = Vec::new();
    found.retain(|info| {
        let below =
            |above: &String| info.name.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'));
        let is_excluded = is_excluded(&info.name) || excluded.iter().any(below);
        if is_excluded {
            excluded.push(info.name.clone());
        }
        // A dataset that was never received completely has nothing to send.
        !is_excluded && !info.inconsistent
    });
}

/// Plans the sync of all `source` datasets to below `target_root`. The first of them is the root of the others.
/// `target` are the existing datasets there.
pub fn plan(source: &[DatasetInfo], target: &[DatasetInfo], target_root: &str) -> Plan {
    let Some(root) = source.first() else { return Plan { parent: None, tasks: Vec::new() } };
    let names = Names::new(source, &root.name, target, target_root);
    let task_of: HashMap<&str, usize> =
        source.iter().enumerate().map(|(at, info)| (info.name.as_str(), at)).collect();
    // Where every snapshot is that a clone could be of.
    let mut sent_from: HashMap<u64, (usize, &str)> = HashMap::new();
    for (at, info) in source.iter().enumerate() {
        sent_from.extend(info.snapshots.iter().map(|snapshot| (snapshot.guid, (at, snapshot.name.as_str()))));
    }
    let mut tasks: Vec<Task> = Vec::with_capacity(source.len());
    for (source_at, info) in source.iter().enumerate() {
        let place = names.of(source_at);
        let mut needs = Vec::new();
        let parent = info.name.rsplit_once('/').and_then(|(above, _)| task_of.get(above).copied());
        if let Some(parent) = parent.filter(|parent| *parent != source_at) {
            let waits =
                |task: &Task| task.target_at.is_none() || task.rename.is_some() || !task.needs.is_empty();
            if tasks.get(parent).is_some_and(waits) {
                needs.push(parent);
            }
        }
        let mut origin = None;
        // One that a receive has only begun may have to be begun again.
        let is_there = place.target_at.and_then(|at| target.get(at)).is_some_and(|info| !info.inconsistent);
        if !is_there
            && let Some(guid) = info.origin
            && let Some((of, short)) = sent_from.get(&guid).copied()
            && of != source_at
            && let Some(of_info) = source.get(of)
        {
            origin = Some(Origin {
                source: format!("{}@{short}", of_info.name),
                target: format!("{}@{short}", names.of(of).name),
            });
            needs.push(of);
        }
        tasks.push(Task {
            source: info.name.clone(),
            target: place.name,
            source_at,
            target_at: place.target_at,
            needs,
            rename: place.rename,
            origin,
        });
    }
    let parent = match target_root.rsplit_once('/') {
        Some((above, _)) if target.is_empty() && above.contains('/') => Some(above.to_owned()),
        _ => None,
    };
    Plan { parent, tasks }
}

impl Options {
    fn send(&self, info: &DatasetInfo, to: &str, from: Option<String>) -> SendRequest {
        SendRequest {
            to: format!("{}@{to}", info.name),
            from,
            intermediate: false,
            token: None,
            raw: self.raw || info.encrypted,
            properties: self.properties,
            large_blocks: self.large_blocks,
        }
    }

    fn receive(&self, target: &str) -> ReceiveRequest {
        ReceiveRequest {
            target: target.to_owned(),
            force: self.force,
            origin: None,
            properties: self.set.clone(),
            exclude: self.exclude.clone(),
            // What a sync sends is no package that does more: one that does is the source's own idea.
            only_adds: true,
            wants_notes: false,
        }
    }
}
