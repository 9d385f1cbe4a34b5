//! Updates an index where the tree is known to have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::builder::{Builder, Seen};
use super::scan::{Place, Unread, place};
use super::tree::{Tree, see};
use super::{IndexError, ROOT, Record, join};
use crate::scan::clean;

/// The changed names of each directory. The flag is true if the name may now be a different directory than in the
/// index.
type Changes = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, bool>>;

/// Reads these paths of the tree, and only as much as needed: the files at the paths and their parent directories. It
/// also reads everything in directories that are new, or that are among the paths and have a new modification time.
/// Returns the directories that could not be listed.
///
/// # Errors
/// When the tree does not exist, or the index is damaged.
pub fn update(
    builder: &mut Builder,
    root: &Path,
    changed: impl IntoIterator<Item = Vec<u8>>,
) -> Result<Vec<Unread>, IndexError> {
    update_changes(builder, root, changed.into_iter().map(|path| (path, false)))
}

/// As [`update`], with a flag for each path. It is true if the path may now be a different file. A directory is then
/// read as a whole, whatever its modification time.
pub(super) fn update_changes(
    builder: &mut Builder,
    root: &Path,
    changed: impl IntoIterator<Item = (Vec<u8>, bool)>,
) -> Result<Vec<Unread>, IndexError> {
    let tree = Tree::open(root)?;
    let mut changes = Changes::new();
    let mut is_root_named = false;
    for (path, is_other) in changed {
        let (path, _) = clean(&path);
        match path.is_empty() {
            true => is_root_named = true,
            false => {
                let (directory, name) = known(builder, &path)?;
                *changes.entry(directory).or_default().entry(name).or_default() |= is_other;
            }
        }
    }
    // The changes in these directories are known, so their own modification time adds nothing.
    let named: BTreeSet<Vec<u8>> = changes.keys().cloned().collect();
    for directory in named.iter().filter(|directory| !directory.is_empty()) {
        let (parent, name) = split(directory);
        changes.entry(parent.to_vec()).or_default().entry(name.to_vec()).or_default();
    }
    let seen = tree.root()?;
    let mut updating = Updating { builder, tree: &tree, named, unread: Vec::new(), next: Vec::new() };
    let is_other = seen.record.metadata.mtime != updating.builder.root().metadata.mtime;
    updating.builder.set_root(seen);
    if is_root_named && is_other && !changes.contains_key(&b""[..]) {
        updating.next.push((ROOT, Vec::new()));
    }
    // Directories are processed before what is in them.
    for (directory, names) in changes {
        updating.directory(directory, &names)?;
    }
    updating.read_all()?;
    Ok(updating.unread)
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// The parent directory of a path, and the name in it. If a parent is not in the index, the first one that is missing
/// is the name.
fn known(builder: &Builder, path: &[u8]) -> Result<(Vec<u8>, Vec<u8>), IndexError> {
    let (mut number, mut directory) = (ROOT, Vec::new());
    let (parents, last) = split(path);
    for name in parents.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match below(builder, number, name)? {
            Some(next) => (number, directory) = (next, join(&directory, name)),
            None => return Ok((directory, name.to_vec())),
        }
    }
    Ok((directory, last.to_vec()))
}

fn below(builder: &Builder, number: u32, name: &[u8]) -> Result<Option<u32>, IndexError> {
    let Some(listing) = builder.listing(number)? else { return Ok(None) };
    Ok(listing.find(name)?.and_then(|record| record.directory()))
}

struct Updating<'a> {
    builder: &'a mut Builder,
    tree: &'a Tree,
    /// Directories with names that are known to have changed.
    named: BTreeSet<Vec<u8>>,
    unread: Vec<Unread>,
    /// Directories that must be read as a whole.
    next: Vec<Place>,
}

impl Updating<'_> {
    fn directory(&mut self, path: Vec<u8>, names: &BTreeMap<Vec<u8>, bool>) -> Result<(), IndexError> {
        let mut number = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match below(self.builder, number, name)? {
                Some(next) => number = next,
                // The directory is gone, as its parent showed.
                None => return Ok(()),
            }
        }
        // A new directory is read as a whole.
        let Some(listing) = self.builder.listing(number)? else { return Ok(()) };
        let (was_read, mut records) = (listing.failure == 0, listing.records().collect()?);
        let seen = self.tree.directory(&path).and_then(|directory| {
            let seen = names.iter().map(|(name, is_other)| Ok((name, *is_other, see(&directory, name)?)));
            seen.collect::<std::io::Result<Vec<_>>>()
        });
        let Some(seen) = seen.ok().filter(|_| was_read) else {
            self.next.push((number, path));
            return Ok(());
        };
        for (name, is_other, seen) in seen {
            self.name(&path, &mut records, (name, is_other), seen)?;
        }
        self.builder.set_listing(number, records)
    }

    fn name(
        &mut self,
        directory: &[u8],
        records: &mut Vec<Record>,
        (name, is_other): (&[u8], bool),
        seen: Option<Seen>,
    ) -> Result<(), IndexError> {
        let found = records.binary_search_by(|record| record.name.as_slice().cmp(name));
        let old = found.ok().and_then(|at| records.get(at));
        let old = old.and_then(|old| old.directory().map(|number| (number, old.metadata.mtime)));
        let is_dir = seen.as_ref().is_some_and(|seen| seen.record.metadata.is_dir());
        let number = match old {
            Some((number, mtime)) if is_dir && !is_other => {
                let path = join(directory, name);
                let is_other = seen.as_ref().is_some_and(|seen| seen.record.metadata.mtime != mtime);
                if is_other && !self.named.contains(&path) {
                    self.next.push((number, path));
                }
                Some(number)
            }
            Some((number, _)) => {
                self.builder.remove(number)?;
                if is_dir { Some(self.begin(directory, name)?) } else { None }
            }
            None if is_dir => Some(self.begin(directory, name)?),
            None => None,
        };
        let record = seen.map(|seen| self.builder.record(seen, number));
        match (found, record) {
            (Ok(at), Some(record)) => records[at] = record,
            (Ok(at), None) => drop(records.remove(at)),
            (Err(at), Some(record)) => records.insert(at, record),
            (Err(_), None) => {}
        }
        Ok(())
    }

    /// Adds a new directory, which is read later.
    fn begin(&mut self, directory: &[u8], name: &[u8]) -> Result<u32, IndexError> {
        let number = self.builder.allocate()?;
        self.next.push((number, join(directory, name)));
        Ok(number)
    }

    fn read_all(&mut self) -> Result<(), IndexError> {
        while let Some((number, path)) = self.next.pop() {
            let seen = self.tree.list(&path);
            self.next.extend(place(self.builder, (number, path), seen, &mut self.unread)?);
        }
        Ok(())
    }
}
