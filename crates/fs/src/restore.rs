//! Restoring files to local disk: a whole tree, a part of it, one file, or a volume to an image or device.
//!
//! A snapshot may be a stranger's. What would give rights on this machine is left out unless it is asked for: setuid and setgid
//! bits of files, file capabilities, device nodes ([`Privileges`]). So are records of syncs ([`crate::mirror`]), which are about
//! the directory that they were made in.
//!
//! What is restored: owners (as root, or when told to), modes, times to the nanosecond, extended attributes, POSIX
//! ACLs, hard links, holes, symbolic links, devices, fifos, sockets, inode flags and project ids.
//!
//! The tree is hostile and so may be the target: every name is checked, every step is taken relative to an open
//! directory and never through a symbolic link, so nothing is ever written outside the target. A file comes into being
//! under its name whole: it is made under another name and renamed. What fails is told and the rest goes on.

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
    /// As root only.
    #[default]
    Auto,
    /// Always; failing to is reported for each path.
    Always,
    /// Never: everything belongs to whoever restores.
    Never,
}

/// What happens to a file that is already where one is to be restored. Directories are always filled up, never
/// replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It stays, and is reported as a failure.
    #[default]
    Keep,
    /// It is replaced, at one stroke.
    Replace,
}

/// How to restore.
#[derive(Debug, Clone, Copy, Default)]
pub struct RestoreOptions {
    /// Whether owners and groups are set.
    pub owners: Owners,
    /// What happens to files already there.
    pub existing: Existing,
    /// Each file is synced to disk before it gets its name.
    pub sync: bool,
    /// What is restored that gives rights on this machine.
    pub privileges: Privileges,
}

/// What was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Directories made or filled up.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of data in them, holes not counted.
    pub bytes: u64,
    /// Further names of files already restored.
    pub hardlinks: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, fifos and sockets.
    pub specials: u64,
    /// Names that went, since they are not in the snapshot.
    pub removed: u64,
    /// Files and directories that only got another name or place.
    pub moved: u64,
    /// Files and links that were there and were changed.
    pub changed: u64,
    /// Files and links that were there already.
    pub kept: u64,
    /// Failures reported.
    pub failures: u64,
    /// Those of them that are only an attribute which could not be set.
    pub unset: u64,
    /// What was left out on purpose.
    pub left_out: LeftOut,
}

/// Something that could not be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The snapshot cannot be read there, or holds what must not be restored.
    #[error(transparent)]
    Source(#[from] FsError),
    /// The local system refused.
    #[error("{}: cannot {step}: {source}", crate::error::show(path))]
    Local {
        /// Path below the target.
        path: Vec<u8>,
        /// What was tried.
        step: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// Hears of what goes on during a restore.
pub trait Observer {
    /// A path has been dealt with, successfully or not.
    fn progress(&mut self, path: &[u8], so_far: &Summary) {
        let _ = (path, so_far);
    }

    /// So many bytes of data are written by now, those of an unfinished file included.
    fn bytes(&mut self, so_far: u64) {
        let _ = so_far;
    }

    /// Something could not be restored; the rest goes on.
    fn failure(&mut self, failure: Failure);
}

/// Restores one file or tree.
pub(crate) struct Restore<'r, 'f, O> {
    fs: &'f Filesystem<O>,
    options: RestoreOptions,
    set_owners: bool,
    target: Target,
    links: Links,
    observer: &'r mut dyn Observer,
    summary: Summary,
    /// That the target has no project ids was told.
    told_of_projects: bool,
    /// While inside a directory that could not be made, how many directories deep.
    skipping: usize,
    /// The target is to hold nothing else.
    update: Option<Update<'r>>,
    /// Inode flags are set later, by the caller.
    defers_flags: bool,
}

/// Restores the directory `object` into the directory `target`, which is made if need be and then gets the
/// directory's own attributes; or any other `object` as `name` in the directory `target`.
///
/// # Errors
/// Only when nothing can be begun: `object` cannot be read or `target` not opened. All else goes to `observer` and
/// is counted in the summary.
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
                Ok(Event::Node(node)) => self.node(&node, name),
                Ok(Event::Enter(node)) => self.enter(&node),
                Ok(Event::Leave(node)) => self.leave(&node),
            }
        }
    }

    pub(crate) fn report(&mut self, failure: Failure) {
        self.summary.failures += 1;
        self.observer.failure(failure);
    }

    /// Reports a failure of the local system; tells whether there was none.
    fn local(&mut self, path: &[u8], step: &'static str, result: io::Result<()>) -> bool {
        if let Err(source) = result {
            self.report(Failure::Local { path: path.to_vec(), step, source });
            return false;
        }
        true
    }

    /// Reports what a node could not be given. That the target has no project ids is said once: it would be said of
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

    /// Everything but the start of a tree, which is the target itself.
    fn node(&mut self, node: &Node, name: &[u8]) {
        if self.skipping > 0 {
            return;
        }
        let directory = node.attributes.kind() == FileKind::Directory;
        if node.path == b"." && directory {
            return;
        }
        let name = if node.path == b"." { name } else { last_name(&node.path) };
        if self.is_reserved(node) {
            // At the top of a target of syncs it is documented.
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
        match directory {
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

    /// A file, link or special node: made under a temporary name, dressed, then renamed.
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

    /// A directory gets its attributes last: what is made in it would change its times, and its mode may forbid it.
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
                // Whatever is above is not where it was; nothing more can be put there.
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
