//! The steps of one dataset, one after the other.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::time::Instant;

use parking_lot::Mutex;

use super::schedule::Outcome;
use super::{Described, Event, Sync};
use crate::end::Source;
use crate::error::{Failure, FailureKind};
use crate::plan::{Problem, Step, Task};
use crate::request::{Action, Describe, ReceiveRequest, SendRequest};

/// Bytes copied at once.
const COPY_BUFFER: usize = 256 * 1024;

/// A task at work.
pub(super) struct Running<'a> {
    pub(super) sync: &'a Sync<'a>,
    pub(super) described: &'a Described,
    pub(super) task: &'a Task,
    /// Notes of targets that were already reported: each is reported once.
    pub(super) told: &'a Mutex<BTreeSet<String>>,
}

impl Running<'_> {
    pub(super) fn run(&self) -> Result<Outcome, Failure> {
        if let Some(from) = &self.task.rename {
            let note = format!(
                "'{}' was renamed at the source: renaming '{from}' to '{}'",
                self.task.source, self.task.target
            );
            (self.sync.observer)(Event::Note(&note));
            self.apply(Action::Rename { from: from.clone(), to: self.task.target.clone() })?;
        }
        let steps = self.described.steps(self.task, &self.sync.options).map_err(Problem::into_failure)?;
        let mut outcome = Outcome::default();
        match self.carry_out(&steps, &mut outcome) {
            // The stream to resume no longer exists: start this dataset again.
            Err(failure) if failure.kind == FailureKind::CannotResume => {
                self.abort(&failure.message)?;
                let steps = self.replan()?;
                self.carry_out(&steps, &mut outcome)?;
            }
            other => other?,
        }
        let newest = self.described.source.get(self.task.source_at).and_then(|info| info.snapshots.last());
        outcome.snapshot = newest.map(|snapshot| snapshot.name.clone());
        Ok(outcome)
    }

    fn carry_out(&self, steps: &[Step], outcome: &mut Outcome) -> Result<(), Failure> {
        for step in steps {
            match step {
                Step::Abort { why } => self.abort(why)?,
                Step::Release { snapshot } => self.apply(Action::Release {
                    tag: self.sync.marks.tag.clone(),
                    snapshot: snapshot.clone(),
                })?,
                Step::Send { send, receive, .. } => {
                    outcome.bytes += self.transfer(send, receive)?;
                    outcome.streams += 1;
                }
            }
        }
        Ok(())
    }

    fn replan(&self) -> Result<Vec<Step>, Failure> {
        let described = self.sync.target.describe(&Describe {
            root: self.task.target.clone(),
            recursive: false,
            tag: self.sync.marks.tag.clone(),
        })?;
        let Some(source) = self.described.source.get(self.task.source_at) else { return Ok(Vec::new()) };
        let origin = self.task.origin.as_ref();
        crate::plan::steps(source, described.first(), &self.task.target, origin, &self.sync.options)
            .map_err(Problem::into_failure)
    }

    fn abort(&self, why: &str) -> Result<(), Failure> {
        let note = format!(
            "the interrupted receive into '{}' cannot be resumed ({why}): starting again",
            self.task.target
        );
        (self.sync.observer)(Event::Note(&note));
        self.apply(Action::AbortReceive { name: self.task.target.clone() })
    }

    fn apply(&self, action: Action) -> Result<(), Failure> {
        self.sync.target.apply(&[action])?.into_iter().collect::<Result<Vec<()>, _>>().map(drop)
    }

    /// One stream; its bytes.
    fn transfer(&self, send: &SendRequest, receive: &ReceiveRequest) -> Result<u64, Failure> {
        let begun = Instant::now();
        (self.sync.observer)(Event::Begin {
            snapshot: &send.to,
            target: &receive.target,
            resumes: send.token.is_some(),
        });
        let mut source = self.sync.source.send(send)?;
        let mut sink = self.sync.target.receive(receive)?;
        let mut buf = vec![0; COPY_BUFFER];
        let mut bytes = 0;
        let broken = loop {
            if self.sync.is_cancelled() {
                return Err(Failure::new(FailureKind::Interrupted, "interrupted"));
            }
            let len = match source.read(&mut buf) {
                Ok(0) => break None,
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => break Some(error),
            };
            let piece = buf.get(..len).unwrap_or_default();
            if let Some(limit) = &self.sync.limit {
                limit.pass(len);
            }
            if let Err(error) = sink.write_all(piece) {
                // The receiver knows why.
                return Err(
                    self.explained(sink.finish().err().unwrap_or_else(|| Failure::lost(error.to_string())))
                );
            }
            bytes += len as u64;
            (self.sync.observer)(Event::Bytes(len));
        };
        self.sent(source, broken)?;
        for note in sink.finish().map_err(|failure| self.explained(failure))? {
            if self.told.lock().insert(note.clone()) {
                (self.sync.observer)(Event::Note(&note));
            }
        }
        (self.sync.observer)(Event::End {
            snapshot: &send.to,
            target: &receive.target,
            bytes,
            took: begun.elapsed(),
        });
        Ok(bytes)
    }

    /// Whether the stream was whole.
    fn sent(&self, source: Box<dyn Source>, broken: Option<std::io::Error>) -> Result<(), Failure> {
        let finished = source.finish();
        match (finished, broken) {
            (Err(failure), _) => Err(failure),
            (Ok(()), Some(error)) => Err(Failure::lost(error.to_string())),
            (Ok(()), None) => Ok(()),
        }
    }

    /// What the user can do about it.
    fn explained(&self, mut failure: Failure) -> Failure {
        let target = &self.task.target;
        match failure.kind {
            FailureKind::Diverged if !self.sync.options.force => failure.message.push_str(&format!(
                "\nto discard the changes to '{target}', sync with --force; to keep it, clone its newest snapshot \
                 or copy it elsewhere first"
            )),
            FailureKind::NoSpace => failure.message.push_str(&format!(
                "\nmake room for '{target}' (destroy snapshots, or raise its quota) and sync again: it resumes \
                 where it stopped"
            )),
            FailureKind::Busy => {
                failure.message.push_str(&format!(
                    "\nsomething else is receiving into '{target}': wait until that has ended, and sync again"
                ));
            }
            _ => {}
        }
        failure
    }
}
