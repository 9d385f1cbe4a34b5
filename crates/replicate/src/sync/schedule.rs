//! Which task may begin: those whose needs are met, as many at once as there are jobs.

use parking_lot::{Condvar, Mutex};

use crate::error::Failure;
use crate::plan::Task;
use crate::sync::DatasetReport;

/// What became of a task.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) snapshot: Option<String>,
    pub(super) bytes: u64,
    pub(super) streams: usize,
    pub(super) failure: Option<Failure>,
    /// Not begun, for the sake of another's failure.
    pub(super) was_needing: bool,
}

impl Outcome {
    fn failed(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }

    pub(super) fn into_report(self, task: &Task) -> DatasetReport {
        DatasetReport {
            source: task.source.clone(),
            target: task.target.clone(),
            snapshot: self.snapshot,
            bytes: self.bytes,
            streams: self.streams,
            failure: self.failure,
            was_needing: self.was_needing,
        }
    }
}

struct State {
    /// `None` before a task has ended.
    outcomes: Vec<Option<Outcome>>,
    begun: Vec<bool>,
}

/// Runs every task, each after those that it needs. A task that needs one which failed is not run, and fails.
pub(super) fn run(
    tasks: &[Task],
    jobs: usize,
    work: impl Fn(&Task) -> Result<Outcome, Failure> + Sync,
) -> Vec<Outcome> {
    let state = Mutex::new(State { outcomes: vec![None; tasks.len()], begun: vec![false; tasks.len()] });
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                while let Some((at, task)) = next(tasks, &state, &changed) {
                    let outcome = work(task).unwrap_or_else(Outcome::failed);
                    if let Some(place) = state.lock().outcomes.get_mut(at) {
                        *place = Some(outcome);
                    }
                    changed.notify_all();
                }
            });
        }
    });
    let outcomes = state.into_inner().outcomes;
    outcomes.into_iter().map(Option::unwrap_or_default).collect()
}

/// The next task that may begin; waits while others are needed first.
fn next<'a>(tasks: &'a [Task], state: &Mutex<State>, changed: &Condvar) -> Option<(usize, &'a Task)> {
    let mut state = state.lock();
    loop {
        let mut waits = false;
        for (at, task) in tasks.iter().enumerate() {
            if state.begun.get(at).copied().unwrap_or(true) {
                continue;
            }
            let needed = |need: &usize| state.outcomes.get(*need).and_then(Option::as_ref);
            let failed =
                task.needs.iter().find_map(|need| Some((need, needed(need)?.failure.as_ref()?.kind)));
            let ready = task.needs.iter().all(|need| needed(need).is_some());
            if let Some((needed, kind)) = failed {
                let name = tasks.get(*needed).map(|task| task.source.as_str()).unwrap_or_default();
                // Of the same kind: the same action can help both.
                let failure = Failure::new(kind, format!("skipped, because '{name}' failed"));
                let outcome = Outcome { was_needing: true, ..Outcome::failed(failure) };
                state.begun[at] = true;
                state.outcomes[at] = Some(outcome);
                changed.notify_all();
                continue;
            }
            if ready {
                state.begun[at] = true;
                return Some((at, task));
            }
            waits = true;
        }
        if !waits {
            return None;
        }
        // Those that fail for the sake of another may have freed others.
        let stuck =
            state.begun.iter().zip(&state.outcomes).all(|(begun, outcome)| *begun == outcome.is_some());
        if stuck {
            return fail_rest(tasks, &mut state);
        }
        changed.wait(&mut state);
    }
}

/// Tasks that need one another cannot begin: the origin of a clone that is below the clone.
fn fail_rest<'a>(tasks: &'a [Task], state: &mut State) -> Option<(usize, &'a Task)> {
    for (at, task) in tasks.iter().enumerate() {
        if !state.begun[at] && task.needs.iter().all(|need| state.outcomes.get(*need).is_some()) {
            let why = format!(
                "'{}' and another dataset depend on each other: sync the other one separately first",
                task.source
            );
            state.begun[at] = true;
            state.outcomes[at] = Some(Outcome::failed(Failure::other(why)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn task(name: &str, needs: &[usize]) -> Task {
        Task {
            source: name.to_owned(),
            target: name.to_owned(),
            source_at: 0,
            target_at: None,
            needs: needs.to_vec(),
            rename: None,
            origin: None,
        }
    }

    fn failures(tasks: &[Task], jobs: usize, fails: &str) -> Vec<bool> {
        let outcomes = run(tasks, jobs, |task| match task.source == fails {
            true => Err(Failure::other("no")),
            false => Ok(Outcome::default()),
        });
        outcomes.iter().map(|outcome| outcome.failure.is_some()).collect()
    }

    #[test]
    fn a_task_runs_after_what_it_needs() {
        let tasks: Vec<Task> =
            (0..100).map(|at| task(&at.to_string(), if at == 0 { &[] } else { &[0] })).collect();
        let ended = AtomicUsize::new(0);
        let outcomes = run(&tasks, 8, |task| {
            if task.source == "0" {
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert_eq!(ended.load(Ordering::SeqCst), 0);
            }
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(Outcome::default())
        });
        assert_eq!((outcomes.len(), ended.into_inner()), (100, 100));
    }

    #[test]
    fn what_needs_a_failure_fails_and_the_rest_runs() {
        let tasks = [task("a", &[]), task("b", &[0]), task("c", &[1]), task("d", &[])];
        for jobs in [1, 4] {
            assert_eq!(failures(&tasks, jobs, "a"), [true, true, true, false]);
            assert_eq!(failures(&tasks, jobs, "b"), [false, true, true, false]);
        }
        let outcomes = run(&tasks, 2, |task| match task.source == "a" {
            true => Err(Failure::other("no")),
            false => Ok(Outcome::default()),
        });
        let needing: Vec<bool> = outcomes.iter().map(|outcome| outcome.was_needing).collect();
        assert_eq!(needing, [false, true, true, false]);
    }

    #[test]
    fn a_circle_fails_instead_of_waiting_for_ever() {
        let tasks = [task("a", &[1]), task("b", &[0]), task("c", &[])];
        for jobs in [1, 3] {
            assert_eq!(failures(&tasks, jobs, ""), [true, true, false]);
        }
    }
}
