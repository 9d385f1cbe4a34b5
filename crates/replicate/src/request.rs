//! What can be asked of a pool, and the answers (docs/format/sync.md).

use serde::{Deserialize, Serialize};

use crate::error::{Failure, safe_message};

/// A request to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// What is there.
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
    /// What is at the path that is served is to become a copy.
    OpenTarget(OpenTarget),
    /// Copies below what was opened last are to be elsewhere below it; each is moved or not by itself.
    Relocate {
        /// The moves, in any order; they may go into one another's place.
        moves: Vec<Relocation>,
    },
    /// What was opened last is to be brought to a snapshot.
    Bring(Bring),
    /// What was taken in last has gone over.
    Sent {
        /// Where to, as a person knows it.
        target: String,
    },
    /// The names of damaged blocks that somebody else should have.
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
    /// Blocks that may be what is damaged.
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
    /// What was taken in.
    TakenIn(TakenIn),
    /// What was opened.
    Target(TargetState),
    /// What was brought.
    Brought(Brought),
    /// Damaged blocks besides those named: metadata, or in no snapshot of the other one.
    Wanted {
        /// How many.
        others: u64,
    },
    /// What was received, where the request wants notes.
    Received {
        /// What a person should know.
        notes: Vec<String>,
    },
    /// What was mended.
    Mended {
        /// Blocks.
        blocks: u64,
        /// Their stored bytes.
        bytes: u64,
        /// Blocks that came and were not what is damaged.
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
    /// What stands after the `@` of the snapshot that it becomes.
    pub snapshot: String,
    /// Patterns of files to leave out.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// What was taken in before could not be sent: older snapshots are given up.
    #[serde(default)]
    pub again: bool,
}

/// What was taken in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenIn {
    /// Full name of the dataset that it is in.
    pub dataset: String,
    /// Nothing of it has gone anywhere yet.
    pub is_new: bool,
    /// What was done, as a person understands it.
    pub summary: String,
    /// Files that could not be read, or changed while they were.
    #[serde(default)]
    pub failures: u64,
    /// What a person should know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A directory, an image or device, or a file with a stream, as the target of a sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTarget {
    /// What it is a copy of, or is to become one of, in the user's words.
    pub source: String,
    /// What the source is.
    pub kind: Kind,
    /// Where it is below the target that is served, name by name: for datasets below the source.
    #[serde(default)]
    pub below: Vec<String>,
    /// Names of what is kept in it by itself: the last parts of the names of datasets below.
    #[serde(default)]
    pub children: Vec<String>,
    /// What is there though no sync has put it there is given up.
    #[serde(default)]
    pub force: bool,
    /// Nothing is to be made or changed.
    #[serde(default)]
    pub dry_run: bool,
    /// What is kept below is to be told.
    #[serde(default)]
    pub list: bool,
}

/// The copy of a dataset below the one that a directory is a copy of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Where it is below the target that was opened, name by name. One that waits, since a move was cut off, is in the record's
    /// directory.
    pub below: Vec<String>,
    /// What it is a copy of.
    pub kind: Kind,
    /// What it is a copy of, in the user's words.
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
    /// Where it is, as [`Kept`] tells it.
    pub from: Vec<String>,
    /// Where it is to be, name by name.
    pub to: Vec<String>,
    /// What it is a copy of, in the user's words.
    pub source: String,
}

/// What a target is.
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
    /// The same in every copy of it.
    pub guid: u64,
    /// Its full name, for people.
    pub name: String,
}

/// What a target holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetState {
    /// What it is.
    pub form: Form,
    /// Tells it from other targets, in the names of snapshots; nothing where any snapshot will do.
    #[serde(default)]
    pub id: Option<String>,
    /// The snapshot that it holds, but for changes that have begun.
    #[serde(default)]
    pub held: Option<Holding>,
    /// The snapshot to which a change has begun and not ended.
    #[serde(default)]
    pub unfinished: Option<Holding>,
    /// What has begun goes on from the snapshot that it held.
    #[serde(default)]
    pub resumes: bool,
    /// No sync has been at it; only told in a rehearsal.
    #[serde(default)]
    pub is_new: bool,
    /// There is something in it that no sync has put there; only told in a rehearsal.
    #[serde(default)]
    pub is_foreign: bool,
    /// What is kept below, those above first, if that was asked for; of very many only the first.
    #[serde(default)]
    pub kept: Vec<Kept>,
}

/// How a target is to be brought to a snapshot. The other side asks for what it needs of the snapshots, or takes a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bring {
    /// The snapshot.
    pub to: Holding,
    /// The one that the target holds can be read too.
    pub has_base: bool,
    /// What others have changed is given up.
    #[serde(default)]
    pub force: bool,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was done to a target, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brought {
    /// What it holds now.
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
    /// Full name of a dataset; if there is none, nothing is described.
    pub root: String,
    /// Also everything below it.
    pub recursive: bool,
    /// The tag of holds that [`SnapshotInfo::held`] tells of.
    pub tag: String,
}

/// What a dataset is.
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
    /// What it is.
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
    /// What a receive that was cut off left, to go on with (`receive_resume_token`).
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
    /// What stands after the `@`.
    pub name: String,
    /// The same in every copy of it.
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
    /// What stands after the `#`.
    pub name: String,
    /// The guid of the snapshot it is of.
    pub guid: u64,
    /// That snapshot's place in its pool's time.
    pub createtxg: u64,
}

/// What is to be sent.
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
    /// The rest of a stream that was cut off; then the rest of the request only names it.
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

/// What is to be read.
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
    /// What is newer than the stream's base is destroyed (`-F`).
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
    /// Packages rename and destroy nothing that is there, and their holds are not taken.
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
    /// Throws away what a receive that was cut off left.
    AbortReceive {
        /// Full name of the dataset.
        name: String,
    },
}
