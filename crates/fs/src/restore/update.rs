//! Restoring into a directory that is not empty, for [`crate::mirror`]. Files that are as in the snapshot stay, files
//! that are not in it are removed, and single files are created in a staging directory.

use super::attributes;
use super::target::Target;
use super::{Existing, Failure, Observer, Owners, Privileges, Restore, RestoreOptions, Summary};
use crate::alike::holds;
use crate::beneath::{self, Directory, Mounts, open_node, open_regular, remove_all};
use crate::error::FsError;
use crate::reserved::is_reserved;
use crate::walk::{Node, Walk};
use rustix::fs::{AtFlags, Mode, OFlags};
use snowmelt_zpl::{FileKind, Filesystem, Objects};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a name at the top of a directory belongs to others: it is neither restored nor removed.
pub(crate) type IsOthers = dyn Fn(&[u8]) -> bool;

/// The state of a directory that must contain nothing except the snapshot's files at the end.
pub(super) struct Update<'r> {
    top: &'r Directory,
    /// Files changed after this time may not be on disk. In nanoseconds since 1970.
    distrusted: Option<i128>,
    is_others: &'r IsOthers,
    cancelled: &'r AtomicBool,
    /// For each directory on the current path, its names in the snapshot.
    levels: Vec<Level>,
}

#[derive(Default)]
struct Level {
    names: HashSet<Vec<u8>>,
    /// Whether some of its names could not be read.
    is_partial: bool,
}

/// How a directory that is not empty is filled.
#[derive(Clone, Copy)]
pub(crate) struct Refill<'r> {
    pub(crate) owners: Owners,
    pub(crate) privileges: Privileges,
    /// Files changed after this time may not be on disk. In nanoseconds since 1970.
    pub(crate) distrusted: Option<i128>,
    /// Names at the top of the directory that others keep there.
    pub(crate) is_others: &'r IsOthers,
    pub(crate) cancelled: &'r AtomicBool,
}

/// Makes the directory `top` equal to the root directory of `fs`, except for the record and the names that other syncs
/// keep there. Returns `false` if it was cancelled.
pub(crate) fn refill<'r, O: Objects>(
    fs: &Filesystem<O>,
    top: &'r Directory,
    how: Refill<'r>,
    observer: &'r mut dyn Observer,
) -> Result<(Summary, bool), Failure> {
    let walk = Walk::new(fs, fs.root())?;
    let target = Target::at(top, Mounts::Refuse).map_err(|source| {
        let path = top.path().as_os_str().as_bytes().to_vec();
        Failure::Local { path, step: "open the target directory", source }
    })?;
    let Refill { owners, privileges, distrusted, is_others, cancelled } = how;
    let mut restore = Restore::new(fs, target, options(owners, privileges), observer);
    restore.update = Some(Update { top, distrusted, is_others, cancelled, levels: Vec::new() });
    restore.run(walk, b"");
    Ok((restore.summary, !cancelled.load(Ordering::Relaxed)))
}

fn options(owners: Owners, privileges: Privileges) -> RestoreOptions {
    RestoreOptions { owners, existing: Existing::Replace, sync: false, privileges }
}

/// Decides which files must be created.
pub(super) struct Wants<'r> {
    top: &'r Directory,
    distrusted: Option<i128>,
}

impl Wants<'_> {
    /// Whether a file probably does not exist yet. Used for prefetching.
    pub(super) fn has_to_be_made(&self, node: &Node) -> bool {
        let found = beneath::stat(self.top.as_fd(), &node.path, Mounts::Refuse);
        found.map_or(true, |stat| !holds(&stat, &node.attributes, self.distrusted))
    }
}

impl<'r> Update<'r> {
    pub(super) fn wants(&self) -> Wants<'r> {
        Wants { top: self.top, distrusted: self.distrusted }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn note(&mut self, name: &[u8]) {
        if let Some(level) = self.levels.last_mut() {
            level.names.insert(name.to_vec());
        }
    }

    pub(super) fn enter(&mut self) {
        self.levels.push(Level::default());
    }

    /// Notes that something could not be read, in an unknown directory.
    pub(super) fn failed(&mut self) {
        for level in &mut self.levels {
            level.is_partial = true;
        }
    }
}

impl<'r, 'f, O: Objects> Restore<'r, 'f, O> {
    /// Creates single files in the directory `staging`, without the inode flags that would prevent moving them.
    pub(crate) fn staging(
        fs: &'f Filesystem<O>,
        staging: &Directory,
        (owners, privileges): (Owners, Privileges),
        observer: &'r mut dyn Observer,
    ) -> io::Result<Self> {
        let target = Target::at(staging, Mounts::Refuse)?;
        let mut restore = Self::new(fs, target, options(owners, privileges), observer);
        restore.defers_flags = true;
        Ok(restore)
    }

    pub(crate) fn summary(&self) -> Summary {
        self.summary
    }

    pub(crate) fn summary_mut(&mut self) -> &mut Summary {
        &mut self.summary
    }

    pub(crate) fn progress(&mut self, path: &[u8]) {
        self.observer.progress(path, &self.summary);
    }

    /// Creates a file, link or special node with this name.
    pub(crate) fn make(&mut self, node: &Node, name: &[u8]) -> Result<(), Failure> {
        match node.attributes.kind() {
            FileKind::File => self.file(node, name),
            FileKind::Symlink => self.symlink(node, name),
            _ => self.special(node, name),
        }
    }

    /// Sets the inode flags of a file after it was moved to its place.
    pub(crate) fn lock_up(&mut self, node: &Node, directory: BorrowedFd<'_>, name: &[u8]) {
        if node.attributes.kind() != FileKind::File || node.attributes.flags.fs_ioc_flags() == 0 {
            return;
        }
        let steps = match open_regular(directory, name, OFlags::RDONLY) {
            Ok(file) => attributes::apply_flags(&node.attributes, file.as_fd()),
            Err(error) => vec![("open the file", error)],
        };
        self.report_steps(node, steps);
    }

