//! The input of a plan: datasets with their snapshots, how full the pools are, and the state of jobs.

use std::collections::BTreeMap;

/// Everything that a plan depends on, except the configuration and the time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The datasets of this machine.
    pub datasets: Vec<Dataset>,
    /// Percentage in use of each pool.
    pub pools: BTreeMap<String, u8>,
    /// Replication jobs, by name.
    pub jobs: BTreeMap<String, JobState>,
}

/// A dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dataset {
    /// Its full name.
    pub name: String,
    /// Its snapshots, in the order in which they were created in this pool (`createtxg`).
    pub snapshots: Vec<Snapshot>,
    /// Its bookmarks.
    pub bookmarks: Vec<Bookmark>,
    /// Bytes written since its newest snapshot.
    pub written: u64,
    /// Whether it is being received, or was partly received. Then it cannot have its own snapshots.
    pub receiving: bool,
    /// Whether an incomplete stream has left a resume token.
    pub resumable: bool,
}

/// A snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The name after the `@`.
    pub name: String,
    /// The guid, which is the same in all copies.
    pub guid: u64,
    /// The txg of its pool in which it was created.
    pub createtxg: u64,
    /// Time of creation, in seconds since 1970.
    pub creation: i64,
    /// Number of holds.
    pub holds: u64,
    /// Whether it has clones.
    pub has_clones: bool,
}

/// A bookmark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bookmark {
    /// The name after the `#`.
    pub name: String,
    /// The guid of its snapshot.
    pub guid: u64,
    /// The `createtxg` of its snapshot.
    pub createtxg: u64,
}

/// The state of a replication job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobState {
    /// The source.
    pub source: Side,
    /// The target.
    pub target: Side,
    /// Whether one end is an rsync server or a remote directory, which has no snapshots. Then no base is needed, and
    /// nothing blocks the next run.
    pub has_files: bool,
    /// Whether the job is running.
    pub running: bool,
    /// Prefix of the source's bookmarks that record what the target has.
    pub mark: String,
    /// When the last run began, in seconds since 1970.
    pub began: Option<i64>,
    /// When the last successful run began, in seconds since 1970.
    pub succeeded: Option<i64>,
    /// The reason, if the last run failed.
    pub failure: Option<String>,
}

/// One end of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// The dataset named in the job. The names of the other end's datasets are derived from it.
    pub root: String,
    /// Prefix of names on another machine or system (`host:`, `zfs:`). Empty for this machine.
    pub place: String,
    /// Whether the job includes the datasets below the root.
    pub recursive: bool,
    /// The datasets of the job. `None` if they were not or could not be listed.
    pub datasets: Option<Vec<Dataset>>,
}

impl State {
    /// The dataset of this machine with this name.
    pub fn dataset(&self, name: &str) -> Option<&Dataset> {
        self.datasets.iter().find(|dataset| dataset.name == name)
    }
}

impl Side {
    /// Its datasets, if they are known. If the root does not exist, its disk may be missing, so the datasets count as
    /// unknown.
    pub fn seen(&self) -> Option<&[Dataset]> {
        let datasets = self.datasets.as_deref()?;
        datasets.iter().any(|dataset| dataset.name == self.root).then_some(datasets)
    }

    /// Whether a dataset belongs to this end by its name. The user in a place is ignored.
    pub fn names(&self, place: &str, dataset: &str) -> bool {
        let is_here = without_user(&self.place) == without_user(place);
        is_here && (dataset == self.root || self.recursive && is_below(dataset, &self.root))
    }

    /// The name at the other end of a dataset of this end. `None` if the dataset is not below this end's root.
    pub fn counterpart(&self, other: &Self, dataset: &str) -> Option<String> {
        let below = dataset.strip_prefix(self.root.as_str())?;
        (below.is_empty() || below.starts_with('/')).then(|| format!("{}{below}", other.root))
    }
}

/// A place without its user.
fn without_user(place: &str) -> &str {
    place.rsplit_once('@').map_or(place, |(_, place)| place)
}

/// The pool of a dataset.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or_default()
}

/// Whether `name` is below `root`, and not `root` itself.
pub fn is_below(name: &str, root: &str) -> bool {
    name.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}
