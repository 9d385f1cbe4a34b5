//! The trait [`Mirror`]: what a mirror can do beyond the contract of all stores.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use super::Store;
use super::answers::Unanswered;
use crate::error::Result;
use crate::location::{CreateOptions, Location};
use crate::segment_id::SegmentId;

/// A store that is, was, or will be a member of a mirror.
#[derive(Debug)]
pub struct MirrorMember {
    /// Its guid.
    pub guid: u64,
    /// The path where it is, or where it was last found.
    pub path: PathBuf,
    /// The store, or the reason why it could not be opened.
    pub store: Result<Box<dyn Store>, String>,
}

/// The state of a member, in the words of ZFS (zpoolconcepts(7), "Device Failure and Recovery").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// The member is written to. It has all data, or a resilver is copying the rest.
    Online,
    /// A user took it offline.
    Offline,
    /// It could not be opened.
    Unavailable,
    /// It failed, and is no longer written to.
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

/// The status of a member, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its guid.
    pub guid: u64,
    /// The path where it is, or where it was last found.
    pub path: PathBuf,
    /// Its state.
    pub state: MemberState,
    /// Why it is not online, if known.
    pub why: Option<String>,
    /// Whether it lacks data.
    pub is_stale: bool,
    /// The guid of the member that is removed when this one has all data.
    pub replaces: Option<u64>,
    /// Failed reads since the counts were last cleared.
    pub read_errors: u64,
    /// Failed writes since then.
    pub write_errors: u64,
    /// Blocks whose copy on this member was wrong, since then.
    pub checksum_errors: u64,
    /// The oldest request that it has not answered yet.
    pub unanswered: Option<Unanswered>,
}

/// The progress of the last resilver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResilverStatus {
    /// Whether this process is running it now.
    pub is_running: bool,
    /// Whether there are members that are written to and lack data.
    pub is_due: bool,
    /// When it started, in seconds since 1970; 0 if there was none.
    pub started: u64,
    /// When it ended, in seconds since 1970; 0 while it is unfinished.
    pub ended: u64,
    /// Bytes copied so far.
    pub copied: u64,
    /// Bytes to copy in total.
    pub total: u64,
}

/// A store that is a mirror: see [`Store::mirror`]. A guid names a member. A copy of a segment is named by the place
/// of its member in the list of members.
pub trait Mirror: Store {
    /// The pool's guid.
    fn pool_guid(&self) -> u64;

    /// Returns a guid that no member has had.
    fn new_guid(&self) -> u64;

    /// All members and their states.
    fn members(&self) -> Vec<MemberStatus>;

    /// The path where the member is, or where it was last found.
    fn path_of(&self, guid: u64) -> Option<PathBuf>;

    /// Returns the places of the members that should have a segment. The caller should ask the first one first: the
    /// order spreads reads over the members.
    fn copies(&self, id: SegmentId, offset: u64) -> Vec<usize>;

    /// Reads from one copy. An error is counted.
    ///
    /// # Errors
    /// The same as [`Store::read`]; `NoSegment` when the member is missing.
    fn read_copy(&self, place: usize, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Counts a checksum error: the copy differs from what was stored.
    fn note_wrong(&self, place: usize);

    /// Writes correct bytes over a copy that was wrong. If the member has lost more than these bytes (the segment, or
    /// its end), the segment is noted as missing, and a resilver copies it. Durable only after [`sync`](Store::sync).
    ///
    /// # Errors
    /// The same as [`Store::rewrite`]; the error is counted.
    fn rewrite_copy(&self, place: usize, id: SegmentId, offset: u64, data: &[u8]) -> Result<()>;

    /// The path of a copy's member, for messages.
    fn name_of(&self, place: usize) -> String;

    /// Clears the error counts of one member, or of all with `None`.
    fn clear_errors(&self, place: Option<usize>);

    /// Makes repairs of copies durable, and publishes the error counts.
    ///
    /// # Errors
    /// The same as [`Store::publish`].
    fn settle(&self) -> Result<()>;

    /// Adds a member, to which a [`resilver`](Self::resilver) copies all data. `replaces` is the guid of the member
    /// that is removed when that is done. The store of the new member must be empty.
    ///
    /// # Errors
    /// `Invalid` when the store is too small or the mirror has too many members already; errors of writing the labels
    /// or of the publication.
    fn attach(&self, member: MirrorMember, replaces: Option<u64>) -> Result<()>;

    /// Makes a store at `location` and [attaches](Self::attach) it. The label of the options is the pool's.
    ///
    /// # Errors
    /// The same as [`create`](crate::create) and [`attach`](Self::attach).
    fn attach_at(&self, location: &Location, options: &CreateOptions, replaces: Option<u64>) -> Result<()>;

    /// Removes a member for good. Its store is wiped, if it can be reached.
    ///
    /// # Errors
    /// `Invalid` when there is no such member, or when no other member has all data.
    fn detach(&self, guid: u64) -> Result<()>;

    /// Stops writing to a member until it is [`online`](Self::online) again, and closes its store.
    ///
    /// # Errors
    /// The same as [`detach`](Self::detach).
    fn offline(&self, guid: u64) -> Result<()>;

    /// Writes again to a member that was offline, faulted, or missing. `store` is the member's own store. A
    /// [`resilver`](Self::resilver) copies what the member missed.
    ///
    /// # Errors
    /// `Invalid` when there is no such member; `SplitBrain`; errors of reading or writing the store.
    fn online(&self, guid: u64, path: PathBuf, store: Box<dyn Store>) -> Result<()>;

    /// Brings a member [online](Self::online) that is where it was last found.
    ///
    /// # Errors
    /// The same as [`online`](Self::online); `Invalid` when another store is there; `NoAnswer`.
    fn online_again(&self, guid: u64) -> Result<()>;

    /// Deletes segments from members that came [online](Self::online), if they were deleted while the member was away.
    /// These are the segments that no member with all data has, and that are not in `known`, the segments of the pool.
    /// [`Store::set_ends`] does this too.
    ///
    /// # Errors
    /// When the mirror can no longer be written. A segment that cannot be deleted stays.
    fn forget_unknown(&self, known: &BTreeSet<SegmentId>) -> Result<()>;

    /// Returns the progress of the last resilver, and whether there is data to copy.
    fn resilver_status(&self) -> ResilverStatus;

    /// Brings all members that can be reached up to date, then removes the members that they replace. `clock` returns
    /// seconds since 1970. `go_on` is called after every piece with its length in bytes, and returns whether to
    /// continue. Returns the progress at the end.
    ///
    /// # Errors
    /// Errors of reading or publishing. A member that cannot be written is left out. Data that was copied stays
    /// copied.
    fn resilver(&self, clock: &dyn Fn() -> u64, go_on: &mut dyn FnMut(u64) -> bool)
    -> Result<ResilverStatus>;
}
