//! Limits of all stores.

/// The maximum length of an uberblock, in bytes.
pub const UBERBLOCK_MAX: usize = 4096;

/// The minimum number of latest uberblocks that a store keeps readable.
pub const UBERBLOCK_RING: usize = 32;
