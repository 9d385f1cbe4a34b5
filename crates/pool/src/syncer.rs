//! The syncer: a thread that writes out and commits in the background, so that writers seldom wait. Like
//! `txg_sync_thread` of ZFS.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{PoolError, Result};
use crate::pool::Pool;

/// How often the syncer checks whether a commit is due because of the age of changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Wakes the syncers of a pool.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// How often work was reported.
    nudges: Mutex<u64>,
    changed: Condvar,
    /// Write out all kept changes, even if they are few.
    write_out: AtomicBool,
}

impl Wake {
    /// Reports that there is work.
    pub(crate) fn nudge(&self) {
        *self.nudges.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until more work was reported than `seen`, at most for [`INTERVAL`].
    fn wait(&self, seen: &mut u64) {
        let mut nudges = self.nudges.lock();
        if *nudges == *seen {
            self.changed.wait_for(&mut nudges, INTERVAL);
        }
        *seen = *nudges;
    }
}

/// A thread that writes out and commits when it is due, until this is dropped.
#[derive(Debug)]
pub struct Syncer {
    pool: Arc<Pool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts a syncer. Errors are passed to `complain`; writers get them too.
    ///
    /// # Errors
    /// When no thread can be started.
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
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

impl Pool {
    /// Asks a [`Syncer`] to write out the kept changes now. For writers that will not write the same blocks again:
    /// until the changes are written, their memory cannot be used again, and everything left for the commit makes it
    /// longer.
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
