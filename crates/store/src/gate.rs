//! Whether a store still accepts writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Access, Result, StoreError};

const WRITABLE: u8 = 0;
const READ_ONLY: u8 = 1;
const POISONED: u8 = 2;
const DESTROYED: u8 = 3;

/// Passed by every write. Once shut it stays shut for as long as the store is open.
#[derive(Debug)]
pub(crate) struct Gate {
    path: PathBuf,
    state: AtomicU8,
}

impl Gate {
    pub(crate) fn new(path: &Path, access: Access) -> Self {
        let state = match access {
            Access::ReadWrite => WRITABLE,
            Access::ReadOnly => READ_ONLY,
        };
        Self { path: path.to_owned(), state: AtomicU8::new(state) }
    }

    /// # Errors
    /// Why writes are refused.
    pub(crate) fn check(&self) -> Result<()> {
        let path = || self.path.clone();
        match self.state.load(Ordering::Acquire) {
            WRITABLE => Ok(()),
            READ_ONLY => Err(StoreError::ReadOnly { path: path() }),
            DESTROYED => Err(StoreError::NotAPool { path: path(), why: "it was destroyed".to_owned() }),
            _ => Err(StoreError::Poisoned { path: path() }),
        }
    }

    /// Shuts the gate after a failed sync or publication, and makes the error that tells of it.
    pub(crate) fn poison(&self, op: &'static str, path: &Path, source: std::io::Error) -> StoreError {
        self.shut(POISONED);
        // Not `StoreError::io`: out of space at this point is no `Full` after which one might go on.
        StoreError::Io { op, path: path.to_owned(), source }
    }

    /// Shuts the gate after a failure that somebody else tells of.
    pub(crate) fn shut_after_failure(&self) {
        self.shut(POISONED);
    }

    /// Shuts the gate for good.
    pub(crate) fn destroy(&self) {
        self.shut(DESTROYED);
    }

    fn shut(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
    }
}
