//! Requests to a pool, and the answers (docs/format/sync.md).

use serde::{Deserialize, Serialize};

use crate::error::{Failure, safe_message};

/// A request to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The existing datasets.
    Describe(Describe),
    /// A stream of one or more snapshots.
    Send(SendRequest),
    /// A stream is to be received.
    Receive(ReceiveRequest),
    /// The size of each of these sends.
    Sizes {
        /// The sends.
        sends: Vec<SendRequest>,
    },
    /// The objects of a snapshot, and what changed in them: each that is asked for (docs/format/sync.md).
    Read(ReadRequest),
    /// Small changes, one after the other; each is done or not by itself.
    Apply {
        /// The changes.
        actions: Vec<Action>,
    },
    /// The directory or image that is served is to be taken in.
    TakeIn(TakeIn),
    /// Opens the served path as a target.
    OpenTarget(OpenTarget),
    /// Moves copies below the target that was opened last. The moves are independent: each succeeds or fails alone.
    Relocate {
        /// The moves, in any order; they may go into one another's place.
        moves: Vec<Relocation>,
    },
    /// Updates the opened target to a snapshot.
    Bring(Bring),
    /// The last state in the shadow was sent.
    Sent {
        /// Where to, as a person knows it.
        target: String,
    },
    /// The names of damaged blocks that the other side should have.
    Wanted {
        /// Full name of the dataset.
        dataset: String,
        /// Guids of the snapshots that the other one has.
        snapshots: Vec<u64>,
    },
    /// Blocks, by their names.
    Blocks {
        /// Full name of the dataset.
        dataset: String,
    },
    /// Blocks that can replace the damaged ones.
    Mend {
        /// Full name of the dataset.
        dataset: String,
    },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is done.
    Done,
    /// Sizes in bytes, in the order of the sends.
    Sizes(Vec<Result<u64, Failure>>),
    /// What became of each action.
    Applied(Vec<Result<(), Failure>>),
    /// The state that was read into the shadow.
    TakenIn(TakenIn),
    /// The state of the opened target.
    Target(TargetState),
    /// The result of the update.
    Brought(Brought),
    /// Damaged blocks besides those named: metadata, or in no snapshot of the other one.
    Wanted {
        /// How many.
        others: u64,
    },
    /// The result of a receive, if the request asks for notes.
    Received {
        /// Notes for the user.
        notes: Vec<String>,
    },
    /// The repaired blocks.
    Mended {
        /// Blocks.
        blocks: u64,
        /// Their stored bytes.
        bytes: u64,
        /// Received blocks that did not match the damaged ones.
        unfit: u64,
    },
}

impl Answer {
    /// As another machine gave it, with its texts made safe to be shown.
    pub(crate) fn made_safe(self) -> Self {
        let safe_all = |notes: Vec<String>| notes.iter().map(|note| safe_message(note)).collect();
        match self {
            Self::Sizes(sizes) => {
                Self::Sizes(sizes.into_iter().map(|size| size.map_err(Failure::made_safe)).collect())
            }
            Self::Applied(results) => {
                Self::Applied(results.into_iter().map(|result| result.map_err(Failure::made_safe)).collect())
            }
            Self::TakenIn(taken) => {
                let (summary, notes) = (safe_message(&taken.summary), safe_all(taken.notes));
                Self::TakenIn(TakenIn { summary, notes, ..taken })
            }
            Self::Received { notes } => Self::Received { notes: safe_all(notes) },
            other => other,
        }
    }
}

/// How a directory or an image is to be taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeIn {
    /// The part after the `@` in the name of the new snapshot.
    pub snapshot: String,
    /// Patterns of files to leave out.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Only report what would be done (dry run).
    #[serde(default)]
    pub dry_run: bool,
    /// The earlier state of the shadow could not be sent: older snapshots are discarded.
    #[serde(default)]
    pub again: bool,
}

