//! The members of a mirror, and its resilver.

use serde::{Deserialize, Serialize};
use snowmelt_store::{MemberState, MemberStatus};

/// A member of a mirror.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberFacts {
    /// Its guid.
    pub guid: u64,
    /// Where it is.
    pub path: String,
    /// As zpool(8) has it.
    pub state: String,
    /// The reason of the state.
    pub why: Option<String>,
    /// Whether it is being resilvered, or waits for a resilver.
    pub is_resilvering: bool,
    /// The guid of the member whose place it takes.
    pub replaces: Option<u64>,
    /// Blocks that it could not read.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks whose bytes were wrong.
    pub checksum_errors: u64,
    /// For how many seconds it has not answered, if it is asked something.
    #[serde(default)]
    pub unanswered: Option<u64>,
}

/// A resilver.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ResilverFacts {
    /// It is under way.
    pub is_running: bool,
    /// Seconds since 1970; 0 at the end of one that is under way.
    pub started: u64,
    /// Seconds since 1970.
    pub ended: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes to copy.
    pub total: u64,
}

impl From<MemberStatus> for MemberFacts {
    fn from(status: MemberStatus) -> Self {
        Self {
            guid: status.guid,
            path: status.path.display().to_string(),
            state: status.state.to_string(),
            why: status.why,
            is_resilvering: status.is_stale && status.state == MemberState::Online,
            replaces: status.replaces,
            read_errors: status.read_errors,
            write_errors: status.write_errors,
            checksum_errors: status.checksum_errors,
            unanswered: status.unanswered.map(|unanswered| unanswered.since.as_secs()),
        }
    }
}

impl MemberFacts {
    /// Whether it takes part.
    pub fn is_online(&self) -> bool {
        self.state == "ONLINE"
    }

    /// Whether nothing is known to be wrong with it.
    pub(super) fn is_well(&self) -> bool {
        self.is_online()
            && !self.is_resilvering
            && self.read_errors + self.write_errors + self.checksum_errors == 0
    }
}
