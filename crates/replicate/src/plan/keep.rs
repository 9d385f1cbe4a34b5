//! The snapshots, bookmarks and holds that keep the next sync incremental.
//!
//! At the source a bookmark of the last snapshot that went over: the snapshot itself can be destroyed, and the next sync still
//! costs what changed. It is made before anything is sent, so that this is true of a sync that was cut off as well. At the target a hold on it, so that nobody prunes it away. Both carry the sync's mark, so that several
//! targets of one source do not take each other's, and older ones of the same mark are removed, as are older snapshots
//! that syncs of the same mark took.

use crate::request::{Action, BookmarkInfo, DatasetInfo};

/// How the snapshots, bookmarks and holds of one sync are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// What its snapshots' names begin with.
    pub snapshot_prefix: String,
    /// What its bookmarks' names begin with.
    pub bookmark_prefix: String,
    /// The tag of its holds.
    pub tag: String,
    /// Whether the target is to hold the base.
    pub hold: bool,
}

impl Marks {
    /// Those of a sync with this identifier, or none, to the target of this name (with its host).
    pub fn new(identifier: Option<&str>, target: &str, hold: bool) -> Self {
        let id = identifier.map(|identifier| format!("{identifier}_")).unwrap_or_default();
        // Not for security: two targets of one source must have different marks.
        let hash = target.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            snapshot_prefix: format!("snowmelt-sync_{id}"),
            bookmark_prefix: format!("snowmelt-sync_{id}{hash:016x}_"),
            tag: match identifier {
                Some(identifier) => format!("snowmelt-sync:{identifier}"),
                None => "snowmelt-sync".to_owned(),
            },
            hold,
        }
    }

    /// What the bookmark of the snapshot of this guid is called.
    fn bookmark(&self, guid: u64) -> String {
        format!("{}{guid:016x}", self.bookmark_prefix)
    }

    /// Whether a snapshot was taken by a sync of this mark. Names of syncs with another identifier begin with other than a
    /// digit where those of this one have the date.
    #[must_use]
    pub fn took(&self, snapshot: &str) -> bool {
        snapshot
            .strip_prefix(&self.snapshot_prefix)
            .is_some_and(|rest| rest.len() >= 19 && rest.starts_with(|first: char| first.is_ascii_digit()))
    }
}

/// The bookmarks that the snapshots `brings` of the source are to have before they go over, those that are there left out.
pub fn protect(source: &DatasetInfo, brings: &[u64], marks: &Marks) -> Vec<(BookmarkInfo, Action)> {
    let snapshots = source.snapshots.iter().filter(|snapshot| brings.contains(&snapshot.guid));
    let bookmarks = snapshots.map(|snapshot| {
        let name = marks.bookmark(snapshot.guid);
        let action = Action::Bookmark {
            snapshot: format!("{}@{}", source.name, snapshot.name),
            bookmark: format!("{}#{name}", source.name),
        };
        (BookmarkInfo { name, guid: snapshot.guid, createtxg: snapshot.createtxg }, action)
    });
    bookmarks.filter(|(bookmark, _)| !source.bookmarks.iter().any(|old| old.name == bookmark.name)).collect()
}

/// What is to be done at the source and at the target, when both have the snapshot `base` of the source as their newest.
pub fn keep(
    source: &DatasetInfo,
    target_name: &str,
    target: Option<&DatasetInfo>,
    base: u64,
    marks: &Marks,
) -> (Vec<Action>, Vec<Action>) {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let Some(newest) = source.snapshots.iter().find(|snapshot| snapshot.guid == base) else {
        return (here, there);
    };
    let bookmark = marks.bookmark(base);
    here.extend(protect(source, &[base], marks).into_iter().map(|(_, action)| action));
    for old in &source.bookmarks {
        if old.name.starts_with(&marks.bookmark_prefix) && old.name != bookmark {
            here.push(Action::DestroyBookmark { name: format!("{}#{}", source.name, old.name) });
        }
    }
    for old in &source.snapshots {
        if marks.took(&old.name) && old.createtxg < newest.createtxg {
            here.push(Action::DestroySnapshot { name: format!("{}@{}", source.name, old.name) });
        }
    }
    let known = target.map(|target| target.snapshots.as_slice()).unwrap_or_default();
    if marks.hold && !known.iter().any(|snapshot| snapshot.guid == base && snapshot.held) {
        let snapshot = format!("{target_name}@{}", newest.name);
        there.push(Action::Hold { tag: marks.tag.clone(), snapshot });
    }
    for old in known.iter().filter(|snapshot| snapshot.guid != base) {
        let name = format!("{target_name}@{}", old.name);
        if old.held {
            there.push(Action::Release { tag: marks.tag.clone(), snapshot: name.clone() });
        }
        if marks.took(&old.name) {
            there.push(Action::DestroySnapshot { name });
        }
    }
    (here, there)
}
