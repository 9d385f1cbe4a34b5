//! Bases: the snapshots that the next incremental stream of a job needs at both ends.
//!
//! If they are not known, this is reported instead of a guess.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::config::Config;
use crate::retention::Facts;
use crate::state::{Dataset, JobState, Side, Snapshot, State};

/// All jobs, indexed for queries about many datasets.
pub(crate) struct Copies<'a> {
    jobs: BTreeMap<&'a str, Ends<'a>>,
    /// A job whose ends are not known.
    not_understood: Option<&'a str>,
}

/// Why it is not known what copies have of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unknown<'a> {
    /// The ends of this job are not known.
    NotUnderstood(&'a str),
    /// The other end of this job was not listed, and there is no mark.
    NotSeen(&'a str),
}

/// The ends of a job.
pub(crate) struct Ends<'a> {
    state: &'a JobState,
    source: Option<Seen<'a>>,
    target: Option<Seen<'a>>,
}

/// The datasets of an end that was listed.
struct Seen<'a> {
    names: HashSet<&'a str>,
    /// Guids of snapshots, each with the index of its dataset, sorted.
    snapshots: Vec<(u64, usize)>,
    /// Guids of all bookmarks.
    bookmarks: HashSet<u64>,
}

/// The target's knowledge of one dataset of the source.
pub(crate) struct Sent {
    /// Guids of snapshots that the target has or may have, and that may be the base of the next stream.
    bases: Vec<u64>,
    /// The `createtxg` of the newest snapshot that the target has, if known.
    pub(crate) newest: Option<u64>,
}

impl<'a> Copies<'a> {
    pub(crate) fn new(config: &'a Config, state: &'a State) -> Self {
        let names = config.jobs.keys().map(String::as_str);
        let with_bases = state.jobs.iter().filter(|(_, job)| !job.has_files);
        Self {
            jobs: with_bases.map(|(name, job)| (name.as_str(), Ends::new(job))).collect(),
            not_understood: names.into_iter().find(|name| !state.jobs.contains_key(*name)),
        }
    }

    /// What copies have of a dataset. `running` are jobs that are about to run.
    ///
    /// # Errors
    /// If this is not known now, the reason.
    pub(crate) fn facts(
        &self,
        place: &str,
        dataset: &Dataset,
        running: &HashSet<&str>,
    ) -> Result<Facts, Unknown<'a>> {
        if let Some(job) = self.not_understood {
            return Err(Unknown::NotUnderstood(job));
        }
        let mut facts = Facts::default();
        for (name, ends) in &self.jobs {
            let job = ends.state;
            if Seen::has(ends.source.as_ref(), &job.source, place, &dataset.name) {
                let sent = ends.sent(dataset).ok_or(Unknown::NotSeen(name))?;
                facts.bases.extend(&sent.bases);
                // A mark is made before its snapshot is sent. After a failure it does not prove that the snapshot
                // arrived.
                let is_certain = ends.target.is_some() || job.succeeded.is_some() && job.failure.is_none();
                let newest = sent.newest.filter(|_| is_certain);
                facts.replicated = match facts.has_targets {
                    true => facts.replicated.min(newest),
                    false => newest,
                };
                facts.has_targets = true;
                facts.is_running |= job.running || running.contains(name) || job.target.is_receiving();
            }
            if Seen::has(ends.target.as_ref(), &job.target, place, &dataset.name) {
                facts.bases.extend(ends.received(dataset).ok_or(Unknown::NotSeen(name))?);
            }
        }
        Ok(facts)
    }

    /// The job that replicates a dataset of another end to this dataset, if there is one.
    pub(crate) fn bringing(&self, dataset: &str) -> Option<&'a str> {
        let brings = |ends: &Ends<'_>| {
            let (source, target) = (&ends.state.source, &ends.state.target);
            let original = target.counterpart(source, dataset);
            let is_there = |seen: &Seen<'_>| original.is_some_and(|name| seen.names.contains(name.as_str()));
            target.names("", dataset) && ends.source.as_ref().is_none_or(is_there)
        };
        self.jobs.iter().find(|(_, ends)| brings(ends)).map(|(name, _)| *name)
    }
}

