//! Threads that wait for a store in others' stead.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Threads that are kept for the next job; there are as many as jobs under way.
const IDLE_MAX: usize = 8;

/// Threads; those that have nothing to do end with this.
#[derive(Debug, Default)]
pub(super) struct Workers {
    idle: Mutex<Vec<Sender<Job>>>,
}

impl Workers {
    /// Has a thread do `job` at once, whatever the others are doing.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(super) fn run(self: &Arc<Self>, job: Job) -> io::Result<()> {
        let idle = self.idle.lock().pop();
        let job = match idle {
            Some(idle) => match idle.send(job) {
                Ok(()) => return Ok(()),
                Err(mpsc::SendError(job)) => job,
            },
            None => job,
        };
        let workers = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("store".to_owned());
        thread.spawn(move || work(&workers, job)).map(drop)
    }
}

/// Does one job after the other, as long as there are not idle threads enough without this one.
fn work(workers: &Weak<Workers>, first: Job) {
    let mut job = first;
    loop {
        job();
        let jobs = {
            let Some(workers) = workers.upgrade() else { return };
            let mut idle = workers.idle.lock();
            if idle.len() >= IDLE_MAX {
                return;
            }
            let (next, jobs) = mpsc::channel();
            idle.push(next);
            jobs
        };
        match jobs.recv() {
            Ok(next) => job = next,
            // The store was closed.
            Err(mpsc::RecvError) => return,
        }
    }
}
