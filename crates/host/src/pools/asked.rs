//! Asking places which pool is there. One whose device hangs must not keep who looks for another pool, or finds the same one by
//! another member of its mirror.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use snowmelt_store::{Pending, QUIET};

use super::locate::{KnownPool, known};
use crate::context::Context;

/// How long a place is waited for that nobody can do without: a disk that has to start turning takes ten seconds or more.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long nobody at a terminal wonders.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// How often answers are looked for.
const STEP: Duration = Duration::from_millis(50);

/// What places were asked.
#[derive(Clone)]
pub struct Asked {
    silent: Arc<Mutex<BTreeMap<PathBuf, Silent>>>,
    cancelled: Arc<AtomicBool>,
    /// Where it is told who does not answer, and whether that is a terminal.
    err: Arc<Mutex<Option<File>>>,
    is_terminal: bool,
}

/// A place that has not answered so far.
struct Silent {
    answer: Pending<Option<KnownPool>>,
    is_told: bool,
    is_told_for_good: bool,
}

impl Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Asked").field(&self.silent.lock().keys()).finish()
    }
}

impl Asked {
    /// Nothing so far; for a command.
    pub fn new(context: &Context) -> Self {
        Self {
            silent: Arc::default(),
            cancelled: context.cancelled.clone(),
            err: Arc::new(Mutex::new(context.err.try_clone().ok())),
            is_terminal: context.is_terminal_err(),
        }
    }

    /// From now on nobody is told: the command's standard error is let go of.
    pub fn tell_nobody(&self) {
        *self.err.lock() = None;
    }

    /// The pool at a place, if there is one; the outer `None` if it does not answer soon. Then it goes on being asked.
    pub fn soon(&self, path: &Path) -> Option<Option<KnownPool>> {
        if let Some(silent) = self.silent.lock().get(path) {
            silent.answer.within(Duration::ZERO)?;
        }
        let place = path.to_owned();
        let answer = Pending::ask(move || known(&place));
        let found = answer.within(QUIET);
        let silent = Silent { answer, is_told: false, is_told_for_good: false };
        match found {
            Some(_) => drop(self.silent.lock().remove(path)),
            None => drop(self.silent.lock().insert(path.to_owned(), silent)),
        }
        found
    }

    /// The pools at places that did not answer soon, as far as they answer now; those that come after one that `is_enough` are not
    /// waited for.
    pub fn late(&self, mut paths: Vec<PathBuf>, is_enough: impl Fn(&KnownPool) -> bool) -> Vec<KnownPool> {
        let mut pools = Vec::new();
        loop {
            paths.retain(|path| self.is_awaited(path, &mut pools));
            if paths.is_empty() || pools.iter().any(&is_enough) {
                return pools;
            }
            if self.cancelled.load(Ordering::Relaxed) {
                paths.iter().for_each(|path| {
                    self.tell(&format!("interrupted: no answer yet from {}", path.display()))
                });
                return pools;
            }
            std::thread::sleep(STEP);
        }
    }

    /// The answer to a question that was not answered soon, if it comes while it is worth waiting for.
    pub fn wait<T: Send + 'static>(&self, question: &Pending<T>) -> Option<T> {
        while question.since() < WAIT_MAX && !self.cancelled.load(Ordering::Relaxed) {
            let answer = question.within(question.since() + STEP);
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// Whether there is any sense in waiting for a place; what has come from it goes to `pools`.
    fn is_awaited(&self, path: &Path, pools: &mut Vec<KnownPool>) -> bool {
        let mut all = self.silent.lock();
        let Some(silent) = all.get_mut(path) else { return false };
        if let Some(answer) = silent.answer.within(Duration::ZERO) {
            all.remove(path);
            pools.extend(answer);
            return false;
        }
        let since = silent.answer.since();
        if since > TELL_AFTER && self.is_terminal && !std::mem::replace(&mut silent.is_told, true) {
            self.tell(&format!(
                "no answer yet from {}: waiting for {} seconds",
                path.display(),
                WAIT_MAX.as_secs()
            ));
        }
        let is_over = since >= WAIT_MAX;
        if is_over && !std::mem::replace(&mut silent.is_told_for_good, true) {
            let secs = WAIT_MAX.as_secs();
            self.tell(&format!(
                "no answer from {} for {secs} s: which pool is there is not known",
                path.display()
            ));
        }
        !is_over
    }

    fn tell(&self, what: &str) {
        if let Some(err) = self.err.lock().as_mut() {
            // There is nowhere to complain if that fails.
            let _ = writeln!(err, "{what}");
        }
    }
}
