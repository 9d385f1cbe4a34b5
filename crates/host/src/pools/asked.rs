//! Identifying the pools at several places. A place whose device hangs must not delay the search for another pool, or
//! for the same pool at another member of its mirror.

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

/// How long to wait for a place that is needed. A disk that has to spin up takes ten seconds or more.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Time before a message on a terminal.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// How often answers are looked for.
const STEP: Duration = Duration::from_millis(50);

/// What places were asked.
#[derive(Clone)]
pub struct Asked {
    silent: Arc<Mutex<BTreeMap<PathBuf, Silent>>>,
    cancelled: Arc<AtomicBool>,
    /// The output for messages about places that do not answer, and whether it is a terminal.
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

    /// Prints nothing from now on, and releases the command's standard error.
    pub fn tell_nobody(&self) {
        *self.err.lock() = None;
    }

    /// The pool at a place, if there is one. The outer `None` means that there was no answer soon. Then the request
    /// continues.
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

    /// The pools at places that did not answer soon, but answer now. The places after one that `is_enough` are not
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

    /// Whether waiting for a place makes sense. Its answer, if there is one, is added to `pools`.
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
                "no answer from {} for {secs} s: the pool there cannot be identified",
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
