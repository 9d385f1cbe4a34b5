//! Plans: the changes of a directory that holds the older of two snapshots.
//!
//! Directories are compared by their names, and only those that changed are read. An object is the same file in both
//! snapshots if its generation and type are the same. Then its content stays where it is, and only its name moves.

use super::tree::{self, Path};
use super::{Between, Changes, is_reserved};
use crate::ahead::ahead;
use crate::error::FsError;
use crate::names::Names;
use crate::paths::is_safe_name;
use crate::walk::{Event, Walk};
use snowmelt_zpl::{Attributes, DMU_OT_SA, DMU_OT_ZNODE, FileKind, Filesystem, Objects, ZfsFlags, ZplError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A changed object.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Its attributes in the older snapshot. `None` if it was not a file, or had no name.
    pub(super) old: Option<Attributes>,
    /// Its attributes in the newer snapshot.
    pub(super) new: Option<Attributes>,
}

impl Known {
    /// Whether it is the same file in both snapshots.
    pub(super) fn stays(&self) -> bool {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => old.generation == new.generation && old.kind() == new.kind(),
            _ => false,
        }
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) object: u64,
}

/// Names that are removed from, or added to, one directory.
#[derive(Debug, Clone)]
pub(super) struct Listing {
    /// The path of the directory: in the older snapshot for removed names, in the newer one for added names.
    pub(super) path: Path,
    pub(super) directory: u64,
    pub(super) entries: Vec<Entry>,
}

/// The changes of a directory.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// All changed objects.
    pub(super) known: BTreeMap<u64, Known>,
    /// Names to remove, the deepest directories first.
    pub(super) removed: Vec<Listing>,
    /// Names to add, the deepest directories last.
    pub(super) added: Vec<Listing>,
    /// Objects that lose a name and get another one.
    pub(super) moved: HashSet<u64>,
    /// For each object that only gets further names, the path of an existing one in the newer snapshot.
    pub(super) linked: HashMap<u64, Path>,
    /// Changed files that stay, with their paths in the newer snapshot.
    pub(super) changed: Vec<(u64, Path)>,
    /// Directories whose attributes are set at the end, the deepest first.
    pub(super) dressed: Vec<(u64, Path)>,
    /// Invalid names: the directory and the name.
    pub(super) bad_names: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether a directory moves to or from a name that is reserved for records. Then the changes inside it are not
    /// known.
    pub(super) needs_whole: bool,
}

/// Computes a plan.
pub(super) struct Planner<'f, A, B> {
    old: &'f Filesystem<A>,
    new: &'f Filesystem<B>,
    old_names: Names<&'f Filesystem<A>>,
    new_names: Names<&'f Filesystem<B>>,
    plan: Plan,
}

/// The attributes of an object that has a name. `None` if it is not a file.
fn file<O: Objects>(fs: &Filesystem<O>, object: u64) -> Result<Option<Attributes>, FsError> {
    let at = |error| FsError::zpl(format!("object {object}").as_bytes())(error);
    let dnode = fs.objects().dnode(object).map_err(|source| at(ZplError::Source { object, source }))?;
    if !dnode.is_some_and(|dnode| matches!(dnode.bonus_type, DMU_OT_SA | DMU_OT_ZNODE)) {
        return Ok(None);
    }
    let attributes = fs.attributes(object).map_err(at)?;
    Ok((attributes.links > 0).then_some(attributes))
}

impl<'f, A: Objects, B: Objects> Planner<'f, A, B> {
    pub(super) fn plan(between: &Between<'f, A, B>) -> Result<Plan, FsError> {
        let mut planner = Self::finder(between);
        planner.objects(between.changes)?;
        planner.expect_directories();
        planner.listings()?;
        planner.links_and_contents()?;
        planner.directories()?;
        Ok(planner.plan)
    }

