//! Finding the paths of objects in a filesystem that may be partly damaged.

use std::collections::{HashSet, VecDeque};
use std::ops::RangeInclusive;

use snowmelt_zpl::{FileKind, Filesystem, Objects};

use crate::names::Names;

/// Maximum number of names that are searched for unreadable objects.
const NAMES_MAX: usize = 1_000_000;

/// The path of an object, with a leading "/". `None` if it has no path or its path cannot be read.
pub fn path_of<O: Objects>(fs: &Filesystem<O>, object: u64) -> Option<Vec<u8>> {
    match fs.attributes(object) {
        Ok(attributes) => Names::new(fs).path(&attributes).ok().flatten(),
        Err(_) => paths_within(fs, object..=object).into_iter().next(),
    }
}

/// The paths of all objects in a range. They are found from the root down, so the objects themselves need not be
/// readable. Directories that cannot be read are skipped.
pub fn paths_within<O: Objects>(fs: &Filesystem<O>, objects: RangeInclusive<u64>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    if objects.contains(&fs.root()) {
        found.push(b"/".to_vec());
    }
    let mut seen = HashSet::from([fs.root()]);
    let mut directories = VecDeque::from([(fs.root(), Vec::new())]);
    let mut left = NAMES_MAX;
    while let Some((directory, path)) = directories.pop_front() {
        let Ok(entries) = fs.read_dir(directory) else { continue };
        for entry in entries.all() {
            let Ok(entry) = entry else { break };
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return found,
            };
            let below = [&path, &b"/"[..], &entry.name].concat();
            if objects.contains(&entry.object) {
                found.push(below.clone());
            }
            if entry.kind == FileKind::Directory && seen.insert(entry.object) {
                directories.push_back((entry.object, below));
            }
        }
    }
    found
}
