//! Errors of the lower layers, in the words of `zfs`.
//!
//! `zfs` prints `ATTEMPT: REASON`, such as `cannot open 'tank/a': dataset does not exist`. Scripts match these
//! texts, so an error that names its dataset again must not.

use snowmelt_dataset::{DatasetError, ReceiveError, SendError};
use snowmelt_pool::PoolError;
use snowmelt_stream::StreamError;

use crate::error::{CliError, chain};

/// `attempt` is all that stands before the colon: `cannot destroy 'tank/a'`.
pub fn dataset_error(attempt: &str, error: &DatasetError) -> String {
    use DatasetError as E;
    match error {
        E::NotFound { .. } | E::NoParent { .. } if attempt.starts_with("cannot open") => {
            format!("{attempt}: dataset does not exist")
        }
        // Not the same words: tools match them.
        E::NoBookmark { .. } if attempt.starts_with("cannot open") => {
            format!("{attempt}: no such pool or dataset")
        }
        E::HasChildren { children, .. } => format!(
            "{attempt}: filesystem has children\nuse '-r' to destroy the following datasets:\n{}",
            children.join("\n")
        ),
        E::HasClones { name, clones } => {
            let what = if name.contains('@') { "snapshot" } else { "filesystem" };
            format!(
                "{attempt}: {what} has dependent clones\nuse '-R' to destroy the following datasets:\n{}",
                clones.join("\n")
            )
        }
        E::NotNewest { newer, .. } => format!(
            "{attempt}: more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following \
             snapshots and bookmarks:\n{}",
            newer.join("\n")
        ),
        E::Held { name } => {
            format!("{attempt}: it's being held. Run 'zfs holds -r {name}' to see holders.")
        }
        E::FeatureDisabled { feature, pool, .. } => format!(
            "{attempt}: pool must be upgraded: it needs the feature {feature}, which 'zpool set \
             feature@{feature}=enabled {pool}' enables"
        ),
        E::Pool(PoolError::NoSpace { .. }) => format!("{attempt}: out of space"),
        E::Name(_) | E::Pool(_) | E::Corrupt { .. } | E::Encrypted { .. } | E::Interrupted => {
            format!("{attempt}: {}", strip_name(&chain(error)))
        }
        other => format!("{attempt}: {}", strip_name(&chain(other))),
    }
}

/// `'tank/a': reason`, without the name if the attempt already has it.
fn strip_name(text: &str) -> &str {
    match text.strip_prefix('\'').and_then(|rest| rest.split_once("': ")) {
        Some((_, reason)) => reason,
        None => text,
    }
}

/// The same as a failure of the command.
pub fn failed(attempt: &str) -> impl Fn(DatasetError) -> CliError + '_ {
    move |error| CliError::Failed(dataset_error(attempt, &error))
}

/// The reason why nothing was received, in the words of `zfs receive`.
pub fn receive_error(target: &str, error: &ReceiveError) -> String {
    use ReceiveError as E;
    match error {
        E::SnapshotExists { .. } | E::PartialState { .. } => error.to_string(),
        E::Stream(StreamError::Truncated { end: 0, .. }) => {
            "cannot receive: failed to read from stream".to_owned()
        }
        E::Stream(cause) => format!("cannot receive: {}", chain(cause)),
        E::DestinationExists { .. } | E::DestinationHasSnapshots { .. } => {
            format!("cannot receive new filesystem stream: {error}")
        }
        E::NotNewest { .. } | E::Modified { .. } | E::NoDestination { .. } => {
            format!("cannot receive incremental stream: {error}")
        }
        E::NoPartialState { .. } => error.to_string(),
        E::Dataset(DatasetError::QuotaExceeded { name, .. }) => {
            format!("cannot receive into '{target}': destination {name} space quota exceeded.")
        }
        E::Dataset(cause) => dataset_error(&format!("cannot receive into '{target}'"), cause),
        other => format!("cannot receive: {}", chain(other)),
    }
}

/// The reason why nothing or not everything was sent, in the words of `zfs send`.
pub fn send_error(snapshot: &str, error: &SendError) -> String {
    match error {
        SendError::ResumeTargetGone { .. } | SendError::ResumeSourceGone { .. } => error.to_string(),
        SendError::Dataset(DatasetError::NotFound { name }) => {
            format!("cannot open '{name}': dataset does not exist")
        }
        SendError::Dataset(cause) => dataset_error(&format!("warning: cannot send '{snapshot}'"), cause),
        SendError::Unreadable { .. } => {
            format!("warning: cannot send '{snapshot}': Input/output error: {}", chain(error))
        }
        other => format!("warning: cannot send '{snapshot}': {}", chain(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_not_told_twice() {
        let name = || "tank/a".to_owned();
        for (error, text) in [
            (DatasetError::NotFound { name: name() }, "cannot open 'tank/a': dataset does not exist"),
            (DatasetError::Busy { name: name() }, "cannot open 'tank/a': dataset is busy"),
            (
                DatasetError::TagExists { name: name() },
                "cannot open 'tank/a': tag already exists on this dataset",
            ),
            (
                DatasetError::HasChildren {
                    name: name(),
                    children: vec!["tank/a/b".into(), "tank/a@c".into()],
                },
                "cannot open 'tank/a': filesystem has children\nuse '-r' to destroy the following \
                 datasets:\ntank/a/b\ntank/a@c",
            ),
        ] {
            assert_eq!(dataset_error("cannot open 'tank/a'", &error), text);
        }
    }
}
