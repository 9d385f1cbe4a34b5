//! The place that a pool is in: its segments, its key, its cache, and its requests to an object store.

use serde::{Deserialize, Serialize};
use snowmelt_pool::{KeyRecord, Kind};
use snowmelt_store::{CacheStatus, Traffic};

/// The cache of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFacts {
    /// Where it is.
    pub directory: String,
    /// Bytes that it may take, or the length of a segment.
    pub size: u64,
    /// Bytes that it takes.
    pub used: u64,
    /// Why nothing is kept in it, or nothing more.
    pub trouble: Option<String>,
}

impl From<CacheStatus> for CacheFacts {
    fn from(status: CacheStatus) -> Self {
        Self {
            directory: status.location.directory.display().to_string(),
            size: status.location.max_bytes,
            used: status.bytes,
            trouble: status.trouble,
        }
    }
}

/// A segment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentFacts {
    /// Its number.
    pub id: u64,
    /// Blocks of data, or nodes of trees.
    pub is_data: bool,
    /// Bytes that it may take, or the length of a segment.
    pub size: u64,
    /// Bytes of blocks in it that something refers to.
    pub allocated: u64,
    /// Whether it is being written to.
    pub is_open: bool,
}

impl From<snowmelt_pool::SegmentFacts> for SegmentFacts {
    fn from(segment: snowmelt_pool::SegmentFacts) -> Self {
        Self {
            id: segment.id.0,
            is_data: segment.kind == Kind::Data,
            size: segment.len,
            allocated: segment.alive,
            is_open: segment.is_open,
        }
    }
}

/// How a pool is encrypted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EncryptionFacts {
    /// The cipher suite.
    pub suite: String,
    /// Where the key is.
    pub location: String,
    /// The format of the key: raw, hex or passphrase.
    pub format: String,
}

impl From<KeyRecord> for EncryptionFacts {
    fn from(record: KeyRecord) -> Self {
        Self {
            suite: record.suite().name().to_owned(),
            location: record.location().to_owned(),
            format: record.format().name().to_owned(),
        }
    }
}

/// Requests to an object store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestFacts {
    /// Objects written.
    pub puts: u64,
    /// Reads.
    pub gets: u64,
    /// Listings.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Of all these, repeated attempts.
    pub retries: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

impl From<Traffic> for RequestFacts {
    fn from(traffic: Traffic) -> Self {
        let Traffic { puts, gets, lists, deletes, retries, bytes_sent, bytes_received } = traffic;
        Self { puts, gets, lists, deletes, retries, bytes_sent, bytes_received }
    }
}
