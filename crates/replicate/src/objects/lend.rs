//! Between the two: queries of one connection, answered through another.

use std::io::{self, BufReader};
use std::sync::Arc;

use super::RemoteSnapshot;
use super::query::{Query, invalid, write_answer};
use crate::error::Failure;
use crate::target::Watcher;
use crate::wire::Channel;

/// Answers what the other side of `channel` asks about snapshots that are elsewhere, until it asks no more.
pub(crate) fn lend(
    channel: &Arc<Channel>,
    new: &RemoteSnapshot,
    old: Option<&RemoteSnapshot>,
    watcher: &mut dyn Watcher,
) -> Result<(), Failure> {
    let mut queries = BufReader::new(channel.incoming());
    let mut out = channel.outgoing();
    let mut bytes = 0;
    loop {
        // Why it breaks off is in the result.
        let Ok(Some((query, is_of_older))) = Query::read_of(&mut queries) else { return Ok(()) };
        if watcher.is_cancelled() {
            return Err(Failure::new(crate::FailureKind::Interrupted, "interrupted"));
        }
        let snapshot = if is_of_older { old } else { Some(new) };
        let Some(snapshot) = snapshot else { return Err(broken(invalid("a query of no snapshot"))) };
        let answer = snapshot.answer(query).map_err(|error| snapshot.ended(&error))?;
        let len = answer.as_ref().map_or(0, Vec::len);
        watcher.pass(len);
        if write_answer(&mut out, answer.as_ref().map(Vec::as_slice)).is_err() {
            return Ok(());
        }
        bytes += len as u64;
        watcher.at(bytes);
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::other(format!("the other side broke the sync protocol: {error}"))
}
