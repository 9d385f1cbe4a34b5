//! Datasets that were renamed at the source. Their copies below the target are found by the guids of their snapshots,
//! and renamed too.

use std::collections::{HashMap, HashSet};

use snowmelt_fs::mirror::RECORD_DIRECTORY;
use snowmelt_replicate::request::{DatasetInfo, Kept, Relocation};

use super::copy::{Copy, source_of};
use super::show::say;
use super::tree::below;
use super::{Unreached, attempt, told};
use crate::app::App;
use crate::args::SyncArgs;
use crate::error::CliError;

/// What became of the copies of renamed datasets, by the full names that these have now.
#[derive(Default)]
pub(super) struct Renames {
    /// Their old places, as in [`Kept`].
    pub(super) from: HashMap<String, Kept>,
    /// Why some were not renamed.
    failed: HashMap<String, CliError>,
}

impl Renames {
    /// Finds and renames copies, and reports it. In a dry run, it only finds them. `kept` are the copies below the
    /// target of the first dataset.
    pub(super) fn follow(
        app: &mut App<'_>,
        copy: &mut Copy<'_>,
        infos: &[DatasetInfo],
        kept: Vec<Kept>,
    ) -> Result<Self, Unreached> {
        let args = copy.args;
        let Some(top) = infos.first() else { return Ok(Self::default()) };
        let waits = |one: &Kept| one.below.first().is_some_and(|name| name == RECORD_DIRECTORY);
        let waiting: Vec<Kept> = kept.iter().filter(|one| waits(one)).cloned().collect();
        let matched = matches(top, infos, kept);
        for one in waiting.iter().filter(|one| !matched.iter().any(|(_, matched)| matched == *one)) {
            app.context.complain(format_args!(
                "'{}' is left from an interrupted move: it is a copy of '{}', which no longer exists",
                path_of(&args.target, &one.below),
                one.source
            ));
        }
        let source = |info: &DatasetInfo| source_of(args, &below(top, info));
        let leaving: HashSet<&[String]> = matched
            .iter()
            .filter(|(info, one)| below(top, info) != one.below)
            .map(|(_, one)| &one.below[..])
            .collect();
        // The copies below a moved one move with it, so they have to be moved to their own places too.
        let goes = |one: &Kept| (1..=one.below.len()).any(|len| leaving.contains(&one.below[..len]));
        let moves = matched.iter().filter(|(info, one)| goes(one) || one.source != source(info));
        let moves: Vec<(&DatasetInfo, &Kept)> = moves.map(|(info, one)| (*info, one)).collect();
        let mut renames = Self::default();
        let mut outcomes = Vec::new();
        if !moves.is_empty() && !args.dry_run {
            let relocations = moves.iter().map(|(info, one)| Relocation {
                from: one.below.clone(),
                to: below(top, info).into_iter().map(str::to_owned).collect(),
                source: source(info),
            });
            let relocations: Vec<Relocation> = relocations.collect();
            let tried = copy.target.relocate(&relocations);
            outcomes = tried.map_err(|failure| told(&attempt(args), failure))?;
        }
        let mut outcomes = outcomes.into_iter();
        for (info, one) in moves {
            let (was, is) = (path_of(&args.target, &one.below), path_of(&args.target, &below(top, info)));
            match outcomes.next() {
                Some(Err(failure)) => match told(&attempt(args), failure) {
                    // Something in the way is overwritten, as it would be without the rename.
                    Unreached::Failed(_) if args.force => {}
                    Unreached::Failed(error) => drop(renames.failed.insert(info.name.clone(), error)),
                    // Others can be moved all the same.
                    Unreached::Busy(why) => {
                        renames.failed.insert(info.name.clone(), CliError::Failed(why));
                    }
                    Unreached::Lost(why) => return Err(Unreached::Lost(why)),
                },
                _ if was == is && !args.dry_run => {}
                _ => {
                    if (args.verbose || args.dry_run) && !args.json && was != is {
                        let verb = if args.dry_run { "would rename" } else { "renamed" };
                        say(app, &format!("{verb} {was} to {is}"))?;
                    }
                    renames.from.insert(info.name.clone(), one.clone());
                }
            }
        }
        Ok(renames)
    }

