//! What may go wrong in a store, in words that name the place and, where there is one, the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::limits::UBERBLOCK_MAX;
use crate::segment_id::SegmentId;

/// The variable that names further users, by number, whose pools and links are trusted.
pub const TRUST_VARIABLE: &str = "SNOWMELT_TRUST_OWNERS";

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system reported an error.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb.
        op: &'static str,
        /// What it was attempted on.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A member of a mirror was given up. What was attempted may be done all the same, later.
    #[error("cannot {op} {}: no answer for {} s", path.display(), since.as_secs())]
    NoAnswer {
        /// What was attempted, as a verb.
        op: &'static str,
        /// The member.
        path: PathBuf,
        /// How long the answer was waited for.
        since: Duration,
    },
    /// No room is left. Nothing was changed; the store goes on working.
    #[error("{} is full: free some space there, or destroy snapshots that are no longer needed", path.display())]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// Another process owns the pool.
    #[error("{} is in use by another snowmelt process, which holds its lock", path.display())]
    Locked {
        /// The pool's location.
        path: PathBuf,
    },
    /// An earlier sync or publish failed, so what reached the disk since is unknown; writing on could build on
    /// lost data.
    #[error("{} refuses writes because an earlier write to it failed: check the disk and the system log, then open the pool again", path.display())]
    Poisoned {
        /// The store.
        path: PathBuf,
    },
    /// There is no pool here, or one that this version cannot read.
    #[error("{} is not a snowmelt pool: {why}", path.display())]
    NotAPool {
        /// What was looked at.
        path: PathBuf,
        /// What is missing or wrong.
        why: String,
    },
    /// A read, or a reopening, beyond the end of a segment.
    #[error("segment {segment} ends at {end}, but {len} bytes at offset {offset} were asked for")]
    OutOfRange {
        /// The segment.
        segment: SegmentId,
        /// Where the range begins.
        offset: u64,
        /// How long the range is, in bytes.
        len: u64,
        /// Where the segment ends.
        end: u64,
    },
    /// The place holds something else that creating a pool would destroy.
    #[error("{} holds {what}: choose another place, or use force to overwrite it", path.display())]
    Foreign {
        /// The place.
        path: PathBuf,
        /// What was recognised there.
        what: String,
    },
    /// A segment of that name is there already.
    #[error("segment {id} exists already")]
    Exists {
        /// The segment.
        id: SegmentId,
    },
    /// There is no segment of that name.
    #[error("segment {id} does not exist in {}", path.display())]
    NoSegment {
        /// The segment.
        id: SegmentId,
        /// The store.
        path: PathBuf,
    },
    /// An append to a segment that is not open for appending, or not at its end.
    #[error("append to segment {id} at {offset}, which is not its open end ({})", end.map_or_else(|| "sealed".to_owned(), |e| e.to_string()))]
    NotAtEnd {
        /// The segment.
        id: SegmentId,
        /// Where the append wanted to write.
        offset: u64,
        /// Where it would have been accepted; `None` when the segment is not open.
        end: Option<u64>,
    },
    /// An append would make a segment longer than [`Store::segment_capacity`](crate::Store::segment_capacity).
    #[error("segment {id} may not grow to {len} bytes: {capacity} is the most here")]
    SegmentFull {
        /// The segment.
        id: SegmentId,
        /// The length it would have had.
        len: u64,
        /// The longest it may be.
        capacity: u64,
    },
    /// An uberblock longer than [`UBERBLOCK_MAX`](crate::UBERBLOCK_MAX).
    #[error("an uberblock of {len} bytes is longer than the {} a store keeps", UBERBLOCK_MAX)]
    UberblockTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A write to a store that was opened for reading.
    #[error("{} was opened read-only", path.display())]
    ReadOnly {
        /// The store.
        path: PathBuf,
    },
    /// Bytes that were stored cannot be changed in place here.
    #[error("segment {id} in {} cannot be rewritten in place", path.display())]
    CannotRewrite {
        /// The segment.
        id: SegmentId,
        /// The store.
        path: PathBuf,
    },
    /// Two members of a mirror were written to without each other, so neither follows from the other.
    #[error(
        "{} and {} are members of one mirror, but were written to separately: keep one of them, take the other away, \
         and attach it again", newest.display(), other.display()
    )]
    SplitBrain {
        /// The member that was written to last.
        newest: PathBuf,
        /// One that does not fit it.
        other: PathBuf,
    },
    /// No member of a mirror that is there has everything.
    #[error("no member of the mirror at {} that is there has all data: {why}", path.display())]
    Incomplete {
        /// A member.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// An object store refused or did not answer.
    #[error(transparent)]
    Remote(Box<RemoteError>),
    /// An upload failed, so what was appended is not there.
    #[error("cannot make what was written to {} durable", path.display())]
    Upload {
        /// The address of the pool.
        path: PathBuf,
        /// Why.
        source: std::sync::Arc<StoreError>,
    },
    /// Another process has taken the pool over.
    #[error(
        "{} was taken over by {}, where it has been open since {}: this process may write to it no more, and what it had not \
         made durable by then is lost", path.display(), by.host, by.time
    )]
    Fenced {
        /// The address of the pool.
        path: PathBuf,
        /// The other one, and when it opened the pool.
        by: Box<OtherOwner>,
    },
    /// Another machine wrote to the pool last.
    #[error(
        "{} belongs to {}, which last wrote to it at {}: it can only be read here; if nothing writes to it there any more, \
         take it over with 'snowmelt pool import -f'", path.display(), owner.host, owner.time
    )]
    Elsewhere {
        /// The address of the pool.
        path: PathBuf,
        /// The other machine, and when it last wrote.
        owner: Box<OtherOwner>,
    },
    /// An object that a segment consists of is not there any more: its owner has deleted the segment, or somebody else
    /// has.
    #[error(
        "{part} of segment {id} is gone from {}: who only reads can follow the owner for some minutes; open the pool again",
        path.display()
    )]
    Gone {
        /// The segment.
        id: SegmentId,
        /// The object.
        part: Box<str>,
        /// The address of the pool.
        path: PathBuf,
    },
    /// Root was asked to work on a pool that another user can change meanwhile.
    #[error(
        "{} belongs to user {uid}, who could change it while root works on it: use 'sudo -u \\#{uid} snowmelt ...', or set \
         {}={uid} if root may do what this user says", path.display(), TRUST_VARIABLE
    )]
    OtherUser {
        /// The pool.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A symbolic link on the way to a pool that belongs to a user who is not trusted.
    #[error(
        "the symbolic link {} belongs to user {uid}, who could change where it leads: name the place that it leads to instead",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// What was asked for when creating or naming a pool cannot be had.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The location.
        path: PathBuf,
        /// What is wrong with the request.
        why: String,
    },
}

/// What an object store refused, or that it did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}: {why}: {remedy}\n({said})", path.display())]
pub struct RemoteError {
    /// What was attempted, as a verb.
    pub op: &'static str,
    /// The address of the pool.
    pub path: PathBuf,
    /// What is wrong.
    pub why: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
    /// What it said.
    pub said: String,
}

/// Another machine that a pool belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherOwner {
    /// Its name.
    pub host: String,
    /// A time by its clock.
    pub time: String,
}

impl StoreError {
    /// Wraps what the system said about doing `op` to `path`; running out of space is told apart.
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path: path.to_owned() },
            _ => Self::Io { op, path: path.to_owned(), source },
        }
    }
}

/// Gives an I/O result its operation and path: `file.sync_data().at("sync", &path)?`.
pub(crate) trait At<T> {
    /// Attaches the facts an error message needs.
    fn at(self, op: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for std::result::Result<T, E> {
    fn at(self, op: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| StoreError::io(op, path, source.into()))
    }
}