    fn objects(&mut self, changes: &dyn Changes) -> Result<(), FsError> {
        let mut owners = Vec::new();
        let mut from = 0;
        loop {
            let page = changes.objects(from).map_err(|source| unknown(0, source))?;
            let Some(last) = page.last().copied() else { break };
            let (old, new) = (self.old, self.new);
            let page = ahead(page, |object| {
                old.objects().prefetch(*object);
                new.objects().prefetch(*object);
                0
            });
            for object in page {
                if self.old.shares() == Some(object) || self.new.shares() == Some(object) {
                    continue;
                }
                let known = Known { old: file(self.old, object)?, new: file(self.new, object)? };
                // An extended attribute is part of its file.
                let of_xattr = known.new.as_ref().filter(|new| new.flags.contains(ZfsFlags::XATTR));
                if let Some(hidden) = of_xattr {
                    owners.push(hidden.parent);
                }
                let is_hidden = |at: &Option<Attributes>| {
                    at.as_ref().is_some_and(|at| at.flags.contains(ZfsFlags::XATTR))
                };
                let known = Known {
                    old: known.old.filter(|old| !old.flags.contains(ZfsFlags::XATTR)),
                    new: known.new.clone().filter(|_| !is_hidden(&known.new)),
                };
                if known.old.is_some() || known.new.is_some() {
                    self.plan.known.insert(object, known);
                }
            }
            from = last.saturating_add(1);
        }
        for owner in owners {
            self.owner(owner)?;
        }
        Ok(())
    }

    /// Adds the file to which an extended attribute, or the hidden directory of such, belongs.
    fn owner(&mut self, mut object: u64) -> Result<(), FsError> {
        for _ in 0..2 {
            let Some(new) = file(self.new, object)? else { return Ok(()) };
            if !new.flags.contains(ZfsFlags::XATTR) {
                if !self.plan.known.contains_key(&object) {
                    let known = Known { old: file(self.old, object)?, new: Some(new) };
                    self.plan.known.insert(object, known);
                }
                return Ok(());
            }
            object = new.parent;
        }
        Ok(())
    }

    /// Prefetches the directories above all changed objects, so that each level is waited for only once.
    fn expect_directories(&self) {
        let known = self.plan.known.values();
        expect_above(self.old, known.clone().filter_map(|known| known.old.as_ref()));
        expect_above(self.new, known.filter_map(|known| known.new.as_ref()));
    }

    /// Whether an object is the same file in both snapshots.
    fn is_same(&self, object: u64) -> bool {
        self.plan.known.get(&object).is_none_or(Known::stays)
    }

    fn listings(&mut self) -> Result<(), FsError> {
        let directory = |at: &Option<Attributes>| {
            at.clone().filter(|attributes| attributes.kind() == FileKind::Directory)
        };
        let directories: Vec<_> = self
            .plan
            .known
            .iter()
            .map(|(object, known)| (*object, directory(&known.old), directory(&known.new), known.stays()))
            .filter(|(_, old, new, _)| old.is_some() || new.is_some())
            .collect();
        let (old_fs, new_fs) = (self.old, self.new);
        let directories = ahead(directories, |(object, old, new, _)| {
            old.iter().for_each(|_| old_fs.objects().prefetch(*object));
            new.iter().for_each(|_| new_fs.objects().prefetch(*object));
            0
        });
        for (object, old, new, stays) in directories {
            let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
            let (mut old_path, mut new_path) = (None, None);
            if let Some(old) = &old {
                before = entries(self.old, object)?;
                old_path = self.old_names.path(old).map_err(FsError::zpl(b"."))?;
            }
            if let Some(new) = &new {
                after = entries(self.new, object)?;
                new_path = self.new_names.path(new).map_err(FsError::zpl(b"."))?;
            }
            let is_hidden = |path: &Option<Vec<u8>>| path.is_some() && place(path.clone()).is_none();
            self.plan.needs_whole |= stays && is_hidden(&old_path) != is_hidden(&new_path);
            let both = |name: &Vec<u8>, object: u64, other: &BTreeMap<Vec<u8>, u64>| {
                stays && other.get(name) == Some(&object) && self.is_same(object)
            };
            let gone: Vec<Entry> = before
                .iter()
                .filter(|(name, object)| !both(name, **object, &after))
                .map(|(name, object)| Entry { name: name.clone(), object: *object })
                .collect();
            let mut come: Vec<Entry> = after
                .iter()
                .filter(|(name, object)| !both(name, **object, &before))
                .map(|(name, object)| Entry { name: name.clone(), object: *object })
                .collect();
            if let Some(path) = place(old_path).filter(|_| !gone.is_empty()) {
                self.plan.removed.push(Listing { path, directory: object, entries: gone });
            }
            if let Some(path) = place(new_path).filter(|_| !come.is_empty()) {
                come.retain(|entry| {
                    let is_safe = is_safe_name(&entry.name);
                    if !is_safe {
                        self.plan.bad_names.push((tree::shown(&path, b""), entry.name.clone()));
                    }
                    is_safe
                });
                self.plan.added.push(Listing { path, directory: object, entries: come });
            }
        }
        self.plan.removed.sort_by_key(|listing| std::cmp::Reverse(listing.path.len()));
        self.plan.added.sort_by_key(|listing| listing.path.len());
        Ok(())
    }

