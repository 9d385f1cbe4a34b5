//! Where a pool's bytes live: a directory, a file or block device, a mirror of several, memory; and a store that fails on
//! purpose.
//!
//! The contract is [`Store`]; what the bytes look like on disk, and why a crash at any moment leaves a readable pool,
//! is in `docs/format/store.md`.

mod codec;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod deadman;
mod direct;
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
mod mirror;
#[cfg(test)]
mod model_tests;
mod object;
mod pending;
mod probe;
mod ring;
mod runtime;
mod store;
mod syscalls;
mod trusted;
mod vectored;

pub use deadman::{DEADMAN, DEADMAN_MAX, DEADMAN_MIN, MayGiveUp, Unanswered};
pub use directory::DirectoryStore;
pub use error::{OtherOwner, RemoteError, Result, StoreError};
pub use faulty::{CrashImage, CrashImages, FaultKind, FaultStore};
pub use file::FileStore;
pub use label::{MirrorLabel, PoolLabel};
pub use location::{
    Access, CacheLocation, CreateOptions, Location, ObjectLocation, create, create_mirror, label,
    mirror_paths, open, set_label,
};
pub use memory::MemoryStore;
pub use mirror::{
    MIRRORED_UBERBLOCK_MAX, MemberState, MemberStatus, MirrorMember, MirrorStore, ResilverStatus,
    attach_to_single,
};
pub use object::{CACHE_BYTES, CacheStatus, ObjectStore, Traffic, check_cache, is_url, take_over};
pub use pending::{Pending, QUIET, canonical, exists};
pub use store::{Capacity, RawUberblock, SegmentId, SegmentInfo, Store, UBERBLOCK_MAX, UBERBLOCK_RING};
pub use trusted::{TRUST_VARIABLE, check_way, is_own, open_named};
