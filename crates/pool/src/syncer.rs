//! Writing out and committing beside those who write, so that they seldom wait for either: `txg_sync_thread` of ZFS.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{PoolError, Result};
use crate::pool::Pool;

/// How often it is looked whether a commit is due because what is dirty is old.
const INTERVAL: Duration = Duration::from_secs(1);

/// Wakes the syncers of a pool.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// How often somebody has found that there is work.
    nudges: Mutex<u64>,
    changed: Condvar,
    /// What is kept is to be written out, however little it is.
    write_out: AtomicBool,
}

impl Wake {
    /// There is work.
    pub(crate) fn nudge(&self) {
        *self.nudges.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until there was more work than `seen`, at most for [`INTERVAL`].
    fn wait(&self, seen: &mut u64) {
        let mut nudges = self.nudges.lock();
        if *nudges == *seen {
            self.changed.wait_for(&mut nudges, INTERVAL);
        }
        *seen = *nudges;
    }
}

/// A thread that writes out and commits whatever is due, until this is dropped.
#[derive(Debug)]
pub struct Syncer {
    pool: Arc<Pool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts one. `complain` is told of what fails; those who write are told as well.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(pool: Arc<Pool>, complain: impl Fn(&PoolError) + Send + 'static) -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let (served, done) = (pool.clone(), ended.clone());
        let work = move || {
            let mut seen = 0;
            while !done.load(Ordering::Acquire) {
                served.wake.wait(&mut seen);
                if let Err(error) = served.catch_up() {
                    complain(&error);
                }
            }
        };
        let thread = std::thread::Builder::new().name("txg-sync".to_owned()).spawn(work)?;
        Ok(Self { pool, ended, thread: Some(thread) })
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.pool.wake.nudge();
        if let Some(thread) = self.thread.take() {
            // What it panicked with was told.
            let _ = thread.join();
        }
    }
}

impl Pool {
    /// Has a [`Syncer`] write out what is kept now. For those who write what they will not write again: what waits is memory that
    /// cannot be filled again yet, and all that is left for the commit is work that somebody waits for.
    pub fn write_out_soon(&self) {
        self.wake.write_out.store(true, Ordering::Release);
        self.wake.nudge();
    }

    fn catch_up(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        if self.wake.write_out.swap(false, Ordering::AcqRel) || self.is_write_out_due() {
            self.write_out()?;
        }
        if self.is_commit_due() {
            self.commit()?;
        }
        Ok(())
    }
}
