//! The snapshots, bookmarks and holds that keep the next sync incremental.
//!
//! At the source, a bookmark of the last snapshot that was sent. The snapshot itself can then be destroyed, and the
//! next sync still sends only the changes. The bookmark is made before anything is sent, so this is true for an
//! interrupted sync too. At the target, a hold on this snapshot, so that it is not pruned. Both have the mark of the
//! sync, so that several targets of one source do not remove each other's. Older ones of the same mark are removed,
//! and also older snapshots that syncs of the same mark took.

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

    /// The name of the bookmark for the snapshot with this guid.
    fn bookmark(&self, guid: u64) -> String {
        format!("{}{guid:016x}", self.bookmark_prefix)
    }

    /// Whether a snapshot was taken by a sync of this mark. Snapshots of this mark have the date at this position of
    /// their names. Those of syncs with another identifier have a character that is not a digit.
    #[must_use]
    pub fn took(&self, snapshot: &str) -> bool {
        snapshot
            .strip_prefix(&self.snapshot_prefix)
            .is_some_and(|rest| rest.len() >= 19 && rest.starts_with(|first: char| first.is_ascii_digit()))
    }
}

/// The missing bookmarks of the source's snapshots `brings`, which must exist before these are sent.
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

/// The actions at the source and at the target when both have the snapshot `base` of the source as their newest.
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
