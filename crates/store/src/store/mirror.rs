//! What a store that is a mirror can do beyond the contract of all stores.

use std::fmt;
use std::path::PathBuf;

use super::Store;
use super::answers::Unanswered;
use crate::error::Result;
use crate::location::{CreateOptions, Location};
use crate::segment_id::SegmentId;

/// A store that is to be, or was, a member of a mirror.
#[derive(Debug)]
pub struct MirrorMember {
    /// Its guid.
    pub guid: u64,
    /// Where it is, or was last seen.
    pub path: PathBuf,
    /// The store; or why it could not be opened.
    pub store: Result<Box<dyn Store>, String>,
}

/// How a member is, in ZFS's words (zpoolconcepts(7), "Device Failure and Recovery").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// It is written to, and has everything or is being given it.
    Online,
    /// Somebody took it offline.
    Offline,
    /// It could not be opened.
    Unavailable,
    /// It failed, and is not written to any more.
    Faulted,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Online => "ONLINE",
            Self::Offline => "OFFLINE",
            Self::Unavailable => "UNAVAIL",
            Self::Faulted => "FAULTED",
        })
    }
}

/// A member, for who wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its guid.
    pub guid: u64,
    /// Where it is, or was last seen.
    pub path: PathBuf,
    /// How it is.
    pub state: MemberState,
    /// Why it is not online, where that is known.
    pub why: Option<String>,
    /// Whether it lacks something.
    pub is_stale: bool,
    /// The member that goes when this one has everything.
    pub replaces: Option<u64>,
    /// Reads that failed, since that was cleared.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks of which this copy was wrong.
    pub checksum_errors: u64,
    /// What it has not answered so far.
    pub unanswered: Option<Unanswered>,
}

/// The last resilver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResilverStatus {
    /// Whether this process is at it.
    pub is_running: bool,
    /// Whether there are members that lack something, and are written to.
    pub is_due: bool,
    /// When it began: seconds since 1970; 0 if there was none.
    pub started: u64,
    /// When it was through; 0 while it is under way.
    pub ended: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes that were to be copied.
    pub total: u64,
}

/// A store that is a mirror: see [`Store::mirror`]. Members are named by guid; copies of a segment by the place of their
/// member.
pub trait Mirror: Store {
    /// The pool's guid.
    fn pool_guid(&self) -> u64;

    /// A guid that no member has had.
    fn new_guid(&self) -> u64;

    /// All members and their states.
    fn members(&self) -> Vec<MemberStatus>;

    /// Where the member is, or was last seen.
    fn path_of(&self, guid: u64) -> Option<PathBuf>;

    /// The members that should have a segment, by their places. The first one should be asked first: reads are spread
    /// over the members.
    fn copies(&self, id: SegmentId, offset: u64) -> Vec<usize>;

    /// Reads from one copy. A failure is counted.
    ///
    /// # Errors
    /// As [`Store::read`]; `NoSegment` when the member is missing.
    fn read_copy(&self, place: usize, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Notes that a copy held other bytes than were stored there.
    fn note_wrong(&self, place: usize);

    /// Writes good bytes over a copy that was wrong. If the member has lost more than these bytes (the segment, or its
    /// end), the segment is noted as missing, and a resilver copies it. Not durable until [`sync`](Store::sync).
    ///
    /// # Errors
    /// As [`Store::rewrite`]; the failure is counted.
    fn rewrite_copy(&self, place: usize, id: SegmentId, offset: u64, data: &[u8]) -> Result<()>;

    /// Where a copy is, for messages.
    fn name_of(&self, place: usize) -> String;

    /// Clears the counts of errors, of one member or of all.
    fn clear_errors(&self, place: Option<usize>);

    /// Makes durable what was written over bad copies, and publishes the counts of errors.
    ///
    /// # Errors
    /// As [`Store::publish`].
    fn settle(&self) -> Result<()>;

    /// Adds a member, to which a [`resilver`](Self::resilver) copies everything. `replaces` is the guid of the member that
    /// is removed then. Its store must be empty.
    ///
    /// # Errors
    /// `Invalid` when it is too small, or there are too many already; when labels or the publication cannot be written.
    fn attach(&self, member: MirrorMember, replaces: Option<u64>) -> Result<()>;

    /// Makes a store at `location` and [attaches](Self::attach) it. The label of the options is the pool's.
    ///
    /// # Errors
    /// As [`create`](crate::create) and [`attach`](Self::attach).
    fn attach_at(&self, location: &Location, options: &CreateOptions, replaces: Option<u64>) -> Result<()>;

    /// Removes a member for good. Its store is wiped, if it can be reached.
    ///
    /// # Errors
    /// `Invalid` when there is no such member, or no other has everything.
    fn detach(&self, guid: u64) -> Result<()>;

    /// Writes no more to a member until it is [`online`](Self::online) again, and closes its store.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    fn offline(&self, guid: u64) -> Result<()>;

    /// Writes again to a member that was offline, faulted, or missing. `store` is the member's own. A
    /// [`resilver`](Self::resilver) copies what it missed.
    ///
    /// # Errors
    /// `Invalid` when there is no such member; `SplitBrain`; when it cannot be read or written.
    fn online(&self, guid: u64, path: PathBuf, store: Box<dyn Store>) -> Result<()>;

    /// Brings a member [online](Self::online) that is where it was last seen.
    ///
    /// # Errors
    /// As [`online`](Self::online); `Invalid` when another store is there, `NoAnswer`.
    fn online_again(&self, guid: u64) -> Result<()>;

    /// The last resilver, and whether there is something to copy.
    fn resilver_status(&self) -> ResilverStatus;

    /// Brings all members that can be reached up to date. Members that were to be replaced are removed then. `clock` gives
    /// seconds since 1970. `go_on` is asked after every piece, with its length in bytes, whether to continue. Returns the
    /// state at the end.
    ///
    /// # Errors
    /// When nothing can be read or published. A member that cannot be written is left out. What was copied stays.
    fn resilver(&self, clock: &dyn Fn() -> u64, go_on: &mut dyn FnMut(u64) -> bool)
    -> Result<ResilverStatus>;
}
