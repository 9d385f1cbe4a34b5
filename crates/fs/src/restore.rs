//! Restoring files to local disk: a tree, a part of it, one file, or a volume to an image or device.
//!
//! A snapshot may come from an untrusted source. Everything that grants rights on this machine is left out unless the
//! caller asks for it: setuid and setgid bits of files, file capabilities, device nodes ([`Privileges`]). The records
//! of targets ([`crate::mirror`]) are left out too, because they apply only to the directory in which they were
//! written.
//!
//! Restored are owners (as root, or on request), modes, times to the nanosecond, extended attributes, POSIX ACLs, hard
//! links, holes, symbolic links, devices, fifos, sockets, inode flags and project IDs.
//!
//! Both the snapshot and the target may be hostile. Every name is checked. Every step is relative to an open directory
//! and never follows a symbolic link, so nothing is written outside the target. A file is written under a temporary
//! name and then renamed, so that it appears in full. Failures are reported, and the restore continues.

mod attributes;
mod file;
mod links;
mod privileges;
mod target;
mod update;
mod volume;

pub use privileges::{LeftOut, Privileges};
pub(crate) use update::{Refill, refill};
pub use volume::{VolumeOptions, restore_volume};

use crate::ahead::{self, ahead};
use crate::error::FsError;
use crate::walk::{Event, Node, Walk};
use attributes::Step;
use links::Links;
use snowmelt_zpl::{FileKind, Filesystem, Objects};
use std::io;
use std::path::Path;
use target::Target;
use update::Update;

/// Whether owners and groups are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Owners {
    /// Only as root.
    #[default]
    Auto,
    /// Always. A failure is reported for each path.
    Always,
    /// Never. Everything belongs to the user who restores.
    Never,
}

/// What happens if a file to be restored already exists. Existing directories are never replaced; files are added to
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// The existing file stays, and a failure is reported.
    #[default]
    Keep,
    /// The file is replaced atomically.
    Replace,
}

/// The options of a restore.
#[derive(Debug, Clone, Copy, Default)]
pub struct RestoreOptions {
    /// Whether owners and groups are set.
    pub owners: Owners,
    /// What happens to existing files.
    pub existing: Existing,
    /// Whether each file is synced to disk before it gets its name.
    pub sync: bool,
    /// Which rights on this machine are restored.
    pub privileges: Privileges,
}

/// The result of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Directories that were created or filled.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of data in files, without holes.
    pub bytes: u64,
    /// Further names of files that were already restored.
    pub hardlinks: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, fifos and sockets.
    pub specials: u64,
    /// Names that were removed because they are not in the snapshot.
    pub removed: u64,
    /// Files and directories that were only renamed or moved.
    pub moved: u64,
    /// Existing files and links that were changed.
    pub changed: u64,
    /// Existing files and links that did not need a change.
    pub kept: u64,
    /// Number of reported failures.
    pub failures: u64,
    /// Number of failures to set an attribute, which are included in `failures`.
    pub unset: u64,
    /// What was left out on purpose.
    pub left_out: LeftOut,
}

