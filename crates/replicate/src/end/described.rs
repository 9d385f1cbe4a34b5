//! Validation of a description from another machine: names are valid, everything in it belongs to the requested
//! dataset, and it is not larger than the memory that is reserved for it.

use std::collections::HashSet;

use snowmelt_dataset::name::check_component;
use snowmelt_dataset::{DatasetError, Name, Subtree};

use crate::error::Failure;
use crate::request::{DatasetInfo, Describe};

/// Datasets in a description.
const DATASETS_MAX: usize = 100_000;
/// Snapshots and bookmarks in a description, all together.
const SNAPSHOTS_MAX: usize = 1_000_000;
/// Bytes of a token for going on.
const TOKEN_MAX: usize = 64 * 1024;

/// The datasets of a description, as they come.
pub(super) struct Collected<'a> {
    what: &'a Describe,
    subtree: Subtree,
    datasets: Vec<DatasetInfo>,
    names: HashSet<String>,
    snapshots: usize,
}

impl<'a> Collected<'a> {
    /// The requested dataset.
    pub(super) fn new(what: &'a Describe) -> Result<Self, Failure> {
        let subtree = Subtree::new(&what.root).map_err(DatasetError::from)?;
        Ok(Self { what, subtree, datasets: Vec::new(), names: HashSet::new(), snapshots: 0 })
    }

    /// The next dataset.
    pub(super) fn add(&mut self, info: DatasetInfo) -> Result<(), Failure> {
        self.snapshots += info.snapshots.len() + info.bookmarks.len();
        if self.snapshots > SNAPSHOTS_MAX {
            return Err(self.too_much(&format!("{SNAPSHOTS_MAX} snapshots and bookmarks")));
        }
        if self.datasets.len() >= DATASETS_MAX {
            return Err(self.too_much(&format!("{DATASETS_MAX} datasets")));
        }
        self.check(&info).map_err(|why| {
            Failure::other(format!(
                "the other side's description of '{}' is not valid: {why}",
                self.what.root
            ))
            .made_safe()
        })?;
        self.names.insert(info.name.clone());
        self.datasets.push(info);
        Ok(())
    }

    fn check(&self, info: &DatasetInfo) -> Result<(), String> {
        let name = &info.name;
        Name::parse_dataset(name).map_err(|error| error.to_string())?;
        let is_root = name == self.subtree.root();
        // Each dataset comes after the one that it is in.
        let above = name.rsplit_once('/').map_or("", |(above, _)| above);
        let fits =
            is_root || (self.what.recursive && self.subtree.contains(name) && self.names.contains(above));
        if !fits || self.names.contains(name) {
            return Err(format!("'{name}' is out of place"));
        }
        let shorts = info.snapshots.iter().map(|snapshot| &snapshot.name);
        for short in shorts.chain(info.bookmarks.iter().map(|bookmark| &bookmark.name)) {
            check_component(short, short).map_err(|error| error.to_string())?;
            if name.len() + 1 + short.len() > snowmelt_dataset::name::NAME_MAX {
                return Err(format!("'{name}@{short}': name is too long"));
            }
        }
        match &info.resume_token {
            Some(token) if token.len() > TOKEN_MAX => {
                Err(format!("'{name}' has a token of {} bytes", token.len()))
            }
            _ => Ok(()),
        }
    }

    /// There are more than `limit`.
    pub(super) fn too_much(&self, limit: &str) -> Failure {
        Failure::other(format!(
            "the other side has more than {limit} below '{}', which is too many for one sync: sync parts of it",
            self.what.root
        ))
    }

    pub(super) fn into_datasets(self) -> Vec<DatasetInfo> {
        self.datasets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{BookmarkInfo, Kind, SnapshotInfo};

    fn info(name: &str, snapshots: &[&str], bookmarks: &[&str]) -> DatasetInfo {
        let snapshot = |name: &&str| SnapshotInfo {
            name: (*name).to_owned(),
            guid: 1,
            createtxg: 1,
            creation: 1,
            held: false,
            holds: 0,
            has_clones: false,
        };
        let bookmark = |name: &&str| BookmarkInfo { name: (*name).to_owned(), guid: 1, createtxg: 1 };
        DatasetInfo {
            name: name.to_owned(),
            kind: Kind::Filesystem,
            encrypted: false,
            origin: None,
            snapshots: snapshots.iter().map(snapshot).collect(),
            bookmarks: bookmarks.iter().map(bookmark).collect(),
            written: 0,
            resume_token: None,
            inconsistent: false,
            receiving: false,
        }
    }

    fn taken(recursive: bool, infos: &[DatasetInfo]) -> Result<usize, Failure> {
        let what = Describe { root: "tank/a".to_owned(), recursive, tag: String::new() };
        let mut found = Collected::new(&what)?;
        infos.iter().try_for_each(|info| found.add(info.clone()))?;
        Ok(found.into_datasets().len())
    }

    #[test]
    fn what_is_no_name_or_was_not_asked_for_is_refused() {
        let root = info("tank/a", &["s", "snowmelt-sync_2026-01-02_03:04:05.678"], &["m"]);
        let tree = [root.clone(), info("tank/a/b", &[], &[]), info("tank/a/b/c", &[], &[])];
        assert_eq!(taken(true, &tree), Ok(3));
        for name in
            ["tank", "tank/ab", "tank/a/../b", "tank/a/x/y", "other", "tank/a", "tank/a/b\n", "-F", ""]
        {
            assert!(taken(true, &[root.clone(), info(name, &[], &[])]).is_err(), "{name}");
        }
        assert!(taken(false, &tree[..2]).is_err(), "nothing below was asked for");
        for short in ["a/../b\n", "a@b", "", "\u{1b}[31m", &*"n".repeat(300)] {
            assert!(taken(true, &[info("tank/a", &[short], &[])]).is_err(), "{short}");
            assert!(taken(true, &[info("tank/a", &[], &[short])]).is_err(), "{short}");
        }
        let told = taken(true, &[info("tank/a", &["\u{1b}]0;PWNED\u{7}"], &[])]).unwrap_err();
        assert!(!told.message.contains(char::is_control), "{told:?}");
    }

    #[test]
    fn more_than_there_is_memory_for_is_refused() {
        let names: Vec<String> = (0..2000).map(|at| at.to_string()).collect();
        let shorts: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut tree = vec![info("tank/a", &[], &[])];
        tree.extend((0..501).map(|at| info(&format!("tank/a/{at}"), &shorts, &[])));
        assert_eq!(taken(true, &tree[..500]), Ok(500));
        let told = taken(true, &tree).unwrap_err().message;
        assert!(told.contains("more than 1000000 snapshots"), "{told}");
    }
}
