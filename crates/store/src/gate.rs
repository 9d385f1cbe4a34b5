//! The gate of a store: whether it still accepts writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Access, Result, StoreError};

const WRITABLE: u8 = 0;
const READ_ONLY: u8 = 1;
const POISONED: u8 = 2;
const DESTROYED: u8 = 3;

/// Every write checks the gate first. A closed gate stays closed as long as the store is open.
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
    /// The reason why writes are refused.
    pub(crate) fn check(&self) -> Result<()> {
        let path = || self.path.clone();
        match self.state.load(Ordering::Acquire) {
            WRITABLE => Ok(()),
            READ_ONLY => Err(StoreError::ReadOnly { path: path() }),
            DESTROYED => Err(StoreError::NotAPool { path: path(), why: "it was destroyed".to_owned() }),
            _ => Err(StoreError::Poisoned { path: path() }),
        }
    }

    /// Closes the gate after a failed sync or publication, and returns the error for the caller.
    pub(crate) fn poison(&self, op: &'static str, path: &Path, source: std::io::Error) -> StoreError {
        self.shut(POISONED);
        // Not `StoreError::io`: without free space it would return `Full`, after which a caller may continue.
        StoreError::Io { op, path: path.to_owned(), source }
    }

    /// Closes the gate after a failure that the caller reports.
    pub(crate) fn shut_after_failure(&self) {
        self.shut(POISONED);
    }

    /// Closes the gate because the pool was destroyed.
    pub(crate) fn destroy(&self) {
        self.shut(DESTROYED);
    }

    fn shut(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
    }
}
