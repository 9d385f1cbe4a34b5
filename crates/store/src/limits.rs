//! Limits that hold for all stores.

/// The longest uberblock a store accepts, in bytes.
pub const UBERBLOCK_MAX: usize = 4096;

/// How many of the newest uberblocks a store keeps readable at the least.
pub const UBERBLOCK_RING: usize = 32;
