//! The steps that bring one dataset up to date.

use std::collections::HashMap;

use snowmelt_stream::token::ResumeToken;

use super::{Options, Origin};
use crate::error::{Failure, FailureKind};
use crate::request::{DatasetInfo, ReceiveRequest, SendRequest, SnapshotInfo};

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The partial state of an interrupted receive is discarded, because it cannot be used any more.
    Abort {
        /// Why.
        why: String,
    },
    /// A hold of an earlier sync, on a snapshot of the target that the user gives up, is released.
    Release {
        /// Full name of the snapshot.
        snapshot: String,
    },
    /// A stream is sent.
    Send {
        /// How it is made.
        send: SendRequest,
        /// The target.
        receive: ReceiveRequest,
        /// Guid of the last snapshot it brings.
        brings: u64,
    },
}

impl Step {
    /// Guid of the last snapshot that comes with it.
    pub(crate) fn brings(&self) -> Option<u64> {
        match self {
            Self::Abort { .. } | Self::Release { .. } => None,
            Self::Send { brings, .. } => Some(*brings),
        }
    }
}

/// The reason why a dataset cannot be brought up to date. The text has the cause and what the user can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Problem {
    #[error("'{source_name}' has no snapshot to send\ntake one, or leave out --no-snapshot")]
    NothingToSend { source_name: String },
    #[error("a receive into '{target}' is running: wait until it has ended")]
    Receiving { target: String },
    #[error(
        "'{target}' and '{source_name}' have no snapshot in common: it is not a copy, or its base was \
         destroyed\nto send everything again, rename '{target}' or destroy it, and sync again"
    )]
    NothingInCommon { source_name: String, target: String },
    #[error(
        "'{target}' has snapshots that are newer than @{base}, the newest it has in common with \
         '{source_name}':\n  {}\nto destroy these, sync with --force; to keep them, clone or send '{target}' \
         elsewhere first",
        newer.join("\n  ")
    )]
    Diverged { source_name: String, target: String, base: String, newer: Vec<String> },
    #[error("'{target}' is a {is}, and '{source_name}' is not")]
    OtherKind { source_name: String, target: String, is: &'static str },
}

impl Problem {
    /// The same for programs.
    pub(crate) fn into_failure(self) -> Failure {
        let kind = match self {
            Self::Receiving { .. } => FailureKind::Busy,
            Self::Diverged { .. } => FailureKind::Diverged,
            _ => FailureKind::Other,
        };
        Failure::new(kind, self.to_string())
    }
}

/// The steps from the state of the target to the newest snapshot of the source; empty if the target has it.
///
/// # Errors
/// [`Problem`], with nothing to be done.
pub fn steps(
    source: &DatasetInfo,
    target: Option<&DatasetInfo>,
    target_name: &str,
    origin: Option<&Origin>,
    options: &Options,
) -> Result<Vec<Step>, Problem> {
    let mut steps = Vec::new();
    let mut target = target.cloned();
    if let Some(found) = &mut target {
        if found.receiving {
            return Err(Problem::Receiving { target: target_name.to_owned() });
        }
        if found.kind != source.kind {
            let is = if found.kind == crate::request::Kind::Volume { "volume" } else { "filesystem" };
            let (source_name, target) = (source.name.clone(), target_name.to_owned());
            return Err(Problem::OtherKind { source_name, target, is });
        }
        if let Some(token) = found.resume_token.take() {
            match resumed(source, found, &token) {
                Ok(snapshot) => {
                    let send =
                        SendRequest { token: Some(token), ..options.send(source, &snapshot.name, None) };
                    let receive = ReceiveRequest { force: false, ..options.receive(target_name) };
                    steps.push(Step::Send { send, receive, brings: snapshot.guid });
                    found.snapshots.push(snapshot.clone());
                }
                Err(why) => {
                    steps.push(Step::Abort { why });
                    if found.inconsistent {
                        target = None;
                    }
                }
            }
        }
    }
    let last = source.snapshots.last();
    let last = last.ok_or_else(|| Problem::NothingToSend { source_name: source.name.clone() })?;
    let Some(target) = target else {
        steps.extend(first(source, last, target_name, origin, options));
        return Ok(steps);
    };
    let base = base(source, &target).ok_or_else(|| Problem::NothingInCommon {
        source_name: source.name.clone(),
        target: target_name.to_owned(),
    })?;
    let more = since(source, &base, last, target_name, options);
    if more.is_empty() {
        return Ok(steps);
    }
    let newer = target.snapshots.get(base.target_at + 1..).unwrap_or_default();
    let full = |snapshot: &SnapshotInfo| format!("{target_name}@{}", snapshot.name);
    if !newer.is_empty() && !options.force {
        return Err(Problem::Diverged {
            source_name: source.name.clone(),
            target: target_name.to_owned(),
            base: target.snapshots.get(base.target_at).map(|s| s.name.clone()).unwrap_or_default(),
            newer: newer.iter().map(full).collect(),
        });
    }
    let held = newer.iter().filter(|snapshot| snapshot.held);
    steps.extend(held.map(|snapshot| Step::Release { snapshot: full(snapshot) }));
    steps.extend(more);
    Ok(steps)
}