    /// Determines which objects move, which only get further names, and which files have changed content or attributes.
    fn links_and_contents(&mut self) -> Result<(), FsError> {
        let objects = |listings: &[Listing]| -> HashSet<u64> {
            listings.iter().flat_map(|listing| &listing.entries).map(|entry| entry.object).collect()
        };
        let (gone, come) = (objects(&self.plan.removed), objects(&self.plan.added));
        self.plan.moved = gone.intersection(&come).copied().filter(|object| self.is_same(*object)).collect();
        let added: HashSet<Path> = self
            .plan
            .added
            .iter()
            .flat_map(|listing| listing.entries.iter().map(|entry| join(&listing.path, &entry.name)))
            .collect();
        let mut lost = HashSet::new();
        for (object, known) in &self.plan.known {
            let Some(new) = known.new.as_ref().filter(|_| known.stays()) else { continue };
            if new.kind() == FileKind::Directory {
                continue;
            }
            let path = self.new_names.path(new).map_err(FsError::zpl(b"."))?;
            let Some(path) = path.map_or(Some(None), |path| place(Some(path)).map(Some)) else { continue };
            let is_linked = come.contains(object) && !self.plan.moved.contains(object);
            match path {
                // A name that existed before, from which the others are linked.
                Some(path) if is_linked && !added.contains(&path) => {
                    self.plan.linked.insert(*object, path.clone());
                    self.plan.changed.push((*object, path));
                }
                Some(path) if !is_linked => self.plan.changed.push((*object, path)),
                // The path recorded in the file does not exist any more, or is a new one.
                _ => _ = lost.insert((*object, is_linked)),
            }
        }
        self.find(lost, &added)
    }

