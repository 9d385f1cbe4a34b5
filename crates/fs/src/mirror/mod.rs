//! Keeping a directory, or an image, equal to snapshots: the first time it is filled, then only what changed between the
//! snapshot it holds and a newer one is done to it.
//!
//! - `record`: what the target holds, and how far a change of it has come
//! - `plan`: from two snapshots to what has to change in a directory
//! - `local`: what was changed in the directory meanwhile by others
//! - `apply`: carries a plan out
//! - `whole`: compares the whole directory with a snapshot instead
//! - `tree`: the directory, as a tree of paths
//! - `nested`: what is kept in it by syncs of their own
//! - `moves`: renaming that
//! - `volume`: the same for images and block devices
//!
//! # What an interruption leaves
//!
//! The record says that a change to a certain snapshot has begun before anything is touched. Then, in this order, each on disk
//! before the next: *detach* takes names away (what only moves waits in the record's directory, under its object number),
//! *attach* puts names, content and attributes where the newer snapshot has them, and the record says that the target
//! holds that snapshot. Both steps can be done again from their beginning: what was done is found done. If the older
//! snapshot is gone by then, the whole directory is compared with a newer one.
//!
//! # What can be reached
//!
//! The directory may hold whatever a peer sends, and another user may change it meanwhile. So all of it, and the record, is
//! reached through descriptors ([`crate::beneath`]): no symbolic link is followed, no device or fifo opened, and no mount
//! entered. Only the copy of a dataset below may be a mount point, if it has a record already ([`enter_copy`]). The name of the
//! record's directory is reserved at every depth, and a record that another user has written is refused.
//!
//! Whoever reads the directory meanwhile sees a mixture of both snapshots; small files change at one stroke, large ones
//! in place.

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
/// Where what moves waits, and new files are made.
const STAGING: &[u8] = b"staging";

/// Opens the copy of a dataset below another. It may be a mount point, a disk of its own, if the copy's record is there.
///
/// # Errors
/// As [`Directory::child`].
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

/// Checks that a file of a record, which is in `directory`, was written by whoever runs this.
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

/// Opens the directory of a record that is in `directory`.
fn own_of(directory: &Directory) -> Result<Directory, MirrorError> {
    let path = directory.path_of(RECORD_DIRECTORY.as_bytes());
    let own = directory.child(RECORD_DIRECTORY.as_bytes());
    let own = own.map_err(MirrorError::local(&path, "open the record's directory"))?;
    check_owner(directory, &path, &own)?;
    Ok(own)
}

/// Says what differs between two snapshots.
pub trait Changes {
    /// Numbers of objects that differ, ascending, from `from` on: as many as come in one piece; none when there are no more.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn objects(&self, from: u64) -> Result<Vec<u64>, SourceError>;

    /// Ranges of bytes (offset, length) in which an object differs, ascending, from the offset `from` on: as many as come
    /// in one piece; none when there are no more.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn blocks(&self, object: u64, from: u64) -> Result<Vec<(u64, u64)>, SourceError>;

    /// Says that it will soon be asked in which bytes an object differs, as of [`Objects::prefetch`].
    fn prefetch_blocks(&self, object: u64) {
        let _ = object;
    }
}

/// Two snapshots of one filesystem, and what differs between them.
pub struct Between<'f, A, B> {
    /// The older one.
    pub old: &'f Filesystem<A>,
    /// The newer one.
    pub new: &'f Filesystem<B>,
    /// What differs.
    pub changes: &'f dyn Changes,
}