/// The snapshot of the interrupted stream, if it can be resumed; otherwise the reason.
fn resumed<'a>(
    source: &'a DatasetInfo,
    target: &DatasetInfo,
    token: &str,
) -> Result<&'a SnapshotInfo, String> {
    let token = ResumeToken::parse(token).map_err(|error| error.to_string())?;
    let to = token.to_guid().unwrap_or(0);
    let snapshot = source.snapshots.iter().find(|snapshot| snapshot.guid == to).ok_or_else(|| {
        format!("'{}' used in the initial send no longer exists", token.to_name().unwrap_or(""))
    })?;
    let from = token.from_guid().unwrap_or(0);
    let has_base = from == 0
        || source.origin == Some(from)
        || source.snapshots.iter().any(|snapshot| snapshot.guid == from)
        || source.bookmarks.iter().any(|bookmark| bookmark.guid == from);
    if !has_base {
        return Err(format!("incremental source {from:#x} no longer exists"));
    }
    if target.snapshots.iter().any(|snapshot| snapshot.guid == to) {
        return Err(format!("'{}' already exists", snapshot.name));
    }
    Ok(snapshot)
}

/// The base: the source can send from it, and the target has it.
struct Base {
    /// Full name at the source.
    name: String,
    createtxg: u64,
    is_bookmark: bool,
    /// Where it is among the snapshots of the target.
    target_at: usize,
}

/// The newest that both have.
fn base(source: &DatasetInfo, target: &DatasetInfo) -> Option<Base> {
    let there: HashMap<u64, usize> =
        target.snapshots.iter().enumerate().map(|(at, snapshot)| (snapshot.guid, at)).collect();
    let snapshots = source.snapshots.iter().filter_map(|snapshot| {
        Some(Base {
            name: format!("{}@{}", source.name, snapshot.name),
            createtxg: snapshot.createtxg,
            is_bookmark: false,
            target_at: *there.get(&snapshot.guid)?,
        })
    });
    let bookmarks = source.bookmarks.iter().filter_map(|bookmark| {
        Some(Base {
            name: format!("{}#{}", source.name, bookmark.name),
            createtxg: bookmark.createtxg,
            is_bookmark: true,
            target_at: *there.get(&bookmark.guid)?,
        })
    });
    // From a snapshot less is sent than from its bookmark.
    snapshots.chain(bookmarks).max_by_key(|base| (base.createtxg, !base.is_bookmark))
}

/// A dataset that is not there yet.
fn first(
    source: &DatasetInfo,
    last: &SnapshotInfo,
    target: &str,
    origin: Option<&Origin>,
    options: &Options,
) -> Vec<Step> {
    let oldest = match options.newest_only {
        true => last,
        false => source.snapshots.first().unwrap_or(last),
    };
    let send = options.send(source, &oldest.name, origin.map(|origin| origin.source.clone()));
    // The origin of a clone is given by its name, so that it is found even if another snapshot has its guid.
    let receive = ReceiveRequest {
        origin: origin.map(|origin| origin.target.clone()),
        force: false,
        ..options.receive(target)
    };
    let mut steps = vec![Step::Send { send, receive, brings: oldest.guid }];
    steps.extend(rest(source, oldest, last, target, options));
    steps
}

/// From a base to the newest.
fn since(
    source: &DatasetInfo,
    base: &Base,
    last: &SnapshotInfo,
    target: &str,
    options: &Options,
) -> Vec<Step> {
    let next = match options.newest_only {
        true => Some(last),
        false => source.snapshots.iter().find(|snapshot| snapshot.createtxg > base.createtxg),
    };
    let Some(next) = next.filter(|next| next.createtxg > base.createtxg) else { return Vec::new() };
    if !base.is_bookmark && !options.newest_only && next.guid != last.guid {
        let send =
            SendRequest { intermediate: true, ..options.send(source, &last.name, Some(base.name.clone())) };
        return vec![Step::Send { send, receive: options.receive(target), brings: last.guid }];
    }
    // From a bookmark one snapshot can be sent; the others follow from that.
    let send = options.send(source, &next.name, Some(base.name.clone()));
    let mut steps = vec![Step::Send { send, receive: options.receive(target), brings: next.guid }];
    steps.extend(rest(source, next, last, target, options));
    steps
}

/// Everything after `from` up to `last`.
fn rest(
    source: &DatasetInfo,
    from: &SnapshotInfo,
    last: &SnapshotInfo,
    target: &str,
    options: &Options,
) -> Option<Step> {
    if from.guid == last.guid {
        return None;
    }
    let from = format!("{}@{}", source.name, from.name);
    let send = SendRequest { intermediate: true, ..options.send(source, &last.name, Some(from)) };
    Some(Step::Send { send, receive: options.receive(target), brings: last.guid })
}
