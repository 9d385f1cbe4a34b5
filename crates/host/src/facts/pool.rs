//! How a pool is.

use serde::{Deserialize, Serialize};

use super::{CacheFacts, EncryptionFacts, MemberFacts, RequestFacts, ResilverFacts, ScanFacts};
use crate::pools::pins::Pin;

/// What was read from a pool's store and written to it since its owner opened it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoFacts {
    /// Blocks and tree nodes read.
    pub reads: u64,
    /// Blocks and tree nodes written.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Milliseconds since it was opened.
    pub milliseconds: u64,
}

/// How a pool is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PoolFacts {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Where it is.
    pub vdev: String,
    /// Size of the store in bytes, or its used bytes plus the free bytes of its host.
    pub size: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes free.
    pub free: u64,
    /// Percentage of the free space that is between used space (fragmentation).
    #[serde(default)]
    pub fragmentation: u64,
    /// It is open for reading only.
    pub read_only: bool,
    /// The newest committed txg.
    pub txg: u64,
    /// The property `comment`.
    pub comment: Option<String>,
    /// Hundredths of the data.
    pub parity: u8,
    /// Whether free space is reported at once to the medium below, if this was set.
    #[serde(default)]
    pub autotrim: Option<bool>,
    /// What was read and written.
    #[serde(default)]
    pub io: IoFacts,
    /// Features that are disabled.
    #[serde(default)]
    pub disabled: Vec<String>,
    /// Features that something uses, where that was asked for.
    #[serde(default)]
    pub in_use: Vec<String>,
    /// Of an encrypted pool.
    #[serde(default)]
    pub encryption: Option<EncryptionFacts>,
    /// The errors when it was opened.
    pub faults: Vec<String>,
    /// The last scrub.
    pub scan: Option<ScanFacts>,
    /// Blocks known to be damaged.
    pub damaged: u64,
    /// Blocks that the store could not read, since that was cleared.
    pub read_errors: u64,
    /// Blocks whose bytes were wrong, since that was cleared.
    pub checksum_errors: u64,
    /// The members of a mirror; none if the pool is on one device.
    pub members: Vec<MemberFacts>,
    /// The last resilver of the mirror, if there was one.
    pub resilver: Option<ResilverFacts>,
    /// The requests of its owner to the object store since it opened the pool. `None` for pools elsewhere.
    #[serde(default)]
    pub requests: Option<Box<RequestFacts>>,
    /// The cache of a pool in an object store on this machine.
    #[serde(default)]
    pub cache: Option<Box<CacheFacts>>,
    /// Time limit for an answer of a mirror's member in seconds, if it was set.
    #[serde(default)]
    pub deadman: Option<u64>,
    /// What it is waiting for, if this takes long.
    #[serde(default)]
    pub unanswered: Option<String>,
    /// It is not where it was: only name, guid and place are known.
    #[serde(default)]
    pub is_missing: bool,
}

impl PoolFacts {
    /// What is known about a pool that is missing.
    pub fn of_missing(pin: &Pin) -> Self {
        Self {
            name: pin.name.clone(),
            guid: pin.guid,
            vdev: pin.place.display().to_string(),
            is_missing: true,
            ..Self::default()
        }
    }

    /// ONLINE, DEGRADED if something was wrong when the pool was opened, SUSPENDED while its store does not answer,
    /// UNAVAIL if it is not where it was.
    pub fn health(&self) -> &'static str {
        if self.is_missing {
            return "UNAVAIL";
        }
        if self.unanswered.is_some() {
            return "SUSPENDED";
        }
        let is_whole = self.faults.is_empty() && self.members.iter().all(MemberFacts::is_online);
        if is_whole { "ONLINE" } else { "DEGRADED" }
    }

    /// Whether nothing is known to be wrong, nor was since that was cleared.
    pub fn is_well(&self) -> bool {
        !self.is_missing
            && self.faults.is_empty()
            && self.unanswered.is_none()
            && self.damaged == 0
            && self.read_errors == 0
            && self.checksum_errors == 0
            && self.members.iter().all(MemberFacts::is_well)
    }

    /// Things known to be wrong.
    pub fn error_count(&self) -> u64 {
        self.damaged.saturating_add(self.faults.len() as u64)
    }

    /// Percent of the size that is in use.
    pub fn capacity(&self) -> u64 {
        let percent = u128::from(self.allocated) * 100 / u128::from(self.size.max(1));
        u64::try_from(percent).unwrap_or(100)
    }
}
