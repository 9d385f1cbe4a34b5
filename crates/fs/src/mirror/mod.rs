//! Keeping a directory or image equal to snapshots. The first sync fills it. Later ones apply only the changes between
//! the snapshot that it holds and a newer one.
//!
//! - `record`: the record of a target: what it holds, and the progress of a sync
//! - `plan`: the changes of a directory that follow from two snapshots
//! - `local`: changes that others have made in the directory
//! - `apply`: carries out a plan
//! - `whole`: compares the whole directory with a snapshot
//! - `tree`: the directory as a tree of paths
//! - `nested`: names in the directory that belong to other syncs
//! - `moves`: renaming the copies of descendant datasets
//! - `volume`: images and block devices
//!
//! # Interruptions
//!
//! Before anything is changed, the record notes that a change to a certain snapshot has begun. Then there are three
//! steps. Each is on disk before the next one begins. *Detach* removes names; objects that are moved wait in the
//! record's directory under their object numbers. *Attach* creates names, content and attributes as in the newer
//! snapshot. Finally, the record notes that the target holds that snapshot. *Detach* and *attach* can be repeated from
//! their beginning, because finished parts are recognised. If the older snapshot no longer exists by then, the whole
//! directory is compared with a newer one.
//!
//! # Untrusted content
//!
//! The directory may contain anything that a peer sends, and another user may change it at the same time. So the
//! directory and the record are accessed through descriptors ([`crate::beneath`]). No symbolic link is followed, no
//! device or fifo is opened, and no mount is entered. Only the copy of a descendant dataset may be a mount point, if it
//! already has a record ([`enter_copy`]). The name of the record's directory is reserved at every depth. A record that
//! another user has written is refused.
//!
//! During a sync, readers of the directory see a mixture of both snapshots. Small files are replaced atomically. Large
//! files are changed in place.

mod apply;
mod local;
mod moves;
mod nested;
mod plan;
mod record;
mod tree;
mod volume;
mod whole;

pub use local::{Conflict, Conflicts};
pub use moves::{Kept, Move};
pub use record::Held;
pub use volume::{Image, ImageChange};

pub use crate::reserved::{RECORD_DIRECTORY, is_reserved};

use crate::alike::Stamp;
use crate::beneath::{self, Directory, Mounts, Place};
use crate::error::FsError;
use crate::restore::{Observer, Owners, Privileges, Summary};
use nested::Nested;
use record::{Phase, Progress, Record};
use rustix::fs::{FlockOperation, Mode};
use snowmelt_zpl::{Filesystem, Objects, SourceError};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tree::Tree;

const RECORD: &[u8] = b"record";
/// The directory for waiting objects and new files.
const STAGING: &[u8] = b"staging";

/// Opens the copy of a descendant dataset. It may be a mount point (a separate disk) if it contains the copy's record.
///
/// # Errors
/// Like [`Directory::child`].
pub fn enter_copy(above: &Directory, name: &[u8]) -> io::Result<Directory> {
    let refused = match above.child(name) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => error,
        entered => return entered,
    };
    let mounted = above.enter(name, Mounts::Cross)?;
    let own = match mounted.stat(RECORD_DIRECTORY.as_bytes())? {
        Some(_) => mounted.child(RECORD_DIRECTORY.as_bytes())?,
        None => return Err(refused),
    };
    match mounted.is_ours(&rustix::fs::fstat(&own)?)? {
        true => Ok(mounted),
        false => Err(refused),
    }
}

/// Checks that a file of a record in `directory` was written by the user of this process.
fn check_owner(directory: &Directory, path: &Path, file: impl AsFd) -> Result<(), MirrorError> {
    let look = || -> io::Result<(bool, u32)> {
        let stat = rustix::fs::fstat(file)?;
        Ok((directory.is_ours(&stat)?, stat.st_uid))
    };
    match look().map_err(MirrorError::local(path, "find whose it is"))? {
        (true, _) => Ok(()),
        (false, owner) => Err(MirrorError::NotOurs { path: path.to_owned(), owner }),
    }
}

/// Opens the record's directory in `directory`.
fn own_of(directory: &Directory) -> Result<Directory, MirrorError> {
    let path = directory.path_of(RECORD_DIRECTORY.as_bytes());
    let own = directory.child(RECORD_DIRECTORY.as_bytes());
    let own = own.map_err(MirrorError::local(&path, "open the record's directory"))?;
    check_owner(directory, &path, &own)?;
    Ok(own)
}

/// Lists the differences between two snapshots.
pub trait Changes {
    /// Numbers of objects that differ, in ascending order, beginning with `from`. A call returns one batch. An empty
    /// batch means that there are no more.
    ///
    /// # Errors
    /// If the differences cannot be read.
    fn objects(&self, from: u64) -> Result<Vec<u64>, SourceError>;

