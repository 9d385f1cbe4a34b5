//! The existing datasets and snapshots.

use std::collections::{BTreeMap, BTreeSet};

use snowmelt_policy::Config;
use snowmelt_policy::state::{Bookmark, Dataset, JobState, Side, Snapshot, State, is_below, pool_of};
use snowmelt_replicate::request::{DatasetInfo, Describe};

use super::books::Books;
use super::job::{self, End, Sync};
use crate::app::App;
use crate::args::{Command, SyncArgs, parse};
use crate::commands::sync::{OneEnd, Remote, exclusion, marks};
use crate::error::{CliError, Result};
use crate::facts::PoolFacts;
use crate::request::{Reply, Request};

/// The state of the datasets, and the errors.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) state: State,
    /// Pools of sections, as far as they are there.
    pub(super) pools: Vec<PoolFacts>,
    /// For people.
    pub(super) complaints: Vec<String>,
}

/// Reads the state of everything in the policy. Ends of jobs on other machines are contacted only for jobs for which
/// `reaches` is true.
pub(super) fn survey(
    app: &mut App<'_>,
    config: &Config,
    books: &Books,
    reaches: &dyn Fn(&str) -> bool,
) -> Survey {
    let mut found = Survey::default();
    let mut jobs: BTreeMap<&str, Sync> = BTreeMap::new();
    for (name, said) in &config.jobs {
        match job::understand(app, name, said) {
            Ok(sync) => drop(jobs.insert(name, sync)),
            Err(error) => found.complaints.push(error.to_string()),
        }
    }
    let mut roots: Vec<(String, bool)> =
        config.roots().into_iter().map(|(root, recursive)| (root.to_owned(), recursive)).collect();
    let ours = |remote: &Remote| remote.host.is_none() && !remote.is_zfs;
    for sync in jobs.values() {
        let datasets = [&sync.source, &sync.target].into_iter().filter_map(End::dataset);
        for remote in datasets.filter(|remote| ours(remote)) {
            roots.push((remote.dataset.clone(), sync.args.recursive));
        }
    }
    // The datasets with rules, and those of jobs, each once.
    let here = look_here(app, &roots, &mut found);
    let is_ruled = |name: &str| {
        config.roots().iter().any(|(root, recursive)| name == *root || *recursive && is_below(name, root))
    };
    found.state.datasets = here.values().filter(|dataset| is_ruled(&dataset.name)).cloned().collect();
    for (name, sync) in &jobs {
        let page = books.page(name);
        let is_same = page.source == sync.args.source && page.target == sync.args.target;
        let page = if is_same { page } else { Default::default() };
        let mut state = JobState {
            running: books.is_locked(&lock_name(name)),
            mark: sync
                .target
                .dataset()
                .map(|target| marks(&sync.args, target).bookmark_prefix)
                .unwrap_or_default(),
            has_files: sync.has_files(),
            began: page.began,
            succeeded: page.succeeded,
            failure: page.failure,
            ..JobState::default()
        };
        // If one end is a directory, the patterns leave out files.
        let excluded = sync.source.dataset().map(|source| (source, exclusion(&sync.args, source)));
        let excluded = excluded.filter(|_| !sync.has_files());
        for (side, end) in [(&mut state.source, &sync.source), (&mut state.target, &sync.target)] {
            let Some(remote) = end.dataset() else { continue };
            *side = Side {
                root: remote.dataset.clone(),
                place: job::place_name(remote),
                recursive: sync.args.recursive,
                datasets: None,
            };
            let mut datasets: Vec<Dataset> = if ours(remote) {
                if !found.state.pools.contains_key(remote.pool()) {
                    continue;
                }
                here.values().filter(|dataset| side.names("", &dataset.name)).cloned().collect()
            } else if reaches(name) {
                match look_there(app, &sync.args, remote) {
                    Ok(datasets) => datasets,
                    Err(error) => {
                        found.complaints.push(format!("job {name}: {error}"));
                        continue;
                    }
                }
            } else {
                continue;
            };
            datasets.retain(|dataset| {
                let below = dataset.name.strip_prefix(&side.root).unwrap_or_default();
                excluded
                    .as_ref()
                    .is_none_or(|(source, excluded)| !excluded(&format!("{}{below}", source.dataset)))
            });
            side.datasets = Some(datasets);
        }
        found.state.jobs.insert((*name).to_owned(), state);
    }
    found
}

/// The lock of a job.
pub(super) fn lock_name(job: &str) -> String {
    format!("job.{job}")
}

