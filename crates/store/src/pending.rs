//! Calls to a device that may hang. A system call cannot be cancelled, but the caller can stop waiting for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a device may be silent before other devices are asked instead.
pub const QUIET: Duration = Duration::from_millis(250);

/// A call that runs in its own thread. Its result is dropped if the caller no longer waits.
#[derive(Debug)]
pub struct Pending<T> {
    answer: Receiver<T>,
    begun: Instant,
}

impl<T: Send + 'static> Pending<T> {
    /// Starts `work`.
    pub fn ask(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (tell, answer) = mpsc::sync_channel(1);
        let begun = Instant::now();
        let job = Arc::new(Mutex::new(Some(move || {
            // Sending fails when the caller no longer waits.
            let _ = tell.send(work());
        })));
        let there = job.clone();
        let run = move || take(&there).into_iter().for_each(|job| job());
        if std::thread::Builder::new().name("asking".to_owned()).spawn(run).is_err() {
            // If no thread can be started, the call runs here, without a time limit.
            take(&job).into_iter().for_each(|job| job());
        }
        Self { answer, begun }
    }

    /// Returns the result if it arrives before `wait` has passed since the start. The result is returned only once.
    pub fn within(&self, wait: Duration) -> Option<T> {
        self.answer.recv_timeout(wait.saturating_sub(self.begun.elapsed())).ok()
    }

    /// The time since the start.
    #[must_use]
    pub fn since(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// A function of its own, so that the lock is not held while the job runs.
fn take<T>(job: &Mutex<Option<T>>) -> Option<T> {
    job.lock().take()
}

/// Whether a path exists; `None` if there is no answer within [`QUIET`].
#[must_use]
pub fn exists(path: &Path) -> Option<bool> {
    let path = path.to_owned();
    Pending::ask(move || path.exists()).within(QUIET)
}

/// The path without symbolic links. Returned unchanged if it does not exist or there is no answer within [`QUIET`].
#[must_use]
pub fn canonical(path: &Path) -> PathBuf {
    let asked = path.to_owned();
    let answer = Pending::ask(move || std::fs::canonicalize(asked)).within(QUIET);
    answer.and_then(Result::ok).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_and_the_answer_comes_once() {
        let (go, wait) = mpsc::channel::<()>();
        let pending = Pending::ask(move || wait.recv().is_ok());
        assert_eq!(pending.within(Duration::from_millis(20)), None);
        go.send(()).unwrap();
        assert_eq!(pending.within(Duration::from_secs(60)), Some(true));
        assert_eq!(pending.within(Duration::from_secs(60)), None);
    }

    #[test]
    fn who_panics_gives_no_answer() {
        let pending: Pending<()> = Pending::ask(|| panic!("on purpose"));
        let begun = Instant::now();
        assert_eq!(pending.within(Duration::from_secs(60)), None);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
