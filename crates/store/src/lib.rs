//! Where a pool's bytes live: a directory, a file or block device, memory; and a store that fails on purpose.
//!
//! The contract is [`Store`]; what the bytes look like on disk, and why a crash at any moment leaves a readable pool,
//! is in `docs/format/store.md`.

mod codec;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod directory;
mod error;
mod faulty;
mod file;
mod gate;
mod handles;
mod label;
mod location;
mod lock;
mod memory;
#[cfg(test)]
mod model_tests;
mod probe;
mod ring;
mod runtime;
mod store;
mod syscalls;

pub use directory::DirectoryStore;
pub use error::{Result, StoreError};
pub use faulty::{CrashImage, CrashImages, FaultKind, FaultStore};
pub use file::FileStore;
pub use label::PoolLabel;
pub use location::{Access, CreateOptions, Location, create, label, open, set_label};
pub use memory::MemoryStore;
pub use store::{Capacity, RawUberblock, SegmentId, SegmentInfo, Store, UBERBLOCK_MAX, UBERBLOCK_RING};
