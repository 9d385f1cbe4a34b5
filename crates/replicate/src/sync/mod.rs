//! A plan carried out, datasets side by side.
//!
//! - `schedule`: which task may begin
//! - `task`: the steps of one dataset
//!
//! If something fails, the completed part is kept, and the next sync continues from there.

mod schedule;
mod task;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::end::End;
use crate::error::{Failure, FailureKind};
use crate::limit::Limit;
use crate::plan::{self, Marks, Options, Plan, Step, Task};
use crate::request::{Action, DatasetInfo, Describe, SendRequest};

/// The source, the target and the options of a sync.
pub struct Sync<'a> {
    /// Where it comes from.
    pub source: &'a dyn End,
    /// Full name of the dataset there.
    pub source_root: &'a str,
    /// The target.
    pub target: &'a dyn End,
    /// Full name of the dataset there.
    pub target_root: &'a str,
    /// Also everything below.
    pub recursive: bool,
    /// Full names of datasets of the source that are left out, with all below.
    pub is_excluded: &'a (dyn Fn(&str) -> bool + std::marker::Sync),
    /// The name of the snapshot for datasets that were written to since their newest one. Without a name, no snapshot
    /// is taken.
    pub snapshot: Option<String>,
    /// How what keeps the next sync incremental is called.
    pub marks: Marks,
    /// The line for the history of both pools, if anything is sent.
    pub history: String,
    /// How to send and receive.
    pub options: Options,
    /// Datasets that go over at the same time.
    pub jobs: usize,
    /// Bytes a second.
    pub limit: Option<Limit>,
    /// Whether [`Event::Planned`] is wanted: the source is asked for sizes first.
    pub tell_sizes: bool,
    /// Told of what happens, from several threads.
    pub observer: &'a (dyn Fn(Event<'_>) + std::marker::Sync),
    /// Set from anywhere to stop.
    pub cancelled: &'a AtomicBool,
}

/// What happens.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// So much is to be done.
    Planned {
        /// Bytes of stream, if all sizes are known.
        bytes: Option<u64>,
    },
    /// A stream begins.
    Begin {
        /// Full name of its last snapshot at the source.
        snapshot: &'a str,
        /// Full name of the dataset at the target.
        target: &'a str,
        /// Whether it resumes an interrupted one.
        resumes: bool,
    },
    /// So many bytes more have gone over.
    Bytes(usize),
    /// A stream has gone over.
    End {
        /// Full name of its last snapshot at the source.
        snapshot: &'a str,
        /// Full name of the dataset at the target.
        target: &'a str,
        /// Bytes of stream.
        bytes: u64,
        /// How long it took.
        took: Duration,
    },
    /// Something that the user should know and that is no failure.
    Note(&'a str),
}

/// What became of a sync.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Each dataset, parents before children.
    pub datasets: Vec<DatasetReport>,
}

/// What became of a dataset.
#[derive(Debug, Clone)]
pub struct DatasetReport {
    /// Full name at the source.
    pub source: String,
    /// Full name at the target.
    pub target: String,
    /// The newest snapshot that both have now; short name.
    pub snapshot: Option<String>,
    /// Bytes of stream that went over.
    pub bytes: u64,
    /// Streams.
    pub streams: usize,
    /// Why it is not up to date.
    pub failure: Option<Failure>,
    /// It was not begun, since another failed that it needs.
    pub was_needing: bool,
}

/// The plan of a sync.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Each dataset, parents before children.
    pub datasets: Vec<DatasetPreview>,
}

/// The plan of a sync for a dataset.
#[derive(Debug, Clone)]
pub struct DatasetPreview {
    /// Full name at the source.
    pub source: String,
    /// Full name at the target.
    pub target: String,
    /// The name it has at the target, if it would be renamed.
    pub rename: Option<String>,
    /// It was written to since its newest snapshot: a new one would be taken, and the streams be larger by that.
    pub snapshot: bool,
    /// The streams, with the bytes of each.
    pub sends: Vec<(SendRequest, u64)>,
    /// Why nothing would be done.
    pub failure: Option<Failure>,
}

/// Both ends as they are now.
struct Described {
    source: Vec<DatasetInfo>,
    target: Vec<DatasetInfo>,
}