    /// Whether the copy of a dataset is where it should be.
    pub(super) fn check(&mut self, name: &str) -> Result<(), Unreached> {
        self.failed.remove(name).map_or(Ok(()), |why| Err(Unreached::Failed(why)))
    }

    /// Where the copy of a dataset was, if not at `target`.
    pub(super) fn was(&self, args: &SyncArgs, info: &DatasetInfo, target: &str) -> Option<String> {
        let was = path_of(&args.target, &self.from.get(&info.name)?.below);
        (was != target).then_some(was)
    }
}

/// Where a copy is.
pub(super) fn path_of(target: &str, below: &[impl AsRef<str>]) -> String {
    let top = target.trim_end_matches('/').to_owned();
    below.iter().fold(top, |path, name| path + "/" + name.as_ref())
}

/// The copy of each dataset below the first one: the one at its own place, if it is a copy of this dataset, otherwise
/// the first copy that is found.
fn matches<'a>(top: &DatasetInfo, infos: &'a [DatasetInfo], kept: Vec<Kept>) -> Vec<(&'a DatasetInfo, Kept)> {
    let below_top = infos.iter().skip(1);
    let snapshots = below_top.flat_map(|info| info.snapshots.iter().map(move |one| (one.guid, info)));
    let by_guid: HashMap<u64, &DatasetInfo> = snapshots.collect();
    let mut found: HashMap<&str, (&DatasetInfo, Kept)> = HashMap::new();
    for one in kept {
        let guids = [&one.held, &one.unfinished].into_iter().flatten().map(|held| held.guid);
        let Some(info) =
            guids.filter_map(|guid| by_guid.get(&guid).copied()).find(|info| info.kind == one.kind)
        else {
            continue;
        };
        let is_its_place = below(top, info) == one.below;
        if is_its_place || !found.contains_key(&info.name[..]) {
            found.insert(&info.name, (info, one));
        }
    }
    infos.iter().filter_map(|info| found.remove(&info.name[..])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use snowmelt_replicate::request::{Holding, Kind, SnapshotInfo};

    fn dataset(name: &str, guids: &[u64]) -> DatasetInfo {
        let snapshot = |guid: &u64| SnapshotInfo {
            name: guid.to_string(),
            guid: *guid,
            createtxg: *guid,
            creation: 0,
            held: false,
            holds: 0,
            has_clones: false,
        };
        DatasetInfo {
            name: name.to_owned(),
            kind: Kind::Filesystem,
            encrypted: false,
            origin: None,
            snapshots: guids.iter().map(snapshot).collect(),
            bookmarks: Vec::new(),
            written: 0,
            resume_token: None,
            inconsistent: false,
            receiving: false,
        }
    }

    fn kept(below: &str, held: Option<u64>, unfinished: Option<u64>) -> Kept {
        let holding = |guid: u64| Holding { guid, name: guid.to_string() };
        Kept {
            below: below.split('/').map(str::to_owned).collect(),
            kind: Kind::Filesystem,
            source: below.to_owned(),
            held: held.map(holding),
            unfinished: unfinished.map(holding),
        }
    }

    #[test]
    fn copies_are_found_by_what_they_hold() {
        let infos = [dataset("tank", &[1]), dataset("tank/a", &[2, 3]), dataset("tank/b", &[4])];
        let found = |kept: Vec<Kept>| {
            let found = matches(&infos[0], &infos, kept).into_iter();
            let mut found: Vec<_> =
                found.map(|(info, one)| (info.name.clone(), one.below.join("/"))).collect();
            found.sort();
            found.into_iter().map(|(name, place)| format!("{place}>{name}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found(vec![kept("x", Some(2), None), kept("b", Some(4), None)]), "x>tank/a b>tank/b");
        // Swapped; in either state of a change.
        assert_eq!(
            found(vec![kept("a", Some(4), Some(9)), kept("b", Some(9), Some(3))]),
            "b>tank/a a>tank/b"
        );
        // A copy at its own place counts more than another one, whatever comes first.
        for order in [["a", "x"], ["x", "a"]] {
            assert_eq!(found(order.map(|place| kept(place, Some(3), None)).to_vec()), "a>tank/a");
        }
        // That of the first dataset, of none, or of another kind is not moved.
        let image = Kept { kind: Kind::Volume, ..kept("x", Some(2), None) };
        assert_eq!(found(vec![kept("x", Some(1), None), kept("y", Some(7), None), image]), "");
    }
}