/// The state that was read into the shadow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenIn {
    /// Full name of the dataset that it is in.
    pub dataset: String,
    /// Nothing of it was sent yet.
    pub is_new: bool,
    /// What was done, as text for the user.
    pub summary: String,
    /// Files that could not be read, or changed while they were.
    #[serde(default)]
    pub failures: u64,
    /// Notes for the user.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A directory, an image or device, or a file with a stream, as the target of a sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTarget {
    /// The source of the copy, also of a new one, as the user gave it.
    pub source: String,
    /// The kind of the source.
    pub kind: Kind,
    /// Where it is below the target that is served, name by name: for datasets below the source.
    #[serde(default)]
    pub below: Vec<String>,
    /// Names of the entries that are separate copies: the last parts of the names of child datasets.
    #[serde(default)]
    pub children: Vec<String>,
    /// Existing data that was not written by a sync is discarded.
    #[serde(default)]
    pub force: bool,
    /// Nothing is to be made or changed.
    #[serde(default)]
    pub dry_run: bool,
    /// The copies below are requested too.
    #[serde(default)]
    pub list: bool,
}

/// The copy of a dataset below the one that a directory is a copy of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its path below the opened target, as a list of names. A copy that was left by an interrupted move is in the
    /// directory of the record.
    pub below: Vec<String>,
    /// The source of the copy.
    pub kind: Kind,
    /// The source of the copy, as the user gave it.
    pub source: String,
    /// The snapshot that it holds, but for changes that have begun.
    #[serde(default)]
    pub held: Option<Holding>,
    /// The snapshot to which a change has begun and not ended.
    #[serde(default)]
    pub unfinished: Option<Holding>,
}

/// A copy that is to be elsewhere, or is one of something that is called otherwise now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocation {
    /// Its place, as in [`Kept`].
    pub from: Vec<String>,
    /// Where it is to be, name by name.
    pub to: Vec<String>,
    /// The source of the copy, as the user gave it.
    pub source: String,
}

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A directory, for a filesystem.
    Directory,
    /// An image or a block device, for a volume.
    Image,
    /// A file with a stream, for either.
    Stream,
}

/// A snapshot that a target holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The guid, which is the same in every copy.
    pub guid: u64,
    /// Its full name, for people.
    pub name: String,
}

/// The state of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetState {
    /// Its kind.
    pub form: Form,
    /// Distinguishes it from other targets in the names of snapshots. Empty if any snapshot can be used.
    #[serde(default)]
    pub id: Option<String>,
    /// The snapshot that it holds, but for changes that have begun.
    #[serde(default)]
    pub held: Option<Holding>,
    /// The snapshot to which a change has begun and not ended.
    #[serde(default)]
    pub unfinished: Option<Holding>,
    /// An interrupted update continues from the snapshot that the target had.
    #[serde(default)]
    pub resumes: bool,
    /// No sync has been at it; only told in a rehearsal.
    #[serde(default)]
    pub is_new: bool,
    /// There is something in it that no sync has put there; only told in a rehearsal.
    #[serde(default)]
    pub is_foreign: bool,
    /// The copies below, parents first, if they were requested. If there are very many, only the first ones.
    #[serde(default)]
    pub kept: Vec<Kept>,
}

/// How to update a target to a snapshot. The other side requests the parts of the snapshots that it needs, or
/// receives a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bring {
    /// The snapshot.
    pub to: Holding,
    /// The one that the target holds can be read too.
    pub has_base: bool,
    /// What others have changed is given up.
    #[serde(default)]
    pub force: bool,
    /// Only report what would be done (dry run).
    #[serde(default)]
    pub dry_run: bool,
}

/// What was or would be done to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brought {
    /// Its current snapshot.
    pub state: TargetState,
    /// Names that have come.
    #[serde(default)]
    pub new: u64,
    /// Files and directories that only got another name or place.
    #[serde(default)]
    pub moved: u64,
    /// Files and links that changed in themselves.
    #[serde(default)]
    pub changed: u64,
    /// Names that went.
    #[serde(default)]
    pub removed: u64,
    /// Bytes written.
    #[serde(default)]
    pub bytes: u64,
    /// What could not be done.
    #[serde(default)]
    pub failures: u64,
    /// Something happened to it at all.
    #[serde(default)]
    pub is_touched: bool,
}

/// Which datasets are to be described.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Describe {
    /// Full name of a dataset. If it does not exist, the description is empty.
    pub root: String,
    /// Also everything below it.
    pub recursive: bool,
    /// The tag of the holds in [`SnapshotInfo::held`].
    pub tag: String,
}

/// The kind of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A filesystem.
    Filesystem,
    /// A volume.
    Volume,
}

