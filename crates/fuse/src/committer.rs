//! Commits beside those who write, so that they seldom wait for one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use snowmelt_pool::{Pool, PoolError};

/// How often it is looked whether a commit is due because what is dirty is old.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whoever asks for commits, and the thread that does them.
#[derive(Default)]
pub(crate) struct Committer {
    /// Somebody has asked since the thread looked last.
    nudged: Mutex<bool>,
    wake: Condvar,
    ended: AtomicBool,
}

impl Committer {
    /// Asks for a look at whether a commit is due.
    pub(crate) fn nudge(&self) {
        if !std::mem::replace(&mut *self.nudged.lock(), true) {
            self.wake.notify_one();
        }
    }

    /// Ends the thread soon.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.nudge();
    }

    /// Commits whenever that is due, until it is ended. `complain` is told of what fails.
    pub(crate) fn run(&self, pool: &Pool, complain: impl Fn(&PoolError)) {
        while !self.ended.load(Ordering::Acquire) {
            let mut nudged = self.nudged.lock();
            if !*nudged {
                self.wake.wait_for(&mut nudged, INTERVAL);
            }
            *nudged = false;
            drop(nudged);
            if !pool.is_read_only()
                && pool.is_commit_due()
                && let Err(error) = pool.commit()
            {
                complain(&error);
            }
        }
    }
}
