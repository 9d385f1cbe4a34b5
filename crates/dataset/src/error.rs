//! Errors of datasets.

use snowmelt_pool::PoolError;
use snowmelt_stream::StreamError;

/// A name that violates ZFS's rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum NameError {
    #[error("'{name}': name is too long")]
    TooLong { name: String },
    #[error("'{name}': too many levels of datasets")]
    TooDeep { name: String },
    #[error("'{name}': empty component or misplaced '@' or '#' delimiter in name")]
    EmptyComponent { name: String },
    #[error("'{name}': multiple '@' and/or '#' delimiters in name")]
    MultipleDelimiters { name: String },
    #[error("'{name}': '{found}' is not allowed in the name of a filesystem or volume")]
    UnexpectedDelimiter { name: String, found: char },
    #[error("'{name}': invalid character '{found}' in name")]
    InvalidCharacter { name: String, found: char },
    #[error("'{name}': leading slash in name")]
    LeadingSlash { name: String },
    #[error("'{name}': trailing slash in name")]
    TrailingSlash { name: String },
    #[error("'{name}': self reference, '.' is found in name")]
    SelfReference { name: String },
    #[error("'{name}': parent reference, '..' is found in name")]
    ParentReference { name: String },
    #[error("'{name}': pool names must begin with a letter")]
    NoLetter { name: String },
    #[error("'{name}': name is reserved")]
    Reserved { name: String },
}

/// Why an operation on datasets failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DatasetError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("'{name}': dataset does not exist")]
    NotFound { name: String },
    #[error("'{name}': no such pool")]
    NoPool { name: String },
    #[error("'{name}': dataset already exists")]
    Exists { name: String },
    #[error("'{name}': parent does not exist")]
    NoParent { name: String },
    #[error("'{name}': operation not applicable to datasets of this type")]
    WrongType { name: String },
    #[error("'{name}': dataset is busy")]
    Busy { name: String },
    #[error("'{name}' has children: {}", children.join(", "))]
    HasChildren { name: String, children: Vec<String> },
    #[error("'{name}' has dependent clones: {}", clones.join(", "))]
    HasClones { name: String, clones: Vec<String> },
    #[error("'{name}': it is held")]
    Held { name: String },
    #[error("'{name}': tag already exists on this dataset")]
    TagExists { name: String },
    #[error("'{name}': no such tag on this dataset")]
    NoTag { name: String },
    #[error("'{name}': bookmark exists")]
    BookmarkExists { name: String },
    #[error("bookmark '{name}' does not exist")]
    NoBookmark { name: String },
    #[error("'{name}': more recent snapshots or bookmarks exist: {}", newer.join(", "))]
    NotNewest { name: String, newer: Vec<String> },
    /// A pool can be made with features disabled, and then refuses what needs them.
    #[error("'{name}': it needs the feature {feature}, which is not enabled in pool '{pool}'")]
    FeatureDisabled { name: String, feature: String, pool: String },
    #[error("'{name}': not a cloned filesystem")]
    NotAClone { name: String },
    #[error("'{name}': the dataset belongs to another pool")]
    OtherPool { name: String },
    #[error("'{name}': {why}")]
    Refused { name: String, why: String },
    #[error("property '{property}': {why}")]
    Property { property: String, why: String },
    #[error("{what}: {why}; run 'snowmelt check'")]
    Corrupt { what: String, why: String },
    #[error(
        "'{dataset}': it is encrypted; the key of its encryption root '{root}' (keylocation {location}) would be \
         needed to read it"
    )]
    Encrypted { dataset: String, object: u64, root: String, location: String },
    #[error("the operation was interrupted")]
    Interrupted,
    /// A dataset or one of its parents has reached its quota (`EDQUOT`).
    #[error("'{name}': {quota} exceeded: {used} of {limit} bytes are used")]
    QuotaExceeded { name: String, quota: Quota, limit: u64, used: u64 },
    /// A dataset needs more space than quotas, reservations of others and the pool allow.
    #[error("'{name}': out of space")]
    OutOfSpace { name: String, needed: u64, available: u64 },
    /// A quota below the used space is refused.
    #[error("size is less than current used or reserved space")]
    BelowUse { property: &'static str },
    /// A reservation above the available space is refused.
    #[error("size is greater than available space")]
    BeyondSpace { property: &'static str },
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Which quota was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// `quota`: of a dataset with all its descendants.
    Quota,
    /// `refquota`: of a dataset's head.
    Refquota,
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Quota => "quota",
            Self::Refquota => "refquota",
        })
    }
}

