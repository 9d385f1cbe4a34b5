//! Where a pool's bytes live: a directory, a file or block device, a mirror of several, memory; and a store that fails on
//! purpose.
//!
//! The contract is [`Store`]. What a mirror can do beyond it is [`Mirror`], which [`Store::mirror`] returns. Neither knows
//! its implementations. `docs/format/store.md` describes the bytes on disk, and why a crash at any moment leaves a readable
//! pool.
//!
//! | layer | modules, each of which uses only those above it |
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
