//! Counts of requests, and the state of a cache.

use crate::location::CacheLocation;

/// Counts of requests and bytes since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Objects put, including failed attempts.
    pub puts: u64,
    /// Objects read, whole or in part.
    pub gets: u64,
    /// Pages of listings requested. This is a lower bound: a backend may read further pages on its own.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Attempts that were repeated.
    pub retries: u64,
    /// Bytes sent in objects.
    pub bytes_sent: u64,
    /// Bytes received in objects.
    pub bytes_received: u64,
}

/// The state of a pool's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStatus {
    /// The cache directory and its maximum size.
    pub location: CacheLocation,
    /// Bytes that the cache holds now.
    pub bytes: u64,
    /// Why nothing, or nothing more, can be kept in the cache.
    pub trouble: Option<String>,
}