impl<'a> Ends<'a> {
    pub(crate) fn new(state: &'a JobState) -> Self {
        let seen = |side: &'a Side| side.seen().map(Seen::new);
        Self { state, source: seen(&state.source), target: seen(&state.target) }
    }

    /// What the target has of a dataset of the source, or `None` if that is not known.
    pub(crate) fn sent(&self, dataset: &Dataset) -> Option<Sent> {
        let mark = &self.state.mark;
        let marks = dataset.bookmarks.iter();
        let marks = marks.filter(|bookmark| !mark.is_empty() && bookmark.name.starts_with(mark.as_str()));
        let marked: Vec<(u64, u64)> = marks.map(|mark| (mark.guid, mark.createtxg)).collect();
        let seen = match &self.target {
            Some(target) => target.newest_common(dataset),
            None if marked.is_empty() => return None,
            None => Vec::new(),
        };
        let newest = match &self.target {
            Some(_) => seen.iter().map(|snapshot| snapshot.createtxg).max(),
            None => marked.iter().map(|(_, txg)| *txg).min(),
        };
        // The target may be rolled back to an older snapshot, and a stream that was cut off may have arrived.
        let bases = seen.iter().map(|snapshot| snapshot.guid).chain(marked.iter().map(|(guid, _)| *guid));
        Some(Sent { bases: bases.collect(), newest })
    }

    /// Guids of the snapshots of a target's dataset that may be the base of the next stream. `None` if they are not
    /// known.
    fn received(&self, dataset: &Dataset) -> Option<Vec<u64>> {
        let source = self.source.as_ref()?;
        let newest_first = dataset.snapshots.iter().rev();
        // A bookmark of the source may be newer than the newest snapshot that both ends have.
        let marked = newest_first.map(|snapshot| snapshot.guid).find(|guid| source.bookmarks.contains(guid));
        let common = source.newest_common(dataset).into_iter().map(|snapshot| snapshot.guid);
        Some(common.chain(marked).collect())
    }
}

impl<'a> Seen<'a> {
    fn new(datasets: &'a [Dataset]) -> Self {
        let of_one = |(at, dataset): (usize, &'a Dataset)| {
            dataset.snapshots.iter().map(move |snapshot| (snapshot.guid, at))
        };
        let mut snapshots: Vec<(u64, usize)> = datasets.iter().enumerate().flat_map(of_one).collect();
        snapshots.sort_unstable();
        let bookmarks = datasets.iter().flat_map(|dataset| &dataset.bookmarks);
        Self {
            names: datasets.iter().map(|dataset| dataset.name.as_str()).collect(),
            snapshots,
            bookmarks: bookmarks.map(|bookmark| bookmark.guid).collect(),
        }
    }

    /// Whether a dataset belongs to an end. If the end was not listed, only the name decides.
    fn has(seen: Option<&Self>, side: &Side, place: &str, dataset: &str) -> bool {
        side.names(place, dataset) && seen.is_none_or(|seen| seen.names.contains(dataset))
    }

    /// For each dataset of this end, the newest snapshot that it has in common with `dataset`. Datasets are matched by
    /// their snapshots, because either may have been renamed.
    fn newest_common<'d>(&self, dataset: &'d Dataset) -> Vec<&'d Snapshot> {
        let mut newest: HashMap<usize, &Snapshot> = HashMap::new();
        for snapshot in &dataset.snapshots {
            let begin = self.snapshots.partition_point(|(guid, _)| *guid < snapshot.guid);
            let same = self.snapshots.iter().skip(begin).take_while(|(guid, _)| *guid == snapshot.guid);
            for (_, at) in same {
                let known = newest.entry(*at).or_insert(snapshot);
                if known.createtxg < snapshot.createtxg {
                    *known = snapshot;
                }
            }
        }
        newest.into_values().collect()
    }
}

impl Side {
    /// Whether a stream is known to be partly received.
    fn is_receiving(&self) -> bool {
        self.datasets.iter().flatten().any(|dataset| dataset.receiving || dataset.resumable)
    }
}