/// A failure to restore something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The snapshot cannot be read, or contains something that must not be restored.
    #[error(transparent)]
    Source(#[from] FsError),
    /// An operation on the local system failed.
    #[error("{}: cannot {step}: {source}", crate::error::show(path))]
    Local {
        /// Path below the target.
        path: Vec<u8>,
        /// The operation.
        step: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// Receives events during a restore.
pub trait Observer {
    /// A path has been processed, with or without success.
    fn progress(&mut self, path: &[u8], so_far: &Summary) {
        let _ = (path, so_far);
    }

    /// The number of bytes written so far, including those of an unfinished file.
    fn bytes(&mut self, so_far: u64) {
        let _ = so_far;
    }

    /// Something could not be restored. The restore continues.
    fn failure(&mut self, failure: Failure);
}

/// The state of a restore of one file or tree.
pub(crate) struct Restore<'r, 'f, O> {
    fs: &'f Filesystem<O>,
    options: RestoreOptions,
    set_owners: bool,
    target: Target,
    links: Links,
    observer: &'r mut dyn Observer,
    summary: Summary,
    /// Whether it was reported that the target has no project IDs.
    told_of_projects: bool,
    /// Inside a directory that could not be created: the depth below it.
    skipping: usize,
    /// Set if the target must contain nothing except the snapshot's files.
    update: Option<Update<'r>>,
    /// Whether the caller sets inode flags later.
    defers_flags: bool,
}

/// Restores the directory `object` into the directory `target`. The target is created if needed, and gets the
/// attributes of the directory. Any other `object` is restored as `name` in the directory `target`.
///
/// # Errors
/// Only if `object` cannot be read or `target` cannot be opened. Other failures are reported to `observer` and counted
/// in the summary.
pub fn restore<O: Objects>(
    fs: &Filesystem<O>,
    object: u64,
    name: &[u8],
    target: &Path,
    options: RestoreOptions,
    observer: &mut dyn Observer,
) -> Result<Summary, Failure> {
    let walk = Walk::new(fs, object)?;
    let target = Target::open(target).map_err(|source| {
        let path = target.as_os_str().as_encoded_bytes().to_vec();
        Failure::Local { path, step: "open the target directory", source }
    })?;
    let mut restore = Restore::new(fs, target, options, observer);
    restore.run(walk, name);
    Ok(restore.summary)
}

/// The last name of a path.
fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

impl<'r, 'f, O: Objects> Restore<'r, 'f, O> {
    fn new(
        fs: &'f Filesystem<O>,
        target: Target,
        options: RestoreOptions,
        observer: &'r mut dyn Observer,
    ) -> Self {
        let set_owners = match options.owners {
            Owners::Auto => rustix::process::geteuid().is_root(),
            Owners::Always => true,
            Owners::Never => false,
        };
        let (links, summary) = (Links::default(), Summary::default());
        let (told_of_projects, skipping) = (false, 0);
        let (update, defers_flags) = (None, false);
        Self {
            fs,
            options,
            set_owners,
            target,
            links,
            observer,
            summary,
            told_of_projects,
            skipping,
            update,
            defers_flags,
        }
    }

    fn run(&mut self, walk: Walk<'_, O>, name: &[u8]) {
        let (fs, wants) = (self.fs, self.update.as_ref().map(Update::wants));
        let events = ahead(walk, |event| match event {
            Ok(Event::Node(node)) if wants.as_ref().is_none_or(|wants| wants.has_to_be_made(node)) => {
                ahead::content(fs.objects(), &node.attributes)
            }
            _ => 0,
        });
        for event in events {
            if self.update.as_ref().is_some_and(Update::is_cancelled) {
                return;
            }
            match event {
                Err(error) => {
                    if let Some(update) = &mut self.update {
                        update.failed();
                    }
                    self.report(error.into());
                }
                Ok(Event::Node(mut node)) => {
                    // A single file appears under its own name, in messages too.
                    if node.path == b"." && node.attributes.kind() != FileKind::Directory {
                        node.path = name.to_vec();
                    }
                    self.node(&node);
                }
                Ok(Event::Enter(node)) => self.enter(&node),
                Ok(Event::Leave(node)) => self.leave(&node),
            }
        }
    }

    pub(crate) fn report(&mut self, failure: Failure) {
        self.summary.failures += 1;
        self.observer.failure(failure);
    }

    /// Reports a failure of the local system. Returns whether the operation succeeded.
    fn local(&mut self, path: &[u8], step: &'static str, result: io::Result<()>) -> bool {
        if let Err(source) = result {
            self.report(Failure::Local { path: path.to_vec(), step, source });
            return false;
        }
        true
    }

    /// Reports attributes that could not be set on a node. A target without project IDs is reported only once, not for
    /// every file.
    fn report_steps(&mut self, node: &Node, steps: Vec<Step>) {
        for (step, source) in steps {
            if step == attributes::SET_PROJECT && crate::fsxattr::is_unsupported(&source) {
                if std::mem::replace(&mut self.told_of_projects, true) {
                    continue;
                }
                let step = "set the project id, nor any other in this target";
                self.summary.unset += 1;
                self.report(Failure::Local { path: node.path.clone(), step, source });
                continue;
            }
            self.summary.unset += 1;
            self.report(Failure::Local { path: node.path.clone(), step, source });
        }
    }

    /// Restores a node, except the root of a tree, which is the target itself.
    fn node(&mut self, node: &Node) {
        if self.skipping > 0 {
            return;
        }
        if node.path == b"." {
            return;
        }
        let name = last_name(&node.path);
        if self.is_reserved(node) {
            // At the top of a sync's target, the record is expected.
            let is_expected = self.update.is_some() && !node.path.contains(&b'/');
            self.summary.left_out.records += u64::from(!is_expected);
            return;
        }
        if self.leaves_out(&node.attributes) {
            return;
        }
        if let Some(update) = &mut self.update {
            update.note(name);
        }
        if !crate::paths::is_safe_name(name) {
            let (path, name) = (node.path.clone(), name.to_vec());
            self.report(FsError::BadName { path, name }.into());
            return;
        }
        match node.attributes.kind() == FileKind::Directory {
            true => {
                if let Err(failure) = self.make_way(node, name) {
                    self.report(failure);
                    return;
                }
                let result = self.target.make_directory(name, self.options.existing);
                if self.local(&node.path, "make the directory", result) {
                    self.summary.directories += 1;
                }
            }
            false => self.leaf(node, name),
        }
        self.observer.progress(&node.path, &self.summary);
    }

    /// Restores a file, link or special node: creates it under a temporary name, sets its attributes, then renames it.
    fn leaf(&mut self, node: &Node, name: &[u8]) {
        let linked = node.attributes.links > 1;
        if linked {
            match self.links.link(&mut self.target, node.object, name, self.options.existing) {
                Some(Ok(())) => {
                    self.summary.hardlinks += 1;
                    return;
                }
                Some(Err(source)) => {
                    self.report(Failure::Local { path: node.path.clone(), step: "link", source });
                    return;
                }
                None => {}
            }
        }
        let made = match self.keeps(node, name) {
            Ok(false) => self.make(node, name),
            Ok(true) => Ok(()),
            Err(failure) => Err(failure),
        };
        match made {
            Ok(()) if linked => {
                let remembered = self.links.remember(&mut self.target, node, name);
                self.local(&node.path, "remember the file for its other names", remembered);
            }
            Ok(()) => {}
            Err(failure) => self.report(failure),
        }
    }

    fn enter(&mut self, node: &Node) {
        if self.skipping > 0 {
            self.skipping += 1;
            return;
        }
        if self.is_reserved(node) {
            self.skipping = 1;
            return;
        }
        let result = match node.path == b"." {
            true => Ok(()),
            false => self.target.enter(last_name(&node.path)),
        };
        if !self.local(&node.path, "open the directory", result) {
            self.skipping = 1;
            return;
        }
        if let Some(update) = &mut self.update {
            update.enter();
        }
    }

    /// Finishes a directory. Its attributes are set last, because new entries change its times, and its mode may forbid
    /// them.
    fn leave(&mut self, node: &Node) {
        if self.skipping > 0 {
            self.skipping -= 1;
            return;
        }
        self.sweep(node);
        let result = self.dress_directory(node);
        self.report_steps(node, result);
        if node.path != b"." {
            let result = self.target.leave();
            if !self.local(&node.path, "go back up", result) {
                // The parent directory is not where it was, so nothing more can be restored.
                self.skipping = usize::MAX / 2;
            }
        }
    }

    fn dress_directory(&mut self, node: &Node) -> Vec<Step> {
        match self.wanted(node) {
            Ok(wanted) => match self.target.here() {
                Ok(directory) => {
                    let mut steps = if self.update.is_some() { wanted.strip(directory) } else { Vec::new() };
                    steps.extend(wanted.apply(directory));
                    steps
                }
                Err(error) => vec![("open the directory", error)],
            },
            Err(error) => {
                self.report(error.into());
                Vec::new()
            }
        }
    }
}
