//! What can be asked of a pool, and the answers (docs/format/sync.md).

use serde::{Deserialize, Serialize};

use crate::error::Failure;

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
    /// Small changes, one after the other; each is done or not by itself.
    Apply {
        /// The changes.
        actions: Vec<Action>,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Where a stream is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Throws away what a receive that was cut off left.
    AbortReceive {
        /// Full name of the dataset.
        name: String,
    },
}
