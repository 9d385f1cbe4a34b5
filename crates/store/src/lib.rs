//! Where a pool's bytes live: a directory, a file or block device, memory; and a store that fails on purpose.
//!
//! The contract is [`Store`]; what the bytes look like on disk, and why a crash at any moment leaves a readable pool,
//! is in `docs/format/store.md`.

mod error;
mod memory;
mod store;

pub use error::{Result, StoreError};
pub use memory::MemoryStore;
pub use store::{Capacity, RawUberblock, SegmentId, SegmentInfo, Store, UBERBLOCK_MAX, UBERBLOCK_RING};