/// Why a target cannot be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// The snapshots cannot be read.
    #[error(transparent)]
    Source(#[from] FsError),
    /// The local system refused.
    #[error("{}: cannot {step}: {source}", path.display())]
    Local {
        /// Where.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// There is something at the target, and no sync has put it there.
    #[error("'{}' is not empty, and not from a sync", path.display())]
    Foreign {
        /// The target.
        path: PathBuf,
    },
    /// The target is a copy of something else.
    #[error("'{}' holds a copy of '{holds}', not of '{source_name}'", path.display())]
    OtherSource {
        /// The target.
        path: PathBuf,
        /// What it is a copy of.
        holds: String,
        /// What it was to be a copy of.
        source_name: String,
    },
    /// The record of the target cannot be understood.
    #[error("{}: the record of what is there is damaged, or of a later version", path.display())]
    Record {
        /// The record.
        path: PathBuf,
    },
    /// The record was written by another user, who can change it at any moment.
    #[error("{}: it belongs to user {owner}", path.display())]
    NotOurs {
        /// The record, or its directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Another process is at work on the target.
    #[error("'{}' is being synced into by another process", path.display())]
    Busy {
        /// The target.
        path: PathBuf,
    },
    /// What would be overwritten or removed was changed by others.
    #[error("{count} names were changed there since the last sync")]
    Conflicts {
        /// Some of them.
        some: Vec<Conflict>,
        /// How many there are.
        count: u64,
    },
    /// The snapshot has something where a dataset below it is kept.
    #[error("it has something of its own at '{name}', where a dataset below it goes")]
    Nested {
        /// The name at the top of the directory.
        name: String,
    },
    /// A copy cannot be renamed as its dataset was: something is at that place, and is not to be moved.
    #[error("'{}' is in the way, where '{}' is to go", path.display(), of.display())]
    InTheWay {
        /// What is in the way.
        path: PathBuf,
        /// What was to be renamed.
        of: PathBuf,
    },
    /// What was to be renamed is no copy of a dataset.
    #[error("no copy of a dataset is at '{}'", path.display())]
    NotKept {
        /// Where none is.
        path: PathBuf,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl MirrorError {
    fn local(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Local { path, step, source }
    }
}

/// How to bring a directory up to date.
#[derive(Clone, Copy)]
pub struct MirrorOptions<'a> {
    /// What was changed there by others is overwritten and removed.
    pub force: bool,
    /// Whether owners are set.
    pub owners: Owners,
    /// What is restored that gives rights on this machine.
    pub privileges: Privileges,
    /// Last parts of the names of datasets below, which are kept under these names at the top of the directory.
    pub children: &'a [String],
    /// Set from anywhere to stop.
    pub cancelled: &'a AtomicBool,
}

impl MirrorOptions<'_> {
    fn check(&self) -> Result<(), MirrorError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(MirrorError::Interrupted) } else { Ok(()) }
    }
}

/// A directory that is kept equal to snapshots.
pub struct Mirror {
    /// For messages.
    path: PathBuf,
    tree: Tree,
    /// The directory that the record is in.
    own: Directory,
    record: Record,
    /// When the record was written last: what changed later was changed by others.
    stamp: Option<Stamp>,
    /// Nothing was in the directory.
    is_new: bool,
    nested: Nested,
}

impl Mirror {
    /// Opens, or makes, a directory that is a copy of `source`, as the user calls it, or is to become one.
    ///
    /// # Errors
    /// When it holds something else, unless `force` is set; when it is in use or cannot be opened.
    pub fn open(path: &Path, source: &str, force: bool) -> Result<Self, MirrorError> {
        let local = |step| MirrorError::local(path, step);
        let top = Directory::made(path, Mode::from_raw_mode(0o777)).map_err(local("open the directory"))?;
        Self::of(top, source, force)
    }

