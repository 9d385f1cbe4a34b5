//! Carrying out a plan: detach, attach, content, directories.
//!
//! After an interruption, each step can be repeated from its beginning. Finished parts are recognised, and content that
//! may not have reached the disk is written again.

use super::plan::{Entry, Known, Plan};
use super::record::{Phase, boot};
use super::tree::{self, Path, is_missing, stat_at};
use super::{Between, Changes, Mirror, MirrorError, MirrorOptions};
use crate::ahead::{self, ahead, pieces, ranges};
use crate::alike::{Stamp, ctime, is_kind, is_like};
use crate::beneath::{self, Directory, Mounts, remove_one, unlocked};
use crate::error::FsError;
use crate::restore::{Failure, Observer, Restore, Summary};
use crate::walk::Node;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use snowmelt_zpl::{Attributes, FileKind, Filesystem, Objects, SourceError};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Files up to this size are replaced atomically instead of being changed in place.
const REPLACED_MAX: u64 = 1 << 20;
/// Number of bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// The input of a sync that carries out a plan.
pub(super) struct Work<'a, 'f, A, B> {
    pub(super) between: &'a Between<'f, A, B>,
    pub(super) plan: Plan,
    pub(super) options: &'a MirrorOptions<'a>,
    /// Whether an earlier attempt was interrupted.
    pub(super) resumes: bool,
}

pub(super) struct Apply<'a, 'f, A, B> {
    mirror: &'a mut Mirror,
    old: &'f Filesystem<A>,
    new: &'f Filesystem<B>,
    changes: &'f dyn Changes,
    plan: &'a Plan,
    options: &'a MirrorOptions<'a>,
    restore: Restore<'a, 'f, B>,
    staging: Directory,
    /// Whether an earlier attempt was interrupted.
    resumes: bool,
    /// Files written after this time may not be on disk.
    distrusted: Option<Stamp>,
    /// For objects with several names, the path of the first one that was created.
    made: HashMap<u64, Path>,
}

impl<'a, 'f, A: Objects, B: Objects> Apply<'a, 'f, A, B> {
    pub(super) fn new(
        mirror: &'a mut Mirror,
        work: &'a Work<'a, 'f, A, B>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, MirrorError> {
        let Work { between, plan, options, resumes } = work;
        let (old, new, changes, resumes) = (between.old, between.new, between.changes, *resumes);
        let staging = mirror.staging()?;
        let local = |step| MirrorError::local(staging.path(), step);
        let restore = Restore::staging(new, &staging, (options.owners, options.privileges), observer);
        let restore = restore.map_err(local("open it"))?;
        let distrusted =
            mirror.record.progress.as_ref().filter(|progress| resumes && progress.boot != boot());
        let distrusted = distrusted.map(|progress| progress.begun);
        let made = HashMap::new();
        Ok(Self { mirror, old, new, changes, plan, options, restore, staging, resumes, distrusted, made })
    }

    pub(super) fn run(mut self) -> Result<Summary, MirrorError> {
        let plan = self.plan;
        for bad in &plan.bad_names {
            let (path, name) = bad.clone();
            self.restore.report(FsError::BadName { path, name }.into());
        }
        let phase = self.mirror.record.progress.as_ref().map(|progress| progress.phase);
        if phase != Some(Phase::Attach) {
            self.detach()?;
            self.mirror.detached()?;
        }
        self.attach()?;
        let (changes, objects) = (self.changes, self.new.objects());
        let changed = ahead(&plan.changed, |(object, _)| {
            changes.prefetch_blocks(*object);
            0
        });
        let changed = changed.map(|(object, path)| (*object, path, plan.first_blocks(*object, changes)));
        let changed = ahead(changed, |(object, _, page)| match plan.known.get(object) {
            Some(Known { new: Some(new), .. })
                if is_replaced(new) && page.as_ref().is_ok_and(|page| !page.is_empty()) =>
            {
                ahead::content(objects, new)
            }
            _ => 0,
        });
        for (object, path, page) in changed {
            self.options.check()?;
            let result = self.content(object, path, page);
            self.tell(result);
            self.restore.progress(&tree::shown(path, b""));
        }
        for (object, path) in &plan.dressed {
            self.dress_directory(*object, path);
        }
        Ok(self.restore.summary())
    }

