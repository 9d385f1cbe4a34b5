//! A question to a device that may not answer: a call of the system cannot be given up, but who waits for it can go on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a device may be silent before others are asked in its place.
pub const QUIET: Duration = Duration::from_millis(250);

/// What was asked, in a thread of its own. An answer that comes when nobody waits any more is dropped.
#[derive(Debug)]
pub struct Pending<T> {
    answer: Receiver<T>,
    begun: Instant,
}

impl<T: Send + 'static> Pending<T> {
    /// Begins `work`.
    pub fn ask(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (tell, answer) = mpsc::sync_channel(1);
        let begun = Instant::now();
        let job = Arc::new(Mutex::new(Some(move || {
            // Nobody may be waiting any more.
            let _ = tell.send(work());
        })));
        let there = job.clone();
        let run = move || take(&there).into_iter().for_each(|job| job());
        if std::thread::Builder::new().name("asking".to_owned()).spawn(run).is_err() {
            // Without threads there is no bound to the waiting.
            take(&job).into_iter().for_each(|job| job());
        }
        Self { answer, begun }
    }

    /// The answer, if it comes before so much time has passed since it was asked for. It is given once.
    pub fn within(&self, wait: Duration) -> Option<T> {
        self.answer.recv_timeout(wait.saturating_sub(self.begun.elapsed())).ok()
    }

    /// How long ago it was asked for.
    #[must_use]
    pub fn since(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// Not to be held while it is done.
fn take<T>(job: &Mutex<Option<T>>) -> Option<T> {
    job.lock().take()
}

/// Whether there is something at a path; nothing is known if it does not answer [soon](QUIET).
#[must_use]
pub fn exists(path: &Path) -> Option<bool> {
    let path = path.to_owned();
    Pending::ask(move || path.exists()).within(QUIET)
}

/// The path without symbolic links; as it is given, if there is nothing or it does not answer [soon](QUIET).
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
