//! Finding changes that others have made in the directory since the last sync.
//!
//! Only files that are about to be changed are checked. A file is unchanged if its type, size and mtime are those of
//! the snapshot and its ctime is not after the record was written.

use super::plan::{Plan, Planner, entries, join};
use super::tree::{self, Path};
use super::{Between, Mirror, MirrorError};
use crate::alike::{ctime, is_like};
use crate::error::FsError;
use crate::restore::Privileges;
use rustix::fs::Stat;
use snowmelt_zpl::{Attributes, FileKind, Filesystem, Objects};
use std::collections::HashSet;
use std::os::fd::AsFd;

/// Maximum number of conflicts that are listed.
const TOLD_MAX: usize = 100;

/// A file that others have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Path below the target.
    pub path: Vec<u8>,
    /// What was changed.
    pub what: &'static str,
}

/// All conflicts.
#[derive(Debug, Clone, Default)]
pub struct Conflicts {
    /// The first conflicts.
    pub some: Vec<Conflict>,
    /// Number of conflicts.
    pub count: u64,
}

impl Conflicts {
    pub(super) fn add(&mut self, path: Vec<u8>, what: &'static str) {
        self.count += 1;
        if self.some.len() < TOLD_MAX {
            self.some.push(Conflict { path, what });
        }
    }
}

impl From<Conflicts> for MirrorError {
    fn from(conflicts: Conflicts) -> Self {
        Self::Conflicts { some: conflicts.some, count: conflicts.count }
    }
}

/// The conflicts with a plan.
pub(super) fn conflicts<A: Objects, B: Objects>(
    mirror: &Mirror,
    between: &Between<'_, A, B>,
    plan: &Plan,
    privileges: Privileges,
) -> Result<Conflicts, MirrorError> {
    let old = between.old;
    let mut found = Conflicts::default();
    let mut finder = Planner::finder(between);
    let local = |step| MirrorError::local(&mirror.path, step);
    let look =
        |path: &[Vec<u8>], name: &[u8]| mirror.tree.stat(path, name).map_err(local("look at what is there"));
    let mut gone: HashSet<Path> = HashSet::new();
    for listing in &plan.removed {
        for entry in &listing.entries {
            gone.insert(join(&listing.path, &entry.name));
            let attributes = match plan.known.get(&entry.object).and_then(|known| known.old.clone()) {
                Some(attributes) => attributes,
                None => old.attributes(entry.object).map_err(FsError::zpl(&entry.name))?,
            };
            let told = || tree::shown(&listing.path, &entry.name);
            match look(&listing.path, &entry.name)? {
                // A descendant dataset was mounted here before it was renamed.
                None if !plan.moved.contains(&entry.object) && is_empty(old, entry.object, &attributes)? => {}
                // It was left out when the old snapshot was restored.
                None if privileges.leave_out(&attributes) => {}
                None => found.add(told(), "it is gone"),
                Some(stat) if is_changed(mirror, &stat, &attributes) => found.add(told(), "it was changed"),
                Some(_) => {}
            }
            let stays = plan.known.get(&entry.object).is_none_or(super::plan::Known::stays);
            if attributes.kind() == FileKind::Directory && !stays {
                let known = entries(old, entry.object)?;
                let path = join(&listing.path, &entry.name);
                let Ok(directory) = mirror.tree.directory(&path) else { continue };
                for name in crate::beneath::names(directory.as_fd()).map_err(local("read a directory"))? {
                    if !known.contains_key(&name) {
                        found.add(
                            tree::shown(&path, &name),
                            "it is new, in a directory that is to be removed",
                        );
                    }
                }
            }
        }
    }
    for listing in &plan.added {
        let directory = plan.known.get(&listing.directory);
        // The directory as it is now. A directory that does not exist yet contains no obstacles.
        let Some(before) = directory.filter(|known| known.stays()).and_then(|known| known.old.as_ref())
        else {
            continue;
        };
        let Some(path) = finder.old_path(before)? else { continue };
        for entry in &listing.entries {
            if !gone.contains(&join(&path, &entry.name)) && look(&path, &entry.name)?.is_some() {
                found.add(tree::shown(&path, &entry.name), "it is new, and in the way");
            }
        }
    }
    for (object, _) in &plan.changed {
        let Some(before) = plan.known.get(object).and_then(|known| known.old.as_ref()) else { continue };
        let Some(path) = finder.old_path(before)?.filter(|path| !gone.contains(path)) else { continue };
        let Some((name, directory)) = path.split_last() else { continue };
        match look(directory, name)? {
            None if privileges.leave_out(before) => {}
            None => found.add(tree::shown(directory, name), "it is gone"),
            Some(stat) if is_changed(mirror, &stat, before) => {
                found.add(tree::shown(directory, name), "it was changed");
            }
            Some(_) => {}
        }
    }
    Ok(found)
}

/// Whether it is an empty directory, whose loss does not matter.
fn is_empty<A: Objects>(
    old: &Filesystem<A>,
    object: u64,
    attributes: &Attributes,
) -> Result<bool, MirrorError> {
    Ok(attributes.kind() == FileKind::Directory && entries(old, object)?.is_empty())
}

fn is_changed(mirror: &Mirror, stat: &Stat, before: &Attributes) -> bool {
    let is_later = mirror.stamp.is_some_and(|stamp| ctime(stat) > stamp);
    !is_like(stat, before) || is_later && before.kind() != FileKind::Directory
}