    fn tell(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.restore.report(failure);
        }
    }

    fn failed(path: &[Vec<u8>], name: &[u8], step: &'static str) -> impl FnOnce(io::Error) -> Failure {
        let path = tree::shown(path, name);
        move |source| Failure::Local { path, step, source }
    }

    /// The name under which an object waits in the staging directory.
    fn staged(object: u64, attributes: &Attributes) -> Vec<u8> {
        format!("{object}-{}", attributes.generation).into_bytes()
    }

    fn detach(&mut self) -> Result<(), MirrorError> {
        let plan = self.plan;
        for listing in &plan.removed {
            self.options.check()?;
            let directory = match self.mirror.tree.writable(&listing.path) {
                Ok(directory) => directory,
                Err(error) if is_missing(&error) && self.resumes => continue,
                Err(error) => {
                    self.tell(Err(Self::failed(&listing.path, b"", "open the directory")(error)));
                    continue;
                }
            };
            for entry in &listing.entries {
                let result = self.detach_one(&directory, &listing.path, entry);
                self.tell(result);
            }
        }
        Ok(())
    }

    fn detach_one(&mut self, directory: &OwnedFd, path: &[Vec<u8>], entry: &Entry) -> Result<(), Failure> {
        let known = self.plan.known.get(&entry.object);
        let attributes = match known.and_then(|known| known.old.clone()) {
            Some(attributes) => attributes,
            None => {
                self.old.attributes(entry.object).map_err(FsError::zpl(&tree::shown(path, &entry.name)))?
            }
        };
        let local = |step| Self::failed(path, &entry.name, step);
        let directory = directory.as_fd();
        let Some(stat) = stat_at(directory, &entry.name).map_err(local("look at it"))? else { return Ok(()) };
        let is_directory = attributes.kind() == FileKind::Directory;
        if self.plan.moved.contains(&entry.object) && is_kind(&stat, &attributes) {
            let staged = Self::staged(entry.object, &attributes);
            if stat_at(self.staging.as_fd(), &staged).map_err(local("look at it"))?.is_none() {
                if is_directory && !rustix::process::geteuid().is_root() {
                    // To be moved, a directory must allow the change of its "..".
                    beneath::open_up(directory, &entry.name).map_err(local("open the directory"))?;
                }
                let moved = unlocked(directory, &entry.name, || {
                    rustix::fs::renameat(directory, entry.name.as_slice(), &self.staging, staged.as_slice())
                });
                return moved.map_err(local("move it"));
            }
        }
        let is_directory = stat.st_mode & 0o170_000 == FileKind::Directory.mode_bits();
        remove_one(directory, &entry.name, is_directory).map_err(local("remove it"))?;
        self.restore.summary_mut().removed += 1;
        Ok(())
    }

    fn attach(&mut self) -> Result<(), MirrorError> {
        let plan = self.plan;
        let mut links = Vec::new();
        let mut soon = self.expected();
        for listing in &plan.added {
            let directory = match self.mirror.tree.writable(&listing.path) {
                Ok(directory) => directory,
                Err(error) => {
                    listing.entries.iter().for_each(|_| _ = soon.next());
                    self.tell(Err(Self::failed(&listing.path, b"", "open the directory")(error)));
                    continue;
                }
            };
            for entry in &listing.entries {
                soon.next();
                self.options.check()?;
                if plan.linked.contains_key(&entry.object) {
                    links.push((listing, entry));
                    continue;
                }
                let result = self.attach_one(&directory, &listing.path, entry);
                self.tell(result);
                self.restore.progress(&tree::shown(&listing.path, &entry.name));
            }
        }
        for (listing, entry) in links {
            self.options.check()?;
            let result = self.mirror.tree.writable(&listing.path);
            let result = result.map_err(Self::failed(&listing.path, b"", "open the directory"));
            let result = result.and_then(|directory| {
                let from = plan.linked.get(&entry.object).cloned().unwrap_or_default();
                self.link(&directory, &listing.path, entry, &from)
            });
            self.tell(result);
        }
        Ok(())
    }

    /// Prefetches the data for names to be added. There is one item for each name.
    fn expected(&self) -> impl Iterator<Item = ()> + use<'a, 'f, A, B> {
        let (plan, objects) = (self.plan, self.new.objects());
        // Names that were attached before an interruption are not prefetched.
        let top = self.resumes.then(|| self.mirror.tree.top().clone());
        let is_there = move |path: &Path, name: &[u8], attributes: &Attributes| {
            let stat = |top: &Directory| beneath::stat(top.as_fd(), &tree::shown(path, name), Mounts::Refuse);
            top.as_ref().is_some_and(|top| stat(top).is_ok_and(|stat| is_like(&stat, attributes)))
        };
        let entries =
            plan.added.iter().flat_map(|listing| listing.entries.iter().map(move |entry| (listing, entry)));
        let asked = ahead(entries, move |(listing, entry)| match plan.known.get(&entry.object) {
            Some(Known { new: Some(new), .. })
                if !plan.moved.contains(&entry.object)
                    && !plan.linked.contains_key(&entry.object)
                    && !is_there(&listing.path, &entry.name, new) =>
            {
                ahead::content(objects, new)
            }
            Some(_) => 0,
            None => {
                objects.prefetch(entry.object);
                0
            }
        });
        asked.map(drop)
    }

    fn attach_one(&mut self, directory: &OwnedFd, path: &[Vec<u8>], entry: &Entry) -> Result<(), Failure> {
        let shown = tree::shown(path, &entry.name);
        let attributes = match self.plan.known.get(&entry.object).and_then(|known| known.new.clone()) {
            Some(attributes) => attributes,
            None => self.new.attributes(entry.object).map_err(FsError::zpl(&shown))?,
        };
        if self.leaves_out(directory, &entry.name, &attributes)? {
            return Ok(());
        }
        if let Some(first) = self.made.get(&entry.object).cloned() {
            return self.link(directory, path, entry, &first);
        }
        if attributes.links > 1 && attributes.kind() != FileKind::Directory {
            self.made.insert(entry.object, super::plan::join(path, &entry.name));
        }
        let local = |step| Self::failed(path, &entry.name, step);
        let place = directory.as_fd();
        let is_moved = self.plan.moved.contains(&entry.object);
        let staged = Self::staged(entry.object, &attributes);
        if is_moved && stat_at(self.staging.as_fd(), &staged).map_err(local("look at it"))?.is_some() {
            let moved = unlocked(self.staging.as_fd(), &staged, || {
                rustix::fs::renameat(&self.staging, staged.as_slice(), place, entry.name.as_slice())
            });
            moved.map_err(local("move it"))?;
            self.restore.summary_mut().moved += 1;
            return Ok(());
        }
        let there = stat_at(place, &entry.name).map_err(local("look at it"))?;
        if attributes.kind() == FileKind::Directory {
            if there.is_some_and(|stat| is_kind(&stat, &attributes)) {
                return Ok(());
            }
            if is_moved {
                // The unchanged content of the directory is available only from the whole snapshot.
                return Err(local("move it")(io::Error::other("it is gone: sync again with --force")));
            }
            rustix::fs::mkdirat(place, entry.name.as_slice(), Mode::RWXU)
                .map_err(|error| local("make the directory")(error.into()))?;
            self.restore.summary_mut().directories += 1;
            return Ok(());
        }
        // The name was attached before an interruption.
        let is_done = there.is_some_and(|stat| {
            self.resumes
                && (is_moved || is_like(&stat, &attributes))
                && self.distrusted.is_none_or(|begun| ctime(&stat) < begun)
        });
        if is_done {
            return Ok(());
        }
        self.make(directory, path, &entry.name, Node { path: shown, object: entry.object, attributes })
    }

    /// Whether a new or changed object is a device that is left out. If an earlier sync has created it, it is removed.
    fn leaves_out(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<bool, Failure> {
        let privileges = self.options.privileges;
        if !privileges.leave_out(attributes) {
            return Ok(false);
        }
        let staged = Self::staged(attributes.object, attributes);
        let waits = stat_at(self.staging.as_fd(), &staged).map_err(Self::failed(&[], name, "look at it"))?;
        if waits.is_some() {
            remove_one(self.staging.as_fd(), &staged, false).map_err(Self::failed(&[], name, "remove it"))?;
        }
        if stat_at(directory.as_fd(), name).map_err(Self::failed(&[], name, "look at it"))?.is_some() {
            remove_one(directory.as_fd(), name, false).map_err(Self::failed(&[], name, "remove it"))?;
        }
        Ok(self.restore.leaves_out(attributes))
    }

    /// Creates a file, link or special node with its attributes. An existing name is replaced.
    fn make(
        &mut self,
        directory: &OwnedFd,
        path: &[Vec<u8>],
        name: &[u8],
        node: Node,
    ) -> Result<(), Failure> {
        let staged = Self::staged(node.object, &node.attributes);
        self.restore.make(&node, &staged)?;
        let place = directory.as_fd();
        let moved =
            unlocked(place, name, || rustix::fs::renameat(&self.staging, staged.as_slice(), place, name));
        moved.map_err(Self::failed(path, name, "give it its name"))?;
        self.restore.lock_up(&node, place, name);
        Ok(())
    }

    /// Creates a further name for a file.
    fn link(
        &mut self,
        directory: &OwnedFd,
        path: &[Vec<u8>],
        entry: &Entry,
        from: &[Vec<u8>],
    ) -> Result<(), Failure> {
        let local = |step| Self::failed(path, &entry.name, step);
        let new = self.plan.known.get(&entry.object).and_then(|known| known.new.clone());
        if let Some(new) = new
            && self.leaves_out(directory, &entry.name, &new)?
        {
            return Ok(());
        }
        let Some((first, above)) = from.split_last() else { return Ok(()) };
        let above = self.mirror.tree.directory(above).map_err(local("find its other name"))?;
        let place = directory.as_fd();
        let other = stat_at(above.as_fd(), first).map_err(local("find its other name"))?;
        let there = stat_at(place, &entry.name).map_err(local("look at it"))?;
        if let (Some(other), Some(there)) = (&other, &there) {
            if (other.st_dev, other.st_ino) == (there.st_dev, there.st_ino) {
                return Ok(());
            }
            remove_one(place, &entry.name, false).map_err(local("replace it"))?;
        }
        let linked = unlocked(above.as_fd(), first, || {
            rustix::fs::linkat(&above, first.as_slice(), place, entry.name.as_slice(), AtFlags::empty())
        });
        linked.map_err(local("link"))?;
        self.restore.summary_mut().hardlinks += 1;
        Ok(())
    }

    /// Updates a changed file, link or special node that stays.
    fn content(&mut self, object: u64, path: &Path, page: Page) -> Result<(), Failure> {
        let Some(Known { old: Some(old), new: Some(new) }) = self.plan.known.get(&object) else {
            return Ok(());
        };
        let Some((name, above)) = path.split_last() else { return Ok(()) };
        let local = |step| Self::failed(above, name, step);
        let directory = self.mirror.tree.directory(above).map_err(local("open the directory"))?;
        let node = Node { path: tree::shown(path, b""), object, attributes: new.clone() };
        if self.leaves_out(&directory, name, new)? {
            return Ok(());
        }
        let Some(stat) = stat_at(directory.as_fd(), name).map_err(local("look at it"))? else {
            return self.make(&directory, above, name, node);
        };
        if !is_kind(&stat, new) {
            return Err(local("change it")(io::Error::other("it was replaced in the meantime")));
        }
        self.restore.summary_mut().changed += 1;
        if new.kind() != FileKind::File {
            self.restore.dress_at(&node, directory.as_fd(), name);
            return Ok(());
        }
        let source = |source| Failure::from(super::plan::unknown(object, source));
        let mut page = page.map_err(source)?;
        let has_changed = !page.is_empty() || old.size != new.size || self.distrusted.is_some();
        if has_changed && is_replaced(new) {
            return self.make(&directory, above, name, node);
        }
        let open = |access| open_up_file(directory.as_fd(), name, access);
        let file = open(OFlags::RDONLY).map_err(local("open the file"))?;
        beneath::unlock(file.as_fd()).map_err(local("open the file"))?;
        if has_changed {
            let out = open(OFlags::WRONLY).map_err(local("open the file for writing"))?;
            // Both descriptors must refer to the file that was checked.
            let is_same = rustix::fs::fstat(&out).map_err(io::Error::from);
            let is_same = is_same.and_then(|found| beneath::check_unchanged(&stat, &found));
            is_same.map_err(local("open the file for writing"))?;
            let out = File::from(out);
            out.set_len(new.size).map_err(local("set the file's size"))?;
            if self.distrusted.is_some() {
                page = vec![(0, u64::MAX)];
            }
            while let Some((last, len)) = page.last().copied() {
                for (offset, len) in ranges(self.new.objects(), object, page, CHUNK) {
                    self.options.check().map_err(|_| local("write")(io::ErrorKind::Interrupted.into()))?;
                    self.patch(&node, &out, offset, offset.saturating_add(len).min(new.size))?;
                }
                let next = last.saturating_add(len);
                if next >= new.size {
                    break;
                }
                page = self.changes.blocks(object, next).map_err(source)?;
            }
        }
        self.restore.dress(&node, file.as_fd());
        Ok(())
    }

    /// Makes a part of a file equal to the newer snapshot.
    fn patch(&mut self, node: &Node, out: &File, from: u64, to: u64) -> Result<(), Failure> {
        let (path, size) = (&node.path, node.attributes.size);
        let source = |error| Failure::from(FsError::zpl(path)(error));
        let local = |step| {
            let path = path.clone();
            move |source| Failure::Local { path, step, source }
        };
        let mut at = from;
        let mut buf = Vec::new();
        while at < to {
            let (data, end) =
                self.new.next_extent(node.object, size, at).map_err(source)?.unwrap_or((to, to));
            let (data, end) = (data.min(to), end.min(to));
            if at < data {
                punch(out, at, data - at).map_err(local("make a hole"))?;
            }
            at = data;
            for (at, len) in pieces(self.new.objects(), node.object, (at, end), CHUNK) {
                buf.resize(len as usize, 0);
                let len = self.new.read(node.object, size, at, &mut buf).map_err(source)?;
                out.write_all_at(buf.get(..len).unwrap_or_default(), at).map_err(local("write the file"))?;
                self.restore.summary_mut().bytes += len as u64;
            }
            at = end.max(at);
        }
        Ok(())
    }

    fn dress_directory(&mut self, object: u64, path: &Path) {
        let shown = tree::shown(path, b"");
        let attributes = match self.plan.known.get(&object).and_then(|known| known.new.clone()) {
            Some(attributes) => Ok(attributes),
            None => self.new.attributes(object).map_err(FsError::zpl(&shown)),
        };
        let result = attributes.map_err(Failure::from).and_then(|attributes| {
            let opened = self.mirror.tree.directory(path);
            let directory = opened.map_err(Self::failed(path, b"", "open the directory"))?;
            beneath::unlock(directory.as_fd()).map_err(Self::failed(path, b"", "open the directory"))?;
            self.restore.dress(&Node { path: shown, object, attributes }, directory.as_fd());
            Ok(())
        });
        self.tell(result);
    }
}