    /// The same for a directory below another copy.
    ///
    /// # Errors
    /// As [`Mirror::open`]; when the directory is a symbolic link, or a mount point without a record.
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
        // What is kept in it by others is nothing of its own.
        let is_new = names.iter().all(|name| nested.reserves(name));
        if found.is_none() && !is_new && !force {
            return Err(MirrorError::Foreign { path });
        }
        top.make(RECORD_DIRECTORY.as_bytes()).map_err(local("make the record's directory"))?;
        let own = own_of(&top)?;
        if rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(MirrorError::Busy { path });
        }
        // Again, now that nobody changes it.
        let found = Record::load(&own.place(RECORD))?;
        let inode = rustix::fs::fstat(&own).map_err(|error| local("read the record")(error.into()))?.st_ino;
        let (record, stamp) = match found {
            Some((record, stamp)) => {
                if record.source != source && !force {
                    let (holds, source_name) = (record.source, source.to_owned());
                    return Err(MirrorError::OtherSource { path, holds, source_name });
                }
                // Times of change in a copy say when it was copied.
                let stamp = (record.inode == inode).then_some(stamp);
                (Record { inode, source: source.to_owned(), ..record }, stamp)
            }
            None => (Record::new(source.to_owned(), new_id(inode), inode), None),
        };
        Ok(Self { path, tree: Tree::new(top), own, record, stamp, is_new, nested })
    }

    /// From now on leaves alone what is kept at its top by syncs of datasets below, of which these are the last parts of the
    /// names. One in whose place there is something yet is left to this directory for now.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub fn nest(&mut self, children: &[String]) -> Result<(), MirrorError> {
        self.nested.renew(&self.tree, &self.own, children)
    }

    /// Tells this target from others, in the names of snapshots: a letter and eight letters or digits.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// The snapshot that the directory holds, but for changes that have begun.
    pub fn held(&self) -> Option<&Held> {
        self.record.held.as_ref()
    }

    /// The snapshot to which a change has begun and not ended.
    pub fn unfinished(&self) -> Option<&Held> {
        self.record.progress.as_ref().map(|progress| &progress.to)
    }

    /// Whether what has begun goes on from the snapshot that the directory held.
    pub fn resumes_update(&self) -> bool {
        self.record.held.is_some()
            && self.record.progress.as_ref().is_some_and(|progress| progress.phase != Phase::Whole)
    }

    /// What the directory has that a change to another snapshot would overwrite or remove though others have changed it; and how
    /// many names would go, come, and change.
    ///
    /// # Errors
    /// When the snapshots or the directory cannot be read.
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

    /// Brings the directory from the snapshot it holds to the newer one, which is `to`.
    ///
    /// What cannot be done is told to `observer`; the next time goes on there.
    ///
    /// # Errors
    /// [`MirrorError::Conflicts`] or [`MirrorError::Nested`], before anything is touched; when a snapshot cannot be read or the record not be written.
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

    /// Makes the whole directory equal to `new`, which is `to`. Files with the size and mtime that they have in the snapshot
    /// are taken to be equal.
    ///
    /// # Errors
    /// As [`Mirror::update`]; without `force`, [`MirrorError::Conflicts`] also for what is not in the snapshot.
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

    /// The directory in which what moves waits, made if it is not there.
    fn staging(&self) -> Result<Directory, MirrorError> {
        let made = self.own.make(STAGING).and_then(|()| self.own.child(STAGING));
        made.map_err(MirrorError::local(&self.own.path_of(STAGING), "open it"))
    }

    fn begin(&mut self, to: &Held, phase: Phase) -> Result<(), MirrorError> {
        let begun = match &self.record.progress {
            // What an earlier one did is not on disk for certain either.
            Some(progress) => progress.begun,
            None => self.store()?,
        };
        self.record.progress = Some(Progress { to: to.clone(), phase, boot: record::boot(), begun });
        self.store()?;
        Ok(())
    }

    /// All of the old names are out of the way, and that is on disk.
    fn detached(&mut self) -> Result<(), MirrorError> {
        self.tree.sync().map_err(MirrorError::local(&self.path, "sync"))?;
        if let Some(progress) = &mut self.record.progress {
            progress.phase = Phase::Attach;
        }
        self.store()?;
        Ok(())
    }

    /// Notes what the directory holds now, if everything was done that can be.
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

/// What bringing a directory up to date would do.
#[derive(Debug, Clone, Default)]
pub struct Preview {
    /// What others have changed.
    pub conflicts: Conflicts,
    /// Names that would go.
    pub gone: u64,
    /// Names that would come.
    pub new: u64,
    /// Files and links that would change in themselves.
    pub changed: u64,
}

/// Not for security: two targets of one source need different ones.
fn new_id(inode: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let hash = blake3::hash(format!("{inode} {} {}", now.as_nanos(), std::process::id()).as_bytes());
    format!("d{}", hash.to_hex().get(..8).unwrap_or("00000000"))
}