    /// Ranges of bytes (offset, length) in which an object differs, in ascending order, beginning at the offset `from`.
    /// A call returns one batch. An empty batch means that there are no more.
    ///
    /// # Errors
    /// If the differences cannot be read.
    fn blocks(&self, object: u64, from: u64) -> Result<Vec<(u64, u64)>, SourceError>;

    /// Hints that [`Changes::blocks`] will soon be called for an object, like [`Objects::prefetch`].
    fn prefetch_blocks(&self, object: u64) {
        let _ = object;
    }
}

/// Two snapshots of one filesystem, and their differences.
pub struct Between<'f, A, B> {
    /// The older snapshot.
    pub old: &'f Filesystem<A>,
    /// The newer snapshot.
    pub new: &'f Filesystem<B>,
    /// The differences.
    pub changes: &'f dyn Changes,
}

/// Why a target cannot be synced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// The snapshots cannot be read.
    #[error(transparent)]
    Source(#[from] FsError),
    /// An operation on the local system failed.
    #[error("{}: cannot {step}: {source}", path.display())]
    Local {
        /// The path.
        path: PathBuf,
        /// The operation.
        step: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The target is not empty, and was not created by a sync.
    #[error("'{}' is not empty, and not from a sync", path.display())]
    Foreign {
        /// The target.
        path: PathBuf,
    },
    /// The target is a copy of another source.
    #[error("'{}' holds a copy of '{holds}', not of '{source_name}'", path.display())]
    OtherSource {
        /// The target.
        path: PathBuf,
        /// Its source.
        holds: String,
        /// The requested source.
        source_name: String,
    },
    /// The record of the target is damaged.
    #[error("{}: the record of what is there is damaged, or of a later version", path.display())]
    Record {
        /// The record.
        path: PathBuf,
    },
    /// The record was written by another user, who could change it at any time.
    #[error("{}: it belongs to user {owner}", path.display())]
    NotOurs {
        /// The record, or its directory.
        path: PathBuf,
        /// The other user.
        owner: u32,
    },
    /// Another process is syncing the target.
    #[error("'{}' is being synced into by another process", path.display())]
    Busy {
        /// The target.
        path: PathBuf,
    },
    /// Others have changed files that would be overwritten or removed.
    #[error("{count} names were changed there since the last sync")]
    Conflicts {
        /// The first conflicts.
        some: Vec<Conflict>,
        /// Number of conflicts.
        count: u64,
    },
    /// The snapshot has a name that is needed for the copy of a descendant dataset.
    #[error("it has an entry '{name}', which is the place of a dataset below it")]
    Nested {
        /// The name at the top of the directory.
        name: String,
    },
    /// A copy cannot be renamed like its dataset, because its new place is occupied.
    #[error("'{}' is in the way of '{}'", path.display(), of.display())]
    InTheWay {
        /// The obstacle.
        path: PathBuf,
        /// The copy.
        of: PathBuf,
    },
    /// A path to be renamed is not a copy of a dataset.
    #[error("there is no copy of a dataset at '{}'", path.display())]
    NotKept {
        /// The path.
        path: PathBuf,
    },
    /// The sync was stopped.
    #[error("interrupted")]
    Interrupted,
}

impl MirrorError {
    fn local(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Local { path, step, source }
    }
}

/// The options of a sync into a directory.
#[derive(Clone, Copy)]
pub struct MirrorOptions<'a> {
    /// Whether changes by others are overwritten and removed.
    pub force: bool,
    /// Whether owners are set.
    pub owners: Owners,
    /// Which rights on this machine are restored.
    pub privileges: Privileges,
    /// Last parts of the names of child datasets. Their copies have these names at the top of the directory.
    pub children: &'a [String],
    /// Set by any thread to stop the sync.
    pub cancelled: &'a AtomicBool,
}

impl MirrorOptions<'_> {
    fn check(&self) -> Result<(), MirrorError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(MirrorError::Interrupted) } else { Ok(()) }
    }
}

/// A directory that is kept equal to snapshots.
pub struct Mirror {
    /// The path, for messages.
    path: PathBuf,
    tree: Tree,
    /// The directory that contains the record.
    own: Directory,
    record: Record,
    /// When the record was written. Later changes were made by others.
    stamp: Option<Stamp>,
    /// Whether the directory was empty.
    is_new: bool,
    nested: Nested,
}

impl Mirror {
    /// Opens or creates a directory that is or will be a copy of `source`, as the user names it.
    ///
    /// # Errors
    /// If the target is something else and `force` is not set, or if it is in use or cannot be opened.
    pub fn open(path: &Path, source: &str, force: bool) -> Result<Self, MirrorError> {
        let local = |step| MirrorError::local(path, step);
        let top = Directory::made(path, Mode::from_raw_mode(0o777)).map_err(local("open the directory"))?;
        Self::of(top, source, force)
    }