impl DatasetError {
    pub(crate) fn corrupt(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), why: why.into() }
    }

    pub(crate) fn refused(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { name: name.into(), why: why.into() }
    }
}

/// Why a stream was not received. Nothing of it is visible afterwards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ReceiveError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("record {index} ({kind}) at stream offset {offset}: {why}")]
    Record { index: u64, kind: &'static str, offset: u64, why: String },
    #[error("destination '{name}' exists\nmust specify -F to overwrite it")]
    DestinationExists { name: String },
    #[error("cannot restore to {name}: destination already exists")]
    SnapshotExists { name: String },
    #[error("destination '{name}' does not exist")]
    NoDestination { name: String },
    #[error("specified fs ({name}) does not exist")]
    NoTarget { name: String },
    #[error("destination has snapshots (eg. {snapshot})\nmust destroy them to overwrite it")]
    DestinationHasSnapshots { snapshot: String },
    #[error("most recent snapshot of {name} does not\nmatch incremental source")]
    NotNewest { name: String },
    #[error("destination {name} has been modified\nsince most recent snapshot")]
    Modified { name: String },
    #[error("destination {name} contains partially-complete state from \"zfs receive -s\".")]
    PartialState { name: String },
    #[error("'{name}' does not have any resumable receive state to abort")]
    NoPartialState { name: String },
    #[error("this build cannot receive the stream: {what}")]
    Unsupported { what: String },
    #[error("the stream resumes an earlier receive, but {why}")]
    Resume { why: String },
    #[error("local origin for clone {name} does not exist (guid {guid:#018x})")]
    NoOrigin { name: String, guid: u64 },
    #[error("raw stream of '{name}': {why}")]
    Raw { name: String, why: String },
    #[error("package: {why}")]
    Package { why: String },
    #[error("'{name}': dataset is busy")]
    Busy { name: String },
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

impl From<PoolError> for ReceiveError {
    fn from(error: PoolError) -> Self {
        Self::Dataset(error.into())
    }
}

/// Why a stream was not sent completely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SendError {
    #[error("incremental source ({from}) does not exist")]
    NoSource { from: String },
    #[error("'{from}' is not an earlier snapshot from the same fs as '{to}'")]
    NotEarlier { from: String, to: String },
    #[error("cannot resume send: '{name}' used in the initial send no longer exists")]
    ResumeTargetGone { name: String },
    #[error("cannot resume send: incremental source {guid:#x} no longer exists")]
    ResumeSourceGone { guid: u64 },
    #[error("'{name}' is encrypted and no key is here: it can only be sent raw, with -w")]
    NeedsRaw { name: String },
    #[error("'{name}' has blocks that this stream cannot carry: {why}")]
    Unsendable { name: String, why: String },
    /// A block is damaged or cannot be read; the stream ends there. Without an offset, it is the spill block.
    #[error("{} cannot be read", place(*object, *offset, name))]
    Unreadable { name: String, object: u64, offset: Option<u64>, source: PoolError },
    #[error("writing the stream")]
    Write(#[source] std::io::Error),
    #[error("the receiver closed the stream")]
    Closed,
    #[error(transparent)]
    Stream(StreamError),
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

/// Describes a block of a snapshot, for messages.
fn place(object: u64, offset: Option<u64>, name: &str) -> String {
    match offset {
        Some(offset) => format!("object {object}, offset {offset} of {name}"),
        None => format!("the spill block of object {object} of {name}"),
    }
}

impl From<PoolError> for SendError {
    fn from(error: PoolError) -> Self {
        Self::Dataset(error.into())
    }
}
