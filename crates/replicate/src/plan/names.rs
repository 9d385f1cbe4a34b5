//! Which dataset of the target is whose copy.
//!
//! A copy is identified by the guids of its snapshots, at any place. Its place follows from the names at the source:
//! a copy at another place is renamed.

use std::collections::{HashMap, HashSet};

use crate::request::DatasetInfo;

/// Where a dataset of the source is, and belongs, at the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The name it is to have.
    pub(super) name: String,
    /// Where it is in the description of the target.
    pub(super) target_at: Option<usize>,
    /// The name it has, once the datasets above it have been renamed, if that is another.
    pub(super) rename: Option<String>,
}

pub(super) struct Names(Vec<Place>);

impl Names {
    pub(super) fn new(
        source: &[DatasetInfo],
        source_root: &str,
        target: &[DatasetInfo],
        target_root: &str,
    ) -> Self {
        let wanted: Vec<String> = source
            .iter()
            .map(|info| format!("{target_root}{}", info.name.strip_prefix(source_root).unwrap_or_default()))
            .collect();
        let is_wanted: HashSet<&str> = wanted.iter().map(String::as_str).collect();
        let at: HashMap<&str, usize> =
            target.iter().enumerate().map(|(at, info)| (info.name.as_str(), at)).collect();
        let mut by_guid: HashMap<u64, usize> = HashMap::new();
        for (at, info) in target.iter().enumerate() {
            by_guid.extend(info.snapshots.iter().map(|snapshot| (snapshot.guid, at)));
        }
        // Renames so far: whatever is below the first name is below the second then.
        let mut renamed: Vec<(String, String)> = Vec::new();
        let mut places = Vec::with_capacity(source.len());
        for (info, name) in source.iter().zip(&wanted) {
            if let Some(at) = at.get(name.as_str()) {
                places.push(Place { name: name.clone(), target_at: Some(*at), rename: None });
                continue;
            }
            // The newest snapshot that is in a dataset which the source has no name for.
            let copy = info.snapshots.iter().rev().find_map(|snapshot| {
                let at = *by_guid.get(&snapshot.guid)?;
                let found = target.get(at)?;
                (!is_wanted.contains(found.name.as_str()) && found.name != target_root).then_some((at, found))
            });
            let Some((at, copy)) = copy else {
                places.push(Place { name: name.clone(), target_at: None, rename: None });
                continue;
            };
            let now = follow(&renamed, &copy.name);
            let rename = (now != *name).then(|| now.clone());
            if rename.is_some() {
                renamed.push((now, name.clone()));
            }
            places.push(Place { name: name.clone(), target_at: Some(at), rename });
        }
        Self(places)
    }

    pub(super) fn of(&self, source_at: usize) -> Place {
        self.0.get(source_at).cloned().unwrap_or(Place { name: String::new(), target_at: None, rename: None })
    }
}

/// The name of a dataset after these renames.
fn follow(renamed: &[(String, String)], name: &str) -> String {
    renamed.iter().fold(name.to_owned(), |name, (from, to)| match name.strip_prefix(from.as_str()) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
        _ => name,
    })
}