/// Datasets of this machine, by name. A pool that could not be read through is not among those found.
fn look_here(app: &mut App<'_>, roots: &[(String, bool)], found: &mut Survey) -> BTreeMap<String, Dataset> {
    let mut here = BTreeMap::new();
    let pools: BTreeSet<&str> = roots.iter().map(|(root, _)| pool_of(root)).collect();
    for pool in pools {
        let facts = pool_facts(app, pool);
        let wanted = roots.iter().filter(|(root, _)| pool_of(root) == pool);
        match facts.and_then(|facts| Ok((facts, look_into(app, pool, &outermost(wanted))?))) {
            Ok((facts, datasets)) => {
                let percent = u8::try_from(facts.capacity()).unwrap_or(u8::MAX);
                found.state.pools.insert(pool.to_owned(), percent);
                found.pools.push(facts);
                here.extend(datasets.into_iter().map(|dataset| (dataset.name.clone(), dataset)));
            }
            Err(error) => found.complaints.push(error.to_string()),
        }
    }
    here
}

/// Of datasets, each with whether those below it are wanted too, those that give all.
fn outermost<'a>(roots: impl Iterator<Item = &'a (String, bool)>) -> Vec<(&'a str, bool)> {
    let mut wanted: BTreeMap<&str, bool> = BTreeMap::new();
    for (root, recursive) in roots {
        *wanted.entry(root).or_default() |= recursive;
    }
    let covers = |root: &str, above: &str| wanted.get(above) == Some(&true) && is_below(root, above);
    let is_covered = |root: &str| root.match_indices('/').any(|(at, _)| covers(root, &root[..at]));
    wanted.iter().filter(|(root, _)| !is_covered(root)).map(|(root, recursive)| (*root, *recursive)).collect()
}

fn pool_facts(app: &mut App<'_>, pool: &str) -> Result<PoolFacts> {
    let known = app.places.find(pool);
    let known = known.ok_or_else(|| CliError::Failed(format!("cannot open '{pool}': no such pool")))?;
    match app.query(&known, &Request::Pool)? {
        Reply::Pool(facts) => Ok(*facts),
        _ => Err(CliError::Failed("the pool's owner answered a different request".to_owned())),
    }
}

fn look_into(app: &App<'_>, pool: &str, roots: &[(&str, bool)]) -> Result<Vec<Dataset>> {
    let end = OneEnd::open(app, &plain_sync(pool)?, &Remote::here(pool))?;
    let described = roots.iter().map(|&(root, recursive)| {
        let what = Describe { root: root.to_owned(), recursive, tag: String::new() };
        let datasets = end.end().describe(&what);
        datasets.map_err(|failure| CliError::Failed(format!("cannot read '{root}': {failure}")))
    });
    let described: Result<Vec<_>> = described.collect();
    end.close();
    Ok(described?.into_iter().flatten().map(dataset).collect())
}

fn look_there(app: &App<'_>, args: &SyncArgs, remote: &Remote) -> Result<Vec<Dataset>> {
    let end = OneEnd::open(app, args, remote)?;
    let what = Describe { root: remote.dataset.clone(), recursive: args.recursive, tag: String::new() };
    let described = end.end().describe(&what);
    end.close();
    let described = described.map_err(|failure| {
        CliError::Failed(format!("cannot read '{}{}': {failure}", job::place_name(remote), remote.dataset))
    });
    Ok(described?.into_iter().map(dataset).collect())
}

/// The arguments of a sync without options.
fn plain_sync(dataset: &str) -> Result<SyncArgs> {
    match parse(&["sync".into(), dataset.into(), dataset.into()], None).map(|cli| cli.command) {
        Ok(Command::Sync(args)) => Ok(args),
        _ => Err(CliError::Failed(format!("cannot open '{dataset}'"))),
    }
}

fn dataset(info: DatasetInfo) -> Dataset {
    let snapshots = info.snapshots.into_iter().map(|snapshot| Snapshot {
        name: snapshot.name,
        guid: snapshot.guid,
        createtxg: snapshot.createtxg,
        creation: i64::try_from(snapshot.creation).unwrap_or(i64::MAX),
        holds: snapshot.holds,
        has_clones: snapshot.has_clones,
    });
    let bookmarks = info.bookmarks.into_iter().map(|bookmark| Bookmark {
        name: bookmark.name,
        guid: bookmark.guid,
        createtxg: bookmark.createtxg,
    });
    Dataset {
        name: info.name,
        snapshots: snapshots.collect(),
        bookmarks: bookmarks.collect(),
        written: info.written,
        receiving: info.receiving || info.inconsistent,
        resumable: info.resume_token.is_some(),
    }
}
