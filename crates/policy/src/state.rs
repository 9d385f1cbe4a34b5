//! What is there: datasets with their snapshots, how full pools are, and what became of jobs.

use std::collections::BTreeMap;

/// Everything that a plan depends on, besides the configuration and the time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Datasets of this machine.
    pub datasets: Vec<Dataset>,
    /// Percent in use, by pool.
    pub pools: BTreeMap<String, u8>,
    /// Replication jobs, by name.
    pub jobs: BTreeMap<String, JobState>,
}

/// A dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dataset {
    /// Its full name.
    pub name: String,
    /// Its snapshots, in the order in which they came to this pool (`createtxg`).
    pub snapshots: Vec<Snapshot>,
    /// Its bookmarks.
    pub bookmarks: Vec<Bookmark>,
    /// Bytes written since its newest snapshot.
    pub written: u64,
    /// It is being received, or was received in part: it cannot have snapshots of its own.
    pub receiving: bool,
    /// A stream that did not end has left something to go on with.
    pub resumable: bool,
}

/// A snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What stands after the `@`.
    pub name: String,
    /// The same in every copy of it.
    pub guid: u64,
    /// Where it is in its pool's time.
    pub createtxg: u64,
    /// When it was taken: seconds since 1970.
    pub creation: i64,
    /// Holds on it.
    pub holds: u64,
    /// Datasets were cloned from it.
    pub has_clones: bool,
}

/// A bookmark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bookmark {
    /// What stands after the `#`.
    pub name: String,
    /// The guid of the snapshot it is of.
    pub guid: u64,
    /// That snapshot's place in its pool's time.
    pub createtxg: u64,
}

/// What is known of a replication job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobState {
    /// What it takes from.
    pub source: Side,
    /// Where it brings it.
    pub target: Side,
    /// One of its ends is a server of rsync or a directory elsewhere, which has no snapshots: no base is needed, and nothing stands in the way of the next run.
    pub has_files: bool,
    /// It is being run.
    pub running: bool,
    /// What the bookmarks begin with that mark, at the source, what is at the target.
    pub mark: String,
    /// When it last began: seconds since 1970.
    pub began: Option<i64>,
    /// When it last began among the times it succeeded.
    pub succeeded: Option<i64>,
    /// Why it failed last time, if it did.
    pub failure: Option<String>,
}

/// One end of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// The dataset that is named in the job; names of the other end's datasets follow from it.
    pub root: String,
    /// What stands before names to tell them from those of this machine (`host:`, `zfs:`); nothing for this machine.
    pub place: String,
    /// Datasets below the root belong to it too.
    pub recursive: bool,
    /// The datasets that the job is about; `None` if they were not looked at, or could not be.
    pub datasets: Option<Vec<Dataset>>,
}

impl State {
    /// The dataset of this machine of this name.
    pub fn dataset(&self, name: &str) -> Option<&Dataset> {
        self.datasets.iter().find(|dataset| dataset.name == name)
    }
}

impl Side {
    /// Its datasets, if they are known. An end whose root is not there may be on a disk that is not there: then nothing is
    /// known of it.
    pub fn seen(&self) -> Option<&[Dataset]> {
        let datasets = self.datasets.as_deref()?;
        datasets.iter().any(|dataset| dataset.name == self.root).then_some(datasets)
    }

    /// Whether a dataset of a place belongs to it by its name, with whatever user that place is reached.
    pub fn names(&self, place: &str, dataset: &str) -> bool {
        let is_here = without_user(&self.place) == without_user(place);
        is_here && (dataset == self.root || self.recursive && is_below(dataset, &self.root))
    }

    /// What a dataset of this side is called at the other one; nothing if it is not of this side.
    pub fn counterpart(&self, other: &Self, dataset: &str) -> Option<String> {
        let below = dataset.strip_prefix(self.root.as_str())?;
        (below.is_empty() || below.starts_with('/')).then(|| format!("{}{below}", other.root))
    }
}

/// A place, whoever goes there.
fn without_user(place: &str) -> &str {
    place.rsplit_once('@').map_or(place, |(_, place)| place)
}

/// The pool that a dataset is in.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or_default()
}

/// Whether `name` is below `root`, and not `root` itself.
pub fn is_below(name: &str, root: &str) -> bool {
    name.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}
