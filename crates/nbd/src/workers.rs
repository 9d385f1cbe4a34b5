//! The threads that call exports.
//!
//! A request may take a microsecond or wait for a disk, which is not known beforehand. So every request gets a thread
//! as long as there are idle ones. But threads are woken one after the other: a woken thread wakes the next one if
//! there is still work then. So short requests are done by few threads without a system call for each, and slow
//! requests soon use all threads. The thread that became idle last is woken first, because its memory is still in the
//! cache.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// Threads and their queue of work. When it is dropped, the threads finish the queue and end.
pub(crate) struct Workers {
    pool: Arc<Pool>,
}

struct Pool {
    state: Mutex<State>,
    max_threads: usize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: Vec<Arc<Idle>>,
    threads: usize,
    /// Whether a thread was woken or started and has not taken work yet.
    waking: bool,
    closed: bool,
}

/// An idle thread.
struct Idle {
    thread: Thread,
    woken: AtomicBool,
}

/// The thread to wake after the lock is released.
enum Wake {
    Nobody,
    Idle(Arc<Idle>),
    Another,
}

impl Workers {
    /// Starts the first thread.
    ///
    /// # Errors
    /// If not even one thread can be started. Later failures only limit the number of threads.
    pub(crate) fn new(max_threads: usize) -> io::Result<Self> {
        let pool = Arc::new(Pool { state: Mutex::default(), max_threads });
        {
            let mut state = pool.state.lock();
            state.threads = 1;
            state.waking = true;
        }
        pool.start_thread()?;
        Ok(Self { pool })
    }

    /// Queues `job`, which a thread runs soon.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let job = Box::new(job);
        let wake = {
            let mut state = self.pool.state.lock();
            state.queue.push_back(job);
            self.pool.whom_to_wake(&mut state)
        };
        self.pool.wake(wake);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let idle = {
            let mut state = self.pool.state.lock();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        idle.iter().for_each(|idle| idle.wake());
    }
}

impl Idle {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }

    fn wait(&self) {
        while !self.woken.load(Ordering::Acquire) {
            std::thread::park();
        }
    }
}

impl Pool {
    fn whom_to_wake(&self, state: &mut State) -> Wake {
        if state.waking || state.queue.is_empty() {
            return Wake::Nobody;
        }
        let wake = match state.idle.pop() {
            Some(idle) => Wake::Idle(idle),
            None if state.threads < self.max_threads => {
                state.threads += 1;
                Wake::Another
            }
            None => return Wake::Nobody,
        };
        state.waking = true;
        wake
    }

    fn wake(self: &Arc<Self>, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Idle(idle) => idle.wake(),
            Wake::Another => {
                if let Err(error) = self.start_thread() {
                    tracing::warn!(%error, "starting a worker thread");
                    let mut state = self.state.lock();
                    state.threads -= 1;
                    state.waking = false;
                }
            }
        }
    }

    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let pool = Arc::clone(self);
        std::thread::Builder::new().name("nbd-worker".to_owned()).spawn(move || pool.work()).map(drop)
    }

    /// The main loop of a thread.
    fn work(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.waking = false;
        loop {
            if let Some(job) = state.queue.pop_front() {
                let wake = self.whom_to_wake(&mut state);
                drop(state);
                self.wake(wake);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a worker thread panicked");
                }
                state = self.state.lock();
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                let idle = Arc::new(Idle { thread: std::thread::current(), woken: AtomicBool::new(false) });
                state.idle.push(Arc::clone(&idle));
                drop(state);
                idle.wait();
                state = self.state.lock();
                state.waking = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn every_job_is_done_once() {
        let workers = Workers::new(4).unwrap();
        let (sender, receiver) = mpsc::channel();
        for round in 0..50 {
            for index in 0..40 {
                let sender = sender.clone();
                workers.run(move || sender.send(round * 40 + index).unwrap());
            }
            // so that threads sometimes become idle
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        drop(sender);
        drop(workers);
        let mut done: Vec<i32> = receiver.iter().collect();
        done.sort_unstable();
        assert!(done.into_iter().eq(0..2000));
    }

    #[test]
    fn jobs_that_wait_have_all_threads() {
        let workers = Workers::new(8).unwrap();
        for _ in 0..20 {
            // no job ends before all have begun
            let barrier = Arc::new(Barrier::new(8));
            let (sender, receiver) = mpsc::channel();
            for _ in 0..8 {
                let (barrier, sender) = (Arc::clone(&barrier), sender.clone());
                workers.run(move || {
                    barrier.wait();
                    sender.send(()).unwrap();
                });
            }
            for _ in 0..8 {
                receiver.recv_timeout(SOON).unwrap();
            }
        }
        assert!(workers.pool.state.lock().threads <= 8);
    }

    #[test]
    fn a_panic_costs_no_thread() {
        let workers = Workers::new(1).unwrap();
        workers.run(|| panic!("as the test wants it"));
        let (sender, receiver) = mpsc::channel();
        workers.run(move || sender.send(()).unwrap());
        receiver.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn threads_end_with_the_pool() {
        let workers = Workers::new(3).unwrap();
        let barrier = Arc::new(Barrier::new(4));
        for _ in 0..3 {
            let barrier = Arc::clone(&barrier);
            workers.run(move || {
                barrier.wait();
            });
        }
        barrier.wait();
        let pool = Arc::clone(&workers.pool);
        drop(workers);
        let begun = Instant::now();
        while pool.state.lock().threads > 0 {
            assert!(begun.elapsed() < SOON);
            std::thread::yield_now();
        }
    }
}
