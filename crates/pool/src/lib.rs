//! The copy-on-write pool: segments, block pointers, the tree, transaction groups.
//!
//! A [`Pool`] uses one store. Changes are made under a [`Hold`] on the open txg: blocks are written ([`Hold::write`]),
//! and pointers to them are put into a [`Tree`]. [`Pool::commit`] makes all changes durable at once. A crash at any
//! moment leaves the pool as of its last commit. `docs/format/pool.md` describes the format and the reasons for it.
//!
//! ```
//! use snowmelt_pool::{NewPool, Pool, PoolOptions};
//! use snowmelt_store::MemoryStore;
//!
//! let store = MemoryStore::new();
//! let pool = Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 7 }, PoolOptions::default())?;
//! let hold = pool.begin()?;
//! let tree = pool.create_tree(&hold)?;
//! tree.insert(&hold, b"key", b"value")?;
//! drop(hold);
//! pool.commit()?;
//! let id = tree.id();
//! drop((tree, pool)); // without a close: as if the process had died
//!
//! let pool = Pool::open(Box::new(store.snapshot()), PoolOptions::default())?;
//! assert_eq!(pool.tree(id)?.get(b"key")?.unwrap().value, "value");
//! # Ok::<(), snowmelt_pool::PoolError>(())
//! ```

mod block;
mod cache;
mod check;
mod cleaner;
mod commit;
mod damage;
mod deadlist;
mod deadman;
mod error;
mod format;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod heal;
#[cfg(test)]
mod hostile;
mod ids;
mod io;
pub mod memory;
mod mend;
mod open;
mod outside;
mod parity;
mod pending;
mod pool;
mod relocation;
mod rewind;
mod salvage;
mod scan;
mod scrub;
mod space;
mod syncer;
mod tree;
mod trim;
mod txg;
mod writeback;
mod writer;

pub use block::Prepared;
pub use check::{CheckOptions, CheckReport, Finding, Roots, Severity};
pub use cleaner::{CleanOptions, CleanReport, Turn};
pub use commit::REWIND_TXGS;
pub use damage::{DAMAGE_MAX, Damage, DamageCounters, DamageOwner};
pub use deadlist::{Dead, DeadSpace, Deadlist};
pub use error::{KeyError, PoolError, Result, ScrubRefused};
pub use format::compression::{BLOCK_MAX, COMPRESSION_OFF};
pub use format::outside::{OUTSIDE_PATH_PROPERTY, OUTSIDE_PROPERTY, OutsidePlace, OutsidePtr};
pub use format::prefix;
pub use format::ptr::{BlockPtr, EMBEDDED_MAX, StoredPtr};
pub use format::seal::{
    KEY_LOCATION_MAX, KeyFormat, KeyRecord, Keys, PASSPHRASE_MAX, PASSPHRASE_MIN, PassphraseCost, Suite, Wrap,
};
pub use format::segment::{FRAME_HEADER, FrameHeader, Kind};
pub use format::tree_record::TreeStats;
pub use format::uberblock::Features;
pub use ids::{BlockId, TreeId, Txg};
pub use io::Counters;
pub use mend::{MendReport, Mending};
pub use open::OpenReport;
pub use outside::{Outside, OutsideFile};
pub use parity::PARITY_MAX_PERCENT;
pub use pool::{NewPool, Pool, PoolOptions};
pub use rewind::Rewind;
pub use salvage::{LostState, Salvage};
pub use scan::{Frame, Scan, scan};
pub use scrub::{
    FrozenRoot, LiveRoot, MetaScan, ScrubOptions, ScrubPlan, ScrubRoots, ScrubState, ScrubStatus,
};
pub use snowmelt_store::SegmentId;
pub use space::{SegmentFacts, Space};
pub use syncer::Syncer;
pub use tree::{Change, Changes, Diff, DiffIter, Entry, KEY_MAX, NodesSince, Range, Tree, VALUE_MAX, View};
pub use txg::Hold;
pub use writeback::Writeback;
