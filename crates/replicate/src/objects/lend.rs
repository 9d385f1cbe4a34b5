//! Between the two: queries of one connection, answered through another.

use std::io::{self, BufReader};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use super::RemoteSnapshot;
use super::query::{Query, invalid, write_answer};
use crate::error::Failure;
use crate::watcher::Watcher;
use crate::wire::{Channel, WireError};

/// Queries passed on without an answer yet.
const UNDER_WAY: usize = 4096;

/// Answers the queries of the other side of `channel` about snapshots that are elsewhere, until there are no more of
/// them.
///
/// Queries are passed on as they arrive, and answers are returned in the same order, so queries can be sent ahead of
/// time.
pub(crate) fn lend(
    channel: &Arc<Channel>,
    new: &RemoteSnapshot,
    old: Option<&RemoteSnapshot>,
    watcher: &mut dyn Watcher,
) -> Result<(), Failure> {
    let (sender, under_way) = sync_channel(UNDER_WAY);
    std::thread::scope(|scope| {
        scope.spawn(move || pass(channel, new, old, &sender));
        let mut out = channel.outgoing();
        let mut bytes = 0;
        let mut pass_back = || {
            for asked in &under_way {
                let snapshot = asked?;
                if watcher.is_cancelled() {
                    return Err(Failure::new(crate::FailureKind::Interrupted, "interrupted"));
                }
                let answer = snapshot.passed().map_err(|error| snapshot.ended(&error))?;
                let len = answer.as_ref().map_or(0, Vec::len);
                watcher.pass(len);
                if write_answer(&mut out, answer.as_ref().map(Vec::as_slice)).is_err() {
                    break;
                }
                bytes += len as u64;
                watcher.at(bytes);
            }
            Ok(())
        };
        let done = pass_back();
        if done.is_err() {
            // Further queries of the other side are not answered.
            channel.break_off(&WireError::Closed);
        }
        drop(under_way);
        done
    })
}

/// Passes queries on, with the snapshot of each.
fn pass<'s>(
    channel: &Arc<Channel>,
    new: &'s RemoteSnapshot,
    old: Option<&'s RemoteSnapshot>,
    under_way: &SyncSender<Result<&'s RemoteSnapshot, Failure>>,
) {
    let mut queries = BufReader::new(channel.incoming());
    // Why it breaks off is in the result.
    while let Ok(Some((query, is_of_older))) = Query::read_of(&mut queries) {
        let snapshot = if is_of_older { old } else { Some(new) };
        let passed = match snapshot {
            Some(snapshot) => snapshot.pass(query).map(|()| snapshot).map_err(|error| snapshot.ended(&error)),
            None => Err(broken(invalid("a query of no snapshot"))),
        };
        let is_over = passed.is_err();
        if under_way.send(passed).is_err() || is_over {
            return;
        }
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::other(format!("the other side broke the sync protocol: {error}"))
}