/// A dataset with its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// Its full name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// It can only be sent raw.
    #[serde(default)]
    pub encrypted: bool,
    /// Guid of the snapshot it was cloned from.
    #[serde(default)]
    pub origin: Option<u64>,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// Its bookmarks.
    #[serde(default)]
    pub bookmarks: Vec<BookmarkInfo>,
    /// Bytes written since its newest snapshot.
    #[serde(default)]
    pub written: u64,
    /// The resume token of an interrupted receive (`receive_resume_token`).
    #[serde(default)]
    pub resume_token: Option<String>,
    /// It has not been received as a whole even once.
    #[serde(default)]
    pub inconsistent: bool,
    /// A receive into it is under way.
    #[serde(default)]
    pub receiving: bool,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// The name after the `@`.
    pub name: String,
    /// The guid, which is the same in every copy.
    pub guid: u64,
    /// Where it is in its pool's time.
    pub createtxg: u64,
    /// When it was taken: seconds since 1970.
    pub creation: u64,
    /// It is held by the tag that was asked for.
    #[serde(default)]
    pub held: bool,
    /// Holds on it, of any tag.
    #[serde(default)]
    pub holds: u64,
    /// Datasets were cloned from it.
    #[serde(default)]
    pub has_clones: bool,
}

/// A bookmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookmarkInfo {
    /// The name after the `#`.
    pub name: String,
    /// The guid of the snapshot it is of.
    pub guid: u64,
    /// That snapshot's place in its pool's time.
    pub createtxg: u64,
}

/// The stream to send.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendRequest {
    /// Full name of the snapshot.
    pub to: String,
    /// Full name of the snapshot or bookmark it is incremental from.
    #[serde(default)]
    pub from: Option<String>,
    /// All snapshots in between too (`-I`).
    #[serde(default)]
    pub intermediate: bool,
    /// The rest of an interrupted stream. Then the other fields of the request only identify it.
    #[serde(default)]
    pub token: Option<String>,
    /// Encrypted blocks go out as they are (`-w`).
    #[serde(default)]
    pub raw: bool,
    /// Properties go along (`-p`).
    #[serde(default)]
    pub properties: bool,
    /// Blocks of more than 128 KiB go out whole (`-L`).
    #[serde(default)]
    pub large_blocks: bool,
}

/// The snapshot to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRequest {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Full name of an older snapshot of the dataset, from which on changes can be asked for.
    #[serde(default)]
    pub since: Option<String>,
}

/// Where a stream is to go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveRequest {
    /// Full name of the dataset.
    pub target: String,
    /// Everything that is newer than the stream's base is destroyed (`-F`).
    #[serde(default)]
    pub force: bool,
    /// Full name of the snapshot that a clone is of.
    #[serde(default)]
    pub origin: Option<String>,
    /// Properties that are set (`-o`), in canonical text.
    #[serde(default)]
    pub properties: Vec<(String, String)>,
    /// Properties of the stream that are not taken (`-x`).
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Packages rename and destroy nothing, and their holds are ignored.
    #[serde(default)]
    pub only_adds: bool,
    /// The answer is [`Answer::Received`]: an older client does not know that.
    #[serde(default)]
    pub wants_notes: bool,
}

/// A small change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// Snapshots of several datasets, all at one moment.
    Snapshot {
        /// Their full names.
        names: Vec<String>,
    },
    /// Destroys a snapshot, unless something depends on it or holds it.
    DestroySnapshot {
        /// Its full name.
        name: String,
    },
    /// Makes a bookmark.
    Bookmark {
        /// Full name of the snapshot.
        snapshot: String,
        /// Full name of the bookmark.
        bookmark: String,
    },
    /// Destroys a bookmark.
    DestroyBookmark {
        /// Its full name.
        name: String,
    },
    /// Holds a snapshot.
    Hold {
        /// The tag.
        tag: String,
        /// Full name of the snapshot.
        snapshot: String,
    },
    /// Releases a hold.
    Release {
        /// The tag.
        tag: String,
        /// Full name of the snapshot.
        snapshot: String,
    },
    /// Renames a dataset.
    Rename {
        /// Full name.
        from: String,
        /// Full name.
        to: String,
    },
    /// Makes a filesystem that only holds others, and those above it.
    CreateParents {
        /// Full name.
        name: String,
    },
    /// Writes a line of the pool's history.
    Note {
        /// The line.
        line: String,
    },
    /// Discards the partial state of an interrupted receive.
    AbortReceive {
        /// Full name of the dataset.
        name: String,
    },
}
