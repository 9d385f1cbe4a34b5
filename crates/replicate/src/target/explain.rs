//! Messages for errors of a target, and what the user can do about them.

use std::io;

use snowmelt_fs::mirror::MirrorError;

use crate::error::{Failure, FailureKind, chain};

/// Conflicts that are named.
const NAMED_MAX: usize = 20;

/// Why a directory or image, a copy of `source` in the user's words, cannot be brought up to date.
pub(super) fn explained(source: &str, error: &MirrorError) -> Failure {
    let (kind, text) = match error {
        MirrorError::Interrupted => (FailureKind::Interrupted, "interrupted".to_owned()),
        MirrorError::Foreign { .. } => (
            FailureKind::Diverged,
            format!(
                "the target is not empty, and was not made by a sync\nwith --force it becomes a copy of \
                 '{source}', and everything else in it is removed"
            ),
        ),
        MirrorError::OtherSource { holds, .. } => (
            FailureKind::Diverged,
            format!(
                "the target is a copy of '{holds}'\nwith --force it becomes a copy of '{source}', and everything \
                 else in it is removed"
            ),
        ),
        MirrorError::Record { path } => (
            FailureKind::Other,
            format!(
                "{error}\nremove '{}' and sync with --force: then everything is compared",
                path.display()
            ),
        ),
        MirrorError::Local { path, source, .. } if source.kind() == io::ErrorKind::NotADirectory => {
            (FailureKind::Other, format!("'{}' is in the way: remove it, and sync again", path.display()))
        }
        MirrorError::NotOurs { path, .. } => (
            FailureKind::Other,
            format!(
                "{error}, who could change it meanwhile\nrun this as that user; or remove '{}' and sync with \
                 --force: then everything is compared",
                path.display()
            ),
        ),
        MirrorError::Busy { .. } => {
            (FailureKind::Busy, "another sync is writing to the target: wait until it has ended".to_owned())
        }
        MirrorError::Nested { name } => (
            FailureKind::Other,
            format!(
                "{error}\nthe mount of that dataset would hide it: move '{name}' of '{source}' elsewhere, or \
                 rename the dataset (if it no longer exists, rename its copy at the target)"
            ),
        ),
        MirrorError::InTheWay { path, of } => (
            FailureKind::Diverged,
            format!(
                "'{}' is to be renamed as its dataset was, and '{}' is in the way\nmove that elsewhere, and sync \
                 again; with --force, '{source}' is copied there, and the old copy stays",
                of.display(),
                path.display()
            ),
        ),
        MirrorError::Conflicts { some, count } => {
            let places = if *count == 1 { "place" } else { "places" };
            let mut text = format!("the target was changed by others in {count} {places}");
            for conflict in some.iter().take(NAMED_MAX) {
                text.push_str(&format!("\n  {}: {}", String::from_utf8_lossy(&conflict.path), conflict.what));
            }
            let more = count.saturating_sub(some.len().min(NAMED_MAX) as u64);
            if more > 0 {
                text.push_str(&format!("\n  and {more} more"));
            }
            text.push_str(
                "\ncopy elsewhere what you want to keep, and sync with --force: this makes the target a copy of \
                 the snapshot, and removes everything else",
            );
            (FailureKind::Diverged, text)
        }
        other => (FailureKind::Other, chain(other)),
    };
    Failure::new(kind, text)
}
