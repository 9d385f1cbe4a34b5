//! Comparing the trees of source and dataset, and choosing the object of each name.

use std::collections::BTreeMap;
use std::io;

use snowmelt_zpl::{
    Attributes, Caller, Cursor, FileKind, NewKind, NewNode, ObjectsMut, RenameMode, SetAttributes, ZplError,
};

use super::content::read_link;
use super::scan::{Listing, SourceEntry, SourcePath, SourceStat, join};
use super::{ImportError, ImportEvent, Importer, SourceId};

/// Number of directory entries of the dataset that are read at a time.
const ENTRIES: usize = 4096;

/// A file of the source that has replaced another file under its name.
pub(super) struct Replaced {
    directory: u64,
    /// The `stat` data of the directory, whose times are set again later.
    directory_stat: SourceStat,
    path: SourcePath,
    name: Vec<u8>,
    stat: SourceStat,
    /// The object that has the name in the dataset.
    old: u64,
}

/// How a name of the source got its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The object already had the name.
    Same,
    /// The object was moved from another place.
    Moved,
    /// The object is new.
    New,
}

/// A directory whose entries are not imported yet.
pub(super) struct Pending {
    pub(super) path: SourcePath,
    pub(super) object: u64,
    pub(super) stat: SourceStat,
    /// Whether the directory was just created.
    pub(super) is_new: bool,
    /// Whether there is no hint for the directory. Then there may be none for its entries, because it was not created
    /// by an import.
    pub(super) is_strange: bool,
    /// Whether the directory has the same name and place as before.
    pub(super) was_here: bool,
}

/// For `in_use` arguments: no file of a staged dataset is open.
fn unused(_: u64) -> bool {
    false
}

