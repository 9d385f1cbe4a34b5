//! A pool's scrub.

use serde::{Deserialize, Serialize};
use snowmelt_pool::{ScrubState, ScrubStatus};

/// A pool's last scrub.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScanFacts {
    /// Its state.
    pub state: ScanState,
    /// Whether a process is at it.
    pub is_running: bool,
    /// Seconds since 1970.
    pub started: u64,
    /// When it ended or was paused.
    pub ended: u64,
    /// Seconds of work.
    pub worked: u64,
    /// Bytes in the pool when it began.
    pub total: u64,
    /// Bytes found so far.
    pub scanned: u64,
    /// Bytes read.
    pub issued: u64,
    /// Bytes repaired.
    pub repaired: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
}

/// How a scrub stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanState {
    /// It is under way, or was interrupted.
    Scanning,
    /// It was paused.
    Paused,
    /// It is complete.
    Finished,
    /// It was cancelled.
    Canceled,
}

impl From<ScrubStatus> for ScanFacts {
    fn from(status: ScrubStatus) -> Self {
        Self {
            state: match status.state {
                ScrubState::Scanning => ScanState::Scanning,
                ScrubState::Paused => ScanState::Paused,
                ScrubState::Finished => ScanState::Finished,
                ScrubState::Canceled => ScanState::Canceled,
            },
            is_running: status.is_running,
            started: status.started,
            ended: status.ended,
            worked: status.worked,
            total: status.total,
            scanned: status.scanned,
            issued: status.issued,
            repaired: status.repaired,
            errors: status.errors,
        }
    }
}