    /// Sets the attributes of an open file or directory to those of `node`, and removes others.
    pub(crate) fn dress(&mut self, node: &Node, file: BorrowedFd<'_>) {
        match self.wanted(node) {
            Ok(wanted) => {
                let mut steps = wanted.strip(file);
                steps.extend(wanted.apply(file));
                self.report_steps(node, steps);
            }
            Err(error) => self.report(error.into()),
        }
    }

    /// Like [`Self::dress`], for a node that cannot be opened.
    pub(crate) fn dress_at(&mut self, node: &Node, directory: BorrowedFd<'_>, name: &[u8]) {
        let found = self.wanted(node).map(|wanted| {
            let found = open_node(directory, name).and_then(|found| {
                wanted.check_node(found.as_fd(), false)?;
                Ok(found)
            });
            match found {
                Ok(found) => wanted.apply_to_node(found.as_fd()),
                Err(error) => vec![("find it", error)],
            }
        });
        match found {
            Ok(steps) => self.report_steps(node, steps),
            Err(error) => self.report(error.into()),
        }
    }

    /// Whether an existing name can stay. If so, its attributes are set. Otherwise it is removed. Only a file with the
    /// size and mtime of the snapshot is not removed, because the new file replaces it.
    pub(super) fn keeps(&mut self, node: &Node, name: &[u8]) -> Result<bool, Failure> {
        let Some(update) = &self.update else { return Ok(false) };
        let failed = |step| move |source: io::Error| Failure::Local { path: node.path.clone(), step, source };
        let here = self.target.here().map_err(failed("open the directory"))?;
        let stat = match rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(_) => return Ok(false),
        };
        let attributes = &node.attributes;
        #[allow(clippy::unnecessary_cast)]
        let links = stat.st_nlink as u64;
        let mut is_kept = holds(&stat, attributes, update.distrusted) && links == attributes.links;
        if is_kept && attributes.kind() == FileKind::Symlink {
            let found = rustix::fs::readlinkat(here, name, Vec::new()).unwrap_or_default();
            is_kept = self.fs.readlink(node.object).map_err(FsError::zpl(&node.path))? == found.as_bytes();
        }
        if is_kept && matches!(attributes.kind(), FileKind::BlockDevice | FileKind::CharDevice) {
            let (major, minor) = attributes.rdev.unwrap_or((0, 0));
            is_kept = stat.st_rdev == rustix::fs::makedev(major, minor);
        }
        if !is_kept {
            if attributes.kind() != FileKind::File || !holds(&stat, attributes, None) || links > 1 {
                remove_all(here, name).map_err(failed("replace it"))?;
            }
            return Ok(false);
        }
        self.dress_in_place(node, name)?;
        self.summary.kept += 1;
        Ok(true)
    }

    fn dress_in_place(&mut self, node: &Node, name: &[u8]) -> Result<(), Failure> {
        let failed = |step| move |source: io::Error| Failure::Local { path: node.path.clone(), step, source };
        let here = self.target.here().map_err(failed("open the directory"))?;
        let here = here.try_clone_to_owned().map_err(failed("open the directory"))?;
        let here = here.as_fd();
        if node.attributes.kind() != FileKind::File {
            self.dress_at(node, here, name);
            return Ok(());
        }
        let mut file = open_regular(here, name, OFlags::RDONLY);
        if file.is_err() {
            beneath::open_up(here, name).map_err(failed("open the file"))?;
            file = open_regular(here, name, OFlags::RDONLY);
        }
        let file = file.map_err(failed("open the file"))?;
        self.dress(node, file.as_fd());
        Ok(())
    }

    /// Removes anything that is not a directory at this name, or makes an existing directory accessible for changes.
    pub(super) fn make_way(&mut self, node: &Node, name: &[u8]) -> Result<(), Failure> {
        if self.update.is_none() {
            return Ok(());
        }
        let failed = |step| move |source: io::Error| Failure::Local { path: node.path.clone(), step, source };
        let here = self.target.here().map_err(failed("open the directory"))?;
        let Ok(stat) = rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        if stat.st_mode & 0o170_000 != FileKind::Directory.mode_bits() {
            return remove_all(here, name).map_err(failed("replace it"));
        }
        let is_open = Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU);
        if !is_open && !rustix::process::geteuid().is_root() {
            beneath::open_up(here, name).map_err(failed("open the directory"))?;
        }
        Ok(())
    }

    /// Whether a node is not restored because its name is reserved for a record, or for another target. Names of
    /// records are reserved in every directory, because any directory may become a target.
    pub(super) fn is_reserved(&self, node: &Node) -> bool {
        is_reserved(super::last_name(&node.path))
            || self.update.as_ref().is_some_and(|update| (update.is_others)(&node.path))
    }

    /// Removes names that are not in the snapshot from the current directory.
    pub(super) fn sweep(&mut self, node: &Node) {
        let Some(level) = self.update.as_mut().and_then(|update| update.levels.pop()) else { return };
        if level.is_partial {
            return;
        }
        let is_others = self.update.as_ref().map(|update| update.is_others).filter(|_| node.path == b".");
        let result = (|| {
            let here = self.target.here()?;
            beneath::unlock(here)?;
            for name in beneath::names(here)? {
                let is_reserved = is_others.is_some_and(|is_others| is_others(&name));
                if !is_reserved && !level.names.contains(&name) {
                    remove_all(here, &name)?;
                    self.summary.removed += 1;
                }
            }
            Ok(())
        })();
        self.local(&node.path, "remove what is not in the snapshot", result);
    }
}
