//! Failures, as they travel from one end to the other.

use serde::{Deserialize, Serialize};
use snowmelt_dataset::text::visible_message;
use snowmelt_dataset::{DatasetError, ReceiveError, SendError};
use snowmelt_pool::PoolError;

/// Longest message that is believed of another machine, in characters.
const MESSAGE_MAX: usize = 8 * 1024;

/// The kind of a failure, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The connection is gone, or cannot be made: trying again may help.
    Lost,
    /// The stream cannot be resumed, because its snapshot no longer exists.
    CannotResume,
    /// A receive into the target is under way.
    Busy,
    /// The target has no room: the pool is full or a quota is reached.
    NoSpace,
    /// The target was written to since the base, or has newer snapshots.
    Diverged,
    /// The data to send is outside of the pool, and has changed or cannot be read.
    SourceChanged,
    /// Interrupted.
    Interrupted,
    /// The client may not do this there, whatever it is about.
    NotAllowed,
    /// Anything else, also kinds of later versions that are unknown here.
    #[serde(other)]
    Other,
}

/// A failure: its kind for programs, its message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind, for programs.
    pub kind: FailureKind,
    /// The text for the user: one or more lines without a period at the end.
    pub message: String,
}

impl Failure {
    /// Of this kind, with this message.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Of no particular kind.
    pub fn other(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Other, message)
    }

    /// The connection is gone.
    pub fn lost(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Lost, message)
    }

    /// A text from another machine, made safe to print: of limited length, and without control characters.
    #[must_use]
    pub(crate) fn made_safe(self) -> Self {
        Self { kind: self.kind, message: safe_message(&self.message) }
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.kind == FailureKind::Lost
    }
}

/// A message that another machine told, as it may be shown.
pub(crate) fn safe_message(message: &str) -> String {
    let end = message.char_indices().nth(MESSAGE_MAX).map_or(message.len(), |(end, _)| end);
    visible_message(message.get(..end).unwrap_or_default()).into_owned()
}

/// An error with its causes, each said once.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = next.source();
    }
    text
}

fn kind_of(error: &DatasetError) -> FailureKind {
    match error {
        DatasetError::Busy { .. } => FailureKind::Busy,
        DatasetError::Interrupted => FailureKind::Interrupted,
        DatasetError::Pool(PoolError::NoSpace { .. })
        | DatasetError::QuotaExceeded { .. }
        | DatasetError::OutOfSpace { .. } => FailureKind::NoSpace,
        DatasetError::NotNewest { .. } => FailureKind::Diverged,
        _ => FailureKind::Other,
    }
}

impl From<DatasetError> for Failure {
    fn from(error: DatasetError) -> Self {
        Self::new(kind_of(&error), chain(&error))
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let kind = match &error {
            SendError::ResumeTargetGone { .. } | SendError::ResumeSourceGone { .. } => {
                FailureKind::CannotResume
            }
            SendError::Closed | SendError::Write(_) => FailureKind::Lost,
            SendError::Unreadable {
                source: PoolError::Outside { .. } | PoolError::OutsideChanged { .. },
                ..
            } => FailureKind::SourceChanged,
            SendError::Dataset(error) => kind_of(error),
            _ => FailureKind::Other,
        };
        Self::new(kind, chain(&error))
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let kind = match &error {
            ReceiveError::Busy { .. } => FailureKind::Busy,
            ReceiveError::Modified { .. } | ReceiveError::NotNewest { .. } => FailureKind::Diverged,
            ReceiveError::Resume { .. } => FailureKind::CannotResume,
            ReceiveError::Dataset(error) => kind_of(error),
            _ => FailureKind::Other,
        };
        Self::new(kind, chain(&error))
    }
}
