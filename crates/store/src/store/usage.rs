//! Counts of requests, and the state of a cache.

use crate::location::CacheLocation;

/// Requests and bytes since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Objects put, attempts that failed included.
    pub puts: u64,
    /// Objects read, whole or in part.
    pub gets: u64,
    /// Pages of listings asked for (at least; a backend may page without telling).
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

/// How a pool's cache fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStatus {
    /// Where it is, and how much it may take.
    pub location: CacheLocation,
    /// Bytes it takes now.
    pub bytes: u64,
    /// Why nothing is kept, or nothing more.
    pub trouble: Option<String>,
}