/// Ranges in which a file differs, from [`Changes::blocks`].
type Page = Result<Vec<(u64, u64)>, SourceError>;

impl Plan {
    /// The first ranges in which a file that stays differs.
    fn first_blocks(&self, object: u64, changes: &dyn Changes) -> Page {
        match self.known.get(&object) {
            Some(Known { old: Some(_), new: Some(new) }) if new.kind() == FileKind::File => {
                changes.blocks(object, 0)
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Whether a changed file is replaced atomically.
fn is_replaced(new: &Attributes) -> bool {
    new.size <= REPLACED_MAX && new.links == 1
}

/// Opens a regular file. If its mode forbids that to its owner, it is made accessible first.
fn open_up_file(directory: BorrowedFd<'_>, name: &[u8], access: OFlags) -> io::Result<OwnedFd> {
    match beneath::open_regular(directory, name, access) {
        Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => {
            beneath::open_up(directory, name)?;
            beneath::open_regular(directory, name, access)
        }
        opened => opened,
    }
}

/// Makes a hole. If the filesystem does not support holes, zeros are written.
pub(super) fn punch(file: &File, at: u64, len: u64) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, how, at, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {}
        done => return Ok(done?),
    }
    let zeros = vec![0; len.min(CHUNK) as usize];
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(CHUNK);
        file.write_all_at(zeros.get(..piece as usize).unwrap_or_default(), at + done)?;
        done += piece;
    }
    Ok(())
}