impl Sync<'_> {
    /// Brings the target up to date. Datasets that fail are in the report, and the others are completed.
    ///
    /// # Errors
    /// When one of the ends cannot be asked; when the source is not there.
    pub fn run(&self) -> Result<Report, Failure> {
        let mut described = self.describe()?;
        if self.take_snapshots(&described.source)? {
            described.source = self.describe_source()?;
        }
        let plan = plan::plan(&described.source, &described.target, self.target_root);
        if let Some(parent) = &plan.parent {
            let action = Action::CreateParents { name: parent.clone() };
            self.target.apply(&[action])?.into_iter().collect::<Result<Vec<()>, _>>()?;
        }
        if self.tell_sizes {
            self.tell_sizes(&described, &plan)?;
        }
        self.protect(&mut described, &plan)?;
        let told = Mutex::default();
        let outcomes = schedule::run(&plan.tasks, self.jobs, |task| {
            if self.is_cancelled() {
                return Err(Failure::new(FailureKind::Interrupted, "interrupted"));
            }
            task::Running { sync: self, described: &described, task, told: &told }.run()
        });
        let mut report = Report::default();
        for (task, outcome) in plan.tasks.iter().zip(outcomes) {
            report.datasets.push(outcome.into_report(task));
        }
        self.keep(&described, &plan, &report)?;
        self.note(&report);
        Ok(report)
    }

    /// Tells what [`Sync::run`] would do.
    ///
    /// # Errors
    /// As [`Sync::run`].
    pub fn preview(&self) -> Result<Preview, Failure> {
        let described = self.describe()?;
        let plan = plan::plan(&described.source, &described.target, self.target_root);
        let mut datasets = Vec::new();
        let mut sends = Vec::new();
        for task in &plan.tasks {
            let source = described.source.get(task.source_at);
            let snapshot = source.is_some_and(|info| self.needs_snapshot(info));
            let mut preview = DatasetPreview {
                source: task.source.clone(),
                target: task.target.clone(),
                rename: task.rename.clone(),
                snapshot,
                sends: Vec::new(),
                failure: None,
            };
            match described.steps(task, &self.options) {
                Ok(steps) => {
                    for step in steps {
                        if let Step::Send { send, .. } = step {
                            sends.push((datasets.len(), send));
                        }
                    }
                }
                // There will be one.
                Err(plan::Problem::NothingToSend { .. }) if snapshot => {}
                Err(problem) => preview.failure = Some(problem.into_failure()),
            }
            datasets.push(preview);
        }
        let requests: Vec<SendRequest> = sends.iter().map(|(_, send)| send.clone()).collect();
        for ((at, send), size) in sends.into_iter().zip(self.source.sizes(&requests)?) {
            let Some(preview) = datasets.get_mut(at) else { continue };
            match size {
                Ok(size) => preview.sends.push((send, size)),
                Err(failure) => preview.failure = Some(failure),
            }
        }
        Ok(Preview { datasets })
    }

    fn tell_sizes(&self, described: &Described, plan: &Plan) -> Result<(), Failure> {
        let mut sends = Vec::new();
        for task in &plan.tasks {
            let steps = described.steps(task, &self.options).unwrap_or_default();
            sends.extend(steps.into_iter().filter_map(|step| match step {
                Step::Send { send, .. } => Some(send),
                Step::Abort { .. } | Step::Release { .. } => None,
            }));
        }
        let sizes = self.source.sizes(&sends)?;
        // An error that is ignored here will be a failure later.
        let bytes = sizes.into_iter().sum::<Result<u64, Failure>>().ok();
        (self.observer)(Event::Planned { bytes });
        Ok(())
    }

    /// Writes what was done to the history of both pools. An error does no harm.
    fn note(&self, report: &Report) {
        if report.datasets.iter().all(|dataset| dataset.streams == 0) {
            return;
        }
        let note = [Action::Note { line: self.history.clone() }];
        let _ = self.source.apply(&note);
        if !std::ptr::addr_eq(self.source, self.target) {
            let _ = self.target.apply(&note);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn describe(&self) -> Result<Described, Failure> {
        std::thread::scope(|scope| {
            let target = scope.spawn(|| {
                self.target.describe(&Describe {
                    root: self.target_root.to_owned(),
                    recursive: self.recursive,
                    tag: self.marks.tag.clone(),
                })
            });
            let source = self.describe_source();
            let target = target.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(Described { source: source?, target: target? })
        })
    }

    fn describe_source(&self) -> Result<Vec<DatasetInfo>, Failure> {
        let mut found = self.source.describe(&Describe {
            root: self.source_root.to_owned(),
            recursive: self.recursive,
            tag: self.marks.tag.clone(),
        })?;
        if found.is_empty() {
            return Err(Failure::other(format!(
                "cannot open '{}': dataset does not exist",
                self.source_root
            )));
        }
        plan::leave_out(&mut found, self.is_excluded);
        match found.is_empty() {
            true => {
                Err(Failure::other(format!("'{}' is left out: there is nothing to sync", self.source_root)))
            }
            false => Ok(found),
        }
    }

    fn needs_snapshot(&self, info: &DatasetInfo) -> bool {
        self.snapshot.is_some() && (info.snapshots.is_empty() || info.written > 0)
    }

    /// Takes snapshots of changed datasets, all at one moment. Returns whether any was taken.
    fn take_snapshots(&self, source: &[DatasetInfo]) -> Result<bool, Failure> {
        let Some(short) = &self.snapshot else { return Ok(false) };
        let changed = source.iter().filter(|info| self.needs_snapshot(info));
        let names: Vec<String> = changed.map(|info| format!("{}@{short}", info.name)).collect();
        if names.is_empty() {
            return Ok(false);
        }
        let action = Action::Snapshot { names };
        self.source.apply(&[action])?.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(true)
    }

    /// Makes bookmarks of the snapshots that are about to be sent. If this sync is interrupted, the next one is
    /// incremental from there, even if the snapshots are destroyed in the meantime. Failures are reported at the end.
    fn protect(&self, described: &mut Described, plan: &Plan) -> Result<(), Failure> {
        let (mut places, mut actions) = (Vec::new(), Vec::new());
        for task in &plan.tasks {
            let Some(source) = described.source.get(task.source_at) else { continue };
            let steps = described.steps(task, &self.options).unwrap_or_default();
            let brings: Vec<u64> = steps.iter().filter_map(Step::brings).collect();
            for (bookmark, action) in plan::protect(source, &brings, &self.marks) {
                places.push((task.source_at, bookmark));
                actions.push(action);
            }
        }
        if actions.is_empty() {
            return Ok(());
        }
        for ((at, bookmark), done) in places.into_iter().zip(self.source.apply(&actions)?) {
            if let (Ok(()), Some(source)) = (done, described.source.get_mut(at)) {
                source.bookmarks.push(bookmark);
            }
        }
        Ok(())
    }

    /// A target as it was described before the transfer, without the snapshots that `--force` may have destroyed.
    fn left_of(&self, target: &DatasetInfo, source: &DatasetInfo) -> DatasetInfo {
        let mut left = target.clone();
        if self.options.force {
            left.snapshots.retain(|it| source.snapshots.iter().any(|kept| kept.guid == it.guid));
        }
        left
    }

    /// Marks the base of the next sync. Failures are only reported, because the data has already arrived.
    fn keep(&self, described: &Described, plan: &Plan, report: &Report) -> Result<(), Failure> {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for (task, report) in plan.tasks.iter().zip(&report.datasets) {
            let (Some(source), None) = (described.source.get(task.source_at), &report.failure) else {
                continue;
            };
            let target = task.target_at.and_then(|at| described.target.get(at));
            let target = target.map(|target| self.left_of(target, source));
            let Some(base) = source.snapshots.last() else { continue };
            let (source, target) = plan::keep(source, &task.target, target.as_ref(), base.guid, &self.marks);
            here.extend(source);
            there.extend(target);
        }
        for (end, actions) in [(self.source, here), (self.target, there)] {
            if actions.is_empty() {
                continue;
            }
            let mut stay = 0;
            for (action, result) in actions.iter().zip(end.apply(&actions)?) {
                match result {
                    Err(failure) if is_retention(action) && failure.kind == FailureKind::NotAllowed => {
                        stay += 1
                    }
                    Err(failure) => (self.observer)(Event::Note(&format!("{}: {failure}", attempt(action)))),
                    Ok(()) => {}
                }
            }
            if stay > 0 {
                let note = format!(
                    "{stay} older snapshots of this sync are kept: the other side does not allow to destroy them"
                );
                (self.observer)(Event::Note(&note));
            }
        }
        Ok(())
    }
}

impl Described {
    fn steps(&self, task: &Task, options: &Options) -> Result<Vec<Step>, plan::Problem> {
        let Some(source) = self.source.get(task.source_at) else { return Ok(Vec::new()) };
        let target = task.target_at.and_then(|at| self.target.get(at));
        plan::steps(source, target, &task.target, task.origin.as_ref(), options)
    }
}

/// Whether an action only removes what an earlier sync left.
fn is_retention(action: &Action) -> bool {
    matches!(action, Action::DestroySnapshot { .. })
}

/// An action, for people.
fn attempt(action: &Action) -> String {
    match action {
        Action::Snapshot { names } => format!("cannot snapshot {}", names.join(", ")),
        Action::DestroySnapshot { name } => format!("old snapshot '{name}' was not destroyed"),
        Action::Bookmark { snapshot, .. } => format!("cannot bookmark '{snapshot}'"),
        Action::DestroyBookmark { name } => format!("old bookmark '{name}' was not destroyed"),
        Action::Hold { snapshot, .. } => format!("cannot hold '{snapshot}'"),
        Action::Release { snapshot, .. } => format!("cannot release '{snapshot}'"),
        Action::Rename { from, .. } => format!("cannot rename '{from}'"),
        Action::CreateParents { name } => format!("cannot create '{name}'"),
        Action::Note { .. } => "the history could not be written".to_owned(),
        Action::AbortReceive { name } => format!("cannot abort the receive into '{name}'"),
    }
}
