//! Threads that do requests to a store, so that their callers can stop waiting.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Maximum number of idle threads that are kept. The number of busy threads is not limited.
const IDLE_MAX: usize = 8;

/// The idle threads. They end when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Workers {
    idle: Mutex<Vec<Sender<Job>>>,
}

impl Workers {
    /// Starts `job` in a thread at once, however many other jobs are running.
    ///
    /// # Errors
    /// When no thread can be started.
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

/// Does one job after another. The thread ends when there are enough idle threads without it.
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
