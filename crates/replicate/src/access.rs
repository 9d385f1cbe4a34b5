//! The rights of a client. Every request is checked by an [`Access`].
//!
//! A key in authorized_keys runs one command, which has the rights of the key: a subtree of the pool, and a [`Role`].
//! For the client, nothing exists outside of the subtree. Each name is checked before the pool is read. So no answer
//! depends on whether something of this name exists.

mod limits;

use snowmelt_dataset::property::{Assignment, PeerProperties, Types, validate_stored};
use snowmelt_dataset::receive::Confinement;
use snowmelt_dataset::{DatasetError, Name, ReceiveError, SendError, Subtree, Suffix, text};

use crate::error::{Failure, FailureKind};
use crate::request::{Action, Request};
pub use limits::Limits;

/// The beginning of the names of syncs' snapshots and bookmarks.
const MARK: &str = "snowmelt-sync_";
/// The tag of a sync's holds. With a colon after it, it is also the beginning of the tags of syncs with an
/// identifier.
const TAG: &str = "snowmelt-sync";
/// Longest line that a client may write into the pool's history, in characters.
const NOTE_MAX: usize = 1000;

/// The actions that a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Everything that the protocol has.
    #[default]
    Full,
    /// Receive the existing data. For this it creates snapshots and bookmarks, and destroys those that syncs made.
    Send,
    /// Receive streams from the client. With force, it can also destroy what is newer than the streams.
    Receive,
    /// Receive streams from the client, without any loss of existing data.
    Append,
}

impl Role {
    /// The flag of `serve sync` that gives it.
    fn flag(self) -> &'static str {
        match self {
            Self::Full => "",
            Self::Send => "--send-only",
            Self::Receive => "--receive-only",
            Self::Append => "--append-only",
        }
    }

    fn sends(self) -> bool {
        matches!(self, Self::Full | Self::Send)
    }

    fn receives(self) -> bool {
        self != Self::Send
    }
}

/// The rights of a client.
#[derive(Debug, Clone, Default)]
pub struct Access {
    subtree: Option<Subtree>,
    role: Role,
    properties: PeerProperties,
    limits: Limits,
}

/// Names of properties with their values.
type Properties = Vec<(String, String)>;

impl Access {
    /// To the whole pool, with this role.
    #[must_use]
    pub fn to_pool(role: Role) -> Self {
        Self { subtree: None, role, ..Self::default() }
    }

    /// To this dataset and everything below it, with this role. The dataset need not exist: it can be received.
    #[must_use]
    pub fn to_subtree(subtree: Subtree, role: Role) -> Self {
        Self { subtree: Some(subtree), role, ..Self::default() }
    }

    /// With these properties that the client may set.
    #[must_use]
    pub fn with_properties(self, properties: PeerProperties) -> Self {
        Self { properties, ..self }
    }

    /// With these limits on what the client may accumulate.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Where snapshots are looked for by guid; everywhere without.
    pub(crate) fn subtree(&self) -> Option<&Subtree> {
        self.subtree.as_ref()
    }

    /// Whether the client may reach this dataset.
    pub(crate) fn reaches(&self, dataset: &str) -> bool {
        self.subtree.as_ref().is_none_or(|subtree| subtree.contains(dataset))
    }