    /// Finds names of objects by a walk through all names, because a file with several names records at most one.
    fn find(&mut self, lost: HashSet<(u64, bool)>, added: &HashSet<Path>) -> Result<(), FsError> {
        if lost.is_empty() {
            return Ok(());
        }
        let mut lost: HashMap<u64, bool> = lost.into_iter().collect();
        for event in Walk::new(self.new, self.new.root())? {
            let Ok(Event::Node(node)) = event else { continue };
            let Some(is_linked) = lost.get(&node.object).copied() else { continue };
            let path = tree::split(&node.path);
            if is_linked && added.contains(&path) || path.iter().any(|name| is_reserved(name)) {
                continue;
            }
            if is_linked {
                self.plan.linked.insert(node.object, path.clone());
            }
            self.plan.changed.push((node.object, path));
            lost.remove(&node.object);
            if lost.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Determines the directories whose attributes must be set: changed and new ones, and those with changed entries.
    /// Without root's rights, the directories above are included, because they may have to be made accessible.
    fn directories(&mut self) -> Result<(), FsError> {
        let mut wanted: BTreeMap<u64, Attributes> = BTreeMap::new();
        for (object, known) in &self.plan.known {
            let new = known.new.iter().filter(|new| new.kind() == FileKind::Directory);
            wanted.extend(new.map(|new| (*object, new.clone())));
        }
        // Replacing a file changes the mtime of its directory, even if it did not change in the source.
        let has_rights = rustix::process::geteuid().is_root();
        let mut above: Vec<u64> = Vec::new();
        for (object, known) in &self.plan.known {
            let parents = known.new.iter().chain(&known.old).map(|at| at.parent);
            above.extend(parents.filter(|parent| parent != object && (!has_rights || known.stays())));
        }
        while let Some(object) = above.pop() {
            if wanted.contains_key(&object) {
                continue;
            }
            let Some(attributes) = file(self.new, object)? else { continue };
            if attributes.kind() == FileKind::Directory {
                above.extend((!has_rights).then_some(attributes.parent));
                wanted.insert(object, attributes);
            }
        }
        for (object, attributes) in wanted {
            if let Some(path) = self.new_names.path(&attributes).map_err(FsError::zpl(b"."))? {
                self.plan.dressed.extend(place(Some(path)).map(|path| (object, path)));
            }
        }
        self.plan.dressed.sort_by_key(|(_, path)| std::cmp::Reverse(path.len()));
        Ok(())
    }

    /// The recorded path of a file in the older snapshot.
    pub(super) fn old_path(&mut self, attributes: &Attributes) -> Result<Option<Path>, FsError> {
        let path = self.old_names.path(attributes).map_err(FsError::zpl(b"."))?;
        Ok(path.map(|path| tree::split(&path)))
    }

    /// A planner that is only used to look up paths.
    pub(super) fn finder(between: &Between<'f, A, B>) -> Self {
        let (old, new) = (between.old, between.new);
        let (old_names, new_names) = (Names::new(old), Names::new(new));
        Self { old, new, old_names, new_names, plan: Plan::default() }
    }
}

/// Prefetches all directories above these objects.
fn expect_above<'k, O: Objects>(fs: &Filesystem<O>, below: impl Iterator<Item = &'k Attributes>) {
    let mut level: BTreeSet<u64> = below.map(|attributes| attributes.parent).collect();
    let mut seen = level.clone();
    while !level.is_empty() {
        let asked = ahead(std::mem::take(&mut level), |object| {
            fs.objects().prefetch(*object);
            0
        });
        // Failures are reported later, when the directory is needed.
        let parents = asked.filter_map(|object| fs.attributes(object).ok()).map(|above| above.parent);
        level.extend(parents.filter(|parent| seen.insert(*parent)));
    }
}

/// The path in the directory. `None` if a part of it is a name reserved for records.
fn place(path: Option<Vec<u8>>) -> Option<Path> {
    let path = tree::split(&path?);
    (!path.iter().any(|name| is_reserved(name))).then_some(path)
}

pub(super) fn join(path: &[Vec<u8>], name: &[u8]) -> Path {
    let mut path = path.to_vec();
    path.push(name.to_vec());
    path
}

/// The error if the differences of an object cannot be read.
pub(super) fn unknown(object: u64, source: snowmelt_zpl::SourceError) -> FsError {
    FsError::Zpl { path: b".".to_vec(), source: ZplError::Source { object, source } }
}

/// The names of a directory, without those reserved for records.
pub(super) fn entries<O: Objects>(
    fs: &Filesystem<O>,
    directory: u64,
) -> Result<BTreeMap<Vec<u8>, u64>, FsError> {
    let at = |error| FsError::zpl(format!("object {directory}").as_bytes())(error);
    let mut names = BTreeMap::new();
    for entry in fs.read_dir(directory).map_err(at)?.all() {
        let entry = entry.map_err(at)?;
        if !is_reserved(&entry.name) {
            names.insert(entry.name, entry.object);
        }
    }
    Ok(names)
}
