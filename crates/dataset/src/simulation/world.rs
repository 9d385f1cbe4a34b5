//! One run: operations in a random order, and the possible states after each of them.

use snowmelt_store::{FaultKind, StoreError};
use snowmelt_zpl::SourceError;

use super::machine::Machine;
use super::model::Model;
use super::observe::observe;
use super::replicate::HeldSend;
use super::rng::Rng;
use crate::error::{DatasetError, ReceiveError, SendError};
use crate::{CheckOptions, Finding, Severity};

/// A moment: the length of the disks' log when the pool had the state of the model.
struct Moment {
    position: usize,
    model: Model,
    /// Whether it was reported as durable.
    durable: bool,
}

/// The result of an operation.
pub(super) enum Outcome {
    /// It was done.
    Done(Durable),
    /// It was not possible in the current state, and changed nothing.
    Refused,
    /// The disk failed.
    Broken,
}

/// Whether the changes are durable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    Yes,
    NotYet,
}

/// A run, and its failure if there was one.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) machine: Machine,
    /// The state that a process sees now.
    pub(super) model: Model,
    moments: Vec<Moment>,
    /// States that an unplugged disk may have. They are possible as long as nothing was made durable without that disk.
    elsewhere: Vec<Model>,
    pub(super) sends: Vec<HeldSend>,
    names: u64,
    /// What happened, for messages and for comparing two runs.
    pub(super) journal: Vec<String>,
    pub(super) crashes: usize,
    /// An operation found that the disk fails. Nothing can be done before the next crash.
    pub(super) broken: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // Every fourth pool is a mirror.
        let disks = if seed % 4 == 3 { 2 } else { 1 };
        let machine = Machine::new(&mut rng, disks);
        let model = observe(&machine.datasets()).expect("a new pool can be read");
        let mut world = Self {
            rng,
            machine,
            model,
            moments: Vec::new(),
            elsewhere: Vec::new(),
            sends: Vec::new(),
            names: 0,
            journal: Vec::new(),
            crashes: 0,
            broken: false,
        };
        world.settled();
        world
    }

    pub(super) fn name(&mut self, prefix: &str) -> String {
        format!("{prefix}{}", self.number())
    }

    /// A number that was not used before.
    pub(super) fn number(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(super) fn run(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            crate::random::simulated_time_passes(self.rng.below(1000));
            self.step()?;
        }
        self.stop_cleanly()?;
        self.finish_sends()
    }

    fn step(&mut self) -> Result<(), String> {
        if self.rng.one_in(60) {
            let (after, kind) = (self.rng.below(40), self.rng.below(4));
            let kind = if kind == 0 { FaultKind::NoSpace } else { FaultKind::Write };
            let disk = self.machine.fail_after(&mut self.rng, after, kind);
            self.journal.push(format!("disk {disk} will fail: {kind:?} after {after}"));
        }
        if self.machine.is_mirror() {
            // If both disks stopped answering, it would be random which one is given up.
            if self.rng.one_in(40) && self.machine.is_sound() {
                let after = self.rng.below(40);
                let disk = self.machine.fail_after(&mut self.rng, after, FaultKind::NoAnswer);
                self.journal.push(format!("disk {disk} will give no answer after {after}"));
            }
            self.late_answers(8);
            if self.rng.one_in(12) {
                self.tend_mirror()?;
            }
        }
        match self.rng.below(100) {
            0..4 => self.power_failure(),
            4..6 => self.kill(),
            6..7 => self.stop_cleanly(),
            _ => self.operate(),
        }?;
        if std::mem::take(&mut self.broken) {
            return if self.rng.one_in(2) { self.kill() } else { self.power_failure() };
        }
        Ok(())
    }

    /// Records the result of an operation: `after` is the state if it was done, `between` the intermediate states.
    pub(super) fn done(
        &mut self,
        what: String,
        outcome: Outcome,
        between: Vec<Model>,
        after: Model,
    ) -> Result<(), String> {
        let position = self.machine.position();
        self.machine.look_after_disks();
        for model in between {
            self.moments.push(Moment { position, model, durable: false });
        }
        match outcome {
            Outcome::Done(durable) => {
                self.journal.push(format!("{what} [{position}]"));
                self.model = after;
                let durable = durable == Durable::Yes;
                self.machine.forget_survived_faults();
                self.moments.push(Moment { position, model: self.model.clone(), durable });
                Ok(())
            }
            Outcome::Refused => {
                self.journal.push(format!("{what}: refused [{position}]"));
                // It may have made a commit.
                self.moments.push(Moment { position, model: self.model.clone(), durable: false });
                Ok(())
            }
            Outcome::Broken => {
                self.journal.push(format!("{what}: the disk failed [{position}]"));
                self.moments.push(Moment { position, model: after, durable: false });
                self.broken = true;
                Ok(())
            }
        }
    }

    /// Notes that everything so far is durable.
    fn settled(&mut self) {
        let (position, model) = (self.machine.position(), self.model.clone());
        self.moments = vec![Moment { position, model, durable: true }];
    }

    /// Makes each disk that has not answered finish its operation with the probability 1/`one_in`.
    fn late_answers(&mut self, one_in: u64) {
        for disk in self.machine.late() {
            if self.rng.one_in(one_in) {
                self.machine.answer(disk);
                self.journal.push(format!("disk {disk} answers"));
            }
        }
    }

    /// Kills the process. Everything written stays.
    fn kill(&mut self) -> Result<(), String> {
        self.sends.clear();
        self.late_answers(2);
        self.machine.kill();
        self.journal.push("killed".to_owned());
        self.restart(self.machine.position())
    }

    /// The power fails at some recent moment. The disk may have lost everything that was not synced.
    fn power_failure(&mut self) -> Result<(), String> {
        self.sends.clear();
        self.late_answers(2);
        let back = (self.rng.below(6) as usize).min(self.moments.len() - 1);
        let from = self.moments[self.moments.len() - 1 - back].position;
        let now = self.machine.position();
        let point = from + self.rng.below((now - from) as u64 + 1) as usize;
        let left = self.machine.crash(&mut self.rng, point, 6).ok_or("no image of the crash")?;
        self.journal.push(format!("power failure at {point} of {now}, images {left:?}"));
        self.restart(point)
    }

    /// A new process must find everything that was durable before `point`, and nothing from later.
    fn restart(&mut self, point: usize) -> Result<(), String> {
        self.crashes += 1;
        self.replug();
        self.machine.start().map_err(|error| format!("the pool does not open: {}", chain(&error)))?;
        let first = self.moments.iter().rposition(|it| it.durable && it.position <= point).unwrap_or(0);
        // The operation under way at that point may have been done, too.
        let under_way = self.moments.iter().map(|it| it.position).find(|position| *position > point);
        let last = under_way.unwrap_or(point);
        let found = self.look()?;
        let moments = self.moments.iter().skip(first).filter(|it| it.position <= last);
        let elsewhere = self.elsewhere.iter().filter(|_| first == 0);
        let allowed: Vec<Model> = moments.map(|it| &it.model).chain(elsewhere).cloned().collect();
        if !allowed.contains(&found) {
            let differences: Vec<String> = allowed.iter().map(|model| model.difference(&found)).collect();
            return Err(format!("after a crash, none of what may be there:\n  {}", differences.join("\n  ")));
        }
        self.elsewhere = if self.machine.is_unplugged() { allowed } else { Vec::new() };
        self.model = found;
        self.begin_anew();
        Ok(())
    }

    /// Commits and stops. Everything must be there at the next start.
    fn stop_cleanly(&mut self) -> Result<(), String> {
        self.sends.iter_mut().try_for_each(HeldSend::finish)?;
        let failed = self.machine.fault_happened();
        self.machine.clear_faults();
        let committed = self.machine.datasets().pool().commit();
        if failed && committed.is_err() {
            // The disk failed during an operation that was refused for another reason.
            self.journal.push("the last commit: the disk failed".to_owned());
            return self.kill();
        }
        self.machine.kill();
        committed.map_err(|error| format!("the last commit: {error}"))?;
        self.journal.push(format!("stopped [{}]", self.machine.position()));
        self.replug();
        self.machine.start().map_err(|error| format!("the pool does not open: {}", chain(&error)))?;
        let found = self.look()?;
        let is_elsewhere =
            self.moments.iter().skip(1).all(|it| !it.durable) && self.elsewhere.contains(&found);
        if found != self.model && !is_elsewhere {
            return Err(format!("after a restart: {}", self.model.difference(&found)));
        }
        if !self.machine.is_unplugged() {
            self.elsewhere.clear();
        }
        self.model = found;
        self.begin_anew();
        Ok(())
    }

    fn replug(&mut self) {
        if let Some(disk) = self.machine.replug(&mut self.rng) {
            self.journal.push(format!("disk {disk} is unplugged"));
        }
    }

    /// Takes a disk of a mirror offline or online, or resilvers it.
    fn tend_mirror(&mut self) -> Result<(), String> {
        let disk = self.rng.below(2) as usize;
        // A disk that has not answered is not taken online.
        if self.machine.late().contains(&disk) {
            self.journal.push(format!("{disk} has not answered"));
            return Ok(());
        }
        let (what, outcome) = match self.rng.below(4) {
            0 => (format!("offline {disk}"), self.machine.offline(disk)),
            1 => (format!("online {disk}"), self.machine.online(disk)),
            _ => {
                let pieces = 1 << self.rng.below(8);
                (format!("resilver in {pieces} pieces"), self.machine.resilver(pieces))
            }
        };
        let outcome = match outcome {
            Ok(()) => Outcome::Done(Durable::NotYet),
            Err(StoreError::Invalid { .. }) => Outcome::Refused,
            Err(error) => self.broken(&error)?,
        };
        self.done(what, outcome, Vec::new(), self.model.clone())?;
        if std::mem::take(&mut self.broken) { self.kill() } else { Ok(()) }
    }

    /// Begins a new log of the disks.
    fn begin_anew(&mut self) {
        // The open pool must use the new log.
        self.machine.begin_log(&mut self.rng);
        self.machine.start().expect("the pool was opened a moment ago");
        self.settled();
    }

    /// Reads the content of the pool, and checks all invariants.
    fn look(&self) -> Result<Model, String> {
        let datasets = self.machine.datasets();
        let mut faults = Vec::new();
        let mut report = |finding: Finding| {
            // A crash leaves segments that the next commit removes.
            if finding.severity == Severity::Error {
                faults.push(format!("{}: {}", finding.place, finding.what));
            }
        };
        let checked = datasets.check(CheckOptions { data: true }, &mut report);
        checked.map_err(|error| format!("check: {error}"))?;
        if !faults.is_empty() {
            return Err(format!("check found:\n  {}", faults.join("\n  ")));
        }
        observe(&datasets).map_err(|error| error.to_string())
    }

    pub(super) fn ended<T>(
        &self,
        outcome: Result<T, DatasetError>,
        durable: Durable,
    ) -> Result<Outcome, String> {
        match outcome {
            Ok(_) => Ok(Outcome::Done(durable)),
            Err(DatasetError::Pool(error)) => self.broken(&error),
            Err(error @ (DatasetError::Corrupt { .. } | DatasetError::Encrypted { .. })) => {
                Err(error.to_string())
            }
            Err(_) => Ok(Outcome::Refused),
        }
    }

    pub(super) fn received<T>(&self, outcome: Result<T, ReceiveError>) -> Result<Outcome, String> {
        match outcome {
            Err(ReceiveError::Dataset(error)) => self.ended::<T>(Err(error), Durable::Yes),
            Err(_) => Ok(Outcome::Refused),
            Ok(_) => Ok(Outcome::Done(Durable::Yes)),
        }
    }

    pub(super) fn written<T>(&self, outcome: Result<T, SourceError>) -> Result<Outcome, String> {
        match outcome {
            Ok(_) => Ok(Outcome::Done(Durable::NotYet)),
            Err(SourceError::QuotaExceeded) => Ok(Outcome::Refused),
            Err(error) => self.broken(&error),
        }
    }

    pub(super) fn sent<T>(&self, outcome: Result<T, SendError>) -> Result<T, String> {
        outcome.map_err(|error| format!("a send failed: {error}"))
    }

    /// Accepts an error only if a failing disk explains it.
    fn broken(&self, error: &dyn std::error::Error) -> Result<Outcome, String> {
        if self.machine.fault_happened() {
            return Ok(Outcome::Broken);
        }
        Err(format!("failed on a sound disk: {error} ({:?})", error.source().map(ToString::to_string)))
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let behind = std::iter::successors(error.source(), |error| error.source());
    behind.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}
