//! Comparing the whole directory with a snapshot. Used for the first sync, with `force`, and if the held snapshot is
//! gone.

use super::local::Conflicts;
use super::tree;
use super::{Mirror, MirrorError, MirrorOptions};
use crate::alike::{ctime, is_like};
use crate::beneath::names;
use crate::restore::{Failure, Observer, Refill, Summary, refill};
use crate::walk::{Event, Node, Walk};
use snowmelt_zpl::{FileKind, Filesystem, Objects};
use std::collections::HashSet;
use std::os::fd::AsFd;

/// Prefix of the temporary files that an interrupted restore leaves.
const TEMPORARY: &[u8] = b".snowmelt-restore-";

pub(super) fn fill<B: Objects>(
    mirror: &Mirror,
    new: &Filesystem<B>,
    distrusted: Option<i128>,
    options: &MirrorOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, MirrorError> {
    let MirrorOptions { owners, privileges, cancelled, .. } = *options;
    let nested = mirror.nested.clone();
    let is_others = move |name: &[u8]| nested.reserves(name);
    let how = Refill { owners, privileges, distrusted, is_others: &is_others, cancelled };
    let filled = refill(new, mirror.tree.top(), how, observer);
    match filled {
        Ok((summary, true)) => Ok(summary),
        Ok((_, false)) => Err(MirrorError::Interrupted),
        Err(Failure::Source(error)) => Err(error.into()),
        Err(Failure::Local { step, source, .. }) => Err(MirrorError::local(&mirror.path, step)(source)),
    }
}

/// Files of others, or changes by others since the last sync, that would be lost.
pub(super) fn conflicts<B: Objects>(mirror: &Mirror, new: &Filesystem<B>) -> Result<Conflicts, MirrorError> {
    let mut found = Conflicts::default();
    let mut levels: Vec<(Node, HashSet<Vec<u8>>)> = Vec::new();
    // The time of the last sync is known only if that sync was finished.
    let stamp = mirror.stamp.filter(|_| mirror.record.progress.is_none());
    let local = |step| MirrorError::local(&mirror.path, step);
    for event in Walk::new(new, new.root())? {
        match event.map_err(MirrorError::from)? {
            Event::Enter(node) => levels.push((node, HashSet::new())),
            Event::Node(node) => {
                let path = tree::split(&node.path);
                let Some((name, above)) = path.split_last().filter(|_| node.path != b".") else { continue };
                if let Some((_, names)) = levels.last_mut() {
                    names.insert(name.clone());
                }
                let stat = mirror.tree.stat(above, name).map_err(local("look at what is there"))?;
                let Some(stat) = stat else { continue };
                let is_later = stamp.is_some_and(|stamp| ctime(&stat) > stamp);
                if is_later
                    && !is_like(&stat, &node.attributes)
                    && node.attributes.kind() != FileKind::Directory
                {
                    found.add(node.path.clone(), "it was changed");
                }
            }
            Event::Leave(node) => {
                let Some((_, known)) = levels.pop() else { continue };
                let path = if node.path == b"." { Vec::new() } else { tree::split(&node.path) };
                if mirror.nested.covers(&path) {
                    continue;
                }
                let Ok(directory) = mirror.tree.directory(&path) else { continue };
                for name in names(directory.as_fd()).map_err(local("read a directory"))? {
                    let is_ours =
                        name.starts_with(TEMPORARY) || path.is_empty() && mirror.nested.reserves(&name);
                    if !known.contains(&name) && !is_ours {
                        found.add(tree::shown(&path, &name), "it is not in the snapshot");
                    }
                }
            }
        }
    }
    Ok(found)
}