    /// Whether this is a dataset above the client's subtree.
    pub(crate) fn is_above(&self, dataset: &str) -> bool {
        let root = self.subtree.as_ref().map_or("", Subtree::root);
        root.strip_prefix(dataset).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The name of a dataset, snapshot or bookmark that the client may reach.
    ///
    /// # Errors
    /// When it is not a valid name. Outside of the subtree: the error for a name that does not exist.
    pub(crate) fn name(&self, text: &str) -> Result<Name, Failure> {
        let name = Name::parse(text).map_err(DatasetError::from)?;
        match (self.reaches(name.dataset()), name.suffix()) {
            (true, _) => Ok(name),
            (false, Suffix::Bookmark(_)) => Err(DatasetError::NoBookmark { name: name.to_string() }.into()),
            (false, _) => Err(DatasetError::NotFound { name: name.to_string() }.into()),
        }
    }

    /// The name of a filesystem or volume that the client may reach.
    ///
    /// # Errors
    /// As [`Self::name`].
    pub(crate) fn dataset(&self, text: &str) -> Result<String, Failure> {
        Name::parse_dataset(text).map_err(DatasetError::from)?;
        Ok(self.name(text)?.dataset().to_owned())
    }

    /// Whether the client's role has such requests; the names in them are checked where they are used.
    ///
    /// # Errors
    /// [`FailureKind::NotAllowed`].
    pub(crate) fn check_request(&self, request: &Request) -> Result<(), Failure> {
        let is_allowed = match request {
            Request::Send(_) | Request::Sizes { .. } | Request::Read(_) | Request::Blocks { .. } => {
                self.role.sends()
            }
            Request::Receive(request) => {
                self.role.receives() && !(request.force && self.role == Role::Append)
            }
            Request::Mend { .. } => self.role.receives(),
            // Each action is checked separately. The other requests return only what a sync in both directions has to
            // know, or are refused for another reason.
            _ => true,
        };
        if is_allowed { Ok(()) } else { Err(self.refusal(what_of(request))) }
    }

    /// Whether the client's role has this action.
    ///
    /// # Errors
    /// [`FailureKind::NotAllowed`].
    pub(crate) fn check_action(&self, action: &Action) -> Result<(), Failure> {
        let is_mark =
            |name: &str| name.split_once(['@', '#']).is_some_and(|(_, short)| short.starts_with(MARK));
        let is_tag =
            |tag: &str| tag == TAG || tag.strip_prefix(TAG).is_some_and(|rest| rest.starts_with(':'));
        let is_allowed = match (self.role, action) {
            (Role::Full, _) | (_, Action::Note { .. }) => true,
            (Role::Send, Action::Snapshot { names }) => names.iter().all(|name| is_mark(name)),
            (Role::Send, Action::Bookmark { bookmark: name, .. } | Action::DestroyBookmark { name })
            | (Role::Send | Role::Receive, Action::DestroySnapshot { name }) => is_mark(name),
            (Role::Receive | Role::Append, Action::Hold { tag, .. } | Action::Release { tag, .. }) => {
                is_tag(tag)
            }
            (Role::Receive, Action::Rename { from, to }) => {
                !from.contains(['@', '#']) && !to.contains(['@', '#'])
            }
            (Role::Receive | Role::Append, Action::CreateParents { .. } | Action::AbortReceive { .. }) => {
                true
            }
            _ => false,
        };
        if is_allowed { Ok(()) } else { Err(self.refusal(what_of_action(action))) }
    }

    /// Whether only snapshots that are not the newest may be destroyed: the next sync needs that one.
    pub(crate) fn keeps_newest(&self) -> bool {
        self.role != Role::Full
    }

    /// What streams that the client sends may reach and set.
    pub(crate) fn confinement(&self) -> Confinement {
        Confinement {
            within: self.subtree.clone(),
            only_adds: self.role != Role::Full,
            properties: Some(self.properties.clone()),
        }
    }

    /// The properties that the client may set of those it asks for, in canonical text, and the names of the others.
    ///
    /// # Errors
    /// When a value is none of its property.
    pub(crate) fn properties(
        &self,
        asked: &[(String, String)],
    ) -> Result<(Properties, Vec<String>), Failure> {
        let (mut taken, mut left_out) = (Vec::new(), Vec::new());
        for (name, value) in asked {
            if !self.properties.takes(name) {
                left_out.push(text::visible_name(name.as_bytes()));
                continue;
            }
            let checked = validate_stored(name, value, Types::FILESYSTEM_VOLUME);
            let checked = checked.map_err(|error| {
                let name = text::visible_name(name.as_bytes());
                Failure::other(format!("cannot set property '{name}': {error}"))
            })?;
            taken.push(Assignment::to_stored(&checked));
        }
        Ok((taken, left_out))
    }

    /// The properties among these that the client may reset. What it may not set is not accepted in its streams
    /// either.
    pub(crate) fn excluded(&self, asked: &[String]) -> Vec<String> {
        asked.iter().filter(|name| self.properties.takes(name)).cloned().collect()
    }

    /// A failure without names outside of the client's subtree.
    pub(crate) fn conceal(&self, error: DatasetError) -> DatasetError {
        let Some(subtree) = &self.subtree else { return error };
        let root = || subtree.root().to_owned();
        match error {
            DatasetError::HasClones { name, mut clones } => {
                clones.retain(|clone| subtree.contains(clone));
                match clones.is_empty() {
                    true => DatasetError::Busy { name },
                    false => DatasetError::HasClones { name, clones },
                }
            }
            DatasetError::QuotaExceeded { name, .. } if !subtree.contains(&name) => {
                DatasetError::OutOfSpace { name: root(), needed: 0, available: 0 }
            }
            DatasetError::OutOfSpace { name, .. } if !subtree.contains(&name) => {
                DatasetError::OutOfSpace { name: root(), needed: 0, available: 0 }
            }
            DatasetError::Encrypted { dataset, object, root, .. } if !subtree.contains(&root) => {
                let (root, location) = (dataset.clone(), "not told".to_owned());
                DatasetError::Encrypted { dataset, object, root, location }
            }
            other => other,
        }
    }

    /// As [`Self::conceal`].
    pub(crate) fn conceal_receive(&self, error: ReceiveError) -> Failure {
        match error {
            ReceiveError::Dataset(error) => ReceiveError::Dataset(self.conceal(error)).into(),
            other => other.into(),
        }
    }

    /// As [`Self::conceal`].
    pub(crate) fn conceal_send(&self, error: SendError) -> Failure {
        match error {
            SendError::Dataset(error) => SendError::Dataset(self.conceal(error)).into(),
            other => other.into(),
        }
    }

    fn refusal(&self, what: &str) -> Failure {
        let flag = self.role.flag();
        Failure::new(
            FailureKind::NotAllowed,
            format!("{what} is not allowed here: this is 'serve sync {flag}'"),
        )
    }
}

/// A line for the pool's history, marked as a client's.
pub(crate) fn note(line: &str) -> String {
    let line: String = line.chars().take(NOTE_MAX).collect();
    format!("sync client: {}", text::visible_name(line.as_bytes()))
}

fn what_of(request: &Request) -> &'static str {
    match request {
        Request::Receive(request) if request.force => "to receive with --force",
        Request::Receive(_) => "to receive",
        Request::Mend { .. } => "to mend",
        _ => "to read or send",
    }
}

fn what_of_action(action: &Action) -> &'static str {
    match action {
        Action::Snapshot { .. } => "to take a snapshot with this name",
        Action::DestroySnapshot { .. } => "to destroy this snapshot",
        Action::Bookmark { .. } | Action::DestroyBookmark { .. } => "to create or destroy this bookmark",
        Action::Hold { .. } | Action::Release { .. } => "to hold or release with this tag",
        Action::Rename { .. } => "to rename",
        Action::CreateParents { .. } => "to create a dataset",
        Action::AbortReceive { .. } => "to abort a receive",
        Action::Note { .. } => "to write into the history",
    }
}

#[cfg(test)]
mod tests;