impl<O: ObjectsMut> Importer<'_, O> {
    pub(super) fn run(&mut self) -> Result<(), ImportError> {
        let (object, stat) = (self.fs.root(), *self.scan.root_stat());
        let is_strange = !self.is_hinted(&stat, object)?;
        let generation = self.fs.attributes(object)?.generation;
        self.claim(&stat, object, generation)?;
        let (path, is_new, was_here) = (SourcePath::default(), false, true);
        let root = Pending { path, object, stat, is_new, is_strange, was_here };
        let mut pending = vec![root];
        while let Some(directory) = pending.pop() {
            if self.observer.is_cancelled() {
                return Err(ImportError::Interrupted);
            }
            let mut children = Vec::new();
            self.directory(&directory, &mut children)?;
            children.reverse();
            pending.append(&mut children);
            self.observer.progress(&self.summary);
        }
        self.replaced()?;
        self.remove_aside()
    }

    /// The user and time for changes. The times are set from the source afterwards.
    pub(super) fn caller(stat: &SourceStat) -> Caller {
        Caller { uid: stat.uid, gid: stat.gid, umask: 0, now: stat.ctime }
    }

    pub(super) fn id(&self, stat: &SourceStat) -> SourceId {
        let device = if stat.device == self.scan.root_stat().device { 0 } else { stat.device };
        SourceId { device, inode: stat.inode }
    }

    fn directory(&mut self, directory: &Pending, children: &mut Vec<Pending>) -> Result<(), ImportError> {
        let Pending { path, object, stat, is_new, .. } = directory;
        self.summary.entries += 1;
        self.is_as_listed = true;
        let listing = if path.is_empty() || self.scan.enters(stat) {
            match self.scan.listing(path) {
                Ok(listing) => listing,
                Err(error) if path.is_empty() => return Err(ImportError::Root(error)),
                // The content of the directory is not known, so the dataset keeps its old content.
                Err(error) => {
                    self.fail(path, &error);
                    return self.forget_listings(*object);
                }
            }
        } else {
            Listing::default()
        };
        if self.skip(directory, &listing, children)? {
            return Ok(());
        }
        // For a new directory, all attributes must be set, even if its times are the same. It has no birth time yet.
        let before = if *is_new { None } else { Some(self.fs.attributes(*object)?) };
        let mut have = self.entries(*object)?;
        for (name, error) in &listing.failures {
            if let Some(kept) = have.remove(name) {
                self.forget_listings(kept)?;
            }
            self.fail(&join(path, name), error);
        }
        for entry in &listing.entries {
            let full = join(path, &entry.name);
            if let Some((object, arrival)) = self.entry(directory, &full, entry, &mut have)?
                && entry.stat.kind == FileKind::Directory
            {
                let (is_new, was_here) = (arrival == Arrival::New, arrival == Arrival::Same);
                let is_strange = !is_new && !self.is_hinted(&entry.stat, object)?;
                children.push(Pending { path: full, object, stat: entry.stat, is_new, is_strange, was_here });
            }
        }
        for (name, gone) in have {
            if self.aside.as_ref().is_some_and(|(aside, _)| *aside == gone) {
                continue;
            }
            let full = join(path, &name);
            self.put_aside(*object, &name, gone, stat)?;
            self.summary.removed += 1;
            self.observer.event(&full, ImportEvent::Removed);
        }
        // This is done last, because changes of entries have changed the times.
        let changed = self.attributes(path, *object, stat, before.as_ref())?;
        if changed && !is_new && !path.is_empty() {
            self.summary.changed += 1;
            self.observer.event(path, ImportEvent::Changed);
        }
        self.note_listing(directory, &listing)
    }

    pub(super) fn entries(&self, directory: u64) -> Result<BTreeMap<Vec<u8>, u64>, ImportError> {
        let mut found = BTreeMap::new();
        let mut cursor = Cursor::START;
        loop {
            let entries = self.fs.read_dir(directory, cursor, ENTRIES)?;
            let Some(last) = entries.last() else { return Ok(found) };
            cursor = last.next;
            found.extend(entries.into_iter().map(|entry| (entry.name, entry.object)));
        }
    }

    /// Finds the object for a name of the source. `None` if there is none, or if it is decided later.
    fn entry(
        &mut self,
        directory: &Pending,
        path: &SourcePath,
        entry: &SourceEntry,
        have: &mut BTreeMap<Vec<u8>, u64>,
    ) -> Result<Option<(u64, Arrival)>, ImportError> {
        let existing = have.remove(&entry.name);
        let (name, stat) = (entry.name.as_slice(), &entry.stat);
        let is_directory = stat.kind == FileKind::Directory;
        if !is_directory {
            self.summary.entries += 1;
        }
        let id = self.id(stat);
        if let Some((object, left)) = self.links.get(&id).copied() {
            self.further_name(directory, path, entry, existing, object)?;
            self.count_link(stat, object, left);
            return Ok(None);
        }
        let found = match existing {
            Some(object) => Some(self.fs.attributes(object)?),
            None => None,
        };
        // The usual case: an unchanged entry at the same place. No further lookups are needed.
        if let Some(found) = &found
            && !directory.is_strange
            && found.kind() == stat.kind
            && (found.size == stat.size || is_directory)
            && is_unchanged(found, stat)
            && !self.claimed.contains(found.object)
            && !self.hints.is_suspect(found.object)
        {
            self.claim_known(stat, found.object);
            return Ok(Some((found.object, Arrival::Same)));
        }
        let known = self.known(id, path, stat, existing)?;
        let usable = match &found {
            Some(found) => !self.claimed.contains(found.object) && self.can_become(found, path, stat)?,
            None => false,
        };
        let (object, before, arrival) = match (known, found) {
            (Some(known), Some(found)) if known.object == found.object => {
                (known.object, Some(found), Arrival::Same)
            }
            (Some(known), found) => {
                if let Some(found) = found {
                    self.put_aside(directory.object, name, found.object, &directory.stat)?;
                }
                let old = self.bring(&known, directory.object, name, stat)?;
                if known.parent == directory.object
                    && let Some(old) = old
                {
                    have.remove(&old);
                }
                (known.object, Some(known), Arrival::Moved)
            }
            (None, Some(found)) if usable => {
                if stat.kind == FileKind::File && !same_file(&found, stat) {
                    self.is_as_listed = false;
                    self.later.push(Replaced {
                        directory: directory.object,
                        directory_stat: directory.stat,
                        path: path.clone(),
                        name: entry.name.clone(),
                        stat: *stat,
                        old: found.object,
                    });
                    return Ok(None);
                }
                (found.object, Some(found), Arrival::Same)
            }
            (None, found) => {
                if let Some(found) = found {
                    self.put_aside(directory.object, name, found.object, &directory.stat)?;
                }
                match self.create(directory.object, name, path, stat)? {
                    Some(object) => (object, None, Arrival::New),
                    None => return Ok(None),
                }
            }
        };
        self.update(path, directory.object, name, stat, object, before.as_ref(), arrival)?;
        Ok(Some((object, arrival)))
    }

    /// The object that the file had at the last import, if it still exists and is not claimed. Its name now leads to
    /// `existing`.
    fn known(
        &mut self,
        id: SourceId,
        path: &SourcePath,
        stat: &SourceStat,
        existing: Option<u64>,
    ) -> Result<Option<Attributes>, ImportError> {
        let hint = self.hints.object_of(id).map_err(ImportError::Hints)?;
        let Some((object, generation)) = hint else { return Ok(None) };
        if existing != Some(object) {
            self.claim_skipped()?;
        }
        if self.claimed.contains(object) {
            return Ok(None);
        }
        match self.fs.attributes(object) {
            Ok(found) => {
                // The inode number may have been given to another file since.
                let same_birth = stat.born.is_none_or(|born| born == found.crtime);
                let is_it = found.generation == generation && found.links > 0 && same_birth;
                Ok((is_it && self.can_become(&found, path, stat)?).then_some(found))
            }
            // The object was freed, or is not a file any more.
            Err(ZplError::NoObject { .. } | ZplError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Counts one more name of a file with several names.
    pub(super) fn count_link(&mut self, stat: &SourceStat, object: u64, left: u64) {
        match left {
            0 | 1 => drop(self.links.remove(&self.id(stat))),
            _ => drop(self.links.insert(self.id(stat), (object, left - 1))),
        }
    }

    /// Like [`claim`](Self::claim), for an object that already has a hint.
    pub(super) fn claim_known(&mut self, stat: &SourceStat, object: u64) {
        self.claimed.insert(object);
        if stat.kind != FileKind::Directory && stat.links > 1 {
            self.links.insert(self.id(stat), (object, stat.links - 1));
        }
    }

    fn is_hinted(&mut self, stat: &SourceStat, object: u64) -> Result<bool, ImportError> {
        let hint = self.hints.object_of(self.id(stat)).map_err(ImportError::Hints)?;
        Ok(hint.is_some_and(|(hinted, _)| hinted == object))
    }

    /// Whether an object can be changed to be equal to the source's file. Symbolic links and devices cannot be changed.
    fn can_become(
        &self,
        found: &Attributes,
        path: &SourcePath,
        stat: &SourceStat,
    ) -> Result<bool, ImportError> {
        Ok(found.kind() == stat.kind
            && match stat.kind {
                FileKind::Symlink => {
                    same_times(found, stat)
                        || read_link(self.scan, path).is_ok_and(|target| {
                            self.fs.readlink(found.object).is_ok_and(|present| present == target)
                        })
                }
                FileKind::CharDevice | FileKind::BlockDevice => found.rdev == Some(stat.rdev),
                _ => true,
            })
    }

    /// Notes that an object belongs to a file of the source.
    pub(super) fn claim(
        &mut self,
        stat: &SourceStat,
        object: u64,
        generation: u64,
    ) -> Result<(), ImportError> {
        self.claim_known(stat, object);
        let id = self.id(stat);
        let hint = self.hints.object_of(id).map_err(ImportError::Hints)?;
        if hint != Some((object, generation)) {
            self.hints.note(id, object, generation).map_err(ImportError::Hints)?;
        }
        Ok(())
    }

    /// Adds a further name to a file that already has its object.
    fn further_name(
        &mut self,
        directory: &Pending,
        path: &SourcePath,
        entry: &SourceEntry,
        existing: Option<u64>,
        object: u64,
    ) -> Result<(), ImportError> {
        if existing == Some(object) {
            return Ok(());
        }
        if let Some(existing) = existing {
            self.put_aside(directory.object, &entry.name, existing, &directory.stat)?;
        }
        self.unlock(object)?;
        self.unlock(directory.object)?;
        self.fs.link(object, directory.object, &entry.name, &Self::caller(&entry.stat))?;
        self.summary.created += 1;
        self.observer.event(path, ImportEvent::Created);
        self.attributes(path, object, &entry.stat, None)?;
        Ok(())
    }

    /// Creates a new object. `None` if its file could not be read.
    fn create(
        &mut self,
        directory: u64,
        name: &[u8],
        path: &SourcePath,
        stat: &SourceStat,
    ) -> Result<Option<u64>, ImportError> {
        let target;
        let kind = match stat.kind {
            FileKind::File => NewKind::File,
            FileKind::Directory => NewKind::Directory,
            FileKind::Symlink => match read_link(self.scan, path) {
                Ok(found) => {
                    target = found;
                    NewKind::Symlink(&target)
                }
                Err(error) => {
                    self.fail(path, &error);
                    return Ok(None);
                }
            },
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::CharDevice => NewKind::CharDevice(stat.rdev.0, stat.rdev.1),
            FileKind::BlockDevice => NewKind::BlockDevice(stat.rdev.0, stat.rdev.1),
            _ => {
                self.fail(path, &io::Error::from(io::ErrorKind::Unsupported));
                return Ok(None);
            }
        };
        self.unlock(directory)?;
        let new = NewNode { kind, permissions: stat.mode };
        match self.fs.create(directory, name, new, &Self::caller(stat)) {
            Ok(made) => {
                self.unlocked = Some(directory).filter(|_| stat.kind != FileKind::Directory);
                Ok(Some(made.object))
            }
            // Two names of the source are equal in a case-insensitive dataset.
            Err(
                error @ (ZplError::Exists { .. } | ZplError::NotUtf8 { .. } | ZplError::NameTooLong { .. }),
            ) => {
                self.fail(path, &io::Error::other(error));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Imports the files that have replaced others. Such a file gets the old object, unless the old file still exists
    /// elsewhere.
    fn replaced(&mut self) -> Result<(), ImportError> {
        let mut touched = BTreeMap::new();
        for file in std::mem::take(&mut self.later) {
            if self.observer.is_cancelled() {
                return Err(ImportError::Interrupted);
            }
            let Replaced { directory, directory_stat, path, name, stat, old } = file;
            touched.insert(directory, (path.clone(), directory_stat));
            if let Some((object, left)) = self.links.get(&self.id(&stat)).copied() {
                // The file has several names, and another one was imported first.
                self.put_aside(directory, &name, old, &directory_stat)?;
                self.unlock(object)?;
                self.fs.link(object, directory, &name, &Self::caller(&stat))?;
                self.attributes(&path, object, &stat, None)?;
                self.links.insert(self.id(&stat), (object, left.saturating_sub(1)));
                continue;
            }
            if self.claimed.contains(old) {
                self.put_aside(directory, &name, old, &directory_stat)?;
                if let Some(object) = self.create(directory, &name, &path, &stat)? {
                    self.update(&path, directory, &name, &stat, object, None, Arrival::New)?;
                }
            } else {
                let before = self.fs.attributes(old)?;
                self.update(&path, directory, &name, &stat, old, Some(&before), Arrival::Same)?;
            }
            self.observer.progress(&self.summary);
        }
        for (directory, (path, stat)) in touched {
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            self.attributes(&path[..end], directory, &stat, None)?;
        }
        Ok(())
    }

    // ---- moving objects -----------------------------------------------------------------------------------------

    /// Gives a known object its new name. A directory is moved, and its old name is returned. A file keeps its old name
    /// for now. It is removed when its directory is processed, or with the entries that were moved aside.
    fn bring(
        &mut self,
        known: &Attributes,
        directory: u64,
        name: &[u8],
        stat: &SourceStat,
    ) -> Result<Option<Vec<u8>>, ImportError> {
        let caller = Self::caller(stat);
        self.unlock(known.object)?;
        self.unlock(directory)?;
        if known.kind() != FileKind::Directory {
            self.fs.link(known.object, directory, name, &caller)?;
            return Ok(None);
        }
        self.unlock(known.parent)?;
        let is_aside = self.aside.as_ref().is_some_and(|(aside, _)| *aside == known.parent);
        let old = match is_aside {
            true => aside_name(known.object),
            false => self
                .entries(known.parent)?
                .into_iter()
                .find_map(|(name, object)| (object == known.object).then_some(name))
                .ok_or_else(|| ZplError::NotFound {
                    directory: known.parent,
                    name: format!("(of object {})", known.object).into_bytes(),
                })?,
        };
        self.fs.rename((known.parent, &old), (directory, name), RenameMode::NoReplace, &caller, unused)?;
        Ok(Some(old))
    }

    /// Removes a name. Its object is removed at the end, unless the source has it elsewhere.
    fn put_aside(
        &mut self,
        directory: u64,
        name: &[u8],
        object: u64,
        stat: &SourceStat,
    ) -> Result<(), ImportError> {
        let aside = self.aside(stat)?;
        let caller = Self::caller(stat);
        let before = self.fs.attributes(object)?;
        self.unlock(object)?;
        self.unlock(directory)?;
        if before.links > 1 && before.kind() != FileKind::Directory {
            // The object has other names, so it is not lost. Its recorded parent stays that of its newest name.
            self.fs.unlink(directory, name, &caller, unused)?;
        } else {
            let mode = RenameMode::NoReplace;
            self.fs.rename((directory, name), (aside, &aside_name(object)), mode, &caller, unused)?;
        }
        self.keep_ctime(&before)
    }

    /// Restores the ctime of a file that has other names. Removing a name has changed it.
    fn keep_ctime(&mut self, before: &Attributes) -> Result<(), ImportError> {
        if before.links > 1 && self.claimed.contains(before.object) {
            let (ctime, flags) = (Some(before.ctime), Some(before.flags.fs_ioc_flags()));
            let set = SetAttributes { ctime, fs_ioc_flags: flags, ..SetAttributes::default() };
            self.fs.set_attributes(before.object, &set, &Caller::default())?;
            self.unlocked = None;
        }
        Ok(())
    }

    /// The hidden directory in the root for entries that were moved aside.
    fn aside(&mut self, stat: &SourceStat) -> Result<u64, ImportError> {
        if let Some((object, _)) = &self.aside {
            return Ok(*object);
        }
        let root = self.fs.root();
        for number in 0u64.. {
            let name = format!(".snowmelt-import-{number}").into_bytes();
            if self.fs.lookup(root, &name)?.is_none() {
                self.unlock(root)?;
                let new = NewNode { kind: NewKind::Directory, permissions: 0o700 };
                let object = self.fs.create(root, &name, new, &Self::caller(stat))?.object;
                self.aside = Some((object, name));
                return Ok(object);
            }
        }
        unreachable!("a name is free")
    }

    /// Removes the hidden directory with everything below it.
    fn remove_aside(&mut self) -> Result<(), ImportError> {
        let Some((aside, name)) = self.aside.take() else { return Ok(()) };
        let caller = Caller { now: self.scan.root_stat().ctime, ..Caller::default() };
        let mut pending = vec![(self.fs.root(), name, aside, false)];
        while let Some((parent, name, object, emptied)) = pending.pop() {
            if emptied {
                self.unlock(object)?;
                self.unlock(parent)?;
                self.fs.rmdir(parent, &name, &caller, unused)?;
                continue;
            }
            if self.observer.is_cancelled() {
                return Err(ImportError::Interrupted);
            }
            pending.push((parent, name, object, true));
            for (name, child) in self.entries(object)? {
                let before = self.fs.attributes(child)?;
                self.unlock(child)?;
                self.unlock(object)?;
                if before.kind() == FileKind::Directory {
                    pending.push((object, name, child, false));
                } else {
                    self.fs.unlink(object, &name, &caller, unused)?;
                    self.keep_ctime(&before)?;
                }
            }
        }
        let root = self.fs.root();
        self.attributes(&[], root, &self.scan.root_stat().clone(), None)?;
        Ok(())
    }

    pub(super) fn fail(&mut self, path: &[u8], error: &io::Error) {
        self.is_as_listed = false;
        if error.kind() == io::ErrorKind::NotFound {
            self.observer.event(path, ImportEvent::Vanished);
        } else {
            self.observer.event(path, ImportEvent::Unreadable(error));
        }
        self.summary.failures += 1;
    }

    /// Removes a name that was created for a file that could not be read.
    pub(super) fn take_back(
        &mut self,
        directory: u64,
        name: &[u8],
        stat: &SourceStat,
    ) -> Result<(), ImportError> {
        self.fs.unlink(directory, name, &Self::caller(stat), unused)?;
        Ok(())
    }
}

/// The name of an object in the hidden directory.
fn aside_name(object: u64) -> Vec<u8> {
    format!("{object:x}").into_bytes()
}

/// Whether the size and times of an object are equal to those of the file.
fn same_file(found: &Attributes, stat: &SourceStat) -> bool {
    found.size == stat.size && same_times(found, stat)
}

/// Whether the attributes of an object are equal to the `stat` data, except size and type.
pub(super) fn is_unchanged(found: &Attributes, stat: &SourceStat) -> bool {
    found.permissions() == stat.mode
        && (found.uid_fuid, found.gid_fuid) == (stat.uid.into(), stat.gid.into())
        && same_times(found, stat)
}

fn same_times(found: &Attributes, stat: &SourceStat) -> bool {
    found.mtime == stat.mtime && found.ctime == stat.ctime
}