    /// Like [`Mirror::open`], for a directory below another copy.
    ///
    /// # Errors
    /// Like [`Mirror::open`], and if the directory is a symbolic link, or a mount point without a record.
    pub fn open_at(place: &Place, source: &str, force: bool) -> Result<Self, MirrorError> {
        let path = place.path();
        let local = |step| MirrorError::local(&path, step);
        place.directory.make(&place.name).map_err(local("make the directory"))?;
        let top = enter_copy(&place.directory, &place.name).map_err(local("open the directory"))?;
        Self::of(top, source, force)
    }

    fn of(top: Directory, source: &str, force: bool) -> Result<Self, MirrorError> {
        let path = top.path().to_owned();
        let local = |step| MirrorError::local(&path, step);
        let names = top.names().map_err(local("read the directory"))?;
        let is_ours = names.iter().any(|name| name == RECORD_DIRECTORY.as_bytes());
        let (found, nested) = match is_ours {
            true => {
                let own = own_of(&top)?;
                (Record::load(&own.place(RECORD))?, Nested::load(&own)?)
            }
            false => (None, Nested::default()),
        };
        // Names that belong to other syncs do not count.
        let is_new = names.iter().all(|name| nested.reserves(name));
        if found.is_none() && !is_new && !force {
            return Err(MirrorError::Foreign { path });
        }
        top.make(RECORD_DIRECTORY.as_bytes()).map_err(local("make the record's directory"))?;
        let own = own_of(&top)?;
        if rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(MirrorError::Busy { path });
        }
        // The record is read again under the lock.
        let found = Record::load(&own.place(RECORD))?;
        let inode = rustix::fs::fstat(&own).map_err(|error| local("read the record")(error.into()))?.st_ino;
        let (record, stamp) = match found {
            Some((record, stamp)) => {
                if record.source != source && !force {
                    let (holds, source_name) = (record.source, source.to_owned());
                    return Err(MirrorError::OtherSource { path, holds, source_name });
                }
                // In a copy, ctimes show when it was copied.
                let stamp = (record.inode == inode).then_some(stamp);
                (Record { inode, source: source.to_owned(), ..record }, stamp)
            }
            None => (Record::new(source.to_owned(), new_id(inode), inode), None),
        };
        Ok(Self { path, tree: Tree::new(top), own, record, stamp, is_new, nested })
    }

    /// From now on, the copies of child datasets at the top are left alone. `children` are the last parts of their
    /// names. If there is still something else at such a name, it remains part of this directory for now.
    ///
    /// # Errors
    /// If this cannot be written to disk.
    pub fn nest(&mut self, children: &[String]) -> Result<(), MirrorError> {
        self.nested.renew(&self.tree, &self.own, children)
    }

    /// The ID of this target in the names of snapshots: a letter and eight letters or digits.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// The snapshot that the directory holds, apart from changes that have begun.
    pub fn held(&self) -> Option<&Held> {
        self.record.held.as_ref()
    }

    /// The target snapshot of a change that has begun and is not finished.
    pub fn unfinished(&self) -> Option<&Held> {
        self.record.progress.as_ref().map(|progress| &progress.to)
    }

    /// Whether the unfinished change is an update from the snapshot that the directory held.
    pub fn resumes_update(&self) -> bool {
        self.record.held.is_some()
            && self.record.progress.as_ref().is_some_and(|progress| progress.phase != Phase::Whole)
    }

    /// The result that [`Mirror::update`] would have: the conflicts with changes by others, and the numbers of names
    /// that would be removed, created and changed.
    ///
    /// # Errors
    /// If the snapshots or the directory cannot be read.
    pub fn preview<A: Objects, B: Objects>(
        &self,
        between: &Between<'_, A, B>,
        children: &[String],
        privileges: Privileges,
    ) -> Result<Preview, MirrorError> {
        let plan = self.plan(between, children)?;
        let conflicts = local::conflicts(self, between, &plan, privileges)?;
        let count =
            |listings: &[plan::Listing]| listings.iter().map(|listing| listing.entries.len() as u64).sum();
        Ok(Preview {
            conflicts,
            gone: count(&plan.removed),
            new: count(&plan.added),
            changed: plan.changed.len() as u64,
        })
    }

    /// Updates the directory from the snapshot that it holds to the newer one, which is `to`.
    ///
    /// Failures of single files are reported to `observer`. The next sync tries them again.
    ///
    /// # Errors
    /// [`MirrorError::Conflicts`] or [`MirrorError::Nested`] before anything is changed, or if a snapshot cannot be
    /// read or the record cannot be written.
    pub fn update<A: Objects, B: Objects>(
        &mut self,
        between: &Between<'_, A, B>,
        to: &Held,
        options: &MirrorOptions<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, MirrorError> {
        let plan = self.plan(between, options.children)?;
        if plan.needs_whole {
            return self.fill(between.new, to, options, observer);
        }
        let resumes = self.resumes_update() && self.unfinished() == Some(to);
        if !resumes {
            let conflicts = local::conflicts(self, between, &plan, options.privileges)?;
            if conflicts.count > 0 {
                return Err(conflicts.into());
            }
            self.begin(to, Phase::Detach)?;
        }
        let work = apply::Work { between, plan, options, resumes };
        let summary = apply::Apply::new(self, &work, observer)?.run()?;
        self.end(&summary)?;
        Ok(summary)
    }

    /// Makes the whole directory equal to `new`, which is `to`. Files with the size and mtime of the snapshot count as
    /// equal.
    ///
    /// # Errors
    /// Like [`Mirror::update`]. Without `force`, names that are not in the snapshot are [`MirrorError::Conflicts`] too.
    pub fn fill<B: Objects>(
        &mut self,
        new: &Filesystem<B>,
        to: &Held,
        options: &MirrorOptions<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, MirrorError> {
        self.nested.check(new, options.children)?;
        if !self.is_new && !options.force {
            let conflicts = whole::conflicts(self, new)?;
            if conflicts.count > 0 {
                return Err(conflicts.into());
            }
        }
        let distrusted = self.record.progress.as_ref().filter(|progress| progress.boot != record::boot());
        let distrusted = distrusted.map(|progress| progress.begun);
        self.begin(to, Phase::Whole)?;
        let summary = whole::fill(self, new, distrusted, options, observer)?;
        self.end(&summary)?;
        Ok(summary)
    }

    fn plan<A: Objects, B: Objects>(
        &self,
        between: &Between<'_, A, B>,
        children: &[String],
    ) -> Result<plan::Plan, MirrorError> {
        self.nested.check(between.new, children)?;
        let mut plan = plan::Planner::plan(between)?;
        self.nested.spare(&mut plan);
        Ok(plan)
    }

    fn store(&self) -> Result<Stamp, MirrorError> {
        self.record.store(&self.own.place(RECORD))
    }

    /// The directory for waiting objects, which is created if needed.
    fn staging(&self) -> Result<Directory, MirrorError> {
        let made = self.own.make(STAGING).and_then(|()| self.own.child(STAGING));
        made.map_err(MirrorError::local(&self.own.path_of(STAGING), "open it"))
    }

    fn begin(&mut self, to: &Held, phase: Phase) -> Result<(), MirrorError> {
        let begun = match &self.record.progress {
            // The changes of an earlier attempt may not be on disk either.
            Some(progress) => progress.begun,
            None => self.store()?,
        };
        self.record.progress = Some(Progress { to: to.clone(), phase, boot: record::boot(), begun });
        self.store()?;
        Ok(())
    }

    /// Notes that all old names are removed, after a sync to disk.
    fn detached(&mut self) -> Result<(), MirrorError> {
        self.tree.sync().map_err(MirrorError::local(&self.path, "sync"))?;
        if let Some(progress) = &mut self.record.progress {
            progress.phase = Phase::Attach;
        }
        self.store()?;
        Ok(())
    }

    /// Notes the snapshot that the directory holds now, unless there were failures.
    fn end(&mut self, summary: &Summary) -> Result<(), MirrorError> {
        let cleared = beneath::remove_all(self.own.as_fd(), STAGING);
        cleared.map_err(MirrorError::local(&self.path, "clear what waited"))?;
        if summary.failures > summary.unset {
            return Ok(());
        }
        self.tree.sync().map_err(MirrorError::local(&self.path, "sync"))?;
        if let Some(progress) = self.record.progress.take() {
            self.record.held = Some(progress.to);
        }
        self.stamp = Some(self.store()?);
        self.is_new = false;
        Ok(())
    }
}

/// The result that an update would have.
#[derive(Debug, Clone, Default)]
pub struct Preview {
    /// The conflicts with changes by others.
    pub conflicts: Conflicts,
    /// Number of names that would be removed.
    pub gone: u64,
    /// Number of names that would be created.
    pub new: u64,
    /// Number of files and links whose content or attributes would change.
    pub changed: u64,
}

/// A new ID. It need not be secret, only different for two targets of one source.
fn new_id(inode: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let hash = blake3::hash(format!("{inode} {} {}", now.as_nanos(), std::process::id()).as_bytes());
    format!("d{}", hash.to_hex().get(..8).unwrap_or("00000000"))
}
