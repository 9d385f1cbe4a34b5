//! [`StoreError`]: the errors of a store. Each message names the place and, where there is one, the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::limits::UBERBLOCK_MAX;
use crate::segment_id::SegmentId;

/// The environment variable that lists additional trusted users by uid. Their pools and symbolic links are trusted.
pub const TRUST_VARIABLE: &str = "SNOWMELT_TRUST_OWNERS";

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system reported an error.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        op: &'static str,
        /// The file or store that the operation was done on.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A member of a mirror did not answer in time and was given up. The operation may still be done later.
    #[error("cannot {op} {}: no answer for {} s", path.display(), since.as_secs())]
    NoAnswer {
        /// The operation, as a verb.
        op: &'static str,
        /// The member.
        path: PathBuf,
        /// How long the caller waited for the answer.
        since: Duration,
    },
    /// The store has no free space. Nothing was changed, and the store can still be used.
    #[error("{} is full: free some space there, or destroy snapshots that are no longer needed", path.display())]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// Another process is the owner of the pool.
    #[error("{} is in use by another snowmelt process, which holds its lock", path.display())]
    Locked {
        /// The pool's location.
        path: PathBuf,
    },
    /// An earlier sync or publish failed, so it is unknown which data has reached the disk since. Further writes
    /// could depend on lost data.
    #[error("{} refuses writes because an earlier write to it failed: check the disk and the system log, then open the pool again", path.display())]
    Poisoned {
        /// The store.
        path: PathBuf,
    },
    /// The place holds no pool, or one that this version cannot read.
    #[error("{} is not a snowmelt pool: {why}", path.display())]
    NotAPool {
        /// The place.
        path: PathBuf,
        /// What is missing or wrong.
        why: String,
    },
    /// A read, or a reopening, beyond the end of a segment.
    #[error("segment {segment} ends at {end}, but {len} bytes at offset {offset} were asked for")]
    OutOfRange {
        /// The segment.
        segment: SegmentId,
        /// Start of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// End of the segment.
        end: u64,
    },
    /// Creating a pool would destroy other data in this place.
    #[error("{} holds {what}: choose another place, or use force to overwrite it", path.display())]
    Foreign {
        /// The place.
        path: PathBuf,
        /// What was recognised there.
        what: String,
    },
    /// A segment with this id exists already.
    #[error("segment {id} exists already")]
    Exists {
        /// The segment.
        id: SegmentId,
    },
    /// There is no segment with this id.
    #[error("segment {id} does not exist in {}", path.display())]
    NoSegment {
        /// The segment.
        id: SegmentId,
        /// The store.
        path: PathBuf,
    },
    /// An append to a segment that is not open for appending, or that was not at the end of the segment.
    #[error("append to segment {id} at {offset}, which is not its open end ({})", end.map_or_else(|| "sealed".to_owned(), |e| e.to_string()))]
    NotAtEnd {
        /// The segment.
        id: SegmentId,
        /// The offset of the append.
        offset: u64,
        /// The end of the segment, where an append is accepted; `None` when the segment is not open.
        end: Option<u64>,
    },
    /// An append would make a segment longer than [`Store::segment_capacity`](crate::Store::segment_capacity).
    #[error("segment {id} may not grow to {len} bytes: {capacity} is the most here")]
    SegmentFull {
        /// The segment.
        id: SegmentId,
        /// The length that the segment would have had.
        len: u64,
        /// The maximum length.
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
    /// This store cannot overwrite bytes that it holds.
    #[error("segment {id} in {} cannot be rewritten in place", path.display())]
    CannotRewrite {
        /// The segment.
        id: SegmentId,
        /// The store.
        path: PathBuf,
    },
    /// Two members of a mirror were written to separately, so that neither holds the changes of the other.
    #[error(
        "{} and {} are members of one mirror, but were written to separately: keep one of them, take the other away, \
         and attach it again", newest.display(), other.display()
    )]
    SplitBrain {
        /// The member that was written to last.
        newest: PathBuf,
        /// A member that is inconsistent with it.
        other: PathBuf,
    },
    /// None of the members that can be reached has all data.
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
    /// An upload failed, so data that was appended is lost.
    #[error("cannot make what was written to {} durable", path.display())]
    Upload {
        /// The address of the pool.
        path: PathBuf,
        /// The error of the upload.
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
        /// The new owner, and when it opened the pool.
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
        /// That machine, and when it last wrote.
        owner: Box<OtherOwner>,
    },
    /// An object of a segment no longer exists: the owner of the pool, or someone else, has deleted it.
    #[error(
        "{part} of segment {id} is gone from {}: who only reads can follow the owner for some minutes; open the pool again",
        path.display()
    )]
    Gone {
        /// The segment.
        id: SegmentId,
        /// The name of the object.
        part: Box<str>,
        /// The address of the pool.
        path: PathBuf,
    },
    /// Root was asked to use a pool that another user can change at the same time.
    #[error(
        "{} belongs to user {uid}, who could change it while root works on it: use 'sudo -u \\#{uid} snowmelt ...', or set \
         {}={uid} if root may do what this user says", path.display(), TRUST_VARIABLE
    )]
    OtherUser {
        /// The pool.
        path: PathBuf,
        /// The user who owns it.
        uid: u32,
    },
    /// A symbolic link in the path of a pool belongs to a user who is not trusted.
    #[error(
        "the symbolic link {} belongs to user {uid}, who could change where it leads: name the place that it leads to instead",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// The user who owns it.
        uid: u32,
    },
    /// A request to create or rename a pool is not possible.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The location.
        path: PathBuf,
        /// What is wrong with the request.
        why: String,
    },
}

/// An object store refused a request, or did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}: {why}: {remedy}\n({said})", path.display())]
pub struct RemoteError {
    /// The operation, as a verb.
    pub op: &'static str,
    /// The address of the pool.
    pub path: PathBuf,
    /// What is wrong, in plain words.
    pub why: &'static str,
    /// What the user can do about it.
    pub remedy: &'static str,
    /// The message of the object store.
    pub said: String,
}

/// Another machine that owns a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherOwner {
    /// The name of the machine.
    pub host: String,
    /// A time of its clock, as text.
    pub time: String,
}

impl StoreError {
    /// Wraps a system error of doing `op` to `path`. Errors about missing space become `Full`.
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path: path.to_owned() },
            _ => Self::Io { op, path: path.to_owned(), source },
        }
    }
}

/// Adds the operation and the path to an I/O result: `file.sync_data().at("sync", &path)?`.
pub(crate) trait At<T> {
    /// Converts an I/O error to a [`StoreError`] with this operation and path.
    fn at(self, op: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for std::result::Result<T, E> {
    fn at(self, op: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| StoreError::io(op, path, source.into()))
    }
}
