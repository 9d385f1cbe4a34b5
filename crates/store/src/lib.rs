//! The stores of snowmelt: the places that hold a pool's bytes.
//!
//! A store is a directory, a file or block device, a bucket of an object store, a mirror of several stores, or
//! memory. [`FaultStore`] is a store for tests that fails on purpose. The contract of all stores is the trait
//! [`Store`]. The trait [`Mirror`], which [`Store::mirror`] returns, adds what only a mirror can do. Neither trait
//! knows its implementations. `docs/format/store.md` describes the bytes on disk, and why the pool stays readable
//! after a crash at any moment.
//!
//! | layer | modules; each uses only the layers above it |
//! |---|---|
//! | types | `segment_id`, `limits`, `error`, `label`, `location` |
//! | contract | `store` |
//! | kinds of stores | `directory`, `file`, `object`, `memory`, with `gate`, `lock`, `direct`, `ring` and others |
//! | one store | `deadman`, `single` |
//! | several stores | `mirror` |
//! | a pool's store | `opening` |

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
mod limits;
mod location;
mod lock;
mod memory;
mod mirror;
#[cfg(test)]
mod model_tests;
mod object;
mod opening;
mod pending;
mod probe;
mod ring;
mod runtime;
mod segment_id;
mod single;
mod store;
mod syscalls;
mod trusted;
mod vectored;

pub use directory::DirectoryStore;
pub use error::{OtherOwner, RemoteError, Result, StoreError, TRUST_VARIABLE};
pub use faulty::{CrashImage, CrashImages, FaultKind, FaultStore};
pub use file::FileStore;
pub use label::{MirrorLabel, PoolLabel};
pub use limits::{UBERBLOCK_MAX, UBERBLOCK_RING};
pub use location::{Access, CacheLocation, CreateOptions, Location, ObjectLocation, is_url};
pub use memory::MemoryStore;
pub use mirror::{MIRRORED_UBERBLOCK_MAX, MirrorStore, attach_to_single};
pub use object::{CACHE_BYTES, ObjectStore, check_cache, take_over};
pub use opening::{control_socket, create, create_mirror, label, mirror_paths, open, set_label};
pub use pending::{Pending, QUIET, canonical, exists};
pub use segment_id::SegmentId;
pub use store::{
    CacheStatus, Capacity, DEADMAN, DEADMAN_MAX, DEADMAN_MIN, MayGiveUp, MemberState, MemberStatus, Mirror,
    MirrorMember, RawUberblock, ResilverStatus, SegmentInfo, Store, Traffic, Unanswered,
};
pub use trusted::{check_way, is_own, open_named};
